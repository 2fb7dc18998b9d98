//! Stored values that cannot be read: their locations, their number, and when each was last found.
//!
//! A value that is not found for a while is forgotten: it was repaired or deleted. Every value is read at least once in
//! five minutes, by the walk over all units and by the examination of the engine.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::labels::Stored;
use crate::clock::{Clock, Timestamp};

/// A value that is not found again for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The most locations in memory; further ones are only logged.
const MAX_LOCATIONS: usize = 1000;

/// The most characters of a location or a reason: both may come from another program.
const MAX_CHARACTERS: usize = 300;

pub(super) struct UnreadableValues {
    clock: Clock,
    met: Mutex<BTreeMap<(&'static str, String), UnreadableValue>>,
}

struct UnreadableValue {
    why: String,
    last: Timestamp,
}

/// The unreadable values of one sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnreadableCount {
    pub count: usize,
    /// One of the unreadable values, and its fault.
    pub example: String,
}

impl UnreadableValues {
    pub fn new(clock: Clock) -> UnreadableValues {
        UnreadableValues { clock, met: Mutex::default() }
    }

    /// Notes a value that cannot be read. Returns whether it is new.
    pub fn met(&self, what: Stored, location: &str, why: &str) -> bool {
        let last = self.clock.now();
        let mut met = self.met.lock();
        let key = (what.as_str(), shown(location));
        if let Some(known) = met.get_mut(&key) {
            known.last = last;
            return false;
        }
        let has_room = met.len() < MAX_LOCATIONS;
        if has_room {
            met.insert(key, UnreadableValue { why: shown(why), last });
        }
        has_room
    }

    /// Forgets a value that is readable again. Returns whether it was in the list.
    pub fn repaired(&self, what: Stored, location: &str) -> bool {
        let mut met = self.met.lock();
        !met.is_empty() && met.remove(&(what.as_str(), shown(location))).is_some()
    }

    /// `None` if no value of that sort is unreadable.
    pub fn of(&self, what: Stored) -> Option<UnreadableCount> {
        let now = self.clock.now();
        let mut met = self.met.lock();
        met.retain(|_, one| now.since(one.last) < FORGOTTEN);
        let mut of_it = met.iter().filter(|((name, _), _)| *name == what.as_str());
        let ((_, location), one) = of_it.next()?;
        Some(UnreadableCount { count: 1 + of_it.count(), example: format!("{location}: {}", one.why) })
    }
}

/// Without control characters, and cut at [`MAX_CHARACTERS`].
fn shown(text: &str) -> String {
    text.chars().take(MAX_CHARACTERS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

//! Values of the engine that cannot be read: which they are, how many, and since when they were met.
//!
//! One that is not met any more for a while is forgotten: it was repaired, or deleted. Every place is met at
//! least once in five minutes, by the walk over all units and by the examination of the engine.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::labels::Stored;
use crate::clock::{Clock, Timestamp};

/// How long a value that is not met any more is still shown.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The most places that are remembered; of more of them only the log tells.
const MOST: usize = 1000;

/// The most bytes of a place or a reason that are kept: both may come from another program.
const LONGEST: usize = 300;

pub(super) struct Unreadable {
    clock: Clock,
    met: Mutex<BTreeMap<(&'static str, String), Met>>,
}

struct Met {
    why: String,
    last: Timestamp,
}

/// What is known of one sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub count: usize,
    /// One of them, and why.
    pub example: String,
}

impl Unreadable {
    pub fn new(clock: Clock) -> Unreadable {
        Unreadable { clock, met: Mutex::default() }
    }

    /// Whether it was not known.
    pub fn met(&self, what: Stored, place: &str, why: &str) -> bool {
        let last = self.clock.now();
        let mut met = self.lock();
        let key = (what.as_str(), shown(place));
        if let Some(known) = met.get_mut(&key) {
            known.last = last;
            return false;
        }
        let has_room = met.len() < MOST;
        if has_room {
            met.insert(key, Met { why: shown(why), last });
        }
        has_room
    }

    /// It is readable again. Whether it was known.
    pub fn repaired(&self, what: Stored, place: &str) -> bool {
        let mut met = self.lock();
        !met.is_empty() && met.remove(&(what.as_str(), shown(place))).is_some()
    }

    /// How many of that sort there are; `None`: none.
    pub fn of(&self, what: Stored) -> Option<Counted> {
        let now = self.clock.now();
        let mut met = self.lock();
        met.retain(|_, one| now.since(one.last) < FORGOTTEN);
        let mut of_it = met.iter().filter(|((name, _), _)| *name == what.as_str());
        let ((_, place), one) = of_it.next()?;
        Some(Counted { count: 1 + of_it.count(), example: format!("{place}: {}", one.why) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(&'static str, String), Met>> {
        self.met.lock().expect("nothing panics under this lock")
    }
}

/// Without control characters, and not too long.
fn shown(text: &str) -> String {
    text.chars().take(LONGEST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

//! Unreadable values that block a loop until they are quarantined. That takes a second or two, in which the
//! engine answers and nothing is lost.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use crate::clock::{Clock, Timestamp};

/// A value that blocks for longer cannot be quarantined, for example because a right is missing.
const LONGEST: Duration = Duration::from_secs(10);

/// Why a loop failed.
pub trait Failure: Display {
    /// A stored value cannot be read and is quarantined within a second or two.
    fn is_blocking_value(&self) -> bool {
        false
    }
}

impl Failure for &str {}

pub(super) struct BlockingValues {
    clock: Clock,
    /// Since when, by loop. The names come from constants and from the configuration, so there are few.
    since: Mutex<BTreeMap<String, Timestamp>>,
}

impl BlockingValues {
    pub fn new(clock: Clock) -> BlockingValues {
        BlockingValues { clock, since: Mutex::default() }
    }

    /// Whether the loop fails only because of such a value, and for less than [`LONGEST`].
    pub fn explain(&self, which: &str, error: &dyn Failure) -> bool {
        if !error.is_blocking_value() {
            return false;
        }
        let now = self.clock.now();
        let since = *self.lock().entry(which.to_owned()).or_insert(now);
        now.since(since) < LONGEST
    }

    /// The loop succeeded.
    pub fn clear(&self, which: &str) {
        self.lock().remove(which);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.since.lock().expect("nothing panics under this lock")
    }
}

//! Unreadable values that block a loop until they are set aside. That takes a second or two, in which the
//! engine answers and nothing is lost.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::clock::{Clock, Timestamp};

/// A value that blocks for longer cannot be set aside, for example because a right is missing.
const LONGEST: Duration = Duration::from_secs(10);

/// An error with one of these comes from such a value: the error code of Redis, and the text of both engines.
const SIGNS: [&str; 2] = ["WRONGTYPE", "put aside"];

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
    pub fn explain(&self, which: &str, error: &str) -> bool {
        if !SIGNS.iter().any(|sign| error.contains(sign)) {
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

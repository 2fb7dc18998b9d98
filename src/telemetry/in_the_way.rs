//! Stored values that stand in the way of a loop until they are put aside: a matter of a second or two, in which the
//! engine answers and nothing is lost.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::clock::{Clock, Timestamp};

/// What stands in the way for longer is not put aside, such as for want of a right.
const LONGEST: Duration = Duration::from_secs(10);

/// What an error of an engine contains that says so: what Redis answers, and what is said of what was met.
const SIGNS: [&str; 2] = ["WRONGTYPE", "put aside"];

pub(super) struct InTheWay {
    clock: Clock,
    /// Since when, by loop; both come from constants and from the configuration, so there are few.
    since: Mutex<BTreeMap<String, Timestamp>>,
}

impl InTheWay {
    pub fn new(clock: Clock) -> InTheWay {
        InTheWay { clock, since: Mutex::default() }
    }

    /// Whether a loop fails for nothing else, and not for long yet.
    pub fn excuses(&self, which: &str, error: &str) -> bool {
        if !SIGNS.iter().any(|sign| error.contains(sign)) {
            return false;
        }
        let now = self.clock.now();
        let since = *self.lock().entry(which.to_owned()).or_insert(now);
        now.since(since) < LONGEST
    }

    /// That loop fails no more.
    pub fn is_gone(&self, which: &str) {
        self.lock().remove(which);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.since.lock().expect("nothing panics under this lock")
    }
}

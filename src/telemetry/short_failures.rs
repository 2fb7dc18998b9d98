//! Failures that end by themselves within seconds: an unreadable value blocks a loop until it is quarantined, or no
//! primary answers until a replica is promoted. Nothing is lost meanwhile, so operators are alerted only if they last.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Timestamp};

/// A longer failure does not end by itself: a right is missing, or no replica can be promoted.
const MAX_SHORT: Duration = Duration::from_secs(10);

/// Why a loop failed.
pub trait LoopFailure: Display {
    /// A stored value cannot be read and is quarantined within a second or two.
    fn is_blocking_value(&self) -> bool {
        false
    }

    /// The engine is down for all work.
    fn is_away(&self) -> bool {
        false
    }

    /// A failover may be under way.
    fn is_passing(&self) -> bool {
        false
    }
}

impl LoopFailure for &str {}

pub(super) struct ShortFailures {
    clock: Clock,
    /// The beginning of the failure, by loop. The names come from constants and from the configuration, so there are
    /// few.
    since: Mutex<BTreeMap<String, Timestamp>>,
}

impl ShortFailures {
    pub fn new(clock: Clock) -> ShortFailures {
        ShortFailures { clock, since: Mutex::default() }
    }

    /// A loop failed in this way. Returns whether the failure is shorter than [`MAX_SHORT`], and whether it begins now
    /// while no other loop fails.
    pub fn is_short(&self, which: &str) -> (bool, bool) {
        let now = self.clock.now();
        let mut all = self.since.lock();
        let since = *all.entry(which.to_owned()).or_insert(now);
        (now.since(since) < MAX_SHORT, all.len() == 1 && since == now)
    }

    /// The failure of the loop, if it has one, counts as begun at most `at_most` ago.
    pub fn shorten(&self, which: &str, at_most: Duration) {
        let began = self.clock.now() - at_most;
        if let Some(since) = self.since.lock().get_mut(which) {
            *since = began.max(*since);
        }
    }

    /// Forgets the failure of a loop that succeeded. Returns whether it was the last failing loop.
    pub fn clear(&self, which: &str) -> bool {
        let mut all = self.since.lock();
        all.remove(which).is_some() && all.is_empty()
    }
}

//! Expiry keys that a look found gone, of units that could not be decided upon, and when that was.
//!
//! A key that is gone comes back only with a change, which changes the facts. So as long as the facts are the
//! same, no heartbeat was recorded since the first look that found none, however late the next one is. Without
//! this each look would presume a heartbeat later than the one before did, and where proof is always a little
//! late (a slow link to the engine) it would be waited for until a whole timeout has passed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::clock::Timestamp;
use crate::presence::{Snapshot, Unit};

/// Of more units a look presumes what it would presume the first time, which is only later.
const MOST: usize = 100_000;

/// When keys were found gone, by unit, and the facts that were stored then.
#[derive(Default)]
pub(super) struct Gone(Mutex<HashMap<Unit, (Box<str>, Timestamp)>>);

impl Gone {
    /// Since when its key is known to be gone, of a unit that was read at `now`.
    pub fn since(&self, seen: &Snapshot, now: Timestamp) -> Timestamp {
        let known = self.lock();
        let known = known.get(&seen.unit).filter(|_| seen.alive.is_none());
        let same = known.filter(|(facts, _)| Some(facts.as_ref()) == seen.stored.as_deref());
        same.map_or(now, |(_, since)| (*since).min(now))
    }

    /// It could not be decided upon.
    pub fn keep(&self, seen: &Snapshot, since: Timestamp) {
        let (None, Some(facts)) = (seen.alive, &seen.stored) else { return };
        let mut known = self.lock();
        if known.len() < MOST || known.contains_key(&seen.unit) {
            known.insert(seen.unit.clone(), (facts.clone(), since));
        }
    }

    /// It was decided upon.
    pub fn forget(&self, unit: &Unit) {
        let mut known = self.lock();
        if !known.is_empty() {
            known.remove(unit);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Unit, (Box<str>, Timestamp)>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

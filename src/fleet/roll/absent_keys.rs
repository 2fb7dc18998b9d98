//! Units that could not be decided and whose expiry keys a check found absent, and the moments of these checks.
//!
//! An absent key comes back only with a change, which changes the facts. So as long as the facts are the
//! same, no heartbeat was recorded since the first check that found no key, however late the next check is. Without
//! this each check would presume a later heartbeat than the check before, and where proof is always a little
//! late (a slow link to the engine) the roll would wait for it until a whole timeout has passed.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::presence::{Snapshot, Unit};

/// For more units than this, each check presumes a later heartbeat than the check before it.
const MAX_UNITS: usize = 100_000;

/// When keys were found absent, by unit, and the facts that were stored then.
#[derive(Default)]
pub(super) struct AbsentKeys(Mutex<HashMap<Unit, (Box<str>, Timestamp)>>);

impl AbsentKeys {
    /// Since when the key of a unit that was read at `now` is known to be absent.
    pub fn since(&self, seen: &Snapshot, now: Timestamp) -> Timestamp {
        let known = self.0.lock();
        let known = known.get(&seen.unit).filter(|_| seen.alive.is_none());
        let same = known.filter(|(facts, _)| Some(facts.as_ref()) == seen.stored.as_deref());
        same.map_or(now, |(_, since)| (*since).min(now))
    }

    /// Stores the moment for a unit that could not be decided.
    pub fn keep(&self, seen: &Snapshot, since: Timestamp) {
        let (None, Some(facts)) = (seen.alive, &seen.stored) else { return };
        let mut known = self.0.lock();
        if known.len() < MAX_UNITS || known.contains_key(&seen.unit) {
            known.insert(seen.unit.clone(), (facts.clone(), since));
        }
    }

    /// Forgets a unit that was decided.
    pub fn forget(&self, unit: &Unit) {
        let mut known = self.0.lock();
        if !known.is_empty() {
            known.remove(unit);
        }
    }
}

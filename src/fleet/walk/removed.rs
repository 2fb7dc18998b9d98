//! Open records of kinds that are configured no more: nothing watches their units, so nothing would ever close them.
//!
//! They are shown as soon as they are met, and closed after a time in which this instance ran and met them, and no
//! instance was configured with their kind. The time is counted in memory, so a restart begins it anew: a wrong file
//! that is mended closes nothing. What other instances are configured with, they tell with their counts, see
//! [`crate::fleet::census`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::Walk;
use crate::clock::Timestamp;
use crate::presence::{Kind, Snapshot, Standing, Unit};
use crate::store::Result;

/// How many open records there are, by kind.
pub(super) type UnwatchedRecords = BTreeMap<Kind, u64>;

/// What is known of kinds that are not configured.
pub struct Removed {
    stay: Duration,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Open records by partition, as of the last time that it was read whole.
    open: HashMap<u16, UnwatchedRecords>,
    /// Since when no instance is known to be configured with the kind.
    since: BTreeMap<Kind, Timestamp>,
}

impl Removed {
    /// Records stay open for so long after their kind is known to be gone.
    pub fn new(stay: Duration) -> Removed {
        Removed { stay, known: Mutex::default() }
    }

    /// For how long they stay open.
    pub fn stay(&self) -> Duration {
        self.stay
    }

    /// How many are open in these partitions, by kind.
    pub(super) fn open(&self, partitions: &[u16]) -> BTreeMap<Kind, u64> {
        let mut sum = UnwatchedRecords::new();
        for (kind, open) in partitions.iter().filter_map(|one| self.known().open.get(one).cloned()).flatten()
        {
            *sum.entry(kind).or_default() += open;
        }
        sum
    }

    /// So many are open in a partition that was read whole.
    pub(super) fn found(&self, partition: u16, unwatched: UnwatchedRecords) {
        let mut known = self.known();
        if unwatched.is_empty() {
            known.open.remove(&partition);
        } else {
            known.open.insert(partition, unwatched);
        }
        let Known { open, since } = &mut *known;
        since.retain(|kind, _| open.values().any(|unwatched| unwatched.contains_key(kind)));
    }

    /// Open records of that kind were met. Whether it is gone for long enough.
    fn is_due(&self, kind: &Kind, now: Timestamp) -> bool {
        let since = *self.known().since.entry(kind.clone()).or_insert(now);
        now.since(since) >= self.stay
    }

    /// An instance is configured with it.
    fn is_watched(&self, kind: &Kind, now: Timestamp) {
        self.known().since.insert(kind.clone(), now);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl Walk {
    /// Closes open records of kinds that have not been configured for long enough. Answers how many of others are
    /// left, by kind.
    pub(super) async fn unwatched(&self, page: &[Snapshot]) -> Result<UnwatchedRecords> {
        let now = self.clock.now();
        let mut met: BTreeMap<&Kind, Vec<Unit>> = BTreeMap::new();
        for seen in page {
            let is_open =
                seen.facts.as_ref().is_some_and(|facts| matches!(facts.standing, Standing::Offline(_)));
            if is_open && !self.roll.rules().contains_key(&seen.unit.kind) {
                met.entry(&seen.unit.kind).or_default().push(seen.unit.clone());
            }
        }
        let mut left = UnwatchedRecords::new();
        if met.is_empty() {
            return Ok(left);
        }
        let view = self.ownership.view();
        let others: Vec<String> =
            view.instances.iter().filter(|name| **name != view.instance).cloned().collect();
        let elsewhere = if others.is_empty() { Vec::new() } else { self.roster.counts(&others).await? };
        for (kind, units) in met {
            if elsewhere.iter().any(|counts| counts.contains_key(kind.as_str())) {
                self.removed.is_watched(kind, now);
            } else if self.removed.is_due(kind, now) {
                self.roll.close_unwatched(&units, now).await?;
                continue;
            }
            left.insert(kind.clone(), units.len() as u64);
        }
        Ok(left)
    }
}

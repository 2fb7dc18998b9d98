//! Open records of kinds that are no longer configured: nothing watches their units, so nothing would ever close them.
//!
//! They are shown as soon as the walk finds them. They are closed when this instance has found them for long enough
//! and no instance was configured with their kind meanwhile. The time is counted in memory, so a restart begins it
//! again: a wrong file that is corrected in time closes nothing. Instances announce their kinds with their counts: see
//! [`crate::fleet::census`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::Walk;
use crate::clock::Timestamp;
use crate::presence::{Kind, Lifecycle, Snapshot, Unit};
use crate::store::Result;

/// The number of open records by kind.
pub(super) type UnwatchedRecords = BTreeMap<Kind, u64>;

/// The open records of kinds that are not configured, and since when.
pub struct Removed {
    /// How long records stay open.
    stay: Duration,
    state: Mutex<UnwatchedKinds>,
}

#[derive(Default)]
struct UnwatchedKinds {
    /// Open records by partition, as of its last whole read.
    open: HashMap<u16, UnwatchedRecords>,
    /// Since when no instance is known to be configured with the kind.
    since: BTreeMap<Kind, Timestamp>,
}

impl Removed {
    /// Records stay open for `stay` after their kind is known to be removed.
    pub fn new(stay: Duration) -> Removed {
        Removed { stay, state: Mutex::default() }
    }

    pub fn stay(&self) -> Duration {
        self.stay
    }

    /// How many open records of each removed kind some partitions have.
    pub(super) fn open(&self, partitions: &[u16]) -> BTreeMap<Kind, u64> {
        let mut sum = UnwatchedRecords::new();
        for (kind, open) in partitions.iter().filter_map(|one| self.state().open.get(one).cloned()).flatten()
        {
            *sum.entry(kind).or_default() += open;
        }
        sum
    }

    /// Notes the open records of a partition that was read whole.
    pub(super) fn counted(&self, partition: u16, unwatched: UnwatchedRecords) {
        let mut state = self.state();
        if unwatched.is_empty() {
            state.open.remove(&partition);
        } else {
            state.open.insert(partition, unwatched);
        }
        let UnwatchedKinds { open, since } = &mut *state;
        since.retain(|kind, _| open.values().any(|unwatched| unwatched.contains_key(kind)));
    }

    /// Notes that the walk found open records of that kind. Answers whether the kind was removed for long enough.
    fn is_due(&self, kind: &Kind, now: Timestamp) -> bool {
        let since = *self.state().since.entry(kind.clone()).or_insert(now);
        now.since(since) >= self.stay
    }

    /// Notes that another instance is configured with that kind.
    fn watched(&self, kind: &Kind, now: Timestamp) {
        self.state().since.insert(kind.clone(), now);
    }

    fn state(&self) -> MutexGuard<'_, UnwatchedKinds> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

impl Walk {
    /// Closes open records of kinds that have not been configured for long enough. Answers the number of open records
    /// of other kinds that are not configured.
    pub(super) async fn unwatched(&self, page: &[Snapshot]) -> Result<UnwatchedRecords> {
        let now = self.clock.now();
        let mut met: BTreeMap<&Kind, Vec<Unit>> = BTreeMap::new();
        for seen in page {
            let is_open =
                seen.facts.as_ref().is_some_and(|facts| matches!(facts.lifecycle, Lifecycle::Offline(_)));
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
                self.removed.watched(kind, now);
            } else if self.removed.is_due(kind, now) {
                self.roll.close_unwatched(&units, now).await?;
                continue;
            }
            left.insert(kind.clone(), units.len() as u64);
        }
        Ok(left)
    }
}

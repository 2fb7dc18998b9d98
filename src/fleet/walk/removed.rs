//! Open records of kinds that are no longer configured.
//!
//! They are shown as soon as the walk finds them, and closed when their kind was removed for long enough: see
//! [`RemovedKinds`].

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;

use super::Walk;
use crate::fleet::RemovedKinds;
use crate::presence::{Kind, Lifecycle, Snapshot, Unit};
use crate::store::Result;

/// The number of open records by kind.
pub(super) type UnwatchedRecords = BTreeMap<Kind, u64>;

/// The open records of kinds that are not configured, and since when.
pub struct Removed {
    kinds: RemovedKinds,
    /// Open records by partition, as of its last whole read.
    open: Mutex<HashMap<u16, UnwatchedRecords>>,
}

impl Removed {
    /// Records stay open for `stay` after their kind is known to be removed.
    pub fn new(stay: Duration) -> Removed {
        Removed { kinds: RemovedKinds::new(stay), open: Mutex::default() }
    }

    pub fn stay(&self) -> Duration {
        self.kinds.stay()
    }

    /// How many open records of each removed kind some partitions have.
    pub(super) fn open(&self, partitions: &[u16]) -> BTreeMap<Kind, u64> {
        let mut sum = UnwatchedRecords::new();
        for (kind, open) in partitions.iter().filter_map(|one| self.open.lock().get(one).cloned()).flatten() {
            *sum.entry(kind).or_default() += open;
        }
        sum
    }

    /// Notes the open records of a partition that was read whole.
    pub(super) fn counted(&self, partition: u16, unwatched: UnwatchedRecords) {
        let mut open = self.open.lock();
        if unwatched.is_empty() {
            open.remove(&partition);
        } else {
            open.insert(partition, unwatched);
        }
        self.kinds.keep(|kind| open.values().any(|unwatched| unwatched.contains_key(kind)));
    }
}

impl Walk {
    /// Closes open records of kinds that have not been configured for long enough. Answers the number of open records
    /// of other kinds that are not configured.
    pub(super) async fn unwatched(&self, page: &[Snapshot]) -> Result<UnwatchedRecords> {
        let now = self.clock.now();
        let mut met: BTreeMap<Kind, Vec<Unit>> = BTreeMap::new();
        for seen in page {
            let is_open =
                seen.facts.as_ref().is_some_and(|facts| matches!(facts.lifecycle, Lifecycle::Offline(_)));
            if is_open && !self.roll.rules().contains_key(&seen.unit.kind) {
                met.entry(seen.unit.kind.clone()).or_default().push(seen.unit.clone());
            }
        }
        let mut left = UnwatchedRecords::new();
        let (view, kinds) = (self.ownership.view(), met.keys().cloned().collect());
        let due = self.removed.kinds.due(kinds, &*self.roster, &view, now).await?;
        for (kind, units) in met {
            if due.contains(&kind) {
                self.roll.close_unwatched(&units, now).await?;
            } else {
                left.insert(kind, units.len() as u64);
            }
        }
        Ok(left)
    }
}

//! Silences that receivers know of and a failover has lost: they are written again, so that their returns are notified.
//!
//! The engine names doubtful silences, see [`NotifiedSilences::doubtful`]. The loop compares them with the stored ones.
//! A lost one is marked as notified in its group, and then its record is written by a change like any other: it goes
//! through the outbox and joins its group, which knows it already. From there on it is an ordinary silence.
//!
//! # Why the mark comes first
//! The record joins its group as soon as it is written, and its return may follow at once. A return that joins before
//! the mark cancels a silence that no receiver seems to know of. If a return was faster than the mark, the mark
//! restores the silence, and the return joins once more.
//!
//! # What is notified twice
//! Receivers of its group that did not acknowledge a lost silence are notified of it, unless its unit is back. If other
//! members of the group wait, it waits with them, and every receiver is notified of it once more.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::TICK_BESIDE_OTHERS;
use super::failures::EngineFailures;
use super::group::groups_of;
use crate::clock::{Clock, Timestamp};
use crate::fleet::{Roll, StoredRecord};
use crate::presence::{Change, OfflineRecord, RecordId, Snapshot};
use crate::routing::{Destinations, Routes};
use crate::store::{
    AcknowledgedSilence, Capacity, GroupStore, Join, NotifiedMark, NotifiedSilences, OutboxEvent, Result,
};
use crate::telemetry::{Loop, Telemetry};

/// The name of the loop among those that fail.
const NAME: &str = "lost silences";

pub struct LostSilences {
    pub routes: Routes,
    pub destinations: Destinations,
    pub notified: Arc<dyn NotifiedSilences>,
    pub groups: Arc<dyn GroupStore>,
    pub roll: Arc<Roll>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

/// The repair of doubtful silences.
#[derive(Default)]
struct Repair {
    /// The records as they are stored, or will be.
    known: BTreeMap<(Timestamp, RecordId), OfflineRecord>,
    stored: HashSet<RecordId>,
    /// The changes that write lost records again.
    lost: Vec<(Snapshot, Change)>,
    /// Records that are compared again later.
    later: HashSet<RecordId>,
}

impl Repair {
    fn add(&mut self, record: &OfflineRecord, found: StoredRecord) {
        let known = match found {
            StoredRecord::Stored(stored) => {
                self.stored.insert(record.id.clone());
                stored
            }
            StoredRecord::Lost(seen, change) => {
                let written = change.record.clone();
                self.lost.push((seen, change));
                written.unwrap_or_else(|| record.clone())
            }
            StoredRecord::AnotherIsOpen => {
                self.later.insert(record.id.clone());
                return;
            }
            StoredRecord::NotWatched => return,
        };
        self.known.insert(name(record), known);
    }
}

/// One opening of a record.
fn name(record: &OfflineRecord) -> (Timestamp, RecordId) {
    (record.detected_at, record.id.clone())
}

impl LostSilences {
    /// Runs until it is stopped.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut failures = EngineFailures::new(Loop::Dispatch, NAME, &self.telemetry);
        loop {
            let step = async {
                let done = self.step(self.clock.now()).await;
                let pause = failures.pause_after(done.map(|_| TICK_BESIDE_OTHERS));
                tokio::select! {
                    () = pause => {}
                    () = self.notified.wait_for_doubtful() => {}
                }
            };
            if stop.run_until_cancelled(step).await.is_none() {
                return Ok(());
            }
        }
    }

    /// Compares the doubtful silences with the stored ones, and writes the lost ones again. Answers how many.
    ///
    /// # Errors
    /// Those of the engine; the silences stay doubtful.
    pub async fn step(&self, now: Timestamp) -> Result<usize> {
        let doubtful = self.notified.doubtful().await?;
        if doubtful.is_empty() {
            return Ok(0);
        }
        let Repair { known, stored, lost, mut later } = self.compare(&doubtful).await?;
        let silences = doubtful.into_iter().filter_map(|silence| {
            let record = known.get(&name(&silence.record))?.clone();
            Some(AcknowledgedSilence { record, ..silence })
        });
        let markings: Vec<NotifiedMark> = silences.map(|silence| self.marking(silence)).collect();
        self.notified.mark_notified(&markings, &self.destinations, now).await?;
        let applied = self.roll.write_again(&lost, now).await?;
        // The return of a stored record may have joined a group that is lost, or joined before the mark. The return of
        // a record that is written again joins from the outbox, unless the unit has changed meanwhile.
        let is_stored = |marking: &NotifiedMark| stored.contains(&marking.silence.record.id);
        let returns = self.returns(markings.into_iter().filter(is_stored).collect()).await?;
        self.groups.join(&returns, &self.destinations.at(now), &Capacity::NONE, now).await?;
        // A unit that changed meanwhile is compared again.
        let changed = lost.iter().zip(&applied).filter(|(_, applied)| !**applied);
        later.extend(changed.filter_map(|((_, change), _)| Some(change.record.as_ref()?.id.clone())));
        let count = applied.into_iter().filter(|applied| *applied).count();
        if count > 0 {
            tracing::warn!(
                records = count,
                "records that receivers know were lost by a failover and are written again"
            );
        }
        self.notified.resolve_doubtful(&later);
        Ok(count)
    }

    async fn compare(&self, doubtful: &[AcknowledgedSilence]) -> Result<Repair> {
        let records: BTreeMap<_, &OfflineRecord> =
            doubtful.iter().map(|silence| (name(&silence.record), &silence.record)).collect();
        let records: Vec<OfflineRecord> = records.into_values().cloned().collect();
        let mut repair = Repair::default();
        for (record, found) in records.iter().zip(self.roll.find(&records).await?) {
            repair.add(record, found);
        }
        Ok(repair)
    }

    /// The returns of stored records, as they are stored now, which join once more.
    async fn returns(&self, markings: Vec<NotifiedMark>) -> Result<Vec<Join>> {
        let records: Vec<OfflineRecord> =
            markings.iter().map(|marking| marking.silence.record.clone()).collect();
        let found = self.roll.find(&records).await?;
        let joins =
            markings.into_iter().zip(found).filter_map(|(NotifiedMark { groups, .. }, found)| match found {
                StoredRecord::Stored(record) if record.back_at.is_some() => {
                    Some(Join { groups, event: OutboxEvent::Record(record) })
                }
                _ => None,
            });
        Ok(joins.collect())
    }

    fn marking(&self, silence: AcknowledgedSilence) -> NotifiedMark {
        let mut groups = groups_of(&OutboxEvent::Record(silence.record.clone()), &self.routes);
        // Routes that have changed since do not change the group of a silence.
        if !groups.iter().any(|group| group.key == silence.group.key) {
            groups = vec![silence.group.clone()];
        }
        let mut rest = self.destinations.of(&silence.group.key).receivers.clone();
        rest.retain(|name| silence.record.back_at.is_none() && !silence.receivers.contains(name));
        NotifiedMark { silence, groups, rest }
    }
}

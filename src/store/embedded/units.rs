//! The state of units: heartbeats change memory, the writer writes changes, facts are read from disk.

use std::collections::HashMap;

use async_trait::async_trait;
use futures_util::FutureExt;
use rusqlite::Connection;
use tokio::sync::{SemaphorePermit, mpsc, oneshot};

use super::apply::{ApplyJob, PreparedChange};
use super::last_seen::unit_id;
use super::readers::Readers;
use super::row::{ExpiryKey, MaybeTimestamp};
use super::stored::{snapshot, text};
use super::{EmbeddedEngine, open_records};
use crate::clock::Timestamp;
use crate::presence::{Change, OfflineRecord, Snapshot, Unit};
use crate::store::{
    CheckGuard, DeadlineCheck, HearingStore, Hint, IndexState, PendingCheck, Refresh, Replaced, Result,
    UnitStore, by_partition,
};

/// The number of suspects of one check: they are decided without a pause, and requests wait meanwhile.
const CHECK_BATCH: usize = 250;
/// The most checks under way: some are decided while others are written, together in one transaction. More would not
/// be faster.
pub(super) const MAX_CHECKS: usize = 8;
/// The most deadline checks that are read at once. More would take processor time from requests.
pub(super) const MAX_CHECK_READS: usize = 2;

#[async_trait]
impl UnitStore for EmbeddedEngine {
    async fn refresh(&self, heartbeats: &[Refresh<'_>]) -> Result<Vec<Option<Replaced>>> {
        let mut before = vec![None; heartbeats.len()];
        let units = heartbeats.iter().map(|heartbeat| heartbeat.unit);
        for (partition, indexes) in by_partition(units, self.memory.partitions()) {
            let of_partition: Vec<&Refresh<'_>> = indexes.iter().map(|index| &heartbeats[*index]).collect();
            let of_partition = self.memory.table(partition).refresh(&of_partition);
            indexes.into_iter().zip(of_partition).for_each(|(index, known)| before[index] = known);
        }
        Ok(before)
    }

    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        self.read_with(&self.readers, units).await
    }

    fn check_deadlines<'a>(&'a self, units: &[Unit]) -> Vec<PendingCheck<'a>> {
        units.chunks(CHECK_BATCH).map(|batch| self.check_batch(batch.to_vec()).boxed()).collect()
    }

    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        let (answer, answered) = oneshot::channel();
        let mut prepared = Vec::with_capacity(changes.len());
        for (seen, change) in changes {
            prepared.push(PreparedChange::new(&self.memory, seen, change)?);
        }
        let (memory, last_seen) = (self.memory.clone(), self.writer.last_seen());
        let apply = Box::new(ApplyJob::new(memory, last_seen, prepared, answer));
        self.writer.run("apply", apply, answered).await.map(|(applied, _)| applied)
    }

    async fn open_records(&self, units: &[Unit]) -> Result<Vec<Option<OfflineRecord>>> {
        open_records::open_records(self, units).await
    }

    async fn set_next_check(&self, units: &[Unit], at: Timestamp, which: IndexState) -> Result<()> {
        for unit in units {
            self.memory.table(self.memory.partition(unit)).set_next_check(unit, at, which);
        }
        Ok(())
    }

    async fn due(
        &self,
        partition: u16,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>> {
        self.memory.table(partition).due(after, until, skip, limit)
    }

    async fn first_checks(
        &self,
        after: &HashMap<u16, Timestamp>,
    ) -> Result<Vec<Option<(Timestamp, String)>>> {
        let first = |partition| self.memory.table(partition).first_check(after.get(&partition).copied());
        Ok((0..self.memory.partitions()).map(first).collect())
    }

    /// Sends no hints: sweeps read the deadline index in memory, which is cheap.
    async fn listen(&self, hints: mpsc::Sender<Hint>) -> Result<()> {
        hints.closed().await;
        Ok(())
    }
}

impl EmbeddedEngine {
    async fn read_with(&self, readers: &Readers, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let found: Vec<(Unit, ExpiryKey, Option<i64>)> = units
            .iter()
            .map(|unit| {
                let partition = self.memory.partition(unit);
                match self.memory.table(partition).get(unit) {
                    Some((slot, alive, broker)) => {
                        (unit.clone(), (alive, broker), Some(unit_id(partition, slot)))
                    }
                    None => (unit.clone(), (MaybeTimestamp::NONE, None), None),
                }
            })
            .collect();
        if found.iter().all(|(.., id)| id.is_none()) {
            return Ok(found.into_iter().map(|(unit, alive, _)| snapshot(unit, alive, None)).collect());
        }
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached("SELECT facts FROM units WHERE id = ?")?;
            let mut snapshots = Vec::with_capacity(found.len());
            for (unit, alive, id) in found {
                let Some(id) = id else {
                    snapshots.push(snapshot(unit, alive, None));
                    continue;
                };
                let mut rows = select.query([id])?;
                let stored = rows.next()?.map(|row| text(row, 0)).transpose()?;
                snapshots.push(snapshot(unit, alive, stored.as_deref()));
            }
            Ok(snapshots)
        };
        readers.read(read).await
    }

    async fn check_batch(&self, units: Vec<Unit>) -> Result<DeadlineCheck<'_>> {
        let permit = self.checks.acquire().await.expect("it is never closed");
        let units = self.read_with(&self.check_readers, &units).await?;
        let guard = Box::new(CheckUnderWay { engine: self, _permit: permit });
        Ok(DeadlineCheck { units, hearing: self.hearing().await?, watermark: None, guard })
    }
}

/// A check is under way until it is applied. It guards nothing: each change is compared with its row.
struct CheckUnderWay<'a> {
    engine: &'a EmbeddedEngine,
    _permit: SemaphorePermit<'a>,
}

#[async_trait]
impl CheckGuard for CheckUnderWay<'_> {
    async fn apply(self: Box<Self>, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        UnitStore::apply(self.engine, changes).await
    }
}

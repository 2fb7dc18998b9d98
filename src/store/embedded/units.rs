//! The state of units: heartbeats change memory, the writer writes changes, facts are read from disk.

use std::collections::HashMap;

use async_trait::async_trait;
use futures_util::FutureExt;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::apply::{ApplyJob, PreparedChange};
use super::last_seen::unit_id;
use super::row::MaybeTimestamp;
use super::stored::{snapshot, text};
use super::{EmbeddedEngine, open_records};
use crate::clock::Timestamp;
use crate::presence::{Change, OfflineRecord, Snapshot, Unit};
use crate::store::{CheckGuard, DeadlineCheck, HearingStore, Hint, PendingCheck, Refresh, Result, UnitStore};

/// How many heartbeats are sorted by partition at once.
const BATCH: usize = 4096;

/// How many suspects are checked at once: enough to keep the disk busy while they are decided.
const CHECK_BATCH: usize = 2000;

#[async_trait]
impl UnitStore for EmbeddedEngine {
    async fn refresh(&self, beats: &[Refresh<'_>]) -> Result<Vec<bool>> {
        let mut applied = Vec::with_capacity(beats.len());
        let mut order: Vec<(u16, u32)> = Vec::with_capacity(beats.len().min(BATCH));
        for batch in beats.chunks(BATCH) {
            order.clear();
            order.extend((0..).zip(batch).map(|(n, beat)| (self.memory.partition(beat.unit), n)));
            order.sort_unstable();
            let done = applied.len();
            applied.resize(done + batch.len(), false);
            for of_one in order.chunk_by(|a, b| a.0 == b.0) {
                let mut table = self.memory.table(of_one[0].0);
                for (_, n) in of_one {
                    applied[done + *n as usize] = table.refresh(&batch[*n as usize]);
                }
            }
        }
        Ok(applied)
    }

    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let found: Vec<(Unit, MaybeTimestamp, Option<i64>)> = units
            .iter()
            .map(|unit| {
                let partition = self.memory.partition(unit);
                match self.memory.table(partition).get(unit) {
                    Some((slot, alive)) => (unit.clone(), alive, Some(unit_id(partition, slot))),
                    None => (unit.clone(), MaybeTimestamp::NONE, None),
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
        self.readers.read(read).await
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

    async fn add_to_index(&self, units: &[Unit], at: Timestamp) -> Result<()> {
        for unit in units {
            self.memory.table(self.memory.partition(unit)).add_to_index(unit, at);
        }
        Ok(())
    }

    async fn set_next_check(&self, units: &[Unit], until: Timestamp) -> Result<()> {
        for unit in units {
            self.memory.table(self.memory.partition(unit)).set_next_check(unit, until);
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

    /// There are no hints: sweeps read the deadline index in memory, which is cheap.
    async fn listen(&self, hints: mpsc::Sender<Hint>) -> Result<()> {
        hints.closed().await;
        Ok(())
    }
}

impl EmbeddedEngine {
    async fn check_batch(&self, units: Vec<Unit>) -> Result<DeadlineCheck<'_>> {
        let units = self.read(&units).await?;
        Ok(DeadlineCheck { units, hearing: self.hearing().await?, stamp: None, guard: Box::new(self) })
    }
}

/// Each change is compared with its row, so the guard is empty.
#[async_trait]
impl CheckGuard for &EmbeddedEngine {
    async fn apply(self: Box<Self>, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        UnitStore::apply(*self, changes).await
    }
}

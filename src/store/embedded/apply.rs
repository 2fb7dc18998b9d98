//! Changes on their way to disk: each is written in full or not at all, and a job is part of one transaction.
//!
//! A change holds for the unit as read. The row in memory is compared, and locked against other changes until the
//! transaction has ended; then it takes the written values.

use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, ToSql, params};
use tokio::sync::oneshot;

use super::error::DatabaseResult;
use super::last_seen::{LastSeenTables, unit_id};
use super::memory::InMemoryFleet;
use super::partition_table::{CommittedFacts, PendingWrite, RowChange};
use super::row::MaybeTimestamp;
use super::stored::text;
use super::write_job::WriteJob;
use crate::clock::Timestamp;
use crate::presence::{Change, Facts, IndexChange, KeyChange, Snapshot, Unit};
use crate::store::json::{raw_json, to_json};
use crate::store::outbox::EncodedEvent;
use crate::store::{EngineError, Result, encoding};

/// A change, ready to be written: the caller encodes it, which relieves the one thread that writes.
pub(super) struct PreparedChange {
    unit: Unit,
    /// The stored name of the unit.
    name: String,
    partition: u16,
    row_change: RowChange,
    facts: Option<String>,
    digest: u64,
    /// The facts that readers of the row get after the change.
    committed: Option<CommittedFacts>,
    record: Option<RecordRow>,
    /// The id and JSON of the open record, if its content changes and it is neither opened nor closed.
    open: Option<(String, String)>,
    /// The locked row, while the change is written.
    pending: Option<PendingWrite>,
}

/// How many records one statement writes: much of the cost of a row is its statement.
const ROWS_PER_INSERT: usize = 16;

struct RecordRow {
    id: String,
    detected: i64,
    closed: Option<i64>,
    json: String,
    /// The outbox entry (JSON).
    event: String,
}

impl PreparedChange {
    pub fn new(memory: &InMemoryFleet, seen: &Snapshot, change: &Change) -> Result<PreparedChange> {
        let next_alive = match change.key {
            KeyChange::Keep => None,
            KeyChange::Delete => Some(MaybeTimestamp::NONE),
            // The key stays until it is deleted: no decision depends on its expiry.
            KeyChange::Set { last_seen, .. } => Some(Some(last_seen).into()),
        };
        let next_check = match change.index {
            IndexChange::Keep => None,
            IndexChange::Take => Some(MaybeTimestamp::NONE),
            IndexChange::CheckAt(at) => Some(Some(at).into()),
        };
        let row_change = RowChange {
            alive: seen.alive.into(),
            facts: memory.digest(seen.stored.as_deref()),
            broker: change.delivered_by().cloned(),
            next_alive,
            next_check,
            is_take: change.index == IndexChange::Take,
        };
        let record = match &change.record {
            None => None,
            Some(record) => {
                let json = raw_json(record)?;
                Some(RecordRow {
                    id: record.id.to_string(),
                    detected: record.detected_at.as_millis(),
                    closed: record.back_at.map(Timestamp::as_millis),
                    event: to_json(&EncodedEvent::Record(&json))?,
                    json: json.get().to_owned(),
                })
            }
        };
        let open = changed_open(seen, change)?;
        let facts = change.facts.as_ref().map(encoding::encode);
        let digest = memory.digest(facts.as_deref());
        let partition = memory.partition(&seen.unit);
        Ok(PreparedChange {
            unit: seen.unit.clone(),
            name: seen.unit.to_string(),
            partition,
            row_change,
            facts,
            digest,
            committed: memory.committed(change.facts.as_ref()),
            record,
            open,
            pending: None,
        })
    }
}

/// Whether each change was applied. The changes are returned too, so that the caller frees them instead of the one
/// thread that writes.
pub(super) type Applied = (Vec<bool>, Vec<PreparedChange>);

/// Changes that are written in one transaction.
pub(super) struct ApplyJob {
    memory: Arc<InMemoryFleet>,
    last_seen: Arc<LastSeenTables>,
    changes: Vec<PreparedChange>,
    answer: oneshot::Sender<Result<Applied>>,
}

impl ApplyJob {
    pub fn new(
        memory: Arc<InMemoryFleet>,
        last_seen: Arc<LastSeenTables>,
        changes: Vec<PreparedChange>,
        answer: oneshot::Sender<Result<Applied>>,
    ) -> ApplyJob {
        ApplyJob { memory, last_seen, changes, answer }
    }

    /// Loads facts on disk that another program wrote, if the change was decided from them. Otherwise every change of
    /// that unit would be refused.
    fn adopt_stored_facts(&self, database: &Connection, change: &PreparedChange) -> DatabaseResult<()> {
        let mut table = self.memory.table(change.partition);
        let Some((slot, known)) = table.stale_digest(&change.unit, &change.row_change) else { return Ok(()) };
        let mut select = database.prepare_cached("SELECT facts FROM units WHERE id = ?")?;
        let mut rows = select.query([unit_id(change.partition, slot)])?;
        let stored = rows.next()?.map(|row| text(row, 0)).transpose()?;
        let found = self.memory.digest(stored.as_deref());
        if found != known {
            let facts = stored.as_deref().and_then(encoding::decode);
            table.adopt_facts(slot, found, self.memory.committed(facts.as_ref()).as_ref());
        }
        Ok(())
    }
}

/// The id and the JSON of the open record, if its content changes and it is neither opened nor closed.
fn changed_open(seen: &Snapshot, change: &Change) -> Result<Option<(String, String)>> {
    let open_of = |facts: Option<&Facts>| facts.and_then(|facts| facts.open_record(&seen.unit));
    let open = match &change.record {
        Some(_) => None,
        None => {
            open_of(change.facts.as_ref()).filter(|open| open_of(seen.facts.as_ref()).as_ref() != Some(open))
        }
    };
    open.map(|open| Ok((open.id.to_string(), to_json(&open)?))).transpose()
}

impl WriteJob for ApplyJob {
    fn write(&mut self, database: &Connection) -> DatabaseResult<()> {
        let number = self.last_seen.flush_number();
        let mut statements = UnitStatements::new(database)?;
        let mut refused = Vec::new();
        for (index, change) in self.changes.iter_mut().enumerate() {
            change.pending = self.memory.table(change.partition).lock_row(&change.unit, &change.row_change);
            match &change.pending {
                Some(pending) => statements.write_unit(change, pending, number)?,
                None => refused.push(index),
            }
        }
        for index in refused {
            self.adopt_stored_facts(database, &self.changes[index])?;
        }
        let pending = self.changes.iter().filter(|change| change.pending.is_some());
        for (id, json) in pending.clone().filter_map(|change| change.open.as_ref()) {
            let update = "UPDATE records SET record = ? WHERE id = ? AND closed IS NULL";
            database.prepare_cached(update)?.execute([json, id])?;
        }
        let records = pending.filter_map(|change| Some((change.partition, change.record.as_ref()?)));
        write_records(database, &records.collect::<Vec<_>>())
    }

    fn undo(&mut self) {
        for change in &mut self.changes {
            if let Some(pending) = change.pending.take() {
                self.memory.table(change.partition).roll_back_row(pending);
            }
        }
    }

    fn finish(self: Box<Self>) {
        let applied = self.changes.iter().map(|change| {
            let pending = change.pending?;
            let mut table = self.memory.table(change.partition);
            table.commit_row(pending, change.digest, change.committed.as_ref());
            Some(())
        });
        let applied = applied.map(|settled| settled.is_some()).collect();
        let _ = self.answer.send(Ok((applied, self.changes)));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        let _ = self.answer.send(Err(why));
    }
}

/// Statements that are prepared once for all changes of a job.
struct UnitStatements<'a> {
    insert: CachedStatement<'a>,
    update: CachedStatement<'a>,
    delete: CachedStatement<'a>,
}

impl<'a> UnitStatements<'a> {
    fn new(database: &'a Connection) -> rusqlite::Result<UnitStatements<'a>> {
        let find = |sql| database.prepare_cached(sql);
        Ok(UnitStatements {
            insert: find(
                "INSERT INTO units(id, name, facts, alive, next_check, after) VALUES(?, ?, ?, ?, ?, ?)",
            )?,
            update: find(
                "UPDATE units SET name = ?, facts = ?, alive = ?, next_check = ?, after = ? WHERE id = ?",
            )?,
            delete: find("DELETE FROM units WHERE id = ?")?,
        })
    }

    fn write_unit(
        &mut self,
        change: &PreparedChange,
        pending: &PendingWrite,
        number: i64,
    ) -> rusqlite::Result<()> {
        let id = unit_id(change.partition, pending.slot);
        let ms = |moment: MaybeTimestamp| moment.get().map(Timestamp::as_millis);
        let (alive, next_check) = (ms(pending.alive), ms(pending.next_check));
        match &change.facts {
            None => self.delete.execute([id])?,
            Some(facts) => {
                let name = &change.name;
                let is_there = pending.is_stored
                    && self.update.execute(params![name, facts, alive, next_check, number, id])? > 0;
                if is_there {
                    1
                } else {
                    self.insert.execute(params![id, name, facts, alive, next_check, number])?
                }
            }
        };
        Ok(())
    }
}

/// Writes records and their outbox entries.
fn write_records(database: &Connection, records: &[(u16, &RecordRow)]) -> DatabaseResult<()> {
    for some in records.chunks(ROWS_PER_INSERT) {
        // The remaining rows are written one by one, so that the cache holds two statements instead of sixteen.
        let rows = if some.len() == ROWS_PER_INSERT { ROWS_PER_INSERT } else { 1 };
        let list = |row: &str| vec![row; rows].join(", ");
        let mut record = database.prepare_cached(&format!(
            "INSERT INTO records(id, partition, detected, closed, record) VALUES {} ON CONFLICT(id) DO UPDATE \
             SET detected = excluded.detected, closed = excluded.closed, record = excluded.record",
            list("(?, ?, ?, ?, ?)")
        ))?;
        // A failure rolls back the whole transaction, so the statement keeps no journal of its own.
        let insert = format!("INSERT OR FAIL INTO outbox(partition, event) VALUES {}", list("(?, ?)"));
        let mut event = database.prepare_cached(&insert)?;
        for some in some.chunks(rows) {
            let mut of_records: Vec<&dyn ToSql> = Vec::with_capacity(5 * rows);
            let mut of_events: Vec<&dyn ToSql> = Vec::with_capacity(2 * rows);
            for (partition, RecordRow { id, detected, closed, json, event: entry }) in some {
                of_records.extend([id as &dyn ToSql, partition, detected, closed, json]);
                of_events.extend([partition as &dyn ToSql, entry]);
            }
            record.execute(&of_records[..])?;
            event.execute(&of_events[..])?;
        }
    }
    Ok(())
}

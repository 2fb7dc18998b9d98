//! Changes on their way to disk: each in full or not at all, and what is written together is one
//! transaction.
//!
//! A change holds for the unit as it was read. The row in memory is compared, and kept from everybody else
//! until the transaction has come to its end; then it becomes what was written.

use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, ToSql, params};
use tokio::sync::oneshot;

use super::error::DatabaseResult;
use super::last_seen::{LastSeenTables, unit_id};
use super::memory::InMemoryFleet;
use super::row::Moment;
use super::shard::{Held, Wanted};
use super::units::text;
use super::writer::WriteJob;
use crate::clock::Timestamp;
use crate::presence::{Change, IndexChange, KeyChange, Snapshot, Unit};
use crate::store::json::to_json;
use crate::store::{EngineError, Result, encoding};

/// A change, ready to be written: whatever takes time was done by whoever wants it.
pub(super) struct PreparedChange {
    unit: Unit,
    partition: u16,
    wanted: Wanted,
    facts: Option<String>,
    digest: u64,
    record: Option<RecordRow>,
    /// While it is being written.
    held: Option<Held>,
}

/// So many records one statement writes: much of what a row costs is its statement.
const TOGETHER: usize = 16;

struct RecordRow {
    id: String,
    detected: i64,
    closed: Option<i64>,
    json: String,
    news: String,
}

impl PreparedChange {
    pub fn new(memory: &InMemoryFleet, seen: &Snapshot, change: &Change) -> Result<PreparedChange> {
        let next_alive = match change.key {
            KeyChange::Keep => None,
            KeyChange::Delete => Some(Moment::NONE),
            // It stands until it is deleted: no decision depends on its going by itself.
            KeyChange::Set { last_seen, .. } => Some(Some(last_seen).into()),
        };
        let next_check = match change.index {
            IndexChange::Keep => None,
            IndexChange::Take => Some(Moment::NONE),
            IndexChange::LookAt(at) => Some(Some(at).into()),
        };
        let wanted = Wanted {
            alive: seen.alive.into(),
            facts: memory.digest(seen.stored.as_deref()),
            next_alive,
            next_check,
            is_take: change.index == IndexChange::Take,
        };
        let record = match &change.record {
            None => None,
            Some(record) => {
                let json = to_json(record)?;
                Some(RecordRow {
                    id: record.id.to_string(),
                    detected: record.detected_at.as_millis(),
                    closed: record.back_at.map(Timestamp::as_millis),
                    // As `OutboxEvent::Record` is written.
                    news: format!("{{\"record\":{json}}}"),
                    json,
                })
            }
        };
        let facts = change.facts.as_ref().map(encoding::encode);
        let digest = memory.digest(facts.as_deref());
        let partition = memory.partition(&seen.unit);
        Ok(PreparedChange { unit: seen.unit.clone(), partition, wanted, facts, digest, record, held: None })
    }
}

/// What came of changes: whether each was applied. They come back with it, so that whoever made them
/// frees them, and not the one thread that writes.
pub(super) type Applied = (Vec<bool>, Vec<PreparedChange>);

/// Changes that are written together.
pub(super) struct ApplyJob {
    memory: Arc<InMemoryFleet>,
    beats: Arc<LastSeenTables>,
    prepared: Vec<PreparedChange>,
    answer: oneshot::Sender<Result<Applied>>,
}

impl ApplyJob {
    pub fn new(
        memory: Arc<InMemoryFleet>,
        beats: Arc<LastSeenTables>,
        prepared: Vec<PreparedChange>,
        answer: oneshot::Sender<Result<Applied>>,
    ) -> ApplyJob {
        ApplyJob { memory, beats, prepared, answer }
    }
}

impl ApplyJob {
    /// A change was made from facts that this process did not write: if they are on disk, somebody else did, and
    /// what is there counts. Otherwise nothing would ever be changed of that unit.
    fn adopt(&self, database: &Connection, change: &PreparedChange) -> DatabaseResult<()> {
        let mut shard = self.memory.shard(change.partition);
        let Some((place, known)) = shard.doubtful(&change.unit, &change.wanted) else { return Ok(()) };
        let mut select = database.prepare_cached("SELECT facts FROM units WHERE id = ?")?;
        let mut rows = select.query([unit_id(change.partition, place)])?;
        let stored = rows.next()?.map(|row| text(row, 0)).transpose()?;
        let found = self.memory.digest(stored.as_deref());
        if found != known {
            shard.adopt(place, found);
        }
        Ok(())
    }
}

impl WriteJob for ApplyJob {
    fn write(&mut self, database: &Connection) -> DatabaseResult<()> {
        let number = self.beats.number();
        let mut statements = UnitStatements::new(database)?;
        let mut left = Vec::new();
        for (place, change) in self.prepared.iter_mut().enumerate() {
            change.held = self.memory.shard(change.partition).hold(&change.unit, &change.wanted);
            match &change.held {
                Some(held) => statements.write_unit(change, held, number)?,
                None => left.push(place),
            }
        }
        for place in left {
            self.adopt(database, &self.prepared[place])?;
        }
        let held = self.prepared.iter().filter(|change| change.held.is_some());
        let records = held.filter_map(|change| Some((change.partition, change.record.as_ref()?)));
        write_records(database, &records.collect::<Vec<_>>())
    }

    fn undo(&mut self) {
        for change in &mut self.prepared {
            if let Some(held) = change.held.take() {
                self.memory.shard(change.partition).release(held);
            }
        }
    }

    fn finish(self: Box<Self>) {
        let applied = self.prepared.iter().map(|change| {
            let held = change.held?;
            self.memory.shard(change.partition).settle(held, change.digest);
            Some(())
        });
        let applied = applied.map(|settled| settled.is_some()).collect();
        let _ = self.answer.send(Ok((applied, self.prepared)));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        let _ = self.answer.send(Err(why));
    }
}

/// Found once for all changes of a job.
struct UnitStatements<'a> {
    insert: CachedStatement<'a>,
    update: CachedStatement<'a>,
    delete: CachedStatement<'a>,
}

impl<'a> UnitStatements<'a> {
    fn new(database: &'a Connection) -> rusqlite::Result<UnitStatements<'a>> {
        let find = |sql| database.prepare_cached(sql);
        Ok(UnitStatements {
            insert: find("INSERT INTO units(id, name, facts, alive, look, after) VALUES(?, ?, ?, ?, ?, ?)")?,
            update: find(
                "UPDATE units SET name = ?, facts = ?, alive = ?, look = ?, after = ? WHERE id = ?",
            )?,
            delete: find("DELETE FROM units WHERE id = ?")?,
        })
    }

    fn write_unit(&mut self, change: &PreparedChange, held: &Held, number: i64) -> rusqlite::Result<()> {
        let id = unit_id(change.partition, held.place);
        let ms = |moment: Moment| moment.get().map(Timestamp::as_millis);
        let (alive, look) = (ms(held.alive), ms(held.look));
        match &change.facts {
            None => self.delete.execute([id])?,
            Some(facts) => {
                let name = change.unit.to_string();
                let is_there =
                    held.is_stored && self.update.execute(params![name, facts, alive, look, number, id])? > 0;
                if is_there {
                    1
                } else {
                    self.insert.execute(params![id, name, facts, alive, look, number])?
                }
            }
        };
        Ok(())
    }
}

/// Writes records and what the outbox says of them.
fn write_records(database: &Connection, records: &[(u16, &RecordRow)]) -> DatabaseResult<()> {
    for some in records.chunks(TOGETHER) {
        // The last few are written one by one, so that there are no more than two statements to keep.
        let rows = if some.len() == TOGETHER { TOGETHER } else { 1 };
        let list = |row: &str| vec![row; rows].join(", ");
        let mut record = database.prepare_cached(&format!(
            "INSERT INTO records(id, partition, detected, closed, record) VALUES {} ON CONFLICT(id) DO UPDATE \
             SET detected = excluded.detected, closed = excluded.closed, record = excluded.record",
            list("(?, ?, ?, ?, ?)")
        ))?;
        // What fails is undone with the whole transaction, so the statement keeps no journal of its own.
        let news = format!("INSERT OR FAIL INTO outbox(partition, news) VALUES {}", list("(?, ?)"));
        let mut news = database.prepare_cached(&news)?;
        for some in some.chunks(rows) {
            let mut of_records: Vec<&dyn ToSql> = Vec::with_capacity(5 * rows);
            let mut of_news: Vec<&dyn ToSql> = Vec::with_capacity(2 * rows);
            for (partition, RecordRow { id, detected, closed, json, news }) in some {
                of_records.extend([id as &dyn ToSql, partition, detected, closed, json]);
                of_news.extend([partition as &dyn ToSql, news]);
            }
            record.execute(&of_records[..])?;
            news.execute(&of_news[..])?;
        }
    }
    Ok(())
}

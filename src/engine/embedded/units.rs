//! The state of units: heartbeats go into memory, changes through the writer, facts come from disk.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::EmbeddedEngine;
use super::beats::{Beats, id};
use super::fault::Outcome;
use super::memory::Memory;
use super::row::Moment;
use super::shard::{Held, Wanted};
use super::writer::Job;
use crate::clock::Timestamp;
use crate::engine::json::to_json;
use crate::engine::{EngineError, News, Refresh, Result, UnitStore, encoding};
use crate::presence::{Change, IndexChange, KeyChange, Snapshot, Unit};

/// As many heartbeats as are put in order of their partitions at once.
const BATCH: usize = 4096;

#[async_trait]
impl UnitStore for EmbeddedEngine {
    async fn refresh(&self, beats: &[Refresh<'_>]) -> Result<Vec<bool>> {
        let mut applied = Vec::with_capacity(beats.len());
        let mut places: Vec<(u16, u32)> = Vec::with_capacity(beats.len().min(BATCH));
        for batch in beats.chunks(BATCH) {
            places.clear();
            places.extend((0..).zip(batch).map(|(n, beat)| (self.memory.partition(beat.unit), n)));
            places.sort_unstable();
            let done = applied.len();
            applied.resize(done + batch.len(), false);
            for of_one in places.chunk_by(|a, b| a.0 == b.0) {
                let mut shard = self.memory.shard(of_one[0].0);
                for (_, n) in of_one {
                    applied[done + *n as usize] = shard.refresh(&batch[*n as usize]);
                }
            }
        }
        Ok(applied)
    }

    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let found: Vec<(Unit, Moment, Option<i64>)> = units
            .iter()
            .map(|unit| {
                let partition = self.memory.partition(unit);
                match self.memory.shard(partition).get(unit) {
                    Some((place, alive)) => (unit.clone(), alive, Some(id(partition, place))),
                    None => (unit.clone(), Moment::NONE, None),
                }
            })
            .collect();
        if found.iter().all(|(.., id)| id.is_none()) {
            return found.into_iter().map(|(unit, alive, _)| snapshot(unit, alive, None)).collect();
        }
        let look = move |database: &Connection| {
            let mut select = database.prepare_cached("SELECT facts FROM units WHERE id = ?")?;
            let mut snapshots = Vec::with_capacity(found.len());
            for (unit, alive, id) in found {
                let Some(id) = id else {
                    snapshots.push(snapshot(unit, alive, None)?);
                    continue;
                };
                let mut rows = select.query([id])?;
                let stored = match rows.next()? {
                    Some(row) => Some(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?),
                    None => None,
                };
                snapshots.push(snapshot(unit, alive, stored)?);
            }
            Ok(snapshots)
        };
        self.readers.read(look).await
    }

    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        let (answer, answered) = oneshot::channel();
        let mut prepared = Vec::with_capacity(changes.len());
        for (seen, change) in changes {
            prepared.push(Prepared::new(&self.memory, seen, change)?);
        }
        let (memory, beats) = (self.memory.clone(), self.writer.beats());
        self.writer.finish("apply", Box::new(Apply { memory, beats, prepared, answer }), answered).await
    }

    fn partitions(&self) -> u16 {
        self.memory.partitions()
    }

    async fn due(&self, partition: u16, until: Timestamp, skip: usize, limit: usize) -> Result<Vec<Unit>> {
        self.memory.shard(partition).due(until, skip, limit)
    }

    async fn first_looks(&self) -> Result<Vec<Option<(Timestamp, String)>>> {
        Ok((0..self.memory.partitions()).map(|partition| self.memory.shard(partition).first_look()).collect())
    }
}

/// A unit as memory and disk say. That they may be of two moments does no harm: a change holds only
/// for a unit that is exactly so.
pub(super) fn snapshot(unit: Unit, alive: Moment, stored: Option<&str>) -> Result<Snapshot> {
    let facts = match stored {
        None => None,
        Some(text) => Some(encoding::decode(text).ok_or_else(|| {
            let text: String = text.chars().take(80).collect();
            EngineError::Damaged(format!(
                "the facts of {unit} cannot be read ({text:?}); put the fleet back from a backup"
            ))
        })?),
    };
    Ok(Snapshot { unit, alive: alive.get(), facts, stored: stored.map(Into::into) })
}

/// A change, ready to be written: whatever takes time was done by whoever wants it.
struct Prepared {
    unit: Unit,
    partition: u16,
    wanted: Wanted,
    facts: Option<String>,
    digest: u64,
    record: Option<Record>,
    /// While it is being written.
    held: Option<Held>,
}

struct Record {
    id: String,
    detected: i64,
    closed: Option<i64>,
    json: String,
    news: String,
}

impl Prepared {
    fn new(memory: &Memory, seen: &Snapshot, change: &Change) -> Result<Prepared> {
        let next_alive = match change.key {
            KeyChange::Keep => None,
            KeyChange::Delete => Some(Moment::NONE),
            // It stands until it is deleted: no decision depends on its going by itself.
            KeyChange::Set { last_seen, .. } => Some(Some(last_seen).into()),
        };
        let next_look = match change.index {
            IndexChange::Keep => None,
            IndexChange::Take => Some(Moment::NONE),
            IndexChange::LookAt(at) => Some(Some(at).into()),
        };
        let wanted = Wanted {
            alive: seen.alive.into(),
            facts: memory.digest(seen.stored.as_deref()),
            next_alive,
            next_look,
            is_take: change.index == IndexChange::Take,
        };
        let record = match &change.record {
            None => None,
            Some(record) => Some(Record {
                id: record.id.to_string(),
                detected: record.detected_at.as_millis(),
                closed: record.back_at.map(Timestamp::as_millis),
                json: to_json(record)?,
                news: to_json(&News::Record(record.clone()))?,
            }),
        };
        let facts = change.facts.as_ref().map(encoding::encode);
        let digest = memory.digest(facts.as_deref());
        let partition = memory.partition(&seen.unit);
        Ok(Prepared { unit: seen.unit.clone(), partition, wanted, facts, digest, record, held: None })
    }
}

/// Changes that are written in one step each, and together.
struct Apply {
    memory: Arc<Memory>,
    beats: Arc<Beats>,
    prepared: Vec<Prepared>,
    answer: oneshot::Sender<Result<Vec<bool>>>,
}

impl Job for Apply {
    fn write(&mut self, database: &Connection) -> Outcome<()> {
        let number = self.beats.number();
        for change in &mut self.prepared {
            change.held = self.memory.shard(change.partition).hold(&change.unit, &change.wanted);
            let Some(held) = &change.held else { continue };
            write_unit(database, change, held, number)?;
            if let Some(record) = &change.record {
                write_record(database, change.partition, record)?;
            }
        }
        Ok(())
    }

    fn undo(&mut self) {
        for change in &mut self.prepared {
            if let Some(held) = change.held.take() {
                self.memory.shard(change.partition).release(held);
            }
        }
    }

    fn finish(self: Box<Self>) {
        let mut applied = Vec::with_capacity(self.prepared.len());
        for change in self.prepared {
            applied.push(change.held.is_some());
            if let Some(held) = change.held {
                self.memory.shard(change.partition).settle(held, change.digest);
            }
        }
        let _ = self.answer.send(Ok(applied));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        let _ = self.answer.send(Err(why));
    }
}

fn write_unit(database: &Connection, change: &Prepared, held: &Held, number: i64) -> rusqlite::Result<()> {
    let id = id(change.partition, held.place);
    let (alive, look) = (held.alive.get(), held.look.get());
    let (alive, look) = (alive.map(Timestamp::as_millis), look.map(Timestamp::as_millis));
    let Some(facts) = &change.facts else {
        database.prepare_cached("DELETE FROM units WHERE id = ?")?.execute([id])?;
        return Ok(());
    };
    if held.is_stored {
        let update = "UPDATE units SET facts = ?, alive = ?, look = ?, after = ? WHERE id = ?";
        database.prepare_cached(update)?.execute(params![facts, alive, look, number, id])?;
    } else {
        let name = change.unit.to_string();
        let insert = "INSERT INTO units(id, name, facts, alive, look, after) VALUES(?, ?, ?, ?, ?, ?)";
        database.prepare_cached(insert)?.execute(params![id, name, facts, alive, look, number])?;
    }
    Ok(())
}

fn write_record(database: &Connection, partition: u16, record: &Record) -> rusqlite::Result<()> {
    let upsert = "INSERT INTO records(id, partition, detected, closed, record) VALUES(?, ?, ?, ?, ?) ON CONFLICT(id) \
                  DO UPDATE SET detected = excluded.detected, closed = excluded.closed, record = excluded.record";
    let Record { id, detected, closed, json, news } = record;
    database.prepare_cached(upsert)?.execute(params![id, partition, detected, closed, json])?;
    let insert = "INSERT INTO outbox(partition, news) VALUES(?, ?)";
    database.prepare_cached(insert)?.execute(params![partition, news])?;
    Ok(())
}

//! Deadline checks: units that may be due are read, decided upon, and written in one transaction.
//!
//! What was read is watched. If it is another when the records are to be written, the server writes
//! nothing, and each change is applied by itself, as changes of any other sort are: see `apply.lua`.
//!
//! # Why not by that script alone
//! When a hundred thousand units are due at once, the server is the bottleneck. A script has
//! to read their facts once more to see whether they changed, and every word that it is given or reads
//! costs it as much as a command does: 12 µs a unit beside the reading. The same writes as plain
//! commands take 5, and to watch costs next to nothing, since facts are watched by the page.
//!
//! # Why it is enough to watch facts
//! A unit that is offline has no key, and only a change brings a key about, which changes the facts. And
//! a change that takes a unit out of the deadline index changes its facts in the same step, so if the facts
//! are as they were, the unit is in the index: the removal is the lock, as ever, and won.
//!
//! # Why a page is not cut
//! Of two checks of parts of one page, one would have to begin anew.
//!
//! # Why nothing is watched far away
//! A watch holds a connection for two round trips. Where these take long and the server has little to do, many
//! checks have to be under way, and would need as many connections. There they are larger and share the one
//! connection, and the script applies their changes.

use std::collections::HashSet;

use async_trait::async_trait;
use redis::{Pipeline, Value, pipe};

use super::RedisEngine;
use super::admission::Permit;
use super::dedicated::Dedicated;
use super::keys::{Keys, PageId};
use super::reading::{answered, is_marked};
use crate::presence::{Change, IndexChange, Snapshot, Unit};
use crate::store::{CheckGuard, DeadlineCheck, EngineError, LARGEST_STEP, Result, encoding};

/// How many units are checked together, or a few more: the server writes that many within half a
/// millisecond or so.
const STEP: usize = 100;

/// The same where the server is far away, and larger checks are fewer round trips.
const FAR_STEP: usize = 1000;

/// What a check has watched.
struct Watch<'a> {
    engine: &'a RedisEngine,
    partition: u16,
    /// Whether there are closed records in the partition.
    has_archive: bool,
    /// `None` where nothing is watched.
    connection: Option<Dedicated<'a>>,
    permit: Permit<'a>,
}

/// Cuts units into checks: by partition, whole pages together, and the check with the first unit before
/// the others.
pub(super) fn cut(engine: &RedisEngine, units: &[Unit]) -> Vec<Vec<Unit>> {
    let step = if engine.topology.is_far() { FAR_STEP } else { STEP };
    let mut checks: Vec<Vec<(PageId, usize)>> = Vec::new();
    for page in engine.keys.by_page(units).chunk_by(|a, b| a.0 == b.0) {
        for part in page.chunks(LARGEST_STEP) {
            match checks.last_mut() {
                Some(last) if last.len() < step && last[0].0.0 == part[0].0.0 => last.extend(part),
                _ => checks.push(part.to_vec()),
            }
        }
    }
    checks.sort_by_cached_key(|check| check.iter().map(|(_, index)| *index).min());
    checks
        .into_iter()
        .map(|check| check.into_iter().map(|(_, index)| units[index].clone()).collect())
        .collect()
}

/// Reads the units of one check and watches them.
///
/// In one piece: one round trip, and what is asked and what is answered have to stay in step.
pub(super) async fn begin(engine: &RedisEngine, units: Vec<Unit>) -> Result<DeadlineCheck<'_>> {
    let Some(first) = units.first() else {
        return Err(EngineError::Damaged("a check of no unit".to_owned()));
    };
    let partition = engine.keys.partition(first);
    let permit = engine.topology.admit_check().await;
    let is_far = engine.topology.is_far();
    let mut pipe = pipe();
    let located = engine.keys.by_page(&units);
    if !is_far {
        // The check that had the connection before may have watched and not written.
        pipe.cmd("UNWATCH").ignore();
        pipe.cmd("WATCH");
        for on_page in located.chunk_by(|a, b| a.0 == b.0) {
            let (partition, page) = on_page[0].0;
            pipe.arg(engine.keys.facts_page(partition, page));
        }
        pipe.ignore();
    }
    engine.ask_for(&units, &located, &mut pipe);
    guard(engine, partition, &units, &mut pipe);
    pipe.exists(engine.keys.in_partition(partition, "archive"));
    engine.ask_how_far(&mut pipe);
    let (connection, mut answers): (Option<Dedicated>, Vec<Value>) = if is_far {
        (None, engine.topology.send("deadline_check", &pipe).await?)
    } else {
        let (connection, answers) = engine.topology.ask_dedicated("deadline_check", &pipe).await?;
        (Some(connection), answers)
    };
    let last = answers.split_off(answers.len().saturating_sub(4));
    let guards = answers.split_off(answers.len().saturating_sub(GUARDS));
    let damaged = |error| EngineError::Damaged(format!("check: {error}"));
    let (has_archive, heard, filters, clock) =
        redis::from_redis_value(Value::Array(last)).map_err(damaged)?;
    let values = redis::from_redis_value(Value::Array(answers)).map_err(damaged)?;
    let values: Vec<Vec<Option<Vec<u8>>>> = values;
    let keys = values.iter().flatten().take(units.len()).filter(|value| value.is_some()).count();
    let read = answered(&units, &located, values)?;
    if !read.unreadable.is_empty() {
        engine.quarantine(&read.unreadable).await?;
        return Err(again("what could not be read of a unit was put aside"));
    }
    let standing: usize = guards
        .first()
        .map(|count| redis::from_redis_value(count.clone()))
        .transpose()
        .map_err(damaged)?
        .unwrap_or(keys);
    if standing > keys {
        // What is no string reads as if there were no key.
        engine.topology.quarantine_wrong_types();
        return Err(again("an expiry key is of a wrong type and is put aside"));
    }
    let found = read.found;
    let hearing = engine.hearing_of((heard, filters, clock)).await?;
    let watch = Watch { engine, partition, has_archive, connection, permit };
    Ok(DeadlineCheck { units: found, hearing, guard: Box::new(watch) })
}

/// Asks what fails where a key that is written later is of a wrong type: a transaction is not undone by the failure of
/// one of its commands. And how many of the expiry keys stand.
fn guard(engine: &RedisEngine, partition: u16, units: &[Unit], pipe: &mut Pipeline) {
    let keys: Vec<String> = units.iter().map(|unit| engine.keys.alive(unit)).collect();
    pipe.exists(keys);
    for name in ["deadlines", "offline", "past", "closed"] {
        pipe.zcard(engine.keys.in_partition(partition, name));
    }
    pipe.hlen(engine.keys.in_partition(partition, "archive")).xlen(engine.keys.outbox(partition));
}

/// How many questions that are.
const GUARDS: usize = 7;

fn again(why: &str) -> EngineError {
    EngineError::WrongType(format!("{why}; the units are checked again at once"))
}

#[async_trait]
impl CheckGuard for Watch<'_> {
    async fn apply(self: Box<Self>, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        let Watch { engine, partition, has_archive, connection, permit } = *self;
        let mut applied = vec![false; changes.len()];
        let (mut records, mut others) = (Vec::new(), Vec::new());
        let mut met = HashSet::new();
        for (page_id, index) in engine.keys.by_page(changes.iter().map(|(seen, _)| &seen.unit)) {
            match Opening::of(page_id.1, index, &changes[index]) {
                Some(_) if !met.insert(&changes[index].0.unit) => {}
                Some(record) if page_id.0 == partition && connection.is_some() => records.push(record),
                _ => others.push(index),
            }
        }
        if let Some(connection) = connection.filter(|_| !records.is_empty()) {
            let write = openings(&engine.keys, partition, &records, has_archive);
            let (_, done): (Dedicated, Option<Vec<Value>>) =
                engine.topology.send_dedicated("apply", connection, &write).await?;
            match done {
                Some(_) => records.iter().for_each(|record| applied[record.index] = true),
                None => others.extend(records.iter().map(|record| record.index)),
            }
        }
        drop(permit);
        engine.apply_each(changes, others, &mut applied).await?;
        Ok(applied)
    }
}

/// A record that is opened, as it is written.
struct Opening {
    page: u32,
    /// Its place among the changes.
    index: usize,
    unit: String,
    facts: String,
    detected_at: i64,
    id: String,
}

impl Opening {
    /// `None` if the change does not take a unit without a key out of the index and open its record.
    fn of(page: u32, index: usize, (seen, change): &(Snapshot, Change)) -> Option<Opening> {
        let record = change.record.as_ref().filter(|record| record.back_at.is_none())?;
        if change.index != IndexChange::Take || is_marked(seen, change) {
            return None;
        }
        Some(Opening {
            page,
            index,
            unit: seen.unit.to_string(),
            facts: encoding::encode(change.facts.as_ref()?),
            detected_at: record.detected_at.as_millis(),
            id: record.id.to_string(),
        })
    }
}

/// Writes records of one partition, by page.
fn openings(keys: &Keys, partition: u16, records: &[Opening], has_archive: bool) -> Pipeline {
    let mut write = pipe();
    write.atomic();
    let units: Vec<&String> = records.iter().map(|record| &record.unit).collect();
    write.zrem(keys.in_partition(partition, "deadlines"), &units).ignore();
    for page in records.chunk_by(|a, b| a.page == b.page) {
        let facts: Vec<(&String, &String)> =
            page.iter().map(|record| (&record.unit, &record.facts)).collect();
        write.hset_multiple(keys.facts_page(partition, page[0].page), &facts).ignore();
    }
    let offline: Vec<(i64, &String)> =
        records.iter().map(|record| (record.detected_at, &record.unit)).collect();
    write.zadd_multiple(keys.in_partition(partition, "offline"), &offline).ignore();
    if has_archive {
        // A record that was closed and is opened once more, because its unit was allowed more for a while,
        // is not a closed one any longer.
        let ids: Vec<&String> = records.iter().map(|record| &record.id).collect();
        write.hdel(keys.in_partition(partition, "archive"), &ids).ignore();
        write.zrem(keys.in_partition(partition, "past"), &ids).ignore();
        write.zrem(keys.in_partition(partition, "closed"), &ids).ignore();
    }
    let news: Vec<(&String, &String)> = records.iter().map(|record| (&record.unit, &record.facts)).collect();
    write.xadd(keys.outbox(partition), "*", &news).ignore();
    write
}

//! Deadline checks: units that may be due are read, decided, and written in one transaction.
//!
//! The pages of their facts are watched. If a page has changed when the records are written, the server writes
//! nothing, and each change is applied by itself, as any other change: see `apply.lua`.
//!
//! An opening is one rule that is written in two places: [`openings`] here and `apply.lua`. They write the same
//! keys; the test `openings_are_written_alike_by_transaction_and_script` compares them.
//!
//! # Why not by that script alone
//! When a hundred thousand units are due at once, the server is the bottleneck. A script has to read the facts again
//! to compare them, and each of its arguments and answers costs as much as a command: 12 µs a unit besides the first
//! reading. The same writes as plain commands take 5 µs, and watching costs almost nothing, because it is done by
//! page.
//!
//! # Why it is enough to watch facts
//! A due unit has no expiry key, and only a change that also changes the facts creates one. A change that takes a
//! unit out of the deadline index changes its facts in the same step. So if the facts are unchanged, the unit is in
//! the index, and removing it is the lock that decides between callers.
//!
//! A unit that is announced as gone still has its key, and a heartbeat changes only the key. So the check of such
//! units also watches their keys, and deletes them in the same step.
//!
//! # Why a page is not split
//! Of two checks of parts of one page, one would have to start again.
//!
//! # Why nothing is watched on a server far away
//! A watch occupies a connection for two round trips. Where round trips take long and the server has little to do,
//! many checks have to be under way, and would need as many connections. There checks are larger, share one
//! connection, and the script applies their changes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use redis::{Pipeline, Value, pipe};

use super::RedisEngine;
use super::admission::Permit;
use super::clock_difference::server_time;
use super::dedicated::Dedicated;
use super::keys::{Keys, PageId};
use super::ledger::Versions;
use super::reading::units_read;
use super::topology::RedisServer;
use super::watermarks::Watermark;
use crate::clock::monotonic;
use crate::presence::{Change, IndexChange, KeyChange, Snapshot, Unit};
use crate::store::{CheckGuard, DeadlineCheck, EngineError, MAX_STEP, Result, encoding};

/// The approximate number of units of one check, which the server writes in about half a millisecond.
const STEP: usize = 100;

/// The number of units of one check on a server far away, where larger checks mean fewer round trips.
const FAR_STEP: usize = 1000;

/// The watched connection of a check.
struct Watch<'a> {
    engine: &'a RedisEngine,
    partition: u16,
    /// Whether there are closed records in the partition.
    has_archive: bool,
    /// `None` if nothing is watched.
    connection: Option<Dedicated>,
    /// Whether expiry keys are watched, too.
    has_keys: bool,
    server: Arc<RedisServer>,
    permit: Permit,
}

/// Splits units into checks of one partition and whole pages; the check of the first unit comes first.
pub(super) fn cut(engine: &RedisEngine, units: &[Unit]) -> Vec<Vec<Unit>> {
    let step = if engine.topology.is_far() { FAR_STEP } else { STEP };
    let mut checks: Vec<Vec<(PageId, usize)>> = Vec::new();
    for page in engine.keys.by_page(units).chunk_by(|a, b| a.0 == b.0) {
        for part in page.chunks(MAX_STEP) {
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

/// Reads and watches the units of one check, with their expiry keys if `has_keys`.
///
/// In one piece: it is one round trip, whose answers are read in the order of its commands.
pub(super) async fn begin(
    engine: &RedisEngine,
    units: Vec<Unit>,
    has_keys: bool,
) -> Result<DeadlineCheck<'_>> {
    let Some(first) = units.first() else {
        return Err(EngineError::Damaged("a check of no unit".to_owned()));
    };
    let partition = engine.keys.partition(first);
    let (server, permit) = engine.topology.admit_check(engine.keys.slot(partition)).await?;
    let is_far = server.admission().is_far();
    let (clock_before, sent) = (*engine.server_clock.lock(), monotonic());
    let mut pipe = pipe();
    let located = engine.keys.by_page(&units);
    if !is_far {
        // The previous check on this connection may have watched pages without writing.
        pipe.cmd("UNWATCH").ignore();
        pipe.cmd("WATCH");
        for on_page in located.chunk_by(|a, b| a.0 == b.0) {
            let (partition, page) = on_page[0].0;
            pipe.arg(engine.keys.facts_page(partition, page));
        }
        if has_keys {
            for unit in &units {
                pipe.arg(engine.keys.alive(unit));
            }
        }
        pipe.ignore();
    }
    engine.add_reads(&units, &located, &mut pipe);
    let has_watermark = engine.topology.has_parts();
    if has_watermark {
        pipe.get(engine.keys.in_partition(partition, "heard"));
    }
    add_guards(engine, partition, &units, &mut pipe);
    pipe.exists(engine.keys.in_partition(partition, "archive"));
    // Another server may keep the hearing. A heartbeat between the two reads is no danger: it changes the watched
    // facts.
    let is_same_server =
        engine.topology.is_same_server(engine.keys.slot(partition), engine.keys.slot_of_hearing());
    let mut hearing = redis::pipe();
    if !is_same_server {
        // The clock of this server, read after the units: see `clock_jump.rs`.
        pipe.cmd("TIME");
    }
    engine.add_hearing_reads(if is_same_server { &mut pipe } else { &mut hearing });
    let read = async {
        if is_far {
            let answers = engine.topology.send_to("deadline_check", &server, &pipe).await?;
            return Ok((None, answers, monotonic()));
        }
        let (connection, answers) = engine.topology.ask_dedicated("deadline_check", &server, &pipe).await?;
        Ok((Some(connection), answers, monotonic()))
    };
    let read: Result<(Option<Dedicated>, Vec<Value>, Instant)> = read.await;
    let (connection, mut answers, arrived) = read?;
    // Read after the watermark: a canary first writes since when heartbeats are lost, and then raises the watermark.
    let apart = engine.topology.send::<Vec<Value>>("deadline_check", &hearing).await?;
    let damaged = |error| EngineError::Damaged(format!("check: {error}"));
    let clock = if is_same_server { None } else { answers.pop() };
    answers.extend(apart);
    let last = answers.split_off(answers.len().saturating_sub(4));
    let mut guards = answers.split_off(answers.len().saturating_sub(GUARDS));
    let evicted = guards.pop().unwrap_or(Value::Nil);
    let watermark = if has_watermark { answers.pop() } else { None };
    let (has_archive, heard, filters, time): (bool, Versions, _, (i64, i64)) =
        redis::from_redis_value(Value::Array(last)).map_err(damaged)?;
    let fleet = engine.fleet_time(arrived, server_time(time));
    engine.note_evictions(&server, &evicted, fleet);
    let values = redis::from_redis_value(Value::Array(answers)).map_err(damaged)?;
    let values: Vec<Vec<Option<Vec<u8>>>> = values;
    let keys = values.iter().flatten().take(units.len()).filter(|value| value.is_some()).count();
    let read = units_read(&units, &located, values)?;
    if !read.unreadable.is_empty() {
        engine.quarantine(&read.unreadable).await?;
        return Err(again("an unreadable value of a unit was quarantined"));
    }
    let existing: usize = guards
        .first()
        .map(|count| redis::from_redis_value(count.clone()))
        .transpose()
        .map_err(damaged)?
        .unwrap_or(keys);
    if existing > keys {
        // A key that is not a string reads as absent.
        engine.topology.request_quarantine();
        return Err(again("an expiry key is of a wrong type and is quarantined"));
    }
    let hearing = engine.hearing_of((heard, filters, time), clock_before.last_renewal()).await?;
    let clock = clock.map(redis::from_redis_value).transpose().map_err(damaged)?.unwrap_or(time);
    let offset = clock_before.offset_of((sent, arrived), server_time(clock));
    let watermark: Option<Option<Vec<u8>>> =
        watermark.map(redis::from_redis_value).transpose().map_err(damaged)?;
    let watch = Watch { engine, partition, has_archive, connection, has_keys, server, permit };
    let watermark = watermark.flatten().as_deref().and_then(Watermark::parse);
    let watermark = watermark.map(|watermark| watermark.kept(offset));
    Ok(DeadlineCheck { units: read.snapshots, hearing, watermark, guard: Box::new(watch) })
}

/// Adds three kinds of commands: a count of the existing expiry keys; commands that fail if a key that is written
/// later is of a wrong type, because a transaction is not undone when one of its commands fails; and `INFO`, which
/// counts the keys that were evicted before the units were read: see `eviction.rs`.
fn add_guards(engine: &RedisEngine, partition: u16, units: &[Unit], pipe: &mut Pipeline) {
    let keys: Vec<String> = units.iter().map(|unit| engine.keys.alive(unit)).collect();
    pipe.exists(keys);
    for name in ["deadlines", "offline", "past", "closed"] {
        pipe.zcard(engine.keys.in_partition(partition, name));
    }
    pipe.hlen(engine.keys.in_partition(partition, "archive")).xlen(engine.keys.outbox(partition));
    pipe.cmd("INFO").arg("stats");
}

/// The number of commands that [`add_guards`] adds.
const GUARDS: usize = 8;

fn again(why: &str) -> EngineError {
    EngineError::WrongType(format!("{why}; the units are checked again at once"))
}

#[async_trait]
impl CheckGuard for Watch<'_> {
    async fn apply(self: Box<Self>, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        let Watch { engine, partition, has_archive, connection, has_keys, server, permit } = *self;
        let mut applied = vec![false; changes.len()];
        let (mut records, mut others) = (Vec::new(), Vec::new());
        let mut units = HashSet::new();
        for (page_id, index) in engine.keys.by_page(changes.iter().map(|(seen, _)| &seen.unit)) {
            match Opening::of(page_id.1, index, &changes[index], has_keys) {
                // Only the first change of a unit counts, as in the script.
                Some(_) if !units.insert(&changes[index].0.unit) => {}
                Some(record) if page_id.0 == partition && connection.is_some() => records.push(record),
                _ => others.push(index),
            }
        }
        if let Some(connection) = connection.filter(|_| !records.is_empty()) {
            let write = openings(&engine.keys, partition, &records, has_archive);
            let (_, done): (Dedicated, Option<Vec<Value>>) =
                engine.topology.send_dedicated("apply", &server, connection, &write).await?;
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

/// The opening of a record, ready to be written.
struct Opening {
    page: u32,
    /// The index of the change.
    index: usize,
    unit: String,
    facts: String,
    detected_at: i64,
    id: String,
    has_key: bool,
}

impl Opening {
    /// `None` unless the change opens the record of a unit and takes the unit out of the index. With `has_keys`, a
    /// unit may have a key, because the key is watched.
    fn of(page: u32, index: usize, (seen, change): &(Snapshot, Change), has_keys: bool) -> Option<Opening> {
        let record = change.record.as_ref().filter(|record| record.back_at.is_none())?;
        let has_key = seen.alive.is_some();
        if change.index != IndexChange::Take || change.key != KeyChange::Delete || has_key && !has_keys {
            return None;
        }
        Some(Opening {
            has_key,
            page,
            index,
            unit: seen.unit.to_string(),
            facts: encoding::encode(change.facts.as_ref()?),
            detected_at: record.detected_at.as_millis(),
            id: record.id.to_string(),
        })
    }
}

/// The commands that write openings of one partition, sorted by page; `apply.lua` writes the same.
fn openings(keys: &Keys, partition: u16, records: &[Opening], has_archive: bool) -> Pipeline {
    let mut write = pipe();
    write.atomic();
    let units: Vec<&String> = records.iter().map(|record| &record.unit).collect();
    write.zrem(keys.in_partition(partition, "deadlines"), &units).ignore();
    let mut key = String::new();
    keys.begin_alive(partition, &mut key);
    let expired =
        records.iter().filter(|record| record.has_key).map(|record| format!("{key}{}", record.unit));
    let expired: Vec<String> = expired.collect();
    if !expired.is_empty() {
        write.del(expired).ignore();
    }
    for page in records.chunk_by(|a, b| a.page == b.page) {
        let facts: Vec<(&String, &String)> =
            page.iter().map(|record| (&record.unit, &record.facts)).collect();
        write.hset_multiple(keys.facts_page(partition, page[0].page), &facts).ignore();
    }
    let offline: Vec<(i64, &String)> =
        records.iter().map(|record| (record.detected_at, &record.unit)).collect();
    write.zadd_multiple(keys.in_partition(partition, "offline"), &offline).ignore();
    if has_archive {
        // A closed record is opened again if its unit was allowed a longer silence for a while: remove it from the
        // closed records.
        let ids: Vec<&String> = records.iter().map(|record| &record.id).collect();
        write.hdel(keys.in_partition(partition, "archive"), &ids).ignore();
        write.zrem(keys.in_partition(partition, "past"), &ids).ignore();
        write.zrem(keys.in_partition(partition, "closed"), &ids).ignore();
    }
    let entry: Vec<(&String, &String)> = records.iter().map(|record| (&record.unit, &record.facts)).collect();
    write.xadd(keys.outbox(partition), "*", &entry).ignore();
    write
}

//! The state of units: the heartbeat pipeline, snapshots, changes, the deadline index.
//!
//! # Why batches of a few hundred
//! A pipeline of 200 heartbeats keeps the server busy for about a millisecond. Longer ones gain
//! nothing and make all other commands wait; several are under way at once.
//!
//! # Why by page
//! Reading and applying go page by page: one command for all facts on a page. That reads a unit in 1.6 µs
//! of the server's time instead of 2.5, and 3 µs for its key, which expires with that if it is overdue.
//!
//! # Why scripts are given few words
//! A script hashes every byte that it is given and every byte that it reads, at about 2 ns each, and each
//! word costs it some 0.1 µs besides.
//!
//! # Why heartbeats are packed by hand
//! Redis writes a heartbeat in three microseconds, and the client has no more time than that. So
//! a batch is sorted by partition, what the keys of a partition have in common is written once, each
//! command is given its room at once, and answers are read as they came. What is left is mostly the
//! allocator: each command is two pieces of memory, and each answer one that another thread frees.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use redis::{Cmd, Pipeline, Value, pipe};
use tokio::sync::mpsc;

use super::keys::PageId;
use super::reading::{UnreadableValue, answered, is_marked, milliseconds};
use super::{RedisEngine, deadline_check, hints, open_records};
use crate::clock::Timestamp;
use crate::presence::{Change, IndexChange, KeyChange, OfflineRecord, Snapshot, Unit};
use crate::store::json::to_json;
use crate::store::{EngineError, Hint, PendingCheck, Refresh, Result, UnitStore, encoding};
use crate::telemetry::Stored;

const BATCH: usize = 200;
/// How many units are read in one batch: as many as several pages hold, within a millisecond.
const READ_STEP: usize = 100;
/// How many names of those that are due are asked for in one batch, within half a millisecond.
const DUE_STEP: usize = 2000;
/// How many changes are applied in one script: within half a millisecond or so, for no other command is served
/// meanwhile.
const APPLY_STEP: usize = 64;
/// Room for a `SET` of an expiry key, without the key.
const SET_BYTES: usize = 48;
/// Room for the next check of a unit with a name of usual length.
const CHECK_BYTES: usize = 48;

/// The arguments of `apply.lua` for each change.
const COLUMNS: usize = 12;

#[async_trait]
impl UnitStore for RedisEngine {
    async fn refresh(&self, beats: &[Refresh<'_>]) -> Result<Vec<bool>> {
        let answers = try_join_all(beats.chunks(BATCH).map(|batch| self.refresh_batch(batch))).await?;
        Ok(answers.into_iter().flatten().collect())
    }

    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let answers = self
            .topology
            .few_at_once(units.chunks(READ_STEP).map(|step| self.read_step(step)).collect())
            .await?;
        Ok(answers.into_iter().flatten().collect())
    }

    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        let mut applied = vec![false; changes.len()];
        self.apply_each(changes, (0..changes.len()).collect(), &mut applied).await?;
        Ok(applied)
    }

    fn check_deadlines<'a>(&'a self, units: &[Unit]) -> Vec<PendingCheck<'a>> {
        let batches = deadline_check::cut(self, units).into_iter();
        batches.map(|batch| deadline_check::begin(self, batch).boxed()).collect()
    }

    async fn open_records(&self, units: &[Unit]) -> Result<Vec<Option<OfflineRecord>>> {
        open_records::open_records(self, units).await
    }

    async fn put_off(&self, units: &[Unit], until: Timestamp) -> Result<()> {
        self.set_checks(units, "XX", until).await
    }

    async fn put_in(&self, units: &[Unit], at: Timestamp) -> Result<()> {
        self.set_checks(units, "NX", at).await
    }

    async fn due(
        &self,
        partition: u16,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>> {
        let after = beyond(after);
        let deadlines = self.keys.in_partition(partition, "deadlines");
        let mut due = Vec::new();
        // A unit that is taken out meanwhile makes room for others, which are due the next time as well.
        while due.len() < limit {
            let (skip, step) = (skip + due.len(), DUE_STEP.min(limit - due.len()));
            let mut pipe = pipe();
            pipe.zrangebyscore_limit(&deadlines, &after, until.as_millis(), skip as isize, step as isize);
            let (names,): (Vec<Vec<u8>>,) = self.topology.read("due", &pipe).await?;
            let is_last = names.len() < step;
            let mut unreadable = Vec::new();
            for name in names {
                match self.unit_of(partition, &name) {
                    Some(unit) => due.push(unit),
                    None => unreadable.push(name),
                }
            }
            self.quarantine_members(&deadlines, &unreadable, Stored::Deadlines).await?;
            if is_last {
                break;
            }
        }
        Ok(due)
    }

    async fn first_checks(
        &self,
        after: &HashMap<u16, Timestamp>,
    ) -> Result<Vec<Option<(Timestamp, String)>>> {
        let key = |p| (self.keys.in_partition(p, "deadlines"), after.get(&p).copied());
        firsts(self, "first_checks", (0..self.keys.partitions()).map(key)).await
    }

    async fn listen(&self, hints: mpsc::Sender<Hint>) -> Result<()> {
        hints::listen(self, hints).await
    }

    fn put_records_first(&self, is_on: bool) {
        self.topology.storm(is_on);
    }

    fn round_trip(&self) -> Duration {
        self.topology.round_trip()
    }
}

impl RedisEngine {
    /// The unit of that name, if it is one of this partition.
    pub(super) fn unit_of(&self, partition: u16, name: &[u8]) -> Option<Unit> {
        let unit: Unit = std::str::from_utf8(name).ok()?.parse().ok()?;
        (self.keys.partition(&unit) == partition).then_some(unit)
    }

    async fn set_checks(&self, units: &[Unit], condition: &str, at: Timestamp) -> Result<()> {
        let mut pipe = pipe();
        for unit in units {
            let deadlines = self.keys.in_partition(self.keys.partition(unit), "deadlines");
            pipe.cmd("ZADD").arg(deadlines).arg(condition).arg(at.as_millis()).arg(unit.to_string()).ignore();
        }
        if pipe.is_empty() { Ok(()) } else { self.topology.send("set_checks", &pipe).await }
    }

    async fn refresh_batch(&self, beats: &[Refresh<'_>]) -> Result<Vec<bool>> {
        let numbered = beats.iter().enumerate();
        let mut indices: Vec<(u16, usize)> =
            numbered.map(|(index, beat)| (self.keys.partition(beat.unit), index)).collect();
        // Two heartbeats of one unit stay in order.
        indices.sort_unstable();
        let mut pipe = Pipeline::with_capacity(beats.len() + usize::from(self.keys.partitions()).min(BATCH));
        let mut key = String::new();
        for indices in indices.chunk_by(|a, b| a.0 == b.0) {
            let partition = indices[0].0;
            self.keys.begin_alive(partition, &mut key);
            let name = key.len();
            // Brings a check forward where the allowed silence is shorter than it was; never puts one off.
            let mut checks = Cmd::with_capacity(4 + 2 * indices.len(), 64 + CHECK_BYTES * indices.len());
            checks.arg("ZADD").arg(self.keys.in_partition(partition, "deadlines")).arg("XX").arg("LT");
            for (_, index) in indices {
                let beat = &beats[*index];
                key.truncate(name);
                beat.unit.write_into(&mut key);
                set_alive(&mut pipe, &key, beat.at.as_millis(), beat);
                checks.arg(beat.check_by.as_millis()).arg(&key[name..]);
            }
            pipe.add_command(checks);
        }
        let answers = |answers: Vec<Value>| {
            let mut before = vec![None; beats.len()];
            let mut answers = answers.into_iter();
            for indices in indices.chunk_by(|a, b| a.0 == b.0) {
                for ((_, index), answer) in indices.iter().zip(&mut answers) {
                    before[*index] = number(answer)?;
                }
                answers.next();
            }
            Ok(before)
        };
        let before = self.topology.send_raw("refresh", &pipe, answers).await?;
        let newer: Vec<(&Refresh<'_>, i64)> = beats
            .iter()
            .zip(&before)
            .filter_map(|(beat, before)| before.filter(|b| *b > beat.at.as_millis()).map(|b| (beat, b)))
            .collect();
        self.restore(newer).await?;
        Ok(before.into_iter().map(|before| before.is_some()).collect())
    }

    /// Heartbeats arrived out of order and the older overwrote the newer: the newer goes back. If
    /// an even newer one was overwritten by that, it goes back in turn, until the largest stands.
    async fn restore(&self, mut overwritten: Vec<(&Refresh<'_>, i64)>) -> Result<()> {
        while !overwritten.is_empty() {
            let mut pipe = pipe();
            for (beat, at) in &overwritten {
                set_alive(&mut pipe, &self.keys.alive(beat.unit), *at, beat);
            }
            let before: Vec<Option<i64>> = self.topology.send("restore", &pipe).await?;
            overwritten = overwritten
                .into_iter()
                .zip(before)
                .filter_map(|((beat, at), before)| before.filter(|b| *b > at).map(|b| (beat, b)))
                .collect();
        }
        Ok(())
    }

    async fn read_step(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let located = self.keys.by_page(units);
        let mut pipe = pipe();
        self.ask_for(units, &located, &mut pipe);
        for _ in 0..2 {
            let read = answered(units, &located, self.topology.read("read", &pipe).await?)?;
            if read.unreadable.is_empty() {
                return Ok(read.found);
            }
            self.quarantine(&read.unreadable).await?;
        }
        Err(EngineError::Unavailable(
            "an expiry key is written again and again with what is no number".to_owned(),
        ))
    }

    /// Puts aside what cannot be read of units.
    pub(super) async fn quarantine(&self, values: &[UnreadableValue]) -> Result<()> {
        for value in values {
            match value {
                UnreadableValue::Key(unit, value) => self.presume(unit, value).await?,
                UnreadableValue::Facts(unit, value) => self.quarantine_facts(unit, value).await?,
            }
        }
        Ok(())
    }

    /// Applies those of the changes that have these places, each by itself.
    pub(super) async fn apply_each(
        &self,
        changes: &[(Snapshot, Change)],
        indices: Vec<usize>,
        applied: &mut [bool],
    ) -> Result<()> {
        let unit = |index: usize| &changes[index].0.unit;
        let pages_of = indices.into_iter().map(|index| (self.keys.page_id(unit(index)), index));
        let mut located: Vec<(PageId, usize)> = pages_of.collect();
        located.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| unit(a.1).cmp(unit(b.1))));
        let steps = located.chunk_by(|a, b| a.0.0 == b.0.0).flat_map(|located| {
            located.chunks(APPLY_STEP).map(|step| self.apply_step(step[0].0.0, step, changes))
        });
        for (index, answer) in self.topology.few_at_once(steps.collect()).await?.into_iter().flatten() {
            applied[index] = answer;
        }
        Ok(())
    }

    /// Those of one page come one after the other, and of one unit, too.
    async fn apply_step(
        &self,
        partition: u16,
        located: &[(PageId, usize)],
        changes: &[(Snapshot, Change)],
    ) -> Result<Vec<(usize, bool)>> {
        let mut script = self.scripts.apply.prepare_invoke();
        for name in ["deadlines", "offline", "archive", "past", "closed"] {
            script.key(self.keys.in_partition(partition, name));
        }
        script.key(self.keys.outbox(partition));
        let pages: Vec<(u32, usize)> =
            located.chunk_by(|a, b| a.0 == b.0).map(|on| (on[0].0.1, on.len())).collect();
        script.arg(pages.len());
        for (page, count) in pages {
            script.key(self.keys.facts_page(partition, page)).arg(count);
        }
        let mut rows = Vec::with_capacity(located.len());
        for &(_, index) in located {
            let (seen, change) = &changes[index];
            if is_marked(seen, change) {
                script.key(self.keys.alive(&seen.unit));
            }
            rows.push(arguments(seen, change)?);
        }
        for column in 0..COLUMNS {
            let is_one = column > 0 && rows.iter().all(|row| row[column] == rows[0][column]);
            let values = if is_one { &rows[..1] } else { &rows[..] };
            script.arg(values.len());
            for row in values {
                script.arg(&row[column]);
            }
        }
        let answers: Vec<u8> = self.topology.change("apply", &script).await?;
        Ok(located
            .iter()
            .map(|(_, index)| *index)
            .zip(answers.into_iter().map(|answer| answer == 1))
            .collect())
    }
}

fn set_alive(pipe: &mut Pipeline, key: &str, at: i64, beat: &Refresh<'_>) {
    let ttl = beat.ttl.as_millis() as u64;
    let mut set = Cmd::with_capacity(7, SET_BYTES + key.len());
    set.arg("SET").arg(key).arg(at).arg("PX").arg(ttl).arg("XX").arg("GET");
    pipe.add_command(set);
}

/// The arguments of `apply.lua` for one change, one for each column.
fn arguments(seen: &Snapshot, change: &Change) -> Result<[String; COLUMNS]> {
    let (value, ttl) = match change.key {
        KeyChange::Keep => (String::new(), String::new()),
        KeyChange::Delete => ("-".to_owned(), String::new()),
        KeyChange::Set { last_seen, ttl } => {
            (last_seen.as_millis().to_string(), ttl.as_millis().max(1).to_string())
        }
    };
    let next_check = match change.index {
        IndexChange::Keep => String::new(),
        IndexChange::Take => "-".to_owned(),
        IndexChange::CheckAt(at) => at.as_millis().to_string(),
    };
    let detected_at = change.record.as_ref().map(|record| record.detected_at.as_millis().to_string());
    let id = change.record.as_ref().map(|record| record.id.to_string());
    let closed = change.record.as_ref().and_then(|record| Some((record, record.back_at?)));
    let [closed_at, json] = match closed {
        None => Default::default(),
        Some((record, at)) => [at.as_millis().to_string(), to_json(record)?],
    };
    Ok([
        seen.unit.to_string(),
        if is_marked(seen, change) { "1" } else { "" }.to_owned(),
        seen.alive.map(|at| at.as_millis().to_string()).unwrap_or_default(),
        seen.stored.as_deref().unwrap_or_default().to_owned(),
        value,
        ttl,
        next_check,
        change.facts.as_ref().map(encoding::encode).unwrap_or_default(),
        detected_at.unwrap_or_default(),
        id.unwrap_or_default(),
        closed_at,
        json,
    ])
}

/// The number that was there before; `None` if there was nothing, or what is none.
fn number(answer: Value) -> redis::RedisResult<Option<i64>> {
    Ok(redis::from_redis_value::<Option<Vec<u8>>>(answer)?.as_deref().and_then(milliseconds))
}

/// Scores after that moment, as the lower bound of a range.
fn beyond(after: Option<Timestamp>) -> String {
    after.map_or_else(|| "-inf".to_owned(), |after| format!("({}", after.as_millis()))
}

/// The first member of each of several sorted sets, after the score beside it, and its score.
async fn firsts(
    engine: &RedisEngine,
    name: &'static str,
    keys: impl Iterator<Item = (String, Option<Timestamp>)>,
) -> Result<Vec<Option<(Timestamp, String)>>> {
    let mut pipe = pipe();
    for (key, after) in keys {
        pipe.zrangebyscore_limit_withscores(key, beyond(after), "+inf", 0, 1);
    }
    let firsts: Vec<Vec<(Vec<u8>, f64)>> = engine.topology.send(name, &pipe).await?;
    let first = |(member, at): (Vec<u8>, f64)| {
        (Timestamp::from_millis(at as i64), String::from_utf8_lossy(&member).into_owned())
    };
    Ok(firsts.into_iter().map(|found| found.into_iter().next().map(first)).collect())
}

/// The smallest score of several sorted sets.
pub(super) async fn first_score(
    engine: &RedisEngine,
    name: &'static str,
    keys: impl Iterator<Item = String>,
) -> Result<Option<Timestamp>> {
    Ok(firsts(engine, name, keys.map(|key| (key, None))).await?.into_iter().flatten().map(|(at, _)| at).min())
}

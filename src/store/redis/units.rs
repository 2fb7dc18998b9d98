//! The state of units: the heartbeat pipeline, snapshots, changes, the deadline index.
//!
//! # Why batches of a few hundred
//! A pipeline of 200 heartbeats keeps the server busy for about a millisecond. Longer pipelines gain nothing and make
//! all other commands wait; several pipelines are under way at once.
//!
//! # Why by page
//! Units are read and changed page by page, with one command for all facts on a page. So the server reads the facts
//! of a unit in 1.6 µs instead of 2.5. The expiry key of a unit takes 3 µs, and expires when it is read overdue.
//!
//! # Why scripts get few arguments
//! Lua hashes every byte of the arguments and of the answers to commands, at about 2 ns each, and each string costs
//! about 0.1 µs more.
//!
//! # Why the commands of heartbeats are built by hand
//! Redis writes a heartbeat in three microseconds, and the client has no more time than that. So a batch is sorted by
//! partition, the common first part of its keys is written once, each command gets all its memory at once, and
//! answers are parsed directly. Most of the remaining time goes to the allocator: each command takes two allocations,
//! and each answer one that another thread frees.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use redis::{Cmd, Pipeline, Value, pipe};
use tokio::sync::mpsc;

use super::keys::PageId;
use super::reading::{KeyValue, UnreadableUnit, is_marked, units_read};
use super::topology::ScriptCall;
use super::{RedisEngine, deadline_check, hints, open_records};
use crate::clock::{Timestamp, monotonic};
use crate::presence::{BrokerName, Change, IndexChange, KeyChange, OfflineRecord, Snapshot, Unit};
use crate::store::json::to_json;
use crate::store::{
    EngineError, Hint, IndexState, PendingCheck, Refresh, Replaced, Result, UnitStore, encoding,
};

const BATCH: usize = 200;
/// The number of batches that one of several servers gets at once: the server wakes less often, and the heartbeats of
/// one partition share a command.
const BATCHES_OF_A_SERVER: usize = 2;
/// How many units one batch reads: several pages, within a millisecond.
const READ_STEP: usize = 100;
/// The most units that are read without an admission.
const WITHOUT_ADMISSION: usize = 8;
/// How many names of due units one batch reads: within half a millisecond.
const DUE_STEP: usize = 2000;
/// The number of changes that one script applies: about half a millisecond, because Redis serves no other command
/// meanwhile.
const APPLY_STEP: usize = 64;
/// The bytes of a `SET` of an expiry key, without the key.
const SET_BYTES: usize = 48;
/// The bytes of the next check of a unit with a name of usual length.
const CHECK_BYTES: usize = 48;

/// The number of arguments of `apply.lua` for each change.
const COLUMNS: usize = 12;

#[async_trait]
impl UnitStore for RedisEngine {
    async fn refresh(&self, heartbeats: &[Refresh<'_>]) -> Result<Vec<Option<Replaced>>> {
        let numbered = heartbeats.iter().enumerate();
        let mut places: Vec<(u16, usize)> =
            numbered.map(|(index, heartbeat)| (self.keys.partition(heartbeat.unit), index)).collect();
        // Keeps two heartbeats of one unit in order.
        places.sort_unstable();
        let parts = self.topology.by_server(places, |(partition, _)| self.keys.slot(*partition));
        let batches = parts.iter().flat_map(|part| part.chunks(BATCH));
        let batches = batches.map(|places| self.refresh_batch(heartbeats, places));
        let mut before = vec![None; heartbeats.len()];
        for (index, known) in try_join_all(batches).await?.into_iter().flatten() {
            before[index] = known;
        }
        Ok(before)
    }

    fn refresh_step(&self) -> usize {
        match self.topology.count() {
            0 | 1 => BATCH,
            servers => BATCHES_OF_A_SERVER * BATCH * servers,
        }
    }

    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let slot = |unit: &(usize, &Unit)| self.keys.slot(self.keys.partition(unit.1));
        let parts = self.topology.by_server(units.iter().enumerate(), slot);
        let steps = parts.iter().flat_map(|part| part.chunks(READ_STEP));
        let steps = steps.map(|step| (slot(&step[0]), self.read_step(slot(&step[0]), step)));
        let mut read: Vec<(usize, Snapshot)> =
            self.topology.run_limited(steps.collect()).await?.into_iter().flatten().collect();
        read.sort_unstable_by_key(|(index, _)| *index);
        Ok(read.into_iter().map(|(_, snapshot)| snapshot).collect())
    }

    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        let mut applied = vec![false; changes.len()];
        self.apply_each(changes, (0..changes.len()).collect(), &mut applied).await?;
        Ok(applied)
    }

    fn check_deadlines<'a>(&'a self, units: &[Unit]) -> Vec<PendingCheck<'a>> {
        let batches = deadline_check::cut(self, units).into_iter();
        batches.map(|batch| deadline_check::begin(self, batch, false).boxed()).collect()
    }

    fn check_present<'a>(&'a self, units: &[Unit]) -> Vec<PendingCheck<'a>> {
        let batches = deadline_check::cut(self, units).into_iter();
        batches.map(|batch| deadline_check::begin(self, batch, true).boxed()).collect()
    }

    async fn open_records(&self, units: &[Unit]) -> Result<Vec<Option<OfflineRecord>>> {
        open_records::open_records(self, units).await
    }

    async fn set_next_check(&self, units: &[Unit], at: Timestamp, which: IndexState) -> Result<()> {
        let only = match which {
            IndexState::Present => "XX",
            IndexState::Absent => "NX",
        };
        let mut pipe = pipe();
        for unit in units {
            let deadlines = self.keys.in_partition(self.keys.partition(unit), "deadlines");
            pipe.cmd("ZADD").arg(deadlines).arg(only).arg(at.as_millis()).arg(unit.to_string()).ignore();
        }
        if pipe.is_empty() { Ok(()) } else { self.topology.send("set_next_check", &pipe).await }
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
        // A unit that leaves the index meanwhile shifts the others. The units that this skips are still due in the
        // next call.
        while due.len() < limit {
            let (skip, step) = (skip + due.len(), DUE_STEP.min(limit - due.len()));
            let mut pipe = pipe();
            pipe.zrangebyscore_limit(&deadlines, &after, until.as_millis(), skip as isize, step as isize);
            let (names,): (Vec<Vec<u8>>,) =
                self.topology.read("due", self.keys.slot(partition), &pipe).await?;
            let is_last = names.len() < step;
            let mut unreadable = Vec::new();
            for name in names {
                match self.unit_of(partition, &name) {
                    Some(unit) => due.push(unit),
                    None => unreadable.push(name),
                }
            }
            self.quarantine_members(&deadlines, &unreadable).await?;
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

    fn put_records_first(&self, partition: u16) {
        self.topology.begin_storm(partition, self.keys.slot(partition));
    }

    fn end_storms(&self, lasts: &(dyn Fn(u16) -> bool + Sync)) {
        let lasting = (0..self.keys.partitions()).filter(|partition| lasts(*partition));
        self.topology.end_storms(lasting.map(|partition| self.keys.slot(partition)));
    }

    fn round_trip(&self) -> Duration {
        self.topology.round_trip()
    }
}

impl RedisEngine {
    /// The unit with this name, if it belongs to this partition.
    pub(super) fn unit_of(&self, partition: u16, name: &[u8]) -> Option<Unit> {
        let unit: Unit = std::str::from_utf8(name).ok()?.parse().ok()?;
        (self.keys.partition(&unit) == partition).then_some(unit)
    }

    /// Refreshes the expiry keys of units of one server. `places` has the partition of each unit and the index of its
    /// heartbeat, in order. Answers the index of each heartbeat, and the heartbeat that its key held before; `None`:
    /// there was no key, and the heartbeat is not recorded.
    async fn refresh_batch(
        &self,
        heartbeats: &[Refresh<'_>],
        places: &[(u16, usize)],
    ) -> Result<Vec<(usize, Option<Replaced>)>> {
        let Some((first, first_index)) = places.first() else { return Ok(Vec::new()) };
        let mut pipe = Pipeline::with_capacity(places.len() + usize::from(self.keys.partitions()).min(BATCH));
        let (mut key, mut until) = (String::new(), heartbeats[*first_index].until);
        for places in places.chunk_by(|a, b| a.0 == b.0) {
            let partition = places[0].0;
            self.keys.begin_alive(partition, &mut key);
            let name = key.len();
            // Brings a check forward if the allowed silence has become shorter; never delays a check.
            let mut checks = Cmd::with_capacity(4 + 2 * places.len(), 64 + CHECK_BYTES * places.len());
            checks.arg("ZADD").arg(self.keys.in_partition(partition, "deadlines")).arg("XX").arg("LT");
            for (_, index) in places {
                let heartbeat = &heartbeats[*index];
                key.truncate(name);
                heartbeat.unit.write_into(&mut key);
                set_alive(&mut pipe, &key, (heartbeat.at, heartbeat.broker), heartbeat);
                until = until.min(heartbeat.until);
                checks.arg(heartbeat.check_by.as_millis()).arg(&key[name..]);
            }
            pipe.add_command(checks);
        }
        let answers = |answers: Vec<Value>| {
            let mut before = Vec::with_capacity(places.len());
            let mut answers = answers.into_iter();
            for places in places.chunk_by(|a, b| a.0 == b.0) {
                for answer in answers.by_ref().take(places.len()) {
                    before.push(redis::from_redis_value::<Option<Vec<u8>>>(answer)?);
                }
                answers.next();
            }
            Ok(before)
        };
        if monotonic() >= until {
            let why = "this process was frozen while it recorded heartbeats; they are recorded with care";
            return Err(EngineError::Unavailable(why.to_owned()));
        }
        let before = self.topology.send_raw("refresh", self.keys.slot(*first), &pipe, answers).await?;
        let (mut recorded, mut newer) = (Vec::with_capacity(places.len()), Vec::new());
        for ((_, index), text) in places.iter().zip(&before) {
            let before = text.as_deref().and_then(KeyValue::parts);
            let own = heartbeats[*index].broker.map(BrokerName::as_str);
            let replaced = before.map(|(at, broker)| Replaced { at, is_elsewhere: broker != own });
            recorded.push((*index, replaced));
            if let Some(before) = before.filter(|(at, _)| *at > heartbeats[*index].at) {
                newer.push((&heartbeats[*index], KeyValue::of(before)));
            }
        }
        self.restore(newer).await?;
        Ok(recorded)
    }

    /// Restores newer heartbeats that late, older ones overwrote. If that overwrites an even newer heartbeat,
    /// restores that one in turn, until the newest heartbeat stays.
    async fn restore(&self, mut overwritten: Vec<(&Refresh<'_>, KeyValue)>) -> Result<()> {
        while !overwritten.is_empty() {
            let mut pipe = pipe();
            for (heartbeat, KeyValue { at, broker }) in &overwritten {
                set_alive(&mut pipe, &self.keys.alive(heartbeat.unit), (*at, broker.as_ref()), heartbeat);
            }
            let before: Vec<Option<Vec<u8>>> = self.topology.send("restore", &pipe).await?;
            overwritten = overwritten
                .into_iter()
                .zip(before)
                .filter_map(|((heartbeat, written), before)| {
                    Some((heartbeat, newer_than(written.at, before.as_deref()?)?))
                })
                .collect();
        }
        Ok(())
    }

    /// Reads units of one server, with their indices.
    async fn read_step(&self, slot: u16, units: &[(usize, &Unit)]) -> Result<Vec<(usize, Snapshot)>> {
        let (indices, units): (Vec<usize>, Vec<Unit>) =
            units.iter().map(|(index, unit)| (*index, (*unit).clone())).unzip();
        let units = units.as_slice();
        let located = self.keys.by_page(units);
        let mut pipe = pipe();
        self.add_reads(units, &located, &mut pipe);
        for _ in 0..2 {
            // A read of few units, such as a page of one unit in a storm, costs the server less than its permit would
            // cost others.
            let values = match units.len() {
                ..=WITHOUT_ADMISSION => self.topology.send("read", &pipe).await?,
                _ => self.topology.read("read", slot, &pipe).await?,
            };
            let read = units_read(units, &located, values)?;
            if read.unreadable.is_empty() {
                return Ok(indices.into_iter().zip(read.snapshots).collect());
            }
            self.quarantine(&read.unreadable).await?;
        }
        Err(EngineError::Unavailable(
            "another program keeps writing an expiry key that holds no number".to_owned(),
        ))
    }

    pub(super) async fn quarantine(&self, values: &[UnreadableUnit]) -> Result<()> {
        for value in values {
            match value {
                UnreadableUnit::Key(unit, value) => self.quarantine_expiry_key(unit, value).await?,
                UnreadableUnit::Facts(unit, value) => self.quarantine_facts(unit, value).await?,
            }
        }
        Ok(())
    }

    /// Applies the changes with these indices, each by itself.
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
            let partition = located[0].0.0;
            let slot = self.keys.slot(partition);
            located.chunks(APPLY_STEP).map(move |step| (slot, self.apply_step(partition, step, changes)))
        });
        for (index, answer) in self.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
            applied[index] = answer;
        }
        Ok(())
    }

    /// Applies changes of one partition, sorted by page and unit.
    async fn apply_step(
        &self,
        partition: u16,
        located: &[(PageId, usize)],
        changes: &[(Snapshot, Change)],
    ) -> Result<Vec<(usize, bool)>> {
        let mut script = ScriptCall::of(&self.scripts.apply);
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
            let is_same = column > 0 && rows.iter().all(|row| row[column] == rows[0][column]);
            let values = if is_same { &rows[..1] } else { &rows[..] };
            script.arg(values.len());
            for row in values {
                script.arg(&row[column]);
            }
        }
        let answers: Vec<u8> = self.topology.change("apply", self.keys.slot(partition), script).await?;
        Ok(located
            .iter()
            .map(|(_, index)| *index)
            .zip(answers.into_iter().map(|answer| answer == 1))
            .collect())
    }
}

fn set_alive(
    pipe: &mut Pipeline,
    key: &str,
    (at, broker): (Timestamp, Option<&BrokerName>),
    heartbeat: &Refresh<'_>,
) {
    let ttl = heartbeat.ttl.as_millis() as u64;
    let mut set = Cmd::with_capacity(7, SET_BYTES + key.len());
    set.arg("SET").arg(key);
    match broker {
        None => set.arg(at.as_millis()),
        Some(_) => set.arg(KeyValue::text(at, broker)),
    };
    set.arg("PX").arg(ttl).arg("XX").arg("GET");
    pipe.add_command(set);
}

/// The previous value of a key, if its heartbeat is later than `at`.
fn newer_than(at: Timestamp, before: &[u8]) -> Option<KeyValue> {
    KeyValue::parse(before).filter(|before| before.at > at)
}

/// The arguments of `apply.lua` for one change, one for each column.
fn arguments(seen: &Snapshot, change: &Change) -> Result<[String; COLUMNS]> {
    let (value, ttl) = match change.key {
        KeyChange::Keep => (String::new(), String::new()),
        KeyChange::Delete => ("-".to_owned(), String::new()),
        KeyChange::Set { last_seen, ttl } => {
            (KeyValue::text(last_seen, change.delivered_by()), ttl.as_millis().max(1).to_string())
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
        seen.alive.map(|at| KeyValue::text(at, seen.alive_at.as_ref())).unwrap_or_default(),
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

/// The lower bound of a range of scores after this moment.
fn beyond(after: Option<Timestamp>) -> String {
    after.map_or_else(|| "-inf".to_owned(), |after| format!("({}", after.as_millis()))
}

/// The first member of each of several sorted sets with a score after the given one, and its score.
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
    Ok(firsts.into_iter().map(|members| members.into_iter().next().map(first)).collect())
}

//! Facts and records, read only. No call scans the keyspace: records have an index, facts are on numbered pages.

use std::ops::Range;

use async_trait::async_trait;
use redis::{FromRedisValue, pipe};

use super::RedisEngine;
use super::columns::{Column, add_block};
use super::reading::{KeyValue, snapshot};
use super::topology::ScriptCall;
use crate::clock::Timestamp;
use crate::presence::{FleetCount, Interval, OfflineRecord, RecordId, Snapshot, Transition, Unit};
use crate::store::json::from_json;
use crate::store::{History, Layout, Queries, Result};
use crate::telemetry::Stored;

/// The most ids of closed records that are read for the history of a unit: those of its partition, newest first.
const MAX_LOOKED_AT: usize = 10_000;

/// The number of entries that are read beyond a page, to replace records that are closed meanwhile.
const SPARE: usize = 16;

/// The most open records that are read in one step.
const FACTS_STEP: usize = 250;

/// The most records of a partition that one call removes.
const MAX_REMOVED: usize = 500;
/// The number of records that one script removes, within a millisecond.
const REMOVED_STEP: usize = 100;

#[async_trait]
impl Queries for RedisEngine {
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>> {
        let (partition, page) = self.keys.page_id(&id.unit);
        let mut pipe = pipe();
        pipe.hget(self.keys.facts_page(partition, page), id.unit.to_string());
        pipe.hget(self.keys.in_partition(partition, "archive"), id.to_string());
        type Answer = (Option<Vec<u8>>, Option<Vec<u8>>);
        let (facts, archived): Answer = self.topology.send("record", &pipe).await?;
        let (seen, _) = snapshot(id.unit.clone(), None, facts);
        let open = seen.facts.and_then(|facts| facts.open_record(&id.unit));
        let archived = || archived.and_then(|json| self.archived(&id.to_string(), &json));
        Ok(open.filter(|open| open.id == *id).or_else(archived))
    }

    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>> {
        let end = before.as_ref().map_or(Timestamp::NEVER, |(at, _)| *at);
        let indexes: &[&str] = if open { &["offline"] } else { &["offline", "past"] };
        let entries = self.newest(indexes, end, limit + SPARE).await?;
        let mut records = self.indexed(on_page(entries, before.as_ref(), limit + SPARE)).await?;
        if let Some(before) = &before {
            records.retain(|record| {
                (record.detected_at, record.id.to_string()) < (before.0, before.1.to_string())
            });
        }
        records.sort_by_cached_key(|record| std::cmp::Reverse((record.detected_at, record.id.to_string())));
        records.truncate(limit);
        Ok(records)
    }

    async fn changed_records(
        &self,
        what: Transition,
        partitions: &[u16],
        time: Interval,
        limit: usize,
    ) -> Result<(Vec<OfflineRecord>, Timestamp)> {
        let indexes: &[&'static str] = match what {
            Transition::Offline => &["offline", "past"],
            Transition::Online => &["closed"],
        };
        let all: Vec<(u16, &'static str)> =
            partitions.iter().flat_map(|p| indexes.iter().map(move |index| (*p, *index))).collect();
        let mut step = 2 * limit / all.len().max(1) + 16;
        loop {
            let (entries, known) = self.first_entries(&all, time, step).await?;
            // More records than a step were changed in the first millisecond.
            if known == time.from && time.from < time.to {
                step *= 4;
                continue;
            }
            return Ok((self.indexed(entries).await?, known));
        }
    }

    async fn history(&self, unit: &Unit, limit: usize) -> Result<History> {
        let (partition, page) = self.keys.page_id(unit);
        let mut pipe = pipe();
        pipe.hget(self.keys.facts_page(partition, page), unit.to_string());
        pipe.zrevrange(self.keys.in_partition(partition, "past"), 0, MAX_LOOKED_AT as isize - 1);
        type Answer = (Option<Vec<u8>>, Vec<Vec<u8>>);
        let (facts, past): Answer = self.topology.send("history", &pipe).await?;
        let (seen, _) = snapshot(unit.clone(), None, facts);
        let open = seen.facts.and_then(|facts| facts.open_record(unit));
        let mut is_complete = past.len() < MAX_LOOKED_AT;
        let of_unit = |name: Vec<u8>| {
            let name = String::from_utf8(name).ok()?;
            let id: RecordId = name.parse().ok()?;
            (id.unit == *unit).then_some(Indexed { at: id.last_seen, partition, index: "past", name })
        };
        let mut entries: Vec<Indexed> = past.into_iter().filter_map(of_unit).collect();
        let rest = limit.saturating_sub(usize::from(open.is_some()));
        is_complete &= entries.len() <= rest;
        entries.truncate(rest);
        let mut records: Vec<OfflineRecord> = open.into_iter().collect();
        records.extend(self.indexed(entries).await?);
        Ok(History { records, is_complete })
    }

    async fn count_since(&self, since: Timestamp) -> Result<FleetCount> {
        let mut pipe = pipe();
        for partition in 0..self.keys.partitions() {
            pipe.zcard(self.keys.in_partition(partition, "deadlines"));
            pipe.zcount(self.keys.in_partition(partition, "offline"), since.as_millis(), "+inf");
        }
        let counts: Vec<u64> = self.topology.send("count_since", &pipe).await?;
        let count = |from: usize| counts.iter().skip(from).step_by(2).sum();
        Ok(FleetCount { online: count(0), silent: count(1) })
    }

    fn fleet_id(&self) -> String {
        let known = self.known_fleet.lock();
        format!("{}@{}", known.id, known.emptied_at.unwrap_or_default())
    }

    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>> {
        let mut facts = pipe();
        facts.hgetall(self.keys.facts_page(partition, page));
        let (facts,): (Vec<(Vec<u8>, Vec<u8>)>,) = self.topology.browse("page", &facts).await?;
        let (mut names, mut units) = (Vec::with_capacity(facts.len()), Vec::with_capacity(facts.len()));
        for (name, stored) in facts {
            match self.unit_of(partition, &name) {
                Some(unit) => {
                    names.push(name);
                    units.push((unit, stored));
                }
                None => {
                    let location = format!(
                        "{} {}",
                        self.keys.facts_page(partition, page),
                        String::from_utf8_lossy(&name)
                    );
                    let why = "it is not a unit of this partition; HDEL it there";
                    self.telemetry.unreadable(Stored::Facts, &location, why);
                }
            }
        }
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let names = names.iter().map(Vec::as_slice);
        let alive: Vec<Option<Vec<u8>>> = self.read_alive(partition, names).await?;
        let whole = units.into_iter().zip(alive);
        Ok(whole.map(|((unit, stored), alive)| snapshot(unit, alive.as_deref(), Some(stored)).0).collect())
    }

    /// A check of all pages takes a server less than half a millisecond.
    async fn occupied(&self, partition: u16, length: u32) -> Result<Vec<Range<u32>>> {
        let steps = self.steps(length);
        let mut pipe = pipe();
        for step in &steps {
            let pages = step.clone().map(|page| self.keys.facts_page(partition, page));
            pipe.exists(pages.collect::<Vec<_>>());
        }
        let found: Vec<u32> = self.topology.browse("page", &pipe).await?;
        Ok(steps.into_iter().zip(found).filter(|(_, found)| *found > 0).map(|(step, _)| step).collect())
    }

    async fn alive(&self, partition: u16, names: &[&str]) -> Result<Vec<Option<Timestamp>>> {
        let alive: Vec<Option<Vec<u8>>> =
            self.read_alive(partition, names.iter().map(|name| name.as_bytes())).await?;
        let moment = |text: Option<Vec<u8>>| text.as_deref().and_then(KeyValue::parse).map(|heard| heard.at);
        Ok(alive.into_iter().map(moment).collect())
    }

    async fn forget_records(&self, partitions: &[u16], before: Timestamp) -> Result<usize> {
        let steps = partitions.iter();
        let steps =
            steps.map(|&partition| (self.keys.slot(partition), self.forget_records_of(partition, before)));
        Ok(self.topology.run_limited(steps.collect()).await?.into_iter().sum())
    }
}

/// The part of an index of records of a partition that was read.
struct RecordIndex {
    partition: u16,
    name: &'static str,
    entries: Vec<Indexed>,
    /// All entries after this moment were read.
    lowest: Timestamp,
    /// Whether more entries may have to be read.
    is_open: bool,
}

impl RecordIndex {
    fn new(partition: u16, name: &'static str, end: Timestamp) -> RecordIndex {
        RecordIndex { partition, name, entries: Vec::new(), lowest: end, is_open: true }
    }

    /// Adds a page of at most `step` entries, read from the lowest moment on.
    fn add(&mut self, page: Vec<(Vec<u8>, f64)>, step: usize) {
        let (partition, index) = (self.partition, self.name);
        self.entries.retain(|entry| entry.at > self.lowest);
        self.is_open = page.len() == step;
        self.entries.extend(page.into_iter().map(|(name, at)| Indexed {
            at: Timestamp::from_millis(at as i64),
            partition,
            index,
            name: String::from_utf8_lossy(&name).into_owned(),
        }));
        self.lowest = self.entries.last().map_or(self.lowest, |entry| entry.at);
    }
}

/// An entry of an index of records: the name of a unit in `offline`, the id of a record in `past` and `closed`.
struct Indexed {
    /// When the record was detected; in `closed`, when it ended.
    at: Timestamp,
    partition: u16,
    index: &'static str,
    name: String,
}

impl Indexed {
    /// The known first part of the id of its record. An index of open records has only the names of units; in the id
    /// a moment follows.
    fn begin_of_id(&self) -> String {
        if self.index == "offline" { format!("{}:", self.name) } else { self.name.clone() }
    }
}

/// The entries that are, or may be, among the first `limit` of a list after `before`. A storm has thousands of
/// silences in one millisecond, whose order the index does not have.
fn on_page(entries: Vec<Indexed>, before: Option<&(Timestamp, RecordId)>, limit: usize) -> Vec<Indexed> {
    let before = before.map(|(at, id)| (*at, id.to_string()));
    let named = entries.into_iter().map(|entry| (entry.at, entry.begin_of_id(), entry));
    let is_after =
        |at: Timestamp, id: &str| before.as_ref().is_none_or(|(end, last)| (at, id) < (*end, last));
    let mut named: Vec<_> = named.filter(|(at, id, _)| is_after(*at, id)).collect();
    named.sort_by(|a, b| (b.0, &b.1).cmp(&(a.0, &a.1)));
    // If the known part of one id begins another id, their order is unknown.
    let may_follow = |place: usize| {
        let (at, id, _) = &named[place];
        let alike = named[..place].iter().rev().take_while(|one| one.0 == *at && one.1.starts_with(id));
        place - alike.count() < limit
    };
    let on_page: Vec<bool> = (0..named.len()).map(may_follow).collect();
    named.into_iter().zip(on_page).filter_map(|((.., entry), is_on)| is_on.then_some(entry)).collect()
}

impl RedisEngine {
    /// Removes records of a partition that were closed before `before`. A record that is opened again meanwhile
    /// stays.
    async fn forget_records_of(&self, partition: u16, before: Timestamp) -> Result<usize> {
        let [past, archive, closed] =
            ["past", "archive", "closed"].map(|name| self.keys.in_partition(partition, name));
        let (before, most) = (format!("({}", before.as_millis()), MAX_REMOVED as isize);
        let mut read = pipe();
        read.zrangebyscore_limit_withscores(&closed, "-inf", before, 0, most);
        let (ids,): (Vec<(Vec<u8>, f64)>,) = self.topology.send("forget_records", &read).await?;
        let mut forgotten = 0;
        for ids in ids.chunks(REMOVED_STEP) {
            let scores: Vec<String> = ids.iter().map(|(_, at)| at.to_string()).collect();
            let names = || ids.iter().map(|(id, _)| id.as_slice());
            let column = |what, key, words| Column { what, key, times: 1, words };
            let columns = [
                column("is_at", &closed, names().chain(scores.iter().map(String::as_bytes)).collect()),
                column("leave", &past, names().collect()),
                column("remove", &archive, names().collect()),
                column("leave", &closed, names().collect()),
            ];
            let mut script = ScriptCall::of(&self.scripts.write_cells);
            add_block(&mut script, ids.len(), &columns);
            let written: Vec<bool> = self.topology.run("forget_records", script).await?;
            forgotten += written.into_iter().filter(|is_written| *is_written).count();
        }
        Ok(forgotten)
    }

    /// The values of the expiry keys of units of a partition.
    async fn read_alive<T: FromRedisValue>(
        &self,
        partition: u16,
        names: impl Iterator<Item = &[u8]>,
    ) -> Result<T> {
        let mut alive = redis::cmd("MGET");
        let mut key = self.keys.in_partition(partition, "alive:").into_bytes();
        let prefix = key.len();
        for name in names {
            key.truncate(prefix);
            key.extend_from_slice(name);
            alive.arg(key.as_slice());
        }
        let mut pipe = pipe();
        pipe.add_command(alive);
        let (values,): (T,) = self.topology.browse("alive", &pipe).await?;
        Ok(values)
    }

    /// The newest entries of these indexes of all partitions: `limit` and one more before `end`, with all other entries
    /// of the last millisecond, because an index does not order the records of one millisecond as a list does.
    ///
    /// Each index is read until it has enough such entries: most indexes have about the same number. The next read
    /// continues from the last moment instead of skipping a number of entries, because entries come and go meanwhile.
    async fn newest(&self, indexes: &[&'static str], end: Timestamp, limit: usize) -> Result<Vec<Indexed>> {
        let of_all = (0..self.keys.partitions()).flat_map(|p| indexes.iter().map(move |index| (p, *index)));
        let mut all: Vec<RecordIndex> =
            of_all.map(|(partition, name)| RecordIndex::new(partition, name, end)).collect();
        let mut step = 2 * limit / all.len().max(1) + 16;
        loop {
            let mut pipe = pipe();
            for index in all.iter().filter(|index| index.is_open) {
                let key = self.keys.in_partition(index.partition, index.name);
                let from = index.lowest.as_millis();
                pipe.zrevrangebyscore_limit_withscores(key, from, "-inf", 0, step as isize);
            }
            let pages: Vec<Vec<(Vec<u8>, f64)>> = self.topology.send("records", &pipe).await?;
            let open = all.iter_mut().filter(|index| index.is_open);
            open.zip(pages).for_each(|(index, page)| index.add(page, step));
            let entries = all.iter().flat_map(|index| &index.entries);
            let mut moments: Vec<Timestamp> = entries.map(|entry| entry.at).filter(|at| *at < end).collect();
            moments.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
            let last = moments.get(limit).copied();
            for index in &mut all {
                index.is_open &= last.is_none_or(|last| index.lowest >= last);
            }
            if all.iter().all(|index| !index.is_open) {
                let entries = all.into_iter().flat_map(|index| index.entries);
                return Ok(entries.filter(|entry| last.is_none_or(|last| entry.at >= last)).collect());
            }
            step *= 4;
        }
    }

    /// The first `step` entries of each of these indexes, up to the moment to which all of them were read, and that
    /// moment.
    async fn first_entries(
        &self,
        indexes: &[(u16, &'static str)],
        time: Interval,
        step: usize,
    ) -> Result<(Vec<Indexed>, Timestamp)> {
        let (mut pipe, before) = (pipe(), format!("({}", time.to.as_millis()));
        for (partition, index) in indexes {
            let (key, from) = (self.keys.in_partition(*partition, index), time.from.as_millis());
            pipe.zrangebyscore_limit_withscores(key, from, &before, 0, step as isize);
        }
        let pages: Vec<Vec<(Vec<u8>, f64)>> = self.topology.send("records", &pipe).await?;
        let at = |score: &f64| Timestamp::from_millis(*score as i64);
        // A full page may lack further entries of its last moment.
        let full = pages.iter().filter(|page| page.len() == step);
        let known = full.filter_map(|page| Some(at(&page.last()?.1))).min().unwrap_or(time.to);
        let entries = indexes.iter().zip(&pages).flat_map(|((partition, index), page)| {
            page.iter().map(move |(name, score)| Indexed {
                at: at(score),
                partition: *partition,
                index,
                name: String::from_utf8_lossy(name).into_owned(),
            })
        });
        Ok((entries.filter(|entry| entry.at < known).collect(), known))
    }

    /// The records of these entries, without records that were opened or closed meanwhile.
    async fn indexed(&self, entries: Vec<Indexed>) -> Result<Vec<OfflineRecord>> {
        let (offline, past): (Vec<Indexed>, Vec<Indexed>) =
            entries.into_iter().partition(|entry| entry.index == "offline");
        let unit = |entry: &Indexed| {
            let unit = self.unit_of(entry.partition, entry.name.as_bytes());
            if unit.is_none() {
                let key = self.keys.in_partition(entry.partition, "offline");
                let location = format!("{key} {}", entry.name);
                self.telemetry.unreadable(
                    Stored::Record,
                    &location,
                    "it is not a unit of this partition; ZREM it there",
                );
            }
            unit
        };
        let units: Vec<Unit> = offline.iter().filter_map(unit).collect();
        let mut records = self.open_records_of(units).await?;
        let mut pipe = pipe();
        for entry in &past {
            pipe.hget(self.keys.in_partition(entry.partition, "archive"), &entry.name);
        }
        if !past.is_empty() {
            let archived: Vec<Option<Vec<u8>>> = self.topology.send("archive", &pipe).await?;
            for (entry, json) in past.iter().zip(archived) {
                records.extend(json.and_then(|json| self.archived(&entry.name, &json)));
            }
        }
        Ok(records)
    }

    /// The open records of these units, for units that have one. Expiry keys are not read: a unit has none while it
    /// is offline.
    async fn open_records_of(&self, units: Vec<Unit>) -> Result<Vec<OfflineRecord>> {
        // In steps, so that the server answers other requests in between.
        let steps = units.chunks(FACTS_STEP).map(|step| {
            let mut pipe = pipe();
            for unit in step {
                let (partition, page) = self.keys.page_id(unit);
                pipe.hget(self.keys.facts_page(partition, page), unit.to_string());
            }
            let read = async move {
                let facts: Vec<Option<Vec<u8>>> = self.topology.send("open_records", &pipe).await?;
                let open = step.iter().zip(facts).filter_map(|(unit, facts)| {
                    snapshot(unit.clone(), None, facts).0.facts?.open_record(unit)
                });
                Ok(open.collect::<Vec<_>>())
            };
            (self.keys.slot(self.keys.partition(&step[0])), read)
        });
        Ok(self.topology.run_limited(steps.collect()).await?.into_iter().flatten().collect())
    }

    /// A closed record. An unreadable record is reported and left out.
    fn archived(&self, id: &str, json: &[u8]) -> Option<OfflineRecord> {
        let read = std::str::from_utf8(json).map_err(|why| why.to_string());
        match read.and_then(|json| from_json("a record", json).map_err(|why| why.to_string())) {
            Ok(record) => Some(record),
            Err(why) => {
                let why = format!("{why}; it is left out of lists: HDEL it in the archive of its partition");
                self.telemetry.unreadable(Stored::Record, id, &why);
                None
            }
        }
    }
}

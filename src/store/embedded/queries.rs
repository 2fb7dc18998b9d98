//! Units and records for queries. Names and last seen times are read from memory, the rest from disk.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::database::{self, open_to_read};
use super::last_seen::unit_id;
use super::stored::{snapshot, text};
use crate::clock::Timestamp;
use crate::presence::{FleetCount, Interval, Kind, OfflineRecord, RecordId, Snapshot, Transition, Unit};
use crate::store::table::UnitTables;
use crate::store::{Backlog, History, Index, Layout, Queries, Result};
use crate::store::{json::from_json, json::to_json};
use crate::telemetry::Stored;

/// The number of open records in the directory of a fleet, by kind of unit; a service may be using it.
///
/// # Errors
/// `Damaged` or `Refused` if the directory holds no readable fleet.
pub fn open_by_kind(path: &Path) -> Result<BTreeMap<Kind, u64>> {
    if database::partitions(path)?.is_none() {
        return Ok(BTreeMap::new());
    }
    let count = |database: Connection| {
        let mut select = database.prepare(
            "SELECT substr(id, 1, instr(id, ':') - 1), count(*) FROM records WHERE closed IS NULL GROUP BY 1",
        )?;
        let rows = select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        Ok(rows.into_iter().filter_map(|(kind, open)| Some((kind.parse().ok()?, open as u64))).collect())
    };
    open_to_read(path).and_then(count).map_err(|error| error.explain(path))
}

/// The backlog of each receiver in the directory of a fleet, if there is one; a service may be using it.
///
/// # Errors
/// `Damaged` or `Refused` if the directory holds no readable fleet.
pub fn backlogs_in(path: &Path) -> Result<Vec<(String, Backlog)>> {
    if database::partitions(path)?.is_none() {
        return Ok(Vec::new());
    }
    let count = |database: Connection| {
        let select =
            "SELECT idx, count(*) FROM entries WHERE idx GLOB 'queue:*' OR idx GLOB 'dead:*' GROUP BY idx";
        let mut select = database.prepare(select)?;
        let rows =
            select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)? as u64)))?;
        let mut kept: BTreeMap<String, Backlog> = BTreeMap::new();
        for (index, count) in rows.collect::<rusqlite::Result<Vec<_>>>()? {
            match Index::named(&index) {
                Some(Index::Queue(name)) => kept.entry(name.to_string()).or_default().waiting = count,
                Some(Index::Dead(name)) => kept.entry(name.to_string()).or_default().dead = count,
                _ => {}
            }
        }
        Ok(kept.into_iter().collect())
    };
    open_to_read(path).and_then(count).map_err(|error| error.explain(path))
}

/// The most records that are removed in one step.
const MAX_REMOVED: usize = 2000;

/// How many slots a page has.
pub(super) const PAGE: u32 = 256;

impl Layout for EmbeddedEngine {
    fn partitions(&self) -> u16 {
        self.memory.partitions()
    }

    fn pages(&self) -> u32 {
        let slots = (0..self.memory.partitions()).map(|partition| self.memory.units().read(partition).len());
        (slots.max().unwrap_or(0) as u32).div_ceil(PAGE).max(1)
    }
}

#[async_trait]
impl Queries for EmbeddedEngine {
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>> {
        let (id, name) = (id.to_string(), id.to_string());
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached("SELECT record FROM records WHERE id = ?")?;
            Ok(select.query_row([id], |row| Ok(text(row, 0)?.into_owned())).optional()?)
        };
        let found = self.readers.read(read).await?;
        Ok(found.and_then(|json| self.readable(&name, &json)))
    }

    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>> {
        let (at, id) = before.map_or((i64::MAX, String::new()), |(at, id)| (at.as_millis(), id.to_string()));
        let only = if open { "AND closed IS NULL " } else { "" };
        let select = format!(
            "SELECT id, record FROM records WHERE (detected, id) < (?, ?) {only}ORDER BY detected DESC, id DESC LIMIT ?"
        );
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached(&select)?;
            let rows = select.query_map(params![at, id, limit as i64], |row| {
                Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned()))
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        };
        let found = self.readers.read(read).await?;
        Ok(found.iter().filter_map(|(id, json)| self.readable(id, json)).collect())
    }

    async fn changed_records(
        &self,
        what: Transition,
        partitions: &[u16],
        time: Interval,
        limit: usize,
    ) -> Result<(Vec<OfflineRecord>, Timestamp)> {
        let column = match what {
            Transition::Offline => "detected",
            Transition::Online => "closed",
        };
        let select = format!(
            "SELECT id, record, {column} FROM records WHERE {column} >= ? AND {column} < ? AND partition IN \
             (SELECT value FROM json_each(?)) ORDER BY {column} LIMIT ?"
        );
        let (partitions, mut step) = (to_json(&partitions)?, limit);
        loop {
            let (select, partitions) = (select.clone(), partitions.clone());
            let read = move |database: &Connection| {
                let mut select = database.prepare_cached(&select)?;
                let (from, until) = (time.from.as_millis(), time.to.as_millis());
                let rows = select.query_map(params![from, until, partitions, step as i64], |row| {
                    Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned(), row.get::<_, i64>(2)?))
                })?;
                Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
            };
            let found = self.readers.read(read).await?;
            // The last moment may have further records.
            let last = found.last().filter(|_| found.len() == step);
            let known = last.map_or(time.to, |(.., at)| Timestamp::from_millis(*at));
            if known == time.from && time.from < time.to {
                step *= 4;
                continue;
            }
            let known_rows = found.iter().filter(|(.., at)| *at < known.as_millis());
            return Ok((known_rows.filter_map(|(id, json, _)| self.readable(id, json)).collect(), known));
        }
    }

    async fn history(&self, unit: &Unit, limit: usize) -> Result<History> {
        // Ids of a unit's records begin with its name and a colon; so may those of a unit with a longer id.
        let (first, last) = (format!("{unit}:"), format!("{unit};"));
        let (of, most) = (unit.clone(), limit.saturating_add(1));
        let read = move |database: &Connection| {
            let select = "SELECT id, record FROM records WHERE id > ? AND id < ? ORDER BY id DESC";
            let mut select = database.prepare_cached(select)?;
            let mut rows = select.query(params![first, last])?;
            let mut found = Vec::new();
            while found.len() < most
                && let Some(row) = rows.next()?
            {
                let id = text(row, 0)?.into_owned();
                if id.parse().is_ok_and(|id: RecordId| id.unit == of) {
                    found.push((id, text(row, 1)?.into_owned()));
                }
            }
            Ok(found)
        };
        let mut found = self.readers.read(read).await?;
        let is_complete = found.len() <= limit;
        found.truncate(limit);
        let mut records: Vec<OfflineRecord> =
            found.iter().filter_map(|(id, json)| self.readable(id, json)).collect();
        records.sort_by_key(|record| std::cmp::Reverse((record.detected_at, record.last_seen)));
        Ok(History { records, is_complete })
    }

    async fn count_since(&self, since: Timestamp) -> Result<FleetCount> {
        let count = move |database: &Connection| {
            let mut select = database
                .prepare_cached("SELECT count(*) FROM records WHERE detected >= ? AND closed IS NULL")?;
            Ok(select.query_row([since.as_millis()], |row| row.get::<_, i64>(0))? as u64)
        };
        let silent = self.readers.read(count).await?;
        let watched = |partition| self.memory.table(partition).watched() as u64;
        Ok(FleetCount { online: (0..self.memory.partitions()).map(watched).sum(), silent })
    }

    fn fleet_id(&self) -> String {
        self.fleet.clone()
    }

    fn unit_tables(&self) -> Option<Arc<UnitTables>> {
        Some(self.memory.units().clone())
    }

    async fn occupied(&self, partition: u16, length: u32) -> Result<Vec<Range<u32>>> {
        let steps = self.steps(length);
        let pages = (self.memory.units().read(partition).len() as u32).div_ceil(PAGE);
        Ok(steps.into_iter().filter(|step| step.start < pages).collect())
    }

    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>> {
        let from = page.saturating_mul(PAGE);
        let stored = self.memory.table(partition).stored(from..from.saturating_add(PAGE))?;
        let units = stored.into_iter().map(|(slot, unit, alive)| (unit_id(partition, slot), unit, alive));
        let units: Vec<_> = units.collect();
        let (Some((first, ..)), Some((last, ..))) = (units.first(), units.last()) else {
            return Ok(Vec::new());
        };
        let range = [*first, *last];
        let read = move |database: &Connection| {
            let mut select =
                database.prepare_cached("SELECT id, facts FROM units WHERE id BETWEEN ? AND ?")?;
            let mut rows = select.query(range)?;
            let mut units = units.into_iter().peekable();
            let mut found = Vec::with_capacity(units.len());
            // Both are in order. A unit that was added between the two reads is in only one of them; the next walk
            // has it.
            while let Some(row) = rows.next()? {
                let stored: i64 = row.get(0)?;
                while units.next_if(|(id, ..)| *id < stored).is_some() {}
                if let Some((_, unit, alive)) = units.next_if(|(id, ..)| *id == stored) {
                    found.push(snapshot(unit, alive, Some(&text(row, 1)?)));
                }
            }
            Ok(found)
        };
        self.readers.read(read).await
    }

    async fn alive(&self, partition: u16, names: &[&str]) -> Result<Vec<Option<Timestamp>>> {
        let table = self.memory.table(partition);
        Ok(names.iter().map(|name| table.alive(name)).collect())
    }

    async fn forget_records(&self, partitions: &[u16], before: Timestamp) -> Result<usize> {
        let delete = "DELETE FROM records WHERE rowid IN (SELECT rowid FROM records WHERE closed < ? AND \
                      partition IN (SELECT value FROM json_each(?)) ORDER BY closed LIMIT ?)";
        let partitions = to_json(&partitions)?;
        let write = move |database: &Connection| {
            let mut delete = database.prepare_cached(delete)?;
            Ok(delete.execute(params![before.as_millis(), partitions, MAX_REMOVED as i64])?)
        };
        self.writer.write("forget_records", write).await
    }
}

impl EmbeddedEngine {
    /// Parses a record. An unreadable record is logged and left out, and the next examination quarantines it.
    fn readable(&self, id: &str, json: &str) -> Option<OfflineRecord> {
        match from_json("a record", json) {
            Ok(record) => Some(record),
            Err(why) => {
                let location = format!("table records id {id:?}");
                self.telemetry.unreadable(
                    Stored::Record,
                    &location,
                    &format!("{why}; it is left out of lists"),
                );
                self.full_scan.request();
                None
            }
        }
    }
}

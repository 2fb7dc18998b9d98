//! Loads the fleet from disk into memory, at the start.
//!
//! Units come first, in the state of their last change; then newer heartbeats: pages, and rows of `heartbeats` in the
//! order of writing. Heartbeats that were not on disk when the process ended are later than `heard`, so that time is
//! blind.
//!
//! A value of the wrong type fails the load; it is quarantined, and the load begins again: see [`load_fleet`].

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use rusqlite::types::{FromSql, Type};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow};

use super::error::{DatabaseError, DatabaseResult, damaged};
use super::in_memory_hearing::{InMemoryHearing, StoredHearing};
use super::last_seen::{LastSeenTables, PAGE, partition_and_slot, read_entries, read_keys};
use super::memory::InMemoryFleet;
use super::quarantine::{self, QuarantineReport, RepairContext};
use super::row::MaybeTimestamp;
use crate::clock::{Clock, Timestamp};
use crate::presence::{BLIND_RETENTION, Hearing, Interval, is_plausible};
use crate::store::json::from_json;
use crate::store::{EngineError, Result, encoding};
use crate::telemetry::Stored;

/// The numbers of pages, with their partitions.
type PageNumbers = BTreeSet<(u16, u32)>;

pub(super) struct LoadedFleet {
    pub memory: Arc<InMemoryFleet>,
    pub last_seen: Arc<LastSeenTables>,
    pub unreadable: Vec<QuarantineReport>,
}

/// Reads the fleet, and quarantines unreadable rows first.
///
/// `labels`: the labels that units are counted by.
pub(super) fn load_fleet(
    database: &Connection,
    path: &Path,
    partitions: u16,
    labels: &[String],
) -> DatabaseResult<LoadedFleet> {
    let load = || {
        let memory = Arc::new(InMemoryFleet::new(partitions, labels));
        let last_seen = Arc::new(LastSeenTables::new(memory.clone()));
        load(database, &memory, &last_seen).map(|unreadable| LoadedFleet { memory, last_seen, unreadable })
    };
    let quarantined = match load() {
        Err(error) if error.is_of_a_value() => quarantine_all(database, partitions)?,
        loaded => return loaded,
    };
    let mut loaded = load().map_err(|error| match error {
        DatabaseError::Database(why) if quarantined.is_empty() => {
            EngineError::Damaged(damaged(path, &why.to_string())).into()
        }
        error => error,
    })?;
    loaded.unreadable.extend(quarantined);
    Ok(loaded)
}

/// Quarantines every unreadable row, in one transaction.
fn quarantine_all(database: &Connection, partitions: u16) -> DatabaseResult<Vec<QuarantineReport>> {
    let heard = match heard(database) {
        Ok(Some(heard)) => heard.state.heard,
        _ => newest(database)?,
    };
    let flush_number = number(database, "number").unwrap_or(0);
    let context = RepairContext { partitions, heard, flush_number, memory: None };
    let transaction = database.unchecked_transaction()?;
    let quarantined = quarantine::quarantine_all(&transaction, &context)?;
    transaction.commit()?;
    Ok(quarantined)
}

/// Fills the empty memory. Answers the unreadable parts.
fn load(
    database: &Connection,
    memory: &InMemoryFleet,
    last_seen: &LastSeenTables,
) -> DatabaseResult<Vec<QuarantineReport>> {
    let mut loader = Loader { memory, after: vec![Vec::new(); memory.partitions().into()], number: 0 };
    loader.units(database)?;
    let rows_of_pages = loader.pages(database)?;
    let (rows, count, pages) = loader.unmerged_rows(database)?;
    let written = number(database, "number");
    // The number of a change counts as used even if its flush was not written.
    last_seen.load(written.unwrap_or(0).max(loader.number), count, (rows, rows_of_pages), pages);
    let mut unreadable = Vec::new();
    unreadable.extend(load_hearing(database, memory)?);
    let counts = meta_text(database, "kept")?;
    if let Some(missing) =
        counts.and_then(|counts| RowCounts::read(&counts)?.missing(written, rows, rows_of_pages))
    {
        let heard = memory.hearing().state.heard;
        memory.presume(heard);
        unreadable.push(QuarantineReport {
            what: Stored::ExpiryKey,
            location: "tables heartbeats and pages".to_owned(),
            why: format!("{missing}; every unit counts as heard up to when Rollcall had heard"),
        });
    }
    Ok(unreadable)
}

/// Loads the state of hearing. If it is unreadable, or years ahead of every clock, presumes a state and answers why.
fn load_hearing(database: &Connection, memory: &InMemoryFleet) -> DatabaseResult<Option<QuarantineReport>> {
    let mut unreadable = None;
    let newest = memory.newest();
    let clocks = [Clock::machine(), newest.unwrap_or(Timestamp::ZERO)];
    let is_true = |hearing: &InMemoryHearing| hearing.state.heard.is_none_or(|at| is_plausible(at, &clocks));
    let mut heard = match heard(database).map_err(|why| why.to_string()) {
        Ok(Some(heard)) if is_true(&heard) => heard,
        // The fleet is new.
        Ok(None) if newest.is_none() => InMemoryHearing::default(),
        lost => {
            let why = match lost {
                Ok(None) => "it is missing".to_owned(),
                Ok(Some(_)) => "it is years ahead of the clock".to_owned(),
                Err(why) => why,
            };
            let why = format!("{why}; since the newest heartbeat that is known Rollcall counts as blind");
            let location = "table meta name \"hearing\"".to_owned();
            unreadable = Some(QuarantineReport { what: Stored::Hearing, location, why });
            InMemoryHearing::restore(&Hearing { heard: newest, ..Hearing::default() })
        }
    };
    let useful = heard.state.heard.unwrap_or(Timestamp::ZERO) - BLIND_RETENTION;
    heard.resume(blind(database, useful)?);
    *memory.hearing() = heard;
    Ok(unreadable)
}

/// The expected numbers of rows of `heartbeats` and `pages`.
struct RowCounts {
    flush_number: i64,
    unmerged_rows: i64,
    pages: i64,
}

impl RowCounts {
    /// Reads the text that [`super::last_seen::Flush`] writes.
    fn read(text: &str) -> Option<RowCounts> {
        let mut numbers = text.split(' ').map(str::parse::<i64>);
        let mut next = || numbers.next()?.ok();
        Some(RowCounts { flush_number: next()?, unmerged_rows: next()?, pages: next()? })
    }

    /// Reports missing rows.
    fn missing(&self, number: Option<i64>, unmerged_rows: i64, pages: i64) -> Option<String> {
        let is_current = number.is_none_or(|number| number == self.flush_number);
        let missing = (self.unmerged_rows - unmerged_rows).max(0) + (self.pages - pages).max(0);
        (is_current && missing > 0).then(|| format!("{missing} rows with heartbeats are missing"))
    }
}

/// The newest heartbeat that a change wrote: it replaces an unreadable state of hearing.
fn newest(database: &Connection) -> DatabaseResult<Option<Timestamp>> {
    let select = "SELECT max(alive) FROM units WHERE typeof(alive) = 'integer'";
    let newest: Option<i64> = database.query_row(select, [], |row| row.get(0))?;
    Ok(newest.map(Timestamp::from_millis))
}

/// A number in `meta`; `None` if it is missing or not a number.
fn number(database: &Connection, name: &str) -> Option<i64> {
    meta(database, name).ok()?
}

struct Loader<'a> {
    memory: &'a InMemoryFleet,
    /// By partition and slot: the flush number of each unit's last change; heartbeats up to it are older.
    after: Vec<Vec<i64>>,
    /// The largest flush number found.
    number: i64,
}

impl Loader<'_> {
    fn units(&mut self, database: &Connection) -> DatabaseResult<()> {
        for partition in 0..self.memory.partitions() {
            let from = super::last_seen::unit_id(partition, 0);
            let to = super::last_seen::unit_id(partition, u32::MAX);
            let mut select = database.prepare(
                "SELECT id, name, facts, alive, next_check, after FROM units WHERE id BETWEEN ? AND ?",
            )?;
            // The last slot gives the number of units, including forgotten ones.
            let last: Option<i64> = database.query_row(
                "SELECT max(id) FROM units WHERE id BETWEEN ? AND ?",
                [from, to],
                |row| row.get(0),
            )?;
            let mut table = self.memory.table(partition);
            let numbers = &mut self.after[usize::from(partition)];
            if let Some((_, last)) = last.and_then(partition_and_slot) {
                table.reserve(last as usize + 1);
                numbers.reserve_exact(last as usize + 1);
            }
            let mut rows = select.query([from, to])?;
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(0)?;
                let name = text(row, 1)?;
                let (alive, next_check) = (moment(row.get(3)?), moment(row.get(4)?));
                let facts = text(row, 2)?;
                let after: i64 = row.get(5)?;
                let digest = self.memory.digest(Some(facts));
                let committed = self.memory.committed(encoding::decode(facts).as_ref());
                let loaded = table.load(id as u32, name, (alive, next_check), digest, committed.as_ref());
                // An unreadable name is handled like a value of the wrong type: it is quarantined, and the load
                // begins again.
                let unreadable = || rusqlite::Error::InvalidColumnType(1, "name".to_owned(), Type::Text);
                loaded.ok_or_else(unreadable)?;
                numbers.resize(id as u32 as usize, i64::MAX);
                numbers.push(after);
                self.number = self.number.max(after);
            }
        }
        Ok(())
    }

    /// Answers the number of rows.
    fn pages(&mut self, database: &Connection) -> DatabaseResult<i64> {
        let mut select = database.prepare("SELECT id, number, times, brokers FROM pages")?;
        let mut rows = select.query([])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            count += 1;
            let (id, number): (i64, i64) = (row.get(0)?, row.get(1)?);
            self.number = self.number.max(number);
            // A damaged key may name a partition that does not exist.
            let Some((partition, page)) = partition_and_slot(id) else { continue };
            let first = page.saturating_mul(PAGE);
            let keys = read_keys(blob(row, 2)?).map(|(slot, key)| (first.saturating_add(slot), key));
            self.heartbeats(partition, (number, text(row, 3)?), keys)?;
        }
        Ok(count)
    }

    /// Answers the number of rows, the number of heartbeats in them, and their pages.
    fn unmerged_rows(&mut self, database: &Connection) -> DatabaseResult<(i64, usize, PageNumbers)> {
        let mut select = database.prepare("SELECT number, entries, brokers FROM heartbeats ORDER BY id")?;
        let mut rows = select.query([])?;
        let (mut found, mut count, mut pages) = (0, 0, BTreeSet::new());
        while let Some(row) = rows.next()? {
            found += 1;
            let number: i64 = row.get(0)?;
            self.number = self.number.max(number);
            let brokers = text(row, 2)?;
            let entries: Vec<(u16, u32, (Timestamp, u8))> = read_entries(blob(row, 1)?).collect();
            for of_partition in entries.chunk_by(|a, b| a.0 == b.0) {
                let partition = of_partition[0].0;
                let keys = of_partition.iter().map(|(_, slot, key)| (*slot, *key));
                self.heartbeats(partition, (number, brokers), keys)?;
                let mut of_pages = of_partition.iter().map(|(_, slot, _)| slot / PAGE).collect::<Vec<u32>>();
                of_pages.dedup();
                pages.extend(of_pages.into_iter().map(|page| (partition, page)));
            }
            count += entries.len();
        }
        Ok((found, count, pages))
    }

    /// Applies the heartbeats of a flush, by slot, that are newer than their unit's last change. Such a change has written
    /// the key as it was, so the broker of the key may be that of an older heartbeat.
    fn heartbeats(
        &self,
        partition: u16,
        (number, brokers): (i64, &str),
        unmerged_rows: impl Iterator<Item = (u32, (Timestamp, u8))>,
    ) -> DatabaseResult<()> {
        let Some(after) = self.after.get(usize::from(partition)) else { return Ok(()) };
        let unreadable = || rusqlite::Error::InvalidColumnType(0, "brokers".to_owned(), Type::Text);
        let here = self.memory.brokers().of_row(brokers).ok_or_else(unreadable)?;
        let mut table = self.memory.table(partition);
        for (slot, (time, broker)) in unmerged_rows {
            if let Some(after) = after.get(slot as usize) {
                table.load_key(slot, (time, here(broker)), number > *after);
            }
        }
        Ok(())
    }
}

/// The state of hearing; `None` if it is missing.
fn heard(database: &Connection) -> Result<Option<InMemoryHearing>> {
    let text = meta_text(database, "hearing").map_err(unreadable)?;
    text.map(|text| from_json::<StoredHearing>("the state of hearing", &text).map(InMemoryHearing::from))
        .transpose()
}

fn unreadable(error: rusqlite::Error) -> EngineError {
    EngineError::Damaged(error.to_string())
}

/// The blind intervals that ended after `after`.
fn blind(database: &Connection, after: Timestamp) -> DatabaseResult<Vec<Interval>> {
    let mut select = database.prepare("SELECT start, until FROM blind WHERE until > ? ORDER BY start")?;
    let intervals = select.query_map([after.as_millis()], |row| {
        let (from, to): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok(Interval { from: Timestamp::from_millis(from), to: Timestamp::from_millis(to) })
    })?;
    Ok(intervals.collect::<rusqlite::Result<_>>()?)
}

fn meta<T: FromSql>(database: &Connection, name: &str) -> rusqlite::Result<Option<T>> {
    let found = database.query_row("SELECT value FROM meta WHERE name = ?", [name], |row| row.get(0));
    Ok(found.optional()?.flatten())
}

/// A value of `meta` as text, whatever its type.
fn meta_text(database: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    let mut select = database.prepare("SELECT value FROM meta WHERE name = ?")?;
    select.query_row([name], |row| Ok(super::stored::text(row, 0)?.into_owned())).optional()
}

fn moment(ms: Option<i64>) -> MaybeTimestamp {
    ms.map(Timestamp::from_millis).into()
}

fn text<'a>(row: &'a SqlRow<'_>, column: usize) -> DatabaseResult<&'a str> {
    Ok(row.get_ref(column)?.as_str().map_err(rusqlite::Error::from)?)
}

fn blob<'a>(row: &'a SqlRow<'_>, column: usize) -> DatabaseResult<&'a [u8]> {
    Ok(row.get_ref(column)?.as_blob().map_err(rusqlite::Error::from)?)
}

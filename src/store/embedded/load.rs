//! From disk into memory, at the start.
//!
//! Units come first, as of their last change; then the heartbeats that are newer than that: pages,
//! and beats in the order in which they were written. What was not written when the process ended
//! is after `heard`, so it is blind time.
//!
//! What is there of the wrong sort fails here, is put aside, and the load begins anew: see [`fill`].

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use rusqlite::types::{FromSql, Type};
use rusqlite::{Connection, OptionalExtension, Row as Found};

use super::ears::Ears;
use super::error::{DatabaseError, DatabaseResult, damaged};
use super::last_seen::{LastSeenTables, PAGE, partition_and_slot, read_entries, read_times};
use super::memory::InMemoryFleet;
use super::quarantine::{self, Aside, RepairContext};
use super::row::Moment;
use crate::clock::Timestamp;
use crate::presence::Interval;
use crate::store::hearing::USEFUL;
use crate::store::json::from_json;
use crate::store::{EngineError, Result};
use crate::telemetry::Stored;

/// Pages, by partition.
type Pages = BTreeSet<(u16, u32)>;

/// What was loaded.
pub(super) struct LoadedFleet {
    pub memory: Arc<InMemoryFleet>,
    pub beats: Arc<LastSeenTables>,
    /// What could not be read.
    pub odd: Vec<Aside>,
}

/// Reads the fleet; what cannot be read is put aside first.
pub(super) fn fill(database: &Connection, path: &Path, partitions: u16) -> DatabaseResult<LoadedFleet> {
    let load = || {
        let memory = Arc::new(InMemoryFleet::new(partitions));
        let beats = Arc::new(LastSeenTables::new(memory.clone()));
        load(database, &memory, &beats).map(|odd| LoadedFleet { memory, beats, odd })
    };
    let aside = match load() {
        Err(fault) if fault.is_of_a_value() => mend(database, partitions)?,
        loaded => return loaded,
    };
    let mut loaded = load().map_err(|fault| match fault {
        DatabaseError::Database(why) if aside.is_empty() => {
            EngineError::Damaged(damaged(path, &why.to_string())).into()
        }
        fault => fault,
    })?;
    loaded.odd.extend(aside);
    Ok(loaded)
}

/// Puts aside whatever does not fit, in one transaction.
fn mend(database: &Connection, partitions: u16) -> DatabaseResult<Vec<Aside>> {
    let heard = match ears(database) {
        Ok(Some(ears)) => ears.heard,
        _ => newest(database)?,
    };
    let number = number(database, "number").unwrap_or(0);
    let known = RepairContext { partitions, heard, number, memory: None };
    let transaction = database.unchecked_transaction()?;
    let aside = quarantine::put_aside(&transaction, &known)?;
    transaction.commit()?;
    Ok(aside)
}

/// Fills the memory, which is empty. Answers what could not be read.
fn load(database: &Connection, memory: &InMemoryFleet, beats: &LastSeenTables) -> DatabaseResult<Vec<Aside>> {
    let mut loading = Loader { memory, after: vec![Vec::new(); memory.partitions().into()], number: 0 };
    loading.units(database)?;
    let rows_of_pages = loading.pages(database)?;
    let (rows, count, pages) = loading.beats(database)?;
    let written = number(database, "number");
    // A number that a change was written with counts as used, whatever came of its flush.
    beats.found(written.unwrap_or(0).max(loading.number), count, (rows, rows_of_pages), pages);
    let mut odd = Vec::new();
    let found = ears(database).map_err(|why| why.to_string());
    let newest = memory.newest();
    let ears = match found {
        Ok(Some(ears)) => ears,
        // A new fleet.
        Ok(None) if newest.is_none() => Ears::default(),
        lost => {
            let why = lost.err().unwrap_or_else(|| "it is missing".to_owned());
            let what = "since the newest heartbeat that is known Rollcall counts as blind";
            let place = "table meta name \"ears\"".to_owned();
            odd.push(Aside { what: Stored::Hearing, place, why: format!("{why}; {what}") });
            let mut ears = Ears::default();
            ears.heard = newest;
            ears
        }
    };
    *memory.ears() = resumed(database, ears)?;
    let kept = words(database, "kept")?;
    if let Some(missing) = kept.and_then(|kept| Kept::read(&kept)?.lacks(written, rows, rows_of_pages)) {
        let heard = memory.ears().heard;
        memory.presume(heard);
        odd.push(Aside {
            what: Stored::ExpiryKey,
            place: "tables beats and pages".to_owned(),
            why: format!("{missing}; every unit counts as heard up to when Rollcall had heard"),
        });
    }
    Ok(odd)
}

/// How many rows `beats` and `pages` should have.
struct Kept {
    number: i64,
    beats: i64,
    pages: i64,
}

impl Kept {
    /// As [`super::last_seen::Flush`] writes it.
    fn read(text: &str) -> Option<Kept> {
        let mut words = text.split(' ').map(str::parse::<i64>);
        let mut next = || words.next()?.ok();
        Some(Kept { number: next()?, beats: next()?, pages: next()? })
    }

    /// What is missing of them. An earlier build counts nothing, and has written another number by then.
    fn lacks(&self, number: Option<i64>, beats: i64, pages: i64) -> Option<String> {
        let is_current = number.is_none_or(|number| number == self.number);
        let missing = (self.beats - beats).max(0) + (self.pages - pages).max(0);
        (is_current && missing > 0).then(|| format!("{missing} rows with heartbeats are missing"))
    }
}

/// The newest heartbeat that a change wrote, if nothing says how far was heard.
fn newest(database: &Connection) -> DatabaseResult<Option<Timestamp>> {
    let select = "SELECT max(alive) FROM units WHERE typeof(alive) = 'integer'";
    let newest: Option<i64> = database.query_row(select, [], |row| row.get(0))?;
    Ok(newest.map(Timestamp::from_millis))
}

/// A number of the fleet; `None`: it is not there, or none.
fn number(database: &Connection, name: &str) -> Option<i64> {
    meta(database, name).ok()?
}

struct Loader<'a> {
    memory: &'a InMemoryFleet,
    /// The number of each unit by partition and place: what has this number or less is older.
    after: Vec<Vec<i64>>,
    /// The largest of them.
    number: i64,
}

impl Loader<'_> {
    fn units(&mut self, database: &Connection) -> DatabaseResult<()> {
        for partition in 0..self.memory.partitions() {
            let from = super::last_seen::unit_id(partition, 0);
            let to = super::last_seen::unit_id(partition, u32::MAX);
            let mut select = database
                .prepare("SELECT id, name, facts, alive, look, after FROM units WHERE id BETWEEN ? AND ?")?;
            // The last place tells how many there are, but for those that were forgotten.
            let last: Option<i64> = database.query_row(
                "SELECT max(id) FROM units WHERE id BETWEEN ? AND ?",
                [from, to],
                |row| row.get(0),
            )?;
            let mut shard = self.memory.shard(partition);
            let numbers = &mut self.after[usize::from(partition)];
            if let Some((_, last)) = last.and_then(partition_and_slot) {
                shard.reserve(last as usize + 1);
                numbers.reserve_exact(last as usize + 1);
            }
            let mut rows = select.query([from, to])?;
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(0)?;
                let name = text(row, 1)?;
                let (alive, look) = (moment(row.get(3)?), moment(row.get(4)?));
                let facts = self.memory.digest(Some(text(row, 2)?));
                let after: i64 = row.get(5)?;
                let loaded = shard.load(id as u32, name, alive, look, facts);
                // As if it were of a wrong type: it is put aside, and what is there is loaded anew.
                let odd = || rusqlite::Error::InvalidColumnType(1, "name".to_owned(), Type::Text);
                loaded.ok_or_else(odd)?;
                numbers.resize(id as u32 as usize, i64::MAX);
                numbers.push(after);
                self.number = self.number.max(after);
            }
        }
        Ok(())
    }

    /// Answers how many there are.
    fn pages(&mut self, database: &Connection) -> DatabaseResult<i64> {
        let mut select = database.prepare("SELECT id, number, times FROM pages")?;
        let mut rows = select.query([])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            count += 1;
            let (id, number): (i64, i64) = (row.get(0)?, row.get(1)?);
            self.number = self.number.max(number);
            // The page of a partition that is not there says nothing of any unit.
            let Some((partition, page)) = partition_and_slot(id) else { continue };
            for (place, time) in read_times(blob(row, 2)?) {
                self.newer(partition, page.saturating_mul(PAGE).saturating_add(place), number, time);
            }
        }
        Ok(count)
    }

    /// Answers in how many rows they are, how many there are, and of which pages.
    fn beats(&mut self, database: &Connection) -> DatabaseResult<(i64, usize, Pages)> {
        let mut select = database.prepare("SELECT number, entries FROM beats ORDER BY id")?;
        let mut rows = select.query([])?;
        let (mut found, mut count, mut pages) = (0, 0, BTreeSet::new());
        while let Some(row) = rows.next()? {
            found += 1;
            let number: i64 = row.get(0)?;
            self.number = self.number.max(number);
            let entries = blob(row, 1)?;
            for (partition, place, time) in read_entries(entries) {
                self.newer(partition, place, number, time);
                count += 1;
                pages.insert((partition, place / PAGE));
            }
        }
        Ok((found, count, pages))
    }

    /// A heartbeat that is newer than the unit's last change, if it is one.
    fn newer(&self, partition: u16, place: u32, number: i64, time: Timestamp) {
        let after = self.after.get(usize::from(partition)).and_then(|after| after.get(place as usize));
        if after.is_some_and(|after| number > *after) {
            let row = &mut self.memory.shard(partition).rows[place as usize];
            if row.alive != Moment::NONE {
                row.alive = Some(time).into();
            }
        }
    }
}

/// Who hears and how far; `None` if nothing says.
fn ears(database: &Connection) -> Result<Option<Ears>> {
    let text = words(database, "ears").map_err(unreadable)?;
    text.map(|text| from_json("who hears", &text)).transpose()
}

fn unreadable(error: rusqlite::Error) -> EngineError {
    EngineError::Damaged(error.to_string())
}

/// The same as an earlier run left it, with the ledger.
fn resumed(database: &Connection, mut ears: Ears) -> DatabaseResult<Ears> {
    ears.is_resumed = true;
    let useful = ears.heard.unwrap_or(Timestamp::ZERO) - USEFUL;
    let mut select = database.prepare("SELECT start, until FROM blind WHERE until > ? ORDER BY start")?;
    let intervals = select.query_map([useful.as_millis()], |row| {
        let (from, to): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok(Interval { from: Timestamp::from_millis(from), to: Timestamp::from_millis(to) })
    })?;
    ears.ledger = ears.ledger_of(intervals.collect::<rusqlite::Result<Vec<_>>>()?);
    Ok(ears)
}

fn meta<T: FromSql>(database: &Connection, name: &str) -> rusqlite::Result<Option<T>> {
    let found = database.query_row("SELECT value FROM meta WHERE name = ?", [name], |row| row.get(0));
    Ok(found.optional()?.flatten())
}

/// The same as text, whatever it is.
fn words(database: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    let mut select = database.prepare("SELECT value FROM meta WHERE name = ?")?;
    select.query_row([name], |row| Ok(super::units::text(row, 0)?.into_owned())).optional()
}

fn moment(ms: Option<i64>) -> Moment {
    ms.map(Timestamp::from_millis).into()
}

fn text<'a>(row: &'a Found<'_>, column: usize) -> DatabaseResult<&'a str> {
    Ok(row.get_ref(column)?.as_str().map_err(rusqlite::Error::from)?)
}

fn blob<'a>(row: &'a Found<'_>, column: usize) -> DatabaseResult<&'a [u8]> {
    Ok(row.get_ref(column)?.as_blob().map_err(rusqlite::Error::from)?)
}

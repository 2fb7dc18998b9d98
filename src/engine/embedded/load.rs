//! From disk into memory, at the start.
//!
//! Units come first, as of their last change; then the heartbeats that are newer than that: pages,
//! and beats in the order in which they were written. What was not written when the process ended
//! is after `heard`, so it is blind time.

use std::collections::BTreeSet;
use std::path::Path;

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Row as Found};

use super::beats::{Beats, PAGE, place, read_entries, read_times};
use super::ears::Ears;
use super::fault::{Fault, Outcome, damaged};
use super::memory::Memory;
use super::row::Moment;
use crate::clock::Timestamp;
use crate::engine::EngineError;
use crate::engine::ear::USEFUL;
use crate::engine::json::from_json;
use crate::presence::Interval;

/// Fills the memory, which is empty.
pub(super) fn load(database: &Connection, path: &Path, memory: &Memory, beats: &Beats) -> Outcome<()> {
    let mut loading =
        Loading { path, memory, after: vec![Vec::new(); memory.partitions().into()], number: 0 };
    loading.units(database)?;
    loading.pages(database)?;
    let (count, pages) = loading.beats(database)?;
    let number: Option<i64> = meta(database, "number")?;
    // A number that a change was written with counts as used, whatever came of its flush.
    beats.found(number.unwrap_or(0).max(loading.number), count, pages);
    *memory.ears() = ears(database)?;
    Ok(())
}

struct Loading<'a> {
    path: &'a Path,
    memory: &'a Memory,
    /// The number of each unit by partition and place: what has this number or less is older.
    after: Vec<Vec<i64>>,
    /// The largest of them.
    number: i64,
}

impl Loading<'_> {
    fn units(&mut self, database: &Connection) -> Outcome<()> {
        for partition in 0..self.memory.partitions() {
            let from = super::beats::id(partition, 0);
            let to = super::beats::id(partition, u32::MAX);
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
            if let Some((_, last)) = last.and_then(place) {
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
                loaded.ok_or_else(|| self::odd(self.path, &format!("unit {id} cannot be")))?;
                numbers.resize(id as u32 as usize, i64::MAX);
                numbers.push(after);
                self.number = self.number.max(after);
            }
        }
        Ok(())
    }

    fn pages(&self, database: &Connection) -> Outcome<()> {
        let mut select = database.prepare("SELECT id, number, times FROM pages")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let (id, number): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (partition, page) =
                place(id).ok_or_else(|| odd(self.path, &format!("page {id} cannot be")))?;
            for (place, time) in read_times(blob(row, 2)?) {
                self.newer(partition, page.saturating_mul(PAGE).saturating_add(place), number, time);
            }
        }
        Ok(())
    }

    /// Answers how many there are, and of which pages.
    fn beats(&self, database: &Connection) -> Outcome<(usize, BTreeSet<(u16, u32)>)> {
        let mut select = database.prepare("SELECT number, entries FROM beats ORDER BY id")?;
        let mut rows = select.query([])?;
        let (mut count, mut pages) = (0, BTreeSet::new());
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            let entries = blob(row, 1)?;
            for (partition, place, time) in read_entries(entries) {
                self.newer(partition, place, number, time);
                count += 1;
                pages.insert((partition, place / PAGE));
            }
        }
        Ok((count, pages))
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

fn ears(database: &Connection) -> Outcome<Ears> {
    let text: Option<String> = meta(database, "ears")?;
    let mut ears: Ears = match text {
        Some(text) => from_json("who hears", &text)?,
        None => Ears::default(),
    };
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

fn moment(ms: Option<i64>) -> Moment {
    ms.map(Timestamp::from_millis).into()
}

fn text<'a>(row: &'a Found<'_>, column: usize) -> Outcome<&'a str> {
    Ok(row.get_ref(column)?.as_str().map_err(rusqlite::Error::from)?)
}

fn blob<'a>(row: &'a Found<'_>, column: usize) -> Outcome<&'a [u8]> {
    Ok(row.get_ref(column)?.as_blob().map_err(rusqlite::Error::from)?)
}

fn odd(path: &Path, what: &str) -> Fault {
    Fault::Engine(EngineError::Damaged(damaged(path, what)))
}

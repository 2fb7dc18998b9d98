//! Last seen times on their way to disk: written behind, each unit at most once in two seconds.
//!
//! # Why `heard` goes with them
//! A canary vouches for every heartbeat before it. If it were on disk before they are, a crash in
//! between would make heard silence of them. So how far was heard is read first, then the
//! heartbeats, and both are written in one transaction: what a crash loses is blind time.
//!
//! # Why beats and pages
//! Twelve bytes at the end of a table for each heartbeat are cheap to write, whichever units beat;
//! a page with the times of 512 units is cheap to keep. So beats are added up, and when there are
//! twice as many as units, the pages that they belong to are written anew and the beats go.
//!
//! # Why numbers
//! A change writes its unit's last seen time itself, in another table. What is newer is told by a
//! number that grows with every flush: beats and pages with a number up to the unit's are older.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::ears::Blind;
use super::error::DatabaseResult;
use super::memory::InMemoryFleet;
use super::row::{Marks, Moment};
use super::shard::Unwritten;
use super::writer::WriteJob;
use crate::clock::Timestamp;
use crate::store::hearing::USEFUL;
use crate::store::json::to_json;
use crate::store::{EngineError, OutboxEvent, Result};
use crate::telemetry::{Loop, Telemetry};

/// How many units' times lie on a page.
pub(super) const PAGE: u32 = 512;

/// The bytes of a beat: partition, place, time.
pub(super) const ENTRY: usize = 12;
/// The bytes of a time.
pub(super) const TIME: usize = 6;
/// A time that says nothing.
const NOTHING: u64 = (1 << 48) - 1;

/// The most beats of one row; a million at once are a few rows.
const MOST_IN_ROW: usize = 50_000;

/// Fewer beats than this are not carried over into pages.
const FEW: usize = 100_000;

/// Where a unit is found on disk.
pub(super) fn unit_id(partition: u16, place: u32) -> i64 {
    i64::from(partition) << 32 | i64::from(place)
}

/// Partition and place of what is found there on disk.
pub(super) fn partition_and_slot(id: i64) -> Option<(u16, u32)> {
    Some((u16::try_from(id >> 32).ok()?, id as u32))
}

/// What is on disk of last seen times.
pub(super) struct LastSeenTables {
    memory: Arc<InMemoryFleet>,
    number: AtomicI64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Beats that are in no page yet.
    beats: usize,
    /// In how many rows they are, and how many rows of pages there are.
    rows: (i64, i64),
    /// The pages that they belong to.
    pages: BTreeSet<(u16, u32)>,
    /// Who hears and how far, as of the last flush.
    ears: String,
}

impl LastSeenTables {
    pub fn new(memory: Arc<InMemoryFleet>) -> LastSeenTables {
        LastSeenTables { memory, number: AtomicI64::new(0), kept: Mutex::default() }
    }

    /// Beats up to this number are older than what is written now.
    pub fn number(&self) -> i64 {
        self.number.load(Ordering::SeqCst)
    }

    /// As it was found on disk.
    pub fn found(&self, number: i64, beats: usize, rows: (i64, i64), pages: BTreeSet<(u16, u32)>) {
        self.number.fetch_max(number, Ordering::SeqCst);
        let mut kept = self.kept();
        (kept.rows, kept.beats) = (rows, beats);
        kept.pages = pages;
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().expect("nothing panics under this lock")
    }
}

/// Writes what is in memory alone.
pub(super) struct Flush {
    beats: Arc<LastSeenTables>,
    telemetry: Arc<Telemetry>,
    ears: String,
    blind: Vec<Blind>,
    taken: Vec<(u16, Vec<Unwritten>)>,
    carried: bool,
    /// How many rows of beats and of pages there are with this.
    rows: (i64, i64),
    /// Who waits for it.
    answer: Option<oneshot::Sender<Result<()>>>,
}

impl Flush {
    pub fn new(beats: Arc<LastSeenTables>, telemetry: Arc<Telemetry>) -> Flush {
        let (ears, blind, taken) = Default::default();
        Flush { beats, telemetry, ears, blind, taken, carried: false, rows: (0, 0), answer: None }
    }

    /// Somebody waits for it.
    pub fn answering(self, answer: oneshot::Sender<Result<()>>) -> Flush {
        Flush { answer: Some(answer), ..self }
    }

    fn take(&mut self) -> Result<()> {
        // Before the heartbeats that it vouches for.
        {
            let ears = self.beats.memory.ears();
            self.ears = to_json(&*ears)?;
            self.blind = ears.unwritten();
        }
        for partition in 0..self.beats.memory.partitions() {
            let taken = self.beats.memory.shard(partition).take_unwritten();
            if !taken.is_empty() {
                self.taken.push((partition, taken));
            }
        }
        Ok(())
    }

    fn write_ears(&self, database: &Connection) -> DatabaseResult<()> {
        database.prepare_cached("INSERT OR REPLACE INTO meta VALUES('ears', ?)")?.execute([&self.ears])?;
        for Blind { interval, is_news } in &self.blind {
            let (from, to) = (interval.from.as_millis(), interval.to.as_millis());
            let useless = (interval.to - USEFUL).as_millis();
            database.prepare_cached("DELETE FROM blind WHERE until <= ?")?.execute([useless])?;
            database.prepare_cached("INSERT INTO blind(start, until) VALUES(?, ?)")?.execute([from, to])?;
            if *is_news {
                let news = to_json(&OutboxEvent::Blind(*interval))?;
                database
                    .prepare_cached("INSERT INTO outbox(partition, news) VALUES(?, ?)")?
                    .execute(params![self.beats.memory.partitions(), news])?;
            }
        }
        Ok(())
    }

    /// Answers how many rows that took.
    fn write_beats(&self, database: &Connection, number: i64) -> rusqlite::Result<i64> {
        let mut insert = database.prepare_cached("INSERT INTO beats(number, entries) VALUES(?, ?)")?;
        let (mut entries, mut rows) = (Vec::new(), 0);
        for (partition, taken) in &self.taken {
            for beat in taken {
                entries.extend_from_slice(&partition.to_le_bytes());
                entries.extend_from_slice(&beat.place.to_le_bytes());
                entries.extend_from_slice(&time(beat.alive));
                if entries.len() >= MOST_IN_ROW * ENTRY {
                    insert.execute(params![number, entries])?;
                    entries.clear();
                    rows += 1;
                }
            }
        }
        if !entries.is_empty() {
            insert.execute(params![number, entries])?;
            rows += 1;
        }
        Ok(rows)
    }

    /// How many rows there are from now on, so that one that is missing is missed.
    fn write_kept(&self, database: &Connection, number: i64) -> rusqlite::Result<()> {
        let kept = format!("{number} {} {}", self.rows.0, self.rows.1);
        database.prepare_cached("INSERT OR REPLACE INTO meta VALUES('kept', ?)")?.execute([kept])?;
        Ok(())
    }

    fn write_looks(&self, database: &Connection) -> rusqlite::Result<()> {
        let mut update = database.prepare_cached("UPDATE units SET look = ? WHERE id = ?")?;
        for (partition, taken) in &self.taken {
            for beat in taken {
                if let Some(look) = beat.look.and_then(Moment::get) {
                    update.execute(params![look.as_millis(), unit_id(*partition, beat.place)])?;
                }
            }
        }
        Ok(())
    }

    /// Carries all beats over into their pages.
    fn carry(
        &self,
        database: &Connection,
        number: i64,
        pages: &BTreeSet<(u16, u32)>,
    ) -> rusqlite::Result<()> {
        let mut insert = database.prepare_cached("INSERT OR REPLACE INTO pages VALUES(?, ?, ?)")?;
        for (partition, page) in pages {
            let mut times = Vec::with_capacity(PAGE as usize * TIME);
            let shard = self.beats.memory.shard(*partition);
            let from = (*page * PAGE) as usize;
            for row in shard.rows.range(from..from + PAGE as usize) {
                // A row of which a change is being written is written whole by that.
                let says = if row.marks.has(Marks::BUSY) { Moment::NONE } else { row.alive };
                times.extend_from_slice(&time(says));
            }
            drop(shard);
            insert.execute(params![unit_id(*partition, *page), number, times])?;
        }
        database.prepare_cached("DELETE FROM beats")?.execute([])?;
        Ok(())
    }
}

impl WriteJob for Flush {
    fn write(&mut self, database: &Connection) -> DatabaseResult<()> {
        self.take()?;
        let (kept_beats, kept_pages, is_known) = {
            let mut kept = self.beats.kept();
            for (partition, taken) in &self.taken {
                kept.beats += taken.len();
                kept.pages.extend(taken.iter().map(|beat| (*partition, beat.place / PAGE)));
            }
            self.rows = kept.rows;
            (kept.beats, kept.pages.len(), kept.ears == self.ears)
        };
        if self.taken.is_empty() && self.blind.is_empty() && is_known {
            return Ok(());
        }
        let number = self.beats.number.fetch_add(1, Ordering::SeqCst) + 1;
        self.write_ears(database)?;
        database.prepare_cached("INSERT OR REPLACE INTO meta VALUES('number', ?)")?.execute([number])?;
        self.write_looks(database)?;
        self.carried = kept_beats > FEW.max(2 * PAGE as usize * kept_pages);
        if self.carried {
            let pages = self.beats.kept().pages.clone();
            self.carry(database, number, &pages)?;
            let mut count = database.prepare_cached("SELECT count(*) FROM pages")?;
            self.rows = (0, count.query_row([], |row| row.get(0))?);
        } else {
            self.rows.0 += self.write_beats(database, number)?;
        }
        self.write_kept(database, number)?;
        Ok(())
    }

    fn undo(&mut self) {
        for (partition, taken) in self.taken.drain(..) {
            self.beats.memory.shard(partition).put_back(&taken);
        }
    }

    fn finish(self: Box<Self>) {
        let mut kept = self.beats.kept();
        kept.ears = self.ears;
        kept.rows = self.rows;
        if self.carried {
            kept.beats = 0;
            kept.pages.clear();
        }
        drop(kept);
        self.beats.memory.ears().written(self.blind.len());
        self.telemetry.engine_answered(Loop::WriteBehind, "");
        if let Some(answer) = self.answer {
            let _ = answer.send(Ok(()));
        }
    }

    /// Told and tried again with the next; nothing is lost while this process lives.
    fn fail(self: Box<Self>, why: EngineError) {
        match self.answer {
            Some(answer) => drop(answer.send(Err(why))),
            None => self.telemetry.engine_failed(Loop::WriteBehind, "", &why),
        }
    }
}

fn time(moment: Moment) -> [u8; TIME] {
    let ms = moment.get().map_or(NOTHING, |at| at.as_millis() as u64);
    let bytes = ms.to_le_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]
}

fn read_time(bytes: &[u8]) -> Option<Timestamp> {
    let ms = bytes.iter().rev().fold(0, |ms, byte| ms << 8 | u64::from(*byte));
    (ms != NOTHING).then(|| Timestamp::from_millis(ms as i64))
}

/// The beats of a row.
pub(super) fn read_entries(bytes: &[u8]) -> impl Iterator<Item = (u16, u32, Timestamp)> + '_ {
    bytes.chunks_exact(ENTRY).filter_map(|entry| {
        let partition = u16::from_le_bytes([entry[0], entry[1]]);
        let place = u32::from_le_bytes([entry[2], entry[3], entry[4], entry[5]]);
        Some((partition, place, read_time(&entry[6..])?))
    })
}

/// The times of a page, by place within it.
pub(super) fn read_times(bytes: &[u8]) -> impl Iterator<Item = (u32, Timestamp)> + '_ {
    (0..).zip(bytes.chunks_exact(TIME)).filter_map(|(place, time)| Some((place, read_time(time)?)))
}

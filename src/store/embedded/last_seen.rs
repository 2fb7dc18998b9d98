//! Last seen times on their way to disk: written with a delay, each unit at most once in two seconds.
//!
//! # Why `heard` is written with them
//! A canary proves that every heartbeat before it was heard. If the canary were on disk first, a crash in between
//! would turn time that was heard into silence. So the flush reads `heard` first, then the heartbeats, and writes
//! both in one transaction: a crash loses only time that becomes blind.
//!
//! # Why two tables, `heartbeats` and `pages`
//! Thirteen bytes at the end of the table `heartbeats` for each heartbeat are cheap to write, whichever units send; a
//! page with the times of 512 units is cheap to store. So heartbeats accumulate in `heartbeats`, and when it has
//! twice as many as there are units, and more than [`MIN_MERGE`], they are merged into their pages and deleted.
//!
//! # Why flush numbers
//! A change writes its unit's last seen time itself, in another table. A number that grows with every flush tells
//! which is newer: heartbeats and pages with a number up to the unit's are older.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::error::DatabaseResult;
use super::in_memory_hearing::PendingInterval;
use super::memory::InMemoryFleet;
use super::partition_table::DirtyRow;
use super::row::MaybeTimestamp;
use super::write_job::WriteJob;
use crate::clock::Timestamp;
use crate::presence::BLIND_RETENTION;
use crate::store::json::to_json;
use crate::store::{DataLoss, EngineError, OutboxEvent, Result};
use crate::telemetry::{Loop, Telemetry};

/// How many units share a page.
pub(super) const PAGE: u32 = 512;

/// The bytes of a heartbeat: partition, slot, key.
pub(super) const ENTRY: usize = 13;
/// The bytes of an expiry key: its time, and the number of the broker that delivered the heartbeat.
pub(super) const KEY: usize = 7;
/// Stands for no time.
const NO_TIME: u64 = (1 << 48) - 1;

/// The most heartbeats in one row; a million at once take a few rows.
const BEATS_PER_ROW: usize = 50_000;

/// Fewer heartbeats than this are not merged into pages.
const MIN_MERGE: usize = 100_000;

/// The key of a unit on disk.
pub(super) fn unit_id(partition: u16, slot: u32) -> i64 {
    i64::from(partition) << 32 | i64::from(slot)
}

/// The reverse of [`unit_id`]; `None` for an impossible partition.
pub(super) fn partition_and_slot(id: i64) -> Option<(u16, u32)> {
    Some((u16::try_from(id >> 32).ok()?, id as u32))
}

/// The tables `heartbeats` and `pages`.
pub(super) struct LastSeenTables {
    memory: Arc<InMemoryFleet>,
    flush_number: AtomicI64,
    state: Mutex<UnmergedHeartbeats>,
}

#[derive(Default)]
struct UnmergedHeartbeats {
    /// The number of heartbeats that are not merged into pages yet.
    unmerged_rows: usize,
    /// The numbers of rows of `heartbeats` and `pages`.
    rows: (i64, i64),
    /// The pages of these heartbeats.
    pages: BTreeSet<(u16, u32)>,
    /// The state of hearing at the last flush (JSON).
    heard: String,
}

impl LastSeenTables {
    pub fn new(memory: Arc<InMemoryFleet>) -> LastSeenTables {
        LastSeenTables { memory, flush_number: AtomicI64::new(0), state: Mutex::default() }
    }

    /// The number of the last flush: heartbeats up to it are older than a change that is written now.
    pub fn flush_number(&self) -> i64 {
        self.flush_number.load(Ordering::SeqCst)
    }

    /// Takes the state that was found on disk.
    pub fn load(&self, number: i64, unmerged_rows: usize, rows: (i64, i64), pages: BTreeSet<(u16, u32)>) {
        self.flush_number.fetch_max(number, Ordering::SeqCst);
        let mut state = self.state.lock();
        (state.rows, state.unmerged_rows) = (rows, unmerged_rows);
        state.pages = pages;
    }
}

/// Writes last seen times and hearing that only memory holds.
pub(super) struct Flush {
    tables: Arc<LastSeenTables>,
    telemetry: Arc<Telemetry>,
    heard: String,
    blind: Vec<PendingInterval>,
    taken: Vec<(u16, Vec<DirtyRow>)>,
    /// The names of their brokers (JSON).
    brokers: String,
    is_merge: bool,
    /// The numbers of rows of `heartbeats` and `pages` after this flush.
    rows: (i64, i64),
    answer: Option<oneshot::Sender<Result<()>>>,
}

impl Flush {
    pub fn new(tables: Arc<LastSeenTables>, telemetry: Arc<Telemetry>) -> Flush {
        let (heard, blind, taken, brokers) = Default::default();
        Flush { tables, telemetry, heard, blind, taken, brokers, is_merge: false, rows: (0, 0), answer: None }
    }

    pub fn answering(self, answer: oneshot::Sender<Result<()>>) -> Flush {
        Flush { answer: Some(answer), ..self }
    }

    fn take(&mut self) -> Result<()> {
        // Hearing before the heartbeats: see the head.
        {
            let heard = self.tables.memory.hearing();
            self.heard = to_json(&heard.stored())?;
            self.blind = heard.unwritten();
        }
        for partition in 0..self.tables.memory.partitions() {
            let taken = self.tables.memory.table(partition).take_dirty();
            if !taken.is_empty() {
                self.taken.push((partition, taken));
            }
        }
        self.brokers = self.tables.memory.brokers().to_text()?;
        Ok(())
    }

    fn write_heard(&self, database: &Connection) -> DatabaseResult<()> {
        database
            .prepare_cached("INSERT OR REPLACE INTO meta VALUES('hearing', ?)")?
            .execute([&self.heard])?;
        for PendingInterval { interval, is_notified, is_loss } in &self.blind {
            let (from, to) = (interval.from.as_millis(), interval.to.as_millis());
            let outdated = (interval.to - BLIND_RETENTION).as_millis();
            database.prepare_cached("DELETE FROM blind WHERE until <= ?")?.execute([outdated])?;
            database.prepare_cached("INSERT INTO blind(start, until) VALUES(?, ?)")?.execute([from, to])?;
            let blindness = is_notified.then_some(OutboxEvent::Blind(*interval));
            let loss = DataLoss { interval: *interval, partitions: None };
            let loss = is_loss.then_some(OutboxEvent::DataLost(loss));
            for event in blindness.into_iter().chain(loss) {
                let event = to_json(&event)?;
                database
                    .prepare_cached("INSERT INTO outbox(partition, event) VALUES(?, ?)")?
                    .execute(params![self.tables.memory.partitions(), event])?;
            }
        }
        Ok(())
    }

    /// Answers the number of written rows.
    fn write_beats(&self, database: &Connection, number: i64) -> rusqlite::Result<i64> {
        let insert = "INSERT INTO heartbeats(number, entries, brokers) VALUES(?, ?, ?)";
        let mut insert = database.prepare_cached(insert)?;
        let (mut entries, mut rows) = (Vec::new(), 0);
        for (partition, taken) in &self.taken {
            for heartbeat in taken {
                entries.extend_from_slice(&partition.to_le_bytes());
                entries.extend_from_slice(&heartbeat.slot.to_le_bytes());
                entries.extend_from_slice(&key(heartbeat.alive, heartbeat.broker));
                if entries.len() >= BEATS_PER_ROW * ENTRY {
                    insert.execute(params![number, entries, self.brokers])?;
                    entries.clear();
                    rows += 1;
                }
            }
        }
        if !entries.is_empty() {
            insert.execute(params![number, entries, self.brokers])?;
            rows += 1;
        }
        Ok(rows)
    }

    /// Writes the numbers of rows, so that the next start notices a missing row.
    fn write_row_counts(&self, database: &Connection, number: i64) -> rusqlite::Result<()> {
        let counts = format!("{number} {} {}", self.rows.0, self.rows.1);
        database.prepare_cached("INSERT OR REPLACE INTO meta VALUES('kept', ?)")?.execute([counts])?;
        Ok(())
    }

    fn write_next_checks(&self, database: &Connection) -> rusqlite::Result<()> {
        let mut update = database.prepare_cached("UPDATE units SET next_check = ? WHERE id = ?")?;
        for (partition, taken) in &self.taken {
            for heartbeat in taken {
                if let Some(next_check) = heartbeat.next_check.and_then(MaybeTimestamp::get) {
                    update.execute(params![next_check.as_millis(), unit_id(*partition, heartbeat.slot)])?;
                }
            }
        }
        Ok(())
    }

    /// Merges all heartbeats into their pages.
    fn merge(&self, database: &Connection, number: i64, pages: &BTreeSet<(u16, u32)>) -> DatabaseResult<()> {
        let mut insert = database.prepare_cached("INSERT OR REPLACE INTO pages VALUES(?, ?, ?, ?)")?;
        for (partition, page) in pages {
            let mut keys = Vec::with_capacity(PAGE as usize * KEY);
            let table = self.tables.memory.table(*partition);
            let from = *page * PAGE;
            let settled = table.settled_keys(from..from + PAGE);
            settled.for_each(|(alive, broker)| keys.extend_from_slice(&key(alive, broker)));
            drop(table);
            // A page may have heartbeats that came since the others were taken.
            let brokers = self.tables.memory.brokers().to_text()?;
            insert.execute(params![unit_id(*partition, *page), number, keys, brokers])?;
        }
        database.prepare_cached("DELETE FROM heartbeats")?.execute([])?;
        Ok(())
    }
}

impl WriteJob for Flush {
    fn write(&mut self, database: &Connection) -> DatabaseResult<()> {
        self.take()?;
        let (unmerged_rows, pages, is_known) = {
            let mut state = self.tables.state.lock();
            for (partition, taken) in &self.taken {
                state.unmerged_rows += taken.len();
                // Units that send one after the other are adjacent.
                let mut pages: Vec<u32> = taken.iter().map(|heartbeat| heartbeat.slot / PAGE).collect();
                pages.dedup();
                state.pages.extend(pages.into_iter().map(|page| (*partition, page)));
            }
            self.rows = state.rows;
            (state.unmerged_rows, state.pages.len(), state.heard == self.heard)
        };
        if self.taken.is_empty() && self.blind.is_empty() && is_known {
            return Ok(());
        }
        let number = self.tables.flush_number.fetch_add(1, Ordering::SeqCst) + 1;
        self.write_heard(database)?;
        database.prepare_cached("INSERT OR REPLACE INTO meta VALUES('number', ?)")?.execute([number])?;
        self.write_next_checks(database)?;
        self.is_merge = unmerged_rows > MIN_MERGE.max(2 * PAGE as usize * pages);
        if self.is_merge {
            let pages = self.tables.state.lock().pages.clone();
            self.merge(database, number, &pages)?;
            let mut count = database.prepare_cached("SELECT count(*) FROM pages")?;
            self.rows = (0, count.query_row([], |row| row.get(0))?);
        } else {
            self.rows.0 += self.write_beats(database, number)?;
        }
        self.write_row_counts(database, number)?;
        Ok(())
    }

    fn undo(&mut self) {
        for (partition, taken) in self.taken.drain(..) {
            self.tables.memory.table(partition).put_back(&taken);
        }
    }

    fn finish(self: Box<Self>) {
        let mut state = self.tables.state.lock();
        state.heard = self.heard;
        state.rows = self.rows;
        if self.is_merge {
            state.unmerged_rows = 0;
            state.pages.clear();
        }
        drop(state);
        self.tables.memory.hearing().written(self.blind.len());
        self.telemetry.engine_answered(Loop::WriteBehind, "");
        if let Some(answer) = self.answer {
            let _ = answer.send(Ok(()));
        }
    }

    /// The next flush tries again: no heartbeat is lost while this process lives.
    fn fail(self: Box<Self>, why: EngineError) {
        match self.answer {
            Some(answer) => drop(answer.send(Err(why))),
            None => self.telemetry.engine_failed(Loop::WriteBehind, "", &why),
        }
    }
}

fn key(alive: MaybeTimestamp, broker: u8) -> [u8; KEY] {
    let ms = alive.get().map_or(NO_TIME, |at| at.as_millis() as u64);
    let bytes = ms.to_le_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], broker]
}

fn read_key(bytes: &[u8]) -> Option<(Timestamp, u8)> {
    let (broker, time) = bytes.split_last()?;
    let ms = time.iter().rev().fold(0, |ms, byte| ms << 8 | u64::from(*byte));
    (ms != NO_TIME).then(|| (Timestamp::from_millis(ms as i64), *broker))
}

/// The heartbeats of a row: partition, slot, and the key with the number of its broker in that row.
pub(super) fn read_entries(bytes: &[u8]) -> impl Iterator<Item = (u16, u32, (Timestamp, u8))> + '_ {
    bytes.chunks_exact(ENTRY).filter_map(|entry| {
        let partition = u16::from_le_bytes([entry[0], entry[1]]);
        let slot = u32::from_le_bytes([entry[2], entry[3], entry[4], entry[5]]);
        Some((partition, slot, read_key(&entry[6..])?))
    })
}

/// The keys of a page, by slot within it.
pub(super) fn read_keys(bytes: &[u8]) -> impl Iterator<Item = (u32, (Timestamp, u8))> + '_ {
    (0..).zip(bytes.chunks_exact(KEY)).filter_map(|(slot, key)| Some((slot, read_key(key)?)))
}

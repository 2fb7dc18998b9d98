//! Bounds with which a list leaves out a block of rows: a few numbers for 512 rows.
//!
//! Most lists show the few units that need an operator, or the first page of many that are well. With these bounds such
//! a list of a million units looks at two thousand blocks, and reads the rows of a few of them.
//!
//! # Why bounds
//! Heartbeats, which are most of all updates, only ever move the last seen time of a row forward. So a lower bound of
//! the times of a block stays true without being touched, and heartbeats cost nothing here. A reader that finds it too
//! low reads the rows and raises it. The other numbers change with facts, which is seldom.

use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};

use super::row::{Row, RowState};
use crate::clock::Timestamp;
use crate::store::table::{BLOCK, Table};

/// The bounds of the blocks of a table, in order.
#[derive(Default)]
pub(super) struct BlockBounds(Vec<Bounds>);

/// The bounds of the rows of a block.
pub(super) struct Bounds {
    /// How many are units, are offline, were never heard, and may be absent.
    units: u16,
    offline: u16,
    unheard: u16,
    absent: u16,
    /// No unit that was heard was last seen before this moment, in ms.
    oldest_seen: AtomicI64,
    /// The earliest and the latest deadline that an open record may have, while units are offline.
    offline_since: (Timestamp, Timestamp),
    /// The row of the first unit by kind and id; [`UNKNOWN`] after that unit was removed.
    first: AtomicU16,
}

const UNKNOWN: u16 = u16::MAX;

const NO_RECORDS: (Timestamp, Timestamp) = (Timestamp::NEVER, Timestamp::ZERO);

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            units: 0,
            offline: 0,
            unheard: 0,
            absent: 0,
            oldest_seen: AtomicI64::new(i64::MAX),
            offline_since: NO_RECORDS,
            first: AtomicU16::new(UNKNOWN),
        }
    }
}

impl BlockBounds {
    pub fn of(&self, block: usize) -> Option<&Bounds> {
        self.0.get(block)
    }

    /// A unit was added in that slot, and is noted next.
    pub fn added(&mut self, rows: &Table<Row>, slot: u32) {
        let (block, at) = place(slot);
        if self.0.len() <= block {
            self.0.resize_with(block + 1, Bounds::default);
        }
        let bounds = &mut self.0[block];
        bounds.units += 1;
        let first = bounds.first.get_mut();
        let is_first = match *first {
            UNKNOWN => bounds.units == 1,
            known => is_before(rows, slot as usize, block * BLOCK + usize::from(known)),
        };
        if is_first {
            *first = at;
        }
    }

    /// The unit in that slot was removed, after it was forgotten.
    pub fn removed(&mut self, slot: u32) {
        let (block, at) = place(slot);
        let bounds = &mut self.0[block];
        bounds.units -= 1;
        if *bounds.first.get_mut() == at {
            *bounds.first.get_mut() = UNKNOWN;
        }
        if bounds.units == 0 {
            *bounds = Bounds::default();
        }
    }

    /// Notes the new state of a row. `offline_since`: the deadline of its open record.
    pub fn note(&mut self, slot: u32, row: &Row, offline_since: Option<Timestamp>, is_absent: bool) {
        let bounds = &mut self.0[place(slot).0];
        bounds.count(row.state, is_absent, |count| *count += 1);
        if row.state.is_heard() {
            let oldest = bounds.oldest_seen.get_mut();
            *oldest = row.last_seen.as_millis().min(*oldest);
        }
        if let Some(since) = offline_since {
            let (oldest, newest) = bounds.offline_since;
            bounds.offline_since = (oldest.min(since), newest.max(since));
        }
    }

    /// Takes a row out of the bounds, before it changes or is removed. The other arguments say how it was noted.
    pub fn forget(&mut self, slot: u32, state: RowState, is_absent: bool) {
        let bounds = &mut self.0[place(slot).0];
        bounds.count(state, is_absent, |count| *count -= 1);
        if bounds.offline == 0 {
            bounds.offline_since = NO_RECORDS;
        }
    }

    /// The approximate memory of the bounds.
    pub fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Bounds>()
    }
}

impl Bounds {
    pub fn has_units(&self) -> bool {
        self.units > 0
    }

    pub fn has_offline(&self) -> bool {
        self.offline > 0
    }

    /// Whether every unit was heard, and none of them is offline or may be absent.
    pub fn has_only_present(&self) -> bool {
        self.offline == 0 && self.unheard == 0 && self.absent == 0
    }

    pub fn has_absent(&self) -> bool {
        self.absent > 0
    }

    /// The earliest and the latest deadline that an open record of the block may have.
    pub fn offline_since(&self) -> (Timestamp, Timestamp) {
        self.offline_since
    }

    /// A moment before which no unit that was heard was last seen. Where the known moment is less than `wanted`, the
    /// rows of the block are read for a later one.
    pub fn oldest_seen(&self, wanted: Timestamp, rows: &[Row]) -> Timestamp {
        let known = Timestamp::from_millis(self.oldest_seen.load(Ordering::Relaxed));
        if known >= wanted {
            return known;
        }
        let mut oldest = Timestamp::NEVER;
        for row in rows {
            if row.last_seen < oldest && row.state.is_heard() {
                oldest = row.last_seen;
            }
        }
        // Updates of the bound wait for the lock of the table.
        self.oldest_seen.store(oldest.as_millis(), Ordering::Relaxed);
        oldest
    }

    /// The slot of the first unit by kind and id. Other rows of the block are read only if that one was removed.
    pub fn first(&self, block: usize, rows: &Table<Row>) -> Option<usize> {
        let begin = block * BLOCK;
        match self.first.load(Ordering::Relaxed) {
            UNKNOWN => {}
            known => return Some(begin + usize::from(known)),
        }
        let slots = (begin..rows.len().min(begin + BLOCK)).filter(|slot| rows[*slot].state != RowState::Free);
        let first = slots.reduce(|first, slot| if is_before(rows, slot, first) { slot } else { first })?;
        self.first.store((first - begin) as u16, Ordering::Relaxed); // Less than BLOCK.
        Some(first)
    }

    fn count(&mut self, state: RowState, is_absent: bool, change: impl Fn(&mut u16)) {
        if state.is_offline() {
            change(&mut self.offline);
        }
        if state == RowState::NeverSeen {
            change(&mut self.unheard);
        }
        if is_absent {
            change(&mut self.absent);
        }
    }
}

/// The block of a slot, and its place there.
fn place(slot: u32) -> (usize, u16) {
    (slot as usize / BLOCK, (slot as usize % BLOCK) as u16) // A block is shorter than u16::MAX.
}

fn is_before(rows: &Table<Row>, slot: usize, other: usize) -> bool {
    let (row, other) = (&rows[slot], &rows[other]);
    (row.kind, rows.id(row)) < (other.kind, rows.id(other))
}

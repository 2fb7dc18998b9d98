//! The rhythms of units: learning, storing and restoring them.
//!
//! A rhythm is a part of its row. Rhythms are stored in blocks of slots, and a hash of its name identifies each unit,
//! because the slots of a copy belong to one process. Two units with one hash would share a rhythm after a restart,
//! which is harmless: no deadline depends on a rhythm.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::FixedState;

use super::UnitTable;
use super::changed_blocks::BLOCK_UNITS;
use super::units::set;
use crate::clock::Timestamp;
use crate::presence::{Kind, Rhythm};

/// Messages of a backlog are no further apart when they arrive. A message is old if it was longer under way.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The hash of the name of a unit, and its rhythm.
pub type NamedRhythm = (u64, Rhythm);

impl UnitTable {
    /// Learns from the silence of the unit in that slot that a heartbeat ended: from the last seen time before it until
    /// it arrived, as a silence that lasts is judged. `unbroken`: since when its kind is heard without a break; `None`:
    /// it is not known to be heard now. Time in which the unit could not be heard, or had not to be, teaches nothing.
    ///
    /// A device with a clock of its own may send what it has gathered at once: the first of these messages ends the
    /// silence, and the others teach nothing.
    pub fn learn(
        &mut self,
        slot: u32,
        from: Timestamp,
        (at, to): (Timestamp, Timestamp),
        unbroken: Option<Timestamp>,
    ) {
        if self.is_of_backlog(slot, at, to) {
            return;
        }
        let is_heard = unbroken.is_some_and(|since| since <= from);
        if !is_heard || self.is_absent(slot as usize) && self.absence(slot as usize).is_within(from, to) {
            return;
        }
        let row = &mut self[slot];
        let learned = row.rhythm.learn(from, to);
        if learned != row.rhythm {
            row.rhythm = learned;
            self.changed.add(slot as usize / BLOCK_UNITS);
        }
    }

    /// Whether a heartbeat belongs to a backlog whose first message came before. Only units that sent an old message
    /// take memory here.
    fn is_of_backlog(&mut self, slot: u32, at: Timestamp, arrived: Timestamp) -> bool {
        let is_old = arrived.since(at) > AT_ONCE;
        if self.backlogs.is_empty() && !is_old {
            return false;
        }
        let goes_on = self.backlogs.get(&slot).is_some_and(|last| arrived.since(*last) <= AT_ONCE);
        set(&mut self.backlogs, slot, (is_old || goes_on).then_some(arrived));
        goes_on
    }

    /// The blocks in which a rhythm changed since this was called last.
    pub fn take_changed_rhythms(&mut self) -> Vec<usize> {
        self.changed.take()
    }

    /// Marks blocks as changed.
    pub fn put_back_rhythms(&mut self, blocks: &[usize]) {
        blocks.iter().for_each(|block| self.changed.add(*block));
    }

    /// The rhythms of a block. `kinds`: [`Kinds::all`](super::Kinds::all).
    pub fn rhythms(&self, block: usize, kinds: &[Kind]) -> Vec<NamedRhythm> {
        let rows = self.indexed(block * BLOCK_UNITS..(block + 1) * BLOCK_UNITS);
        let learned = rows.filter(|(_, row)| row.state.is_shown() && row.rhythm != Rhythm::default());
        let named = learned.map(|(_, row)| {
            (hash(kinds.get(usize::from(row.kind)).map_or("", Kind::as_str), self.id(row)), row.rhythm)
        });
        named.collect()
    }

    /// Gives the units of a block their stored rhythms, unless they have learned more since. They count as changed,
    /// so that this process stores them.
    pub fn put_rhythms(&mut self, block: usize, kinds: &[Kind], stored: &HashMap<u64, Rhythm, FixedState>) {
        for slot in block * BLOCK_UNITS..((block + 1) * BLOCK_UNITS).min(self.len()) {
            let row = &self[slot as u32];
            if !row.state.is_shown() {
                continue;
            }
            let kind = kinds.get(usize::from(row.kind)).map_or("", Kind::as_str);
            let Some(known) = stored.get(&hash(kind, self.id(row))) else { continue };
            if row.rhythm.progress() <= known.progress() {
                self[slot as u32].rhythm = *known;
                self.changed.add(block);
            }
        }
    }
}

/// FNV-1a, which is equal in all versions.
fn hash(kind: &str, id: &str) -> u64 {
    let bytes = kind.bytes().chain([b':']).chain(id.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

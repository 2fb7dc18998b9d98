//! One partition of a copy of the roll: how heartbeats, changes and pages of the engine update its table.
//!
//! # Why marks
//! A page of the engine is read at one moment and compared at a later one; meanwhile units come, go and change. So a
//! [`Mark`](super::Mark) is set before the page is read, and each row holds the last mark before its last update. A row
//! that was updated after the mark of a page stays as it is.

use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::{MutexGuard, RwLockWriteGuard};

use super::RecordedHeartbeat;
use crate::clock::Timestamp;
use crate::store::table::{RowState, RowUpdate, UnitKey, UnitTable};

/// Instances that all hear everything record each message several times, within this time.
const ECHO: Duration = Duration::from_secs(1);

/// The state of a partition beside its rows.
#[derive(Default)]
pub(super) struct CopyState {
    /// Units that were removed a short time ago, by hash, with the mark of their removal.
    removed: HashMap<u64, u32, FixedState>,
    /// Whether another instance owns the partition: it has no rows here.
    pub is_foreign: bool,
    /// How many marks were set.
    marks: u32,
    /// The last mark before the reset: snapshots that were read after that mark or an older one are ignored.
    reset_mark: u32,
    /// The first mark of the last round.
    last_round: u32,
    /// When the last complete comparison with the engine began.
    pub compared_at: Option<Timestamp>,
    /// Whether the stored rhythms were read since the last reset.
    pub has_rhythms: bool,
}

impl CopyState {
    /// Sets a mark: a row that is updated after it is newer than anything read before it.
    pub fn mark(&mut self) -> u32 {
        self.marks += 1;
        self.marks
    }
}

/// A locked partition. The state is locked before the rows.
pub(super) struct PartitionCopy<'a> {
    pub state: MutexGuard<'a, CopyState>,
    pub units: RwLockWriteGuard<'a, UnitTable>,
}

impl PartitionCopy<'_> {
    /// Removes all rows. `is_kept`: whether the partition is kept from now on.
    pub fn reset(&mut self, is_kept: bool) {
        let marks = self.state.marks;
        *self.state = CopyState { is_foreign: !is_kept, marks, reset_mark: marks, ..CopyState::default() };
        self.units.clear();
    }

    /// Notes recorded heartbeats of units with these keys; a heartbeat without a key is dropped.
    pub fn seen(&mut self, keys: &[Option<UnitKey>], heartbeats: &[RecordedHeartbeat<'_>]) {
        if self.state.is_foreign {
            return;
        }
        let slots = self.units.find_all(keys);
        for ((key, heartbeat), slot) in keys.iter().zip(heartbeats).zip(slots) {
            let Some(key) = *key else { continue };
            // An earlier heartbeat of this call may have added the unit.
            match slot.or_else(|| self.units.find(key)) {
                Some(slot) => self.heard(slot, heartbeat),
                // The heartbeat was under way when the unit was removed.
                None if self.state.removed.contains_key(&key.hash) => {}
                None => self.put(key, None, RowUpdate::heard(heartbeat.at)),
            }
        }
    }

    fn heard(&mut self, slot: u32, heartbeat: &RecordedHeartbeat<'_>) {
        let RecordedHeartbeat { at, arrived, before, unbroken, .. } = *heartbeat;
        let known = self.units[slot].last_seen;
        if known < at {
            // `before` includes heartbeats that other instances recorded, and may be an echo of this one.
            let from = if at.since(before) < ECHO { before.min(known) } else { before };
            self.units.learn(slot, from, (at, arrived), unbroken);
            self.units[slot].last_seen = at;
        }
    }

    /// Updates the row after a change; `None` removes the unit. `was_there`: the change was decided from facts of the
    /// unit. `false`: the update seems older than the row, and nothing is changed.
    pub fn changed(&mut self, key: UnitKey, update: Option<RowUpdate>, was_there: bool) -> bool {
        if self.state.is_foreign {
            return true;
        }
        let Some(update) = update else {
            self.remove(key);
            return true;
        };
        if self.state.removed.contains_key(&key.hash) {
            if was_there {
                return false; // The change was decided before the removal.
            }
            self.state.removed.remove(&key.hash);
        }
        match self.units.find(key) {
            Some(slot) if was_there && update.is_older_than(&self.units[slot]) => false,
            slot => {
                self.put(key, slot, update);
                true
            }
        }
    }

    /// Updates the row from what the engine held after `mark`; `None`: there was no such unit.
    pub fn compare(&mut self, key: UnitKey, update: Option<RowUpdate>, mark: u32) {
        if self.state.is_foreign || mark <= self.state.reset_mark {
            return;
        }
        if self.state.removed.get(&key.hash).is_some_and(|removed| *removed >= mark) {
            return;
        }
        let slot = self.units.find(key);
        if let Some(slot) = slot {
            let row = &self.units[slot];
            if row.mark >= mark && row.state != RowState::Assumed {
                return;
            }
        }
        match update {
            None if slot.is_some() => self.remove(key),
            None => {}
            Some(update) => {
                self.state.removed.remove(&key.hash);
                self.put(key, slot, update);
            }
        }
    }

    /// Removes units that were not found since `mark`, which was set at `began`: every page was compared since then.
    pub fn finish(&mut self, mark: u32, began: Timestamp) {
        if self.state.is_foreign || mark <= self.state.reset_mark {
            return;
        }
        for slot in 0..self.units.len() as u32 {
            let row = &self.units[slot];
            if row.state != RowState::Free && row.mark < mark {
                self.units.remove(slot);
            }
        }
        self.units.tidy();
        // A removal is remembered for a whole round, longer than any heartbeat is under way.
        let state = &mut *self.state;
        let last = state.last_round;
        state.removed.retain(|_, removed| *removed >= last);
        if state.removed.is_empty() {
            state.removed.shrink_to_fit();
        }
        state.last_round = mark;
        state.compared_at = Some(began);
    }

    /// Applies the expiry key of a row and answers with the state of the row. `None`: the row was updated since the
    /// mark, and may be another unit's.
    pub fn apply_key(&mut self, slot: u32, mark: u32, alive: Option<Timestamp>) -> Option<RowState> {
        let row = self.units.get_mut(slot as usize)?;
        if row.mark >= mark || row.state == RowState::Free {
            return None;
        }
        if let Some(at) = alive.filter(|_| row.state.is_present()) {
            row.last_seen = row.last_seen.max(at);
        }
        Some(row.state)
    }

    /// Updates the row in that slot, or adds one.
    fn put(&mut self, key: UnitKey, slot: Option<u32>, update: RowUpdate) {
        let last_seen = slot.map_or(update.last_seen, |slot| update.newest(&self.units[slot]));
        let Some(slot) = slot.or_else(|| self.units.add(key)) else { return };
        self.units.set(slot, &RowUpdate { last_seen, ..update });
        self.units[slot].mark = self.state.marks;
    }

    fn remove(&mut self, key: UnitKey) {
        let marks = self.state.marks;
        self.state.removed.insert(key.hash, marks);
        if let Some(slot) = self.units.find(key) {
            self.units.remove(slot);
            self.units.tidy();
        }
    }
}

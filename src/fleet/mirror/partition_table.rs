//! One partition of the mirror: a table of rows, their policies, absences and labels.

use std::ops::Range;

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;

use super::kind_counts::PartitionCounts;
use super::known::KnownSince;
use super::label_index::LabelIndex;
use super::policies::Policies;
use super::row::{Absence, Row, RowState, RowUpdate};
use crate::clock::Timestamp;
use crate::presence::{Policy, Unit};
use crate::store::table::{Key, Table};

/// The units of one partition.
#[derive(Default)]
pub(super) struct PartitionTable {
    pub rows: Table<Row>,
    policies: Policies,
    absences: HashMap<u32, Absence, FixedState>,
    /// The deadlines of open records, by slot.
    offline_since: HashMap<u32, Timestamp, FixedState>,
    /// One index for each label that units are counted by.
    pub labels: Vec<LabelIndex>,
    pub known_since: KnownSince,
    /// The share of this partition in the number of units of each kind.
    unit_counts: PartitionCounts,
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
}

impl PartitionTable {
    pub fn new(unit_counts: PartitionCounts, hasher: RandomState) -> PartitionTable {
        PartitionTable { unit_counts, rows: Table::new(hasher), ..PartitionTable::default() }
    }

    /// Removes everything; from now on the partition is kept or not.
    pub fn reset(&mut self, is_kept: bool) {
        let labels = self.labels.iter().map(LabelIndex::cleared).collect();
        let (unit_counts, rows, marks) =
            (self.unit_counts.zeroed(), Table::new(self.rows.hasher().clone()), self.marks);
        *self = PartitionTable {
            is_foreign: !is_kept,
            marks,
            reset_mark: marks,
            labels,
            unit_counts,
            rows,
            ..PartitionTable::default()
        };
    }

    /// Notes recorded heartbeats of units with these keys; a heartbeat without a key is not kept. `policy`: the policy
    /// of a new unit.
    pub fn seen(
        &mut self,
        keys: &[Option<Key>],
        heartbeats: &[(&Unit, Timestamp)],
        policy: impl Fn(&Unit) -> Option<Policy>,
    ) {
        if self.is_foreign {
            return;
        }
        let slots = self.rows.find_all(keys);
        for ((key, (unit, at)), slot) in keys.iter().zip(heartbeats).zip(slots) {
            let Some(key) = *key else { continue };
            // An earlier heartbeat of this call may have added the unit.
            match slot.or_else(|| self.rows.find(key)) {
                Some(slot) => {
                    let row = &mut self.rows[slot as usize];
                    row.last_seen = row.last_seen.max(*at);
                }
                // The heartbeat was under way when the unit was removed.
                None if self.removed.contains_key(&key.hash) => {}
                None => {
                    if let Some(policy) = policy(unit) {
                        self.put(key, None, RowUpdate::heard(*at, policy));
                    }
                }
            }
        }
    }

    pub fn units(&self) -> u64 {
        self.unit_counts.total()
    }

    pub fn is_offline(&self, key: Key) -> bool {
        self.rows.find(key).is_some_and(|slot| self.rows[slot as usize].state.is_offline())
    }

    pub fn find(&self, key: Key) -> Option<usize> {
        self.rows.find(key).map(|slot| slot as usize)
    }

    /// The rows of units in these slots.
    pub fn units_in(&self, slots: Range<usize>) -> impl Iterator<Item = (usize, &Row)> {
        self.rows.indexed(slots).filter(|(_, row)| row.state != RowState::Free)
    }

    /// Updates the row after a change; `None` removes the unit. `was_there`: the change was decided from facts of the
    /// unit. `false`: the update seems older than the row, and nothing is changed.
    pub fn changed(&mut self, key: Key, update: Option<RowUpdate>, was_there: bool) -> bool {
        if self.is_foreign {
            return true;
        }
        let Some(update) = update else {
            self.remove(key);
            return true;
        };
        if self.removed.contains_key(&key.hash) {
            if was_there {
                return false; // The change was decided before the removal.
            }
            self.removed.remove(&key.hash);
        }
        match self.rows.find(key) {
            Some(slot) if was_there && update.is_older_than(&self.rows[slot as usize]) => false,
            slot => {
                self.put(key, slot, update);
                true
            }
        }
    }

    /// Updates the row from what the engine held after `mark`; `None`: there was no such unit.
    pub fn compare(&mut self, key: Key, update: Option<RowUpdate>, mark: u32) {
        if self.is_foreign || mark <= self.reset_mark {
            return;
        }
        if self.removed.get(&key.hash).is_some_and(|removed| *removed >= mark) {
            return;
        }
        let slot = self.rows.find(key);
        if let Some(slot) = slot {
            let row = &self.rows[slot as usize];
            if row.mark >= mark && row.state != RowState::Assumed {
                return;
            }
        }
        match update {
            None if slot.is_some() => self.remove(key),
            None => {}
            Some(update) => {
                self.removed.remove(&key.hash);
                self.put(key, slot, update);
            }
        }
    }

    /// Sets a mark: a row that is updated after it is newer than anything read before it.
    pub fn mark(&mut self) -> u32 {
        self.marks += 1;
        self.marks
    }

    /// Removes units that were not found since `mark`, which was set at `began`: every page was compared since then.
    pub fn finish(&mut self, mark: u32, began: Timestamp) {
        if self.is_foreign || mark <= self.reset_mark {
            return;
        }
        for slot in 0..self.rows.len() as u32 {
            let row = &self.rows[slot as usize];
            if row.state != RowState::Free && row.mark < mark {
                self.free(slot);
            }
        }
        self.rows.tidy();
        // A removal is remembered for a whole round, longer than any heartbeat is under way.
        let last = self.last_round;
        self.removed.retain(|_, removed| *removed >= last);
        if self.removed.is_empty() {
            self.removed.shrink_to_fit();
        }
        self.last_round = mark;
        self.compared_at = Some(began);
    }

    pub fn id(&self, row: &Row) -> &str {
        self.rows.id(row)
    }

    pub fn policy(&self, row: &Row) -> Policy {
        self.policies.get(row.policy)
    }

    pub fn absence(&self, slot: usize) -> Absence {
        if self.absences.is_empty() {
            return Absence::default();
        }
        self.absences.get(&(slot as u32)).copied().unwrap_or_default()
    }

    /// The deadline of the open record of the unit in that slot.
    pub fn offline_since(&self, slot: usize) -> Option<Timestamp> {
        if self.offline_since.is_empty() {
            return None;
        }
        self.offline_since.get(&(slot as u32)).copied()
    }

    /// The approximate memory of the table.
    pub fn bytes(&self) -> usize {
        let labels_bytes: usize = self.labels.iter().map(LabelIndex::bytes).sum();
        let offline_bytes = self.offline_since.capacity() * size_of::<(u32, Timestamp)>();
        self.rows.bytes() + labels_bytes + offline_bytes + self.known_since.bytes()
    }

    /// Updates the row in that slot, or adds one.
    fn put(&mut self, key: Key, slot: Option<u32>, update: RowUpdate) {
        let policy = self.policies.acquire(update.policy);
        let slot = match slot {
            Some(slot) => {
                let row = &mut self.rows[slot as usize];
                row.last_seen = update.newest(row);
                row.mark = self.marks;
                row.state = update.state;
                let before = std::mem::replace(&mut row.policy, policy);
                self.policies.release(before);
                slot
            }
            None => match self.add(key, &update, policy) {
                Some(slot) => slot,
                None => return self.policies.release(policy),
            },
        };
        if let Some(labels) = update.labels {
            for index in &mut self.labels {
                let value = labels.get(index.label()).map(String::as_str);
                index.set(slot, value);
            }
        }
        if let Some(second) = update.known_since {
            self.known_since.set(slot, second);
        }
        set(&mut self.absences, slot, update.absence);
        set(&mut self.offline_since, slot, update.offline_since);
    }

    fn add(&mut self, key: Key, update: &RowUpdate, policy: u32) -> Option<u32> {
        let mark = self.marks;
        let slot = self.rows.add(key, |name| Row {
            last_seen: update.last_seen,
            name: name.start,
            mark,
            policy,
            kind: name.kind,
            length: name.length,
            state: update.state,
        })?;
        self.unit_counts.add(key.kind);
        Some(slot)
    }

    fn remove(&mut self, key: Key) {
        self.removed.insert(key.hash, self.marks);
        if let Some(slot) = self.rows.find(key) {
            self.free(slot);
            self.rows.tidy();
        }
    }

    fn free(&mut self, slot: u32) {
        let row = self.rows.remove(slot);
        self.unit_counts.remove(row.kind);
        self.policies.release(row.policy);
        self.absences.remove(&slot);
        self.offline_since.remove(&slot);
        self.known_since.set(slot, 0);
        self.labels.iter_mut().for_each(|index| index.set(slot, None));
    }
}

/// Sets the value of a slot; most slots have none.
fn set<T>(values: &mut HashMap<u32, T, FixedState>, slot: u32, value: Option<T>) {
    match value {
        Some(value) => {
            values.insert(slot, value);
        }
        None if !values.is_empty() => {
            values.remove(&slot);
        }
        None => {}
    }
}

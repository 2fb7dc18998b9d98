//! The units of the fleet in memory, for lists and counts: every partition has its own lock, which is held for
//! microseconds and never over an await.
//!
//! A process has one such table. The embedded engine owns it, and changes it in the step that commits a change; the
//! mirror is a view of it. With Redis, the mirror owns the table as a copy.
//!
//! A row holds the inputs of its unit's state, and nothing derived: rules and hearing are unknown here. The rules of
//! [`crate::presence`] give the state at the moment of the read.
//!
//! # Why so dense
//! A map of strings takes 223 MB for a million units. Here a unit is a row of 32 bytes, an entry of a hash table and
//! its id in a long text. Each label that units are counted by adds two bytes, and the second since which a unit is
//! known four.

use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::changed_blocks::ChangedBlocks;
use super::kinds::{Kinds, PartitionCounts};
use super::known::KnownSince;
use super::label_index::LabelIndex;
use super::row::{Absence, RowState, RowUpdate, UnitRow};
use super::settings::{Settings, SettingsIndex};
use super::{RowTable, UnitKey};
use crate::clock::Timestamp;
use crate::presence::Rhythm;

/// The units of every partition.
pub struct UnitTables {
    kinds: Arc<Kinds>,
    labels: Arc<[Arc<str>]>,
    hasher: RandomState,
    tables: Box<[RwLock<UnitTable>]>,
}

impl UnitTables {
    /// Empty tables, which also store the values of `labels`.
    pub fn new(partitions: u16, labels: &[String]) -> UnitTables {
        let (kinds, hasher) = (Arc::<Kinds>::default(), RandomState::default());
        let labels: Arc<[Arc<str>]> = labels.iter().map(|label| label.as_str().into()).collect();
        let table = || RwLock::new(UnitTable::new(kinds.clone(), &labels, hasher.clone()));
        let tables = (0..partitions.max(1)).map(|_| table()).collect();
        UnitTables { kinds, labels, hasher, tables }
    }

    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// The labels whose values the tables hold.
    pub fn labels(&self) -> &Arc<[Arc<str>]> {
        &self.labels
    }

    pub fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    pub fn partitions(&self) -> u16 {
        self.tables.len() as u16
    }

    pub fn read(&self, partition: u16) -> RwLockReadGuard<'_, UnitTable> {
        self.tables[usize::from(partition)].read()
    }

    pub fn write(&self, partition: u16) -> RwLockWriteGuard<'_, UnitTable> {
        self.tables[usize::from(partition)].write()
    }
}

/// The units of one partition.
pub struct UnitTable {
    rows: RowTable<UnitRow>,
    settings: SettingsIndex,
    absences: HashMap<u32, Absence, FixedState>,
    /// The deadlines of open records, by slot.
    offline_since: HashMap<u32, Timestamp, FixedState>,
    /// When the last message of a backlog arrived, by slot, for rhythms.
    pub(super) backlogs: HashMap<u32, Timestamp, FixedState>,
    /// One index for each label that units are counted by.
    labels: Vec<LabelIndex>,
    known_since: KnownSince,
    pub(super) changed: ChangedBlocks,
    /// The share of this partition in the number of units of each kind.
    counts: PartitionCounts,
}

impl UnitTable {
    fn new(kinds: Arc<Kinds>, labels: &[Arc<str>], hasher: RandomState) -> UnitTable {
        UnitTable {
            rows: RowTable::new(hasher),
            settings: SettingsIndex::default(),
            absences: HashMap::default(),
            offline_since: HashMap::default(),
            backlogs: HashMap::default(),
            labels: labels.iter().map(|label| LabelIndex::new(label.clone())).collect(),
            known_since: KnownSince::default(),
            changed: ChangedBlocks::default(),
            counts: PartitionCounts::new(kinds),
        }
    }

    /// Removes every unit.
    pub fn clear(&mut self) {
        let labels = self.labels.iter().map(LabelIndex::cleared).collect();
        let cleared = UnitTable::new(self.counts.kinds().clone(), &[], self.rows.hasher().clone());
        *self = UnitTable { labels, ..cleared };
    }

    pub fn kinds(&self) -> &Kinds {
        self.counts.kinds()
    }

    pub fn hasher(&self) -> &RandomState {
        self.rows.hasher()
    }

    /// The number of slots, vacant ones among them.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The number of units that readers get.
    pub fn units(&self) -> u64 {
        self.counts.total()
    }

    pub fn find(&self, key: UnitKey<'_>) -> Option<u32> {
        self.rows.find(key)
    }

    /// See [`RowTable::find_all`].
    pub fn find_all(&self, keys: &[Option<UnitKey<'_>>]) -> Vec<Option<u32>> {
        self.rows.find_all(keys)
    }

    pub fn get_mut(&mut self, slot: usize) -> Option<&mut UnitRow> {
        self.rows.get_mut(slot)
    }

    /// The rows in these slots, vacant and hidden rows included.
    pub fn indexed(&self, slots: Range<usize>) -> impl Iterator<Item = (usize, &UnitRow)> {
        self.rows.indexed(slots)
    }

    pub fn id(&self, row: &UnitRow) -> &str {
        self.rows.id(row)
    }

    pub fn settings(&self, row: &UnitRow) -> Settings {
        self.settings.get(row.settings)
    }

    /// Whether the unit in this slot has intervals in which it need not be heard.
    pub fn is_absent(&self, slot: usize) -> bool {
        !self.absences.is_empty() && self.absences.contains_key(&(slot as u32))
    }

    /// The intervals in which the unit in this slot need not be heard.
    pub fn absence(&self, slot: usize) -> Absence {
        if self.absences.is_empty() {
            return Absence::default();
        }
        self.absences.get(&(slot as u32)).copied().unwrap_or_default()
    }

    /// The deadline of the open record of the unit in this slot.
    pub fn offline_since(&self, slot: usize) -> Option<Timestamp> {
        if self.offline_since.is_empty() {
            return None;
        }
        self.offline_since.get(&(slot as u32)).copied()
    }

    pub fn labels(&self) -> &[LabelIndex] {
        &self.labels
    }

    /// Since when the unit in this slot is known.
    pub fn known_since(&self, slot: usize) -> Timestamp {
        self.known_since.at(slot)
    }

    /// Adds a hidden unit that is not in the table, and answers its slot: see [`RowTable::add`].
    pub fn add(&mut self, key: UnitKey<'_>) -> Option<u32> {
        self.rows.add(key, UnitRow::hidden)
    }

    /// Adds a hidden unit in a slot after all others: see [`RowTable::add_at`].
    pub fn add_at(&mut self, slot: u32, key: UnitKey<'_>) -> Option<()> {
        self.rows.add_at(slot, key, UnitRow::hidden)
    }

    /// Reserves memory: see [`RowTable::reserve`].
    pub fn reserve(&mut self, units: usize) {
        self.rows.reserve(units);
    }

    /// Sets the state of the unit in this slot, and shows it to readers.
    pub fn set(&mut self, slot: u32, update: &RowUpdate<'_>) {
        let settings = self.settings.acquire(update.settings);
        let row = &mut self.rows[slot as usize];
        if !row.state.is_shown() {
            self.counts.add(row.kind);
        }
        (row.last_seen, row.state) = (update.last_seen, update.state);
        self.settings.release(std::mem::replace(&mut row.settings, settings));
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

    /// Hides the unit in this slot from readers.
    pub fn hide(&mut self, slot: u32) {
        let row = &mut self.rows[slot as usize];
        if !row.state.is_shown() {
            return;
        }
        (row.state, row.rhythm) = (RowState::Hidden, Rhythm::default());
        self.counts.remove(row.kind);
        self.settings.release(std::mem::take(&mut row.settings));
        self.absences.remove(&slot);
        self.offline_since.remove(&slot);
        self.backlogs.remove(&slot);
        self.known_since.set(slot, 0);
        self.labels.iter_mut().for_each(|index| index.set(slot, None));
    }

    /// Removes the unit in this slot. [`UnitTable::tidy`] frees the memory of its id.
    pub fn remove(&mut self, slot: u32) {
        self.hide(slot);
        self.rows.remove(slot);
    }

    pub fn tidy(&mut self) {
        self.rows.tidy();
    }

    /// The approximate memory of the table.
    pub fn bytes(&self) -> usize {
        let labels_bytes: usize = self.labels.iter().map(LabelIndex::bytes).sum();
        let moments = self.offline_since.capacity() + self.backlogs.capacity();
        let moments_bytes = moments * size_of::<(u32, Timestamp)>();
        self.rows.bytes() + labels_bytes + moments_bytes + self.known_since.bytes()
    }
}

impl Index<u32> for UnitTable {
    type Output = UnitRow;

    fn index(&self, slot: u32) -> &UnitRow {
        &self.rows[slot as usize]
    }
}

impl IndexMut<u32> for UnitTable {
    fn index_mut(&mut self, slot: u32) -> &mut UnitRow {
        &mut self.rows[slot as usize]
    }
}

/// Sets the value of a slot; most slots have none.
pub(super) fn set<T>(values: &mut HashMap<u32, T, FixedState>, slot: u32, value: Option<T>) {
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

//! A dense copy of the roll in memory, for lists, counts and per-unit metrics.
//!
//! Lists and counts of a million units come from here and not from the engine. Three sources keep the copy true:
//! heartbeats ([`Mirror::seen`]) and changes ([`Mirror::changed`]) as this instance applies them, and a walk over the
//! engine ([`super::walk`]), which brings the changes of other instances and all that was missed. The mirror keeps
//! the partitions of this instance and ignores updates of others.
//!
//! A row holds what the state of its unit depends on, and nothing derived: the rules of [`crate::presence`] give the
//! state at the moment of the read. No decision is made from the mirror.
//!
//! # Why marks
//! A page of the engine is read at one moment and compared at a later one; meanwhile units come, go and change. So a
//! [`Mark`] is set before the page is read, and each row holds the last mark before its last update. A row that was
//! updated after the mark of a page stays as it is.
//!
//! # Why so dense
//! At a million units a map of strings takes 223 MB. Here a unit is a row of 24 bytes, an entry of a hash table and
//! its id in a long text. There is one table for each partition of the engine, behind a lock of its own, which is
//! held for microseconds and never over an await. Each label that units are counted by adds two bytes,
//! and the second since which a unit is known four.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;

use super::SharedRules;
use crate::clock::Timestamp;
use crate::presence::{Change, KeyChange, Kind, KindRules, Lifecycle, Snapshot, Unit};
use crate::store::{by_partition, partition_of, table::Key};

mod filter;
mod key_batch;
mod kind_counts;
mod known;
mod known_time;
mod label_counter;
mod label_index;
mod list;
mod partition_table;
mod policies;
mod row;
mod summary;
#[cfg(test)]
mod tests;
mod view;

pub use filter::{Archive, FleetShard, UnitFilter};
pub use key_batch::{KeyBatch, KeyMismatch};
use kind_counts::KindCounts;
pub use known_time::KnownTime;
pub use label_counter::{CountsByLabel, MAX_LABELS};
use label_index::LabelIndex;
pub use list::{ListKey, ListOrder, ListQuery, ListedUnit};
use partition_table::PartitionTable;
use row::RowUpdate;
pub use summary::{Summary, WINDOWS};
pub use view::{Chunk, Cursor, NameMatch, UnitView, Values};

#[derive(Clone, Debug)]
pub struct LabelValues {
    pub label: String,
    /// How many units have each value, values with most units first.
    pub values: Vec<(Arc<str>, u64)>,
    /// Some values are left out.
    pub is_cut: bool,
}

/// A moment in the life of a partition: updates after it are newer than all that was read from the engine before it.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    partition: u16,
    number: u32,
}

/// From this number of units on, a read of all of them takes so long that requests share it.
const LARGE: u64 = 100_000;

/// The mirror of the roll.
pub struct Mirror {
    /// The kinds, in order; the index is the number of the kind.
    kinds: Vec<Kind>,
    rules: SharedRules,
    numbers: HashMap<Kind, u16, FixedState>,
    hasher: RandomState,
    unit_counts: KindCounts,
    tables: Box<[RwLock<PartitionTable>]>,
    was_ever_filled: AtomicBool,
}

impl Mirror {
    /// An empty mirror of `partitions` partitions; it keeps all of them until [`Mirror::keep`]. Units of kinds without
    /// rules are not kept.
    pub fn new(rules: impl Into<SharedRules>, partitions: u16) -> Mirror {
        let rules = rules.into();
        let mut kinds: Vec<Kind> = rules.rules().keys().cloned().collect();
        kinds.sort();
        kinds.truncate(usize::from(u16::MAX));
        let numbers = (0u16..).zip(&kinds).map(|(number, kind)| (kind.clone(), number)).collect();
        let unit_counts = KindCounts::new(kinds.len());
        let hasher = RandomState::default();
        let table = || PartitionTable::new(unit_counts.partition(), hasher.clone());
        let tables = (0..partitions.max(1)).map(|_| RwLock::new(table())).collect();
        Mirror { kinds, rules, numbers, hasher, tables, unit_counts, was_ever_filled: AtomicBool::new(false) }
    }

    /// Lets the mirror also hold the values of `labels`. Call it while the mirror is empty.
    pub fn with_labels(mut self, labels: &[String]) -> Mirror {
        for table in &mut self.tables {
            let table = table.get_mut().expect("nothing panics under this lock");
            table.labels = labels.iter().map(|label| LabelIndex::new(label.as_str().into())).collect();
        }
        self
    }

    /// The labels whose values it holds.
    pub fn labels(&self) -> Vec<String> {
        self.read(0).labels.iter().map(|index| index.label().to_owned()).collect()
    }

    /// How many units have a value of a label; `None`: it does not hold the label, or not that value.
    pub fn units_with(&self, label: &str, value: &str) -> Option<u64> {
        let of_partition = |partition: u16| {
            let table = self.read(partition);
            table.labels.iter().find(|index| index.label() == label)?.units_with(value)
        };
        self.kept().map(of_partition).sum()
    }

    /// The values of each label, at most `most`.
    pub fn values(&self, most: usize) -> Vec<LabelValues> {
        let of_label = |(at, label): (usize, String)| {
            let (mut sums, mut is_cut) = (HashMap::<Arc<str>, u64, FixedState>::default(), false);
            for partition in self.kept() {
                let table = self.read(partition);
                for (value, units) in table.labels[at].counts() {
                    *sums.entry(value.clone()).or_default() += u64::from(units);
                }
                is_cut |= table.labels[at].is_full();
            }
            let mut values: Vec<(Arc<str>, u64)> = sums.into_iter().collect();
            values.sort_unstable_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
            is_cut |= values.len() > most;
            values.truncate(most);
            LabelValues { label, values, is_cut }
        };
        self.labels().into_iter().enumerate().map(of_label).collect()
    }

    /// Keeps these partitions from now on and no others. The rows of other partitions are gone when this returns; new
    /// partitions are empty until they are filled.
    pub fn keep(&self, is_kept: impl Fn(u16) -> bool) {
        for partition in self.partitions() {
            if self.keeps(partition) != is_kept(partition) {
                self.write(partition).reset(is_kept(partition));
            }
        }
    }

    pub fn keeps(&self, partition: u16) -> bool {
        !self.read(partition).is_foreign
    }

    /// Notes recorded heartbeats of units that are present. The newest of a unit wins.
    pub fn seen(&self, heartbeats: &[(&Unit, Timestamp)]) {
        let units = heartbeats.iter().map(|(unit, _)| *unit);
        let policy_of = |unit: &Unit| self.rules.of(unit.kind.as_str()).map(|rules| rules.policy);
        for (partition, indexes) in by_partition(units, self.tables.len() as u16) {
            let heartbeats: Vec<(&Unit, Timestamp)> =
                indexes.into_iter().map(|index| heartbeats[index]).collect();
            let keys: Vec<Option<Key>> = heartbeats.iter().map(|(unit, _)| self.key(unit)).collect();
            self.write(partition).seen(&keys, &heartbeats, policy_of);
        }
    }

    /// Notes a change that was applied to the unit of that snapshot. A unit that the change removes is gone when this
    /// returns, and its heartbeats that are still under way do not bring it back.
    ///
    /// `false`: the change seems older than the row, and nothing is changed. Most often it is older; but the row may
    /// hold a heartbeat that the engine has lost, or another instance's copy of one. Compare the unit with the engine.
    #[must_use]
    pub fn changed(&self, before: &Snapshot, change: &Change) -> bool {
        let Some((key, rules)) = self.key_and_rules(&before.unit) else { return true };
        let alive = match change.key {
            KeyChange::Keep => before.alive,
            KeyChange::Set { last_seen, .. } => Some(last_seen),
            KeyChange::Delete => None,
        };
        let update = change.facts.as_ref().and_then(|facts| RowUpdate::of(facts, alive, &rules));
        let was_there =
            before.facts.as_ref().is_some_and(|facts| !matches!(facts.lifecycle, Lifecycle::Retired(_)));
        self.table_of(&before.unit).changed(key, update, was_there)
    }

    pub fn is_offline(&self, unit: &Unit) -> bool {
        let Some(key) = self.key(unit) else { return false };
        self.read(partition_of(unit, self.tables.len() as u16)).is_offline(key)
    }

    /// Sets a mark in a partition, before the engine is read.
    pub fn mark(&self, partition: u16) -> Mark {
        Mark { partition, number: self.write(partition).mark() }
    }

    /// Updates rows of the partition of the mark from snapshots that were read after it. A row that this instance
    /// updated since the mark is newer and stays.
    pub fn compare(&self, mark: Mark, snapshots: &[Snapshot]) {
        let mut table = self.write(mark.partition);
        let rules = self.rules.rules();
        for seen in snapshots {
            let Some((key, rules)) = self.key(&seen.unit).zip(rules.get(&seen.unit.kind)) else { continue };
            let update = seen.facts.as_ref().and_then(|facts| RowUpdate::of(facts, seen.alive, rules));
            table.compare(key, update, mark.number);
        }
    }

    /// The whole partition was compared since `mark`, which was set at `began`: rows of units that were not found are
    /// removed.
    pub fn finish(&self, mark: Mark, began: Timestamp) {
        self.write(mark.partition).finish(mark.number, began);
        if self.is_filled() {
            self.was_ever_filled.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the mirror was filled once, with the partitions that were kept then.
    pub fn was_ever_filled(&self) -> bool {
        self.was_ever_filled.load(Ordering::Relaxed)
    }

    /// The expiry keys of a partition that was completely compared before were compared at `at`.
    pub fn refreshed(&self, partition: u16, at: Timestamp) {
        let mut table = self.write(partition);
        table.compared_at = table.compared_at.map(|_| at);
    }

    /// Whether every partition that is kept was completely compared at least once.
    pub fn is_filled(&self) -> bool {
        self.kept().all(|partition| self.is_partition_filled(partition))
    }

    /// Whether that partition was completely compared at least once.
    pub fn is_partition_filled(&self, partition: u16) -> bool {
        self.read(partition).compared_at.is_some()
    }

    /// The time since the oldest comparison of a kept partition with the engine; `None` before all were compared, and
    /// where none is kept.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        Some(now.since(self.compared_at()?))
    }

    /// The configured kinds, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter()
    }

    pub fn unit_count(&self, kind: &Kind) -> u64 {
        self.numbers.get(kind).map_or(0, |number| self.unit_counts.of(*number))
    }

    /// Whether a read of all units takes longer than a few milliseconds.
    pub fn is_large(&self) -> bool {
        self.unit_counts.total() >= LARGE
    }

    pub fn units_in(&self, partition: u16) -> u64 {
        self.read(partition).units()
    }

    /// The approximate memory of the mirror.
    pub fn bytes(&self) -> usize {
        self.partitions().map(|partition| self.read(partition).bytes()).sum()
    }

    pub fn partition_count(&self) -> u16 {
        self.tables.len() as u16
    }

    fn partitions(&self) -> std::ops::Range<u16> {
        0..self.tables.len() as u16
    }

    fn compared_at(&self) -> Option<Timestamp> {
        // `None` is less than every moment, so one missing moment makes the result `None`.
        self.kept().map(|partition| self.read(partition).compared_at).min().flatten()
    }

    fn kept(&self) -> impl Iterator<Item = u16> {
        self.partitions().filter(|partition| self.keeps(*partition))
    }

    fn key<'a>(&self, unit: &'a Unit) -> Option<Key<'a>> {
        Some(Key::new(&self.hasher, *self.numbers.get(&unit.kind)?, unit.id.as_str()))
    }

    fn key_and_rules<'a>(&self, unit: &'a Unit) -> Option<(Key<'a>, Arc<KindRules>)> {
        Some((self.key(unit)?, self.rules.of(unit.kind.as_str())?))
    }

    fn table_of(&self, unit: &Unit) -> RwLockWriteGuard<'_, PartitionTable> {
        self.write(partition_of(unit, self.tables.len() as u16))
    }

    fn write(&self, partition: u16) -> RwLockWriteGuard<'_, PartitionTable> {
        self.tables[usize::from(partition)].write().expect("nothing panics under this lock")
    }

    fn read(&self, partition: u16) -> RwLockReadGuard<'_, PartitionTable> {
        self.tables[usize::from(partition)].read().expect("nothing panics under this lock")
    }
}

//! The roll in memory, for lists, counts and per-unit metrics.
//!
//! Lists and counts of a million units come from here and not from the engine. There is one table of units in a process
//! ([`crate::store::table`]):
//! - the embedded engine keeps it, and the mirror is a view of it, true at every moment;
//! - beside an engine that is another program it is a copy of the partitions of this instance. Three sources keep the
//!   copy true: heartbeats ([`Mirror::seen`]) and changes ([`Mirror::changed`]) as this instance applies them, and a
//!   walk over the engine ([`super::walk`]), which brings the changes of other instances and all that was missed.
//!   Updates of other partitions are ignored.
//!
//! Decisions never use the mirror.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard, RwLockReadGuard};
use tokio::sync::Notify;

use super::SharedRules;
use crate::clock::Timestamp;
use crate::presence::{Change, KeyChange, Kind, Lifecycle, Snapshot, Unit};
use crate::store::table::{RowUpdate, UnitKey, UnitRow, UnitTable, UnitTables};
use crate::store::{Queries, by_partition, partition_of};

mod below;
mod copy;
mod filter;
mod key_batch;
mod label_counter;
mod list;
mod rhythms;
mod summary;
#[cfg(test)]
mod tests;
mod time_spent;
mod view;

use copy::{CopyState, PartitionCopy};
pub use filter::{Archive, FleetShard, UnitFilter};
pub use key_batch::{KeyBatch, KeyMismatch};
pub use label_counter::{CountsByLabel, MAX_LABELS};
pub use list::{ListKey, ListOrder, ListQuery, ListedUnit};
pub use rhythms::{UnitRhythm, UnusualUnit, WantedUnits};
pub use summary::{UnitSummary, WINDOWS};
pub use time_spent::{TimesOfUnits, UnitPasts};
pub use view::{Chunk, Cursor, NameMatch, UnitView, Values};

#[derive(Clone, Debug)]
pub struct LabelValues {
    pub label: String,
    /// How many units have each value, values with most units first.
    pub values: Vec<(Arc<str>, u64)>,
    /// Whether some values are left out.
    pub is_cut: bool,
}

/// A recorded heartbeat of a unit that is present.
#[derive(Clone, Copy, Debug)]
pub struct RecordedHeartbeat<'a> {
    pub unit: &'a Unit,
    pub at: Timestamp,
    /// See [`Refresh::arrived`](crate::store::Refresh::arrived).
    pub arrived: Timestamp,
    /// The heartbeat before it, whichever instance recorded that.
    pub before: Timestamp,
    /// See [`Refresh::unbroken`](crate::store::Refresh::unbroken).
    pub unbroken: Option<Timestamp>,
}

impl<'a> RecordedHeartbeat<'a> {
    /// A heartbeat that teaches nothing of the rhythm of its unit.
    pub fn of(unit: &'a Unit, at: Timestamp) -> RecordedHeartbeat<'a> {
        RecordedHeartbeat { unit, at, arrived: at, before: at, unbroken: None }
    }
}

/// A moment in the life of a partition: updates after it are newer than all that was read from the engine before it.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    partition: u16,
    number: u32,
}

/// From this number of units on, a read of all of them takes so long that requests share it.
const LARGE: usize = 100_000;

/// The mirror of the roll.
pub struct Mirror {
    /// The configured kinds, in order.
    kinds: Vec<Kind>,
    rules: SharedRules,
    /// The number of each of these kinds in the tables.
    numbers: HashMap<Kind, u16, FixedState>,
    /// By number: the place in `kinds`; [`UNRANKED`] for a kind that is not configured.
    ranks: Vec<u16>,
    tables: Arc<UnitTables>,
    /// Whether the engine holds the tables.
    is_view: bool,
    partitions: Box<[Mutex<CopyState>]>,
    was_ever_filled: AtomicBool,
    /// Whether other instances record heartbeats that this one may not see.
    has_others: AtomicBool,
    /// Notified when a partition was completely compared, or the kept partitions changed.
    compared: Notify,
}

const UNRANKED: u16 = u16::MAX;

impl Mirror {
    /// The mirror of the units of an engine, which also holds the values of `labels`; units of kinds without rules are
    /// not shown. A copy is empty, and keeps all partitions until [`Mirror::keep`].
    pub fn of(engine: &dyn Queries, rules: impl Into<SharedRules>, labels: &[String]) -> Mirror {
        match engine.unit_tables() {
            Some(tables) => Mirror::with_tables(rules.into(), tables, true),
            None => Mirror::new(rules, engine.partitions()).with_labels(labels),
        }
    }

    /// An empty copy of `partitions` partitions.
    pub fn new(rules: impl Into<SharedRules>, partitions: u16) -> Mirror {
        Mirror::with_tables(rules.into(), Arc::new(UnitTables::new(partitions, &[])), false)
    }

    /// Lets an empty copy also hold the values of `labels`.
    pub fn with_labels(self, labels: &[String]) -> Mirror {
        let tables = UnitTables::new(self.partition_count(), labels);
        Mirror::with_tables(self.rules, Arc::new(tables), false)
    }

    fn with_tables(rules: SharedRules, tables: Arc<UnitTables>, is_view: bool) -> Mirror {
        let mut kinds: Vec<Kind> = rules.rules().keys().cloned().collect();
        kinds.sort();
        let number = |kind: &Kind| Some((kind.clone(), tables.kinds().enter(kind)?));
        let numbers: HashMap<Kind, u16, FixedState> = kinds.iter().filter_map(number).collect();
        kinds.retain(|kind| numbers.contains_key(kind));
        let rank = |kind: &Kind| kinds.binary_search(kind).map_or(UNRANKED, |rank| rank as u16);
        let ranks = tables.kinds().all().iter().map(rank).collect();
        let partitions = (0..tables.partitions()).map(|_| Mutex::default()).collect();
        let (was_ever_filled, has_others, compared) = Default::default();
        Mirror {
            kinds,
            rules,
            numbers,
            ranks,
            tables,
            is_view,
            partitions,
            was_ever_filled,
            has_others,
            compared,
        }
    }

    /// Whether the engine holds the tables, so that nothing has to be brought into them.
    pub fn is_view(&self) -> bool {
        self.is_view
    }

    /// The labels whose values it holds.
    pub fn labels(&self) -> Vec<String> {
        self.tables.labels().iter().map(|label| label.to_string()).collect()
    }

    /// How many units have a value of a label; `None`: it does not hold the label, or not that value.
    pub fn units_with(&self, label: &str, value: &str) -> Option<u64> {
        let of_partition = |partition: u16| {
            let table = self.read(partition);
            table.labels().iter().find(|index| index.label() == label)?.units_with(value)
        };
        self.kept().map(of_partition).sum()
    }

    /// The values of each label, at most `most`.
    pub fn values(&self, most: usize) -> Vec<LabelValues> {
        let of_label = |(at, label): (usize, String)| {
            let (mut sums, mut is_cut) = (HashMap::<Arc<str>, u64, FixedState>::default(), false);
            for partition in self.kept() {
                let table = self.read(partition);
                for (value, units) in table.labels()[at].counts() {
                    *sums.entry(value.clone()).or_default() += u64::from(units);
                }
                is_cut |= table.labels()[at].is_full();
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
    /// partitions are empty until they are filled. A view has every partition at any moment.
    pub fn keep(&self, is_kept: impl Fn(u16) -> bool) {
        if self.is_view {
            return;
        }
        for partition in self.partitions() {
            if self.keeps(partition) != is_kept(partition) {
                self.write(partition).reset(is_kept(partition));
            }
        }
        self.compared.notify_waiters();
    }

    pub fn keeps(&self, partition: u16) -> bool {
        !self.state(partition).is_foreign
    }

    /// Notes recorded heartbeats of units that are present. The newest of a unit wins.
    pub fn seen(&self, heartbeats: &[RecordedHeartbeat<'_>]) {
        if self.is_view {
            return;
        }
        let units = heartbeats.iter().map(|heartbeat| heartbeat.unit);
        for (partition, indexes) in by_partition(units, self.partition_count()) {
            let heartbeats: Vec<RecordedHeartbeat<'_>> =
                indexes.into_iter().map(|index| heartbeats[index]).collect();
            let keys: Vec<Option<UnitKey>> =
                heartbeats.iter().map(|heartbeat| self.key(heartbeat.unit)).collect();
            self.write(partition).seen(&keys, &heartbeats);
        }
    }

    /// Notes a change that was applied to the unit of that snapshot. A unit that the change removes is gone when this
    /// returns, and its heartbeats that are still under way do not bring it back.
    ///
    /// `false`: the change seems older than the row, and nothing is changed. Most often it is older; but the row may
    /// hold a heartbeat that the engine has lost, or another instance's copy of one. Compare the unit with the engine.
    #[must_use]
    pub fn changed(&self, before: &Snapshot, change: &Change) -> bool {
        let Some(key) = self.key(&before.unit).filter(|_| !self.is_view) else { return true };
        let alive = match change.key {
            KeyChange::Keep => before.alive,
            KeyChange::Set { last_seen, .. } => Some(last_seen),
            KeyChange::Delete => None,
        };
        let update = change.facts.as_ref().and_then(|facts| RowUpdate::of(facts, alive));
        let was_there =
            before.facts.as_ref().is_some_and(|facts| !matches!(facts.lifecycle, Lifecycle::Retired(_)));
        self.write(self.partition_of(&before.unit)).changed(key, update, was_there)
    }

    /// Whether the unit is in the fleet.
    pub fn has(&self, unit: &Unit) -> bool {
        self.key(unit).is_some_and(|key| self.read(self.partition_of(unit)).find(key).is_some())
    }

    pub fn is_offline(&self, unit: &Unit) -> bool {
        let Some(key) = self.key(unit) else { return false };
        let table = self.read(self.partition_of(unit));
        table.find(key).is_some_and(|slot| table[slot].state.is_offline())
    }

    /// Sets a mark in a partition, before the engine is read.
    pub fn mark(&self, partition: u16) -> Mark {
        Mark { partition, number: self.state(partition).mark() }
    }

    /// Updates rows of the partition of the mark from snapshots that were read after it. A row that this instance
    /// updated since the mark is newer and stays.
    pub fn compare(&self, mark: Mark, snapshots: &[Snapshot]) {
        if self.is_view {
            return;
        }
        let mut table = self.write(mark.partition);
        for seen in snapshots {
            let Some(key) = self.key(&seen.unit) else { continue };
            let update = seen.facts.as_ref().and_then(|facts| RowUpdate::of(facts, seen.alive));
            table.compare(key, update, mark.number);
        }
    }

    /// Ends a comparison of the whole partition since `mark`, which was set at `began`: removes the rows of units
    /// that were not found.
    pub fn finish(&self, mark: Mark, began: Timestamp) {
        if self.is_view {
            self.state(mark.partition).compared_at = Some(began);
        } else {
            self.write(mark.partition).finish(mark.number, began);
        }
        if self.is_filled() {
            self.was_ever_filled.store(true, Ordering::Relaxed);
        }
        self.compared.notify_waiters();
    }

    /// Whether the mirror was filled once, with the partitions that were kept then.
    pub fn was_ever_filled(&self) -> bool {
        self.is_view || self.was_ever_filled.load(Ordering::Relaxed)
    }

    /// Notes that the expiry keys of a partition, which was completely compared before, were compared at `at`.
    pub fn refreshed(&self, partition: u16, at: Timestamp) {
        let mut state = self.state(partition);
        state.compared_at = state.compared_at.map(|_| at);
    }

    /// Notes whether other instances record heartbeats that this one may not see: members of a share, listeners, HTTP.
    pub fn has_others(&self, has_others: bool) {
        self.has_others.store(has_others, Ordering::Relaxed);
    }

    /// Up to when the silences of a partition are known. A copy lacks the heartbeats that other instances recorded
    /// since it was compared last.
    fn known_until(&self, partition: u16) -> Timestamp {
        if self.is_view || !self.has_others.load(Ordering::Relaxed) {
            return Timestamp::NEVER;
        }
        self.state(partition).compared_at.unwrap_or(Timestamp::NEVER)
    }

    /// Whether lists and counts have every unit of the partitions that are kept.
    pub fn is_filled(&self) -> bool {
        self.is_view || self.is_walked()
    }

    /// Waits until lists and counts have every unit of the partitions that are kept. Cancel-safe.
    pub async fn filled(&self) {
        loop {
            let mut compared = pin!(self.compared.notified());
            compared.as_mut().enable();
            if self.is_filled() {
                return;
            }
            compared.await;
        }
    }

    /// Whether every partition that is kept was completely compared at least once.
    pub fn is_walked(&self) -> bool {
        self.kept().all(|partition| self.is_partition_filled(partition))
    }

    /// Whether that partition was completely compared at least once.
    pub fn is_partition_filled(&self, partition: u16) -> bool {
        self.state(partition).compared_at.is_some()
    }

    /// The time since the oldest comparison of a kept partition with the engine; `None` before all were compared, and
    /// where none is kept. A view is never older than the engine.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        if self.is_view { Some(Duration::ZERO) } else { Some(now.since(self.compared_at()?)) }
    }

    /// The configured kinds, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter()
    }

    pub fn unit_count(&self, kind: &Kind) -> u64 {
        self.numbers.get(kind).map_or(0, |number| self.tables.kinds().units(*number))
    }

    /// The number of all units.
    pub fn total(&self) -> usize {
        self.numbers.values().map(|number| self.tables.kinds().units(*number)).sum::<u64>() as usize
    }

    /// Whether a read of all units takes longer than a few milliseconds.
    pub fn is_large(&self) -> bool {
        self.total() >= LARGE
    }

    pub fn units_in(&self, partition: u16) -> u64 {
        self.read(partition).units()
    }

    /// The approximate memory of the mirror.
    pub fn bytes(&self) -> usize {
        self.partitions().map(|partition| self.read(partition).bytes()).sum()
    }

    pub fn partition_count(&self) -> u16 {
        self.tables.partitions()
    }

    fn partitions(&self) -> std::ops::Range<u16> {
        0..self.partition_count()
    }

    fn compared_at(&self) -> Option<Timestamp> {
        // `None` is less than every moment, so one missing moment makes the result `None`.
        self.kept().map(|partition| self.state(partition).compared_at).min().flatten()
    }

    /// The partitions that are kept, in order.
    pub fn kept_partitions(&self) -> Vec<u16> {
        self.kept().collect()
    }

    fn kept(&self) -> impl Iterator<Item = u16> {
        self.partitions().filter(|partition| self.keeps(*partition))
    }

    fn key<'a>(&self, unit: &'a Unit) -> Option<UnitKey<'a>> {
        Some(UnitKey::new(self.tables.hasher(), *self.numbers.get(&unit.kind)?, unit.id.as_str()))
    }

    /// A value for each kind that is configured, by number; `None` for other kinds.
    fn by_number<T>(&self, of: impl Fn(&Kind) -> Option<T>) -> Vec<Option<T>> {
        self.ranks.iter().map(|rank| self.kinds.get(usize::from(*rank)).and_then(&of)).collect()
    }

    /// The place of the kind of a row among the configured kinds; `None`: readers are not shown the row.
    fn rank(&self, row: &UnitRow) -> Option<usize> {
        let rank = *self.ranks.get(usize::from(row.kind)).filter(|_| row.state.is_shown())?;
        (rank != UNRANKED).then_some(usize::from(rank))
    }

    fn partition_of(&self, unit: &Unit) -> u16 {
        partition_of(unit, self.partition_count())
    }

    fn state(&self, partition: u16) -> MutexGuard<'_, CopyState> {
        self.partitions[usize::from(partition)].lock()
    }

    fn write(&self, partition: u16) -> PartitionCopy<'_> {
        PartitionCopy { state: self.state(partition), units: self.tables.write(partition) }
    }

    fn read(&self, partition: u16) -> RwLockReadGuard<'_, UnitTable> {
        self.tables.read(partition)
    }
}

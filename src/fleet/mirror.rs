//! A dense copy of the roll in memory, for lists, counts and per-unit metrics.
//!
//! Whoever wants to count or to list a million units asks here and not the engine. Three things
//! keep the copy true: heartbeats ([`Mirror::seen`]) and changes ([`Mirror::changed`]) as this
//! instance applies them, and a walk over the engine ([`super::walk`]), which brings what others
//! applied and whatever else was missed. It keeps the partitions that are this instance's and passes
//! over what it is told of others.
//!
//! It holds what the state of a unit depends on and nothing that was derived from it: states are
//! judged by the rules of [`crate::presence`] at the moment of asking. No decision is ever made
//! from the mirror.
//!
//! # Why marks
//! A page of the engine is read at one moment and compared at a later one; meanwhile units come,
//! go and change. So a [`Mark`] is set before the page is read, each row knows the mark at which it
//! was last told of, and a row that was told after the page's mark is left as it is.
//!
//! # Why so dense
//! At a million units a map of strings takes 223 MB. Here a unit is a row of 24 bytes, a place in
//! a table and its id in a long text, in as many parts as the engine has partitions, each behind a
//! lock of its own that is held for microseconds and never over an await. Each label that units are
//! counted by adds two bytes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;

use super::Rules;
use crate::clock::Timestamp;
use crate::presence::{Change, KeyChange, Kind, KindRules, Snapshot, Standing, Unit};
use crate::store::{partition_of, table::Key};

mod held;
mod kind_counts;
mod label_index;
mod policies;
mod row;
mod shard;
mod tally;
#[cfg(test)]
mod tests;
mod view;
mod wanted;

pub use held::{Held, Odd};
use kind_counts::KindCounts;
use label_index::LabelIndex;
use row::Known;
use shard::Shard;
pub use tally::{Counted, MOST_LABELS};
pub use view::{Chunk, Cursor, Found, Seen, Summary, Values, WINDOWS};
pub use wanted::{Part, Wanted};

/// A moment in the life of a partition's copy: what is told after it is newer than whatever was
/// read from the engine before it.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    partition: u16,
    number: u32,
}

/// The mirror of the roll.
pub struct Mirror {
    /// The rules of each kind, by name; its place is the kind's number.
    kinds: Vec<KindRules>,
    numbers: HashMap<Kind, u16, FixedState>,
    hasher: RandomState,
    heads: KindCounts,
    shards: Box<[RwLock<Shard>]>,
    was_ever_filled: AtomicBool,
}

impl Mirror {
    /// An empty mirror of so many partitions, which keeps all of them until [`Mirror::keep`] says
    /// otherwise. Units of kinds without rules are not kept.
    pub fn new(rules: Arc<Rules>, partitions: u16) -> Mirror {
        let mut kinds: Vec<KindRules> = rules.values().cloned().collect();
        kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
        kinds.truncate(usize::from(u16::MAX));
        let numbers = (0u16..).zip(&kinds).map(|(number, rules)| (rules.kind.clone(), number)).collect();
        let heads = KindCounts::new(kinds.len());
        let hasher = RandomState::default();
        let shard = || Shard::new(heads.part(), hasher.clone());
        let shards = (0..partitions.max(1)).map(|_| RwLock::new(shard())).collect();
        Mirror { kinds, numbers, hasher, shards, heads, was_ever_filled: AtomicBool::new(false) }
    }

    /// The same, which also knows the values of these labels. To be said while it is empty.
    pub fn with_labels(mut self, labels: &[String]) -> Mirror {
        for shard in &mut self.shards {
            let shard = shard.get_mut().expect("nothing panics under this lock");
            shard.tags = labels.iter().map(|label| LabelIndex::new(label.as_str().into())).collect();
        }
        self
    }

    /// The labels whose values it knows.
    pub fn labels(&self) -> Vec<String> {
        self.read(0).tags.iter().map(|tags| tags.label().to_owned()).collect()
    }

    /// Keeps these partitions from now on and no others. What is not kept any more is gone when this
    /// returns; what is new has yet to be filled.
    pub fn keep(&self, is_kept: impl Fn(u16) -> bool) {
        for partition in self.partitions() {
            if self.keeps(partition) != is_kept(partition) {
                self.write(partition).begin_anew(is_kept(partition));
            }
        }
    }

    /// Whether that partition is kept.
    pub fn keeps(&self, partition: u16) -> bool {
        !self.read(partition).is_foreign
    }

    /// A heartbeat of a unit that is present was recorded. The newest wins.
    pub fn seen(&self, unit: &Unit, at: Timestamp) {
        if let Some((key, rules)) = self.key(unit) {
            self.shard_of(unit).seen(key, at, rules.policy);
        }
    }

    /// A change was applied to the unit of that snapshot. A unit that it removes is gone when this
    /// returns, and heartbeats of it that are still on their way do not bring it back.
    ///
    /// `false`: it seems older than what is known, and nothing is changed. Most often it is; but a heartbeat may
    /// be known here that the engine has lost, or another instance's copy of one. The engine has to be asked.
    #[must_use]
    pub fn changed(&self, before: &Snapshot, change: &Change) -> bool {
        let Some((key, rules)) = self.key(&before.unit) else { return true };
        let alive = match change.key {
            KeyChange::Keep => before.alive,
            KeyChange::Set { last_seen, .. } => Some(last_seen),
            KeyChange::Delete => None,
        };
        let known = change.facts.as_ref().and_then(|facts| Known::of(facts, alive, rules));
        let was_there =
            before.facts.as_ref().is_some_and(|facts| !matches!(facts.standing, Standing::Retired(_)));
        self.shard_of(&before.unit).changed(key, known, was_there)
    }

    /// Whether a unit is known to be offline.
    pub fn is_offline(&self, unit: &Unit) -> bool {
        let Some((key, _)) = self.key(unit) else { return false };
        self.read(partition_of(unit, self.shards.len() as u16)).is_offline(key)
    }

    /// Sets a mark in a partition, to be set before the engine is read.
    pub fn mark(&self, partition: u16) -> Mark {
        Mark { partition, number: self.write(partition).mark() }
    }

    /// Units of the mark's partition as the engine was read after it. What this instance told of a
    /// unit since the mark is newer and stays.
    pub fn compare(&self, mark: Mark, snapshots: &[Snapshot]) {
        let mut shard = self.write(mark.partition);
        for seen in snapshots {
            let Some((key, rules)) = self.key(&seen.unit) else { continue };
            let known = seen.facts.as_ref().and_then(|facts| Known::of(facts, seen.alive, rules));
            shard.compare(key, known, mark.number);
        }
    }

    /// The whole partition was compared since `mark`, which was set at `began`: units that were not
    /// found are gone.
    pub fn finish(&self, mark: Mark, began: Timestamp) {
        self.write(mark.partition).finish(mark.number, began);
        if self.is_filled() {
            self.was_ever_filled.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was filled once, with the partitions that were kept then.
    pub fn was_ever_filled(&self) -> bool {
        self.was_ever_filled.load(Ordering::Relaxed)
    }

    /// The expiry keys of a partition, which was completely compared before, were as it says at that
    /// moment.
    pub fn refreshed(&self, partition: u16, at: Timestamp) {
        let mut shard = self.write(partition);
        shard.compared_at = shard.compared_at.map(|_| at);
    }

    /// Whether every partition that is kept was completely compared at least once.
    pub fn is_filled(&self) -> bool {
        self.kept().all(|partition| self.is_partition_filled(partition))
    }

    /// Whether that partition was completely compared at least once.
    pub fn is_partition_filled(&self, partition: u16) -> bool {
        self.read(partition).compared_at.is_some()
    }

    /// Since the oldest partition that is kept was compared with the engine; `None` before all were,
    /// and where none is kept.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        Some(now.since(self.compared_at()?))
    }

    /// The configured kinds, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter().map(|rules| &rules.kind)
    }

    /// How many units of a kind it holds.
    pub fn heads(&self, kind: &Kind) -> u64 {
        self.numbers.get(kind).map_or(0, |number| self.heads.of(*number))
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        self.partitions().map(|partition| self.read(partition).bytes()).sum()
    }

    /// Over how many partitions the fleet is spread.
    pub fn partition_count(&self) -> u16 {
        self.shards.len() as u16
    }

    fn partitions(&self) -> std::ops::Range<u16> {
        0..self.shards.len() as u16
    }

    fn compared_at(&self) -> Option<Timestamp> {
        // The least of some moments, and nothing if one of them is missing.
        self.kept().map(|partition| self.read(partition).compared_at).min().flatten()
    }

    fn kept(&self) -> impl Iterator<Item = u16> {
        self.partitions().filter(|partition| self.keeps(*partition))
    }

    fn key<'a>(&'a self, unit: &'a Unit) -> Option<(Key<'a>, &'a KindRules)> {
        let kind = *self.numbers.get(&unit.kind)?;
        Some((Key::new(&self.hasher, kind, unit.id.as_str()), &self.kinds[usize::from(kind)]))
    }

    fn shard_of(&self, unit: &Unit) -> RwLockWriteGuard<'_, Shard> {
        self.write(partition_of(unit, self.shards.len() as u16))
    }

    fn write(&self, partition: u16) -> RwLockWriteGuard<'_, Shard> {
        self.shards[usize::from(partition)].write().expect("nothing panics under this lock")
    }

    fn read(&self, partition: u16) -> RwLockReadGuard<'_, Shard> {
        self.shards[usize::from(partition)].read().expect("nothing panics under this lock")
    }
}

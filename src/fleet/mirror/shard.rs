//! One partition of the mirror: a table of rows, and what is kept beside it.

use std::ops::Range;

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;

use super::kind_counts::Part;
use super::label_index::LabelIndex;
use super::policies::Policies;
use super::row::{Absence, Known, Row, RowState};
use crate::clock::Timestamp;
use crate::presence::Policy;
use crate::store::table::{Key, Table};

/// The units of one partition.
#[derive(Default)]
pub(super) struct Shard {
    pub rows: Table<Row>,
    policies: Policies,
    absences: HashMap<u32, Absence, FixedState>,
    /// The values of the labels that are counted.
    pub tags: Vec<LabelIndex>,
    /// The part of this partition in the number of units of each kind.
    heads: Part,
    /// Units that were removed a short while ago, by hash, with the mark of their removal.
    removed: HashMap<u64, u32, FixedState>,
    /// Whether another instance owns it: nothing is kept of it.
    pub is_foreign: bool,
    /// How many marks were set.
    marks: u32,
    /// The last mark before it was begun anew: what was read under an older one is of no use.
    begun: u32,
    /// The first mark of the round before.
    last_round: u32,
    /// When the last complete comparison with the engine began.
    pub compared_at: Option<Timestamp>,
}

impl Shard {
    /// An empty one, whose units are counted by `heads`.
    pub fn new(heads: Part, hasher: RandomState) -> Shard {
        Shard { heads, rows: Table::new(hasher), ..Shard::default() }
    }

    /// Forgets everything; from now on it is kept or not.
    pub fn begin_anew(&mut self, is_kept: bool) {
        let tags = self.tags.iter().map(LabelIndex::anew).collect();
        let (heads, rows, marks) = (self.heads.anew(), Table::new(self.rows.hasher().clone()), self.marks);
        *self = Shard { is_foreign: !is_kept, marks, begun: marks, tags, heads, rows, ..Shard::default() };
    }

    /// A heartbeat of that unit was recorded.
    pub fn seen(&mut self, key: Key, at: Timestamp, policy: Policy) {
        if self.is_foreign {
            return;
        }
        match self.rows.find(key) {
            Some(slot) => {
                let row = &mut self.rows[slot as usize];
                row.last_seen = row.last_seen.max(at);
            }
            // The heartbeat was on its way here when the unit was removed.
            None if self.removed.contains_key(&key.hash) => {}
            None => self.put(key, Known::heard(at, policy)),
        }
    }

    /// Whether that unit is known to be offline.
    pub fn is_offline(&self, key: Key) -> bool {
        self.rows.find(key).is_some_and(|slot| self.rows[slot as usize].state.is_offline())
    }

    pub fn find(&self, key: Key) -> Option<usize> {
        self.rows.find(key).map(|slot| slot as usize)
    }

    /// The units in some slots.
    pub fn units_in(&self, slots: Range<usize>) -> impl Iterator<Item = (usize, &Row)> {
        slots.clone().zip(self.rows.range(slots)).filter(|(_, row)| row.state != RowState::Free)
    }

    /// A change was applied that leaves the unit as it is `known`. `was_there`: it was decided
    /// from facts of the unit. `false`: it seems older than what is known, and nothing is changed.
    pub fn changed(&mut self, key: Key, known: Option<Known>, was_there: bool) -> bool {
        if self.is_foreign {
            return true;
        }
        let Some(known) = known else {
            self.remove(key);
            return true;
        };
        if self.removed.contains_key(&key.hash) {
            if was_there {
                return false; // Decided before the removal.
            }
            self.removed.remove(&key.hash);
        }
        match self.rows.find(key) {
            Some(slot) if was_there && known.is_older_than(&self.rows[slot as usize]) => false,
            _ => {
                self.put(key, known);
                true
            }
        }
    }

    /// The engine was read after `mark`, and the unit was as `known` then.
    pub fn compare(&mut self, key: Key, known: Option<Known>, mark: u32) {
        if self.is_foreign || mark <= self.begun {
            return;
        }
        if self.removed.get(&key.hash).is_some_and(|removed| *removed >= mark) {
            return;
        }
        let slot = self.rows.find(key);
        if let Some(slot) = slot {
            let row = &self.rows[slot as usize];
            if row.told >= mark && row.state != RowState::Assumed {
                return;
            }
        }
        match known {
            None if slot.is_some() => self.remove(key),
            None => {}
            Some(known) => {
                self.removed.remove(&key.hash);
                self.put(key, known);
            }
        }
    }

    /// Sets a mark: a row that is told of after it is newer than anything read before it.
    pub fn mark(&mut self) -> u32 {
        self.marks += 1;
        self.marks
    }

    /// Everything was compared since `mark`, which was set at `began`: units that were not found are gone.
    pub fn finish(&mut self, mark: u32, began: Timestamp) {
        if self.is_foreign || mark <= self.begun {
            return;
        }
        for slot in 0..self.rows.len() as u32 {
            let row = &self.rows[slot as usize];
            if row.state != RowState::Free && row.told < mark {
                self.free(slot);
            }
        }
        self.rows.tidy();
        // A removal is remembered for a whole round, longer than any heartbeat is on its way.
        let last = self.last_round;
        self.removed.retain(|_, removed| *removed >= last);
        if self.removed.is_empty() {
            self.removed.shrink_to_fit();
        }
        self.last_round = mark;
        self.compared_at = Some(began);
    }

    /// The id of the unit of a row.
    pub fn id(&self, row: &Row) -> &str {
        self.rows.id(row)
    }

    /// How long the unit of a row may be silent.
    pub fn policy(&self, row: &Row) -> Policy {
        self.policies.get(row.policy)
    }

    /// When the unit in that slot need not be heard.
    pub fn absence(&self, slot: usize) -> Absence {
        if self.absences.is_empty() {
            return Absence::default();
        }
        self.absences.get(&(slot as u32)).copied().unwrap_or_default()
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        let tags: usize = self.tags.iter().map(LabelIndex::bytes).sum();
        self.rows.bytes() + tags
    }

    fn put(&mut self, key: Key, known: Known) {
        let policy = self.policies.take(known.policy);
        let slot = match self.rows.find(key) {
            Some(slot) => {
                let row = &mut self.rows[slot as usize];
                row.last_seen = known.newest(row);
                row.told = self.marks;
                row.state = known.state;
                let before = std::mem::replace(&mut row.policy, policy);
                self.policies.give_back(before);
                slot
            }
            None => match self.add(key, &known, policy) {
                Some(slot) => slot,
                None => return self.policies.give_back(policy),
            },
        };
        if let Some(labels) = known.labels {
            for tags in &mut self.tags {
                let value = labels.get(tags.label()).map(String::as_str);
                tags.set(slot, value);
            }
        }
        match known.absence {
            Some(absence) => {
                self.absences.insert(slot, absence);
            }
            None if !self.absences.is_empty() => {
                self.absences.remove(&slot);
            }
            None => {}
        }
    }

    fn add(&mut self, key: Key, known: &Known, policy: u32) -> Option<u32> {
        let told = self.marks;
        let slot = self.rows.add(key, |name| Row {
            last_seen: known.last_seen,
            name: name.start,
            told,
            policy,
            kind: name.kind,
            length: name.length,
            state: known.state,
        })?;
        self.heads.add(key.kind);
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
        self.heads.remove(row.kind);
        self.policies.give_back(row.policy);
        self.absences.remove(&slot);
        self.tags.iter_mut().for_each(|tags| tags.set(slot, None));
    }
}

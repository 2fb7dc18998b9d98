//! One partition of the mirror: rows, and the ways to find one.
//!
//! A row keeps its place for as long as its unit is there, so that somebody who reads the rows
//! piece by piece, with the lock open in between, misses none of those that stay.

use std::ops::Range;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};

use super::heads::Part;
use super::policies::Policies;
use super::row::{Absence, Footing, Known, Row};
use super::tags::Tags;
use crate::clock::Timestamp;
use crate::presence::Policy;
use crate::store::blocks::Blocks;
use crate::store::names::Names;

/// A unit within a shard: hash of both, number of the kind, id.
#[derive(Clone, Copy)]
pub(super) struct Name<'a> {
    pub hash: u64,
    pub kind: u16,
    pub id: &'a str,
}

/// Hashes a kind's number and an id.
pub(super) type Hash<'a> = &'a dyn Fn(u16, &str) -> u64;

/// The units of one partition.
#[derive(Default)]
pub(super) struct Shard {
    pub rows: Blocks<Row>,
    places: HashTable<u32>,
    names: Names,
    policies: Policies,
    absences: HashMap<u32, Absence, FixedState>,
    /// The values of those labels that were asked for.
    pub tags: Vec<Tags>,
    free: Vec<u32>,
    /// What it adds to the number of units of each kind.
    heads: Part,
    /// Units that were removed a short while ago, by hash, with the marks when it was.
    removed: HashMap<u64, u32, FixedState>,
    /// Whether it is another instance's: nothing is kept of it.
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
    /// An empty one, whose units count there.
    pub fn counted_by(heads: Part) -> Shard {
        Shard { heads, ..Shard::default() }
    }

    /// Forgets everything; from now on it is kept or not.
    pub fn begin_anew(&mut self, is_kept: bool) {
        let tags = self.tags.iter().map(Tags::anew).collect();
        let (heads, marks) = (self.heads.anew(), self.marks);
        *self = Shard { is_foreign: !is_kept, marks, begun: marks, tags, heads, ..Shard::default() };
    }

    /// A heartbeat of that unit was recorded.
    pub fn seen(&mut self, name: Name, at: Timestamp, policy: Policy, hash: Hash) {
        if self.is_foreign {
            return;
        }
        match self.find(name) {
            Some(place) => {
                let row = &mut self.rows[place as usize];
                row.last_seen = row.last_seen.max(at);
            }
            // The heartbeat was on its way here when the unit was removed.
            None if self.removed.contains_key(&name.hash) => {}
            None => self.put(name, Known::heard(at, policy), hash),
        }
    }

    /// Whether that unit is known to be offline.
    pub fn is_offline(&self, name: Name) -> bool {
        self.find(name).is_some_and(|place| self.rows[place as usize].footing.is_offline())
    }

    /// The place of that unit.
    pub fn place(&self, name: Name) -> Option<usize> {
        self.find(name).map(|place| place as usize)
    }

    /// The units at some places, those that there are.
    pub fn units_at(&self, places: Range<usize>) -> impl Iterator<Item = (usize, &Row)> {
        places.clone().zip(self.rows.range(places)).filter(|(_, row)| row.footing != Footing::Free)
    }

    /// A change was applied that leaves the unit as it is `known`. `was_there`: it was decided
    /// from facts of the unit. `false`: it seems older than what is known, and nothing is changed.
    pub fn changed(&mut self, name: Name, known: Option<Known>, was_there: bool, hash: Hash) -> bool {
        if self.is_foreign {
            return true;
        }
        let Some(known) = known else {
            self.remove(name, hash);
            return true;
        };
        if self.removed.contains_key(&name.hash) {
            if was_there {
                return false; // Decided before the removal.
            }
            self.removed.remove(&name.hash);
        }
        match self.find(name) {
            Some(place) if was_there && known.is_older_than(&self.rows[place as usize]) => false,
            _ => {
                self.put(name, known, hash);
                true
            }
        }
    }

    /// The engine was read after `mark` and says this of the unit.
    pub fn compare(&mut self, name: Name, known: Option<Known>, mark: u32, hash: Hash) {
        if self.is_foreign || mark <= self.begun {
            return;
        }
        if self.removed.get(&name.hash).is_some_and(|removed| *removed >= mark) {
            return;
        }
        let place = self.find(name);
        if let Some(place) = place {
            let row = &self.rows[place as usize];
            if row.told >= mark && row.footing != Footing::Assumed {
                return;
            }
        }
        match known {
            None if place.is_some() => self.remove(name, hash),
            None => {}
            Some(known) => {
                self.removed.remove(&name.hash);
                self.put(name, known, hash);
            }
        }
    }

    /// Sets a mark: what is told from now on is newer than whatever is read before this.
    pub fn mark(&mut self) -> u32 {
        self.marks += 1;
        self.marks
    }

    /// Everything was compared since `mark`, which was set at `began`: what was not found is gone.
    pub fn finish(&mut self, mark: u32, began: Timestamp, hash: Hash) {
        if self.is_foreign || mark <= self.begun {
            return;
        }
        for place in 0..self.rows.len() as u32 {
            let row = &self.rows[place as usize];
            if row.footing != Footing::Free && row.told < mark {
                let hashed = hash(row.kind, self.names.get(row.name, row.length));
                self.free(place, hashed);
            }
        }
        self.tidy(hash);
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
        self.names.get(row.name, row.length)
    }

    /// What the unit of a row is allowed.
    pub fn policy(&self, row: &Row) -> Policy {
        self.policies.get(row.policy)
    }

    /// When the unit at that place need not be heard.
    pub fn absence(&self, place: usize) -> Absence {
        if self.absences.is_empty() {
            return Absence::default();
        }
        self.absences.get(&(place as u32)).copied().unwrap_or_default()
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        let tags: usize = self.tags.iter().map(Tags::bytes).sum();
        self.rows.bytes() + self.names.bytes() + self.places.allocation_size() + tags
    }

    fn find(&self, name: Name) -> Option<u32> {
        let same = |place: &u32| {
            let row = &self.rows[*place as usize];
            row.kind == name.kind && self.names.get(row.name, row.length) == name.id
        };
        self.places.find(name.hash, same).copied()
    }

    fn put(&mut self, name: Name, known: Known, hash: Hash) {
        let policy = self.policies.take(known.policy);
        let place = match self.find(name) {
            Some(place) => {
                let row = &mut self.rows[place as usize];
                row.last_seen = known.newest(row);
                row.told = self.marks;
                row.footing = known.footing;
                let before = std::mem::replace(&mut row.policy, policy);
                self.policies.give_back(before);
                Some(place)
            }
            None => self.add(name, &known, policy, hash),
        };
        if let Some((place, labels)) = place.zip(known.labels) {
            for tags in &mut self.tags {
                let value = labels.get(tags.label()).map(String::as_str);
                tags.set(place, value);
            }
        }
        match (place, known.absence) {
            (Some(place), Some(absence)) => {
                self.absences.insert(place, absence);
            }
            (Some(place), None) if !self.absences.is_empty() => {
                self.absences.remove(&place);
            }
            _ => {}
        }
    }

    fn add(&mut self, name: Name, known: &Known, policy: u32, hash: Hash) -> Option<u32> {
        let Some(start) = self.names.add(name.id) else {
            self.policies.give_back(policy);
            return None;
        };
        let row = Row {
            last_seen: known.last_seen,
            name: start,
            told: self.marks,
            policy,
            kind: name.kind,
            length: name.id.len() as u8, // At most LONGEST_ID.
            footing: known.footing,
        };
        self.heads.add(name.kind);
        let place = match self.free.pop() {
            Some(place) => {
                self.rows[place as usize] = row;
                place
            }
            None => {
                self.rows.push(row);
                (self.rows.len() - 1) as u32
            }
        };
        let (rows, names) = (&self.rows, &self.names);
        self.places.insert_unique(name.hash, place, |place| {
            let row = &rows[*place as usize];
            hash(row.kind, names.get(row.name, row.length))
        });
        Some(place)
    }

    fn remove(&mut self, name: Name, hash: Hash) {
        self.removed.insert(name.hash, self.marks);
        if let Some(place) = self.find(name) {
            self.free(place, name.hash);
            self.tidy(hash);
        }
    }

    fn free(&mut self, place: u32, hash: u64) {
        if let Ok(entry) = self.places.find_entry(hash, |other| *other == place) {
            entry.remove();
        }
        let row = &mut self.rows[place as usize];
        row.footing = Footing::Free;
        self.heads.remove(row.kind);
        self.names.forget(row.length);
        self.policies.give_back(row.policy);
        self.absences.remove(&place);
        self.tags.iter_mut().for_each(|tags| tags.set(place, None));
        self.free.push(place);
    }

    /// Gives back memory of units that are gone, when it is much.
    fn tidy(&mut self, hash: Hash) {
        if !self.names.is_wasteful() {
            return;
        }
        let mut names = Names::default();
        for row in self.rows.iter_mut().filter(|row| row.footing != Footing::Free) {
            if let Some(start) = names.add(self.names.get(row.name, row.length)) {
                row.name = start;
            }
        }
        self.names = names;
        let (rows, names) = (&self.rows, &self.names);
        self.places.shrink_to_fit(|place| {
            let row = &rows[*place as usize];
            hash(row.kind, names.get(row.name, row.length))
        });
    }
}

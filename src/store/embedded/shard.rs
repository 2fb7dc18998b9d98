//! One partition in memory: rows, the ways to find one, and its deadline index.
//!
//! A row keeps its place, a dense number, for as long as its unit is there; the same number finds
//! it on disk. There is no timer for any unit: the index is in `looks.rs`.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::deadline_index::DeadlineIndex;
use super::row::{Marks, Moment, Row};
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};
use crate::store::blocks::Blocks;
use crate::store::names::Names;
use crate::store::{EngineError, Refresh, Result};

/// A change of a row that is being written: what it will be.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub place: u32,
    /// Whether the unit is on disk already.
    pub is_stored: bool,
    pub alive: Moment,
    pub look: Moment,
}

/// What a change wants of its row.
pub(super) struct Wanted {
    /// The expiry key as it was read.
    pub alive: Moment,
    /// The digest of the facts as they were read.
    pub facts: u64,
    /// The expiry key from now on; `None`: as it is.
    pub next_alive: Option<Moment>,
    /// The place in the index from now on; `None`: as it is.
    pub next_check: Option<Moment>,
    /// Whether it is void for a unit that is not in the index.
    pub is_take: bool,
}

/// A heartbeat that is not on disk yet.
pub(super) struct Unwritten {
    pub place: u32,
    pub alive: Moment,
    /// The look, if that was brought forward.
    pub look: Option<Moment>,
}

/// The units of one partition.
#[derive(Default)]
pub(super) struct Shard {
    pub rows: Blocks<Row>,
    /// By number; there are as many as the configuration has, and those that it had once.
    kinds: Vec<Kind>,
    /// Ids.
    names: Names,
    places: HashTable<u32>,
    looks: DeadlineIndex,
    /// Places with heartbeats that are not on disk yet; a place may stand here twice, its mark tells.
    unwritten: Vec<u32>,
    free: Vec<u32>,
    /// Ids come from devices: nobody can know which of them collide.
    hasher: RandomState,
}

impl Shard {
    /// Writes a heartbeat into the expiry key, if there is one; the newest wins.
    pub fn refresh(&mut self, beat: &Refresh<'_>) -> bool {
        let Some(place) = self.find(beat.unit) else { return false };
        let row = &mut self.rows[place as usize];
        let Some(alive) = row.alive.get() else { return false };
        // What is being written would be decided anew by this heartbeat; it waits its turn.
        if row.marks.has(Marks::BUSY) {
            return false;
        }
        let mut is_news = false;
        if alive < beat.at {
            row.alive = Some(beat.at).into();
            is_news = true;
        }
        let later = row.look.get().filter(|look| beat.look < *look);
        if later.is_some() {
            row.look = Some(beat.look).into();
            row.marks.set(Marks::LOOK_MOVED);
            is_news = true;
        }
        if is_news && !row.marks.has(Marks::UNWRITTEN) {
            row.marks.set(Marks::UNWRITTEN);
            self.unwritten.push(place);
        }
        if later.is_some() {
            self.looks.moved(&self.rows, place, later);
        }
        true
    }

    /// The place of a unit and its expiry key.
    pub fn get(&self, unit: &Unit) -> Option<(u32, Moment)> {
        self.find(unit).map(|place| (place, self.rows[place as usize].alive))
    }

    /// Units whose look is after `after` and at or before `until`: up to `limit` of them after the first `skip`,
    /// in the order in which their facts lie on disk.
    pub fn due(
        &self,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>> {
        let due = self.looks.due(&self.rows, after, until).skip(skip).take(limit);
        due.map(|place| self.unit(&self.rows[place as usize])).collect()
    }

    /// The next look of a unit that is in the index is then. Not written down: at the next start it is as it
    /// was.
    pub fn put_off(&mut self, unit: &Unit, until: Timestamp) {
        self.move_look(unit, until, true);
    }

    /// A unit that is not in the index is put in there. Not written down either.
    pub fn put_in(&mut self, unit: &Unit, at: Timestamp) {
        self.move_look(unit, at, false);
    }

    fn move_look(&mut self, unit: &Unit, to: Timestamp, is_in: bool) {
        let Some(place) = self.find(unit) else { return };
        let row = &mut self.rows[place as usize];
        let before = row.look.get();
        if before.is_some() == is_in && !row.marks.has(Marks::BUSY) {
            row.look = Some(to).into();
            self.looks.moved(&self.rows, place, before);
        }
    }

    /// The earliest look after `after`, and the name of the unit that it is for.
    pub fn first_look(&self, after: Option<Timestamp>) -> Option<(Timestamp, String)> {
        let (look, place) = self.looks.first(&self.rows, after)?;
        let (kind, id) = self.name(&self.rows[place as usize]);
        Some((look, format!("{kind}:{id}")))
    }

    /// The expiry key of a unit by its name.
    pub fn alive(&self, name: &str) -> Option<Timestamp> {
        let place = self.find_name(name.split_once(':')?)?;
        self.rows[place as usize].alive.get()
    }

    /// The unit of a row.
    pub fn unit(&self, row: &Row) -> Result<Unit> {
        let id = self.names.get(row.name, row.length);
        let id = id.parse().map_err(|error| EngineError::Damaged(format!("{id:?} is no unit: {error}")))?;
        Ok(Unit::new(self.kinds[usize::from(row.kind)].clone(), id))
    }

    /// Keeps everybody else from a row while a change of it is written, if the unit still is as the
    /// change wants it. A unit that is not there gets a place.
    pub fn hold(&mut self, unit: &Unit, wanted: &Wanted) -> Option<Held> {
        let place = match self.find(unit) {
            Some(place) => place,
            None if wanted.alive == Moment::NONE && wanted.facts == 0 && !wanted.is_take => self.add(unit)?,
            None => return None,
        };
        let row = &mut self.rows[place as usize];
        let differs = row.alive != wanted.alive || row.facts != wanted.facts;
        let is_lost = wanted.is_take && row.look == Moment::NONE;
        if row.marks.has(Marks::BUSY) || differs || is_lost {
            return None;
        }
        row.marks.set(Marks::BUSY);
        Some(Held {
            place,
            is_stored: row.marks.has(Marks::STORED),
            alive: wanted.next_alive.unwrap_or(row.alive),
            look: wanted.next_check.unwrap_or(row.look),
        })
    }

    /// The place and the digest of a unit that is on disk, and of which no change is being written, if its facts
    /// are not those that a change was made from.
    pub fn doubtful(&self, unit: &Unit, wanted: &Wanted) -> Option<(u32, u64)> {
        let place = self.find(unit)?;
        let row = &self.rows[place as usize];
        let is_at_rest = row.marks.has(Marks::STORED) && !row.marks.has(Marks::BUSY);
        (is_at_rest && row.facts != wanted.facts).then_some((place, row.facts))
    }

    /// What is on disk of a unit is not what this process wrote; zero if there is nothing.
    pub fn adopt(&mut self, place: u32, facts: u64) {
        match facts {
            0 => self.remove(place),
            _ => self.rows[place as usize].facts = facts,
        }
    }

    /// The change was written. `facts`: their digest, zero forgets the unit.
    pub fn settle(&mut self, held: Held, facts: u64) {
        if facts == 0 {
            return self.remove(held.place);
        }
        let row = &mut self.rows[held.place as usize];
        let before = row.look.get();
        row.alive = held.alive;
        row.look = held.look;
        row.facts = facts;
        row.marks = Marks::default();
        row.marks.set(Marks::STORED);
        self.looks.moved(&self.rows, held.place, before);
    }

    /// The change was not written: the row is as it was.
    pub fn release(&mut self, held: Held) {
        if held.is_stored {
            self.rows[held.place as usize].marks.clear(Marks::BUSY);
        } else {
            self.remove(held.place);
        }
    }

    /// Takes out what is not on disk yet, for it to be written. Rows of which a change is being
    /// written stay: the change writes them whole.
    pub fn take_unwritten(&mut self) -> Vec<Unwritten> {
        let mut busy = Vec::new();
        let mut taken = Vec::with_capacity(self.unwritten.len());
        for place in std::mem::take(&mut self.unwritten) {
            let row = &mut self.rows[place as usize];
            if !row.marks.has(Marks::UNWRITTEN) {
                continue;
            }
            if row.marks.has(Marks::BUSY) {
                busy.push(place);
                continue;
            }
            let look = row.marks.has(Marks::LOOK_MOVED).then_some(row.look);
            row.marks.clear(Marks::UNWRITTEN);
            row.marks.clear(Marks::LOOK_MOVED);
            taken.push(Unwritten { place, alive: row.alive, look });
        }
        self.unwritten = busy;
        taken
    }

    /// What was taken out could not be written.
    pub fn put_back(&mut self, unwritten: &[Unwritten]) {
        for Unwritten { place, look, .. } in unwritten {
            let row = &mut self.rows[*place as usize];
            if look.is_some() {
                row.marks.set(Marks::LOOK_MOVED);
            }
            if !row.marks.has(Marks::UNWRITTEN) {
                row.marks.set(Marks::UNWRITTEN);
                self.unwritten.push(*place);
            }
        }
    }

    /// A unit as it was found on disk, at its place there.
    pub fn load(&mut self, place: u32, name: &str, alive: Moment, look: Moment, facts: u64) -> Option<()> {
        while self.rows.len() < place as usize {
            self.free.push(self.rows.len() as u32);
            self.rows.push(free());
        }
        let (kind, id) = name.split_once(':')?;
        let mut row = Row { alive, look, facts, ..self.row_of(kind, id)? };
        row.marks.set(Marks::STORED);
        self.rows.push(row);
        self.looks.moved(&self.rows, place, None);
        self.link(place);
        Some(())
    }

    /// So many rows a load will bring: tables that grew step by step would leave remains.
    pub fn reserve(&mut self, rows: usize) {
        self.looks.reserve(rows);
        let (kinds, names, of, hasher) = (&self.kinds, &self.names, &self.rows, &self.hasher);
        self.places.reserve(rows, |place| hasher.hash_one(name_of(kinds, names, &of[*place as usize])));
    }

    fn find(&self, unit: &Unit) -> Option<u32> {
        self.find_name((unit.kind.as_str(), unit.id.as_str()))
    }

    fn find_name(&self, name: (&str, &str)) -> Option<u32> {
        let is_it = |place: &u32| self.name(&self.rows[*place as usize]) == name;
        self.places.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// Kind and id.
    fn name(&self, row: &Row) -> (&str, &str) {
        name_of(&self.kinds, &self.names, row)
    }

    /// A row with nothing but a name; `None` if it is no name or there is no room for one more.
    fn row_of(&mut self, kind: &str, id: &str) -> Option<Row> {
        let number = match self.kinds.iter().position(|known| known.as_str() == kind) {
            Some(number) => number,
            None => {
                self.kinds.push(kind.parse().ok()?);
                self.kinds.len() - 1
            }
        };
        let (kind, length) = (u16::try_from(number).ok()?, u8::try_from(id.len()).ok()?);
        Some(Row { name: self.names.add(id)?, kind, length, marks: Marks::default(), ..free() })
    }

    /// `None` if there is no room for one more.
    fn add(&mut self, unit: &Unit) -> Option<u32> {
        let row = self.row_of(unit.kind.as_str(), unit.id.as_str())?;
        let place = match self.free.pop() {
            Some(place) => {
                self.rows[place as usize] = row;
                place
            }
            None => {
                self.rows.push(row);
                u32::try_from(self.rows.len() - 1).ok()?
            }
        };
        self.link(place);
        Some(place)
    }

    fn link(&mut self, place: u32) {
        let (kinds, names, rows, hasher) = (&self.kinds, &self.names, &self.rows, &self.hasher);
        let hash = |place: &u32| hasher.hash_one(name_of(kinds, names, &rows[*place as usize]));
        self.places.insert_unique(hash(&place), place, hash);
    }

    fn remove(&mut self, place: u32) {
        let hash = self.hasher.hash_one(self.name(&self.rows[place as usize]));
        if let Ok(entry) = self.places.find_entry(hash, |other| *other == place) {
            entry.remove();
        }
        let row = &mut self.rows[place as usize];
        let before = row.look.get();
        self.names.forget(row.length);
        *row = free();
        self.looks.moved(&self.rows, place, before);
        self.free.push(place);
        self.tidy();
    }

    fn tidy(&mut self) {
        if !self.names.is_wasteful() {
            return;
        }
        let mut names = Names::default();
        for row in self.rows.iter_mut().filter(|row| !row.marks.has(Marks::FREE)) {
            row.name = names.add(self.names.get(row.name, row.length)).expect("it is shorter than it was");
        }
        self.names = names;
    }
}

/// A place without a unit.
fn free() -> Row {
    let (alive, look) = (Moment::NONE, Moment::NONE);
    Row { alive, look, facts: 0, name: 0, kind: 0, length: 0, marks: Marks::FREE }
}

fn name_of<'a>(kinds: &'a [Kind], names: &'a Names, row: &Row) -> (&'a str, &'a str) {
    (kinds[usize::from(row.kind)].as_str(), names.get(row.name, row.length))
}

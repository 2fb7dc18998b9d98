//! One partition in memory: a table of rows and its deadline index.
//!
//! The slot of a row finds its unit on disk, too. No unit has a timer: see `deadline_index.rs`.

use super::deadline_index::DeadlineIndex;
use super::row::{Marks, Moment, Row};
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};
use crate::store::table::{Key, Table};
use crate::store::{EngineError, Refresh, Result};

/// A change of a row that is being written: what it will be.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub slot: u32,
    /// Whether the unit is on disk already.
    pub is_stored: bool,
    pub alive: Moment,
    pub next_check: Moment,
}

/// What a change wants of its row.
pub(super) struct Wanted {
    /// The expiry key as it was read.
    pub alive: Moment,
    /// The digest of the facts as they were read.
    pub facts: u64,
    /// The expiry key from now on; `None`: as it is.
    pub next_alive: Option<Moment>,
    /// The slot in the index from now on; `None`: as it is.
    pub next_check: Option<Moment>,
    /// Whether it is void for a unit that is not in the index.
    pub is_take: bool,
}

/// A heartbeat that is not on disk yet.
pub(super) struct Unwritten {
    pub slot: u32,
    pub alive: Moment,
    /// The next check, if a heartbeat brought it forward.
    pub next_check: Option<Moment>,
}

/// The units of one partition.
#[derive(Default)]
pub(super) struct Shard {
    pub rows: Table<Row>,
    /// By number: the kinds that are configured, and those that were once.
    kinds: Vec<Kind>,
    deadlines: DeadlineIndex,
    /// Slots with heartbeats that are not on disk yet. A slot may stand here twice; the flag of its row counts.
    unwritten: Vec<u32>,
}

impl Shard {
    /// Writes a heartbeat into the expiry key, if there is one; the newest wins.
    pub fn refresh(&mut self, beat: &Refresh<'_>) -> bool {
        let Some(slot) = self.find(beat.unit) else { return false };
        let row = &mut self.rows[slot as usize];
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
        let later = row.next_check.get().filter(|next_check| beat.check_by < *next_check);
        if later.is_some() {
            row.next_check = Some(beat.check_by).into();
            row.marks.set(Marks::CHECK_MOVED);
            is_news = true;
        }
        if is_news && !row.marks.has(Marks::UNWRITTEN) {
            row.marks.set(Marks::UNWRITTEN);
            self.unwritten.push(slot);
        }
        if later.is_some() {
            self.deadlines.moved(self.rows.rows(), slot, later);
        }
        true
    }

    /// The slot of a unit and its expiry key.
    pub fn get(&self, unit: &Unit) -> Option<(u32, Moment)> {
        self.find(unit).map(|slot| (slot, self.rows[slot as usize].alive))
    }

    /// Units whose next check is after `after` and at or before `until`: up to `limit` of them after the first `skip`,
    /// in the order in which their facts lie on disk.
    pub fn due(
        &self,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>> {
        let due = self.deadlines.due(self.rows.rows(), after, until).skip(skip).take(limit);
        due.map(|slot| self.unit(&self.rows[slot as usize])).collect()
    }

    /// Moves the next check of a unit that is in the index to `until`. Not stored: after a restart it is as before.
    pub fn put_off(&mut self, unit: &Unit, until: Timestamp) {
        self.move_check(unit, until, true);
    }

    /// Puts a unit that is not in the index there. Not stored either.
    pub fn put_in(&mut self, unit: &Unit, at: Timestamp) {
        self.move_check(unit, at, false);
    }

    fn move_check(&mut self, unit: &Unit, to: Timestamp, is_in: bool) {
        let Some(slot) = self.find(unit) else { return };
        let row = &mut self.rows[slot as usize];
        let before = row.next_check.get();
        if before.is_some() == is_in && !row.marks.has(Marks::BUSY) {
            row.next_check = Some(to).into();
            self.deadlines.moved(self.rows.rows(), slot, before);
        }
    }

    /// The earliest next check after `after`, and the name of its unit.
    pub fn first_check(&self, after: Option<Timestamp>) -> Option<(Timestamp, String)> {
        let (next_check, slot) = self.deadlines.first(self.rows.rows(), after)?;
        let row = &self.rows[slot as usize];
        let (kind, id) = (&self.kinds[usize::from(row.kind)], self.rows.id(row));
        Some((next_check, format!("{kind}:{id}")))
    }

    /// The expiry key of a unit by its name.
    pub fn alive(&self, name: &str) -> Option<Timestamp> {
        let slot = self.find_name(name.split_once(':')?)?;
        self.rows[slot as usize].alive.get()
    }

    /// The unit of a row.
    pub fn unit(&self, row: &Row) -> Result<Unit> {
        let id = self.rows.id(row);
        let id = id.parse().map_err(|error| EngineError::Damaged(format!("{id:?} is no unit: {error}")))?;
        Ok(Unit::new(self.kinds[usize::from(row.kind)].clone(), id))
    }

    /// Keeps other changes from a row while a change of it is written, if the unit still is as the change wants
    /// it. A unit that is not there gets a slot.
    pub fn hold(&mut self, unit: &Unit, wanted: &Wanted) -> Option<Held> {
        let slot = match self.find(unit) {
            Some(slot) => slot,
            None if wanted.alive == Moment::NONE && wanted.facts == 0 && !wanted.is_take => self.add(unit)?,
            None => return None,
        };
        let row = &mut self.rows[slot as usize];
        let differs = row.alive != wanted.alive || row.facts != wanted.facts;
        let is_lost = wanted.is_take && row.next_check == Moment::NONE;
        if row.marks.has(Marks::BUSY) || differs || is_lost {
            return None;
        }
        row.marks.set(Marks::BUSY);
        Some(Held {
            slot,
            is_stored: row.marks.has(Marks::STORED),
            alive: wanted.next_alive.unwrap_or(row.alive),
            next_check: wanted.next_check.unwrap_or(row.next_check),
        })
    }

    /// The slot and the digest of a unit that is on disk, and of which no change is being written, if its facts
    /// are not those that a change was made from.
    pub fn doubtful(&self, unit: &Unit, wanted: &Wanted) -> Option<(u32, u64)> {
        let slot = self.find(unit)?;
        let row = &self.rows[slot as usize];
        let is_at_rest = row.marks.has(Marks::STORED) && !row.marks.has(Marks::BUSY);
        (is_at_rest && row.facts != wanted.facts).then_some((slot, row.facts))
    }

    /// What is on disk of a unit is not what this process wrote; zero if there is nothing.
    pub fn adopt(&mut self, slot: u32, facts: u64) {
        match facts {
            0 => self.remove(slot),
            _ => self.rows[slot as usize].facts = facts,
        }
    }

    /// The change was written. `facts`: their digest, zero forgets the unit.
    pub fn settle(&mut self, held: Held, facts: u64) {
        if facts == 0 {
            return self.remove(held.slot);
        }
        let row = &mut self.rows[held.slot as usize];
        let before = row.next_check.get();
        row.alive = held.alive;
        row.next_check = held.next_check;
        row.facts = facts;
        row.marks = Marks::default();
        row.marks.set(Marks::STORED);
        self.deadlines.moved(self.rows.rows(), held.slot, before);
    }

    /// The change was not written: the row is as it was.
    pub fn release(&mut self, held: Held) {
        if held.is_stored {
            self.rows[held.slot as usize].marks.clear(Marks::BUSY);
        } else {
            self.remove(held.slot);
        }
    }

    /// Takes out what is not on disk yet, for it to be written. Rows of which a change is being
    /// written stay: the change writes them whole.
    pub fn take_unwritten(&mut self) -> Vec<Unwritten> {
        let mut busy = Vec::new();
        let mut taken = Vec::with_capacity(self.unwritten.len());
        for slot in std::mem::take(&mut self.unwritten) {
            let row = &mut self.rows[slot as usize];
            if !row.marks.has(Marks::UNWRITTEN) {
                continue;
            }
            if row.marks.has(Marks::BUSY) {
                busy.push(slot);
                continue;
            }
            let next_check = row.marks.has(Marks::CHECK_MOVED).then_some(row.next_check);
            row.marks.clear(Marks::UNWRITTEN);
            row.marks.clear(Marks::CHECK_MOVED);
            taken.push(Unwritten { slot, alive: row.alive, next_check });
        }
        self.unwritten = busy;
        taken
    }

    /// What was taken out could not be written.
    pub fn put_back(&mut self, unwritten: &[Unwritten]) {
        for Unwritten { slot, next_check, .. } in unwritten {
            let row = &mut self.rows[*slot as usize];
            if next_check.is_some() {
                row.marks.set(Marks::CHECK_MOVED);
            }
            if !row.marks.has(Marks::UNWRITTEN) {
                row.marks.set(Marks::UNWRITTEN);
                self.unwritten.push(*slot);
            }
        }
    }

    /// A unit as it was found on disk, at its slot there.
    pub fn load(
        &mut self,
        slot: u32,
        name: &str,
        alive: Moment,
        next_check: Moment,
        facts: u64,
    ) -> Option<()> {
        let (kind, id) = name.split_once(':')?;
        let key = self.key_of(kind, id)?;
        self.rows.add_at(slot, key, |name| {
            let mut row = Row { alive, next_check, facts, ..Row::named(name) };
            row.marks.set(Marks::STORED);
            row
        })?;
        self.deadlines.moved(self.rows.rows(), slot, None);
        Some(())
    }

    /// Makes room for the rows that a load brings: tables that grew step by step would leave remains in memory.
    pub fn reserve(&mut self, rows: usize) {
        self.deadlines.reserve(rows);
        self.rows.reserve(rows);
    }

    fn find(&self, unit: &Unit) -> Option<u32> {
        self.find_name((unit.kind.as_str(), unit.id.as_str()))
    }

    fn find_name(&self, (kind, id): (&str, &str)) -> Option<u32> {
        let kind = self.kinds.iter().position(|known| known.as_str() == kind)? as u16;
        self.rows.find(Key::new(self.rows.hasher(), kind, id))
    }

    /// The key of a unit that may be new; `None` if its kind is no kind, or one too many.
    fn key_of<'a>(&mut self, kind: &str, id: &'a str) -> Option<Key<'a>> {
        let number = match self.kinds.iter().position(|known| known.as_str() == kind) {
            Some(number) => number,
            None => {
                self.kinds.push(kind.parse().ok()?);
                self.kinds.len() - 1
            }
        };
        Some(Key::new(self.rows.hasher(), u16::try_from(number).ok()?, id))
    }

    /// `None` if there is no room for one more.
    fn add(&mut self, unit: &Unit) -> Option<u32> {
        let key = self.key_of(unit.kind.as_str(), unit.id.as_str())?;
        self.rows.add(key, Row::named)
    }

    fn remove(&mut self, slot: u32) {
        let before = self.rows.remove(slot).next_check.get();
        self.deadlines.moved(self.rows.rows(), slot, before);
        self.rows.tidy();
    }
}

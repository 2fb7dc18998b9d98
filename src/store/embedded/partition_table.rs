//! One partition in memory: a table of rows and its deadline index.
//!
//! The slot of a row finds its unit on disk, too. No unit has a timer: see `deadline_index.rs`.

use super::deadline_index::DeadlineIndex;
use super::row::{MaybeTimestamp, Row, RowFlags};
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};
use crate::store::table::{Key, Table};
use crate::store::{EngineError, Refresh, Result};

/// A locked row and its values once its change is committed.
#[derive(Clone, Copy)]
pub(super) struct PendingWrite {
    pub slot: u32,
    /// Whether the unit is on disk already.
    pub is_stored: bool,
    pub alive: MaybeTimestamp,
    pub next_check: MaybeTimestamp,
}

/// A conditional change of a row.
pub(super) struct RowChange {
    /// The expiry key as it was read.
    pub alive: MaybeTimestamp,
    /// The digest of the facts as they were read.
    pub facts: u64,
    /// The new expiry key; `None`: it stays.
    pub next_alive: Option<MaybeTimestamp>,
    /// The new next check; `None`: it stays.
    pub next_check: Option<MaybeTimestamp>,
    /// Whether the change is void for a unit that is not in the index.
    pub is_take: bool,
}

/// The values of a dirty row, to be written.
pub(super) struct DirtyRow {
    pub slot: u32,
    pub alive: MaybeTimestamp,
    /// The next check, if a heartbeat brought it forward.
    pub next_check: Option<MaybeTimestamp>,
}

/// The units of one partition.
#[derive(Default)]
pub(super) struct PartitionTable {
    pub rows: Table<Row>,
    /// By number: the kinds that are or were configured.
    kinds: Vec<Kind>,
    deadlines: DeadlineIndex,
    /// Slots of dirty rows. A slot may be listed twice; the flag of its row counts.
    dirty: Vec<u32>,
}

impl PartitionTable {
    /// Writes heartbeats into the expiry keys that there are; the newest wins. Answers, in order, which were written.
    pub fn refresh(&mut self, heartbeats: &[&Refresh<'_>]) -> Vec<bool> {
        let keys: Vec<Option<Key>> = heartbeats.iter().map(|heartbeat| self.key(heartbeat.unit)).collect();
        let found = heartbeats.iter().zip(self.rows.find_all(&keys));
        found.map(|(heartbeat, slot)| slot.is_some_and(|slot| self.refresh_row(slot, heartbeat))).collect()
    }

    fn refresh_row(&mut self, slot: u32, heartbeat: &Refresh<'_>) -> bool {
        let row = &mut self.rows[slot as usize];
        let Some(alive) = row.alive.get() else { return false };
        // The pending change was decided without this heartbeat, so the heartbeat is decided after it.
        if row.flags.contains(RowFlags::LOCKED) {
            return false;
        }
        let mut is_changed = false;
        if alive < heartbeat.at {
            row.alive = Some(heartbeat.at).into();
            is_changed = true;
        }
        let later = row.next_check.get().filter(|next_check| heartbeat.check_by < *next_check);
        if later.is_some() {
            row.next_check = Some(heartbeat.check_by).into();
            row.flags.insert(RowFlags::CHECK_MOVED);
            is_changed = true;
        }
        if is_changed && !row.flags.contains(RowFlags::DIRTY) {
            row.flags.insert(RowFlags::DIRTY);
            self.dirty.push(slot);
        }
        if later.is_some() {
            self.deadlines.moved(self.rows.rows(), slot, later);
        }
        true
    }

    /// The slot of a unit and its expiry key.
    pub fn get(&self, unit: &Unit) -> Option<(u32, MaybeTimestamp)> {
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
    pub fn set_next_check(&mut self, unit: &Unit, until: Timestamp) {
        self.move_check(unit, until, true);
    }

    /// Puts a unit that is not in the index there. Not stored either.
    pub fn add_to_index(&mut self, unit: &Unit, at: Timestamp) {
        self.move_check(unit, at, false);
    }

    fn move_check(&mut self, unit: &Unit, to: Timestamp, is_in: bool) {
        let Some(slot) = self.find(unit) else { return };
        let row = &mut self.rows[slot as usize];
        let before = row.next_check.get();
        if before.is_some() == is_in && !row.flags.contains(RowFlags::LOCKED) {
            row.next_check = Some(to).into();
            self.deadlines.moved(self.rows.rows(), slot, before);
        }
    }

    /// How many units are in the index.
    pub fn watched(&self) -> usize {
        self.deadlines.len()
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
        let (kind, id) = name.split_once(':')?;
        let slot = self.rows.find(self.key_of_name(kind, id)?)?;
        self.rows[slot as usize].alive.get()
    }

    pub fn unit(&self, row: &Row) -> Result<Unit> {
        let id = self.rows.id(row);
        let id =
            id.parse().map_err(|error| EngineError::Damaged(format!("{id:?} is not a unit: {error}")))?;
        Ok(Unit::new(self.kinds[usize::from(row.kind)].clone(), id))
    }

    /// Locks a row against other changes until its change is committed or rolled back, if the unit is still as it was
    /// read. A new unit gets a slot.
    pub fn lock_row(&mut self, unit: &Unit, change: &RowChange) -> Option<PendingWrite> {
        let slot = match self.find(unit) {
            Some(slot) => slot,
            None if change.alive == MaybeTimestamp::NONE && change.facts == 0 && !change.is_take => {
                self.add(unit)?
            }
            None => return None,
        };
        let row = &mut self.rows[slot as usize];
        let differs = row.alive != change.alive || row.facts != change.facts;
        let is_taken = change.is_take && row.next_check == MaybeTimestamp::NONE;
        if row.flags.contains(RowFlags::LOCKED) || differs || is_taken {
            return None;
        }
        row.flags.insert(RowFlags::LOCKED);
        Some(PendingWrite {
            slot,
            is_stored: row.flags.contains(RowFlags::STORED),
            alive: change.next_alive.unwrap_or(row.alive),
            next_check: change.next_check.unwrap_or(row.next_check),
        })
    }

    /// The slot and the digest of a stored, unlocked row whose facts are not those that a change was made from.
    pub fn stale_digest(&self, unit: &Unit, change: &RowChange) -> Option<(u32, u64)> {
        let slot = self.find(unit)?;
        let row = &self.rows[slot as usize];
        let is_idle = row.flags.contains(RowFlags::STORED) && !row.flags.contains(RowFlags::LOCKED);
        (is_idle && row.facts != change.facts).then_some((slot, row.facts))
    }

    /// Takes over the digest of facts on disk that another program wrote; zero removes the unit.
    pub fn adopt_digest(&mut self, slot: u32, facts: u64) {
        match facts {
            0 => self.remove(slot),
            _ => self.rows[slot as usize].facts = facts,
        }
    }

    /// The change is on disk. `facts`: the digest of the new facts; zero removes the unit.
    pub fn commit_row(&mut self, pending: PendingWrite, facts: u64) {
        if facts == 0 {
            return self.remove(pending.slot);
        }
        let row = &mut self.rows[pending.slot as usize];
        let before = row.next_check.get();
        row.alive = pending.alive;
        row.next_check = pending.next_check;
        row.facts = facts;
        row.flags = RowFlags::default();
        row.flags.insert(RowFlags::STORED);
        self.deadlines.moved(self.rows.rows(), pending.slot, before);
    }

    /// The change was rolled back: the row is as it was.
    pub fn roll_back_row(&mut self, pending: PendingWrite) {
        if pending.is_stored {
            self.rows[pending.slot as usize].flags.remove(RowFlags::LOCKED);
        } else {
            self.remove(pending.slot);
        }
    }

    /// Takes the dirty rows, to be written. Locked rows stay dirty: their changes write them whole.
    pub fn take_dirty(&mut self) -> Vec<DirtyRow> {
        let mut locked = Vec::new();
        let mut taken = Vec::with_capacity(self.dirty.len());
        for slot in std::mem::take(&mut self.dirty) {
            let row = &mut self.rows[slot as usize];
            if !row.flags.contains(RowFlags::DIRTY) {
                continue;
            }
            if row.flags.contains(RowFlags::LOCKED) {
                locked.push(slot);
                continue;
            }
            let next_check = row.flags.contains(RowFlags::CHECK_MOVED).then_some(row.next_check);
            row.flags.remove(RowFlags::DIRTY);
            row.flags.remove(RowFlags::CHECK_MOVED);
            taken.push(DirtyRow { slot, alive: row.alive, next_check });
        }
        self.dirty = locked;
        taken
    }

    /// Marks rows as dirty again after their write was rolled back.
    pub fn put_back(&mut self, dirty: &[DirtyRow]) {
        for DirtyRow { slot, next_check, .. } in dirty {
            let row = &mut self.rows[*slot as usize];
            if next_check.is_some() {
                row.flags.insert(RowFlags::CHECK_MOVED);
            }
            if !row.flags.contains(RowFlags::DIRTY) {
                row.flags.insert(RowFlags::DIRTY);
                self.dirty.push(*slot);
            }
        }
    }

    /// Adds a unit as it is on disk, at its slot there.
    pub fn load(
        &mut self,
        slot: u32,
        name: &str,
        alive: MaybeTimestamp,
        next_check: MaybeTimestamp,
        facts: u64,
    ) -> Option<()> {
        let (kind, id) = name.split_once(':')?;
        let key = self.new_key(kind, id)?;
        self.rows.add_at(slot, key, |name| {
            let mut row = Row { alive, next_check, facts, ..Row::named(name) };
            row.flags.insert(RowFlags::STORED);
            row
        })?;
        self.deadlines.moved(self.rows.rows(), slot, None);
        Some(())
    }

    /// Reserves memory for the rows of a load: tables that grow step by step leave fragments in memory.
    pub fn reserve(&mut self, rows: usize) {
        self.deadlines.reserve(rows);
        self.rows.reserve(rows);
    }

    fn find(&self, unit: &Unit) -> Option<u32> {
        self.rows.find(self.key(unit)?)
    }

    /// The key of a unit; `None`: no unit of its kind was ever here.
    fn key<'a>(&self, unit: &'a Unit) -> Option<Key<'a>> {
        self.key_of_name(unit.kind.as_str(), unit.id.as_str())
    }

    fn key_of_name<'a>(&self, kind: &str, id: &'a str) -> Option<Key<'a>> {
        let number = self.kinds.iter().position(|known| known.as_str() == kind)?;
        Some(Key::new(self.rows.hasher(), number as u16, id))
    }

    /// The key of a unit that may be new; `None` if the kind is invalid, or there are too many.
    fn new_key<'a>(&mut self, kind: &str, id: &'a str) -> Option<Key<'a>> {
        if !self.kinds.iter().any(|known| known.as_str() == kind) {
            u16::try_from(self.kinds.len()).ok()?;
            self.kinds.push(kind.parse().ok()?);
        }
        self.key_of_name(kind, id)
    }

    /// `None` if the table is full.
    fn add(&mut self, unit: &Unit) -> Option<u32> {
        let key = self.new_key(unit.kind.as_str(), unit.id.as_str())?;
        self.rows.add(key, Row::named)
    }

    fn remove(&mut self, slot: u32) {
        let before = self.rows.remove(slot).next_check.get();
        self.deadlines.moved(self.rows.rows(), slot, before);
        self.rows.tidy();
    }
}

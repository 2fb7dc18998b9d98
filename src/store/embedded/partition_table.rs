//! One partition in memory: its rows, the engine's own values beside them, and its deadline index.
//!
//! The slot of a row also finds its unit on disk. No unit has a timer: see `deadline_index.rs`.
//!
//! A row shows committed values. A heartbeat changes its last seen time at once; everything else in it changes when a
//! change is committed.

use parking_lot::{MutexGuard, RwLockWriteGuard};

use super::broker_numbers::{BrokerNumbers, UNKNOWN};
use super::deadline_index::DeadlineIndex;
use super::row::{Columns, ExpiryKey, MaybeTimestamp, RowFlags};
use crate::clock::Timestamp;
use crate::presence::{BrokerName, Facts, Labels, Unit};
use crate::store::table::{RowUpdate, UnitKey, UnitRow, UnitTable};
use crate::store::{EngineError, IndexState, Refresh, Replaced, Result};

/// A locked row, and its values after its change is committed.
#[derive(Clone, Copy)]
pub(super) struct PendingWrite {
    pub slot: u32,
    /// Whether the unit is on disk already.
    pub is_stored: bool,
    pub alive: MaybeTimestamp,
    /// The number of the broker that delivered the heartbeat of the key.
    pub broker: u8,
    pub next_check: MaybeTimestamp,
}

/// A conditional change of a row.
pub(super) struct RowChange {
    /// The expiry key that was read.
    pub alive: MaybeTimestamp,
    /// The digest of the facts that were read.
    pub facts: u64,
    /// The new expiry key; `None`: unchanged.
    pub next_alive: Option<MaybeTimestamp>,
    /// The broker that delivered the heartbeat of the new key.
    pub broker: Option<BrokerName>,
    /// The new next check; `None`: unchanged.
    pub next_check: Option<MaybeTimestamp>,
    /// Whether the change is void if the unit is not in the index.
    pub is_take: bool,
}

/// The state of a row after its change is committed.
pub(super) struct CommittedFacts {
    update: RowUpdate<'static>,
    /// The labels by which units are counted.
    labels: Labels,
}

impl CommittedFacts {
    /// `None`: readers do not get the unit.
    pub fn of(facts: &Facts, counted: &[impl AsRef<str>]) -> Option<CommittedFacts> {
        let update = RowUpdate { labels: None, ..RowUpdate::of(facts, None)? };
        let of_label = |label: &str| {
            facts.labels.get_key_value(label).map(|(name, value)| (name.clone(), value.clone()))
        };
        Some(CommittedFacts {
            update,
            labels: counted.iter().filter_map(|label| of_label(label.as_ref())).collect(),
        })
    }
}

/// The values of a dirty row, to be written.
pub(super) struct DirtyRow {
    pub slot: u32,
    pub alive: MaybeTimestamp,
    /// The number of the broker that delivered the heartbeat of the key.
    pub broker: u8,
    /// The next check, if a heartbeat brought it forward.
    pub next_check: Option<MaybeTimestamp>,
}

/// The engine's own values of a partition.
#[derive(Default)]
pub(super) struct EngineState {
    columns: Columns,
    deadlines: DeadlineIndex,
    /// Slots of dirty rows. A slot may be listed twice; the flag of its row counts.
    dirty: Vec<u32>,
}

/// The units of one partition, locked.
pub(super) struct PartitionTable<'a> {
    state: MutexGuard<'a, EngineState>,
    units: RwLockWriteGuard<'a, UnitTable>,
    brokers: &'a BrokerNumbers,
}

impl<'a> PartitionTable<'a> {
    /// Lock the state before the rows: readers of the rows lock nothing else.
    pub fn new(
        state: MutexGuard<'a, EngineState>,
        units: RwLockWriteGuard<'a, UnitTable>,
        brokers: &'a BrokerNumbers,
    ) -> PartitionTable<'a> {
        PartitionTable { state, units, brokers }
    }

    /// Writes heartbeats into existing expiry keys; the newest wins. Answers, in order, the heartbeat that each key
    /// held before; `None`: there is no key, and nothing is written.
    pub fn refresh(&mut self, heartbeats: &[&Refresh<'_>]) -> Vec<Option<Replaced>> {
        let keys: Vec<Option<UnitKey>> =
            heartbeats.iter().map(|heartbeat| self.key(heartbeat.unit)).collect();
        let found = heartbeats.iter().zip(self.units.find_all(&keys));
        found.map(|(heartbeat, slot)| self.refresh_row(slot?, heartbeat)).collect()
    }

    fn refresh_row(&mut self, slot: u32, heartbeat: &Refresh<'_>) -> Option<Replaced> {
        let broker = self.brokers.number(heartbeat.broker);
        let EngineState { columns, deadlines, dirty, .. } = &mut *self.state;
        let flags = &mut columns.flags[slot as usize];
        // The pending change was decided without this heartbeat, so decide the heartbeat after it.
        if !flags.contains(RowFlags::ALIVE) || flags.contains(RowFlags::LOCKED) {
            return None;
        }
        let mut is_changed = false;
        let (before, is_elsewhere) = (self.units[slot].last_seen, flags.1 != broker);
        if before < heartbeat.at {
            self.units.learn(slot, before, (heartbeat.at, heartbeat.arrived), heartbeat.unbroken);
            self.units[slot].last_seen = heartbeat.at;
            flags.1 = broker;
            is_changed = true;
        }
        let next_check = &mut columns.next_checks[slot as usize];
        let later = next_check.get().filter(|next_check| heartbeat.check_by < *next_check);
        if later.is_some() {
            *next_check = Some(heartbeat.check_by).into();
            flags.insert(RowFlags::CHECK_MOVED);
            is_changed = true;
        }
        if is_changed && !flags.contains(RowFlags::DIRTY) {
            flags.insert(RowFlags::DIRTY);
            dirty.push(slot);
        }
        if later.is_some() {
            deadlines.moved(&columns.next_checks, slot, later);
        }
        Some(Replaced { at: before, is_elsewhere })
    }

    /// The slot of a unit, its expiry key, and the broker that delivered the heartbeat of the key.
    pub fn get(&self, unit: &Unit) -> Option<(u32, MaybeTimestamp, Option<BrokerName>)> {
        self.find(unit).map(|slot| (slot, self.alive_at(slot), self.broker_at(slot)))
    }

    /// The units on disk in some slots, with their expiry keys.
    pub fn stored(&self, slots: std::ops::Range<u32>) -> Result<Vec<(u32, Unit, ExpiryKey)>> {
        let slots = slots.start..slots.end.min(self.units.len() as u32);
        let stored = slots.filter(|slot| self.flags(*slot).contains(RowFlags::STORED));
        let key = |slot| (self.alive_at(slot), self.broker_at(slot));
        stored.map(|slot| Ok((slot, self.unit(&self.units[slot])?, key(slot)))).collect()
    }

    /// The expiry keys in some slots, with the numbers of brokers, except those of units with a pending change, which is
    /// written with its key.
    pub fn settled_keys(&self, slots: std::ops::Range<u32>) -> impl Iterator<Item = (MaybeTimestamp, u8)> {
        let slots = slots.start..slots.end.min(self.units.len() as u32);
        slots.map(|slot| {
            let flags = self.flags(slot);
            let is_locked = flags.contains(RowFlags::LOCKED);
            (if is_locked { MaybeTimestamp::NONE } else { self.alive_at(slot) }, flags.1)
        })
    }

    /// The newest heartbeat.
    pub fn newest(&self) -> Option<Timestamp> {
        (0..self.units.len() as u32).filter_map(|slot| self.alive_at(slot).get()).max()
    }

    /// Lets every unit with an expiry key count as heard up to `heard`.
    pub fn presume(&mut self, heard: Timestamp) {
        for slot in 0..self.units.len() as u32 {
            if let Some(alive) = self.alive_at(slot).get() {
                self.set_alive(slot, Some(alive.max(heard)).into());
                self.state.columns.flags[slot as usize].1 = UNKNOWN;
            }
        }
    }

    /// Sets the expiry key in a slot to the value on disk, with the number of the broker, if there is a key; unless
    /// `is_newer`, only the broker of that same value.
    pub fn load_key(&mut self, slot: u32, (alive, broker): (Timestamp, u8), is_newer: bool) {
        let known = self.alive_at(slot).get();
        if known.is_some_and(|known| is_newer || known == alive) {
            self.set_alive(slot, Some(alive).into());
            self.state.columns.flags[slot as usize].1 = broker;
        }
    }

    /// The name of the unit on disk in this slot.
    pub fn stored_name(&self, slot: u32) -> Option<String> {
        let is_stored = (slot as usize) < self.units.len() && self.flags(slot).contains(RowFlags::STORED);
        is_stored.then(|| self.unit(&self.units[slot]).ok())?.map(|unit| unit.to_string())
    }

    pub fn next_check(&self, slot: u32) -> Option<Timestamp> {
        self.state.columns.next_checks[slot as usize].get()
    }

    /// Up to `limit` units after the first `skip` whose next check is after `after` and not after `until`, in the
    /// order of their facts on disk.
    pub fn due(
        &self,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>> {
        let EngineState { columns, deadlines, .. } = &*self.state;
        let due = deadlines.due(&columns.next_checks, after, until).skip(skip).take(limit);
        due.map(|slot| self.unit(&self.units[slot])).collect()
    }

    /// Sets the next check of a unit, if the index has it or lacks it, by `which`. Not stored: after a restart the
    /// old check is back.
    pub fn set_next_check(&mut self, unit: &Unit, at: Timestamp, which: IndexState) {
        let Some(slot) = self.find(unit) else { return };
        let is_free = !self.flags(slot).contains(RowFlags::LOCKED);
        let is_in = which == IndexState::Present;
        if self.next_check(slot).is_some() == is_in && is_free {
            self.set_check(slot, Some(at).into());
        }
    }

    /// The number of units in the index.
    pub fn watched(&self) -> usize {
        self.state.deadlines.len()
    }

    /// The earliest next check after `after`, and the name of its unit.
    pub fn first_check(&self, after: Option<Timestamp>) -> Option<(Timestamp, String)> {
        let (next_check, slot) = self.state.deadlines.first(&self.state.columns.next_checks, after)?;
        let row = &self.units[slot];
        Some((next_check, format!("{}:{}", self.units.kinds().kind(row.kind), self.units.id(row))))
    }

    /// The expiry key of a unit by its name.
    pub fn alive(&self, name: &str) -> Option<Timestamp> {
        let (kind, id) = name.split_once(':')?;
        self.alive_at(self.units.find(self.key_of_name(kind, id)?)?).get()
    }

    fn unit(&self, row: &UnitRow) -> Result<Unit> {
        let id = self.units.id(row);
        let id =
            id.parse().map_err(|error| EngineError::Damaged(format!("{id:?} is not a unit: {error}")))?;
        Ok(Unit::new(self.units.kinds().kind(row.kind), id))
    }

    /// Locks a row against other changes until its change is committed or rolled back, if the unit is unchanged since
    /// it was read. A new unit gets a slot.
    pub fn lock_row(&mut self, unit: &Unit, change: &RowChange) -> Option<PendingWrite> {
        let slot = match self.find(unit) {
            Some(slot) => slot,
            None if change.alive == MaybeTimestamp::NONE && change.facts == 0 && !change.is_take => {
                self.add(unit)?
            }
            None => return None,
        };
        let (alive, columns) = (self.alive_at(slot), &self.state.columns);
        let (facts, next_check) = (columns.facts[slot as usize], columns.next_checks[slot as usize]);
        let broker = match change.next_alive {
            Some(_) => self.brokers.number(change.broker.as_ref()),
            None => self.flags(slot).1,
        };
        let columns = &mut self.state.columns;
        let flags = &mut columns.flags[slot as usize];
        let differs = alive != change.alive || facts != change.facts;
        let is_taken = change.is_take && next_check == MaybeTimestamp::NONE;
        if flags.contains(RowFlags::LOCKED) || differs || is_taken {
            return None;
        }
        flags.insert(RowFlags::LOCKED);
        Some(PendingWrite {
            slot,
            is_stored: flags.contains(RowFlags::STORED),
            alive: change.next_alive.unwrap_or(alive),
            broker,
            next_check: change.next_check.unwrap_or(next_check),
        })
    }

    /// The slot and the digest of a stored, unlocked row whose facts are not those from which a change was decided.
    pub fn stale_digest(&self, unit: &Unit, change: &RowChange) -> Option<(u32, u64)> {
        let slot = self.find(unit)?;
        let (flags, facts) = (self.flags(slot), self.state.columns.facts[slot as usize]);
        let is_idle = flags.contains(RowFlags::STORED) && !flags.contains(RowFlags::LOCKED);
        (is_idle && facts != change.facts).then_some((slot, facts))
    }

    /// Loads facts on disk that another program wrote, and their digest; zero removes the unit.
    pub fn adopt_facts(&mut self, slot: u32, digest: u64, committed: Option<&CommittedFacts>) {
        if digest == 0 {
            return self.remove(slot);
        }
        let alive = self.alive_at(slot);
        self.state.columns.facts[slot as usize] = digest;
        self.show(slot, alive, committed);
    }

    /// Notes that the change is on disk. `digest`: the digest of the new facts; zero removes the unit.
    pub fn commit_row(&mut self, pending: PendingWrite, digest: u64, committed: Option<&CommittedFacts>) {
        let slot = pending.slot;
        if digest == 0 {
            return self.remove(slot);
        }
        self.set_check(slot, pending.next_check);
        let columns = &mut self.state.columns;
        columns.facts[slot as usize] = digest;
        // The change has written the key, but not its broker.
        let is_dirty = columns.flags[slot as usize].contains(RowFlags::DIRTY);
        columns.flags[slot as usize] = RowFlags::stored(pending.broker);
        if is_dirty {
            columns.flags[slot as usize].insert(RowFlags::DIRTY);
        }
        self.show(slot, pending.alive, committed);
    }

    /// Notes that the change was rolled back: the row keeps its old values.
    pub fn roll_back_row(&mut self, pending: PendingWrite) {
        if pending.is_stored {
            self.state.columns.flags[pending.slot as usize].remove(RowFlags::LOCKED);
        } else {
            self.remove(pending.slot);
        }
    }

    /// Takes the dirty rows for writing. Locked rows stay dirty: their changes write them whole.
    pub fn take_dirty(&mut self) -> Vec<DirtyRow> {
        let mut locked = Vec::new();
        let mut taken = Vec::with_capacity(self.state.dirty.len());
        for slot in std::mem::take(&mut self.state.dirty) {
            let (alive, columns) = (self.alive_at(slot), &mut self.state.columns);
            let flags = &mut columns.flags[slot as usize];
            if !flags.contains(RowFlags::DIRTY) {
                continue;
            }
            if flags.contains(RowFlags::LOCKED) {
                locked.push(slot);
                continue;
            }
            let is_moved = flags.contains(RowFlags::CHECK_MOVED);
            flags.remove(RowFlags::DIRTY);
            flags.remove(RowFlags::CHECK_MOVED);
            let broker = flags.1;
            let next_check = is_moved.then_some(columns.next_checks[slot as usize]);
            taken.push(DirtyRow { slot, alive, broker, next_check });
        }
        self.state.dirty = locked;
        taken
    }

    /// Marks rows as dirty again after their write was rolled back.
    pub fn put_back(&mut self, dirty: &[DirtyRow]) {
        let state = &mut *self.state;
        for DirtyRow { slot, next_check, .. } in dirty {
            let flags = &mut state.columns.flags[*slot as usize];
            if next_check.is_some() {
                flags.insert(RowFlags::CHECK_MOVED);
            }
            if !flags.contains(RowFlags::DIRTY) {
                flags.insert(RowFlags::DIRTY);
                state.dirty.push(*slot);
            }
        }
    }

    /// Adds a unit from disk, at its slot there. `digest`: the digest of its facts.
    pub fn load(
        &mut self,
        slot: u32,
        name: &str,
        (alive, next_check): (MaybeTimestamp, MaybeTimestamp),
        digest: u64,
        committed: Option<&CommittedFacts>,
    ) -> Option<()> {
        let (kind, id) = name.split_once(':')?;
        let key = self.new_key(kind, id)?;
        self.units.add_at(slot, key)?;
        self.state.columns.grow(self.units.len());
        self.commit_row(
            PendingWrite { slot, is_stored: true, alive, broker: UNKNOWN, next_check },
            digest,
            committed,
        );
        Some(())
    }

    /// Reserves memory for the rows of a load: tables that grow step by step leave fragments in memory.
    pub fn reserve(&mut self, rows: usize) {
        self.state.deadlines.reserve(rows);
        self.units.reserve(rows);
    }

    fn find(&self, unit: &Unit) -> Option<u32> {
        self.units.find(self.key(unit)?)
    }

    /// The key of a unit; `None`: this partition never had a unit of its kind.
    fn key<'b>(&self, unit: &'b Unit) -> Option<UnitKey<'b>> {
        self.key_of_name(unit.kind.as_str(), unit.id.as_str())
    }

    fn key_of_name<'b>(&self, kind: &str, id: &'b str) -> Option<UnitKey<'b>> {
        Some(UnitKey::new(self.units.hasher(), self.units.kinds().number(kind)?, id))
    }

    /// The key of a unit that may be new; `None` if the kind is invalid, or there are too many.
    fn new_key<'b>(&mut self, kind: &str, id: &'b str) -> Option<UnitKey<'b>> {
        if self.units.kinds().number(kind).is_none() {
            self.units.kinds().enter(&kind.parse().ok()?)?;
        }
        self.key_of_name(kind, id)
    }

    /// Adds a unit that is hidden from readers; `None` if the table is full.
    fn add(&mut self, unit: &Unit) -> Option<u32> {
        let key = self.new_key(unit.kind.as_str(), unit.id.as_str())?;
        let slot = self.units.add(key)?;
        self.state.columns.grow(self.units.len());
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        self.set_check(slot, MaybeTimestamp::NONE);
        let columns = &mut self.state.columns;
        (columns.facts[slot as usize], columns.flags[slot as usize]) = (0, RowFlags::default());
        self.units.remove(slot);
        self.units.tidy();
    }

    /// Shows the committed state of the unit in this slot to readers.
    fn show(&mut self, slot: u32, alive: MaybeTimestamp, committed: Option<&CommittedFacts>) {
        match committed {
            Some(CommittedFacts { update, labels }) => {
                self.units.set(slot, &RowUpdate { labels: Some(labels), ..*update });
            }
            None => self.units.hide(slot),
        }
        self.set_alive(slot, alive);
    }

    fn flags(&self, slot: u32) -> RowFlags {
        self.state.columns.flags[slot as usize]
    }

    fn broker_at(&self, slot: u32) -> Option<BrokerName> {
        self.brokers.name(self.flags(slot).1)
    }

    fn alive_at(&self, slot: u32) -> MaybeTimestamp {
        self.flags(slot).contains(RowFlags::ALIVE).then(|| self.units[slot].last_seen).into()
    }

    /// Sets the expiry key in this slot.
    fn set_alive(&mut self, slot: u32, alive: MaybeTimestamp) {
        let flags = &mut self.state.columns.flags[slot as usize];
        match alive.get() {
            Some(alive) => {
                flags.insert(RowFlags::ALIVE);
                self.units[slot].last_seen = alive;
            }
            None => flags.remove(RowFlags::ALIVE),
        }
    }

    fn set_check(&mut self, slot: u32, next_check: MaybeTimestamp) {
        let EngineState { columns, deadlines, .. } = &mut *self.state;
        let before = std::mem::replace(&mut columns.next_checks[slot as usize], next_check).get();
        deadlines.moved(&columns.next_checks, slot, before);
    }
}

//! The units of a partition in memory: a row for each, found by its kind and id.
//!
//! A row keeps its slot, a dense number, until its unit is removed. So a reader that reads the rows in batches and
//! releases the lock in between misses none of the units that stay, and the slot also finds the unit on disk. A new
//! unit takes a free slot.
//!
//! Rows are fixed in size, ids lie end to end in long texts, and the hash index holds only slots: a unit costs its
//! row, its id and five bytes.

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut, Range};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

mod blocks;
mod changed_blocks;
mod kinds;
mod known;
mod label_index;
mod names;
mod rhythms;
mod row;
mod settings;
mod shared_values;
mod units;

pub use blocks::Blocks;
pub use changed_blocks::BLOCK_UNITS;
pub use kinds::Kinds;
pub use label_index::{LabelIndex, OTHER_VALUE};
use names::Names;
pub use rhythms::NamedRhythm;
pub use row::{Absence, RowState, RowUpdate, UnitRow};
pub use settings::{NO_SETTINGS, Settings};
pub use units::{UnitTable, UnitTables};

/// A row of a table. It includes the name of its unit, which fits beside its other fields without padding.
pub trait Row {
    /// A row without a unit.
    fn vacant() -> Self;

    fn is_vacant(&self) -> bool;

    fn name(&self) -> Name;

    /// Called when the id has moved within the texts.
    fn set_start(&mut self, start: u32);
}

/// The name of a unit in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The start of its id in the texts.
    pub start: u32,
    /// The number of its kind.
    pub kind: u16,
    /// The length of its id.
    pub length: u8,
}

/// A unit to look up: the hash of its name, the number of its kind, its id.
#[derive(Clone, Copy)]
pub struct UnitKey<'a> {
    pub hash: u64,
    pub kind: u16,
    pub id: &'a str,
}

impl<'a> UnitKey<'a> {
    pub fn new(hasher: &RandomState, kind: u16, id: &'a str) -> UnitKey<'a> {
        UnitKey { hash: hash(hasher, kind, id.as_bytes()), kind, id }
    }
}

pub struct RowTable<R> {
    rows: Blocks<R>,
    names: Names,
    slots: HashTable<u32>,
    free: Vec<u32>,
    /// Seeded at random: ids come from devices, which must not be able to choose colliding ids.
    hasher: RandomState,
}

impl<R> Default for RowTable<R> {
    fn default() -> RowTable<R> {
        RowTable::new(RandomState::default())
    }
}

impl<R> RowTable<R> {
    /// An empty table; its keys use the same hasher.
    pub fn new(hasher: RandomState) -> RowTable<R> {
        let (rows, names) = (Blocks::default(), Names::default());
        RowTable { rows, names, slots: HashTable::new(), free: Vec::new(), hasher }
    }

    pub fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    /// All rows by slot, vacant ones among them.
    pub fn rows(&self) -> &Blocks<R> {
        &self.rows
    }

    /// The number of slots, vacant ones among them.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get_mut(&mut self, slot: usize) -> Option<&mut R> {
        self.rows.get_mut(slot)
    }

    pub fn range(&self, slots: Range<usize>) -> impl Iterator<Item = &R> {
        self.rows.range(slots)
    }

    pub fn indexed(&self, slots: Range<usize>) -> impl Iterator<Item = (usize, &R)> {
        self.rows.indexed(slots)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.rows.iter_mut()
    }

    /// The memory of the table.
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.names.bytes() + self.slots.allocation_size()
    }
}

impl<R: Row> RowTable<R> {
    pub fn find(&self, key: UnitKey<'_>) -> Option<u32> {
        self.slots.find(key.hash, |slot| self.is_at(*slot, key)).copied()
    }

    /// Finds several units, in order; a unit without a key is not in the table. A search waits for memory, so a
    /// possible slot is read for each unit before any is compared: the processor waits for many at a time.
    pub fn find_all(&self, keys: &[Option<UnitKey<'_>>]) -> Vec<Option<u32>> {
        let maybe = |key: &Option<UnitKey<'_>>| self.slots.find(key.as_ref()?.hash, |_| true).copied();
        let mut slots: Vec<Option<u32>> = keys.iter().map(maybe).collect();
        for (key, found) in keys.iter().zip(&mut slots) {
            let (Some(key), Some(slot)) = (key, *found) else { continue };
            // Another unit may have a similar hash.
            if !self.is_at(slot, *key) {
                *found = self.find(*key);
            }
        }
        slots
    }

    fn is_at(&self, slot: u32, key: UnitKey<'_>) -> bool {
        let Name { start, kind, length } = self.rows[slot as usize].name();
        kind == key.kind && self.names.bytes_of(start, length) == key.id.as_bytes()
    }

    /// The id of the unit of a row.
    pub fn id(&self, row: &R) -> &str {
        let name = row.name();
        self.names.get(name.start, name.length)
    }

    /// Adds a unit that is not in the table and answers its slot; `None` if the id is too long or the table is full.
    pub fn add(&mut self, key: UnitKey<'_>, row: impl FnOnce(Name) -> R) -> Option<u32> {
        let row = row(self.add_name(key)?);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.rows[slot as usize] = row;
                slot
            }
            None => {
                self.rows.push(row);
                u32::try_from(self.rows.len() - 1).ok()?
            }
        };
        self.link(slot, key.hash);
        Some(slot)
    }

    /// Adds a unit in a slot after all others; the slots in between are free.
    pub fn add_at(&mut self, slot: u32, key: UnitKey<'_>, row: impl FnOnce(Name) -> R) -> Option<()> {
        while self.rows.len() < slot as usize {
            self.free.push(self.rows.len() as u32);
            self.rows.push(R::vacant());
        }
        let row = row(self.add_name(key)?);
        self.rows.push(row);
        self.link(slot, key.hash);
        Some(())
    }

    /// Removes the unit in a slot and answers its row. [`RowTable::tidy`] frees the memory of its id.
    pub fn remove(&mut self, slot: u32) -> R {
        let hash = hash_of(&self.hasher, &self.names, &self.rows[slot as usize]);
        if let Ok(entry) = self.slots.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        let row = std::mem::replace(&mut self.rows[slot as usize], R::vacant());
        self.names.forget(row.name().length);
        self.free.push(slot);
        row
    }

    /// Frees the memory of removed units, if there is much.
    pub fn tidy(&mut self) {
        if !self.names.should_compact() {
            return;
        }
        let mut names = Names::default();
        for row in self.rows.iter_mut().filter(|row| !row.is_vacant()) {
            let name = row.name();
            let start = names.add(self.names.get(name.start, name.length));
            row.set_start(start.expect("the texts are shorter than before"));
        }
        self.names = names;
        let (rows, names, hasher) = (&self.rows, &self.names, &self.hasher);
        self.slots.shrink_to_fit(|slot| hash_of(hasher, names, &rows[*slot as usize]));
    }

    /// Reserves memory in the index for this many units: an index that grows step by step leaves fragments in memory.
    pub fn reserve(&mut self, units: usize) {
        let (rows, names, hasher) = (&self.rows, &self.names, &self.hasher);
        self.slots.reserve(units, |slot| hash_of(hasher, names, &rows[*slot as usize]));
    }

    fn add_name(&mut self, key: UnitKey<'_>) -> Option<Name> {
        let length = u8::try_from(key.id.len()).ok()?;
        Some(Name { start: self.names.add(key.id)?, kind: key.kind, length })
    }

    fn link(&mut self, slot: u32, hash: u64) {
        let (rows, names, hasher) = (&self.rows, &self.names, &self.hasher);
        self.slots.insert_unique(hash, slot, |slot| hash_of(hasher, names, &rows[*slot as usize]));
    }
}

impl<R> Index<usize> for RowTable<R> {
    type Output = R;

    fn index(&self, slot: usize) -> &R {
        &self.rows[slot]
    }
}

impl<R> IndexMut<usize> for RowTable<R> {
    fn index_mut(&mut self, slot: usize) -> &mut R {
        &mut self.rows[slot]
    }
}

fn hash_of<R: Row>(hasher: &RandomState, names: &Names, row: &R) -> u64 {
    let Name { start, kind, length } = row.name();
    hash(hasher, kind, names.bytes_of(start, length))
}

fn hash(hasher: &RandomState, kind: u16, id: &[u8]) -> u64 {
    hasher.hash_one((kind, id))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    struct Plain {
        name: Option<Name>,
        value: u32,
    }

    impl Row for Plain {
        fn vacant() -> Plain {
            Plain { name: None, value: 0 }
        }

        fn is_vacant(&self) -> bool {
            self.name.is_none()
        }

        fn name(&self) -> Name {
            self.name.expect("the row has a unit")
        }

        fn set_start(&mut self, start: u32) {
            self.name = Some(Name { start, ..self.name() });
        }
    }

    #[test]
    fn a_table_finds_the_units_that_a_map_finds_and_they_keep_their_slots() {
        let mut random = StdRng::seed_from_u64(1);
        let mut table: RowTable<Plain> = RowTable::default();
        let hasher = table.hasher().clone();
        let mut map: HashMap<(u16, String), (u32, u32)> = HashMap::new();
        for value in 0..20_000 {
            let (kind, id) = (random.random_range(0..3), "ä".repeat(random.random_range(1..90)));
            let id = format!("{id}{}", random.random_range(0..40));
            let key = UnitKey::new(&hasher, kind, &id);
            let known = map.get(&(kind, id.clone())).copied();
            assert_eq!(table.find(key), known.map(|(slot, _)| slot));
            let keys = [Some(key), None, Some(UnitKey::new(&hasher, kind, "none")), Some(key)];
            assert_eq!(table.find_all(&keys), [table.find(key), None, None, table.find(key)]);
            match known {
                Some((slot, value)) => {
                    assert_eq!((table[slot as usize].value, table.id(&table[slot as usize])), (value, &*id));
                    assert_eq!(table.remove(slot).value, value);
                    table.tidy();
                    map.remove(&(kind, id));
                }
                None => {
                    let slot = table.add(key, |name| Plain { name: Some(name), value }).unwrap();
                    map.insert((kind, id), (slot, value));
                }
            }
        }
        assert!(table.len() < 20_000, "free slots are used again");
        let bytes = table.names.bytes();
        assert!(bytes < 40 * table.len() * 90 / 10, "texts of removed units are freed: {bytes}");
    }

    #[test]
    fn loaded_units_keep_their_slots_and_the_slots_between_are_free() {
        let mut table: RowTable<Plain> = RowTable::default();
        let hasher = table.hasher().clone();
        let row = |name| Plain { name: Some(name), value: 7 };
        table.reserve(5);
        table.add_at(3, UnitKey::new(&hasher, 0, "three"), row).unwrap();
        table.add_at(4, UnitKey::new(&hasher, 0, "four"), row).unwrap();
        assert_eq!(table.find(UnitKey::new(&hasher, 0, "three")), Some(3));
        let free: Vec<u32> = ["a", "b", "c", "d"]
            .iter()
            .map(|id| table.add(UnitKey::new(&hasher, 1, id), row).unwrap())
            .collect();
        assert_eq!(free, [2, 1, 0, 5]);
        assert!(table.add(UnitKey::new(&hasher, 0, &"x".repeat(256)), row).is_none(), "no id is that long");
    }
}

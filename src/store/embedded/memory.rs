//! The fleet in memory: every partition behind a lock of its own, which is held for microseconds and
//! never over an await.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard};

use foldhash::fast::RandomState;

use super::in_memory_hearing::InMemoryHearing;
use super::partition_table::PartitionTable;
use super::row::RowFlags;
use crate::clock::Timestamp;
use crate::presence::Unit;
use crate::store::partition_of;

pub(super) struct InMemoryFleet {
    tables: Box<[Mutex<PartitionTable>]>,
    hearing: Mutex<InMemoryHearing>,
    noted: Mutex<BTreeSet<(u16, u32)>>,
    digests: RandomState,
}

impl InMemoryFleet {
    pub fn new(partitions: u16) -> InMemoryFleet {
        let tables = (0..partitions.max(1)).map(|_| Mutex::default()).collect();
        InMemoryFleet {
            tables,
            hearing: Mutex::default(),
            noted: Mutex::default(),
            digests: RandomState::default(),
        }
    }

    pub fn partitions(&self) -> u16 {
        self.tables.len() as u16
    }

    pub fn partition(&self, unit: &Unit) -> u16 {
        partition_of(unit, self.partitions())
    }

    pub fn table(&self, partition: u16) -> MutexGuard<'_, PartitionTable> {
        self.tables[usize::from(partition)].lock().expect("nothing panics under this lock")
    }

    pub fn hearing(&self) -> MutexGuard<'_, InMemoryHearing> {
        self.hearing.lock().expect("nothing panics under this lock")
    }

    /// Pages with units that an instance changed and another one shows, see `Queries::note`.
    pub fn noted(&self) -> MutexGuard<'_, BTreeSet<(u16, u32)>> {
        self.noted.lock().expect("nothing panics under this lock")
    }

    /// The newest heartbeat of the fleet.
    pub fn newest(&self) -> Option<Timestamp> {
        let newest_of = |partition| {
            let table = self.table(partition);
            table.rows.range(0..table.rows.len()).filter_map(|row| row.alive.get()).max()
        };
        (0..self.partitions()).filter_map(newest_of).max()
    }

    /// Every unit with an expiry key counts as heard up to `heard`.
    pub fn presume(&self, heard: Option<Timestamp>) {
        for partition in 0..self.partitions() {
            for row in self.table(partition).rows.iter_mut() {
                row.alive = row.alive.get().map(|alive| heard.map_or(alive, |heard| heard.max(alive))).into();
            }
        }
    }

    /// The name of the unit in a slot of a partition.
    pub fn name_at(&self, partition: u16, slot: u32) -> Option<String> {
        let table = self.tables.get(usize::from(partition))?.lock().expect("nothing panics under this lock");
        let row = table.rows.range(slot as usize..slot as usize + 1).next()?;
        if !row.flags.contains(RowFlags::STORED) {
            return None;
        }
        table.unit(row).ok().map(|unit| unit.to_string())
    }

    /// The digest of facts in a row; zero for none. The facts stay on disk: they are read a few
    /// times a day.
    pub fn digest(&self, facts: Option<&str>) -> u64 {
        facts.map_or(0, |facts| self.digests.hash_one(facts).max(1))
    }
}

//! The fleet in memory: the table of units, which the mirror reads too, and the engine's own values beside it. Every
//! partition has its own locks, which are held for microseconds and never over an await.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};

use super::broker_numbers::BrokerNumbers;
use super::in_memory_hearing::InMemoryHearing;
use super::partition_table::{CommittedFacts, EngineState, PartitionTable};
use crate::clock::Timestamp;
use crate::presence::{Facts, Unit};
use crate::store::partition_of;
use crate::store::table::UnitTables;

pub(super) struct InMemoryFleet {
    units: Arc<UnitTables>,
    partitions: Box<[Mutex<EngineState>]>,
    hearing: Mutex<InMemoryHearing>,
    brokers: BrokerNumbers,
    digests: RandomState,
}

impl InMemoryFleet {
    /// A fleet without units, counted by the labels `labels`.
    pub fn new(partitions: u16, labels: &[String]) -> InMemoryFleet {
        let units = Arc::new(UnitTables::new(partitions, labels));
        InMemoryFleet {
            partitions: (0..units.partitions()).map(|_| Mutex::default()).collect(),
            units,
            hearing: Mutex::default(),
            brokers: BrokerNumbers::default(),
            digests: RandomState::default(),
        }
    }

    pub fn units(&self) -> &Arc<UnitTables> {
        &self.units
    }

    pub fn partitions(&self) -> u16 {
        self.units.partitions()
    }

    pub fn partition(&self, unit: &Unit) -> u16 {
        partition_of(unit, self.partitions())
    }

    /// Locks a partition: first the engine's own values, then the rows.
    pub fn table(&self, partition: u16) -> PartitionTable<'_> {
        let state = self.partitions[usize::from(partition)].lock();
        PartitionTable::new(state, self.units.write(partition), &self.brokers)
    }

    pub fn brokers(&self) -> &BrokerNumbers {
        &self.brokers
    }

    pub fn hearing(&self) -> MutexGuard<'_, InMemoryHearing> {
        self.hearing.lock()
    }

    /// The newest heartbeat of the fleet.
    pub fn newest(&self) -> Option<Timestamp> {
        (0..self.partitions()).filter_map(|partition| self.table(partition).newest()).max()
    }

    /// Lets every unit with an expiry key count as heard up to `heard`.
    pub fn presume(&self, heard: Option<Timestamp>) {
        let Some(heard) = heard else { return };
        (0..self.partitions()).for_each(|partition| self.table(partition).presume(heard));
    }

    /// The name of the unit in a slot of a partition.
    pub fn name_at(&self, partition: u16, slot: u32) -> Option<String> {
        if partition >= self.partitions() {
            return None;
        }
        self.table(partition).stored_name(slot)
    }

    /// The facts as readers get them.
    pub fn committed(&self, facts: Option<&Facts>) -> Option<CommittedFacts> {
        CommittedFacts::of(facts?, self.units.labels())
    }

    /// The digest of facts; zero for none. The facts stay on disk: they are read a few
    /// times a day.
    pub fn digest(&self, facts: Option<&str>) -> u64 {
        facts.map_or(0, |facts| self.digests.hash_one(facts).max(1))
    }
}

//! The fleet in memory: every partition behind a lock of its own, which is held for microseconds and
//! never over an await.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard};

use foldhash::fast::RandomState;

use super::ears::Ears;
use super::shard::Shard;
use crate::engine::partition_of;
use crate::presence::Unit;

/// The fleet in memory.
pub(super) struct Memory {
    shards: Box<[Mutex<Shard>]>,
    ears: Mutex<Ears>,
    noted: Mutex<BTreeSet<(u16, u32)>>,
    digests: RandomState,
}

impl Memory {
    pub fn new(partitions: u16) -> Memory {
        let shards = (0..partitions.max(1)).map(|_| Mutex::default()).collect();
        Memory { shards, ears: Mutex::default(), noted: Mutex::default(), digests: RandomState::default() }
    }

    pub fn partitions(&self) -> u16 {
        self.shards.len() as u16
    }

    pub fn partition(&self, unit: &Unit) -> u16 {
        partition_of(unit, self.partitions())
    }

    pub fn shard(&self, partition: u16) -> MutexGuard<'_, Shard> {
        self.shards[usize::from(partition)].lock().expect("nothing panics under this lock")
    }

    pub fn ears(&self) -> MutexGuard<'_, Ears> {
        self.ears.lock().expect("nothing panics under this lock")
    }

    /// Pages on which somebody changed something who does not show them.
    pub fn noted(&self) -> MutexGuard<'_, BTreeSet<(u16, u32)>> {
        self.noted.lock().expect("nothing panics under this lock")
    }

    /// What stands for facts in a row; zero for none. A digest instead of the text itself, which
    /// stays on disk, where it is needed a few times a day.
    pub fn digest(&self, facts: Option<&str>) -> u64 {
        facts.map_or(0, |facts| self.digests.hash_one(facts).max(1))
    }
}

//! The fleet in memory: every partition behind a lock of its own, which is held for microseconds and
//! never over an await.

use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard};

use foldhash::fast::RandomState;

use super::shard::Shard;
use crate::clock::Timestamp;
use crate::engine::partition_of;
use crate::presence::{Interval, Ledger, Unit};

/// How far Rollcall has heard.
#[derive(Clone, Default)]
pub(super) struct Heard {
    pub at: Option<Timestamp>,
    pub ledger: Ledger,
}

impl Heard {
    /// Moves forward, never back; what was blind before that goes into the ledger.
    pub fn advance(&mut self, at: Timestamp, blind: Option<Interval>, useful_since: Timestamp) {
        self.at = self.at.max(Some(at));
        if let Some(blind) = blind {
            let useful = self.ledger.intervals().iter().copied().filter(|i| i.to > useful_since);
            self.ledger = Ledger::new(useful.chain([blind]));
        }
    }
}

/// The fleet in memory.
pub(super) struct Memory {
    shards: Box<[Mutex<Shard>]>,
    heard: Mutex<Heard>,
    digests: RandomState,
}

impl Memory {
    pub fn new(partitions: u16) -> Memory {
        let shards = (0..partitions.max(1)).map(|_| Mutex::default()).collect();
        Memory { shards, heard: Mutex::default(), digests: RandomState::default() }
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

    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().expect("nothing panics under this lock")
    }

    /// What stands for facts in a row; zero for none. A digest instead of the text itself, which
    /// stays on disk, where it is needed a few times a day.
    pub fn digest(&self, facts: Option<&str>) -> u64 {
        facts.map_or(0, |facts| self.digests.hash_one(facts).max(1))
    }
}

//! The number of units of each kind in all partitions together, known at any moment without counting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sums, by the number of the kind.
#[derive(Clone, Default)]
pub(super) struct KindCounts(Arc<[AtomicU64]>);

/// The share of one partition in the sums, which ends when it is dropped.
#[derive(Default)]
pub(super) struct PartitionCounts {
    sums: KindCounts,
    here: Vec<u32>,
}

impl KindCounts {
    pub fn new(kinds: usize) -> KindCounts {
        KindCounts((0..kinds).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn of(&self, kind: u16) -> u64 {
        self.0.get(usize::from(kind)).map_or(0, |sum| sum.load(Ordering::SeqCst))
    }

    pub fn total(&self) -> u64 {
        self.0.iter().map(|sum| sum.load(Ordering::SeqCst)).sum()
    }

    pub fn partition(&self) -> PartitionCounts {
        PartitionCounts { sums: self.clone(), here: vec![0; self.0.len()] }
    }
}

impl PartitionCounts {
    /// The counts of the same partition without any unit.
    pub fn zeroed(&self) -> PartitionCounts {
        self.sums.partition()
    }

    /// The number of units of all kinds in this partition.
    pub fn total(&self) -> u64 {
        self.here.iter().map(|here| u64::from(*here)).sum()
    }

    pub fn add(&mut self, kind: u16) {
        if let Some((here, sum)) = self.of(kind) {
            *here += 1;
            sum.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub fn remove(&mut self, kind: u16) {
        if let Some((here, sum)) = self.of(kind) {
            *here -= 1;
            sum.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn of(&mut self, kind: u16) -> Option<(&mut u32, &AtomicU64)> {
        self.here.get_mut(usize::from(kind)).zip(self.sums.0.get(usize::from(kind)))
    }
}

impl Drop for PartitionCounts {
    fn drop(&mut self) {
        for (here, sum) in self.here.iter().zip(self.sums.0.iter()) {
            sum.fetch_sub(u64::from(*here), Ordering::SeqCst);
        }
    }
}

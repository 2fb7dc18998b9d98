//! The kinds of the units in memory, by number, with the number of units of each, which needs no counting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::presence::Kind;

/// Kinds, by number; a kind keeps its number.
#[derive(Default)]
pub struct Kinds(ArcSwap<Vec<Arc<KindUnits>>>);

/// A kind and the number of its units in all partitions.
struct KindUnits {
    kind: Kind,
    units: AtomicU64,
}

impl Kinds {
    /// The number of the kind with this name.
    pub fn number(&self, name: &str) -> Option<u16> {
        let found = self.0.load().iter().position(|known| known.kind.as_str() == name)?;
        u16::try_from(found).ok()
    }

    /// The number of a kind, which may be new; `None` if there are too many.
    pub fn enter(&self, kind: &Kind) -> Option<u16> {
        self.0.rcu(|kinds| {
            let is_known =
                kinds.iter().any(|known| known.kind == *kind) || kinds.len() > usize::from(u16::MAX);
            let new =
                (!is_known).then(|| Arc::new(KindUnits { kind: kind.clone(), units: AtomicU64::new(0) }));
            kinds.iter().cloned().chain(new).collect::<Vec<_>>()
        });
        self.number(kind.as_str())
    }

    /// The kind with this number, which comes from a row.
    pub fn kind(&self, number: u16) -> Kind {
        self.0.load()[usize::from(number)].kind.clone()
    }

    /// All kinds, by number.
    pub fn all(&self) -> Vec<Kind> {
        self.0.load().iter().map(|known| known.kind.clone()).collect()
    }

    /// The number of units of a kind.
    pub fn units(&self, number: u16) -> u64 {
        self.0.load().get(usize::from(number)).map_or(0, |kind| kind.units.load(Ordering::SeqCst))
    }

    fn add(&self, number: u16) {
        self.0.load()[usize::from(number)].units.fetch_add(1, Ordering::SeqCst);
    }

    fn remove(&self, number: u16, units: u64) {
        self.0.load()[usize::from(number)].units.fetch_sub(units, Ordering::SeqCst);
    }
}

/// One partition's share in the numbers of units; dropping it subtracts them.
#[derive(Default)]
pub(super) struct PartitionCounts {
    kinds: Arc<Kinds>,
    here: Vec<u32>,
}

impl PartitionCounts {
    pub fn new(kinds: Arc<Kinds>) -> PartitionCounts {
        PartitionCounts { kinds, here: Vec::new() }
    }

    pub fn kinds(&self) -> &Arc<Kinds> {
        &self.kinds
    }

    /// The number of units of all kinds in this partition.
    pub fn total(&self) -> u64 {
        self.here.iter().map(|here| u64::from(*here)).sum()
    }

    pub fn add(&mut self, kind: u16) {
        if self.here.len() <= usize::from(kind) {
            self.here.resize(usize::from(kind) + 1, 0);
        }
        self.here[usize::from(kind)] += 1;
        self.kinds.add(kind);
    }

    pub fn remove(&mut self, kind: u16) {
        self.here[usize::from(kind)] -= 1;
        self.kinds.remove(kind, 1);
    }
}

impl Drop for PartitionCounts {
    fn drop(&mut self) {
        for (kind, here) in (0..).zip(&self.here) {
            self.kinds.remove(kind, u64::from(*here));
        }
    }
}

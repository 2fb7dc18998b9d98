//! A dense copy of the roll in memory, for lists, counts and per-unit metrics.

use crate::clock::Timestamp;
use crate::presence::{Change, Snapshot, Unit};

/// The mirror of the roll.
#[derive(Default)]
pub struct Mirror {}

impl Mirror {
    /// A heartbeat of a unit that is present was recorded.
    pub fn seen(&self, _unit: &Unit, _at: Timestamp) {}

    /// A change was applied to the unit of that snapshot.
    pub fn changed(&self, _before: &Snapshot, _change: &Change) {}
}

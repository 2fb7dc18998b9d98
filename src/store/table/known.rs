//! Since when units are known.

use super::Blocks;
use crate::clock::Timestamp;
use crate::presence::Facts;

/// The second since which each unit is known, by slot; 0 for a unit that is older than its facts record. Empty while
/// no unit has such a time.
#[derive(Default)]
pub(super) struct KnownSince(Blocks<u32>);

impl KnownSince {
    pub fn of(facts: &Facts) -> u32 {
        let second = facts.known.map_or(0, |known| known.since.as_millis() / 1000);
        u32::try_from(second).unwrap_or(0)
    }

    pub fn set(&mut self, slot: u32, second: u32) {
        let slot = slot as usize;
        while second > 0 && self.0.len() <= slot {
            self.0.push(0);
        }
        if let Some(entry) = self.0.get_mut(slot) {
            *entry = second;
        }
    }

    pub fn at(&self, slot: usize) -> Timestamp {
        let second = if slot < self.0.len() { self.0[slot] } else { 0 };
        Timestamp::from_millis(i64::from(second) * 1000)
    }

    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

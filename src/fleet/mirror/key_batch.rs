//! Rows whose expiry keys are read from the engine while the partition is unlocked.

use super::{Mark, Mirror};
use crate::clock::Timestamp;
use crate::presence::Unit;

/// The next rows of a partition, in order; used again for the rows after them.
#[derive(Default)]
pub struct KeyBatch {
    mark: u32,
    /// `<kind>:<unit>`, end to end.
    names: String,
    /// Where each name ends.
    ends: Vec<usize>,
    slots: Vec<u32>,
    next_slot: usize,
    slot_count: usize,
}

/// Units whose expiry key differs from their row.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeyMismatch {
    /// Units that are offline or never seen, with a key: they are back, or a crash left the key.
    pub unexpected: Vec<Unit>,
    /// Units that are present, without a key: they are overdue, or offline and the mirror does not know it.
    pub missing: Vec<Unit>,
}

impl KeyBatch {
    /// The names of the units, `<kind>:<unit>`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.names[start..*end])
    }

    /// The share of the partition that this batch and those before it cover, from 0 to 1.
    pub fn done(&self) -> f64 {
        self.next_slot as f64 / self.slot_count.max(1) as f64
    }
}

impl Mirror {
    /// Puts the next rows of a partition into `batch`, at most `most`; false if there is none.
    pub fn next_batch(&self, partition: u16, batch: &mut KeyBatch, most: usize) -> bool {
        let Mark { number, .. } = self.mark(partition);
        let table = self.read(partition);
        batch.mark = number;
        batch.names.clear();
        batch.ends.clear();
        batch.slots.clear();
        batch.slot_count = table.len();
        while batch.next_slot < table.len() && batch.slots.len() < most {
            let row = &table[batch.next_slot as u32];
            if let Some(rank) = self.rank(row) {
                batch.names.push_str(self.kinds[rank].as_str());
                batch.names.push(':');
                batch.names.push_str(table.id(row));
                batch.ends.push(batch.names.len());
                batch.slots.push(batch.next_slot as u32);
            }
            batch.next_slot += 1;
        }
        !batch.slots.is_empty()
    }

    /// Applies the expiry keys of a batch, in order, and answers with the units that differ.
    pub fn apply_keys(&self, partition: u16, batch: &KeyBatch, alive: &[Option<Timestamp>]) -> KeyMismatch {
        let mut table = self.write(partition);
        let mut mismatch = KeyMismatch::default();
        for ((slot, name), alive) in batch.slots.iter().zip(batch.names()).zip(alive) {
            let Some(state) = table.apply_key(*slot, batch.mark, *alive) else { continue };
            if alive.is_none() && state.is_present() {
                mismatch.missing.extend(name.parse::<Unit>());
            } else if alive.is_some() && !state.is_present() {
                mismatch.unexpected.extend(name.parse::<Unit>());
            }
        }
        mismatch
    }
}

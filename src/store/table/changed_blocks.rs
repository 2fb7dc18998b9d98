//! The blocks of a table with rhythms that are not stored yet.

/// The slots of a block.
pub const BLOCK_UNITS: usize = 512;

/// The blocks in which a rhythm changed since they were last taken, one bit each.
#[derive(Default)]
pub struct ChangedBlocks(Vec<u64>);

impl ChangedBlocks {
    pub fn add(&mut self, block: usize) {
        if self.0.len() <= block / 64 {
            self.0.resize(block / 64 + 1, 0);
        }
        self.0[block / 64] |= 1 << (block % 64);
    }

    pub fn take(&mut self) -> Vec<usize> {
        let words = std::mem::take(&mut self.0).into_iter().enumerate();
        let bits = |(at, word): (usize, u64)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * at + bit)
        };
        words.flat_map(bits).collect()
    }
}

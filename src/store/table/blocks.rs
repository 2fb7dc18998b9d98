//! A long list in blocks: it grows without a copy and without unused memory.
//!
//! # Why not one `Vec`
//! A growing `Vec` of a million rows is copied repeatedly, each time into an allocation of another size, and the old
//! allocations are fragments that fit no other: after a start they were a fifth of the process's memory. Blocks of
//! one size leave no fragments.

use std::ops::{Index, IndexMut, Range};

/// The number of entries of a block.
const BLOCK: usize = 512;

/// A list that only grows.
pub struct Blocks<T> {
    /// Each block but the last is full, and none is ever reallocated.
    blocks: Vec<Vec<T>>,
}

impl<T> Default for Blocks<T> {
    fn default() -> Blocks<T> {
        Blocks { blocks: Vec::new() }
    }
}

impl<T> Blocks<T> {
    pub fn len(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub fn push(&mut self, entry: T) {
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(entry),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(entry);
                self.blocks.push(block);
            }
        }
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.blocks.get_mut(index / BLOCK)?.get_mut(index % BLOCK)
    }

    /// The entries in a range, up to the end of the list.
    pub fn range(&self, indexes: Range<usize>) -> impl Iterator<Item = &T> {
        self.indexed(indexes).map(|(_, entry)| entry)
    }

    /// The entries in a range with their indexes, up to the end of the list.
    pub fn indexed(&self, indexes: Range<usize>) -> impl Iterator<Item = (usize, &T)> {
        let last = indexes.end.div_ceil(BLOCK).min(self.blocks.len());
        let blocks = (indexes.start / BLOCK).min(last)..last;
        blocks.flat_map(move |number| {
            let (block, first) = (&self.blocks[number], number * BLOCK);
            let within = |index: usize| index.saturating_sub(first).min(block.len());
            let (start, end) = (within(indexes.start), within(indexes.end));
            block[start..end].iter().enumerate().map(move |(at, entry)| (first + start + at, entry))
        })
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.blocks.iter_mut().flatten()
    }

    /// The memory of the list.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK * size_of::<T>()
    }
}

impl<T> Index<usize> for Blocks<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.blocks[index / BLOCK][index % BLOCK]
    }
}

impl<T> IndexMut<usize> for Blocks<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.blocks[index / BLOCK][index % BLOCK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_the_same_entries_as_a_vec() {
        let (mut list, mut blocks) = (Vec::new(), Blocks::default());
        for entry in 0..3 * BLOCK + 7 {
            assert_eq!(blocks.len(), list.len());
            list.push(entry);
            blocks.push(entry);
        }
        blocks[BLOCK] += 1;
        list[BLOCK] += 1;
        assert!(blocks.iter_mut().map(|entry| *entry).eq(list.iter().copied()));
        assert_eq!(blocks.get_mut(list.len()), None);
        let edges = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, list.len(), list.len() + 1, 9 * BLOCK];
        for start in edges {
            for end in edges.into_iter().filter(|end| start <= *end) {
                let expected = &list[start.min(list.len())..end.min(list.len())];
                assert!(blocks.range(start..end).eq(expected), "{start}..{end}");
            }
        }
    }
}

//! The newest transitions that this instance has applied, for clients that follow the fleet.
//!
//! Memory holds up to `MAX_TRANSITIONS` of them. A reader that is further behind learns that some are missing;
//! records and notifications are complete without them.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::presence::OfflineRecord;

/// The most transitions in memory: in a storm, the transitions of a moment.
const MAX_TRANSITIONS: usize = 4096;

/// The newest items of a sequence, by their positions. Cheap to read from any position.
pub struct Newest<T> {
    most: usize,
    items: VecDeque<T>,
    /// The position after the newest item.
    end: u64,
}

/// Items after a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following<T> {
    pub items: Vec<T>,
    /// The position after the items: where to go on.
    pub end: u64,
    /// Whether items between the position and the first of `items` are gone.
    pub is_cut: bool,
}

impl<T: Clone> Newest<T> {
    pub fn new(most: usize) -> Newest<T> {
        Newest { most, items: VecDeque::new(), end: 0 }
    }

    /// Adds an item; the oldest leaves if there are too many.
    pub fn push(&mut self, item: T) {
        if self.items.len() >= self.most {
            self.items.pop_front();
        }
        self.items.push_back(item);
        self.end += 1;
    }

    /// Removes all items: a reader at a position before this learns that some are gone.
    pub fn forget(&mut self) {
        self.items.clear();
        self.end += 1;
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// Up to `limit` items from that position on. A position after the end belongs to another sequence, so all of its
    /// items are gone.
    pub fn after(&self, position: u64, limit: usize) -> Following<T> {
        let first = self.end - self.items.len() as u64;
        if position > self.end || position < first {
            return Following { items: Vec::new(), end: self.end, is_cut: true };
        }
        let items: Vec<T> =
            self.items.iter().skip((position - first) as usize).take(limit).cloned().collect();
        Following { end: position + items.len() as u64, items, is_cut: false }
    }
}

/// The newest transitions of this process.
pub struct Transitions {
    /// The number of this process: positions of another process mean nothing here.
    run: u64,
    newest: Mutex<Newest<OfflineRecord>>,
}

impl Default for Transitions {
    fn default() -> Transitions {
        Transitions { run: rand::random(), newest: Mutex::new(Newest::new(MAX_TRANSITIONS)) }
    }
}

impl Transitions {
    /// A number of this process.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Adds a record that was opened or closed.
    pub fn push(&self, record: &OfflineRecord) {
        self.newest.lock().push(record.clone());
    }

    pub fn end(&self) -> u64 {
        self.newest.lock().end()
    }

    /// Up to `limit` transitions from that position on.
    pub fn after(&self, position: u64, limit: usize) -> Following<OfflineRecord> {
        self.newest.lock().after(position, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_too_far_behind_learns_that_items_are_gone() {
        let mut newest = Newest::new(3);
        (1..=5).for_each(|item| newest.push(item));
        let cases: [(u64, usize, &[i32], u64, bool); 7] = [
            (2, 9, &[3, 4, 5], 5, false),
            (2, 2, &[3, 4], 4, false),
            (4, 9, &[5], 5, false),
            (5, 9, &[], 5, false),
            (1, 9, &[], 5, true),
            (0, 9, &[], 5, true),
            (6, 9, &[], 5, true),
        ];
        for (position, limit, items, end, is_cut) in cases {
            let wanted = Following { items: items.to_vec(), end, is_cut };
            assert_eq!(newest.after(position, limit), wanted, "{position}");
        }
        newest.forget();
        assert_eq!(newest.after(5, 9), Following { items: Vec::new(), end: 6, is_cut: true });
        newest.push(7);
        assert_eq!(newest.after(6, 9), Following { items: vec![7], end: 7, is_cut: false });
    }
}

//! Messages on their way to the recorder, handed over in heaps.
//!
//! # Why not one by one
//! The first message that is handed over wakes the recorder, which then records what it finds: that one
//! and a few more, while the rest of what came with it waits for the next batch. Small batches cost the
//! engine and everybody between us and it many times as much for a message as large ones.

use tokio::sync::mpsc;

use crate::intake::record::Item;

/// Handed over at once, however many are to come: about what one batch of the engine holds.
const MOST: usize = 256;

/// The way to the recorder, which holds so many messages at the most, those that are not handed over yet
/// among them.
pub(in crate::intake) struct Heap {
    queue: mpsc::Sender<Item>,
    items: Vec<Item>,
}

impl Heap {
    pub fn new(queue: mpsc::Sender<Item>) -> Heap {
        Heap { queue, items: Vec::with_capacity(MOST) }
    }

    /// For how many more there is room.
    pub fn room(&self) -> usize {
        self.queue.capacity() - self.items.len()
    }

    /// Waits until there is that much room.
    pub async fn has_room(&self, wanted: usize) -> bool {
        self.queue.reserve_many(wanted + self.items.len()).await.is_ok()
    }

    /// Adds one. `false`: there is no room.
    pub fn add(&mut self, item: Item) -> bool {
        if self.room() == 0 {
            return false;
        }
        self.items.push(item);
        if self.items.len() >= MOST {
            self.hand_over();
        }
        true
    }

    /// Gives the recorder what has come. There is room for it: nobody else puts anything there.
    pub fn hand_over(&mut self) {
        if let Ok(places) = self.queue.try_reserve_many(self.items.len()) {
            places.zip(self.items.drain(..)).for_each(|(place, item)| place.send(item));
        }
    }
}

/// What was taken is recorded, also when the connection is given up.
impl Drop for Heap {
    fn drop(&mut self) {
        self.hand_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::intake::reader::What;

    fn item(connection: u64) -> Item {
        Item { what: What::Nothing, arrived: Timestamp::ZERO, connection, ack: None }
    }

    fn handed_over(queued: &mut mpsc::Receiver<Item>) -> Vec<u64> {
        std::iter::from_fn(|| queued.try_recv().ok()).map(|item| item.connection).collect()
    }

    #[tokio::test]
    async fn messages_are_handed_over_together_in_order_and_none_is_lost() {
        let (queue, mut queued) = mpsc::channel(2 * MOST);
        let mut heap = Heap::new(queue);
        assert!(heap.add(item(1)) && heap.add(item(2)));
        assert!(queued.is_empty());
        assert_eq!(heap.room(), 2 * MOST - 2, "what was not handed over takes its place");
        heap.hand_over();
        assert_eq!(handed_over(&mut queued), [1, 2]);
        for number in 0..MOST as u64 {
            assert!(heap.add(item(number)));
        }
        assert_eq!(handed_over(&mut queued).len(), MOST, "a full heap does not wait");
        assert!(heap.add(item(3)));
        drop(heap);
        assert_eq!(handed_over(&mut queued), [3]);
    }

    #[tokio::test]
    async fn there_is_no_more_room_than_the_queue_has() {
        let (queue, mut queued) = mpsc::channel(3);
        let mut heap = Heap::new(queue);
        assert_eq!([1, 2, 3, 4].map(|number| heap.add(item(number))), [true, true, true, false]);
        heap.hand_over();
        assert!(!heap.add(item(5)));
        assert_eq!(handed_over(&mut queued), [1, 2, 3]);
        assert!(heap.add(item(6)));
    }
}

//! Hands messages to the recorder in batches.
//!
//! # Why not one by one
//! The first message wakes the recorder, which then records that message and a few more, while the rest of the burst
//! waits for the next batch. A message in a small batch costs the engine, and every process between Rollcall and it,
//! many times as much as one in a large batch.

use tokio::sync::mpsc;

use crate::intake::record::QueuedMessage;

/// This many messages are sent at once, even if more follow: about one batch of the engine.
const MAX_BATCH: usize = 256;

/// The queue to the recorder. Messages that are not sent yet take room in it.
pub(in crate::intake) struct BatchSender {
    queue: mpsc::Sender<QueuedMessage>,
    messages: Vec<QueuedMessage>,
}

impl BatchSender {
    pub fn new(queue: mpsc::Sender<QueuedMessage>) -> BatchSender {
        BatchSender { queue, messages: Vec::with_capacity(MAX_BATCH) }
    }

    /// The number of messages for which there is room.
    pub fn room(&self) -> usize {
        self.queue.capacity() - self.messages.len()
    }

    /// Waits until there is room for `wanted` messages.
    pub async fn has_room(&self, wanted: usize) -> bool {
        self.queue.reserve_many(wanted + self.messages.len()).await.is_ok()
    }

    /// Adds a message; `false` if there is no room.
    pub fn add(&mut self, message: QueuedMessage) -> bool {
        if self.room() == 0 {
            return false;
        }
        self.messages.push(message);
        if self.messages.len() >= MAX_BATCH {
            self.hand_over();
        }
        true
    }

    /// Sends all messages to the recorder. There is room for them, because the queue has no other sender.
    pub fn hand_over(&mut self) {
        if let Ok(permits) = self.queue.try_reserve_many(self.messages.len()) {
            permits.zip(self.messages.drain(..)).for_each(|(permit, message)| permit.send(message));
        }
    }
}

/// The recorder gets all messages that were added, even if the connection is dropped.
impl Drop for BatchSender {
    fn drop(&mut self) {
        self.hand_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::intake::reader::Content;

    fn message(connection: u64) -> QueuedMessage {
        QueuedMessage { content: Content::Nothing, arrived: Timestamp::ZERO, connection, ack: None }
    }

    fn handed_over(queued: &mut mpsc::Receiver<QueuedMessage>) -> Vec<u64> {
        std::iter::from_fn(|| queued.try_recv().ok()).map(|message| message.connection).collect()
    }

    #[tokio::test]
    async fn messages_are_handed_over_together_in_order_and_none_is_lost() {
        let (queue, mut queued) = mpsc::channel(2 * MAX_BATCH);
        let mut sender = BatchSender::new(queue);
        assert!(sender.add(message(1)) && sender.add(message(2)));
        assert!(queued.is_empty());
        assert_eq!(sender.room(), 2 * MAX_BATCH - 2, "messages that were not handed over take room");
        sender.hand_over();
        assert_eq!(handed_over(&mut queued), [1, 2]);
        for number in 0..MAX_BATCH as u64 {
            assert!(sender.add(message(number)));
        }
        assert_eq!(handed_over(&mut queued).len(), MAX_BATCH, "a full batch does not wait");
        assert!(sender.add(message(3)));
        drop(sender);
        assert_eq!(handed_over(&mut queued), [3]);
    }

    #[tokio::test]
    async fn there_is_no_more_room_than_the_queue_has() {
        let (queue, mut queued) = mpsc::channel(3);
        let mut sender = BatchSender::new(queue);
        assert_eq!([1, 2, 3, 4].map(|number| sender.add(message(number))), [true, true, true, false]);
        sender.hand_over();
        assert!(!sender.add(message(5)));
        assert_eq!(handed_over(&mut queued), [1, 2, 3]);
        assert!(sender.add(message(6)));
    }
}

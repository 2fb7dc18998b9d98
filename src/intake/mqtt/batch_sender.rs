//! Hands messages to the recorder in batches.
//!
//! # Why not one by one
//! The first message wakes the recorder, which then records that message and a few more, while the rest of the burst
//! waits for the next batch. A message in a small batch costs the engine, and every process between Rollcall and it,
//! many times as much as one in a large batch. So batches of heartbeats alone are sent a pause apart: their order and
//! the time of their arrival stay, and no unit is judged before the canary that follows them, which never waits.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::intake::reader::Content;
use crate::intake::record::QueuedMessage;

/// This many messages are sent at once, even if more follow: about one batch of the engine.
const MAX_BATCH: usize = 256;

/// The time between batches of heartbeats, which are recorded that much later at most.
const PAUSE: Duration = Duration::from_millis(2);

/// With so many messages to acknowledge no batch waits: the broker sends a client few messages unacknowledged.
const MOST_UNACKNOWLEDGED: usize = 8;

/// The queue to the recorder. Messages that are not sent yet take room in it.
pub(in crate::intake) struct BatchSender {
    queue: mpsc::Sender<QueuedMessage>,
    messages: Vec<QueuedMessage>,
    /// The messages that are not sent yet and that their sender waits for.
    unacknowledged: usize,
    /// A message that is not sent yet is no heartbeat.
    is_urgent: bool,
    /// When batches were sent last.
    sent: Option<Instant>,
}

impl BatchSender {
    pub fn new(queue: mpsc::Sender<QueuedMessage>) -> BatchSender {
        let messages = Vec::with_capacity(MAX_BATCH);
        BatchSender { queue, messages, unacknowledged: 0, is_urgent: false, sent: None }
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
        self.unacknowledged += usize::from(message.ack.is_some());
        self.is_urgent |= !matches!(message.content, Content::Heartbeat(_) | Content::Nothing);
        self.messages.push(message);
        if self.messages.len() >= MAX_BATCH {
            self.hand_over();
        }
        true
    }

    /// Sends all messages to the recorder, unless they may wait. Returns until when they wait.
    pub fn hand_over_due(&mut self, now: Instant) -> Option<Instant> {
        let until = self.sent.map(|sent| sent + PAUSE).filter(|until| *until > now);
        let may_wait = !self.is_urgent && self.unacknowledged < MOST_UNACKNOWLEDGED;
        if self.messages.is_empty() || (may_wait && until.is_some()) {
            return until.filter(|_| !self.messages.is_empty());
        }
        self.hand_over();
        self.sent = Some(now);
        None
    }

    /// Sends all messages to the recorder. There is room for them, because the queue has no other sender.
    pub fn hand_over(&mut self) {
        if let Ok(permits) = self.queue.try_reserve_many(self.messages.len()) {
            permits.zip(self.messages.drain(..)).for_each(|(permit, message)| permit.send(message));
            (self.unacknowledged, self.is_urgent) = (0, false);
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
    use crate::clock::{Timestamp, monotonic};
    use crate::intake::mqtt::BrokerAck;
    use crate::intake::record::Ack;

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
    async fn heartbeats_wait_for_a_pause_and_nothing_else_does() {
        let (queue, mut queued) = mpsc::channel(2 * MAX_BATCH);
        let mut sender = BatchSender::new(queue);
        let (begin, pause) = (monotonic(), PAUSE);
        sender.add(message(1));
        assert_eq!(sender.hand_over_due(begin), None, "the first one comes after a pause");
        assert_eq!(sender.hand_over_due(begin), None, "there is nothing to wait for");
        sender.add(message(2));
        assert_eq!(sender.hand_over_due(begin + pause / 2), Some(begin + pause));
        assert_eq!(handed_over(&mut queued), [1]);
        sender.add(message(3));
        assert_eq!(sender.hand_over_due(begin + pause), None);
        assert_eq!(handed_over(&mut queued), [2, 3]);

        sender.add(message(4));
        sender.add(QueuedMessage { content: Content::Unsubscribed, ..message(5) });
        assert_eq!(sender.hand_over_due(begin + pause), None);
        assert_eq!(handed_over(&mut queued), [4, 5], "what is no heartbeat takes those before it along");

        for packet in 1..=MOST_UNACKNOWLEDGED as u16 {
            assert_eq!(sender.hand_over_due(begin + pause).is_some(), packet > 1);
            let ack = Ack::Broker(BrokerAck { connection: 1, packet });
            sender.add(QueuedMessage { ack: Some(ack), ..message(packet.into()) });
        }
        assert_eq!(sender.hand_over_due(begin + pause), None);
        assert_eq!(handed_over(&mut queued).len(), MOST_UNACKNOWLEDGED);
        sender.add(message(6));
        assert!(sender.hand_over_due(begin + pause).is_some(), "the next batch begins anew");
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

//! Waiting notifications and dead letters.

use async_trait::async_trait;

use super::{DeadLetter, Delivery, ListOrder, Result, WaitingPage};
use crate::clock::Timestamp;
use crate::telemetry::Backlog;

/// The changes of one step of discarding; zeros if nothing was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// How many notifications became dead letters, which a later step removes.
    pub ended: usize,
    /// How many dead letters were removed.
    pub removed: usize,
}

/// Deliveries as operators see and change them.
#[async_trait]
pub trait DeliveryRecords: Send + Sync {
    /// Enters the configured receivers in the list of receivers; the service calls this at each start. The others
    /// in the list are absent from now on. Safe to repeat.
    async fn register_receivers(&self, receivers: &[String], now: Timestamp) -> Result<()>;

    /// The backlog of each receiver that was ever entered, configured or not, by its name; receivers without a
    /// backlog are left out.
    async fn kept(&self) -> Result<Vec<(String, Backlog)>>;

    /// A page of the notifications that wait for a receiver, in an order of the engine. Those that come or go meanwhile
    /// may be missing or there twice. `after`: [`WaitingPage::next`] of the page before.
    async fn waiting(&self, receiver: &str, after: Option<&str>) -> Result<WaitingPage>;

    /// For each of these groups, by their keys, whether a notification of it waits for the receiver.
    async fn have_waiting(&self, receiver: &str, groups: &[String]) -> Result<Vec<bool>>;

    /// Queues a notification once more for its receiver, see [`DeliveryRecords::replay_all`].
    async fn replay(&self, delivery: &Delivery, now: Timestamp) -> Result<bool> {
        Ok(self.replay_all(std::slice::from_ref(delivery), now).await? == [true])
    }

    /// Queues notifications once more for their receivers, under their ids and in this order; their dead letters are
    /// removed, and the receivers are notified of the returns of their silences again. Their number changes little of
    /// how often the engine is asked. Answers in order; `false`: it waits already. After an error some may be queued.
    async fn replay_all(&self, deliveries: &[Delivery], now: Timestamp) -> Result<Vec<bool>>;

    /// These deliveries without the returns of silences that the receiver was not notified of, and without silences that
    /// were over before it was configured again: one may be without members then. Those of a group are in their order.
    /// From now on the receiver counts as notified of the silences of a dead letter that is among them.
    async fn leave_out(&self, receiver: &str, deliveries: Vec<Delivery>) -> Result<Vec<Delivery>>;

    /// Dead letters of a receiver, newest first.
    async fn dead_letters(&self, receiver: &str, limit: usize) -> Result<Vec<DeadLetter>> {
        let (from, until) = (Timestamp::ZERO, Timestamp::from_millis(i64::MAX));
        self.dead_letters_between(receiver, from, until, limit, ListOrder::NewestFirst).await
    }

    /// Dead letters of a receiver that were given up from one moment up to the other.
    async fn dead_letters_between(
        &self,
        receiver: &str,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
        order: ListOrder,
    ) -> Result<Vec<DeadLetter>>;

    /// The dead letter of a notification, if there is one.
    async fn letter(&self, receiver: &str, notification: &str) -> Result<Option<DeadLetter>>;

    /// Removes dead letters. Answers how many there were.
    async fn purge(&self, letters: &[DeadLetter]) -> Result<usize>;

    /// Discards a bounded number of dead letters of a receiver and of notifications that wait for it, which become
    /// dead letters first. This receiver is not notified of the returns of the discarded silences.
    async fn discard(&self, receiver: &str, now: Timestamp) -> Result<Discarded>;
}

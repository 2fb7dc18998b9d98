//! Deliveries of notifications to receivers.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Delivery, Destinations, End, Ended, Layout, MeantFor, Result};
use crate::clock::Timestamp;
use crate::telemetry::Backlog;

/// Deliveries as the loops of receivers need them.
#[async_trait]
pub trait DeliveryStore: Layout {
    /// Brings the deliveries of a receiver that was absent up to date, before any of them is leased: silences that
    /// are over by now, and their returns, are left out. From then on the receiver is not absent. Answers how many
    /// are left out; zero for a receiver that was not absent. Safe to repeat.
    async fn bring_up_to_date(&self, receiver: &str, now: Timestamp) -> Result<usize>;

    /// Leases due deliveries of a receiver in these partitions to the caller until `until`: at most `limit`, and
    /// those of the first partitions first. Of each group only the first delivery is leased, so deliveries of a
    /// group stay in order. A delivery without content by now is ended instead, and counted as left out. The leases
    /// of an engine within the process end with the process.
    async fn lease(
        &self,
        partitions: &[u16],
        receiver: &str,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Delivery>>;

    /// When the next delivery of a receiver is due in these partitions.
    async fn first_lease(&self, partitions: &[u16], receiver: &str) -> Result<Option<Timestamp>>;

    /// Extends leases of deliveries that have not ended, until `until`. Answers, in order, which leases the caller
    /// still holds: not those that another instance has taken since.
    async fn extend_leases(&self, deliveries: &[Arc<Delivery>], until: Timestamp) -> Result<Vec<bool>>;

    /// Records how attempts ended, and puts each on record, in the same step. Safe to repeat.
    ///
    /// A delivery that succeeded is never leased again; the next delivery of its group is due at `now`. One that
    /// failed is not attempted before the moment of its end; nothing changes if another instance has leased it since.
    /// One that is given up becomes a dead letter: its receiver is not notified of the returns of its silences.
    async fn end_attempts(&self, ended: &[Ended], now: Timestamp) -> Result<()>;

    /// Records that deliveries succeeded, without their attempts.
    async fn delivered(&self, deliveries: &[Delivery], now: Timestamp) -> Result<()> {
        let ended: Vec<Ended> =
            deliveries.iter().map(|delivery| unattempted(delivery, End::Delivered)).collect();
        self.end_attempts(&ended, now).await
    }

    /// Records that a delivery failed and that the next attempt is not before `at`, without the attempt.
    async fn retry_later(&self, delivery: &Delivery, at: Timestamp) -> Result<()> {
        self.end_attempts(&[unattempted(delivery, End::RetryAt(at))], at).await
    }

    /// Gives a delivery up and keeps it as a dead letter, without an attempt.
    async fn dead_letter(&self, delivery: &Delivery, reason: &str, now: Timestamp) -> Result<()> {
        self.end_attempts(&[unattempted(delivery, End::DeadLetter(reason.to_owned()))], now).await
    }

    /// How many groups of a receiver wait for a delivery in these partitions, and how many dead letters
    /// it has there.
    async fn backlog(&self, partitions: &[u16], receiver: &str) -> Result<Backlog>;

    /// Since when a receiver takes nothing: `now`, if that was not known.
    async fn down_since(&self, receiver: &str, now: Timestamp) -> Result<Timestamp>;

    /// A receiver takes notifications again.
    async fn is_up(&self, receiver: &str) -> Result<()>;

    /// Queues the notifications of a receiver in these partitions for its fallback too: each once, under an id of its
    /// own, also if several instances call this or one calls it again. Those of groups of which it is notified itself are
    /// left out. Answers how many were queued.
    async fn fall_back(
        &self,
        partitions: &[u16],
        meant_for: &MeantFor,
        to: &str,
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize>;
}

fn unattempted(delivery: &Delivery, end: End) -> Ended {
    Ended { delivery: Arc::new(delivery.clone()), end, attempt: None }
}

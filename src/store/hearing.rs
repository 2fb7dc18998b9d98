//! The stored hearing of a fleet. The rules are those of [`crate::presence::HearingState`].

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::clock::Timestamp;
use crate::presence::{Gap, Hearing, Interval, Probed, ShareMember, Subscription};

/// The effect of a canary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advance {
    /// The canary counted; the interval is the blind interval that it added to the ledger.
    Heard(Option<Interval>),
    /// The canary came from a member that does not attend, and changed nothing.
    NotAMember,
}

/// Up to when Rollcall has heard.
#[async_trait]
pub trait HearingStore: Send + Sync {
    /// Up to when Rollcall has heard, and the blind intervals before that, read in one step. `settle` is not stored
    /// and stays zero.
    async fn hearing(&self) -> Result<Hearing>;

    /// Records that every message up to `sent_at` has arrived through this subscription. Moves hearing forward to
    /// that moment, or to the least moment of all members of a shared subscription. If that leaves more than a gap
    /// after the previous hearing, or if a member ended out of order in between, the time between is blind: it is
    /// added to the ledger, written to the outbox if it is long, and returned. Removes members whose release has
    /// passed at `sent_at`, as [`HearingStore::depart`] does. At one of several brokers, the same step records what
    /// the share proves. Safe to repeat. See [`crate::presence::HearingState`].
    async fn advance(&self, subscription: &Subscription, sent_at: Timestamp, gap: Gap) -> Result<Advance>;

    /// Like [`HearingStore::advance`], and answers with the resulting hearing, in one request.
    async fn advance_and_hear(
        &self,
        subscription: &Subscription,
        sent_at: Timestamp,
        gap: Gap,
    ) -> Result<(Advance, Hearing)> {
        let advance = self.advance(subscription, sent_at, gap).await?;
        Ok((advance, self.hearing().await?))
    }

    /// Records that filters of kinds were heard, each up to its moment; the moments of one filter are in order. If a
    /// moment is more than its gap after the previous moment of the filter (of its kind, if the filter is new), the
    /// time between is blind for the kind. The first moment of a kind adds no interval. Safe to repeat.
    async fn prove(&self, probed: &[Probed]) -> Result<()>;

    /// Up to when a session that the broker keeps has heard; `None` if that is unknown, or the broker has dropped the
    /// session.
    async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>>;

    /// Adds a member to a shared subscription, before the broker gives it messages: from `now` on, hearing does not
    /// pass the member's. `release` is the time after its last proof at which the broker has certainly dropped the
    /// member. Removes an earlier connection with the same client id. Safe to repeat.
    async fn attend(&self, member: &ShareMember, now: Timestamp, release: Duration) -> Result<()>;

    /// The key that signs the canaries of all instances: the random id of the fleet, or the id that the fleet had
    /// before its data was lost. It never leaves the engine and the instances.
    fn key(&self) -> &str;

    /// Removes a member. With `dropped`: the broker dropped it at that moment or earlier. Without: it gets no more
    /// messages and has recorded all of them. Answers whether it was a member. Safe to repeat.
    async fn depart(&self, member: &ShareMember, dropped: Option<Timestamp>) -> Result<bool>;
}

//! How far Rollcall has heard, as an engine keeps it. The rules are those of [`crate::presence::HearingState`].

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::clock::Timestamp;
use crate::presence::{Gap, Hearing, Interval, Member, Probed, Subscription};

/// What became of a canary that was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advance {
    /// It counted, as far as it led; with the blind interval that was written because of it.
    Heard(Option<Interval>),
    /// It came from a member that does not attend (any more), and changed nothing.
    NotAttending,
}

/// How far Rollcall has heard.
#[async_trait]
pub trait HearingStore: Send + Sync {
    /// How far it has heard and the blind intervals before that, as of one moment. `settle` is not
    /// stored and left at zero.
    async fn hearing(&self) -> Result<Hearing>;

    /// Everything that was sent to this ear up to `sent_at` has come all the way. Moves forward how
    /// far was heard, if the ear alone or its group's least leads there. If that is more than a gap
    /// after what was heard before, or if a member of the group ended out of order in between, what
    /// lies between was blind: it is added to the ledger, told through the outbox if it is long, and
    /// returned. Members whose release has passed at `sent_at` are removed as [`HearingStore::gone`]
    /// does. Safe to repeat. See [`crate::presence::HearingState`].
    async fn advance(&self, ear: &Subscription, sent_at: Timestamp, gap: Gap) -> Result<Advance>;

    /// The same, with how far was heard after that, without asking twice.
    async fn advance_and_hear(
        &self,
        ear: &Subscription,
        sent_at: Timestamp,
        gap: Gap,
    ) -> Result<(Advance, Hearing)> {
        let advance = self.advance(ear, sent_at, gap).await?;
        Ok((advance, self.hearing().await?))
    }

    /// Filters of kinds were heard, each up to its moment; several moments of one filter come in their order. Where
    /// one is more than its gap after what was known of the filter, or of its kind before this if the filter is
    /// new, what lies between was blind for the kind. A kind of which nothing was known begins without such
    /// an interval. Safe to repeat.
    async fn prove(&self, probed: &[Probed]) -> Result<()>;

    /// Up to when a session that the broker keeps has heard; `None` if it is not known, or the broker has
    /// dropped the session by now.
    async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>>;

    /// From `now` on the group has heard no further than this member. It is given messages only
    /// after this. `release` is how long after its last proof the broker is certain to have dropped
    /// it. An earlier connection under the same client id is gone by this. Safe to repeat.
    async fn attend(&self, member: &Member, now: Timestamp, release: Duration) -> Result<()>;

    /// The id of the fleet as this instance found it, or as the first found it that was there before its data was
    /// lost: random, and the same for all instances. It never
    /// leaves the engine and the instances, which sign their canaries by it.
    fn key(&self) -> &str;

    /// The member is given nothing more and everything that it was given is recorded. Safe to repeat.
    async fn leave(&self, member: &Member) -> Result<()>;

    /// The broker has dropped the member at `at` or earlier. Whether it was one. Safe to repeat.
    async fn gone(&self, member: &Member, at: Timestamp) -> Result<bool>;
}

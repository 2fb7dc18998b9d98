//! Whose canary proves how much.
//!
//! A plain subscription hears the whole fleet, so any one of them suffices: Rollcall has heard as far
//! as the furthest. Members of a shared subscription hear a share each, and what one of them
//! swallows nobody else is given: their group has heard as far as the *least* of them. How far
//! Rollcall has heard is the furthest of all plain ears and of all groups.
//!
//! # What a plain ear vouches for
//! The broker keeps its session and the backlog while its connection is away. But another client that
//! knows its id may use the session in between: what the broker hands to that one, it never gives to
//! Rollcall. So the canaries of a connection vouch for what was sent since its first one, and for nothing
//! before. What lies between that and what was heard before is blind, however short, unless another plain
//! ear heard it. While another one does, the new one waits for it instead of calling that time blind.
//!
//! # What ends a member
//! In order: it has asked for no more, recorded all that it was given, and leaves without a trace.
//! Not in order: what the broker had handed to it is lost. The group then remembers the moment until
//! which that may have happened, and has heard further only when everybody who is left has heard
//! beyond it; what lies between is blind, however short. So it goes when the broker says that it has
//! dropped a member ([`super::HearingStore::gone`]), when one comes again with a new connection, and
//! when nobody says anything and the member's release has passed: by then the broker is certain to
//! have dropped it. A group that nobody belonged to has heard nothing either.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::clock::Timestamp;
use crate::presence::{Hearing, Interval, LONGEST_TIMEOUT, Probed};

/// How long a blind interval is of use: to a silence that may be as long as the longest timeout
/// twice over, once allowed, once grace.
pub const USEFUL: Duration = Duration::from_secs(2 * LONGEST_TIMEOUT.as_secs());

/// A connection that hears, and how much its canaries prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// A plain subscription: it hears everything.
    Plain,
    /// One whose session the broker keeps while its connection is away: it hears later what it missed.
    Kept {
        /// The id by which the broker knows the session.
        client_id: String,
        /// The number of its connection under that id.
        connection: u64,
        /// The process had a connection before under that id, which ended without its order: another
        /// client may have come, and heartbeats that it was given are gone.
        was_cut: bool,
        /// How long it is kept.
        span: Duration,
    },
    /// A member of a shared subscription: it hears a share.
    Member(Member),
}

/// A member of a shared subscription: one connection, from its attending to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name of the shared subscription; without `/`.
    pub share: String,
    /// The id by which the broker knows it; without `/`.
    pub client_id: String,
    /// The number of its connection under that id. A broker knows an id once, so a new connection
    /// proves that it has dropped the one before.
    pub connection: u64,
}

/// What became of a canary that was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advance {
    /// It counted, as far as it led; with the blind interval that was written because of it.
    Heard(Option<Interval>),
    /// It was of somebody who does not attend (any more), and changed nothing.
    NotAttending,
}

/// How blindness is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// What was heard before and what is heard now enclose a blind interval if they are further
    /// apart than this.
    pub blind: Duration,
    /// Blind intervals longer than this are told to operators.
    pub tell: Duration,
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
    /// does. Safe to repeat. See [`ear`].
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

    /// The id of the fleet that is there: another one after the engine lost its data. What was read before that
    /// says nothing.
    fn fleet_id(&self) -> String;

    /// The member is given nothing more and everything that it was given is recorded. Safe to repeat.
    async fn leave(&self, member: &Member) -> Result<()>;

    /// The broker has dropped the member at `at` or earlier. Whether it was one. Safe to repeat.
    async fn gone(&self, member: &Member, at: Timestamp) -> Result<bool>;
}

//! How far Rollcall has heard: the rules by which canaries, members and sessions move it.
//!
//! A plain subscription hears the whole fleet, so one plain subscription suffices: Rollcall has heard as far as the
//! furthest of them. Each member of a shared subscription hears a part, and a message that one member loses reaches no
//! other member: a share has heard as far as the *least* of its members. How far Rollcall has heard is the furthest of
//! all plain subscriptions and of all shares.
//!
//! # Several brokers
//! Each broker has subscriptions of its own, and messages that a share loses at one broker come over no other. So a
//! share at one of several brokers is heard for itself, beside the filters of its kinds: see [`Probed::of_share`].
//! The time that it loses is blind for the kinds that are heard there. The fleet is heard as far as at any broker,
//! and loses nothing with a member.
//!
//! # What the canaries of a plain subscription prove
//! The broker keeps the session and its backlog while the connection is away. But another client that
//! knows the client id may use the session in between: a message that the broker gives to that client never reaches
//! Rollcall. So the canaries of a connection prove that messages since its first canary were heard, and none
//! before. The time between that canary and the last moment that was heard is blind, however short, unless another
//! plain subscription heard it. While another one may, the new one waits for it. If the other one has ended, only the
//! time up to that first canary is blind, and not the wait.
//!
//! # How a member ends
//! In order: the member has unsubscribed and recorded every message that it was given, and is removed; nothing is
//! lost. Not in order: messages that the broker had given to it are lost. Then the share has a floor, the moment
//! until which that may have happened, and has heard further only when every other member has heard beyond it; the
//! time between is blind, however short. The share also has a floor when the broker reports that it has dropped a
//! member, when a member comes again with a new connection, and when a member's release has passed: then the broker
//! is certain to have dropped it. A share without members has heard nothing either.
//!
//! # How an engine uses it
//! The engine reads the state, lets a rule change a copy, and stores the difference if nothing changed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Interval, MAX_TIMEOUT, Probed, ShareHeard};
use crate::clock::Timestamp;

/// How long a blind interval is stored: a silence may be allowed for the longest timeout twice, once as timeout and
/// once as grace.
pub const BLIND_RETENTION: Duration = Duration::from_secs(2 * MAX_TIMEOUT.as_secs());

/// A subscription that hears, and how much its canaries prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// The subscription hears everything.
    Plain,
    /// A plain subscription whose session the broker keeps while its connection is away: missed messages come later.
    Kept {
        /// The id by which the broker knows the session.
        client_id: String,
        /// The number of its connection under that id.
        connection: u64,
        /// The process had a connection before under that id, and did not end it itself: another
        /// client may have used the session, and heartbeats that it was given are lost.
        was_cut: bool,
        /// Since when another client repeatedly takes the session: see [`HearingState::advance`].
        taken_since: Option<Timestamp>,
        /// How long the broker keeps the session.
        span: Duration,
    },
    /// A member of a shared subscription: the member hears a part.
    Member(ShareMember),
    /// A member of a shared subscription at one of several brokers.
    MemberAtBroker {
        member: ShareMember,
        /// The proofs of the share, as far as it has heard: see [`Probed::of_share`].
        proofs: Vec<Probed>,
    },
}

/// A member of a shared subscription: one connection, from its attending to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareMember {
    /// The name of the shared subscription, without `/`; behind the name of the broker and a `/`, if the broker has
    /// one.
    pub share: String,
    /// The id by which the broker knows it; without `/`.
    pub client_id: String,
    /// The number of its connection under that id. A broker knows an id once, so a new connection
    /// proves that it has dropped the one before.
    pub connection: u64,
}

/// How blindness is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last moment that was heard and the next one enclose a blind interval if they are further
    /// apart than this.
    pub blind: Duration,
    /// Operators are notified of blind intervals longer than this.
    pub tell_after: Duration,
}

/// A blind interval that a canary ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlindInterval {
    pub interval: Interval,
    /// Whether heartbeats may have been given to another client in it.
    pub is_taken: bool,
    /// Whether operators are notified.
    pub is_notified: bool,
}

/// The effects of a canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CanaryEffect {
    /// The blind interval of the fleet that it ended.
    pub blind: Option<BlindInterval>,
    /// How far the share of a member at one of several brokers has heard, if that is beyond its floor.
    pub share: Option<ShareHeard>,
}

/// The canary comes from a connection that is not, or no longer, a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAMember;

/// The stored state of hearing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HearingState {
    /// Every message that was sent up to here was heard.
    pub heard: Option<Timestamp>,
    /// Messages that were heard since may be lost: the time up to the next proof is blind, however short.
    pub is_lost: bool,
    /// By share and client id. `None`: the stored state of the member cannot be read.
    pub members: BTreeMap<(String, String), Option<MemberState>>,
    /// By share: until when a member that ended may have lost messages.
    pub floors: BTreeMap<String, Timestamp>,
    /// Plain subscriptions with a session, by client id.
    pub sessions: BTreeMap<String, SessionState>,
}

/// The stored state of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    pub connection: u64,
    /// The member has heard up to this moment.
    pub heard: Timestamp,
    /// How long after `heard` the broker is certain to have dropped the member.
    pub release: Duration,
}

/// The stored state of a plain subscription with a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionState {
    pub connection: u64,
    /// The session has heard up to this moment.
    pub heard: Timestamp,
    /// The first canary of the connection: the canaries of the connection prove hearing since then.
    pub since: Timestamp,
}

impl Subscription {
    pub fn member(&self) -> Option<&ShareMember> {
        match self {
            Subscription::Plain | Subscription::Kept { .. } => None,
            Subscription::Member(member) | Subscription::MemberAtBroker { member, .. } => Some(member),
        }
    }

    /// The client id and the number of its connection; `None`: it has none.
    pub fn connection(&self) -> Option<(&str, u64)> {
        match self {
            Subscription::Plain => None,
            Subscription::Kept { client_id, connection, .. } => Some((client_id, *connection)),
            Subscription::Member(member) | Subscription::MemberAtBroker { member, .. } => {
                Some((&member.client_id, member.connection))
            }
        }
    }

    /// The proofs of its share at one of several brokers.
    pub fn proofs(&self) -> &[Probed] {
        match self {
            Subscription::MemberAtBroker { proofs, .. } => proofs,
            _ => &[],
        }
    }
}

/// How far hearing is proved.
#[derive(Clone, Copy)]
struct Reached {
    heard: Timestamp,
    /// Up to here, nothing was heard since the last moment that was heard.
    floor: Option<Timestamp>,
    /// From here on nothing is missing.
    proved_from: Timestamp,
}

impl BlindInterval {
    /// This interval, begun at `since` if another client repeatedly takes the session since that moment.
    fn taken_since(mut self, since: Timestamp, gap: Gap) -> BlindInterval {
        let before = self.interval.from.since(since);
        if self.is_taken && since < self.interval.from {
            self.interval.from = since;
            // Notify once, however often the session is taken.
            self.is_notified |= before <= gap.tell_after && self.interval.length() > gap.tell_after;
        }
        self
    }
}

impl MemberState {
    fn released(&self) -> Timestamp {
        self.heard + self.release
    }
}

impl ShareMember {
    fn name(&self) -> (String, String) {
        (self.share.clone(), self.client_id.clone())
    }
}

impl HearingState {
    /// Notes that every message that was sent to this subscription up to `sent` has arrived. If another client takes
    /// the session repeatedly, the blind interval begins before the first time that it was taken: all messages of a
    /// unit may have fallen into the gaps.
    ///
    /// # Errors
    /// `NotAMember` if the connection is not a member. Unreadable members are removed anyway.
    pub fn advance(
        &mut self,
        subscription: &Subscription,
        sent: Timestamp,
        gap: Gap,
    ) -> Result<CanaryEffect, NotAMember> {
        self.remove_unreadable(sent);
        let mut reached = Some(Reached { heard: sent, floor: None, proved_from: sent });
        let (mut was_cut, mut taken_since) = (false, None);
        match subscription {
            Subscription::Plain => self.release(sent),
            Subscription::Kept { client_id, connection, was_cut: cut, taken_since: taken, .. } => {
                (was_cut, taken_since) = (*cut, *taken);
                let since = self.advance_session(client_id, *connection, sent, gap);
                self.release(sent);
                let is_waiting = self.is_heard_by_another(client_id, since, sent, gap);
                let floor = Some(since);
                reached = (!is_waiting).then_some(Reached { heard: sent, floor, proved_from: since });
            }
            Subscription::Member(member) | Subscription::MemberAtBroker { member, .. } => {
                let state = self.attending(member).ok_or(NotAMember)?;
                if sent <= state.heard {
                    return Ok(CanaryEffect::default());
                }
                state.heard = sent;
                self.release(sent);
                reached = self.least_of(&member.share, sent);
            }
        }
        let mut share = None;
        if let Subscription::MemberAtBroker { .. } = subscription {
            share = reached.map(|Reached { heard, floor, .. }| ShareHeard { heard, floor });
            reached = reached.map(|reached| Reached { floor: None, ..reached });
        }
        let ended = reached.and_then(|reached| self.reach(reached, was_cut, gap));
        let blind = ended.map(|blind| taken_since.map_or(blind, |since| blind.taken_since(since, gap)));
        Ok(CanaryEffect { blind, share })
    }

    /// Adds a member: from `now` on the share has heard no further than this member.
    pub fn attend(&mut self, member: &ShareMember, now: Timestamp, release: Duration) {
        if self.attending(member).is_some() {
            return;
        }
        let known = self.members.remove(&member.name());
        // A member that comes again was dropped before, and a share without members heard nothing.
        if known.is_some() || !self.members.keys().any(|(share, _)| *share == member.share) {
            self.lose(&member.share, now);
        }
        let state = MemberState { connection: member.connection, heard: now, release };
        self.members.insert(member.name(), Some(state));
    }

    /// Removes a member; `lost_until`: until when it may have lost messages. Answers whether it was a member.
    pub fn depart(&mut self, member: &ShareMember, lost_until: Option<Timestamp>) -> bool {
        if self.attending(member).is_none() {
            return false;
        }
        self.members.remove(&member.name());
        if let Some(until) = lost_until {
            self.lose(&member.share, until);
        }
        true
    }

    /// The state of a member, if its connection is still the one that attends.
    fn attending(&mut self, member: &ShareMember) -> Option<&mut MemberState> {
        let state = self.members.get_mut(&member.name())?.as_mut();
        state.filter(|state| state.connection == member.connection)
    }

    /// An unreadable member proves nothing: the time up to now is lost.
    fn remove_unreadable(&mut self, now: Timestamp) {
        let unreadable: Vec<_> = self.members.extract_if(.., |_, state| state.is_none()).collect();
        for ((share, _), _) in unreadable {
            self.lose(&share, now);
        }
    }

    /// Notes the canary of a session, and forgets sessions that prove nothing any more. Answers since when the
    /// canaries of the connection prove hearing.
    fn advance_session(&mut self, client_id: &str, connection: u64, sent: Timestamp, gap: Gap) -> Timestamp {
        // A connection that waits for another session and misses canaries itself begins anew.
        let is_broken = |known: &SessionState| {
            sent.since(known.heard) > gap.blind && self.heard.is_some_and(|heard| heard < known.since)
        };
        let known = self.sessions.remove(client_id);
        let known = known.filter(|known| known.connection == connection && !is_broken(known));
        let since = known.map_or(sent, |known| known.since.min(sent));
        self.sessions.retain(|_, session| sent.since(session.heard) <= gap.blind);
        self.sessions.insert(client_id.to_owned(), SessionState { connection, heard: sent, since });
        since
    }

    /// Whether another session hears the time that this session does not prove.
    fn is_heard_by_another(&self, client_id: &str, since: Timestamp, sent: Timestamp, gap: Gap) -> bool {
        let Some(before) = self.heard.filter(|before| *before < since) else { return false };
        self.sessions.iter().any(|(name, session)| {
            name != client_id && session.since <= before && sent.since(session.heard) <= gap.blind
        })
    }

    fn lose(&mut self, share: &str, until: Timestamp) {
        let floor = self.floors.entry(share.to_owned()).or_insert(until);
        *floor = until.max(*floor);
    }

    /// Removes members that the broker must have dropped without a report.
    fn release(&mut self, now: Timestamp) {
        let is_released =
            |state: &Option<MemberState>| state.as_ref().is_some_and(|one| one.released() < now);
        let released: Vec<_> = self.members.extract_if(.., |_, state| is_released(state)).collect();
        for ((share, _), state) in released {
            self.lose(&share, state.map_or(now, |state| state.released()));
        }
    }

    /// How far a share has heard, and its floor, if the share had a floor; `None` while the share has not heard beyond
    /// its floor.
    fn least_of(&mut self, share: &str, sent: Timestamp) -> Option<Reached> {
        let members = self.members.iter().filter(|((of, _), _)| of == share);
        let heard = members.filter_map(|(_, state)| Some(state.as_ref()?.heard)).fold(sent, Timestamp::min);
        if self.floors.get(share).is_some_and(|floor| heard < *floor) {
            return None;
        }
        Some(Reached { heard, floor: self.floors.remove(share), proved_from: heard })
    }

    /// Notes that every message up to `heard` was heard, but none between the last moment that was heard and `floor`,
    /// and perhaps none up to `proved_from`.
    fn reach(
        &mut self,
        Reached { heard, floor, proved_from }: Reached,
        was_cut: bool,
        gap: Gap,
    ) -> Option<BlindInterval> {
        let before = self.heard;
        if before.is_some_and(|before| heard <= before) {
            return None;
        }
        self.heard = Some(heard);
        let is_lost = std::mem::take(&mut self.is_lost);
        let from = before?;
        let is_floored = floor.is_some_and(|floor| floor > from);
        let to = if is_floored && !is_lost { proved_from } else { heard };
        let interval = Interval { from, to };
        if !is_lost && !is_floored && interval.length() <= gap.blind {
            return None;
        }
        let is_notified = interval.length() > gap.tell_after;
        Some(BlindInterval { interval, is_taken: is_floored && was_cut, is_notified })
    }
}

#[cfg(test)]
mod tests;

//! The state of hearing in memory, and the ledger of blind intervals. No I/O; the rules are in
//! [`crate::presence::HearingState`].
//!
//! Memory is ahead of the disk: the state is written with the heartbeats whose hearing it proves, so it may be some
//! seconds old after a crash. Heartbeats since then were acknowledged and are lost, so the time up to the first
//! canary of the next run is blind, however short. The stored proof of a member may be older than its last proof, so
//! its release would come too early. Therefore it is released later, by the time in which the process could not
//! record proofs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{
    BLIND_RETENTION, BlindInterval, CanaryEffect, FilterBlindness, FilterProofs, Gap, Hearing, HearingState,
    Interval, Kind, Ledger, MemberState, Probed, SessionState, ShareMember, Subscription, prove,
};
use crate::store::Advance;

/// The most ends in `taken`.
const MAX_TAKEN: usize = 10_000;

/// The most blind intervals of a kind; beyond that, the two oldest of a filter and the time between them become one.
const MAX_OF_KIND: usize = 1000;

/// The state of hearing. On disk it is the JSON of [`StoredHearing`].
#[derive(Default)]
pub(super) struct InMemoryHearing {
    pub state: HearingState,
    /// By client id: up to when a session has heard, and until when the broker keeps it.
    sessions: BTreeMap<String, (Timestamp, Timestamp)>,
    /// The ends of blind intervals in which another client may have got heartbeats.
    taken: Vec<Timestamp>,
    pub filters: FilterProofs,
    /// Members of an earlier run without a proof in this run: their stored proof may be older than their last proof.
    resumed: Vec<ShareMember>,
    /// The directory was removed, and later heartbeats are lost: operators are notified.
    pub is_removed: bool,
    /// Blind intervals; they have a table of their own on disk.
    pub ledger: Ledger,
    /// Blind intervals that are not on disk yet, the oldest first.
    unwritten: Vec<PendingInterval>,
}

/// A blind interval that is not on disk yet.
#[derive(Clone, Copy)]
pub(super) struct PendingInterval {
    pub interval: Interval,
    /// Whether operators are notified of blindness.
    pub is_notified: bool,
    /// Whether operators are notified of lost data.
    pub is_loss: bool,
}

impl InMemoryHearing {
    /// The state of another engine, or a presumed state. The ledger is written separately.
    pub fn restore(hearing: &Hearing) -> InMemoryHearing {
        let state = HearingState { heard: hearing.heard, ..HearingState::default() };
        let (taken, filters) = (hearing.ledger.taken().to_vec(), (*hearing.filters).clone());
        InMemoryHearing { state, taken, filters, ..InMemoryHearing::default() }
    }

    /// Continues an earlier run, with these blind intervals.
    pub fn resume(&mut self, intervals: impl IntoIterator<Item = Interval>) {
        self.state.is_lost = true;
        let of_member = |((share, client_id), state): (&(String, String), &Option<MemberState>)| {
            let connection = state.as_ref()?.connection;
            Some(ShareMember { share: share.clone(), client_id: client_id.clone(), connection })
        };
        self.resumed = self.state.members.iter().filter_map(of_member).collect();
        self.ledger = self.ledger_of(intervals);
    }

    /// Notes that every message that was sent to this subscription up to `sent` has arrived. Sessions end by the time
    /// `clock`. Answers also whether a kind was blind.
    pub fn advance(
        &mut self,
        subscription: &Subscription,
        sent: Timestamp,
        gap: Gap,
        clock: Timestamp,
    ) -> (Advance, bool) {
        if let Subscription::Kept { client_id, span, .. } = subscription {
            self.sessions.retain(|_, (_, until)| *until > clock);
            self.sessions.insert(client_id.clone(), (sent, clock + *span));
        }
        self.extend_resumed(subscription, sent);
        self.state.is_lost |= self.is_removed;
        let Ok(CanaryEffect { blind, share }) = self.state.advance(subscription, sent, gap) else {
            return (Advance::NotAMember, false);
        };
        let proved = &self.filters.proved;
        let probed = share.map(|share| Probed::of_share(subscription.proofs(), proved, share));
        let is_kind_blind = probed.is_some_and(|probed| self.prove(&probed));
        let Some(blind) = blind else { return (Advance::Heard(None), is_kind_blind) };
        let BlindInterval { interval, is_taken, is_notified } = blind;
        let is_loss = std::mem::take(&mut self.is_removed);
        self.note_blind(interval, is_taken);
        self.unwritten.push(PendingInterval { interval, is_notified, is_loss });
        (Advance::Heard(Some(blind.interval)), is_kind_blind)
    }

    /// Up to when a session has heard; `None` if the broker does not keep it any more.
    pub fn heard_by(&self, client_id: &str, clock: Timestamp) -> Option<Timestamp> {
        self.sessions.get(client_id).filter(|(_, until)| *until > clock).map(|(heard, _)| *heard)
    }

    /// Notes that these filters were heard. Answers whether a kind was blind.
    pub fn prove(&mut self, probed: &[Probed]) -> bool {
        let blind = prove(&mut self.filters.proved, probed);
        let is_blind = !blind.is_empty();
        for (kind, blindness) in blind {
            let known = self.filters.blind.entry(kind).or_default();
            let outdated = blindness.interval.to - BLIND_RETENTION;
            known.push(blindness);
            known.retain(|known| known.interval.to > outdated);
            if known.len() > MAX_OF_KIND {
                join_oldest(known);
            }
        }
        is_blind
    }

    /// Blind intervals that are not on disk yet.
    pub fn unwritten(&self) -> Vec<PendingInterval> {
        self.unwritten.clone()
    }

    /// Notes that the `count` oldest blind intervals are on disk now.
    pub fn written(&mut self, count: usize) {
        self.unwritten.drain(..count.min(self.unwritten.len()));
    }

    /// Delays the release of members of an earlier run, by the time in which they could prove nothing.
    fn extend_resumed(&mut self, subscription: &Subscription, sent: Timestamp) {
        for member in std::mem::take(&mut self.resumed) {
            let name = (member.share.clone(), member.client_id.clone());
            let Some(Some(state)) = self.state.members.get_mut(&name) else { continue };
            let proves_now = matches!(subscription, Subscription::Member(one) if *one == member);
            if state.connection == member.connection && !proves_now {
                state.release += sent.since(state.heard);
            }
        }
    }

    fn note_blind(&mut self, interval: Interval, is_taken: bool) {
        let useful =
            self.ledger.intervals().iter().copied().filter(|known| known.to > interval.to - BLIND_RETENTION);
        let intervals: Vec<Interval> = useful.chain([interval]).collect();
        self.taken.retain(|end| *end > interval.to - BLIND_RETENTION);
        if is_taken {
            self.taken.push(interval.to);
            let spare = self.taken.len().saturating_sub(MAX_TAKEN);
            self.taken.drain(..spare);
        }
        self.ledger = self.ledger_of(intervals);
    }

    fn ledger_of(&self, intervals: impl IntoIterator<Item = Interval>) -> Ledger {
        Ledger::new(intervals).with_taken(self.taken.iter().copied())
    }
}

/// Merges two successive intervals of a filter and the time between them into one interval: the two that were over first.
/// Detection may count time as blind that was heard, never the other way round.
fn join_oldest(known: &mut Vec<FilterBlindness>) {
    let before = |next: usize| {
        let oldest = known[..next].iter().position(|other| other.filter == known[next].filter);
        oldest.map(|oldest| (oldest, next))
    };
    // If no filter has two intervals, there are as many filters as intervals.
    let Some((oldest, next)) = (1..known.len()).find_map(before) else { return };
    known[next].interval.from = known[next].interval.from.min(known[oldest].interval.from);
    known.remove(oldest);
}

impl InMemoryHearing {
    pub fn stored(&self) -> StoredHearing {
        let of_member = |((share, client_id), state): (&(String, String), &Option<MemberState>)| {
            let MemberState { connection, heard, release } = state.clone()?;
            let (share, client_id) = (share.clone(), client_id.clone());
            let release_ms = release.as_millis() as u64;
            Some(StoredShareMember { share, client_id, connection, heard, release_ms })
        };
        let of_session = |(client_id, (heard, until)): (&String, &(Timestamp, Timestamp))| {
            let known = self.state.sessions.get(client_id);
            let (connection, since) = known.map_or((0, None), |known| (known.connection, Some(known.since)));
            (client_id.clone(), StoredSession { heard: *heard, until: *until, connection, since })
        };
        let mut filters = StoredFilters { blind: self.filters.blind.clone(), ..StoredFilters::default() };
        for ((kind, filter), at) in &self.filters.proved {
            filters.proved.entry(kind.clone()).or_default().insert(filter.clone(), *at);
        }
        StoredHearing {
            heard: self.state.heard,
            members: self.state.members.iter().filter_map(of_member).collect(),
            floors: self.state.floors.clone(),
            sessions: self.sessions.iter().map(of_session).collect(),
            taken: self.taken.clone(),
            filters,
        }
    }
}

impl From<StoredHearing> for InMemoryHearing {
    fn from(stored: StoredHearing) -> InMemoryHearing {
        let mut heard = InMemoryHearing { taken: stored.taken, ..InMemoryHearing::default() };
        heard.state.heard = stored.heard;
        heard.state.floors = stored.floors;
        for StoredShareMember { share, client_id, connection, heard: proved, release_ms } in stored.members {
            let release = Duration::from_millis(release_ms);
            let state = MemberState { connection, heard: proved, release };
            heard.state.members.insert((share, client_id), Some(state));
        }
        for (client_id, StoredSession { heard: at, until, connection, since }) in stored.sessions {
            if let Some(since) = since {
                let state = SessionState { connection, heard: at, since };
                heard.state.sessions.insert(client_id.clone(), state);
            }
            heard.sessions.insert(client_id, (at, until));
        }
        heard.filters.blind = stored.filters.blind;
        for (kind, filters) in stored.filters.proved {
            let filters = filters.into_iter().map(|(filter, at)| ((kind.clone(), filter), at));
            heard.filters.proved.extend(filters);
        }
        heard
    }
}

/// The form on disk.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredHearing {
    heard: Option<Timestamp>,
    members: Vec<StoredShareMember>,
    floors: BTreeMap<String, Timestamp>,
    sessions: BTreeMap<String, StoredSession>,
    #[serde(default)]
    taken: Vec<Timestamp>,
    #[serde(default)]
    filters: StoredFilters,
}

#[derive(Serialize, Deserialize)]
struct StoredShareMember {
    share: String,
    client_id: String,
    connection: u64,
    heard: Timestamp,
    release_ms: u64,
}

/// The broker keeps the session until `until`. A `connection` without `since` proves nothing yet.
#[derive(Serialize, Deserialize)]
struct StoredSession {
    heard: Timestamp,
    until: Timestamp,
    #[serde(default)]
    connection: u64,
    #[serde(default)]
    since: Option<Timestamp>,
}

#[derive(Default, Serialize, Deserialize)]
struct StoredFilters {
    proved: BTreeMap<Kind, BTreeMap<String, Timestamp>>,
    blind: BTreeMap<Kind, Vec<FilterBlindness>>,
}

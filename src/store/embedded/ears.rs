//! Who hears, how far, and what was not heard. Pure: it knows no disk.
//!
//! Memory leads and the disk follows: what stands there is written with the heartbeats that it vouches
//! for, so it may be some seconds old after a crash. What came after it was acknowledged, and is lost:
//! the time up to the first canary of the next run is blind, however short. And a member whose last
//! proof is older than it was would be released too early: it is released later, by as long as nobody
//! could ask.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::filters::Proofs;
use crate::clock::Timestamp;
use crate::presence::{Hearing, Interval, Ledger};
use crate::store::hearing::USEFUL;
use crate::store::{Advance, Gap, Member, Subscription};

/// How many moments at which a session was taken are remembered.
const MOST_TAKEN: usize = 10_000;

/// Who hears, and how far.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Ears {
    /// Everything that was sent up to there was heard.
    pub heard: Option<Timestamp>,
    members: Vec<Attending>,
    /// By share: until when a member that is gone may have lost something.
    floors: BTreeMap<String, Timestamp>,
    /// By client id: sessions that the broker keeps.
    sessions: BTreeMap<String, Session>,
    /// The ends of blind intervals in which heartbeats may have been given to another client.
    #[serde(default)]
    taken: Vec<Timestamp>,
    /// What was heard of single kinds.
    #[serde(default)]
    pub filters: Proofs,
    /// Taken up where an earlier run left it on disk, and nothing was heard since.
    #[serde(skip)]
    pub is_resumed: bool,
    /// The directory was removed, and what is heard from now on goes nowhere: operators are to know.
    #[serde(skip)]
    pub is_removed: bool,
    /// Blind intervals; they have a table of their own on disk.
    #[serde(skip)]
    pub ledger: Ledger,
    /// Those that are not on disk yet, the oldest first.
    #[serde(skip)]
    unwritten: Vec<Blind>,
}

/// A blind interval on its way to disk.
#[derive(Clone, Copy)]
pub(super) struct Blind {
    pub interval: Interval,
    /// Whether operators are to know.
    pub is_news: bool,
}

#[derive(Serialize, Deserialize)]
struct Attending {
    share: String,
    client_id: String,
    connection: u64,
    heard: Timestamp,
    release_ms: u64,
    /// Known in this run, so that its last proof is not older than it seems.
    #[serde(skip)]
    is_current: bool,
}

#[derive(Serialize, Deserialize)]
struct Session {
    heard: Timestamp,
    until: Timestamp,
    /// The number of its connection, and the first canary that this told.
    #[serde(default)]
    connection: u64,
    #[serde(default)]
    since: Option<Timestamp>,
}

impl Attending {
    fn is(&self, member: &Member) -> bool {
        self.is_known_as(member) && self.connection == member.connection
    }

    fn is_known_as(&self, member: &Member) -> bool {
        self.share == member.share && self.client_id == member.client_id
    }

    fn released(&self) -> Timestamp {
        self.heard + Duration::from_millis(self.release_ms)
    }
}

impl Ears {
    /// Everything that was sent to this ear up to `sent` has come all the way. `clock` is that by which
    /// sessions end.
    pub fn advance(&mut self, ear: &Subscription, sent: Timestamp, gap: Gap, clock: Timestamp) -> Advance {
        let mut since = None;
        match ear {
            Subscription::Plain => {}
            Subscription::Kept { client_id, connection, span, .. } => {
                self.sessions.retain(|_, session| session.until > clock);
                let known = self.sessions.get(client_id).filter(|known| known.connection == *connection);
                since = known.and_then(|known| known.since).or(Some(sent));
                let session = Session { heard: sent, until: clock + *span, connection: *connection, since };
                self.sessions.insert(client_id.clone(), session);
            }
            Subscription::Member(member) => {
                let Some(me) = self.members.iter_mut().find(|one| one.is(member)) else {
                    return Advance::NotAttending;
                };
                if sent <= me.heard {
                    return Advance::Heard(None);
                }
                me.heard = sent;
                me.is_current = true;
            }
        }
        self.release(sent);
        let led = match ear {
            Subscription::Plain => Some((sent, None)),
            Subscription::Kept { client_id, .. } if self.is_heard_by_another(client_id, since, sent, gap) => {
                None
            }
            Subscription::Kept { .. } => Some((sent, since)),
            Subscription::Member(member) => self.least(&member.share, sent),
        };
        let was_cut = matches!(ear, Subscription::Kept { was_cut: true, .. });
        Advance::Heard(led.and_then(|(heard, floor)| self.reach(heard, floor, was_cut, gap)))
    }

    /// What was heard, with the blind intervals before.
    pub fn restore(hearing: &Hearing) -> Ears {
        let filters = Proofs::restore(&hearing.filters);
        Ears { heard: hearing.heard, taken: hearing.ledger.taken().to_vec(), filters, ..Ears::default() }
    }

    /// The ledger that holds these intervals.
    pub fn ledger_of(&self, intervals: impl IntoIterator<Item = Interval>) -> Ledger {
        Ledger::new(intervals).with_taken(self.taken.iter().copied())
    }

    /// Whether what this session does not vouch for is still heard by another plain one.
    fn is_heard_by_another(
        &self,
        client_id: &str,
        since: Option<Timestamp>,
        sent: Timestamp,
        gap: Gap,
    ) -> bool {
        let Some(before) = self.heard.filter(|before| Some(*before) < since) else { return false };
        let vouches = |session: &Session| {
            session.since.is_some_and(|since| since <= before) && sent.since(session.heard) <= gap.blind
        };
        self.sessions.iter().any(|(name, session)| name != client_id && vouches(session))
    }

    /// Up to when a session has heard that the broker still keeps.
    pub fn heard_by(&self, client_id: &str, clock: Timestamp) -> Option<Timestamp> {
        self.sessions.get(client_id).filter(|session| session.until > clock).map(|session| session.heard)
    }

    /// From `now` on its share has heard no further than this member.
    pub fn attend(&mut self, member: &Member, now: Timestamp, release: Duration) {
        if self.members.iter().any(|one| one.is(member)) {
            return;
        }
        let count = self.members.len();
        self.members.retain(|one| !one.is_known_as(member));
        // Whoever comes again was dropped before, and what nobody attended nobody heard.
        if self.members.len() < count || !self.members.iter().any(|one| one.share == member.share) {
            self.lose(&member.share, now);
        }
        self.members.push(Attending {
            share: member.share.clone(),
            client_id: member.client_id.clone(),
            connection: member.connection,
            heard: now,
            release_ms: release.as_millis() as u64,
            is_current: true,
        });
    }

    /// The member is none any more; `lost_until` if it may have lost something. Whether it was one.
    pub fn depart(&mut self, member: &Member, lost_until: Option<Timestamp>) -> bool {
        let Some(place) = self.members.iter().position(|one| one.is(member)) else { return false };
        self.members.swap_remove(place);
        if let Some(until) = lost_until {
            self.lose(&member.share, until);
        }
        true
    }

    /// Blind intervals that are not on disk yet.
    pub fn unwritten(&self) -> Vec<Blind> {
        self.unwritten.clone()
    }

    /// That many of them, the oldest, are.
    pub fn written(&mut self, count: usize) {
        self.unwritten.drain(..count.min(self.unwritten.len()));
    }

    fn lose(&mut self, share: &str, until: Timestamp) {
        let floor = self.floors.entry(share.to_owned()).or_insert(until);
        *floor = until.max(*floor);
    }

    /// Removes those of whom the broker is rid by now, though it did not say so.
    fn release(&mut self, now: Timestamp) {
        for member in self.members.iter_mut().filter(|member| !member.is_current) {
            member.release_ms += now.since(member.heard).as_millis() as u64;
            member.is_current = true;
        }
        let released: Vec<Attending> =
            self.members.extract_if(.., |member| member.released() < now).collect();
        for member in released {
            self.lose(&member.share, member.released());
        }
    }

    /// How far a share has heard, and until when it had lost something; `None` while that is not over.
    fn least(&mut self, share: &str, sent: Timestamp) -> Option<(Timestamp, Option<Timestamp>)> {
        let members = self.members.iter().filter(|member| member.share == share);
        let heard = members.map(|member| member.heard).fold(sent, Timestamp::min);
        if self.floors.get(share).is_some_and(|floor| heard < *floor) {
            return None;
        }
        Some((heard, self.floors.remove(share)))
    }

    fn reach(
        &mut self,
        heard: Timestamp,
        floor: Option<Timestamp>,
        was_cut: bool,
        gap: Gap,
    ) -> Option<Interval> {
        let before = self.heard;
        if before.is_some_and(|before| heard <= before) {
            return None;
        }
        self.heard = Some(heard);
        let is_lost = std::mem::take(&mut self.is_resumed);
        let from = before?;
        let is_removed = std::mem::take(&mut self.is_removed);
        let is_floored = floor.is_some_and(|floor| floor > from);
        if !is_lost && !is_removed && !is_floored && heard.since(from) <= gap.blind {
            return None;
        }
        let interval = Interval { from, to: heard };
        let useful = self.ledger.intervals().iter().copied().filter(|known| known.to > heard - USEFUL);
        let intervals: Vec<Interval> = useful.chain([interval]).collect();
        self.taken.retain(|end| *end > heard - USEFUL);
        if is_floored && was_cut {
            self.taken.push(heard);
            let spare = self.taken.len().saturating_sub(MOST_TAKEN);
            self.taken.drain(..spare);
        }
        self.ledger = self.ledger_of(intervals);
        self.unwritten.push(Blind { interval, is_news: is_removed || interval.length() > gap.tell });
        Some(interval)
    }
}

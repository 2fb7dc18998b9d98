//! How transitions join groups, and when a group is sealed.
//!
//! A transition that leads to no next [`Stage`] of its member changes nothing. So a transition may join again at any
//! time, and a return may come before its silence. A silence that is over and is detected again is a member of its own.
//!
//! Only a silence waits: if its unit comes back meanwhile, receivers are not notified. Every other transition is
//! *final* and part of the next notification of its group. Two notifications of a group are at least an interval apart,
//! with two exceptions. The rest of a storm follows its first notification. And the return that ends the last silence
//! that receivers were notified of is not held back longer than the wait; transitions that joined later still wait for
//! the interval.
//!
//! # Why a group gathers members for a second
//! The deadlines of a site that loses its power are not the same to the millisecond. Without a wait the first silence
//! would be notified alone, and all others after the interval. So silences within [`GATHERS`] of the first are in its
//! notification. A group that never has more than one unit gathers nothing.
//!
//! # Why the rest of a storm may join late
//! It takes seconds to detect a hundred thousand silences and to write their records. A silence whose deadline was
//! before the notification of its group belongs to the same storm, and follows that notification as if it had joined
//! in time. So does a silence that joins while the group is sealed: a group is sealed as of the moment up to which
//! all outboxes had joined, which is a little earlier.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::OfflineRecord;
use crate::clock::Timestamp;

/// Silences within this time of the first one are in the first notification of a group that units share.
pub const GATHERS: Duration = Duration::from_secs(1);

/// A silence belongs to the storm of a notification if its deadline is at most this long before it.
const STORM: Duration = Duration::from_secs(60);

/// The most members of a notification: ten thousand units of a site are one message.
pub const MAX_MEMBERS: usize = 10_000;

/// How fast groups are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pace {
    /// The wait of each silence: if its unit comes back meanwhile, receivers are not notified.
    pub wait: Duration,
    /// The least time between two notifications of one group.
    pub interval: Duration,
    /// Whether several units may share a group.
    pub is_shared: bool,
    /// How long after its deadline a silence must last to be notified.
    pub lasts: Duration,
    pub recoveries: Recoveries,
    /// When a group is checked again after a notification, for a reminder or an escalation.
    pub looks_after: Option<Duration>,
}

/// Which returns are notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recoveries {
    None,
    /// Each return, this long after it has joined.
    After(Duration),
}

impl Pace {
    /// No wait and no interval.
    pub const AT_ONCE: Pace = Pace::new(Duration::ZERO, Duration::ZERO);

    /// The pace of groups of one unit each.
    pub const fn new(wait: Duration, interval: Duration) -> Pace {
        let recoveries = Recoveries::After(Duration::ZERO);
        Pace { wait, interval, is_shared: false, lasts: Duration::ZERO, recoveries, looks_after: None }
    }

    /// This pace, with returns notified in any case.
    pub fn with_returns(self) -> Pace {
        match self.recoveries {
            Recoveries::None => Pace { recoveries: Recoveries::After(Duration::ZERO), ..self },
            Recoveries::After(_) => self,
        }
    }

    /// The transition that joins: a return that is not notified only ends its silence.
    pub fn form(&self, form: MemberTransition) -> MemberTransition {
        match (form, self.recoveries) {
            (MemberTransition::Online, Recoveries::None) => MemberTransition::Removed,
            _ => form,
        }
    }

    /// Whether a silence that is alone in its group may be notified as it joins.
    pub fn is_at_once(&self) -> bool {
        self.wait.is_zero() && self.lasts.is_zero() && !self.has_lasting()
    }

    /// Whether an engine stores the silences of a group that receivers were notified of and that last.
    pub fn has_lasting(&self) -> bool {
        self.is_shared || self.looks_after.is_some()
    }

    /// Whether no silence lasts that receivers of the group were notified of, where `lasting` of them are known.
    pub fn is_last(&self, lasting: usize) -> bool {
        !self.has_lasting() || lasting == 0
    }

    /// How long a group gathers members after the first one.
    pub fn gathers(&self) -> Duration {
        if self.is_shared { GATHERS } else { Duration::ZERO }
    }

    /// The first moment at which receivers may be notified of a silence: it has waited, and has lasted as long as it
    /// must.
    pub fn ready_at(&self, record: &OfflineRecord) -> Timestamp {
        (record.detected_at + self.gathers().max(self.wait)).max(record.deadline + self.lasts)
    }

    /// The deadline of a silence that may be the rest of a storm: a silence that need not last for some time first, and
    /// that is not held by itself.
    pub fn storm_deadline(
        &self,
        form: MemberTransition,
        deadline: Timestamp,
        held_until: Option<Timestamp>,
    ) -> Option<Timestamp> {
        (form == MemberTransition::Offline && self.lasts.is_zero() && held_until.is_none())
            .then_some(deadline)
    }

    /// How long returns wait; `None`: returns do not wait. A silence that joins while an earlier return of its unit
    /// waits is held until that return is notified: otherwise receivers would be notified of the return last, although
    /// the unit is offline.
    pub fn returns_wait(&self) -> Option<Duration> {
        match self.recoveries {
            Recoveries::After(wait) if !wait.is_zero() => Some(wait),
            _ => None,
        }
    }

    /// The begin of the wait of a held silence. The wait ends when the hold ends.
    pub fn held_since(&self, since: Timestamp, held_until: Option<Timestamp>) -> Timestamp {
        held_until.map_or(since, |until| since.max(until - self.wait))
    }

    /// The begin of the wait of a transition that joins now.
    /// A silence waits; `deadline` is its deadline. A return waits only if the pace says so.
    pub fn waits_since(&self, form: MemberTransition, deadline: Timestamp, now: Timestamp) -> Timestamp {
        let returns = match self.recoveries {
            Recoveries::After(wait) if form == MemberTransition::Online => wait,
            _ => Duration::ZERO,
        };
        match form {
            MemberTransition::Offline if self.lasts.is_zero() => now,
            MemberTransition::Offline => now.max(deadline + self.lasts - self.wait),
            _ => now + returns - self.wait,
        }
    }
}

/// The transition of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberTransition {
    Offline,
    Online,
    /// The silence is over, and receivers are not notified of it.
    Removed,
    Blind,
}

impl MemberTransition {
    /// Whether its silence is over.
    pub fn is_end(self) -> bool {
        matches!(self, MemberTransition::Online | MemberTransition::Removed)
    }
}

/// How far a member of a group has come. It is stored as a letter, because a storm has one for each unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Its silence, or blind interval, waits for the next notification.
    #[serde(rename = "o")]
    Waits,
    /// Receivers were notified of its silence, or blind interval, which lasts.
    #[serde(rename = "t")]
    Notified,
    /// Receivers were notified of its silence, and its return waits for the next notification.
    #[serde(rename = "b")]
    IsBack,
    /// Receivers were notified of both, or it was over before they were notified.
    #[serde(rename = "x")]
    Over,
}

impl Stage {
    /// The stage of a member after a transition; `None`: the transition changes nothing. `now` is `None` for a new
    /// member.
    pub fn next(now: Option<Stage>, form: MemberTransition) -> Option<Stage> {
        match now {
            None if !form.is_end() => Some(Stage::Waits),
            Some(Stage::Notified) if form == MemberTransition::Online => Some(Stage::IsBack),
            None | Some(Stage::Waits | Stage::Notified) if form.is_end() => Some(Stage::Over),
            _ => None,
        }
    }

    /// The transition that joins a member at this stage: the return of a silence of which no receiver was notified is
    /// not notified either. `is_told`: whether receivers were notified of the silence.
    pub fn form(now: Option<Stage>, form: MemberTransition, is_told: bool) -> MemberTransition {
        match (now, form) {
            (Some(Stage::Notified), MemberTransition::Online) if !is_told => MemberTransition::Removed,
            _ => form,
        }
    }

    /// The stage of a waiting member after its notification. `is_end`: it is the end of a blind interval, whose begin
    /// is another member.
    pub fn once_notified(self, is_end: bool) -> Stage {
        if is_end || self == Stage::IsBack { Stage::Over } else { Stage::Notified }
    }
}

/// Whether a silence that was detected at `detected_at` is another silence than the known silence of its name.
pub fn is_detected_again(known: Stage, detected_before: Timestamp, detected_at: Timestamp) -> bool {
    known == Stage::Over && detected_before < detected_at
}

/// When a group was sealed last, and when it is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTimes {
    pub sealed: Option<Timestamp>,
    /// `None`: no member waits.
    pub due: Option<Timestamp>,
}

/// A transition on its way into a group, and what is known of both.
#[derive(Clone, Copy, Debug)]
pub struct Joining {
    pub form: MemberTransition,
    pub deadline: Timestamp,
    /// Until when its silence is held.
    pub held_until: Option<Timestamp>,
    /// Since when an earlier return of its unit waits: see [`Pace::returns_wait`].
    pub returning: Option<Timestamp>,
    /// How many other silences last that receivers of the group were notified of.
    pub lasting: usize,
    /// Until when the group is held.
    pub group_held_until: Option<Timestamp>,
}

/// A transition as its group waits for it.
#[derive(Clone, Copy, Debug)]
struct JoiningTransition {
    form: MemberTransition,
    /// See [`Pace::waits_since`].
    since: Timestamp,
    /// Whether the transition is a return, and no other silence lasts that receivers of the group were notified of.
    is_last: bool,
    /// Until when the group is held.
    held_until: Option<Timestamp>,
    /// See [`Pace::storm_deadline`].
    deadline: Option<Timestamp>,
}

/// A member that waits for the next notification of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingMember {
    /// See [`Pace::waits_since`].
    pub since: Timestamp,
    /// Whether the member is a silence; any other member is final.
    pub is_silence: bool,
    pub is_blind: bool,
}

/// The members of a group that wait after a sealing; each moment is one of [`Pace::waits_since`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Left {
    /// The first silence.
    pub first: Option<Timestamp>,
    /// The newest silence whose wait has begun, or begins while the group gathers.
    pub newest: Option<Timestamp>,
    /// The first member that is final.
    pub first_final: Option<Timestamp>,
    /// Whether no silence lasts that receivers of the group were notified of.
    pub is_last: bool,
}

impl Left {
    /// Sums up the members that wait: whether each is a silence, and since when it waits.
    pub fn of(
        waiting: impl Iterator<Item = (bool, Timestamp)>,
        is_last: bool,
        pace: Pace,
        now: Timestamp,
    ) -> Left {
        let mut left = Left { is_last, ..Left::default() };
        for (is_silence, since) in waiting {
            let first = if is_silence { &mut left.first } else { &mut left.first_final };
            *first = Some(first.map_or(since, |first| first.min(since)));
            if is_silence && since <= now + pace.gathers() {
                left.newest = left.newest.max(Some(since));
            }
        }
        left
    }
}

/// How many members were sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    None,
    Some,
    /// As many as a notification may have.
    Most,
}

impl Sealed {
    pub fn of(count: usize) -> Sealed {
        match count {
            0 => Sealed::None,
            MAX_MEMBERS => Sealed::Most,
            _ => Sealed::Some,
        }
    }
}

/// The members that may be notified are the members whose wait began at these moments or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadySince {
    silence: Timestamp,
    other: Timestamp,
}

impl GroupTimes {
    /// Lets a transition join: the group is due then. Returns since when the transition waits.
    pub fn join(&mut self, joining: Joining, pace: Pace, now: Timestamp) -> Timestamp {
        let Joining { form, deadline, held_until, returning, lasting, group_held_until } = joining;
        // The return of its unit is notified before a silence.
        let returns_at = returning.filter(|_| form == MemberTransition::Offline).map(|at| at + pace.wait);
        let held = held_until.max(returns_at.filter(|at| *at > now));
        let joining = JoiningTransition {
            form,
            since: pace.held_since(pace.waits_since(form, deadline, now), held),
            is_last: form == MemberTransition::Online && pace.is_last(lasting),
            held_until: group_held_until,
            deadline: pace.storm_deadline(form, deadline, held),
        };
        let since = self.since_with(joining, pace, now);
        self.due = Some(self.due_with(joining, pace, now));
        since
    }

    /// The last sealing, if the silence that joins is of the storm that was notified then, and joins late.
    fn storm(&self, joining: JoiningTransition, pace: Pace, now: Timestamp) -> Option<Timestamp> {
        let deadline = joining.deadline.filter(|_| pace.is_shared)?;
        let is_of_storm =
            |sealed: &Timestamp| deadline <= *sealed && sealed.since(deadline) <= STORM && *sealed <= now;
        self.sealed.filter(is_of_storm).filter(|sealed| now < *sealed + pace.interval)
    }

    /// From when on the wait of a transition counts.
    fn since_with(&self, joining: JoiningTransition, pace: Pace, now: Timestamp) -> Timestamp {
        self.storm(joining, pace, now).unwrap_or(joining.since)
    }

    /// When the group is due once this transition has joined.
    fn due_with(&self, joining: JoiningTransition, pace: Pace, now: Timestamp) -> Timestamp {
        let JoiningTransition { form, since, is_last, held_until, .. } = joining;
        let (gathers, storm) = (pace.gathers(), self.storm(joining, pace, now));
        let at = match form {
            _ if storm.is_some() => storm.map_or(now, |sealed| sealed + pace.wait).max(now + gathers),
            MemberTransition::Blind => now,
            MemberTransition::Offline => (since + pace.wait).max(since + gathers),
            _ if is_last => (since + pace.wait).max(now + pace.wait),
            _ => (since + pace.wait).max(now + pace.wait).max(now + gathers),
        };
        // A sealing in the future is ignored: the group would wait for it.
        let waits = form != MemberTransition::Blind && !is_last && storm.is_none();
        let sealed = self.sealed.filter(|sealed| *sealed <= now && waits);
        let at = sealed.map_or(at, |sealed| at.max(sealed + pace.interval));
        let at = held_until.map_or(at, |until| at.max(until));
        self.due.map_or(at, |due| due.min(at))
    }

    /// Which members may be notified now. Within the interval only final members may be, and the rest of a storm:
    /// silences that waited already when the group was sealed last, or began to while it gathered.
    fn ready_since(&self, pace: Pace, now: Timestamp) -> ReadySince {
        let other = now - pace.wait;
        let gathered = self.follows(pace).map(|last| last + pace.gathers());
        ReadySince { silence: gathered.map_or(other, |gathered| other.min(gathered)), other }
    }

    /// The members that a group that is due notifies now, by their places among `waiting`, at most [`MAX_MEMBERS`]:
    /// final members come first there, then silences, both in the order in which their waits began. `is_last`: no
    /// silence that receivers of the group were notified of lasts.
    ///
    /// # Errors
    /// Silences are being gathered, and no member is notified before that moment.
    pub fn ready(
        &self,
        waiting: impl Iterator<Item = WaitingMember> + Clone,
        is_last: bool,
        pace: Pace,
        now: Timestamp,
    ) -> Result<Vec<usize>, Timestamp> {
        let silences = || waiting.clone().filter(|one| one.is_silence).map(|one| one.since);
        if pace.is_shared
            && let Some(until) = silences().next().and_then(|first| self.gathers_until(first, pace, now))
        {
            let newest = silences().filter(|since| *since + pace.wait > now && *since <= until).max();
            if let Some(at) = self.gathered_at(until, newest, pace, now) {
                return Err(at);
            }
        }
        let since = self.ready_since(pace, now);
        let is_ready =
            |one: &WaitingMember| one.since <= if one.is_silence { since.silence } else { since.other };
        let ready = waiting.enumerate().filter(|(_, one)| is_ready(one)).take(MAX_MEMBERS);
        let (ready, members): (Vec<usize>, Vec<WaitingMember>) = ready.unzip();
        // Returns alone wait for the interval, also if the group is checked within it.
        let waits_not = |one: &WaitingMember| one.is_silence || one.is_blind;
        let is_early = !members.iter().any(waits_not) && !is_last && self.is_within(pace, now);
        Ok(if is_early { Vec::new() } else { ready })
    }

    /// Silences whose waits begin up to this moment are gathered with the first; `None`: gathering is over.
    fn gathers_until(&self, first: Timestamp, pace: Pace, now: Timestamp) -> Option<Timestamp> {
        let (until, ready) = (first + pace.gathers(), now - pace.wait);
        (self.follows(pace).is_none() && first <= ready && ready < until).then_some(until)
    }

    /// The end of the waits of the gathered silences; `None`: all have ended. `newest`: the begin of the newest wait
    /// that has not ended, up to [`GroupTimes::gathers_until`].
    fn gathered_at(
        &self,
        until: Timestamp,
        newest: Option<Timestamp>,
        pace: Pace,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let at = newest.map_or(until, |newest| until.max(newest + pace.wait));
        (at > now).then_some(at)
    }

    /// The start of the interval if the group is sealed now: the last sealing, if this sealing is within its interval.
    pub fn sealed_now(&self, pace: Pace, now: Timestamp) -> Timestamp {
        self.follows(pace).unwrap_or(now)
    }

    /// When the group is due after a sealing; `None`: no member waits. The silences that have joined before it are in
    /// one more notification, when all their waits are over; later ones wait for the interval.
    pub fn due_after(&self, left: Left, sealed: Sealed, pace: Pace, now: Timestamp) -> Option<Timestamp> {
        if sealed == Sealed::Most {
            return self.due;
        }
        let last = self.follows(pace);
        let silences = left.first.map(|first| match last {
            Some(last) => (first + pace.wait).max(last + pace.interval),
            None if sealed == Sealed::Some => left.newest.unwrap_or(first) + pace.wait,
            None => first + pace.wait,
        });
        let start =
            last.or((sealed == Sealed::Some).then_some(now)).or(self.sealed.filter(|last| *last <= now));
        let others = left.first_final.map(|first| match start {
            Some(start) if !left.is_last => (first + pace.wait).max(start + pace.interval),
            _ => first + pace.wait,
        });
        silences.into_iter().chain(others).min()
    }

    /// Whether the group is checked before the interval after the last sealing is over.
    fn is_within(&self, pace: Pace, now: Timestamp) -> bool {
        self.follows(pace).is_some_and(|last| now < last + pace.interval)
    }

    /// The last sealing, if the group is due within the interval after it.
    fn follows(&self, pace: Pace) -> Option<Timestamp> {
        self.sealed.filter(|last| self.due.is_some_and(|due| due > *last && due < *last + pace.interval))
    }
}

#[cfg(test)]
mod tests;

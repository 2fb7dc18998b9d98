//! A group in memory. `presence/grouping.rs` decides when transitions join it and when it is sealed, as for stored
//! groups: a generated test compares both.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::presence::{GroupTimes, Joining, Left, MemberTransition, Sealed, Stage, WaitingMember};
use crate::routing::{Destination, RouteTimes};

/// A notification of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialMessage {
    pub at: Timestamp,
    pub destination: Arc<Destination>,
    /// The places of its silences, and of those that are over.
    pub silences: Vec<u32>,
    pub returns: Vec<u32>,
}

/// A transition of a silence that joins.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrialTransition {
    /// The place of the silence, and of its unit.
    pub silence: u32,
    pub unit: u32,
    pub form: MemberTransition,
    pub deadline: Timestamp,
    /// Until when the silence is held.
    pub held_until: Option<Timestamp>,
}

pub(super) struct TrialGroup {
    pub destination: Arc<Destination>,
    /// When its route notifies.
    pub mutes: RouteTimes,
    /// Whether it waits for the release of the breaker.
    pub is_held: bool,
    times: GroupTimes,
    /// The members that wait or last, and since when each waits.
    members: HashMap<u32, (Stage, Option<Timestamp>)>,
    /// The members that wait: final ones first, by the begin of their waits.
    waiting: BTreeSet<(bool, Timestamp, u32)>,
    /// Since when returns wait, by unit.
    returning: HashMap<u32, Timestamp>,
    lasting: usize,
}

impl TrialGroup {
    pub fn new(destination: Arc<Destination>, mutes: RouteTimes) -> TrialGroup {
        TrialGroup {
            destination,
            mutes,
            is_held: false,
            times: GroupTimes::default(),
            members: HashMap::new(),
            waiting: BTreeSet::new(),
            returning: HashMap::new(),
            lasting: 0,
        }
    }

    /// When it is due; `None`: no member waits.
    pub fn due(&self) -> Option<Timestamp> {
        self.times.due
    }

    pub fn put_off(&mut self, until: Timestamp) {
        self.times.due = Some(until);
    }

    /// Whether receivers are notified of its silences. The return of a silence of which none was is not notified.
    fn has_receivers(&self) -> bool {
        !self.destination.receivers.is_empty()
    }

    /// Lets a transition join. `held_until`: until when the group is held.
    pub fn join(&mut self, joining: TrialTransition, held_until: Option<Timestamp>, now: Timestamp) {
        let TrialTransition { silence, unit, form, deadline, .. } = joining;
        let pace = self.destination.pace;
        let known = self.members.get(&silence).copied();
        let stage = known.map(|(stage, _)| stage);
        let form = Stage::form(stage, pace.form(form), self.has_receivers());
        let Some(next) = Stage::next(stage, form) else { return };
        if stage == Some(Stage::Notified) {
            self.lasting = self.lasting.saturating_sub(usize::from(self.keeps_lasting()));
        }
        if let Some((stage, Some(since))) = known {
            self.waiting.remove(&(stage == Stage::Waits, since, silence));
        }
        if next == Stage::Over {
            self.members.remove(&silence);
            if self.waiting.is_empty() {
                self.times.due = None;
            }
            return;
        }
        let joining = Joining {
            form,
            deadline,
            held_until: joining.held_until,
            returning: self.returning.get(&unit).copied(),
            lasting: self.lasting,
            group_held_until: held_until,
        };
        let since = self.times.join(joining, pace, now);
        if form == MemberTransition::Online && pace.returns_wait().is_some() {
            self.returning.insert(unit, since);
        }
        self.wait(silence, next, since);
    }

    fn wait(&mut self, silence: u32, stage: Stage, since: Timestamp) {
        self.members.insert(silence, (stage, Some(since)));
        self.waiting.insert((stage == Stage::Waits, since, silence));
    }

    /// Whether silences that receivers were notified of last.
    fn keeps_lasting(&self) -> bool {
        let pace = self.destination.pace;
        pace.has_lasting() && (self.has_receivers() || pace.looks_after.is_some())
    }

    /// Seals the group, which is due and not held. `held`: until when a silence is held, by its place. `units`: the
    /// unit of a silence.
    pub fn seal(
        &mut self,
        now: Timestamp,
        mut held: impl FnMut(u32) -> Option<Timestamp>,
        units: impl Fn(u32) -> u32,
    ) -> Option<TrialMessage> {
        let (times, pace) = (self.times, self.destination.pace);
        let waiting: Vec<(bool, Timestamp, u32)> = self.waiting.iter().copied().collect();
        let member =
            |one: &(bool, Timestamp, u32)| WaitingMember { since: one.1, is_silence: one.0, is_blind: false };
        let ready = match times.ready(waiting.iter().map(member), pace.is_last(self.lasting), pace, now) {
            Ok(ready) => ready,
            Err(gathered_at) => {
                self.times.due = Some(gathered_at);
                return None;
            }
        };
        let mut message = TrialMessage {
            at: now,
            destination: self.destination.clone(),
            silences: Vec::new(),
            returns: Vec::new(),
        };
        for place in ready {
            let (is_silence, since, silence) = waiting[place];
            self.waiting.remove(&waiting[place]);
            if let Some(until) = is_silence.then(|| held(silence)).flatten() {
                self.wait(silence, Stage::Waits, until - pace.wait);
                continue;
            }
            if is_silence {
                message.silences.push(silence);
                self.members.insert(silence, (Stage::Waits.once_notified(false), None));
                self.lasting += usize::from(self.keeps_lasting());
            } else {
                message.returns.push(silence);
                self.members.remove(&silence);
                let unit = units(silence);
                if self.returning.get(&unit) == Some(&since) {
                    self.returning.remove(&unit);
                }
            }
        }
        let count = message.silences.len() + message.returns.len();
        let is_sent = count > 0 && self.has_receivers();
        if is_sent {
            self.times.sealed = Some(times.sealed_now(pace, now));
        }
        let left =
            Left::of(self.waiting.iter().map(|one| (one.0, one.1)), pace.is_last(self.lasting), pace, now);
        self.times.due = times.due_after(left, Sealed::of(count), pace, now);
        is_sent.then_some(message)
    }
}

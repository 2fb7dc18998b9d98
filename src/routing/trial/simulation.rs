//! Replays the past: silences begin and end, join their groups and are notified by the rules of the service. There is
//! one difference: where the service checks every few seconds until something ends, the replay checks once, at that
//! end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use super::TrialRules;
use super::breaker::TrialBreaker;
use super::group::{TrialGroup, TrialMessage, TrialTransition};
use super::inhibition::TrialInhibitors;
use super::past::{PastFleet, PastSilence};
use crate::clock::Timestamp;
use crate::presence::{Cause, Closing, GATHERS, HELD_FOR, Labels, MemberTransition, OfflineRecord, Trip};
use crate::routing::{Destinations, MatchedRoute};

/// The number of events between two calls of `stop`.
const EVENTS: usize = 4096;

/// The groups of a silence, by their places.
type GroupPlaces = Rc<[u32]>;

/// The messages that receivers would have got.
#[derive(Clone, Debug, Default)]
pub struct TrialOutcome {
    /// In the order of time.
    pub messages: Vec<TrialMessage>,
    /// The times that the mass-offline breaker tripped.
    pub trips: Vec<Trip>,
}

/// What happens at a moment; of several things at one moment, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PastEvent {
    /// An operator releases the breaker.
    Released,
    Ends(u32),
    Begins(u32),
    /// The alert silence that covered a silence is over.
    Uncovered(u32),
    /// The mass of a trip is complete.
    Settled,
    /// The longest time of a trip is over.
    Expires,
    GroupDue(u32),
}

pub(super) struct Simulation<'a> {
    past: &'a PastFleet,
    rules: &'a TrialRules<'a>,
    /// By their places; `None`: it is not recorded.
    silences: &'a [Option<PastSilence>],
    destinations: Destinations,
    groups: Vec<TrialGroup>,
    names: HashMap<(String, Labels), u32>,
    groups_of: HashMap<(u32, Cause), GroupPlaces>,
    agenda: BinaryHeap<Reverse<(Timestamp, PastEvent)>>,
    inhibitors: TrialInhibitors<'a>,
    breaker: TrialBreaker<'a>,
    /// The groups that the breaker holds.
    held: Vec<u32>,
    messages: Vec<TrialMessage>,
}

/// When the end of a silence is known to the service: after its detection.
fn ends_at(silence: &PastSilence) -> Option<Timestamp> {
    let after = silence.detected_at + Duration::from_millis(1);
    silence.closed_at().map(|closed| closed.max(after))
}

impl<'a> Simulation<'a> {
    pub fn new(
        rules: &'a TrialRules<'a>,
        past: &'a PastFleet,
        silences: &'a [Option<PastSilence>],
    ) -> Simulation<'a> {
        let releases = past.releases.iter().map(|at| Reverse((*at, PastEvent::Released)));
        let known = (0..).zip(silences).filter_map(|(place, silence)| Some((place, silence.as_ref()?)));
        let transitions = known.flat_map(|(place, silence)| {
            let begins = (silence.detected_at, PastEvent::Begins(place));
            let ends = ends_at(silence).map(|at| (at, PastEvent::Ends(place)));
            std::iter::once(begins).chain(ends).map(Reverse)
        });
        let agenda: Vec<_> = releases.chain(transitions).collect();
        Simulation {
            past,
            rules,
            silences,
            destinations: rules.routes.destinations(rules.receivers.to_vec()),
            groups: Vec::new(),
            names: HashMap::new(),
            groups_of: HashMap::new(),
            agenda: agenda.into(),
            inhibitors: TrialInhibitors::new(rules.inhibition),
            breaker: TrialBreaker::new(rules.breaker, &past.sizes, silences.len()),
            held: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// Runs to the end of the range. `None`: the caller stopped it.
    pub fn run(mut self, stop: &dyn Fn() -> bool) -> Option<TrialOutcome> {
        let mut events = 0;
        while let Some(Reverse((at, event))) = self.agenda.pop() {
            if at > self.past.range.to {
                break;
            }
            events += 1;
            if events % EVENTS == 0 && stop() {
                return None;
            }
            self.happen(event, at);
        }
        Some(TrialOutcome { messages: self.messages, trips: self.breaker.trips })
    }

    fn happen(&mut self, event: PastEvent, now: Timestamp) {
        match event {
            PastEvent::Begins(place) => self.begin(place, now),
            PastEvent::Ends(place) => self.end(place, now),
            PastEvent::Uncovered(place) => {
                if let Some((silence, record)) =
                    self.open(place).filter(|(silence, _)| ends_at(silence).is_none_or(|ends| ends > now))
                {
                    self.join_unless_covered(place, &silence, &record, now);
                }
            }
            PastEvent::Settled => self.breaker.settle(),
            PastEvent::Released => self.release(true, now),
            PastEvent::Expires => self.release(false, now),
            PastEvent::GroupDue(group) => self.look_at(group, now),
        }
    }

    fn plan(&mut self, at: Timestamp, event: PastEvent) {
        if at <= self.past.range.to {
            self.agenda.push(Reverse((at, event)));
        }
    }

    fn open(&self, place: u32) -> Option<(PastSilence, OfflineRecord)> {
        let silence = self.silences[place as usize]?;
        Some((silence, self.past.open_record(&silence)))
    }

    fn begin(&mut self, place: u32, now: Timestamp) {
        let Some((silence, record)) = self.open(place) else { return };
        let is_covered = self.past.alert_silences.covered_until(&record, now).is_some();
        let known_since = self.past.unit_of(&silence).known_since;
        if self.breaker.detected(place, (known_since, is_covered), now)
            && let Some(until) = self.breaker.held().map(|trip| trip.until)
        {
            self.plan(now + GATHERS, PastEvent::Settled);
            self.plan(until, PastEvent::Expires);
        }
        self.inhibitors.enter(&record, &record, ends_at(&silence).unwrap_or(Timestamp::NEVER));
        self.join_unless_covered(place, &silence, &record, now);
    }

    fn end(&mut self, place: u32, now: Timestamp) {
        let Some((silence, record)) = self.open(place) else { return };
        let Some((back_at, why)) = silence.closed else { return };
        self.breaker.ended(place);
        self.release(false, now);
        let closed = OfflineRecord { back_at: Some(back_at), closed_by: Some(why), ..record.clone() };
        self.inhibitors.enter(&record, &closed, now);
        let form = match why {
            Closing::Removed => MemberTransition::Removed,
            _ => MemberTransition::Online,
        };
        self.join(place, &silence, &record, form, now);
    }

    /// Lets a silence join its groups now, or as soon as no alert silence covers it any more.
    fn join_unless_covered(
        &mut self,
        place: u32,
        silence: &PastSilence,
        record: &OfflineRecord,
        now: Timestamp,
    ) {
        match self.past.alert_silences.covered_until(record, now) {
            Some(until) => self.plan(until, PastEvent::Uncovered(place)),
            None => self.join(place, silence, record, MemberTransition::Offline, now),
        }
    }

    fn join(
        &mut self,
        place: u32,
        silence: &PastSilence,
        record: &OfflineRecord,
        form: MemberTransition,
        now: Timestamp,
    ) {
        let is_silence = form == MemberTransition::Offline;
        let held_until = if is_silence { self.inhibitors.held(record, now) } else { None };
        let joining = TrialTransition {
            silence: place,
            unit: silence.unit,
            form,
            deadline: silence.deadline,
            held_until,
        };
        let groups = self.groups_of(silence, record);
        for group in &*groups {
            let held_until = self.held_until(*group, now);
            let one = &mut self.groups[*group as usize];
            if let (true, Some(due)) = (one.is_held, one.due()) {
                one.put_off(next_check(due, now));
            }
            let was_due = one.due().is_some();
            one.join(joining, held_until, now);
            if !was_due && one.due().is_some_and(|due| due <= now) {
                self.seal(*group, now);
            }
            self.plan_check(*group, now);
        }
    }

    /// The groups that a silence joins.
    fn groups_of(&mut self, silence: &PastSilence, record: &OfflineRecord) -> GroupPlaces {
        let of = (silence.unit, silence.cause);
        if let Some(known) = self.groups_of.get(&of) {
            return known.clone();
        }
        let routes = self.rules.routes;
        let groups: GroupPlaces =
            routes.of(record).into_iter().map(|taken| self.group_in(taken, record)).collect();
        self.groups_of.insert(of, groups.clone());
        groups
    }

    fn group_in(&mut self, taken: MatchedRoute<'_>, record: &OfflineRecord) -> u32 {
        let name = (taken.id.to_owned(), taken.route.shared(record));
        if let Some(known) = self.names.get(&name) {
            return *known;
        }
        let key = if taken.id.is_empty() { "all".to_owned() } else { format!("{}/all", taken.id) };
        let destination = self.destinations.of(&key);
        let place = self.groups.len() as u32;
        self.groups.push(TrialGroup::new(destination, taken.route.times.clone()));
        self.names.insert(name, place);
        place
    }

    /// Until when a group is held.
    fn held_until(&self, group: u32, now: Timestamp) -> Option<Timestamp> {
        let muted = self.groups[group as usize].mutes.muted_until(now);
        muted.max(self.breaker.held().map(|trip| trip.holds_until(now))).filter(|until| *until > now)
    }

    fn plan_check(&mut self, group: u32, now: Timestamp) {
        let one = &self.groups[group as usize];
        if let Some(due) = one.due().filter(|_| !one.is_held) {
            self.plan(due.max(now), PastEvent::GroupDue(group));
        }
    }

    /// Seals a group that is due, unless it is held.
    fn look_at(&mut self, group: u32, now: Timestamp) {
        let one = &self.groups[group as usize];
        if one.is_held || one.due().is_none_or(|due| due > now) {
            return;
        }
        match self.held_until(group, now) {
            Some(until) => {
                let is_tripped = self.breaker.held().is_some();
                let one = &mut self.groups[group as usize];
                one.put_off(until);
                one.is_held = is_tripped;
                self.held.extend(is_tripped.then_some(group));
            }
            None => self.seal(group, now),
        }
        self.plan_check(group, now);
    }

    fn seal(&mut self, group: u32, now: Timestamp) {
        let Simulation { groups, inhibitors, past, silences, messages, .. } = self;
        let may_hold = !past.alert_silences.is_empty() || !inhibitors.is_empty();
        let unit = |place: u32| silences[place as usize].map_or(u32::MAX, |silence| silence.unit);
        let held = |place: u32| {
            let silence = silences[place as usize].filter(|_| may_hold)?;
            let record = past.open_record(&silence);
            inhibitors.held(&record, now).max(past.alert_silences.covered_until(&record, now))
        };
        let one = &mut groups[group as usize];
        let message = one.seal(now, held, unit);
        // Check such a group again soon.
        if message.is_none() && one.due().is_some_and(|due| due <= now) {
            one.put_off(now + GATHERS);
        }
        messages.extend(message);
    }

    /// Releases the breaker if it is time, or if an operator does: the groups that it holds are due at their next
    /// check.
    fn release(&mut self, by_operator: bool, now: Timestamp) {
        let until = self.breaker.held().map(|trip| trip.until);
        if !self.breaker.release(by_operator, now) {
            return;
        }
        for group in std::mem::take(&mut self.held) {
            let one = &mut self.groups[group as usize];
            one.is_held = false;
            if let Some(due) = one.due() {
                one.put_off(next_check(due, now).min(until.unwrap_or(now)).max(now));
            }
            self.plan_check(group, now);
        }
    }
}

/// The next check of a group that is checked every [`HELD_FOR`] since `first`.
fn next_check(first: Timestamp, now: Timestamp) -> Timestamp {
    let looks = now.since(first).as_millis().div_ceil(HELD_FOR.as_millis());
    first + HELD_FOR * u32::try_from(looks).unwrap_or(u32::MAX)
}

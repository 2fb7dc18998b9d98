//! Compares a tried policy with the current one: counts, the largest differences, and what history cannot answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::Serialize;

use super::past::{PastFleet, PastPolicy, PastSilence};
use super::{TrialOutcome, TrialRules};
use crate::clock::{Timestamp, shown_span};
use crate::presence::{Kind, Policy, Unit, UnitId};

/// The most differences that are shown.
const MAX_DIFFERENCES: usize = 10;

/// The tried policy beside the current one. As JSON it is the answer of the command and of the API.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyTrial {
    pub kind: Kind,
    pub from: Timestamp,
    pub until: Timestamp,
    pub was: TrialSide,
    pub would: TrialSide,
    /// The policies that were in force in the range, as far as they are on record.
    pub policies: Vec<TrialPolicy>,
    /// How many notifications each receiver took by the configuration of that time.
    pub sent: BTreeMap<String, u64>,
    /// The silences of each value of a label, as recorded and as tried.
    pub groups: BTreeMap<String, [usize; 2]>,
    pub differences: Vec<TrialDifference>,
    /// What history cannot answer.
    pub notes: Vec<String>,
}

/// A policy that was in force from a moment on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialPolicy {
    pub since: Timestamp,
    pub timeout_seconds: f64,
    pub grace_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialSide {
    /// `null`: several policies were in force.
    pub timeout_seconds: Option<f64>,
    pub grace_seconds: Option<f64>,
    pub counts: TrialCounts,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrialCounts {
    /// Silences that are recorded in the range.
    pub silences: usize,
    pub units: usize,
    /// Silences of which a receiver is notified.
    pub told: usize,
    /// Messages to each receiver with units of the kind.
    pub messages: BTreeMap<String, u64>,
    /// How often the mass-offline breaker trips.
    pub trips: usize,
}

/// A silence of which receivers would have known earlier, later or not at all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialDifference {
    pub unit: String,
    pub last_seen: Timestamp,
    pub back_at: Option<Timestamp>,
    /// The first message about it; `null`: there is none.
    pub told_at: Option<Timestamp>,
    pub would_be_told_at: Option<Timestamp>,
    pub seconds: f64,
}

/// One side of the comparison.
struct TriedSide {
    silences: Vec<Option<PastSilence>>,
    outcome: TrialOutcome,
    /// The first message about each silence.
    told: Vec<Option<Timestamp>>,
}

impl TriedSide {
    fn of(
        rules: &TrialRules<'_>,
        past: &PastFleet,
        silences: Vec<Option<PastSilence>>,
        stop: &dyn Fn() -> bool,
    ) -> Option<TriedSide> {
        let outcome = rules.outcome(past, &silences, stop)?;
        let mut told = vec![None; silences.len()];
        for message in &outcome.messages {
            for place in &message.silences {
                told[*place as usize].get_or_insert(message.at);
            }
        }
        Some(TriedSide { silences, outcome, told })
    }

    /// The silences of the kind that are recorded in the range, with their places.
    fn recorded<'a>(&'a self, past: &'a PastFleet) -> impl Iterator<Item = (usize, &'a PastSilence)> {
        let known = self.silences.iter().enumerate();
        let known = known.filter_map(|(place, silence)| Some((place, silence.as_ref()?)));
        known.filter(move |(_, silence)| past.range.contains(silence.detected_at) && past.is_of_kind(silence))
    }

    fn counts(&self, past: &PastFleet) -> TrialCounts {
        let mut counts = TrialCounts::default();
        let mut units: BTreeSet<&UnitId> = BTreeSet::new();
        for (place, silence) in self.recorded(past) {
            counts.silences += 1;
            counts.told += usize::from(self.told[place].is_some());
            units.insert(&past.unit_of(silence).unit.id);
        }
        counts.units = units.len();
        let is_of_kind = |place: &u32| past.is_of_kind(&past.silences[*place as usize]);
        for message in self.outcome.messages.iter().filter(|message| past.range.contains(message.at)) {
            if message.silences.iter().chain(&message.returns).any(is_of_kind) {
                for receiver in &message.destination.receivers {
                    *counts.messages.entry(receiver.clone()).or_default() += 1;
                }
            }
        }
        counts.trips = self.outcome.trips.iter().filter(|trip| past.range.contains(trip.at)).count();
        counts
    }

    fn shown(&self, policy: Option<Policy>, past: &PastFleet) -> TrialSide {
        TrialSide {
            timeout_seconds: policy.map(|policy| policy.timeout.as_secs_f64()),
            grace_seconds: policy.map(|policy| policy.grace.as_secs_f64()),
            counts: self.counts(past),
        }
    }
}

impl PolicyTrial {
    /// Tries a policy on the past, beside the current one. `group_by`: the label whose values are counted. `stop` is
    /// called now and then: if it returns true, the result is `None`.
    pub fn of(
        past: &PastFleet,
        was: &TrialRules<'_>,
        would: &TrialRules<'_>,
        group_by: Option<&str>,
        stop: &dyn Fn() -> bool,
    ) -> Option<PolicyTrial> {
        let (continued, mut left) = (Continued::of(past), TrialGaps::default());
        let after = tried(past, (was, would), &continued, &mut left);
        let recorded = past.silences.iter().copied().map(Some).collect();
        let now = TriedSide::of(was, past, recorded, stop)?;
        let then = TriedSide::of(would, past, after, stop)?;
        let mut groups: BTreeMap<String, [usize; 2]> = BTreeMap::new();
        for (at, side) in [&now, &then].into_iter().enumerate() {
            for (_, silence) in side.recorded(past).filter(|_| group_by.is_some()) {
                let value = group_by.and_then(|label| past.unit_of(silence).labels.get(label)).cloned();
                groups.entry(value.unwrap_or_default()).or_default()[at] += 1;
            }
        }
        Some(PolicyTrial {
            kind: past.kind.clone(),
            from: past.range.from,
            until: past.range.to,
            was: now.shown(policy_of_then(past, was), past),
            would: then.shown(Some(would.policy), past),
            sent: past.sent.clone(),
            groups,
            differences: differences(past, &now, &then, &continued),
            policies: past.policies_in(past.range).iter().map(TrialPolicy::from).collect(),
            notes: notes(past, was, would, &left),
        })
    }

    pub const HEADS: [&'static str; 3] = ["what", "as it was", "as tried"];
    pub const DIFFERENCE_HEADS: [&'static str; 6] =
        ["unit", "last seen", "back", "told", "would be told", "difference"];

    /// The counts, under [`PolicyTrial::HEADS`].
    pub fn rows(&self) -> Vec<[String; 3]> {
        let (was, would) = (&self.was.counts, &self.would.counts);
        let span = |timeout_and_grace: [f64; 2]| {
            let [timeout, grace] = timeout_and_grace.map(Duration::from_secs_f64);
            format!("{} + {}", shown_span(timeout), shown_span(grace))
        };
        let of_side = |side: &TrialSide| {
            span([side.timeout_seconds, side.grace_seconds].map(Option::unwrap_or_default))
        };
        let then = |one: &TrialPolicy| {
            let policy = span([one.timeout_seconds, one.grace_seconds]);
            if one.since <= self.from { policy } else { format!("from {} {policy}", one.since) }
        };
        let then: Vec<String> = self.policies.iter().map(then).collect();
        let then = if then.is_empty() { of_side(&self.was) } else { then.join(", ") };
        let numbers =
            |what: &str, was: usize, would: usize| [what.to_owned(), was.to_string(), would.to_string()];
        let mut rows = vec![
            ["timeout + grace".to_owned(), then, of_side(&self.would)],
            numbers("silences recorded", was.silences, would.silences),
            numbers("units among them", was.units, would.units),
            numbers("silences told of", was.told, would.told),
        ];
        let receivers: BTreeSet<&String> = was.messages.keys().chain(would.messages.keys()).collect();
        for receiver in receivers {
            let of =
                |side: &TrialCounts| side.messages.get(receiver).copied().unwrap_or_default().to_string();
            rows.push([format!("messages to {receiver}"), of(was), of(would)]);
        }
        for (receiver, count) in &self.sent {
            rows.push([format!("messages that {receiver} took"), count.to_string(), String::new()]);
        }
        if was.trips + would.trips > 0 {
            rows.push(numbers("trips of the breaker", was.trips, would.trips));
        }
        for (value, [was, would]) in &self.groups {
            let value = if value.is_empty() { "units without the label" } else { value };
            rows.push(numbers(&format!("silences of {value}"), *was, *would));
        }
        rows
    }

    /// The largest differences, under [`PolicyTrial::DIFFERENCE_HEADS`].
    pub fn difference_rows(&self) -> Vec<[String; 6]> {
        let moment = |at: Option<Timestamp>, none: &str| at.map_or(none.to_owned(), |at| at.to_string());
        let row = |one: &TrialDifference| {
            [
                one.unit.clone(),
                one.last_seen.to_string(),
                moment(one.back_at, "-"),
                moment(one.told_at, "never"),
                moment(one.would_be_told_at, "never"),
                shown_span(Duration::from_secs_f64(one.seconds)),
            ]
        };
        self.differences.iter().map(row).collect()
    }
}

/// Silences with several records, by the places of these.
#[derive(Default)]
struct Continued {
    /// A later record → the first one of its silence.
    first: BTreeMap<usize, usize>,
    /// The first record → the last one.
    last: BTreeMap<usize, usize>,
}

impl Continued {
    fn of(past: &PastFleet) -> Continued {
        let (mut continued, mut closed) = (Continued::default(), HashMap::<(&Unit, Timestamp), usize>::new());
        for (place, silence) in past.silences.iter().enumerate().filter(|(_, one)| past.is_of_kind(one)) {
            let id = (&past.unit_of(silence).unit, silence.last_seen);
            if let Some(first) = closed.get(&id) {
                continued.first.insert(place, *first);
                continued.last.insert(*first, place);
            } else if silence.has_unknown_end() {
                closed.insert(id, place);
            }
        }
        continued
    }

    fn first(&self, place: usize) -> usize {
        self.first.get(&place).copied().unwrap_or(place)
    }

    fn last(&self, first: usize) -> usize {
        self.last.get(&first).copied().unwrap_or(first)
    }

    /// When receivers were first notified of each silence, at the place of its first record.
    fn told(&self, side: &TriedSide) -> Vec<Option<Timestamp>> {
        let mut told = side.told.clone();
        for (later, first) in &self.first {
            told[*first] = told[*first].into_iter().chain(told[*later]).min();
        }
        told
    }
}

/// The silences as the tried policy records them, each once, at the place of its first record. Silences that no policy
/// on record decided are left as they were.
fn tried(
    past: &PastFleet,
    (was, would): (&TrialRules<'_>, &TrialRules<'_>),
    continued: &Continued,
    left: &mut TrialGaps,
) -> Vec<Option<PastSilence>> {
    let one = |(place, silence): (usize, &PastSilence)| {
        let first = continued.first(place);
        if first != place && was.has_decided(past, &past.silences[first]) {
            return None;
        }
        if !was.has_decided(past, silence) {
            left.undecided(past, silence);
            return Some(*silence);
        }
        let last = &past.silences[continued.last(place)];
        let tried = would.tried(past, &PastSilence { closed: was.latest_end(past, last), ..*silence });
        let is_shown = |one: &PastSilence| past.range.contains(one.detected_at);
        let is_shown = is_shown(silence) || tried.as_ref().is_some_and(is_shown);
        left.unknown_ends += usize::from(is_shown && last.has_unknown_end());
        tried
    };
    past.silences.iter().enumerate().map(one).collect()
}

/// The policy by which the silences were recorded, as far as it is on record; `None`: there were several.
fn policy_of_then(past: &PastFleet, was: &TrialRules<'_>) -> Option<Policy> {
    match past.policies_in(past.range) {
        [] => Some(was.policy),
        [first, others @ ..] => others.iter().all(|one| one.policy == first.policy).then_some(first.policy),
    }
}

/// The silences whose first messages differ most. A silence without a message counts as if receivers were notified at
/// its end.
fn differences(
    past: &PastFleet,
    was: &TriedSide,
    would: &TriedSide,
    continued: &Continued,
) -> Vec<TrialDifference> {
    let counted: BTreeSet<usize> =
        was.recorded(past).chain(would.recorded(past)).map(|(place, _)| continued.first(place)).collect();
    let (was, would) = (continued.told(was), continued.told(would));
    let mut all: Vec<TrialDifference> = Vec::new();
    for place in counted {
        let (told_at, would_be_told_at) = (was[place], would[place]);
        if told_at == would_be_told_at {
            continue;
        }
        let (silence, last) = (&past.silences[place], &past.silences[continued.last(place)]);
        let back_at = last.closed_at().filter(|_| !last.has_unknown_end());
        let end = last.closed_at().unwrap_or(past.range.to);
        let [one, other] = [told_at, would_be_told_at].map(|at| at.unwrap_or(end));
        let seconds = one.max(other).since(one.min(other)).as_secs_f64();
        let unit = &past.unit_of(silence).unit;
        let (unit, last_seen) = (format!("{}/{}", unit.kind, unit.id), silence.last_seen);
        all.push(TrialDifference { unit, last_seen, back_at, told_at, would_be_told_at, seconds });
    }
    all.sort_by(|a, b| {
        b.seconds.total_cmp(&a.seconds).then_with(|| (&a.unit, a.last_seen).cmp(&(&b.unit, b.last_seen)))
    });
    all.truncate(MAX_DIFFERENCES);
    all
}

impl From<&PastPolicy> for TrialPolicy {
    fn from(PastPolicy { since, policy }: &PastPolicy) -> TrialPolicy {
        let [timeout_seconds, grace_seconds] = [policy.timeout, policy.grace].map(|span| span.as_secs_f64());
        TrialPolicy { since: *since, timeout_seconds, grace_seconds }
    }
}

/// Silences of the kind about which history does not say all.
#[derive(Default)]
struct TrialGaps {
    /// No policy on record decided them.
    by_others: usize,
    /// The policies of their time are not on record, and no other known policy decided them.
    unknown: usize,
    unknown_ends: usize,
}

impl TrialGaps {
    fn notes(&self, past: &PastFleet) -> Vec<String> {
        let TrialGaps { by_others, unknown, unknown_ends } = self;
        let mut notes = Vec::new();
        if *unknown_ends > 0 {
            notes.push(format!(
                "{unknown_ends} records were closed by a longer timeout or because the kind was removed, and when their \
                 units were heard again is not on record: they are tried as if these had been silent for as long as is \
                 possible while they were watched"
            ));
        }
        if *by_others > 0 {
            notes.push(format!(
                "{by_others} silences were decided by something else than the timeout of the kind, such as a timeout of \
                 their own, a silence that the unit planned, or an announcement, and are left as they were"
            ));
        }
        if *unknown > 0 {
            let known = past.policies.first().map_or("are not on record".to_owned(), |first| {
                format!("are on record from {} on", first.since)
            });
            notes.push(format!(
                "the timeouts of {} {known}: {unknown} silences that another timeout may have decided are left as they \
                 were",
                past.kind
            ));
        }
        notes
    }

    /// Counts a silence that no policy on record decided.
    fn undecided(&mut self, past: &PastFleet, silence: &PastSilence) {
        if !past.is_of_kind(silence) || !past.range.contains(silence.detected_at) {
            return;
        }
        match silence.cause.is_announced() || past.has_policies_of(silence) {
            true => self.by_others += 1,
            false => self.unknown += 1,
        }
    }
}

/// Which silences are not on record though a shorter timeout would have recorded them.
fn missing(past: &PastFleet, was: &TrialRules<'_>, tried: Duration) -> Vec<String> {
    let mut notes = Vec::new();
    let then = past.policies_in(past.range).iter().map(|one| one.policy.allowed()).max();
    let allowed = then.unwrap_or(was.policy.allowed());
    if tried < allowed {
        notes.push(format!(
            "silences of {} to {} are not on record: how many more would have been recorded is not known",
            shown_span(tried),
            shown_span(allowed)
        ));
    }
    let newest = past.policies.last().map_or(was.policy, |one| one.policy).allowed();
    if tried < newest && past.range.to - tried > past.written - newest {
        notes.push(format!(
            "silences that began after {} are not on record yet: they are recorded when they have lasted for {}, and \
             history is written until {}",
            past.written - newest,
            shown_span(newest),
            past.written
        ));
    }
    notes
}

/// What history cannot answer.
fn notes(past: &PastFleet, was: &TrialRules<'_>, would: &TrialRules<'_>, left: &TrialGaps) -> Vec<String> {
    let mut notes = missing(past, was, would.policy.allowed());
    notes.extend(left.notes(past));
    if [was, would].iter().any(|rules| rules.breaker.is_some()) && past.sizes.is_unknown() {
        notes.push(
            "the mass-offline breaker is not tried: the units of the fleet are not on record".to_owned(),
        );
    }
    if [was, would].iter().all(|rules| rules.routes.tree().named_receivers().is_empty()) {
        notes.push("no route names a receiver, so there are no messages to compare".to_owned());
    }
    let mut left_out = Vec::new();
    let has_reminders = |rules: &TrialRules<'_>| rules.routes.destinations(Vec::new()).has_reminders();
    if has_reminders(was) || has_reminders(would) {
        left_out.push("reminders and escalations");
    }
    if was.has_flapping || would.has_flapping {
        left_out.push("flapping");
    }
    if was.has_rate_limits || would.has_rate_limits {
        left_out.push("rate limits of receivers");
    }
    if !left_out.is_empty() {
        notes.push(format!("not tried: {}", left_out.join(", ")));
    }
    notes.extend(past.gaps.iter().cloned());
    notes
}

/// In words, for the begin of an answer.
impl std::fmt::Display for PolicyTrial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PolicyTrial { kind, from, until, .. } = self;
        write!(f, "Silences of {kind} that were detected from {from} until {until}")
    }
}

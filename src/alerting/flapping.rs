//! Flapping units: receivers are notified of the begin of an episode and of its end, and of no silence in between.
//!
//! Every transition of a kind with flap detection is noted before it joins its groups. A silence of an episode does
//! not join. The episode joins instead: after the first time that changes nothing, and an alert silence that covered
//! its begin holds it back until the unit flaps once more. A return joins as usual: it ends a silence that receivers
//! know of, also receivers that are not notified of the episode, such as those of an escalation. No receiver is
//! notified of the return of another silence.
//!
//! An episode has groups of its own, beside those of its route. With its end joins the open record of the unit, if it
//! has one: one notification has both, and the record's return is notified like any other.
//!
//! # Why an end is not lost
//! First the end is decided and stored, then it joins, then it is stored that it has. A crash in between repeats it,
//! which changes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::due::{DueWork, LoopName};
use super::group::flapping_groups_of;
use super::routed_groups::RoutedGroups;
use super::stateful_alerts::StatefulAlerts;
use super::{MIN_WAIT, TICK};
use crate::clock::{Clock, Timestamp, monotonic};
use crate::fleet::{FlapDetector, Ownership, StoredFlaps};
use crate::presence::{Closing, FlapCheck, FlapNotification, Flaps, OfflineRecord, Snapshot};
use crate::routing::Destinations;
use crate::store::{Capacity, Join, OutboxEvent, Result, UnitStore};
use crate::telemetry::Loop;

/// The most units that one step checks.
const STEP: usize = 500;
/// How often units are counted again, and how often the store is read while no kind has flap detection.
const COUNTED_EVERY: Duration = Duration::from_secs(300);
/// How soon a unit whose facts cannot be read is checked again.
const UNREADABLE: Duration = Duration::from_secs(60);

/// The events of which receivers are notified, in place of `events`.
pub(super) async fn noted(flapping: &FlapDetector, events: Vec<OutboxEvent>) -> Result<Vec<OutboxEvent>> {
    if !flapping.is_configured() {
        return Ok(events);
    }
    let records: Vec<&OfflineRecord> = records_of(&events).collect();
    let mut noted = flapping.note(&records).await?.into_iter();
    let mut passed = Vec::with_capacity(events.len());
    for event in events {
        match event.record().and_then(|_| noted.next()) {
            None | Some(FlapNotification::Plain) => passed.push(event),
            Some(FlapNotification::Episode(episode)) => {
                // The silence of a return may have joined before the episode began. Otherwise the return joins alone,
                // and no receiver is notified of it.
                passed.extend(Some(event).filter(is_return));
                passed.push(OutboxEvent::Record(*episode));
            }
        }
    }
    Ok(passed)
}

fn is_return(event: &OutboxEvent) -> bool {
    event.record().is_some_and(|record| record.back_at.is_some())
}

/// The records among some events.
pub(super) fn records_of(events: &[OutboxEvent]) -> impl Iterator<Item = &OfflineRecord> {
    events.iter().filter_map(OutboxEvent::record)
}

/// Ends episodes.
pub(super) struct EpisodeEnds {
    pub routed: RoutedGroups,
    pub stateful_alerts: Arc<StatefulAlerts>,
    pub units: Arc<dyn UnitStore>,
    pub ownership: Ownership,
    pub clock: Clock,
}

/// The partitions whose units are counted, and since when.
pub(super) type Counted = Option<(Vec<u16>, Instant)>;

impl DueWork for EpisodeEnds {
    type Progress = Counted;
    const REPORTED_AS: Option<LoopName> = Some((Loop::Dispatch, "flapping units"));

    fn begin(&self) -> Counted {
        None
    }

    async fn step(&self, counted: &mut Counted) -> Result<Duration> {
        let flapping = &self.routed.flapping;
        let partitions = self.ownership.view().partitions.clone();
        let is_counted = |(of, at): &(Vec<u16>, Instant)| {
            *of == partitions && monotonic().duration_since(*at) < COUNTED_EVERY
        };
        if !counted.as_ref().is_some_and(is_counted) {
            flapping.count(&partitions).await?;
        } else if !flapping.is_configured() {
            return Ok(TICK);
        }
        let now = self.clock.now();
        match flapping.first(&partitions).await? {
            Some(first) if first <= now => {
                self.check_due(&partitions, now).await?;
                Ok(MIN_WAIT)
            }
            first => {
                // A rule that a reload removed may have left units; they are ended until no unit is due any more.
                let is_done = flapping.is_configured() || first.is_none();
                if is_done && !counted.as_ref().is_some_and(is_counted) {
                    *counted = Some((partitions, monotonic()));
                }
                Ok(first.map_or(TICK, |first| first.since(now).clamp(MIN_WAIT, TICK)))
            }
        }
    }
}

impl EpisodeEnds {
    /// Ends the episodes of due units that have been stable for long enough.
    async fn check_due(&self, partitions: &[u16], now: Timestamp) -> Result<()> {
        let due = self.routed.flapping.due(partitions, now, STEP).await?;
        let units: Vec<_> = due.iter().map(|stored| stored.name.clone()).collect();
        let seen = self.units.read(&units).await?;
        let destinations = self.routed.current_destinations(now).await?;
        // Receivers are not notified of a silence that is held, and so not of an end without it.
        let held_until = |open: Option<&OfflineRecord>| destinations.silence_held_until(open?, now);
        let (mut changes, mut ends) = (Vec::new(), Vec::new());
        for (stored, seen) in due.into_iter().zip(seen) {
            let (rule, flaps) =
                (self.routed.flapping.rule(&stored.name.kind), stored.value.clone().unwrap_or_default());
            let open = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
            let is_open = seen.is_known().then_some(open.is_some());
            let paused_until = seen.facts.as_ref().and_then(|facts| Some(facts.pause?.to));
            let after = match flaps.check(rule, is_open, paused_until, now) {
                _ if seen.is_unreadable() => Some((flaps, now + UNREADABLE)),
                FlapCheck::Wait(at) => Some((flaps, at)),
                FlapCheck::Forget => None,
                FlapCheck::End if let Some(until) = held_until(open.as_ref()) => Some((flaps, until)),
                FlapCheck::End => {
                    let ending = flaps.ending();
                    ends.push((changes.len(), seen, open));
                    let look = ending.look_at(rule);
                    Some((ending, look))
                }
            };
            changes.push((stored, after));
        }
        // The end is decided, unless the unit has changed meanwhile.
        let written = self.routed.flapping.change(&changes).await?;
        ends.retain(|(at, ..)| written[*at]);
        if ends.is_empty() { Ok(()) } else { self.end(&changes, ends, &destinations, now).await }
    }

    /// Lets the ends of episodes join the groups. Each end has its index among `changes`, its unit, and the open
    /// record of that unit.
    async fn end(
        &self,
        changes: &[(StoredFlaps, Option<(Flaps, Timestamp)>)],
        ends: Vec<(usize, Snapshot, Option<OfflineRecord>)>,
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<()> {
        let mut joins = Vec::new();
        let mut over: Vec<(StoredFlaps, Option<(Flaps, Timestamp)>)> = Vec::new();
        for (at, seen, open) in ends {
            let (stored, after) = &changes[at];
            let Some((ending, _)) = after else { continue };
            joins.extend(self.joins(ending, &seen, open));
            let (flaps, rule) = (ending.over(), self.routed.flapping.rule(&stored.name.kind));
            let look = flaps.look_at(rule);
            over.push((stored.written(ending.clone())?, Some((flaps, look))));
        }
        let ended = joins.iter().filter_map(|join| join.event.record());
        let removed = ended.filter(|record| record.closed_by == Some(Closing::Removed));
        self.stateful_alerts.remove(&removed.cloned().collect::<Vec<_>>()).await?;
        self.routed.groups.join(&joins, destinations, &Capacity::NONE, now).await?;
        self.routed.flapping.change(&over).await.map(|_| ())
    }

    /// The end of an episode, and the open record of its unit: receivers that know that it is offline are notified of
    /// its return.
    fn joins(&self, ending: &Flaps, seen: &Snapshot, open: Option<OfflineRecord>) -> Vec<Join> {
        let ended = ending.ended(open.as_ref(), !seen.is_known()).into_iter();
        ended.chain(open).map(|record| self.join_of(record)).collect()
    }

    fn join_of(&self, record: OfflineRecord) -> Join {
        Join { groups: flapping_groups_of(&record, &self.routed.routes), event: OutboxEvent::Record(record) }
    }
}

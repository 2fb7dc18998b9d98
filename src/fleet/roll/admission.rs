//! Heartbeats: how they are recorded.
//!
//! # Why heartbeats take two paths
//! Almost every heartbeat is of a unit that is present and declares nothing new. Such heartbeats are written straight
//! into their expiry keys in one pipeline. Only heartbeats that the pipeline did not apply, and heartbeats of units that
//! declare something new, are read, decided and applied as changes. A unit takes one path with all its heartbeats of a
//! call: on two, a later heartbeat would be recorded first, and the declaration of an earlier one would be lost.
//!
//! # Why the fast path goes in batches
//! The engine should never wait for this instance. While it writes one batch, the next one is built, and the answers
//! to the previous one go into the mirror; the engine is idle only before the first batch and after the last.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use foldhash::fast::FixedState;
use futures_util::future::join_all;

use super::Roll;
use super::rounds::{HeartbeatStep, UnitHeartbeats, by_unit};
use crate::clock::{Timestamp, monotonic};
use crate::fleet::census::UnitReservation;
use crate::fleet::mirror::RecordedHeartbeat;
use crate::fleet::{Rules, StrangerReason};
use crate::presence::{Change, Hearing, Heartbeat, HeartbeatResult, Kind, KindRules, Move, Snapshot, Unit};
use crate::store::{EngineError, MAX_CHANGES, MAX_STEP, Refresh, Result};
use crate::telemetry::PayloadIssue;

/// Steps of admission that are under way at once; no unit is in two of them.
const STEPS_AT_ONCE: usize = 4;

/// The outcome of a batch on the fast path.
#[derive(Default)]
struct BatchOutcome<'a> {
    refreshed: u64,
    /// Heartbeats that the engine did not apply, or whose declarations it may not have.
    rest: Vec<&'a Heartbeat>,
}

/// Heartbeats of one unit for which a change was decided.
struct Decided<'b, 'a, 'r> {
    unit: &'b mut UnitHeartbeats<'a>,
    step: HeartbeatStep<'a>,
    moved: Option<Move>,
    /// The heartbeat before, if the interval since then says something of the rhythm of the unit.
    before: Option<Timestamp>,
    reservation: Option<UnitReservation<'r>>,
}

impl Roll {
    /// Records heartbeats. When this returns, each is applied or known to change nothing. Safe to
    /// repeat. Heartbeats of kinds without rules are ignored. Returns the ids that were heard and are no units.
    pub async fn hear(
        &self,
        heartbeats: &[Heartbeat],
        now: Timestamp,
    ) -> Result<Vec<(Unit, StrangerReason)>> {
        let rules = self.rules();
        let (plain, mut rest) = self.divide(heartbeats, &rules, now);
        let batches = plain.chunks(self.engine.refresh_step()).map(|batch| self.refresh(batch, now));
        let mut refreshed = 0;
        // Each batch goes on to its end, also if another fails: recorded heartbeats go into the mirror.
        for batch in join_all(batches).await.into_iter().collect::<Result<Vec<BatchOutcome>>>()? {
            refreshed += batch.refreshed;
            rest.extend(batch.rest);
        }
        self.telemetry.heartbeats(HeartbeatResult::Refreshed, refreshed);
        let mut units = by_unit(rest);
        let mut strangers = Vec::new();
        for steps in units.chunks_mut(STEPS_AT_ONCE * MAX_STEP) {
            let steps = steps.chunks_mut(MAX_STEP).map(|step| self.admit(step, now));
            // Each step goes on to its end, also if another fails: applied changes go into mirror and counters.
            let heard = join_all(steps).await.into_iter().collect::<Result<Vec<_>>>()?;
            strangers.extend(heard.into_iter().flatten());
        }
        Ok(strangers)
    }

    /// Divides heartbeats into those for the fast path, with the rules of their kinds, and all heartbeats of units that
    /// declare something new or are late.
    fn divide<'a, 'r>(
        &self,
        heartbeats: &'a [Heartbeat],
        rules: &'r Rules,
        now: Timestamp,
    ) -> (Vec<(&'a Heartbeat, &'r KindRules)>, Vec<&'a Heartbeat>) {
        let watched = heartbeats.iter().filter_map(|one| Some((one, rules.get(&one.unit.kind)?)));
        let watched: Vec<(&Heartbeat, &KindRules)> = watched.collect();
        let is_slow = |(one, rules): &&(&Heartbeat, &KindRules)| {
            !is_timely(one, rules, now) || !self.declared.declares_nothing_new(one)
        };
        let slow: HashSet<&Unit, FixedState> =
            watched.iter().filter(is_slow).map(|(one, _)| &one.unit).collect();
        if slow.is_empty() {
            return (watched, Vec::new());
        }
        let (rest, plain): (Vec<_>, Vec<_>) =
            watched.into_iter().partition(|(one, _)| slow.contains(&one.unit));
        (plain, rest.into_iter().map(|(one, _)| one).collect())
    }

    /// Takes one batch along the fast path.
    async fn refresh<'a>(
        &self,
        heartbeats: &[(&'a Heartbeat, &KindRules)],
        now: Timestamp,
    ) -> Result<BatchOutcome<'a>> {
        let mut refreshes = Vec::with_capacity(heartbeats.len());
        let began = monotonic();
        let (hearing, gap) = (self.hearing(), self.gap());
        // Most heartbeats are of the kind of the one before.
        let mut of_kind: Option<(&Kind, Option<Timestamp>)> = None;
        for &(heartbeat, rules) in heartbeats {
            let kind = &heartbeat.unit.kind;
            let policy = rules.resolve(heartbeat.declared.timeout, Default::default());
            let unbroken = match of_kind {
                Some((known, unbroken)) if known == kind => unbroken,
                _ => hearing.unbroken_since(kind, gap, now),
            };
            of_kind = Some((kind, unbroken));
            refreshes.push(Refresh {
                unit: &heartbeat.unit,
                at: heartbeat.at,
                arrived: heartbeat.arrived,
                broker: heartbeat.broker.as_ref(),
                ttl: policy.allowed(),
                check_by: policy.first_check(heartbeat.at),
                unbroken: unbroken.filter(|_| heartbeat.is_fresh(gap, now)),
                until: began + timely_for(rules),
            });
        }
        let (mut seen, mut recorded) =
            (Vec::with_capacity(refreshes.len()), Vec::with_capacity(refreshes.len()));
        let mut rest = Vec::new();
        let before = self.engine.refresh(&refreshes).await?;
        for ((&(heartbeat, _), refresh), before) in heartbeats.iter().zip(&refreshes).zip(before) {
            let Refresh { unit, at, arrived, unbroken, .. } = *refresh;
            match before {
                Some(replaced) => {
                    seen.push(RecordedHeartbeat { unit, at, arrived, before: replaced.at, unbroken });
                    recorded.push((heartbeat, replaced));
                }
                None => rest.push(heartbeat),
            }
        }
        self.mirror.seen(&seen);
        let unsure = self.declared.recorded(&recorded);
        let refreshed = (seen.len() - unsure.len()) as u64;
        rest.extend(unsure);
        Ok(BatchOutcome { refreshed, rest })
    }

    /// Decides upon heartbeats that the fast path did not take, in rounds: see `rounds.rs`. Returns the ids that are no
    /// units.
    async fn admit(
        &self,
        units: &mut [UnitHeartbeats<'_>],
        now: Timestamp,
    ) -> Result<Vec<(Unit, StrangerReason)>> {
        let (hearing, mut strangers) = (self.hearing(), Vec::new());
        let mut open: Vec<&mut UnitHeartbeats> = units.iter_mut().collect();
        let mut in_vain = 0;
        while in_vain < MAX_CHANGES {
            let names: Vec<Unit> = open.iter().map(|unit| unit.unit().clone()).collect();
            let (mut decided, mut changes) = (Vec::new(), Vec::new());
            for (unit, seen) in open.drain(..).zip(self.engine.read(&names).await?) {
                if let Some((one, change)) = self.admission(unit, &seen, (&hearing, now), &mut strangers) {
                    decided.push(one);
                    changes.push((seen, change));
                }
            }
            self.close_lost(&mut changes, now).await?;
            in_vain += 1;
            for (Decided { unit, step, moved, before, reservation }, applied) in
                decided.into_iter().zip(self.apply(&changes).await?)
            {
                if !applied {
                    open.push(unit);
                    continue;
                }
                in_vain = 0;
                self.admitted(&step, reservation);
                self.moved(&step, moved);
                if let Some(before) = before {
                    let &Heartbeat { ref unit, at, arrived, .. } = step.heartbeat;
                    let unbroken = hearing.unbroken_since(&unit.kind, self.gap(), now);
                    self.mirror.learn(&RecordedHeartbeat { unit, at, arrived, before, unbroken });
                }
                if unit.done(&step) {
                    open.push(unit);
                }
            }
            if open.is_empty() {
                return Ok(strangers);
            }
        }
        Err(EngineError::contended(format_args!("{} units, the first is {}", open.len(), open[0].unit())))
    }

    /// The next change by heartbeats of a unit; `None` if they change nothing, or the kind of a new unit is full.
    fn admission<'b, 'a>(
        &self,
        unit: &'b mut UnitHeartbeats<'a>,
        seen: &Snapshot,
        (hearing, now): (&Hearing, Timestamp),
        strangers: &mut Vec<(Unit, StrangerReason)>,
    ) -> Option<(Decided<'b, 'a, '_>, Change)> {
        let rules = &self.rules()[&seen.unit.kind];
        if seen.is_unreadable() {
            self.met_unreadable(seen);
        }
        let believed = self.corrected_unit(seen, now);
        let stranger = Cell::new(None);
        let count = |heartbeat: &Heartbeat, heard, number| {
            self.telemetry.heartbeats(heard, number);
            if let (HeartbeatResult::Refreshed, Some(facts), Some(newest)) = (heard, &seen.facts, seen.alive)
            {
                self.declared.decided(heartbeat, facts, newest);
            }
            if let Some(reason) = StrangerReason::of(heard) {
                self.strangers.heard(&seen.unit, reason, number, now);
                stranger.set(Some(reason));
            }
        };
        let step = unit.next(believed.as_ref().unwrap_or(seen), rules, hearing, now, count);
        strangers.extend(stranger.get().map(|reason| (seen.unit.clone(), reason)));
        let step = step?;
        let is_known = seen.is_known() || seen.is_unreadable();
        let reservation = if is_known { None } else { self.reserve(&seen.unit, now) };
        if reservation.is_none() && !is_known {
            strangers.push((seen.unit.clone(), StrangerReason::TooManyUnits));
            return None;
        }
        let change = step.change.clone();
        let moved = moved(seen, &step);
        let before = step.before(seen).filter(|_| step.heartbeat.is_fresh(self.gap(), now));
        Some((Decided { unit, step, moved, before, reservation }, change))
    }

    /// Warns if the unit is heard at two places in turn.
    fn moved(&self, step: &HeartbeatStep<'_>, moved: Option<Move>) {
        let (Some(moved), Some(facts)) = (moved, &step.change.facts) else { return };
        let unit = &step.heartbeat.unit;
        let Some(rules) = self.rules.of(unit.kind.as_str()) else { return };
        let (timeout, at) = (facts.policy(&rules).allowed(), step.heartbeat.at);
        if self.places.moved(unit, &moved, timeout, at) {
            self.telemetry.unit_at_two_places(unit, &rules.name, &moved.topics, at + timeout);
        }
    }

    /// Room for a new unit; `None` if its kind is full.
    fn reserve(&self, unit: &Unit, now: Timestamp) -> Option<UnitReservation<'_>> {
        let reservation = self.census.reserve(unit);
        if reservation.is_none() {
            self.strangers.heard(unit, StrangerReason::TooManyUnits, 1, now);
        }
        reservation
    }

    fn admitted(&self, step: &HeartbeatStep<'_>, reservation: Option<UnitReservation<'_>>) {
        if let Some(reservation) = reservation {
            reservation.admitted();
            self.strangers.admitted([&step.heartbeat.unit]);
        }
        if let Some(facts) = &step.change.facts {
            let Heartbeat { unit, declared, .. } = step.heartbeat;
            self.declared.decided(step.heartbeat, facts, facts.last_seen);
            if let Some(label) = declared.left_out(&facts.labels) {
                let detail = format!("{label}: the unit has {} labels", facts.labels.len());
                self.telemetry.payload_issue(unit, PayloadIssue::BadLabel, &detail);
            }
        }
        for (heard, number) in step.counts() {
            self.telemetry.heartbeats(heard, number);
            if heard == HeartbeatResult::New && number > 0 {
                self.telemetry.unit_is_new(&step.heartbeat.unit);
            }
        }
    }
}

/// The move of a unit that a heartbeat shows.
fn moved(seen: &Snapshot, step: &HeartbeatStep<'_>) -> Option<Move> {
    let place = step.heartbeat.place.as_ref()?;
    place.reached(&seen.facts.as_ref()?.labels, &step.change.facts.as_ref()?.labels)
}

/// Whether the heartbeat may take the fast path. There it may overwrite a newer heartbeat until that is written again:
/// a check at that moment must not find the unit overdue.
fn is_timely(heartbeat: &Heartbeat, rules: &KindRules, now: Timestamp) -> bool {
    now.since(heartbeat.at) < timely_for(rules)
}

/// How old a heartbeat on the fast path is at most when it sets out, and how long it may take from there.
fn timely_for(rules: &KindRules) -> Duration {
    rules.policy.timeout / 2
}

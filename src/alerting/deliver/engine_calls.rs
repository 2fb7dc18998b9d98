//! The calls of the engine that a receiver's loop has under way: leasing, extending leases, recording outcomes.
//!
//! They run beside the attempts, so that no attempt waits for the engine. A recording
//! has several outcomes, and the next one does not wait for it, because attempts wait for both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;

use super::{Deliver, most_leased};
use crate::alerting::buffer::{Buffered, Slots};
use crate::alerting::in_flight::DeliveriesInFlight;
use crate::alerting::{ENGINE_BACKOFF, LEASE, TICK, rotated, tick};
use crate::clock::{Timestamp, monotonic};
use crate::store::{AttemptEnd, Backlog, Delivery, EndedLease, EngineError, MAX_STEP, Result};
use crate::telemetry::Loop;

/// How often leases are extended: twice before they end, at least.
pub(super) const EXTEND: Duration = Duration::from_millis(800);
/// A lease that is younger is not extended: in a storm most deliveries end before that.
const YOUNG: Duration = Duration::from_millis(400);
/// How many recordings are under way at once.
const RECORDINGS: usize = 2;
/// How many deliveries are leased for a probe: deliveries among them that are too old are given up.
const LEASED_FOR_PROBE: usize = 64;

pub(super) struct EngineCalls {
    pub leasing: Option<BoxFuture<'static, Result<LeasedBatch>>>,
    pub extending: Option<BoxFuture<'static, ExtendedLeases>>,
    pub recordings: FuturesUnordered<BoxFuture<'static, Recorded>>,
    pub falling: Option<BoxFuture<'static, Result<FallbackCall>>>,
    /// Whether the receiver is down, as the engine stores it; `None`: unknown.
    pub known_down: Option<bool>,
    pub fall_at: Instant,
    /// The moment from which deliveries are leased again, and after a failure the engine is called again.
    pub lease_at: Instant,
    extend_at: Instant,
    /// The last step had no lease to extend: the deliveries of failed extensions have ended.
    has_none_to_extend: bool,
    counted_at: Option<Instant>,
    /// Calls that failed, one after the other.
    pub failures: u32,
    /// How often deliveries were leased.
    leases: usize,
}

/// A call that leases deliveries.
pub(super) struct LeaseCall {
    /// How many deliveries; none, if they are only counted.
    pub most: usize,
    /// Whether all that wait are counted.
    counts: bool,
    /// The argument of [`rotated`].
    turn: usize,
    pub is_probe: bool,
    /// Deliveries of a disabled receiver also go to its fallback, if it has one.
    pub is_disabled: bool,
}

/// Leased deliveries, and the wait until there may be more.
pub(super) struct Leased {
    pub deliveries: Vec<Delivery>,
    pub rest: Duration,
}

impl Leased {
    pub fn nothing_for(rest: Duration) -> Leased {
        Leased { deliveries: Vec::new(), rest }
    }
}

/// The answer to leasing.
pub(super) struct LeasedBatch {
    leased: Leased,
    /// How many notifications were queued for the fallback with them; `None`: they are to be attempted.
    fallen: Option<usize>,
    until: Timestamp,
    slots: Slots,
    backlog: Option<Backlog>,
}

/// The answer to a call about the fallback.
pub(super) struct FallbackCall {
    pub is_down: bool,
    /// How many notifications were queued for the fallback; `None`: it is too early.
    pub queued: Option<usize>,
}

/// Which deliveries were to be extended, until when, and which of them are still leased.
pub(super) type ExtendedLeases = (Vec<Arc<Delivery>>, Timestamp, Result<Vec<bool>>);
/// Outcomes to record, and whether they were recorded.
pub(super) type Recorded = (Vec<EndedLease>, Result<()>);

impl EngineCalls {
    pub fn new(now: Instant) -> EngineCalls {
        EngineCalls {
            leasing: None,
            extending: None,
            recordings: FuturesUnordered::new(),
            falling: None,
            known_down: None,
            fall_at: now,
            lease_at: now,
            extend_at: now + EXTEND,
            has_none_to_extend: false,
            counted_at: None,
            failures: 0,
            leases: 0,
        }
    }

    /// The engine failed, and is not called again before the backoff is over.
    pub fn back_off(&mut self) {
        self.failures += 1;
        self.lease_at = monotonic() + ENGINE_BACKOFF.wait(self.failures, rand::random());
    }

    fn is_backing_off(&self, now: Instant) -> bool {
        self.failures > 0 && now < self.lease_at
    }
}

impl Deliver {
    /// Begins the calls that are due. Answers when the next one is.
    pub(super) fn call_engine(
        self: &Arc<Self>,
        calls: &mut EngineCalls,
        in_flight: &mut DeliveriesInFlight,
        now: Instant,
    ) -> Instant {
        let backs_off = calls.is_backing_off(now);
        if !backs_off && self.is_worth_recording(in_flight, calls.recordings.len()) {
            calls.recordings.push(self.record(std::mem::take(&mut in_flight.unrecorded)));
        }
        if calls.extending.is_none() && !backs_off && now >= calls.extend_at {
            calls.extend_at = now + EXTEND;
            let before = self.clock.now() + (LEASE - YOUNG);
            calls.extending = self.extend_leases(in_flight.to_extend(before));
            calls.has_none_to_extend = calls.extending.is_none();
        }
        if !backs_off {
            self.fall_back(calls, in_flight.is_down, now);
        }
        let has_room = self.has_room(in_flight);
        if calls.leasing.is_none() && now >= calls.lease_at && has_room {
            self.begin_lease(calls, in_flight, now);
        }
        let waits_to_lease = calls.leasing.is_none() && has_room && self.buffer.free() > 0;
        if backs_off {
            calls.lease_at
        } else if waits_to_lease {
            calls.lease_at.min(calls.extend_at)
        } else {
            calls.extend_at
        }
    }

    /// Whether there is room for more deliveries. They are leased well before there is none left: in a storm the
    /// engine's answer takes its time. Of a receiver with a limit one is under way at a time, so that the others can
    /// still be merged.
    fn has_room(&self, in_flight: &DeliveriesInFlight) -> bool {
        if self.limit.is_some() && in_flight.disabled.is_none() {
            return in_flight.leased.is_empty();
        }
        in_flight.waiting.len() <= most_leased(self.concurrency()) / 2 && !in_flight.is_full()
    }

    fn begin_lease(self: &Arc<Self>, calls: &mut EngineCalls, in_flight: &DeliveriesInFlight, now: Instant) {
        let counts = calls.counted_at.is_none_or(|at: Instant| now.duration_since(at) >= TICK);
        let is_disabled = in_flight.disabled.is_some();
        let is_probe = in_flight.probing.is_on() && !is_disabled;
        let most = match is_probe {
            // Nothing is leased between two probes.
            true if in_flight.begun > 0 || !in_flight.probing.admits(self.clock.now()) => 0,
            true => LEASED_FOR_PROBE,
            false if self.limit.is_some() && !is_disabled => 1,
            false => MAX_STEP,
        };
        if most == 0 && !counts {
            calls.lease_at = now + TICK;
        } else if let Some(slots) = self.buffer.reserve(most.max(1)) {
            calls.counted_at = if counts { Some(now) } else { calls.counted_at };
            let most = most.min(slots.num_permits());
            let call = LeaseCall { most, counts, turn: calls.leases, is_probe, is_disabled };
            calls.leasing = Some(self.lease(slots, call));
            calls.leases = calls.leases.wrapping_add(1);
        }
    }

    /// Leases deliveries that are due.
    fn lease(self: &Arc<Self>, slots: Slots, call: LeaseCall) -> BoxFuture<'static, Result<LeasedBatch>> {
        let this = self.clone();
        async move {
            let (name, own) = (&this.receiver.name, rotated(this.partitions(), call.turn));
            // The admission needs the current backlog.
            let counts = call.counts || this.limit.is_some();
            let backlog = if counts { Some(this.engine.backlog(&own, name).await?) } else { None };
            let now = this.clock.now();
            let leased = match &this.limit {
                _ if call.most == 0 => Leased::nothing_for(TICK),
                _ if own.is_empty() => Leased::nothing_for(tick(&this.ownership)),
                None => this.lease_due(&own, call.most, now).await?,
                Some(limit) => {
                    let waiting = backlog.as_ref().map_or(0, |backlog| backlog.waiting);
                    this.lease_admitted(limit, &call, &own, waiting, now).await?
                }
            };
            let fallback = this.receiver.fallback.as_ref().filter(|_| call.is_disabled);
            let fallen = match fallback.filter(|_| !leased.deliveries.is_empty()) {
                // The fallback does not wait for a disabled receiver.
                Some(fallback) => this.queue_for(fallback, Duration::ZERO, &own, now).await?,
                None => None,
            };
            Ok(LeasedBatch { leased, fallen, until: now + LEASE, slots, backlog })
        }
        .boxed()
    }

    /// Leases up to `most` deliveries that are due in these partitions.
    pub(super) async fn lease_due(&self, own: &[u16], most: usize, now: Timestamp) -> Result<Leased> {
        let name = &self.receiver.name;
        let deliveries = self.engine.lease(own, name, now, now + LEASE, most).await?;
        let rest = if !deliveries.is_empty() {
            Duration::ZERO // There may be more.
        } else {
            let first = self.engine.first_lease(own, name).await?;
            first.map_or(tick(&self.ownership), |first| self.until(first))
        };
        Ok(Leased { deliveries, rest })
    }

    /// Takes over leased deliveries.
    pub(super) fn leased(
        &self,
        calls: &mut EngineCalls,
        in_flight: &mut DeliveriesInFlight,
        answer: Result<LeasedBatch>,
    ) -> Option<EngineError> {
        let mut batch = match answer {
            Ok(batch) => batch,
            Err(error) => {
                self.telemetry.engine_failed(Loop::Delivery, &self.receiver.name, &error);
                return Some(error);
            }
        };
        calls.failures = 0;
        self.telemetry.engine_answered(Loop::Delivery, &self.receiver.name);
        if calls.has_none_to_extend {
            self.telemetry.engine_answered(Loop::Delivery, &self.leases());
        }
        calls.lease_at = monotonic() + batch.leased.rest;
        if let Some(Backlog { waiting, dead }) = batch.backlog {
            self.telemetry.backlog(&self.receiver.name, waiting, dead);
        }
        self.log_fallen(batch.fallen);
        for delivery in batch.leased.deliveries {
            let id = delivery.id.clone();
            if let Some(slot) = batch.slots.split(1) {
                in_flight.push(Buffered { delivery, until: batch.until, slot });
            }
            if batch.fallen.is_some() {
                self.give_up_leased(in_flight, &id);
            }
        }
        None
    }

    /// Whether outcomes are to be recorded now: at once while no recording is under way, else when there are
    /// several, because one call for several costs less.
    fn is_worth_recording(&self, in_flight: &DeliveriesInFlight, recordings: usize) -> bool {
        let least = if recordings == 0 { 1 } else { self.concurrency().div_ceil(RECORDINGS) };
        recordings < RECORDINGS && in_flight.unrecorded.len() >= least
    }

    /// Writes outcomes to the engine, and returns them in case the engine fails.
    pub(super) fn record(self: &Arc<Self>, outcomes: Vec<EndedLease>) -> BoxFuture<'static, Recorded> {
        let this = self.clone();
        async move {
            let recorded = match (&this.limit, &outcomes[..]) {
                (Some(limit), [ended])
                    if let Some(members) = limit.members(ended.delivery.notification()) =>
                {
                    this.end_digest(limit, ended, &members).await
                }
                _ => this.end_attempts(&outcomes).await,
            };
            (outcomes, recorded)
        }
        .boxed()
    }

    /// Writes how attempts at notifications ended. Safe to repeat.
    pub(super) async fn end_attempts(&self, outcomes: &[EndedLease]) -> Result<()> {
        self.engine.end_attempts(outcomes, self.clock.now()).await?;
        // The outcomes are recorded. If there is no room now, the walk makes it, and reports a failure.
        let _ = self.attempts.were_put_on_record(outcomes).await;
        Ok(())
    }

    /// Releases deliveries whose outcomes are recorded, and keeps the others.
    pub(super) fn recorded(
        &self,
        calls: &mut EngineCalls,
        in_flight: &mut DeliveriesInFlight,
        (outcomes, recorded): Recorded,
    ) -> Option<EngineError> {
        let which = format!("ends of {}", self.receiver.name);
        match recorded {
            Ok(()) => {
                self.telemetry.engine_answered(Loop::Delivery, &which);
                outcomes.iter().for_each(|one| in_flight.remove(&one.delivery.id));
                // A lane may have another delivery, which no hint reports. In a storm other deliveries wait here
                // meanwhile.
                let has_ended = outcomes.iter().any(|one| !matches!(one.end, AttemptEnd::RetryAt(_)));
                if has_ended && in_flight.waiting.is_empty() && calls.failures == 0 {
                    calls.lease_at = calls.lease_at.min(monotonic());
                }
                None
            }
            // Each outcome may be recorded again: a second time changes nothing.
            Err(error) => {
                self.telemetry.engine_failed(Loop::Delivery, &which, &error);
                in_flight.unrecorded.extend(outcomes);
                Some(error)
            }
        }
    }

    /// Extends leases; `None` if there are none.
    pub(super) fn extend_leases(
        self: &Arc<Self>,
        deliveries: Vec<Arc<Delivery>>,
    ) -> Option<BoxFuture<'static, ExtendedLeases>> {
        if deliveries.is_empty() {
            return None;
        }
        let (this, until) = (self.clone(), self.clock.now() + LEASE);
        let extend = async move {
            let still_leased = match (&this.limit, &deliveries[..]) {
                (Some(limit), [digest]) if limit.is_digest(digest) => {
                    limit.set_next(digest, until).await.map(|is_leased| vec![is_leased])
                }
                _ => this.engine.extend_leases(&deliveries, until).await,
            };
            (deliveries, until, still_leased)
        };
        Some(extend.boxed())
    }

    /// The name of extending leases, in the reports of failures.
    fn leases(&self) -> String {
        format!("leases of {}", self.receiver.name)
    }

    pub(super) fn extended(
        &self,
        in_flight: &mut DeliveriesInFlight,
        (deliveries, until, still_leased): ExtendedLeases,
    ) -> Option<EngineError> {
        let which = self.leases();
        match still_leased {
            Ok(still_leased) => {
                self.telemetry.engine_answered(Loop::Delivery, &which);
                in_flight.set_extended(&deliveries, until, still_leased);
                None
            }
            Err(error) => {
                self.telemetry.engine_failed(Loop::Delivery, &which, &error);
                Some(error)
            }
        }
    }
}

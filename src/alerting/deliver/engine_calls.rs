//! The calls of the engine that a receiver's loop has under way: leasing, extending leases, recording outcomes.
//!
//! They run beside the attempts, so that no attempt waits for the engine. A recording
//! has several outcomes, and the next one does not wait for it, because attempts wait for both.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::{Deliver, LEASED_PER_ATTEMPT, at_once, fall};
use crate::alerting::buffer::{Buffered, Slots};
use crate::alerting::in_flight::DeliveriesInFlight;
use crate::alerting::{ENGINE_BACKOFF, LEASE, MIN_WAIT, TICK, rotated, tick};
use crate::clock::Timestamp;
use crate::fleet::Attempts;
use crate::store::{
    AttemptEnd, Backlog, Delivery, EndedLease, EngineError, MAX_STEP, Result, StoredDeliveries,
};
use crate::telemetry::Loop;

/// How often leases are extended: twice before they end, at least.
pub(super) const EXTEND: Duration = Duration::from_millis(800);
/// A lease that is younger is not extended: in a storm most deliveries end before that.
const YOUNG: Duration = Duration::from_millis(400);
/// How many recordings are under way at once.
const RECORDINGS: usize = 2;
/// How many deliveries are leased for a probe: deliveries among them that are too old are given up.
pub(super) const LEASED_FOR_PROBE: usize = 64;

pub(super) struct EngineCalls {
    pub leasing: Option<BoxFuture<'static, Result<LeasedBatch>>>,
    pub extending: Option<BoxFuture<'static, ExtendedLeases>>,
    pub recordings: FuturesUnordered<BoxFuture<'static, Recorded>>,
    pub falling: Option<BoxFuture<'static, Result<FallbackCall>>>,
    /// Whether the receiver is down, as the engine has it; `None`: not known.
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

/// The answer to leasing.
pub(super) struct LeasedBatch {
    deliveries: Vec<Delivery>,
    /// How many notifications were queued for the fallback with them; `None`: they are to be attempted.
    fallen: Option<usize>,
    until: Timestamp,
    slots: Slots,
    /// The wait until the next delivery is due.
    rest: Duration,
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
        self.lease_at = Instant::now() + ENGINE_BACKOFF.wait(self.failures, rand::random());
    }

    fn is_backing_off(&self, now: Instant) -> bool {
        self.failures > 0 && now < self.lease_at
    }
}

impl Deliver {
    /// Begins the calls that are due. Answers when the next one is.
    pub(super) fn call_engine(
        &self,
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
        // Leased well before there is none left: in a storm the engine's answer takes its time.
        let is_low =
            in_flight.waiting.len() <= self.concurrency() * LEASED_PER_ATTEMPT / 2 && !in_flight.is_full();
        if calls.leasing.is_none() && now >= calls.lease_at && is_low {
            let counts = calls.counted_at.is_none_or(|at: Instant| at.elapsed() >= TICK);
            let most = self.most_leased(in_flight);
            if most == 0 && !counts {
                calls.lease_at = now + TICK;
            } else if let Some(slots) = self.buffer.reserve(most.max(1)) {
                calls.counted_at = if counts { Some(now) } else { calls.counted_at };
                let most = most.min(slots.num_permits());
                let is_disabled = in_flight.disabled.is_some();
                calls.leasing = Some(self.lease(slots, most, counts, calls.leases, is_disabled));
                calls.leases = calls.leases.wrapping_add(1);
            }
        }
        let waits_to_lease = calls.leasing.is_none() && is_low && self.buffer.free() > 0;
        if backs_off {
            calls.lease_at
        } else if waits_to_lease {
            calls.lease_at.min(calls.extend_at)
        } else {
            calls.extend_at
        }
    }

    /// The most deliveries to lease: none between two probes of a receiver that takes nothing.
    fn most_leased(&self, in_flight: &DeliveriesInFlight) -> usize {
        if !in_flight.breaker.is_open() || in_flight.disabled.is_some() {
            MAX_STEP
        } else if in_flight.begun == 0 && in_flight.breaker.admits(self.clock.now()) {
            LEASED_FOR_PROBE
        } else {
            0
        }
    }

    /// Leases up to `most` deliveries that are due, and counts all if asked to. `turn` is the argument
    /// of [`rotated`]. Deliveries of a disabled receiver also go to its fallback, if it has one.
    fn lease(
        &self,
        slots: Slots,
        most: usize,
        counts: bool,
        turn: usize,
        is_disabled: bool,
    ) -> BoxFuture<'static, Result<LeasedBatch>> {
        let fallback = self.receiver.fallback.as_ref().filter(|_| is_disabled).map(at_once);
        let (engine, name) = (self.engine.clone(), self.receiver.name.clone());
        let (own, tick) = (rotated(self.partitions(), turn), tick(&self.ownership));
        let (destinations, now) = (self.destinations.clone(), self.clock.now());
        async move {
            let own = &own;
            let backlog = if counts { Some(engine.backlog(own, &name).await?) } else { None };
            let until = now + LEASE;
            if most == 0 {
                let (deliveries, fallen) = (Vec::new(), None);
                return Ok(LeasedBatch { deliveries, fallen, until, slots, rest: TICK, backlog });
            }
            let deliveries = engine.lease(own, &name, now, until, most).await?;
            let rest = if !deliveries.is_empty() {
                Duration::ZERO // There may be more.
            } else {
                let first = engine.first_lease(own, &name).await?;
                first.map_or(tick, |first| first.since(now).clamp(MIN_WAIT, tick))
            };
            let fallen = match fallback.filter(|_| !deliveries.is_empty()) {
                Some(fallback) => fall(&engine, own, &name, &fallback, &destinations, now).await?,
                None => None,
            };
            Ok(LeasedBatch { deliveries, fallen, until, slots, rest, backlog })
        }
        .boxed()
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
        calls.lease_at = Instant::now() + batch.rest;
        if let Some(Backlog { waiting, dead }) = batch.backlog {
            self.telemetry.backlog(&self.receiver.name, waiting, dead);
        }
        self.log_fallen(batch.fallen);
        for delivery in batch.deliveries {
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

    /// Writes outcomes to the engine. Gives them back, for the case that the engine fails.
    pub(super) fn record(&self, outcomes: Vec<EndedLease>) -> BoxFuture<'static, Recorded> {
        let (engine, attempts, now) = (self.engine.clone(), self.attempts.clone(), self.clock.now());
        async move {
            let recorded = end(&engine, &attempts, &outcomes, now).await;
            (outcomes, recorded)
        }
        .boxed()
    }

    /// Lets go of deliveries whose outcomes are recorded, and keeps the others.
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
                    calls.lease_at = calls.lease_at.min(Instant::now());
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
        &self,
        deliveries: Vec<Arc<Delivery>>,
    ) -> Option<BoxFuture<'static, ExtendedLeases>> {
        if deliveries.is_empty() {
            return None;
        }
        let (engine, until) = (self.engine.clone(), self.clock.now() + LEASE);
        let extend = async move {
            let still_leased = engine.extend_leases(&deliveries, until).await;
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

/// Writes outcomes to the engine. Safe to repeat.
pub(super) async fn end(
    engine: &StoredDeliveries,
    attempts: &Attempts,
    outcomes: &[EndedLease],
    now: Timestamp,
) -> Result<()> {
    engine.end_attempts(outcomes, now).await?;
    // The outcomes are recorded. If there is no room now, the walk makes it, and reports a failure.
    let _ = attempts.were_put_on_record(outcomes).await;
    Ok(())
}

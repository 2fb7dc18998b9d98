//! From deliveries to one receiver: lease, attempt, record the outcome.
//!
//! Each receiver has a loop of its own with a bounded number of attempts under way. More deliveries are leased ahead,
//! so that no attempt waits for the engine. A lease is short, and is extended for as long as this instance holds the
//! delivery: no other instance attempts it meanwhile. Another instance leases the deliveries of a dead one as soon as
//! its lease has ended. The outcome of an attempt stays in memory until the engine has recorded it: an engine that
//! fails just then costs a wait, not a second notification.
//!
//! # Why an attempt is under way until its outcome is recorded
//! Another instance repeats an attempt that a dead instance made and did not record. So no attempt begins while as
//! many as the receiver's `concurrency` are under way or unrecorded: a death repeats no more than that.
//!
//! # Why the lease is checked before each attempt
//! An instance that was frozen wakes up with leases that have ended, and another instance may have attempted those
//! deliveries. It attempts no delivery whose lease is over by the clock of the fleet; the engine leases the delivery
//! again if it is still to be delivered.
//!
//! # Timers that are delivered at most once
//! The engine ends such a delivery before its attempt, which is the only one: see
//! [`StoredDeliveries::begin_only_attempts`]. If the engine fails just then, the mark is in doubt, and the attempt
//! does not take place.
//!
//! # A receiver that takes nothing
//! It is [probed](super::probing). Between two probes nothing is leased, and this instance gives its leases back:
//! the engine keeps the deliveries, due at once, so that they are attempted as soon as a probe succeeds.
//!
//! # A receiver with a rate limit
//! An admission decides what is leased, and takes room for each message: see `deliver/limited.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::buffer::{Buffered, DeliveryBuffer};
use super::channel::Channel;
use super::digest::group_key;
use super::in_flight::DeliveriesInFlight;
use super::incidents::Incidents;
use super::limit::ReceiverLimit;
use super::{ENGINE_BACKOFF, LEASE, MIN_WAIT, ReceiverConfig, tick};
use crate::clock::{Clock, Timestamp, monotonic};
use crate::fleet::{Attempts, Ownership, ReceiverHealths};
use crate::store::{AttemptEnd, EndedLease, StoredDeliveries, partition_of_group};
use crate::telemetry::{Loop, Telemetry};

mod engine_calls;
mod falling_back;
mod limited;

use engine_calls::{EXTEND, EngineCalls, Recorded};
pub(super) use limited::MAX_ATTEMPTS;

/// How many deliveries are held for each attempt that may be under way. In a storm the engine takes
/// its time with each answer, and meanwhile the attempts need deliveries.
const LEASED_PER_ATTEMPT: usize = 64;
/// The most deliveries that are held: with more of them, a processor waits for its memory longer than an attempt waits
/// for the engine.
const MAX_LEASED: usize = 2048;
/// How long attempts that are under way may go on after the stop. An attempt that is cut off is repeated when its
/// lease has run out.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How many deliveries are held for a receiver with so many attempts under way.
pub(super) fn most_leased(concurrency: usize) -> usize {
    (concurrency * LEASED_PER_ATTEMPT).min(MAX_LEASED)
}

/// The loop of one receiver.
pub(super) struct Deliver {
    pub receiver: ReceiverConfig,
    pub channel: Arc<dyn Channel>,
    pub engine: StoredDeliveries,
    pub incidents: Arc<Incidents>,
    pub healths: Arc<ReceiverHealths>,
    pub attempts: Attempts,
    /// The most messages that the receiver takes; `None`: any number.
    pub limit: Option<ReceiverLimit>,
    /// The partitions whose deliveries this instance attempts.
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    /// The slots of deliveries that this instance holds, and the queue of deliveries that were leased with their join.
    pub buffer: Arc<DeliveryBuffer>,
    pub stop: CancellationToken,
}

impl Deliver {
    /// Runs until it is stopped.
    pub async fn run(self, queue: UnboundedReceiver<Buffered>) -> anyhow::Result<()> {
        if self.stop.run_until_cancelled(self.bring_up_to_date()).await.is_none() {
            return Ok(());
        }
        let this = Arc::new(self);
        this.deliver(queue).await
    }

    async fn deliver(self: &Arc<Self>, mut queue: UnboundedReceiver<Buffered>) -> anyhow::Result<()> {
        let (mut in_flight, mut calls) = (DeliveriesInFlight::new(), EngineCalls::new(monotonic()));
        let mut ownership = self.ownership.clone();
        loop {
            let now = monotonic();
            while let Ok(buffered) = queue.try_recv() {
                in_flight.push(buffered);
            }
            self.begin_attempts(&mut in_flight);
            self.log_suppressed(&mut in_flight, now);
            let next = self.call_engine(&mut calls, &mut in_flight, now);
            let is_well = calls.failures == 0;
            let failed = tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.leave(in_flight, queue, calls).await,
                Some(finished) = in_flight.attempts.join_next() => {
                    self.finish_attempt(&mut in_flight, finished)?;
                    None
                }
                Some(recorded) = calls.recordings.next() => self.recorded(&mut calls, &mut in_flight, recorded),
                Some(extended) = OptionFuture::from(calls.extending.as_mut()) => {
                    calls.extending = None;
                    self.extended(&mut in_flight, extended)
                }
                Some(fallen) = OptionFuture::from(calls.falling.as_mut()) => {
                    calls.falling = None;
                    self.fell_back(&mut calls, fallen)
                }
                Some(batch) = OptionFuture::from(calls.leasing.as_mut()) => {
                    calls.leasing = None;
                    self.leased(&mut calls, &mut in_flight, batch)
                }
                Some(buffered) = queue.recv() => { in_flight.push(buffered); None }
                () = self.buffer.notified(), if is_well => { calls.lease_at = now; None }
                () = ownership.changed(), if is_well => { calls.lease_at = now; None }
                () = sleep_until(next.max(now + MIN_WAIT).into()) => None,
            };
            if failed.is_some() {
                calls.back_off();
            }
            // Other attempts that have ended meanwhile are recorded together with this one.
            while let Some(finished) = in_flight.attempts.try_join_next() {
                self.finish_attempt(&mut in_flight, finished)?;
            }
        }
    }

    /// Before the first delivery to a receiver that was not configured for a while: leaves out silences that are over.
    async fn bring_up_to_date(&self) {
        let name = &self.receiver.name;
        let mut failures = 0;
        loop {
            match self.engine.bring_up_to_date(name, self.clock.now()).await {
                Ok(0) => return,
                Ok(past) => {
                    return tracing::info!(
                        receiver = name,
                        past,
                        "the receiver was not configured for a while; silences that ended meanwhile are left out"
                    );
                }
                Err(error) => self.telemetry.engine_failed(Loop::Delivery, name, &error),
            }
            failures += 1;
            tokio::time::sleep(ENGINE_BACKOFF.wait(failures, rand::random())).await;
        }
    }

    /// The partitions whose deliveries this instance attempts. A receiver with a limit has one instance for all.
    fn partitions(&self) -> Vec<u16> {
        let all = self.engine.partitions();
        match self.limit {
            None => self.ownership.view().partitions.clone(),
            Some(_) if self.ownership.owns(partition_of_group(&group_key(&self.receiver.name), all)) => {
                (0..all).collect()
            }
            Some(_) => Vec::new(),
        }
    }

    /// The most attempts under way at a time.
    pub(super) fn concurrency(&self) -> usize {
        if self.limit.is_some() { 1 } else { self.receiver.concurrency.max(1) }
    }

    /// The wait until a moment, at most a tick.
    pub(super) fn until(&self, next: Timestamp) -> Duration {
        next.since(self.clock.now()).clamp(MIN_WAIT, tick(&self.ownership))
    }

    /// Logs how many lines the limits suppressed.
    fn log_suppressed(&self, in_flight: &mut DeliveriesInFlight, now: Instant) {
        if let Some(more) = in_flight.deliveries_logged.end_span(now) {
            tracing::info!(receiver = self.receiver.name, more, "more notifications were delivered");
        }
        if let Some(more) = in_flight.failures_logged.end_span(now) {
            tracing::warn!(receiver = self.receiver.name, more, "more notifications were not delivered");
        }
    }

    /// Gives back the deliveries that were not begun, then lets attempts end and records their outcomes, within
    /// [`STOP_TIMEOUT`].
    async fn leave(
        self: &Arc<Self>,
        mut in_flight: DeliveriesInFlight,
        mut queue: UnboundedReceiver<Buffered>,
        mut calls: EngineCalls,
    ) -> anyhow::Result<()> {
        let until = monotonic() + STOP_TIMEOUT;
        // Drop the call: without being polled it would hold its turn at the engine, and the awaited calls would wait
        // for ever.
        calls.falling = None;
        let leasing = calls.leasing.take().map(|leasing| timeout_at(until.into(), leasing));
        let (leasing, extending) = (OptionFuture::from(leasing), OptionFuture::from(calls.extending.take()));
        let recordings = std::mem::take(&mut calls.recordings).collect::<Vec<Recorded>>();
        let (leased, extended, recordings) = tokio::join!(leasing, extending, recordings);
        for recorded in recordings {
            self.recorded(&mut calls, &mut in_flight, recorded);
        }
        if let Some(extended) = extended {
            self.extended(&mut in_flight, extended);
        }
        if let Some(Ok(leased)) = leased {
            self.leased(&mut calls, &mut in_flight, leased);
        }
        while let Ok(buffered) = queue.try_recv() {
            in_flight.push(buffered);
        }
        let now = self.clock.now();
        let unbegun = in_flight.take_waiting().into_iter();
        let unbegun =
            unbegun.map(|delivery| EndedLease { delivery, end: AttemptEnd::RetryAt(now), attempt: None });
        in_flight.unrecorded.extend(unbegun);
        self.record_last(&mut in_flight).await;
        while !in_flight.attempts.is_empty() && monotonic() < until {
            tokio::select! {
                Some(finished) = in_flight.attempts.join_next() => {
                    self.finish_attempt(&mut in_flight, finished)?;
                }
                // Extend leases until an attempt has ended, so that no other instance makes it.
                () = sleep_until((monotonic() + EXTEND).min(until).into()) => {
                    let before = self.clock.now() + LEASE;
                    if let Some(extending) = self.extend_leases(in_flight.to_extend(before)) {
                        let extended = extending.await;
                        self.extended(&mut in_flight, extended);
                    }
                }
            }
        }
        self.record_last(&mut in_flight).await;
        Ok(())
    }

    /// Records the outcomes so far. If that fails, other instances attempt these deliveries again.
    async fn record_last(self: &Arc<Self>, in_flight: &mut DeliveriesInFlight) {
        let outcomes = std::mem::take(&mut in_flight.unrecorded);
        if !outcomes.is_empty()
            && let (_, Err(error)) = self.record(outcomes).await
        {
            self.telemetry.engine_failed(Loop::Delivery, &self.receiver.name, &error);
        }
    }
}

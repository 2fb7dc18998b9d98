//! One attempt to deliver: whether it may begin, its outcome, and its log line.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinError;
use tokio::time::sleep;

use super::channel::{Failure, ReceiverAnswer, attempt_part};
use super::deliver::{Deliver, MAX_ATTEMPTS};
use super::in_flight::{DeliveriesInFlight, FinishedAttempt, Sent};
use super::outcome::outcome_of;
use super::probing::ProbingChange;
use crate::clock::{Stopwatch, Timestamp};
use crate::store::{AttemptEnd, AttemptMade, Delivery, EndedLease};
use crate::telemetry::{DeliveryOutcome, Loop};

impl Deliver {
    /// Begins attempts, as many as may be under way: see [`Deliver`].
    pub(super) fn begin_attempts(self: &Arc<Self>, in_flight: &mut DeliveriesInFlight) {
        if in_flight.disabled.is_some() && self.receiver.fallback.is_some() {
            // The deliveries are leased again once the fallback has them.
            return self.give_all_back(in_flight);
        }
        if in_flight.probing.is_on() && in_flight.disabled.is_none() {
            return self.probe(in_flight);
        }
        while in_flight.begun < self.concurrency()
            && let Some(id) = in_flight.waiting.pop_front()
        {
            self.begin_attempt(in_flight, id);
        }
    }

    /// Begins one attempt if a probe is due, and gives all other deliveries back.
    fn probe(self: &Arc<Self>, in_flight: &mut DeliveriesInFlight) {
        if in_flight.begun == 0
            && in_flight.probing.admits(self.clock.now())
            && let Some(id) = in_flight.take_probe()
        {
            self.begin_attempt(in_flight, id);
        }
        self.give_all_back(in_flight);
    }

    fn give_all_back(&self, in_flight: &mut DeliveriesInFlight) {
        while let Some(id) = in_flight.waiting.pop_front() {
            self.give_back(in_flight, &id);
        }
    }

    /// Leaves a delivery to the engine, without an attempt. A delivery that is too old is given up.
    fn give_back(&self, in_flight: &mut DeliveriesInFlight, id: &str) {
        let now = self.clock.now();
        let Some(leased) = in_flight.leased.get_mut(id).filter(|leased| leased.is_waiting()) else { return };
        if leased.until <= now {
            in_flight.leased.remove(id);
            return;
        }
        leased.has_ended = true;
        let delivery = leased.delivery.clone();
        self.leave_or_give_up(in_flight, delivery);
    }

    /// Leaves a leased delivery to the engine. A delivery that is too old is given up, unless it is new here and a
    /// probe is due or under way, which shows whether the receiver takes it.
    fn leave_or_give_up(&self, in_flight: &mut DeliveriesInFlight, delivery: Arc<Delivery>) {
        let now = self.clock.now();
        let age = now.since(delivery.tried_since());
        let is_probed = in_flight.begun > 0 || in_flight.probing.admits(now);
        if age < self.receiver.retry.give_up_after || delivery.attempt <= 1 && is_probed {
            in_flight.unrecorded.push(EndedLease { delivery, end: AttemptEnd::RetryAt(now), attempt: None });
            return;
        }
        let why = in_flight.probing.why().unwrap_or_default();
        let why = format!("given up after {age:?}, in which the receiver took nothing: {why}");
        self.give_up(in_flight, delivery, why);
    }

    /// Makes a leased delivery of a disabled receiver a dead letter.
    pub(super) fn give_up_leased(&self, in_flight: &mut DeliveriesInFlight, id: &str) {
        let why = format!("the receiver is disabled: {}", in_flight.disabled.as_deref().unwrap_or_default());
        let Some(leased) = in_flight.leased.get_mut(id).filter(|leased| leased.is_waiting()) else { return };
        leased.has_ended = true;
        let delivery = leased.delivery.clone();
        self.give_up(in_flight, delivery, why);
    }

    /// Makes a delivery a dead letter, without an attempt.
    fn give_up(&self, in_flight: &mut DeliveriesInFlight, delivery: Arc<Delivery>, why: String) {
        self.telemetry.notification(&self.receiver.name, DeliveryOutcome::Dead, Duration::ZERO, &why);
        if in_flight.failures_logged.admit() {
            let (receiver, id) = (&self.receiver.name, &delivery.id);
            tracing::error!(receiver, delivery = id, "not delivered, kept as a dead letter: {why}");
        }
        in_flight.unrecorded.push(EndedLease { delivery, end: AttemptEnd::DeadLetter(why), attempt: None });
    }

    fn begin_attempt(self: &Arc<Self>, in_flight: &mut DeliveriesInFlight, id: String) {
        let Some(leased) = in_flight.leased.get_mut(&id).filter(|leased| leased.is_waiting()) else { return };
        if leased.until <= self.clock.now() {
            in_flight.leased.remove(&id);
            return;
        }
        if in_flight.disabled.is_some() {
            return self.give_up_leased(in_flight, &id);
        }
        let (delivery, until) = (leased.delivery.clone(), leased.until);
        leased.is_begun = true;
        in_flight.begun += 1;
        let this = self.clone();
        in_flight
            .attempts
            .spawn(async move { FinishedAttempt { id, sent: this.attempt(delivery, until).await } });
    }

    /// Attempts a delivery that is leased until `until`. `None`: it may not be attempted.
    async fn attempt(&self, delivery: Arc<Delivery>, until: Timestamp) -> Option<Sent> {
        let delivery = self.incidents.attempted(delivery, self.clock.now()).await?;
        // The process may have been frozen since the task was spawned.
        if self.clock.now() >= until {
            return None;
        }
        let (mut at, mut took) = (None, Duration::ZERO);
        loop {
            let room = self.room_for(&delivery, at.is_some()).await?;
            if at.is_none() && !self.is_admitted(&delivery).await {
                return None;
            }
            let (begun, now) = (Stopwatch::start(), self.clock.now());
            // No other instance takes a delivery with a mark, whatever becomes of its lease.
            if at.is_none() && now >= until && !delivery.is_at_most_once() {
                return None;
            }
            let is_first = at.is_none();
            let at = *at.get_or_insert(now);
            let part = attempt_part(&*self.channel, &delivery, room, self.receiver.timeout, now).await;
            took += begun.elapsed();
            let result = match part {
                Ok(None) => continue,
                Ok(Some(answer)) => self.queue_rest(answer).await,
                Err(failure) if is_first => Err(failure),
                Err(failure) => Err(failure.after_a_part()),
            };
            return Some(Sent { result, at, took });
        }
    }

    /// How many messages of a delivery may be sent now. After its first message the delivery waits for room. `None`:
    /// the delivery may not be attempted, and is leased again when its lease ends.
    async fn room_for(&self, delivery: &Delivery, has_begun: bool) -> Option<usize> {
        let Some(limit) = &self.limit else { return Some(usize::MAX) };
        loop {
            let parts = self.channel.parts(delivery).max(1);
            match limit.take(delivery, parts, self.clock.now()).await {
                Ok(Some(Ok(room))) => return Some(room),
                Ok(Some(Err(next))) if has_begun => {
                    self.stop.run_until_cancelled(sleep(self.until(next))).await?;
                }
                Ok(_) => return None,
                Err(error) => {
                    self.telemetry.engine_failed(Loop::Delivery, &delivery.receiver, &error);
                    return None;
                }
            }
        }
    }

    /// Whether a delivery may be attempted: a timer that is delivered at most once is marked first, and its delivery
    /// ends with the mark.
    async fn is_admitted(&self, delivery: &Delivery) -> bool {
        if !delivery.is_at_most_once() {
            return true;
        }
        match self.engine.begin_only_attempts(&[delivery], self.clock.now()).await {
            Ok(admitted) => admitted == [true],
            Err(error) => {
                self.telemetry.engine_failed(Loop::Delivery, &delivery.receiver, &error);
                false
            }
        }
    }

    /// Queues the deliveries that a receiver left over. If the engine fails, the attempt has failed, and everything
    /// is sent again.
    async fn queue_rest(&self, mut answer: ReceiverAnswer) -> Result<ReceiverAnswer, Failure> {
        let rest = std::mem::take(&mut answer.rest);
        if !rest.is_empty() {
            self.engine.replay_all(&rest, self.clock.now()).await.map_err(|error| {
                let why = format!("delivered, but the deferred recipients could not be stored: {error}");
                Failure::temporary(why)
            })?;
        }
        Ok(answer)
    }

    /// Decides what follows an attempt, counts it and logs it.
    pub(super) fn finish_attempt(
        &self,
        in_flight: &mut DeliveriesInFlight,
        finished: Result<FinishedAttempt, JoinError>,
    ) -> anyhow::Result<()> {
        let FinishedAttempt { id, sent } = finished.context("an attempt to deliver panicked")?;
        let Some(sent) = sent else {
            in_flight.remove(&id);
            return Ok(());
        };
        self.judge(in_flight, &sent.result);
        let Some(leased) = in_flight.leased.get_mut(&id) else { return Ok(()) };
        leased.has_ended = true;
        let delivery = leased.delivery.clone();
        let ended = self.conclude(in_flight, delivery, sent);
        in_flight.unrecorded.push(ended);
        Ok(())
    }

    /// The end of an attempt, counted and logged.
    fn conclude(
        &self,
        in_flight: &mut DeliveriesInFlight,
        delivery: Arc<Delivery>,
        Sent { result, at, took }: Sent,
    ) -> EndedLease {
        let (now, retry) = (self.clock.now(), &self.receiver.retry);
        let has_part = matches!(result, Err(Failure::Partial { .. }));
        let is_digest = self.limit.as_ref().is_some_and(|limit| limit.is_digest(&delivery));
        let outcome = match (&result, &self.receiver.fallback) {
            // The delivery becomes a dead letter when the fallback has it.
            (Err(Failure::Gone { .. }), Some(_)) if !delivery.is_at_most_once() => AttemptEnd::RetryAt(now),
            (Err(why), _) if is_digest && !has_part && delivery.attempt >= MAX_ATTEMPTS => {
                AttemptEnd::DeadLetter(why.to_string())
            }
            _ => outcome_of(&delivery, result.as_ref(), now, retry, rand::random()),
        };
        let has_part = has_part && matches!(outcome, AttemptEnd::RetryAt(_));
        let (answer, why) = match result {
            Ok(ReceiverAnswer { text, .. }) => (text, String::new()),
            Err(failure) => (failure.to_string(), failure.to_string()),
        };
        let counted = match outcome {
            AttemptEnd::DeadLetter(_) if is_digest => {
                let (receiver, id) = (&self.receiver.name, &delivery.id);
                tracing::warn!(
                    receiver,
                    delivery = id,
                    "the digest failed; its notifications are delivered one by one: {why}"
                );
                DeliveryOutcome::Retry
            }
            _ => self.log(in_flight, &delivery, &outcome, has_part, &why),
        };
        let why = if has_part { "" } else { &why };
        self.telemetry.notification(&self.receiver.name, counted, took, why);
        if counted == DeliveryOutcome::Delivered {
            self.telemetry.unreached(&self.receiver.name, self.channel.unreached().as_ref());
        }
        EndedLease { delivery, end: outcome, attempt: Some(AttemptMade { at, took, answer }) }
    }

    /// Notes how an attempt ended. Disables the receiver, or begins or ends its probing.
    fn judge(&self, in_flight: &mut DeliveriesInFlight, result: &Result<ReceiverAnswer, Failure>) {
        let (receiver, retry, now) = (&self.receiver.name, &self.receiver.retry, self.clock.now());
        let failure = result.as_ref().err().filter(|failure| !matches!(failure, Failure::Partial { .. }));
        let why = failure.map(ToString::to_string);
        self.healths.note(receiver, why.as_deref(), now);
        in_flight.is_down = Some(failure.is_some());
        let change = match result {
            Err(Failure::Partial { why, wait, is_asked: true }) => {
                in_flight.probing.accepted_part(why, *wait, now, retry);
                None
            }
            Ok(_) | Err(Failure::Partial { .. }) => in_flight.probing.succeeded(),
            Err(Failure::Gone { why }) => return self.disable(in_flight, why),
            Err(Failure::Temporary { why, retry_after }) => {
                in_flight.probing.failed(why, *retry_after, now, retry, rand::random())
            }
            Err(Failure::TooLarge { why }) => in_flight.probing.failed(why, None, now, retry, rand::random()),
        };
        match change {
            None => {}
            Some(ProbingChange::Began) => {
                tracing::warn!(
                    receiver,
                    "the receiver fails; one notification at a time is tried until it succeeds"
                );
            }
            Some(ProbingChange::Ended) => tracing::info!(receiver, "the receiver takes notifications again"),
        }
    }

    fn disable(&self, in_flight: &mut DeliveriesInFlight, why: &str) {
        if in_flight.disabled.is_none() {
            tracing::error!(
                receiver = self.receiver.name,
                "the receiver wants no more notifications and is disabled: {why}; \
                 correct or remove it, restart, then replay its dead letters"
            );
        }
        in_flight.disabled = Some(why.to_owned());
    }

    fn log_delivered(&self, delivery: &Delivery) {
        tracing::info!(
            receiver = self.receiver.name,
            delivery = delivery.id,
            attempt = delivery.attempt,
            offline = delivery.offline.len(),
            online = delivery.online.len(),
            timers = delivery.timers.len(),
            "notification delivered"
        );
    }

    /// Logs an outcome. The first failure is always logged, also where the limit is reached.
    fn log(
        &self,
        in_flight: &mut DeliveriesInFlight,
        delivery: &Delivery,
        outcome: &AttemptEnd,
        has_part: bool,
        why: &str,
    ) -> DeliveryOutcome {
        let (receiver, id, attempt) = (&self.receiver.name, &delivery.id, delivery.attempt);
        let is_failure = *outcome != AttemptEnd::Delivered && !has_part;
        let was_failing = std::mem::replace(&mut in_flight.is_failing, is_failure);
        let is_logged = is_failure && (in_flight.failures_logged.admit() || !was_failing);
        match outcome {
            AttemptEnd::Delivered => {
                if in_flight.deliveries_logged.admit() {
                    self.log_delivered(delivery);
                }
                DeliveryOutcome::Delivered
            }
            AttemptEnd::RetryAt(at) if has_part => {
                if in_flight.deliveries_logged.admit() {
                    tracing::info!(receiver, delivery = id, attempt, next = %at, "partly delivered, the rest follows: \
                         {why}");
                }
                DeliveryOutcome::Retry
            }
            AttemptEnd::RetryAt(at) => {
                // While the receiver fails, `/readyz` says so; one line for each attempt would say no more.
                if !was_failing {
                    tracing::warn!(receiver, delivery = id, attempt, next = %at, "not delivered, will be tried again: \
                         {why}");
                }
                DeliveryOutcome::Retry
            }
            AttemptEnd::DeadLetter(_) => {
                if is_logged {
                    tracing::error!(
                        receiver,
                        delivery = id,
                        attempt,
                        "not delivered, given up and kept as a dead letter: {why}"
                    );
                }
                DeliveryOutcome::Dead
            }
        }
    }
}

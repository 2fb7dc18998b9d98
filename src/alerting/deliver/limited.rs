//! From deliveries to a receiver that takes a limited number of messages.
//!
//! One instance delivers to it, one message at a time: the owner of the partition of its digests. While as many
//! notifications wait as there is room for, each is a message. When more wait, all of them are merged into one
//! [digest](crate::alerting::digest). A receiver that needs a message for each unit merges nothing: there the limit is
//! a delay.
//!
//! # Why the notifications of a digest stay in the engine until it is delivered
//! They end as delivered, each with its attempt on record, after the receiver has the digest. Until then the digest,
//! its id and its notifications are in the [shared state](crate::alerting::limit): after a crash the same digest is
//! sent again. While it is open nothing else is sent, so that a group's notifications stay in order. A digest that
//! fails [`MAX_ATTEMPTS`] times is taken apart: its receiver is down, or refuses this digest.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::engine_calls::{EXTEND, EngineCalls, LEASED_FOR_PROBE, end};
use super::{Deliver, STOP_TIMEOUT, at_once, fall};
use crate::alerting::attempt::{is_admitted, queue_rest};
use crate::alerting::channel::{Failure, ReceiverAnswer, attempt_part, within};
use crate::alerting::digest::{any_waits, gather, group_key, id_of, merged};
use crate::alerting::failures::EngineFailures;
use crate::alerting::in_flight::DeliveriesInFlight;
use crate::alerting::limit::{LimitState, OpenDigest, RateLimit, ReceiverLimit};
use crate::alerting::{LEASE, MIN_WAIT, TICK, rotated, tick};
use crate::clock::Timestamp;
use crate::store::{AttemptEnd, Cells, Delivery, EndedLease, MAX_STEP, Result, partition_of_group};
use crate::telemetry::Loop;

/// After how many attempts a digest is taken apart.
const MAX_ATTEMPTS: u32 = 5;

/// The loop of one receiver with a limit.
pub(in crate::alerting) struct Limited {
    pub deliver: Deliver,
    pub limit: RateLimit,
    pub cells: Arc<dyn Cells>,
}

struct LimitedState {
    in_flight: DeliveriesInFlight,
    calls: EngineCalls,
    limits: ReceiverLimit,
    /// The notifications of the open digest, with its id.
    members: Option<(String, Vec<Delivery>)>,
    /// A digest that was delivered, until the engine knows it.
    ending: Option<EndedLease>,
    /// The open digest may have silences that ended while the receiver was not configured.
    is_outdated: bool,
    /// How often deliveries were leased.
    turn: usize,
}

/// The outcome of a message.
struct Sent {
    result: std::result::Result<ReceiverAnswer, Failure>,
    at: Timestamp,
    took: Duration,
}

impl Limited {
    /// Runs until it is stopped; an attempt that is under way gets a moment to end.
    pub async fn run(self) -> anyhow::Result<()> {
        let stopped = async {
            self.deliver.stop.cancelled().await;
            sleep(STOP_TIMEOUT).await;
        };
        tokio::select! {
            () = self.serve() => {}
            () = stopped => {}
        }
        Ok(())
    }

    async fn serve(&self) {
        let Deliver { receiver, telemetry, stop, buffer, .. } = &self.deliver;
        let Some(past) = stop.run_until_cancelled(self.deliver.bring_up_to_date()).await else { return };
        let mut ownership = self.deliver.ownership.clone();
        let mut state = LimitedState {
            in_flight: DeliveriesInFlight::new(),
            calls: EngineCalls::new(Instant::now()),
            limits: ReceiverLimit::new(self.limit, &receiver.name, self.cells.clone()),
            members: None,
            ending: None,
            is_outdated: past > 0,
            turn: 0,
        };
        let mut failures = EngineFailures::new(Loop::Delivery, &receiver.name, telemetry);
        while !stop.is_cancelled() {
            self.deliver.log_suppressed(&mut state.in_flight, Instant::now());
            let wait = failures.wait_after(self.step(&mut state).await);
            let is_answered = !failures.are_going_on();
            tokio::select! {
                () = stop.cancelled() => break,
                () = buffer.notified(), if is_answered => {}
                () = ownership.changed(), if is_answered => {}
                () = sleep(wait) => {}
            }
        }
        if let Err(error) = self.record(&mut state).await {
            telemetry.engine_failed(Loop::Delivery, &receiver.name, &error);
        }
    }

    /// Makes one message, if one is due. Answers when to look again.
    async fn step(&self, state: &mut LimitedState) -> Result<Duration> {
        let (engine, telemetry) = (&self.deliver.engine, &self.deliver.telemetry);
        let name = &self.deliver.receiver.name;
        self.record(state).await?;
        if state.is_outdated {
            self.close(state).await?;
            state.is_outdated = false;
        }
        if !self.deliver.ownership.owns(partition_of_group(&group_key(name), engine.partitions())) {
            telemetry.backlog(name, 0, 0);
            return Ok(tick(&self.deliver.ownership));
        }
        self.deliver.fall_back(&mut state.calls, state.in_flight.is_down, Instant::now());
        if let Some(call) = state.calls.falling.take() {
            let fallen = call.await;
            self.deliver.fell_back(&mut state.calls, fallen);
        }
        let backlog = engine.backlog(&self.deliver.partitions(), name).await?;
        telemetry.backlog(name, backlog.waiting, backlog.dead);
        if state.in_flight.disabled.is_some() {
            return self.give_all_up(state).await;
        }
        let now = self.deliver.clock.now();
        if !state.in_flight.breaker.admits(now) {
            return Ok(tick(&self.deliver.ownership));
        }
        let known = state.limits.read().await?;
        let room = known.room(&self.limit, now);
        match (known, room) {
            (LimitState { open: None, .. }, _) if backlog.waiting == 0 => Ok(tick(&self.deliver.ownership)),
            (_, Err(next)) => Ok(self.until(next)),
            (LimitState { open: Some(open), .. }, Ok(_)) => self.go_on(state, open).await,
            (_, Ok(room)) => {
                let merges = !self.deliver.channel.is_pager() && !state.in_flight.breaker.is_open();
                // A group may have several waiting notifications, of which the engine counts one.
                let least = if backlog.waiting > room as u64 { 2 } else { room + 1 };
                let merges = merges && backlog.waiting >= room as u64;
                if merges && self.open_digest(state, (room, least)).await? {
                    return Ok(Duration::ZERO);
                }
                self.single(state).await
            }
        }
    }

    fn until(&self, next: Timestamp) -> Duration {
        next.since(self.deliver.clock.now()).clamp(MIN_WAIT, tick(&self.deliver.ownership))
    }

    /// Records outcomes that the engine does not know yet. Safe to repeat.
    async fn record(&self, state: &mut LimitedState) -> Result<()> {
        let Deliver { engine, attempts, clock, receiver, telemetry, .. } = &self.deliver;
        let now = clock.now();
        if let (Some(ended), Some((_, members))) = (&state.ending, &state.members) {
            for step in in_steps(members, ended) {
                end(engine, attempts, &step, now).await?;
            }
            let merged = members.len() as u64;
            self.close(state).await?;
            telemetry.notifications_merged(&receiver.name, merged);
            state.ending = None;
        }
        if !state.in_flight.unrecorded.is_empty() {
            end(engine, attempts, &state.in_flight.unrecorded, now).await?;
            state.in_flight.unrecorded.clear();
        }
        Ok(())
    }

    /// Closes the open digest.
    async fn close(&self, state: &mut LimitedState) -> Result<()> {
        let id = state.members.as_ref().map(|(id, _)| id.clone());
        let close = |known: &mut LimitState| {
            known.open.take_if(|open| id.as_ref().is_none_or(|id| open.id == *id)).map(drop)
        };
        state.limits.change(None, close).await?;
        state.members = None;
        Ok(())
    }

    /// The receiver wants nothing more: waiting notifications become dead letters.
    async fn give_all_up(&self, state: &mut LimitedState) -> Result<Duration> {
        self.close(state).await?;
        let leased = self.lease(state, MAX_STEP).await?;
        if let Some(fallback) = self.deliver.receiver.fallback.as_ref().filter(|_| !leased.is_empty()) {
            let (engine, name) = (&self.deliver.engine, &self.deliver.receiver.name);
            let (own, now) = (self.deliver.partitions(), self.deliver.clock.now());
            self.deliver.log_fallen(
                fall(engine, &own, name, &at_once(fallback), &self.deliver.destinations, now).await?,
            );
        }
        let why = state.in_flight.disabled.clone().unwrap_or_default();
        let rest = if leased.is_empty() { tick(&self.deliver.ownership) } else { Duration::ZERO };
        for delivery in leased {
            let why = format!("the receiver is disabled: {why}");
            self.deliver.give_up(&mut state.in_flight, Arc::new(delivery), why);
        }
        Ok(rest)
    }

    async fn lease(&self, state: &mut LimitedState, most: usize) -> Result<Vec<Delivery>> {
        let own = rotated(self.deliver.partitions(), state.turn);
        state.turn = state.turn.wrapping_add(1);
        let now = self.deliver.clock.now();
        self.deliver.engine.lease(&own, &self.deliver.receiver.name, now, now + LEASE, most).await
    }

    /// Sends one notification. Of a receiver that takes nothing it is a probe.
    async fn single(&self, state: &mut LimitedState) -> Result<Duration> {
        let is_probe = state.in_flight.breaker.is_open();
        let most = if is_probe { LEASED_FOR_PROBE } else { 1 };
        let mut leased = self.lease(state, most).await?;
        let least = leased.iter().enumerate().min_by_key(|(_, delivery)| delivery.attempt).map(|(at, _)| at);
        let Some(first) = least.map(|least| Arc::new(leased.swap_remove(least))) else {
            let now = self.deliver.clock.now();
            let name = &self.deliver.receiver.name;
            let first = self.deliver.engine.first_lease(&self.deliver.partitions(), name).await?;
            return Ok(first.map_or(TICK, |first| self.until(first.max(now))));
        };
        for other in leased {
            self.deliver.leave_or_give_up(&mut state.in_flight, Arc::new(other));
        }
        self.record(state).await?;
        let attempted = self.deliver.incidents.attempted(first, self.deliver.clock.now()).await;
        let Some(delivery) = attempted else { return Ok(TICK) };
        let sent = self.holding(&delivery, self.send(&mut state.limits, &delivery)).await?;
        let Some(Sent { result, at, took }) = sent else { return Ok(Duration::ZERO) };
        self.deliver.judge(&mut state.in_flight, &result);
        let ended = self.deliver.conclude(&mut state.in_flight, delivery, result, at, took);
        state.in_flight.unrecorded.push(ended);
        Ok(Duration::ZERO)
    }

    /// Extends the lease of a delivery until `work` is done. If the lease is lost anyway, the next lease finds the
    /// delivery.
    async fn holding<T>(&self, delivery: &Arc<Delivery>, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = sleep(EXTEND) => {
                    let until = self.deliver.clock.now() + LEASE;
                    let _ = self.deliver.engine.extend_leases(std::slice::from_ref(delivery), until).await;
                }
            }
        }
    }

    /// Sends the messages of a delivery, each when there is room. `None`: another instance has opened a digest.
    async fn send(&self, limits: &mut ReceiverLimit, delivery: &Delivery) -> Result<Option<Sent>> {
        let (channel, clock) = (&self.deliver.channel, &self.deliver.clock);
        let (began, mut took) = (clock.now(), Duration::ZERO);
        let (mut is_first, mut has_part) = (true, false);
        loop {
            let parts = channel.parts(delivery).max(1);
            let room = match limits.take(parts, clock.now()).await? {
                None => return Ok(None),
                Some(Ok(room)) => room,
                Some(Err(next)) => {
                    sleep(self.until(next)).await;
                    continue;
                }
            };
            let (engine, telemetry) = (&self.deliver.engine, &self.deliver.telemetry);
            if is_first && !is_admitted(engine, telemetry, delivery, clock.now()).await {
                return Ok(None);
            }
            is_first = false;
            let (begun, now) = (Instant::now(), clock.now());
            let timeout = self.deliver.receiver.timeout;
            let part = attempt_part(&**channel, delivery, room, timeout, now).await;
            took += begun.elapsed();
            let sent = |result| Ok(Some(Sent { result, at: began, took }));
            match part {
                Ok(None) => has_part = true,
                Ok(Some(answer)) => {
                    return sent(queue_rest(&self.deliver.engine, answer, clock.now()).await);
                }
                Err(failure) if has_part => return sent(Err(failure.after_a_part())),
                Err(failure) => return sent(Err(failure)),
            }
        }
    }

    /// Merges waiting notifications, if there are at least `least`. `false`: there is nothing to merge, or another
    /// instance has opened a digest.
    async fn open_digest(&self, state: &mut LimitedState, (room, least): (usize, usize)) -> Result<bool> {
        let (name, now) = (&self.deliver.receiver.name, self.deliver.clock.now());
        let gathered = gather(&self.deliver.engine, name, room, now).await?;
        let is_blindness = gathered.first().is_some_and(|first| !first.blind.is_empty());
        if gathered.len() < least && !is_blindness {
            return Ok(false);
        }
        let gathered = self.deliver.engine.leave_out(name, gathered).await?;
        if gathered.iter().all(Delivery::is_empty) {
            self.leave_out(&gathered, now).await?;
            return Ok(true);
        }
        let mut members = Vec::new();
        for member in gathered {
            let Some(judged) = self.deliver.incidents.attempted(Arc::new(member), now).await else {
                return Ok(false);
            };
            members.push(Arc::unwrap_or_clone(judged));
        }
        let open = OpenDigest { id: id_of(&members, now), sealed_at: now, attempts: 0, next: now };
        let opened = state
            .limits
            .change(Some(&members), |known| known.open.is_none().then(|| known.open = Some(open.clone())));
        let is_open = opened.await?.is_some();
        state.members = is_open.then_some((open.id, members));
        Ok(is_open)
    }

    /// Ends notifications that are without members by now.
    async fn leave_out(&self, empty: &[Delivery], now: Timestamp) -> Result<()> {
        for step in in_rounds(empty) {
            let step: Vec<Delivery> = step.into_iter().cloned().collect();
            self.deliver.engine.delivered(&step, now).await?;
        }
        let Deliver { telemetry, receiver, .. } = &self.deliver;
        telemetry.notifications_left_out(&receiver.name, empty.len() as u64);
        Ok(())
    }

    /// Attempts the open digest, if it is due.
    async fn go_on(&self, state: &mut LimitedState, open: OpenDigest) -> Result<Duration> {
        let (clock, receiver) = (&self.deliver.clock, &self.deliver.receiver);
        let now = clock.now();
        if open.next > now {
            return Ok(self.until(open.next));
        }
        if state.members.as_ref().is_none_or(|(id, _)| *id != open.id) {
            // The digest was begun by another instance, or before a restart.
            let members = state.limits.members().await?;
            let waits = any_waits(&self.deliver.engine, &receiver.name, &members).await?;
            state.members = Some((open.id.clone(), members));
            if !waits {
                self.close(state).await?;
                return Ok(Duration::ZERO);
            }
        }
        let limit = self.limit;
        let until = now + receiver.timeout + LEASE;
        let begun = state.limits.change(None, |known| {
            let current = known.open.as_ref()?;
            if *current != open || known.take(1, &limit, now).is_err() {
                return None;
            }
            known.open = Some(OpenDigest { attempts: open.attempts + 1, next: until, ..open.clone() });
            Some(())
        });
        if begun.await?.is_none() {
            return Ok(MIN_WAIT);
        }
        let (attempt, begun) = (open.attempts + 1, Instant::now());
        let members = state.members.as_ref().map_or(&[][..], |(_, members)| members);
        let digest = Arc::new(merged(&open.id, open.sealed_at, attempt, &receiver.name, members));
        let result = match within(receiver.timeout, self.deliver.channel.send(&digest, now)).await {
            Ok(answer) => queue_rest(&self.deliver.engine, answer, clock.now()).await,
            failed => failed,
        };
        self.deliver.judge(&mut state.in_flight, &result);
        let (took, has_part) = (begun.elapsed(), matches!(result, Err(Failure::Partial { .. })));
        let ended = self.deliver.conclude(&mut state.in_flight, digest, result, now, took);
        if ended.end == AttemptEnd::Delivered {
            state.ending = Some(ended);
        } else {
            self.failed(state, &open, ended, has_part).await?;
        }
        Ok(Duration::ZERO)
    }

    /// An attempt at the digest failed. `has_part`: the receiver has a part, and the rest follows.
    async fn failed(
        &self,
        state: &mut LimitedState,
        open: &OpenDigest,
        ended: EndedLease,
        has_part: bool,
    ) -> Result<()> {
        let id = ended.delivery.id.clone();
        let next = match ended.end {
            AttemptEnd::RetryAt(at) if has_part || open.attempts + 1 < MAX_ATTEMPTS => Some(at),
            _ => None,
        };
        // The digest has no place in a queue: this puts the attempt on record. Its notifications are given up one by
        // one.
        state
            .in_flight
            .unrecorded
            .push(EndedLease { end: AttemptEnd::RetryAt(self.deliver.clock.now()), ..ended });
        let Some(next) = next else {
            let receiver = &self.deliver.receiver.name;
            tracing::warn!(
                receiver,
                delivery = id,
                "the digest failed; its notifications are delivered one by one"
            );
            return self.close(state).await;
        };
        let later = |known: &mut LimitState| {
            known.open.as_mut().filter(|current| current.id == open.id)?.next = next;
            Some(())
        };
        state.limits.change(None, later).await?;
        Ok(())
    }
}

/// The ends of a digest's notifications, in steps.
fn in_steps(members: &[Delivery], digest: &EndedLease) -> Vec<Vec<EndedLease>> {
    let end = |member: &&Delivery| {
        let attempt = digest.attempt.clone().map(|made| match members {
            [_] => made,
            _ => made.in_digest(digest.delivery.notification()),
        });
        let delivery = Arc::new(Delivery { attempt: member.attempt + 1, ..(*member).clone() });
        EndedLease { delivery, end: AttemptEnd::Delivered, attempt }
    };
    in_rounds(members).iter().map(|step| step.iter().map(end).collect()).collect()
}

/// Notifications in steps that can end together: a step has one of each group, because only the first of a group can
/// end.
fn in_rounds(members: &[Delivery]) -> Vec<Vec<&Delivery>> {
    let mut rounds: Vec<Vec<&Delivery>> = Vec::new();
    let mut of_group = HashMap::new();
    for member in members {
        let round: &mut usize = of_group.entry(member.group.key.as_str()).or_default();
        if rounds.len() <= *round {
            rounds.push(Vec::new());
        }
        rounds[*round].push(member);
        *round += 1;
    }
    rounds.iter().flat_map(|round| round.chunks(MAX_STEP)).map(<[&Delivery]>::to_vec).collect()
}

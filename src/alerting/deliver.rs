//! From deliveries to one receiver: lease, attempt, record how it ended.
//!
//! Each receiver has a loop of its own with a bounded number of attempts under way. A lease is
//! longer than an attempt may take, so while this instance lives nobody else attempts the same.
//! How an attempt ended is kept until the engine has it: an engine that fails just then costs a
//! wait, not a second telling.
//!
//! # What follows a failure
//! A temporary one is tried again, later each time, until the notification is too old; the last
//! attempt is made at that moment. A permanent one becomes a dead letter at once. `410 Gone`
//! disables the receiver: everything for it becomes a dead letter, until a restart. Nothing is ever
//! dropped.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, Failure, within};
use super::{ENGINE_BACKOFF, ReceiverConfig, Retry, SHORTEST_WAIT, TICK};
use crate::clock::{Clock, Timestamp};
use crate::engine::{Delivery, Engine, Ownership, Result};
use crate::telemetry::{Outcome, Telemetry};

/// How much longer than an attempt its lease is: time to record how it ended.
const MARGIN: Duration = Duration::from_secs(30);
/// How long attempts that are under way may go on after the stop. What is cut off is attempted
/// again when its lease has run out.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A receiver that asks for a longer wait is asked again all the same.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// The loop of one receiver and what it uses.
pub(super) struct Deliver {
    pub receiver: ReceiverConfig,
    pub channel: Arc<dyn Channel>,
    pub engine: Arc<dyn Engine>,
    /// Whose deliveries are made.
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    /// Rung when groups were sealed.
    pub sealed: Arc<Notify>,
    pub stop: CancellationToken,
}

/// What is under way. Attempts and endings together are never more than the receiver's
/// concurrency, so neither grows while the engine or the receiver hangs.
#[derive(Default)]
struct Desk {
    attempts: JoinSet<Ended>,
    /// Ended and not yet recorded.
    endings: Vec<(Delivery, Next)>,
    /// Why the receiver is disabled.
    disabled: Option<String>,
    /// When the backlog was last counted.
    counted: Option<Instant>,
}

/// An attempt that ended.
struct Ended {
    delivery: Delivery,
    result: std::result::Result<(), Failure>,
    took: Duration,
}

/// What becomes of a delivery after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    Delivered,
    Postpone(Timestamp),
    Bury(String),
}

impl Deliver {
    /// Runs until it is stopped.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut desk = Desk::default();
        let mut failures = 0;
        let mut ownership = self.ownership.clone();
        loop {
            let wait = match self.turn(&mut desk).await {
                Ok(wait) => {
                    failures = 0;
                    self.telemetry.engine_up(None);
                    wait
                }
                Err(error) => {
                    failures += 1;
                    self.telemetry.engine_up(Some(&error));
                    ENGINE_BACKOFF.wait(failures, rand::random())
                }
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.leave(desk).await,
                Some(ended) = desk.attempts.join_next() => self.conclude(&mut desk, ended)?,
                () = self.sealed.notified(), if failures == 0 => {}
                () = ownership.changed(), if failures == 0 => {}
                () = tokio::time::sleep(wait) => {}
            }
            // Whatever else has ended meanwhile is recorded together with it.
            while let Some(ended) = desk.attempts.try_join_next() {
                self.conclude(&mut desk, ended)?;
            }
        }
    }

    /// Records what ended and begins what is due. Answers for how long there is nothing to do.
    async fn turn(&self, desk: &mut Desk) -> Result<Duration> {
        self.record(desk).await?;
        self.count(desk).await?;
        let name = &self.receiver.name;
        let own = &self.ownership.view().partitions;
        let free = self.receiver.concurrency.max(1).saturating_sub(desk.attempts.len());
        if free == 0 {
            return Ok(TICK);
        }
        let now = self.clock.now();
        let until = now + self.receiver.timeout + MARGIN;
        let leased = self.engine.lease(own, name, now, until, free).await?;
        let filled = leased.len() == free;
        for delivery in leased {
            self.begin(desk, delivery);
        }
        if !desk.endings.is_empty() {
            return Ok(Duration::ZERO);
        }
        if filled {
            return Ok(TICK);
        }
        let first = self.engine.first_lease(own, name).await?;
        Ok(first.map_or(TICK, |first| first.since(now).clamp(SHORTEST_WAIT, TICK)))
    }

    fn begin(&self, desk: &mut Desk, delivery: Delivery) {
        if let Some(why) = &desk.disabled {
            self.telemetry.notification(&self.receiver.name, Outcome::Dead, Duration::ZERO);
            desk.endings.push((delivery, Next::Bury(format!("the receiver is disabled: {why}"))));
            return;
        }
        let (channel, clock, timeout) = (self.channel.clone(), self.clock.clone(), self.receiver.timeout);
        desk.attempts.spawn(async move {
            let begun = Instant::now();
            let result = within(timeout, channel.send(&delivery, clock.now())).await;
            Ended { delivery, result, took: begun.elapsed() }
        });
    }

    /// Decides what follows an attempt, counts it and says so.
    fn conclude(&self, desk: &mut Desk, ended: std::result::Result<Ended, JoinError>) -> anyhow::Result<()> {
        let Ended { delivery, result, took } = ended.context("an attempt to deliver broke down")?;
        if let Err(Failure::Gone { why }) = &result {
            self.disable(desk, why);
        }
        let next = next(&delivery, result.as_ref(), self.clock.now(), &self.receiver.retry, rand::random());
        let outcome = self.say(&delivery, &next, result.err());
        self.telemetry.notification(&self.receiver.name, outcome, took);
        desk.endings.push((delivery, next));
        Ok(())
    }

    fn disable(&self, desk: &mut Desk, why: &str) {
        if desk.disabled.is_none() {
            tracing::error!(
                receiver = self.receiver.name,
                "the receiver wants no more notifications and is disabled: {why}; \
                 correct or remove it, restart, then replay its dead letters"
            );
        }
        desk.disabled = Some(why.to_owned());
    }

    fn say(&self, delivery: &Delivery, next: &Next, failure: Option<Failure>) -> Outcome {
        let (receiver, id, attempt) = (&self.receiver.name, &delivery.id, delivery.attempt);
        let why = failure.map(|failure| failure.to_string()).unwrap_or_default();
        match next {
            Next::Delivered => {
                let (offline, online) = (delivery.offline.len(), delivery.online.len());
                tracing::info!(receiver, delivery = id, attempt, offline, online, "notification delivered");
                Outcome::Delivered
            }
            Next::Postpone(at) => {
                tracing::warn!(receiver, delivery = id, attempt, next = %at, "not delivered, will be tried again: {why}");
                Outcome::Retry
            }
            Next::Bury(_) => {
                tracing::error!(
                    receiver,
                    delivery = id,
                    attempt,
                    "not delivered, given up and kept as a dead letter: {why}"
                );
                Outcome::Dead
            }
        }
    }

    /// Writes down how attempts ended. What could not be written stays on the desk.
    async fn record(&self, desk: &mut Desk) -> Result<()> {
        let now = self.clock.now();
        let is_delivered = |(_, next): &(Delivery, Next)| *next == Next::Delivered;
        let delivered: Vec<Delivery> =
            desk.endings.iter().filter(|ending| is_delivered(ending)).map(|(d, _)| d.clone()).collect();
        if !delivered.is_empty() {
            self.engine.delivered(&delivered, now).await?;
            desk.endings.retain(|ending| !is_delivered(ending));
        }
        while let Some((delivery, next)) = desk.endings.last() {
            match next {
                Next::Delivered => {}
                Next::Postpone(at) => self.engine.postpone(delivery, *at).await?,
                Next::Bury(reason) => self.engine.bury(delivery, reason, now).await?,
            }
            desk.endings.pop();
        }
        Ok(())
    }

    async fn count(&self, desk: &mut Desk) -> Result<()> {
        if desk.counted.is_none_or(|at| at.elapsed() >= TICK) {
            let backlog = self.engine.backlog(&self.ownership.view().partitions, &self.receiver.name).await?;
            self.telemetry.backlog(&self.receiver.name, backlog.waiting, backlog.dead);
            desk.counted = Some(Instant::now());
        }
        Ok(())
    }

    /// Lets attempts end and records them, as far as that goes quickly.
    async fn leave(&self, mut desk: Desk) -> anyhow::Result<()> {
        let until = Instant::now() + LAST_WORDS;
        while let Ok(Some(ended)) = tokio::time::timeout_at(until, desk.attempts.join_next()).await {
            self.conclude(&mut desk, ended)?;
        }
        if let Err(error) = self.record(&mut desk).await {
            self.telemetry.engine_up(Some(&error));
        }
        Ok(())
    }
}

/// What follows an attempt that ended so. `jitter` is drawn from `0.0..1.0`.
fn next(
    delivery: &Delivery,
    result: std::result::Result<&(), &Failure>,
    now: Timestamp,
    retry: &Retry,
    jitter: f64,
) -> Next {
    let (why, retry_after) = match result {
        Ok(()) => return Next::Delivered,
        Err(Failure::Permanent { why } | Failure::Gone { why }) => return Next::Bury(why.clone()),
        Err(Failure::Temporary { why, retry_after }) => (why, retry_after.unwrap_or_default()),
    };
    let last = delivery.sealed_at + retry.give_up_after;
    if now >= last {
        let age = now.since(delivery.sealed_at);
        return Next::Bury(format!("given up after {} attempts in {age:?}: {why}", delivery.attempt));
    }
    let wait = retry.backoff().wait(delivery.attempt, jitter).max(retry_after.min(LONGEST_RETRY_AFTER));
    Next::Postpone((now + wait).min(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Group;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);
    const RETRY: Retry = Retry { first: SECOND, longest: Duration::from_secs(60), give_up_after: DAY };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    fn after(attempt: u32, retry_after: Option<Duration>, now: Timestamp) -> Next {
        let group = Group { key: "all".to_owned(), labels: Default::default() };
        let delivery = Delivery {
            id: "n.hook".to_owned(),
            receiver: "hook".to_owned(),
            group,
            sealed_at: Timestamp::ZERO,
            offline: vec![],
            online: vec![],
            blind: vec![],
            attempt,
        };
        let failure = Failure::Temporary { why: "down".to_owned(), retry_after };
        next(&delivery, Err(&failure), now, &RETRY, 1.0)
    }

    #[test]
    fn a_retry_waits_for_the_backoff_and_for_what_the_receiver_asked() {
        assert_eq!(after(1, None, at(0)), Next::Postpone(at(1)));
        assert_eq!(after(3, None, at(100)), Next::Postpone(at(104)));
        assert_eq!(after(3, Some(SECOND), at(100)), Next::Postpone(at(104)));
        assert_eq!(after(3, Some(90 * SECOND), at(100)), Next::Postpone(at(190)));
    }

    #[test]
    fn the_last_attempt_is_made_when_the_notification_is_too_old_and_then_it_is_given_up() {
        assert_eq!(after(9, Some(400 * DAY), at(100)), Next::Postpone(at(86_400)));
        assert!(matches!(after(10, None, at(86_400)), Next::Bury(why) if why.ends_with("down")));
    }
}

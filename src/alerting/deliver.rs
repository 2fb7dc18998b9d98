//! From deliveries to one receiver: lease, attempt, record how it ended.
//!
//! Each receiver has a loop of its own with a bounded number of attempts under way. Some more are
//! leased ahead, so that no attempt waits for the engine, and while attempts are made the engine
//! records how earlier ones ended. A lease is short and is prolonged for as long as this instance
//! holds it: nobody else attempts the same meanwhile, and what a dead instance held is taken up soon.
//! How an attempt ended is kept until the engine has it: an engine that fails just then costs a
//! wait, not a second telling.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::{BoxFuture, FutureExt, OptionFuture};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, Failure, within};
use super::next::{Next, next};
use super::tray::{Placed, Tray};
use super::{ENGINE_BACKOFF, LEASE, ReceiverConfig, SHORTEST_WAIT, TICK, tick};
use crate::clock::Clock;
use crate::engine::{Backlog, Delivery, Engine, LARGEST_STEP, Ownership, Result};
use crate::telemetry::{Lines, Loop, Outcome, Telemetry};

/// How often leases are prolonged.
const PROLONG: Duration = Duration::from_secs(4);
/// How many deliveries are held for each attempt that may be under way. In a storm the engine takes
/// its time with each answer, and meanwhile there has to be something to do.
pub(super) const AHEAD: usize = 64;
/// How long attempts that are under way may go on after the stop. What is cut off is attempted
/// again when its lease has run out.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// The loop of one receiver and what it uses.
pub(super) struct Deliver {
    pub receiver: ReceiverConfig,
    pub channel: Arc<dyn Channel>,
    pub engine: Arc<dyn Engine>,
    /// Whose deliveries are made.
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    /// Where deliveries are put that were handed out already, and room for those that are held.
    pub tray: Arc<Tray>,
    pub stop: CancellationToken,
}

/// What is held. Everything has its place in the tray, so nothing grows while the engine or the
/// receiver hangs.
struct Desk {
    /// Leased and not begun.
    waiting: VecDeque<Arc<Delivery>>,
    attempts: JoinSet<Ended>,
    /// Ended and not yet recorded.
    endings: Vec<Ending>,
    /// Everything of which the engine does not know how it ended, by id.
    held: HashMap<String, Held>,
    /// Why the receiver is disabled.
    disabled: Option<String>,
    /// How often deliveries were asked for.
    leases: usize,
    /// What was delivered.
    lines: Lines,
    /// What was not.
    failures: Lines,
    /// The last attempt failed, so the next failure is none that an operator does not know of.
    fails: bool,
}

/// A delivery and the place in the tray that it takes up.
struct Held {
    delivery: Arc<Delivery>,
    _place: OwnedSemaphorePermit,
}

/// An attempt that ended.
struct Ended {
    delivery: Arc<Delivery>,
    result: std::result::Result<(), Failure>,
    took: Duration,
}

type Ending = (Arc<Delivery>, Next);

/// What the engine was asked to hand out.
struct Leased {
    deliveries: Vec<Delivery>,
    places: OwnedSemaphorePermit,
    /// For how long there is nothing more.
    rest: Duration,
    backlog: Option<Backlog>,
}

impl Deliver {
    /// Runs until it is stopped.
    pub async fn run(self, mut placed: UnboundedReceiver<Placed>) -> anyhow::Result<()> {
        let mut desk = Desk::new();
        let mut ownership = self.ownership.clone();
        let mut failures = 0;
        let mut leasing: Option<BoxFuture<Result<Leased>>> = None;
        let mut recording: Option<BoxFuture<(Vec<Ending>, Result<()>)>> = None;
        let (mut look, mut prolong, mut counted) = (Instant::now(), Instant::now() + PROLONG, None);
        loop {
            let now = Instant::now();
            while let Ok(placed) = placed.try_recv() {
                desk.put(placed);
            }
            self.begin(&mut desk);
            if let Some(more) = desk.lines.turn(now) {
                tracing::info!(receiver = self.receiver.name, more, "more notifications were delivered");
            }
            if let Some(more) = desk.failures.turn(now) {
                tracing::warn!(receiver = self.receiver.name, more, "more notifications were not delivered");
            }
            let is_patient = failures > 0 && now < look;
            if recording.is_none() && !is_patient && (!desk.endings.is_empty() || now >= prolong) {
                // Without those that end here: the next of their groups must not wait.
                let others = (now >= prolong).then(|| desk.others());
                recording = Some(self.record(std::mem::take(&mut desk.endings), others));
                prolong = if now >= prolong { now + PROLONG } else { prolong };
            }
            // Asked for well before there is none left: in a storm an answer takes its time.
            let is_low = desk.waiting.len() <= self.concurrency() * AHEAD / 2;
            if leasing.is_none()
                && now >= look
                && is_low
                && let Some(places) = self.tray.reserve(LARGEST_STEP)
            {
                let counts = counted.is_none_or(|at: Instant| at.elapsed() >= TICK);
                counted = if counts { Some(now) } else { counted };
                leasing = Some(self.lease(places, counts, desk.leases));
                desk.leases = desk.leases.wrapping_add(1);
            }
            let waits_for_look = leasing.is_none() && is_low && self.tray.free() > 0;
            let next = if waits_for_look { look.min(prolong) } else { prolong };
            let failed = tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.leave(desk, placed, recording).await,
                Some(ended) = desk.attempts.join_next() => {
                    self.conclude(&mut desk, ended)?;
                    None
                }
                Some((endings, recorded)) = OptionFuture::from(recording.as_mut()) => {
                    recording = None;
                    self.recorded(&mut desk, endings, recorded)
                }
                Some(leased) = OptionFuture::from(leasing.as_mut()) => {
                    leasing = None;
                    match leased {
                        Ok(leased) => {
                            failures = 0;
                            self.telemetry.engine_answered(Loop::Delivery, &self.receiver.name);
                            look = Instant::now() + leased.rest;
                            self.take(&mut desk, leased);
                            None
                        }
                        Err(error) => {
                            self.telemetry.engine_failed(Loop::Delivery, &self.receiver.name, &error);
                            Some(error)
                        }
                    }
                }
                Some(placed) = placed.recv() => { desk.put(placed); None }
                () = self.tray.rung(), if failures == 0 => { look = now; None }
                () = ownership.changed(), if failures == 0 => { look = now; None }
                () = sleep_until(next.max(now + SHORTEST_WAIT)) => None,
            };
            if failed.is_some() {
                failures += 1;
                look = Instant::now() + ENGINE_BACKOFF.wait(failures, rand::random());
            }
            // Whatever else has ended meanwhile is recorded together with it.
            while let Some(ended) = desk.attempts.try_join_next() {
                self.conclude(&mut desk, ended)?;
            }
        }
    }

    fn concurrency(&self) -> usize {
        self.receiver.concurrency.max(1)
    }

    /// Asks for deliveries that are due, and how many there are in all. Each time another partition
    /// comes first, `turn` says which, so that no storm in one keeps another's waiting for long.
    fn lease(
        &self,
        places: OwnedSemaphorePermit,
        counts: bool,
        turn: usize,
    ) -> BoxFuture<'static, Result<Leased>> {
        let (engine, name) = (self.engine.clone(), self.receiver.name.clone());
        let (mut own, tick) = (self.ownership.view().partitions.clone(), tick(&self.ownership));
        let first = turn % own.len().max(1);
        own.rotate_left(first);
        let now = self.clock.now();
        async move {
            let own = &own;
            let backlog = if counts { Some(engine.backlog(own, &name).await?) } else { None };
            let deliveries = engine.lease(own, &name, now, now + LEASE, places.num_permits()).await?;
            let rest = if !deliveries.is_empty() {
                Duration::ZERO // There may be more where those came from.
            } else {
                let first = engine.first_lease(own, &name).await?;
                first.map_or(tick, |first| first.since(now).clamp(SHORTEST_WAIT, tick))
            };
            Ok(Leased { deliveries, places, rest, backlog })
        }
        .boxed()
    }

    fn take(&self, desk: &mut Desk, mut leased: Leased) {
        if let Some(Backlog { waiting, dead }) = leased.backlog {
            self.telemetry.backlog(&self.receiver.name, waiting, dead);
        }
        for delivery in leased.deliveries {
            if let Some(place) = leased.places.split(1) {
                desk.put(Placed { delivery, place });
            }
        }
    }

    /// Begins attempts, as many as may be under way.
    fn begin(&self, desk: &mut Desk) {
        while desk.attempts.len() < self.concurrency()
            && let Some(delivery) = desk.waiting.pop_front()
        {
            self.attempt(desk, delivery);
        }
    }

    fn attempt(&self, desk: &mut Desk, delivery: Arc<Delivery>) {
        if let Some(why) = &desk.disabled {
            let why = format!("the receiver is disabled: {why}");
            self.telemetry.notification(&self.receiver.name, Outcome::Dead, Duration::ZERO, &why);
            if desk.failures.admit() {
                let (receiver, id) = (&self.receiver.name, &delivery.id);
                tracing::error!(receiver, delivery = id, "not delivered, kept as a dead letter: {why}");
            }
            desk.endings.push((delivery, Next::Bury(why)));
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
        let why = result.err().map(|failure| failure.to_string()).unwrap_or_default();
        let outcome = self.say(desk, &delivery, &next, &why);
        self.telemetry.notification(&self.receiver.name, outcome, took, &why);
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

    /// The first failure is always said, also where others fill the log.
    fn say(&self, desk: &mut Desk, delivery: &Delivery, next: &Next, why: &str) -> Outcome {
        let (receiver, id, attempt) = (&self.receiver.name, &delivery.id, delivery.attempt);
        let failed_before = std::mem::replace(&mut desk.fails, *next != Next::Delivered);
        let is_said = *next == Next::Delivered || desk.failures.admit() || !failed_before;
        match next {
            Next::Delivered => {
                if desk.lines.admit() {
                    let (offline, online) = (delivery.offline.len(), delivery.online.len());
                    tracing::info!(
                        receiver,
                        delivery = id,
                        attempt,
                        offline,
                        online,
                        "notification delivered"
                    );
                }
                Outcome::Delivered
            }
            Next::Postpone(at) => {
                if is_said {
                    tracing::warn!(receiver, delivery = id, attempt, next = %at, "not delivered, will be tried again: {why}");
                }
                Outcome::Retry
            }
            Next::Bury(_) => {
                if is_said {
                    tracing::error!(
                        receiver,
                        delivery = id,
                        attempt,
                        "not delivered, given up and kept as a dead letter: {why}"
                    );
                }
                Outcome::Dead
            }
        }
    }

    /// Writes down how attempts ended, and prolongs the leases of `others`. Gives the endings back, for
    /// what could not be written.
    fn record(
        &self,
        endings: Vec<Ending>,
        others: Option<Vec<Arc<Delivery>>>,
    ) -> BoxFuture<'static, (Vec<Ending>, Result<()>)> {
        let (engine, now) = (self.engine.clone(), self.clock.now());
        async move {
            let recorded = async {
                let is_delivered = |ending: &&Ending| ending.1 == Next::Delivered;
                let delivered: Vec<Delivery> =
                    endings.iter().filter(is_delivered).map(|(delivery, _)| (**delivery).clone()).collect();
                if !delivered.is_empty() {
                    engine.delivered(&delivered, now).await?;
                }
                for (delivery, next) in &endings {
                    match next {
                        Next::Delivered => {}
                        Next::Postpone(at) => engine.postpone(delivery, *at).await?,
                        Next::Bury(reason) => engine.bury(delivery, reason, now).await?,
                    }
                }
                match others {
                    Some(others) if !others.is_empty() => engine.prolong(&others, now + LEASE).await,
                    _ => Ok(()),
                }
            };
            let recorded = recorded.await;
            (endings, recorded)
        }
        .boxed()
    }

    fn recorded(
        &self,
        desk: &mut Desk,
        endings: Vec<Ending>,
        recorded: Result<()>,
    ) -> Option<crate::engine::EngineError> {
        let ends = || format!("ends of {}", self.receiver.name);
        match recorded {
            Ok(()) => {
                self.telemetry.engine_answered(Loop::Delivery, &ends());
                for (delivery, _) in endings {
                    desk.held.remove(&delivery.id);
                }
                None
            }
            // Each may be written again: what was written is over.
            Err(error) => {
                self.telemetry.engine_failed(Loop::Delivery, &ends(), &error);
                desk.endings.extend(endings);
                Some(error)
            }
        }
    }

    /// Lets attempts end and records them, as far as that goes quickly. What was not begun is left to
    /// others at once.
    async fn leave(
        &self,
        mut desk: Desk,
        mut placed: UnboundedReceiver<Placed>,
        recording: Option<BoxFuture<'static, (Vec<Ending>, Result<()>)>>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + LAST_WORDS;
        if let Some(recording) = recording {
            let (endings, recorded) = recording.await;
            self.recorded(&mut desk, endings, recorded);
        }
        while let Ok(Some(ended)) = tokio::time::timeout_at(until, desk.attempts.join_next()).await {
            self.conclude(&mut desk, ended)?;
        }
        while let Ok(placed) = placed.try_recv() {
            desk.put(placed);
        }
        let now = self.clock.now();
        let unbegun =
            std::mem::take(&mut desk.waiting).into_iter().map(|delivery| (delivery, Next::Postpone(now)));
        let endings = std::mem::take(&mut desk.endings).into_iter().chain(unbegun).collect();
        if let (_, Err(error)) = self.record(endings, None).await {
            self.telemetry.engine_failed(Loop::Delivery, &self.receiver.name, &error);
        }
        Ok(())
    }
}

impl Desk {
    fn new() -> Desk {
        Desk {
            waiting: VecDeque::new(),
            attempts: JoinSet::new(),
            endings: Vec::new(),
            held: HashMap::new(),
            disabled: None,
            leases: 0,
            lines: Lines::new(Instant::now()),
            failures: Lines::new(Instant::now()),
            fails: false,
        }
    }

    fn put(&mut self, Placed { delivery, place }: Placed) {
        let delivery = Arc::new(delivery);
        self.held.insert(delivery.id.clone(), Held { delivery: delivery.clone(), _place: place });
        self.waiting.push_back(delivery);
    }

    /// What is held and has not ended.
    fn others(&self) -> Vec<Arc<Delivery>> {
        let ended: HashSet<&str> = self.endings.iter().map(|(delivery, _)| delivery.id.as_str()).collect();
        let held = self.held.values().map(|held| &held.delivery);
        held.filter(|delivery| !ended.contains(delivery.id.as_str())).cloned().collect()
    }
}

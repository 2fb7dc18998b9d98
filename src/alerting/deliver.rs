//! From deliveries to one receiver: lease, attempt, record how it ended.
//!
//! Each receiver has a loop of its own with a bounded number of attempts under way. Some more are
//! leased ahead, so that no attempt waits for the engine. A lease is short and is prolonged for as long
//! as this instance holds it: no other instance attempts the same meanwhile, and what a dead instance held
//! is taken up as soon as its death is known. How an attempt ended is kept until the engine has it: an
//! engine that fails just then costs a wait, not a second telling.
//!
//! # Why an attempt is under way until its end is written
//! What a dead instance attempted, and did not write down, another one attempts again. So no attempt
//! begins while as many are under way or unwritten as the receiver's `concurrency`: a death repeats no more
//! than that. Ends are written a few at a time, several times at once, for attempts wait for it.
//!
//! # Why a lease is looked at before each attempt
//! An instance that was frozen wakes up with leases that have ended, and another instance may have told
//! what it holds. It attempts nothing whose lease is over by the clock of the fleet; the engine hands it
//! out again if it is still to be told.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt, OptionFuture};
use futures_util::stream::FuturesUnordered;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, Failure, within};
use super::next::{Next, next};
use super::tray::{Placed, Tray};
use super::{ENGINE_BACKOFF, LEASE, ReceiverConfig, SHORTEST_WAIT, TICK, tick};
use crate::clock::{Clock, Timestamp};
use crate::fleet::Ownership;
use crate::store::{Backlog, Delivery, Engine, EngineError, LARGEST_STEP, Result};
use crate::telemetry::{DeliveryOutcome, Lines, Loop, Telemetry};

/// How often leases are prolonged: three times before they end.
const PROLONG: Duration = Duration::from_millis(800);
/// How many deliveries are held for each attempt that may be under way. In a storm the engine takes
/// its time with each answer, and meanwhile there has to be something to do.
pub(super) const AHEAD: usize = 64;
/// How many times at once ends of attempts are written.
const RECORDINGS: usize = 4;
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
    /// Leased and not begun, by id. Those that are not held any more are passed over.
    waiting: VecDeque<String>,
    attempts: JoinSet<Ended>,
    /// Ended and not yet recorded.
    endings: Vec<Ending>,
    /// Everything of which the engine does not know how it ended, by id.
    held: HashMap<String, Held>,
    /// How many of those were begun.
    begun: usize,
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
    /// The end of its lease.
    until: Timestamp,
    is_begun: bool,
    /// Also without an attempt, if the receiver is disabled.
    has_ended: bool,
    _place: OwnedSemaphorePermit,
}

/// An attempt that ended.
struct Ended {
    id: String,
    /// `None`: its lease was over, and it was not made.
    result: Option<std::result::Result<(), Failure>>,
    took: Duration,
}

type Ending = (Arc<Delivery>, Next);

/// What was prolonged until then, and which of it is still held.
type Prolonged = (Vec<Arc<Delivery>>, Timestamp, Result<Vec<bool>>);
type Recorded = (Vec<Ending>, Result<()>);

/// What the engine was asked to hand out.
struct Leased {
    deliveries: Vec<Delivery>,
    until: Timestamp,
    places: OwnedSemaphorePermit,
    /// For how long there is nothing more.
    rest: Duration,
    backlog: Option<Backlog>,
}

impl Deliver {
    /// Runs until it is stopped.
    pub async fn run(self, mut placed: UnboundedReceiver<Placed>) -> anyhow::Result<()> {
        if self.stop.run_until_cancelled(self.bring_up_to_date()).await.is_none() {
            return Ok(());
        }
        let mut desk = Desk::new();
        let mut ownership = self.ownership.clone();
        let mut failures = 0;
        let mut leasing: Option<BoxFuture<Result<Leased>>> = None;
        let mut prolonging: Option<BoxFuture<Prolonged>> = None;
        let mut recordings: FuturesUnordered<BoxFuture<Recorded>> = FuturesUnordered::new();
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
            if !is_patient && self.is_worth_recording(&desk, recordings.len()) {
                recordings.push(self.record(std::mem::take(&mut desk.endings)));
            }
            if prolonging.is_none() && !is_patient && now >= prolong {
                prolong = now + PROLONG;
                prolonging = self.prolong(desk.under_way());
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
            let next = if is_patient {
                look
            } else if waits_for_look {
                look.min(prolong)
            } else {
                prolong
            };
            let failed = tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.leave(desk, placed, recordings).await,
                Some(ended) = desk.attempts.join_next() => {
                    self.conclude(&mut desk, ended)?;
                    None
                }
                Some((endings, recorded)) = recordings.next() => self.recorded(&mut desk, endings, recorded),
                Some(prolonged) = OptionFuture::from(prolonging.as_mut()) => {
                    prolonging = None;
                    self.prolonged(&mut desk, prolonged)
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

    /// Before anything is told to a receiver that was not configured for a while: it is told what is still so, and
    /// not what was.
    async fn bring_up_to_date(&self) {
        let name = &self.receiver.name;
        for failures in 1.. {
            match self.engine.bring_up_to_date(name, self.clock.now()).await {
                Ok(past) => {
                    if past > 0 {
                        tracing::info!(
                            receiver = name,
                            past,
                            "the receiver was not configured for a while; silences that are over by now are left out \
                             of what waits for it"
                        );
                    }
                    return;
                }
                Err(error) => self.telemetry.engine_failed(Loop::Delivery, name, &error),
            }
            tokio::time::sleep(ENGINE_BACKOFF.wait(failures, rand::random())).await;
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
            let until = now + LEASE;
            let deliveries = engine.lease(own, &name, now, until, places.num_permits()).await?;
            let rest = if !deliveries.is_empty() {
                Duration::ZERO // There may be more where those came from.
            } else {
                let first = engine.first_lease(own, &name).await?;
                first.map_or(tick, |first| first.since(now).clamp(SHORTEST_WAIT, tick))
            };
            Ok(Leased { deliveries, until, places, rest, backlog })
        }
        .boxed()
    }

    fn take(&self, desk: &mut Desk, mut leased: Leased) {
        if let Some(Backlog { waiting, dead }) = leased.backlog {
            self.telemetry.backlog(&self.receiver.name, waiting, dead);
        }
        for delivery in leased.deliveries {
            if let Some(place) = leased.places.split(1) {
                desk.put(Placed { delivery, until: leased.until, place });
            }
        }
    }

    /// Begins attempts, as many as may be under way: see the head of this file.
    fn begin(&self, desk: &mut Desk) {
        while desk.begun < self.concurrency()
            && let Some(id) = desk.waiting.pop_front()
        {
            self.attempt(desk, id);
        }
    }

    fn attempt(&self, desk: &mut Desk, id: String) {
        let now = self.clock.now();
        let Some(held) = desk.held.get_mut(&id).filter(|held| held.is_waiting()) else { return };
        if held.until <= now {
            desk.held.remove(&id);
            return;
        }
        let (delivery, until) = (held.delivery.clone(), held.until);
        if let Some(why) = &desk.disabled {
            held.has_ended = true;
            let why = format!("the receiver is disabled: {why}");
            self.telemetry.notification(&self.receiver.name, DeliveryOutcome::Dead, Duration::ZERO, &why);
            if desk.failures.admit() {
                let (receiver, id) = (&self.receiver.name, &delivery.id);
                tracing::error!(receiver, delivery = id, "not delivered, kept as a dead letter: {why}");
            }
            desk.endings.push((delivery, Next::Bury(why)));
            return;
        }
        held.is_begun = true;
        desk.begun += 1;
        let (channel, clock, timeout) = (self.channel.clone(), self.clock.clone(), self.receiver.timeout);
        desk.attempts.spawn(async move {
            let (begun, now) = (Instant::now(), clock.now());
            // The process may have been frozen since the task was made.
            let result =
                if now < until { Some(within(timeout, channel.send(&delivery, now)).await) } else { None };
            Ended { id, result, took: begun.elapsed() }
        });
    }

    /// Decides what follows an attempt, counts it and says so.
    fn conclude(&self, desk: &mut Desk, ended: std::result::Result<Ended, JoinError>) -> anyhow::Result<()> {
        let Ended { id, result, took } = ended.context("an attempt to deliver broke down")?;
        let Some(result) = result else {
            desk.let_go(&id);
            return Ok(());
        };
        if let Err(Failure::Gone { why }) = &result {
            self.disable(desk, why);
        }
        let Some(held) = desk.held.get_mut(&id) else { return Ok(()) };
        held.has_ended = true;
        let delivery = held.delivery.clone();
        let next = next(&delivery, result.as_ref(), self.clock.now(), &self.receiver.retry, rand::random());
        let why = result.err().map(|failure| failure.to_string()).unwrap_or_default();
        let outcome = self.say(desk, &delivery, &next, &why);
        self.telemetry.notification(&self.receiver.name, outcome, took, &why);
        if outcome == DeliveryOutcome::Delivered {
            self.telemetry.unreached(&self.receiver.name, self.channel.unreached().as_deref());
        }
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
    fn say(&self, desk: &mut Desk, delivery: &Delivery, next: &Next, why: &str) -> DeliveryOutcome {
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
                DeliveryOutcome::Delivered
            }
            Next::Postpone(at) => {
                if is_said {
                    tracing::warn!(receiver, delivery = id, attempt, next = %at, "not delivered, will be tried again: {why}");
                }
                DeliveryOutcome::Retry
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
                DeliveryOutcome::Dead
            }
        }
    }

    /// Whether ends are to be written now: at once where none are being written, else when there are
    /// some, for what is written together costs less.
    fn is_worth_recording(&self, desk: &Desk, recordings: usize) -> bool {
        let some = if recordings == 0 { 1 } else { self.concurrency().div_ceil(RECORDINGS) };
        recordings < RECORDINGS && desk.endings.len() >= some
    }

    /// Writes down how attempts ended. Gives the endings back, for what could not be written.
    fn record(&self, endings: Vec<Ending>) -> BoxFuture<'static, Recorded> {
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
                Ok(())
            };
            let recorded = recorded.await;
            (endings, recorded)
        }
        .boxed()
    }

    /// The engine knows how these ended, or not.
    fn recorded(&self, desk: &mut Desk, endings: Vec<Ending>, recorded: Result<()>) -> Option<EngineError> {
        let ends = || format!("ends of {}", self.receiver.name);
        match recorded {
            Ok(()) => {
                self.telemetry.engine_answered(Loop::Delivery, &ends());
                endings.iter().for_each(|(delivery, _)| desk.let_go(&delivery.id));
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

    /// Prolongs leases; `None` if there are none.
    fn prolong(&self, held: Vec<Arc<Delivery>>) -> Option<BoxFuture<'static, Prolonged>> {
        if held.is_empty() {
            return None;
        }
        let (engine, until) = (self.engine.clone(), self.clock.now() + LEASE);
        let prolong = async move {
            let still_held = engine.prolong(&held, until).await;
            (held, until, still_held)
        };
        Some(prolong.boxed())
    }

    /// What is not held any more, and was not begun, is left to the instance that holds it.
    fn prolonged(&self, desk: &mut Desk, (deliveries, until, held): Prolonged) -> Option<EngineError> {
        let leases = format!("leases of {}", self.receiver.name);
        let held = match held {
            Ok(held) => held,
            Err(error) => {
                self.telemetry.engine_failed(Loop::Delivery, &leases, &error);
                return Some(error);
            }
        };
        self.telemetry.engine_answered(Loop::Delivery, &leases);
        let count = desk.held.len();
        for (delivery, is_held) in deliveries.iter().zip(held) {
            let Some(held) = desk.held.get_mut(&delivery.id) else { continue };
            // It may have been handed out again meanwhile.
            let is_same = held.delivery.attempt == delivery.attempt;
            if is_held && is_same {
                held.until = until;
            } else if is_same && held.is_waiting() {
                desk.let_go(&delivery.id);
            }
        }
        if desk.held.len() < count {
            let Desk { waiting, held, .. } = desk;
            waiting.retain(|id| held.contains_key(id));
        }
        None
    }

    /// Lets attempts end and records them, as far as that goes quickly. What was not begun is left to
    /// others at once.
    async fn leave(
        &self,
        mut desk: Desk,
        mut placed: UnboundedReceiver<Placed>,
        mut recordings: FuturesUnordered<BoxFuture<'static, Recorded>>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + LAST_WORDS;
        while let Some((endings, recorded)) = recordings.next().await {
            self.recorded(&mut desk, endings, recorded);
        }
        while let Ok(Some(ended)) = tokio::time::timeout_at(until, desk.attempts.join_next()).await {
            self.conclude(&mut desk, ended)?;
        }
        while let Ok(placed) = placed.try_recv() {
            desk.put(placed);
        }
        let now = self.clock.now();
        let unbegun = desk.held.values().filter(|held| held.is_waiting());
        let unbegun: Vec<Ending> = unbegun.map(|held| (held.delivery.clone(), Next::Postpone(now))).collect();
        let endings = std::mem::take(&mut desk.endings).into_iter().chain(unbegun).collect();
        if let (_, Err(error)) = self.record(endings).await {
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
            begun: 0,
            disabled: None,
            leases: 0,
            lines: Lines::new(Instant::now()),
            failures: Lines::new(Instant::now()),
            fails: false,
        }
    }

    fn put(&mut self, Placed { delivery, until, place }: Placed) {
        let (id, delivery) = (delivery.id.clone(), Arc::new(delivery));
        if let Some(held) = self.held.get_mut(&id) {
            // Its lease had ended and it was handed out to this instance again: what is under way goes on.
            (held.delivery, held.until) = (delivery, until);
            return;
        }
        self.held
            .insert(id.clone(), Held { delivery, until, is_begun: false, has_ended: false, _place: place });
        self.waiting.push_back(id);
    }

    /// What is held and has not ended.
    fn under_way(&self) -> Vec<Arc<Delivery>> {
        let held = self.held.values().filter(|held| !held.has_ended);
        held.map(|held| held.delivery.clone()).collect()
    }

    /// That is not held any more.
    fn let_go(&mut self, id: &str) {
        if self.held.remove(id).is_some_and(|held| held.is_begun) {
            self.begun -= 1;
        }
    }
}

impl Held {
    fn is_waiting(&self) -> bool {
        !self.is_begun && !self.has_ended
    }
}

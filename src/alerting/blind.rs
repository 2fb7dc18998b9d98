//! Blindness is told while it lasts, and its end when it is over.
//!
//! Nobody is declared offline while nothing is heard, so operators have to know that it is so. What lasts for longer
//! than `hearing.tell_after` joins the group `blind` like any other news, known by when it began: whichever instance
//! notices writes it, several write the same. Its end is told when an interval is written to the ledger; one that
//! comes out shorter, because the broker had kept what was sent meanwhile, is ended here.
//!
//! # Why it may be told without the engine
//! It may be the engine that is away, and everything that is told goes through it. Then this instance tells its
//! receivers itself, each once, under the id that the news would have had: an instance more that is cut off repeats
//! it at most once, and a receiver can drop that. When the engine is back, what was told is written down as told.
//!
//! # What is not told
//! A blindness that this instance has not watched for so long: after a start, what was not heard before is over with
//! the first canary, and is told once, as over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, Failure, within};
use super::group::group_of;
use super::tray::Tray;
use super::{ReceiverConfig, Route, TICK};
use crate::clock::{Clock, Timestamp};
use crate::engine::{Delivery, Engine, Join, News, Result, Room, notification_of};
use crate::presence::{Hearing, Interval};
use crate::telemetry::{Outcome, Telemetry};

/// The loop and what it uses.
pub(super) struct Watch {
    /// From how long on it is told.
    pub after: Duration,
    pub route: Route,
    /// The receivers of the route.
    pub receivers: Vec<(ReceiverConfig, Arc<dyn Channel>)>,
    pub engine: Arc<dyn Engine>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    pub trays: HashMap<String, Arc<Tray>>,
    pub stop: CancellationToken,
}

/// What is known of hearing.
struct Known {
    /// From when on this instance watches.
    since: Timestamp,
    heard: Option<Timestamp>,
    lasting: Option<Lasting>,
}

/// A blindness that lasts and is told.
struct Lasting {
    from: Timestamp,
    /// Since when it is told.
    at: Timestamp,
    /// The engine has it.
    is_recorded: bool,
    /// What became of telling each receiver without the engine.
    direct: Vec<Direct>,
}

struct Direct {
    is_told: bool,
    attempts: u32,
    next: Instant,
}

impl Watch {
    /// Runs until it is stopped.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut known = Known { since: self.clock.now(), heard: None, lasting: None };
        loop {
            let step = async {
                tokio::time::sleep(TICK).await;
                self.step(&mut known).await;
            };
            if self.stop.run_until_cancelled(step).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn step(&self, known: &mut Known) {
        // The loops that need the engine say that it is away.
        let hearing = self.engine.hearing().await.ok();
        known.heard = hearing.as_ref().and_then(|hearing| hearing.heard).or(known.heard);
        let (Some(heard), now) = (known.heard, self.clock.now()) else { return };
        if now.since(heard.max(known.since)) <= self.after {
            if let (Some(lasting), Some(hearing)) = (&known.lasting, &hearing)
                && self.end(lasting, heard, hearing, now).await.is_ok()
            {
                known.lasting = None;
            }
            return;
        }
        let lasting = known.lasting.get_or_insert_with(|| self.begin(heard, now));
        if hearing.is_some() && !lasting.is_recorded {
            // What the engine knows is the same for all instances.
            lasting.from = heard;
            lasting.is_recorded = self.record(lasting, now).await.is_ok();
        }
        if !lasting.is_recorded {
            self.tell_directly(lasting).await;
        }
    }

    fn begin(&self, from: Timestamp, at: Timestamp) -> Lasting {
        tracing::warn!(%from, "blind for longer than hearing.tell_after: the receivers are told");
        let direct =
            self.receivers.iter().map(|_| Direct { is_told: false, attempts: 0, next: Instant::now() });
        Lasting { from, at, is_recorded: false, direct: direct.collect() }
    }

    /// Writes down that it is told: to the receivers that do not know yet.
    async fn record(&self, lasting: &Lasting, now: Timestamp) -> Result<()> {
        let untold = self.receivers.iter().zip(&lasting.direct).filter(|(_, direct)| !direct.is_told);
        let untold: Vec<String> = untold.map(|((receiver, _), _)| receiver.name.clone()).collect();
        self.join(Interval { from: lasting.from, to: Timestamp::NEVER }, &untold, now).await
    }

    /// Tells the end where nobody else does.
    async fn end(
        &self,
        lasting: &Lasting,
        heard: Timestamp,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Result<()> {
        let is_told = lasting.is_recorded || lasting.direct.iter().any(|direct| direct.is_told);
        let is_long = |interval: &Interval| interval.to > lasting.from && interval.length() > self.after;
        if !is_told || hearing.ledger.intervals().iter().any(is_long) {
            return Ok(());
        }
        let over = Interval { from: lasting.from, to: heard };
        self.join(over, &self.route.receivers, now).await
    }

    async fn join(&self, interval: Interval, receivers: &[String], now: Timestamp) -> Result<()> {
        let news = News::Blind(interval);
        let join = Join { group: group_of(&news, &self.route.group_by), news };
        self.engine.join(&[join], self.route.pace, receivers, &Room::NONE, now).await?;
        self.trays.values().for_each(|tray| tray.ring());
        Ok(())
    }

    /// Makes an attempt with each receiver that does not know yet and is due.
    async fn tell_directly(&self, lasting: &mut Lasting) {
        let interval = Interval { from: lasting.from, to: Timestamp::NEVER };
        let news = News::Blind(interval);
        let group = group_of(&news, &self.route.group_by);
        let id = notification_of(&group.key, &news);
        let at = lasting.at;
        let due = self.receivers.iter().zip(&mut lasting.direct);
        let due = due.filter(|(_, direct)| !direct.is_told && direct.next <= Instant::now());
        let attempts = due.map(|((receiver, channel), direct)| {
            direct.attempts += 1;
            let delivery = Delivery {
                id: format!("{id}.{}", receiver.name),
                receiver: receiver.name.clone(),
                group: group.clone(),
                sealed_at: at,
                offline: Vec::new(),
                online: Vec::new(),
                blind: vec![interval],
                attempt: direct.attempts,
            };
            async move {
                let began = Instant::now();
                let result = within(receiver.timeout, channel.send(&delivery, self.clock.now())).await;
                self.conclude(receiver, direct, result, began.elapsed());
            }
        });
        join_all(attempts).await;
    }

    fn conclude(
        &self,
        receiver: &ReceiverConfig,
        direct: &mut Direct,
        result: std::result::Result<(), Failure>,
        took: Duration,
    ) {
        let name = &receiver.name;
        let Err(why) = result else {
            direct.is_told = true;
            tracing::info!(receiver = name, "told of blindness without the engine, which is away");
            return self.telemetry.notification(name, Outcome::Delivered, took, "");
        };
        // One that wants no more is not asked again.
        direct.is_told = matches!(why, Failure::Gone { .. });
        direct.next = Instant::now() + receiver.retry.backoff().wait(direct.attempts, rand::random());
        tracing::warn!(receiver = name, "not told of blindness without the engine: {why}");
        self.telemetry.notification(name, Outcome::Retry, took, &why.to_string());
    }
}

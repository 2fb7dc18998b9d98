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
//! # A kind that is not heard
//! Where the fleet is heard and one of its kinds is not, that is told in the same way, in a group of its own that names
//! the kind and its topics. Its end is told by the ledger of the kind, by whichever instance reads it, so that it is told
//! also where the one that told the beginning is gone.
//!
//! # What is not told
//! A blindness that this instance has not watched for so long: after a start, what was not heard before is over with
//! the first canary, and is told once, as over.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, Failure, within};
use super::group::{TOPICS, group_of, group_of_kind};
use super::tray::Tray;
use super::{ReceiverConfig, Route, TICK};
use crate::clock::{Clock, Timestamp};
use crate::presence::{Filters, Hearing, Interval, Kind, Ledger};
use crate::store::{Delivery, Engine, Group, Join, OutboxEvent, Result, Room, notification_of};
use crate::telemetry::{DeliveryOutcome, Telemetry};

/// The loop and what it uses.
pub(super) struct Watch {
    /// From how long on it is told.
    pub after: Duration,
    /// The filters by which each kind is heard.
    pub filters: Filters,
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

/// What is known of the hearing of a kind.
struct OfKind {
    kind: Kind,
    group: Group,
    /// From when on it is told that it is not heard.
    lasting: Option<Timestamp>,
    /// The beginnings of those whose end was told.
    told: BTreeSet<Timestamp>,
}

/// How long after its end a blindness of a kind may still be told: as long as it is known that it was.
const RECENT: Duration = Duration::from_secs(12 * 3600);

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
        let of_kind = |(kind, filters): (&Kind, &Vec<String>)| OfKind {
            kind: kind.clone(),
            group: group_of_kind(kind, filters),
            lasting: None,
            told: BTreeSet::new(),
        };
        let mut kinds: Vec<OfKind> = self.filters.iter().map(of_kind).collect();
        loop {
            let step = async {
                tokio::time::sleep(TICK).await;
                self.step(&mut known, &mut kinds).await;
            };
            if self.stop.run_until_cancelled(step).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn step(&self, known: &mut Known, kinds: &mut [OfKind]) {
        // The loops that need the engine say that it is away.
        let hearing = self.engine.hearing().await.ok();
        known.heard = hearing.as_ref().and_then(|hearing| hearing.heard).or(known.heard);
        // Where nothing was ever heard, it is so from the start of this instance on.
        let (heard, now) = (known.heard.unwrap_or(known.since), self.clock.now());
        if now.since(heard.max(known.since)) <= self.after {
            let Some(hearing) = hearing else { return };
            if let Some(lasting) = &known.lasting
                && self.end(lasting, heard, &hearing, now).await.is_ok()
            {
                known.lasting = None;
            }
            let hearing = hearing.by_filters(&self.filters);
            for of_kind in kinds {
                // What fails is tried again with the next tick.
                let _ = self.step_of(of_kind, known.since, &hearing, now).await;
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

    /// The same of a kind, where the fleet is heard.
    async fn step_of(
        &self,
        OfKind { kind, group, lasting, told }: &mut OfKind,
        since: Timestamp,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Result<()> {
        let heard = hearing.of(kind).heard;
        let from = heard.unwrap_or(since);
        if now.since(from.max(since)) > self.after {
            if lasting.is_none() {
                let interval = Interval { from, to: Timestamp::NEVER };
                self.join_to(group, interval, &self.route.receivers, now).await?;
                *lasting = Some(from);
                let topics = group.labels.get(TOPICS);
                tracing::warn!(%kind, %from, topics, "a kind is not heard for longer than hearing.tell_after: the receivers are told");
            }
            return Ok(());
        }
        let Some(heard) = heard else { return Ok(()) };
        let ledger = Ledger::new(hearing.filters.blind.get(kind).into_iter().flatten().copied());
        for over in ledger.intervals().iter().filter(|over| over.length() > self.after) {
            let is_recent = over.to <= heard && now.since(over.to) < RECENT;
            if is_recent && !told.contains(&over.from) {
                self.join_to(group, *over, &self.route.receivers, now).await?;
                told.insert(over.from);
            }
        }
        if let Some(from) = lasting.filter(|from| !told.contains(from)) {
            self.join_to(group, Interval { from, to: heard }, &self.route.receivers, now).await?;
        }
        *lasting = None;
        Ok(())
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
        let group = group_of(&OutboxEvent::Blind(interval), &self.route.group_by);
        self.join_to(&group, interval, receivers, now).await
    }

    async fn join_to(
        &self,
        group: &Group,
        interval: Interval,
        receivers: &[String],
        now: Timestamp,
    ) -> Result<()> {
        let join = Join { group: group.clone(), news: OutboxEvent::Blind(interval) };
        self.engine.join(&[join], self.route.pace, receivers, &Room::NONE, now).await?;
        self.trays.values().for_each(|tray| tray.ring());
        Ok(())
    }

    /// Makes an attempt with each receiver that does not know yet and is due.
    async fn tell_directly(&self, lasting: &mut Lasting) {
        let interval = Interval { from: lasting.from, to: Timestamp::NEVER };
        let news = OutboxEvent::Blind(interval);
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
            return self.telemetry.notification(name, DeliveryOutcome::Delivered, took, "");
        };
        // One that wants no more is not asked again.
        direct.is_told = matches!(why, Failure::Gone { .. });
        direct.next = Instant::now() + receiver.retry.backoff().wait(direct.attempts, rand::random());
        tracing::warn!(receiver = name, "not told of blindness without the engine: {why}");
        self.telemetry.notification(name, DeliveryOutcome::Retry, took, &why.to_string());
    }
}

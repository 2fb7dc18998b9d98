//! From the outbox to the operators.
//!
//! ```text
//! outbox ──dispatch──▶ groups ──seal──▶ deliveries ──deliver──▶ channel ──▶ operator
//!                                            ╰── given up ──▶ dead letters
//! ```
//!
//! Timers come from no outbox: firing one queues its deliveries, see `timers.rs`.
//!
//! Everything between two arrows is kept by the engine; a crash of the loops here loses nothing.
//! `dispatch` is one loop; `deliver` runs once for each receiver, so that a dead receiver does not
//! delay the others. The content of a notification is fixed when its group is sealed, before the first
//! attempt; every attempt sends the same under the same id. Delivery is at least once: after a crash
//! between an attempt and its record the notification is sent again, and the receiver knows the id.
//!
//! # Why each silence has a wait of its own
//! A unit that is back within `group_wait` is never notified. So a group that is due notifies of the silences whose
//! own wait is over, and not of a unit that fell silent a second ago. The rest of a storm is not left for
//! `group_interval`: it follows when the last member that had joined by then has waited, at most `group_wait`
//! later. A return needs no wait: it goes out with the next notification of its group. The rules are in
//! `presence/grouping.rs`.
//!
//! A transition that is alone in a group that is due at once is sealed with its join, and goes straight into the
//! receiver's buffer if a slot is free: the engine keeps it anyway, leased to this instance.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::fleet::{
    Attempts, Census, FlapDetector, FlapRules, Inhibitions, MassBreaker, Ownership, ReceiverHealths,
    Silences, Timers, lease,
};
use crate::presence::{Filters, Kind, MassOfflineRule, is_label_name};
use crate::routing::{EVERY_LABEL, Inhibition, Routes};
use crate::store::{Cells, HearingStore, OutboxStore, Queries, StoredDeliveries, StoredGroups, UnitStore};
use crate::telemetry::Telemetry;

mod acknowledged;
mod alert;
mod attempt;
mod blind;
mod breaker;
mod buffer;
mod catch_up;
mod channel;
mod deliver;
mod digest;
mod dispatch;
mod failures;
mod flapping;
mod group;
mod group_incidents;
mod health;
mod holds;
mod in_flight;
mod incidents;
mod limit;
mod mass_offline;
mod message;
mod orphans;
mod outcome;
mod put_off;
mod resend;
mod retry;
mod silenced;
mod stateful_alerts;
mod text;
mod timers;
mod unsent;

pub use channel::{
    AlertmanagerConfig, Channel, ChannelConfig, EmailConfig, ExecConfig, Failure, Format, HttpConfig,
    MqttConfig, SERVICES, Service, ServiceConfig, ServiceOption, WebhookConfig, open, probe, render,
    send_test,
};
#[doc(hidden)]
pub use channel::{MailContent, body};
pub use group::group_in;
pub use limit::{MAX_MESSAGES, RateLimit};
#[doc(hidden)]
pub use message::ReceiverMessage;
pub use message::{Example, Links, MessageConfig, Zone};
pub use retry::Retry;
pub use unsent::without_receivers;

pub use crate::routing::Route;

use blind::BlindNotifier;
use buffer::DeliveryBuffer;
use deliver::{Deliver, LEASED_PER_ATTEMPT};
use dispatch::Dispatcher;
use flapping::Stability;
use group_incidents::GroupIncidents;
use holds::Holds;
use incidents::Incidents;
use limit::ReceiverLimit;
use mass_offline::MassOffline;
use orphans::Orphans;
use resend::Resend;
use silenced::Silenced;
use stateful_alerts::{StatefulAlerts, StatefulReceivers};
use timers::TimerFiring;

/// The length of a delivery's lease. It is the length of an instance's lease, so that the deliveries of a dead
/// instance are free when its partitions have another owner.
pub const LEASE: Duration = lease::LENGTH;
/// The longest sleep of a loop: with every hint lost, everything still happens.
const TICK: Duration = Duration::from_secs(1);
/// The longest sleep beside other instances: their joins and seals in partitions of this one come without a hint.
const TICK_BESIDE_OTHERS: Duration = Duration::from_millis(200);
/// The shortest wait for something that should be due and is not: no loop spins.
const MIN_WAIT: Duration = Duration::from_millis(20);
/// The waits while the engine fails.
const ENGINE_BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: TICK };

#[derive(Clone, Debug)]
pub struct AlertingConfig {
    /// The root of the routes.
    pub route: Route,
    pub receivers: Vec<ReceiverConfig>,
    /// Operators are notified of blindness that lasts for longer.
    pub blind_after: Duration,
    /// The filters by which each kind is heard.
    pub filters: Filters,
    pub inhibition: Inhibition,
    /// The mass-offline breaker; `None`: it is not enabled.
    pub breaker: Option<MassOfflineRule>,
    /// The kinds that have flap detection.
    pub flapping: FlapRules,
    /// After how long units of a kind are archived: receivers are not reminded of them any more.
    pub archive_after: BTreeMap<Kind, Duration>,
}

impl AlertingConfig {
    /// The type of each receiver, by its name.
    pub fn types(&self) -> BTreeMap<String, &'static str> {
        self.receivers.iter().map(|one| (one.name.clone(), one.channel.type_name())).collect()
    }
}

#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// `[a-z0-9_-]{1,32}`.
    pub name: String,
    pub channel: ChannelConfig,
    pub message: MessageConfig,
    /// The most attempts under way at a time.
    pub concurrency: usize,
    /// After how long an attempt is given up.
    pub timeout: Duration,
    pub retry: Retry,
    /// The receiver that also gets the waiting notifications when this one takes nothing for long.
    pub fallback: Option<Fallback>,
    /// The most messages that the receiver takes; further notifications are merged.
    pub rate_limit: Option<RateLimit>,
}

/// The receiver that gets the notifications that wait for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    pub receiver: String,
    /// For how long the other receiver has to take nothing.
    pub after: Duration,
}

/// The longest sleep of a loop.
fn tick(ownership: &Ownership) -> Duration {
    if ownership.view().instances.len() > 1 { TICK_BESIDE_OTHERS } else { TICK }
}

/// Partitions, with another one first at each turn: a storm in one partition does not delay the others for long.
fn rotated(mut partitions: Vec<u16>, turn: usize) -> Vec<u16> {
    let first = turn % partitions.len().max(1);
    partitions.rotate_left(first);
    partitions
}

/// The parts of the store that alerting reads and writes.
#[derive(Clone)]
pub struct Stores {
    pub outbox: Arc<dyn OutboxStore>,
    pub groups: StoredGroups,
    pub deliveries: StoredDeliveries,
    pub hearing: Arc<dyn HearingStore>,
    /// For open records.
    pub queries: Arc<dyn Queries>,
    pub silences: Arc<Silences>,
    pub cells: Arc<dyn Cells>,
    /// For units that flap.
    pub units: Arc<dyn UnitStore>,
    /// For the classes of timers.
    pub timers: Arc<Timers>,
    /// For the number of units with a label.
    pub census: Arc<Census>,
}

/// Notifies operators until it is stopped; attempts that are under way get a moment to end. Ends early only
/// with an error. `outbox_grew` wakes it when the outbox has a new entry.
///
/// In one piece: it only builds the loops, one after the other.
pub async fn run(
    config: AlertingConfig,
    stores: Stores,
    ownership: Ownership,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    outbox_grew: Arc<Notify>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    type LoopEnd = (String, anyhow::Result<()>);
    let mut loops: FuturesUnordered<BoxFuture<'static, LoopEnd>> = FuturesUnordered::new();
    let attempts = Attempts::new(stores.cells.clone());
    let mut buffers = HashMap::with_capacity(config.receivers.len());
    let notified_after_others = resend::notified_after_others(&config);
    let routes = Routes::new(config.route);
    let names = config.receivers.iter().map(|receiver| receiver.name.clone());
    let destinations = routes.destinations(names.collect()).with_archive(config.archive_after);
    let holds = Holds {
        inhibitions: Arc::new(Inhibitions::new(stores.cells.clone(), config.inhibition, telemetry.clone())),
        breaker: Arc::new(MassBreaker::new(
            config.breaker.map(|rule| (rule, stores.units.clone())),
            stores.cells.clone(),
            stores.queries.clone(),
            stores.silences.clone(),
            telemetry.clone(),
        )),
        silences: stores.silences.clone(),
    };
    let flapping = Arc::new(FlapDetector::new(stores.cells.clone(), config.flapping, telemetry.clone()));
    let longest_attempt = config.receivers.iter().map(|receiver| receiver.timeout).max().unwrap_or_default();
    let (mut notified_of_blindness, mut stateful) = (Vec::new(), StatefulReceivers::default());
    let (lasting_blindness, lasting_trip) = (watch::Sender::new(Vec::new()), watch::Sender::new(None));
    let healths = Arc::new(ReceiverHealths::new(stores.cells.clone()));
    let (groups, queries) = (stores.groups.clone(), stores.queries.clone());
    let group_incidents =
        Arc::new(GroupIncidents::new(groups, stores.deliveries.clone(), queries, stores.cells.clone()));
    for receiver in config.receivers {
        let name = receiver.name.clone();
        let channel = open(&receiver).map_err(|error| anyhow::anyhow!("receiver {name}: {error}"))?;
        channel.keep_order(stores.deliveries.clone());
        if channel.keeps_alerts() {
            stateful.all.insert(name.clone());
        }
        telemetry.receiver_configured(&name);
        let capacity = receiver.concurrency.max(1) * LEASED_PER_ATTEMPT;
        let (buffer, queue) = DeliveryBuffer::new(capacity, receiver.rate_limit.is_none());
        buffers.insert(name.clone(), buffer.clone());
        if channel.is_pager() {
            stateful.pagers.insert(name.clone());
        }
        let incidents = Arc::new(Incidents {
            lasting: group_incidents.clone(),
            census: stores.census.clone(),
            labels: stores.census.labels(),
            is_pager: channel.is_pager(),
        });
        let is_notified_of_blindness = destinations.blind().receivers.contains(&name);
        if is_notified_of_blindness {
            notified_of_blindness.push((receiver.clone(), channel.clone()));
        }
        if let Some(every) = channel.resend_every() {
            let resend = Resend {
                receiver: name.clone(),
                channel: channel.clone(),
                every,
                timeout: receiver.timeout,
                routes: routes.clone(),
                is_notified_after_others: notified_after_others.contains(&name),
                groups: stores.groups.clone(),
                queries: stores.queries.clone(),
                silences: stores.silences.clone(),
                holds: holds.clone(),
                blindness: is_notified_of_blindness.then(|| lasting_blindness.subscribe()),
                trip: is_notified_of_blindness.then(|| lasting_trip.subscribe()),
                flapping: flapping.clone(),
                ownership: ownership.clone(),
                partitions: (0..stores.groups.partitions()).collect(),
                clock: clock.clone(),
                telemetry: telemetry.clone(),
                stop: stop.clone(),
            };
            let task = format!("sending open records to {name} again");
            loops.push(resend.run().map(move |ended| (task, ended)).boxed());
        }
        let limit = receiver.rate_limit;
        let deliver = Deliver {
            limit: limit.map(|limit| ReceiverLimit::new(limit, &name, stores.cells.clone())),
            receiver,
            channel,
            engine: stores.deliveries.clone(),
            destinations: destinations.clone(),
            incidents,
            healths: healths.clone(),
            attempts: attempts.clone(),
            ownership: ownership.clone(),
            clock: clock.clone(),
            telemetry: telemetry.clone(),
            buffer,
            stop: stop.clone(),
        };
        loops.push(deliver.run(queue).map(move |ended| (format!("delivering to {name}"), ended)).boxed());
    }
    let writing = health::run(healths, stop.clone());
    loops.push(writing.map(|ended| ("writing the health of receivers".to_owned(), ended)).boxed());
    let orphans = Orphans {
        configured: buffers.keys().cloned().collect(),
        engine: stores.deliveries.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        stop: stop.clone(),
    };
    loops.push(orphans.run().map(|ended| ("looking for orphans".to_owned(), ended)).boxed());
    let blind = BlindNotifier {
        after: config.blind_after,
        filters: config.filters,
        destination: destinations.blind().clone(),
        receivers: notified_of_blindness,
        hearing: stores.hearing.clone(),
        groups: stores.groups.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        buffers: buffers.clone(),
        lasting: lasting_blindness,
        stop: stop.clone(),
    };
    loops.push(blind.run().map(|ended| ("notifying of blindness".to_owned(), ended)).boxed());
    let mass_offline = MassOffline {
        breaker: holds.breaker.clone(),
        destination: destinations.blind().clone(),
        groups: stores.groups.clone(),
        hearing: stores.hearing,
        buffers: buffers.clone(),
        ownership: ownership.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        lasting: lasting_trip,
        stop: stop.clone(),
    };
    loops.push(mass_offline.run().map(|ended| ("mass-offline breaker".to_owned(), ended)).boxed());
    let silenced = Silenced {
        routes: routes.clone(),
        destinations: destinations.clone(),
        groups: stores.groups.clone(),
        queries: stores.queries.clone(),
        silences: stores.silences.clone(),
        holds: holds.clone(),
        flapping: flapping.clone(),
        ownership: ownership.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        stop: stop.clone(),
    };
    loops.push(silenced.run().map(|ended| ("ending silences".to_owned(), ended)).boxed());
    let stateful_alerts = Arc::new(StatefulAlerts {
        stateful,
        incidents: group_incidents,
        deliveries: stores.deliveries.clone(),
        clock: clock.clone(),
    });
    let stability = Stability {
        flapping: flapping.clone(),
        routes: routes.clone(),
        destinations: destinations.clone(),
        groups: stores.groups.clone(),
        stateful_alerts: stateful_alerts.clone(),
        units: stores.units,
        silences: stores.silences.clone(),
        holds: holds.clone(),
        ownership: ownership.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        stop: stop.clone(),
    };
    loops.push(stability.run().map(|ended| ("ending episodes of flapping".to_owned(), ended)).boxed());
    let firing = TimerFiring {
        engine: stores.timers.store(),
        timers: stores.timers,
        ownership: ownership.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        buffers: buffers.clone(),
        longest_attempt,
        stop: stop.clone(),
    };
    loops.push(firing.run().map(|ended| ("firing timers".to_owned(), ended)).boxed());
    let dispatcher = Dispatcher {
        routes,
        destinations,
        outbox: stores.outbox,
        groups: stores.groups,
        queries: stores.queries,
        silences: stores.silences,
        holds,
        flapping,
        ownership,
        clock,
        telemetry,
        outbox_grew,
        stateful_alerts,
        buffers,
        stop: stop.clone(),
    };
    loops.push(dispatcher.run().map(|ended| ("dispatching".to_owned(), ended)).boxed());
    while let Some((what, ended)) = loops.next().await {
        ended.with_context(|| format!("alerting: {what} failed"))?;
        ensure!(stop.is_cancelled(), "alerting: {what} ended although it was not stopped");
    }
    Ok(())
}

/// The errors of the configuration, one line each: the option, the fault, and the advice.
pub fn check(config: &AlertingConfig) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut names = HashSet::new();
    for receiver in &config.receivers {
        let name = &receiver.name;
        if !names.insert(name.as_str()) {
            wrong.push(format!("receiver {name}: two receivers have that name; rename one"));
        }
        if receiver.concurrency == 0 {
            wrong.push(format!("receiver {name}: concurrency is 0; write at least 1"));
        }
        if let Err(error) = open(receiver) {
            wrong.push(format!("receiver {name}: {error}"));
        }
    }
    let fallbacks = config.receivers.iter().filter_map(|one| Some(&one.fallback.as_ref()?.receiver));
    for name in fallbacks.filter(|name| !names.contains(name.as_str())) {
        wrong.push(format!("fallback: there is no receiver {name}; add a [[receiver]] of that name"));
    }
    for name in config.route.named_receivers().iter().filter(|name| !names.contains(name.as_str())) {
        wrong.push(format!("route: there is no receiver {name}; add a [[receiver]] of that name"));
    }
    let is_label = |name: &str| matches!(name, "kind" | "unit" | EVERY_LABEL) || is_label_name(name);
    let group_by = config.route.all().into_iter().flat_map(|route| &route.group_by);
    for name in group_by.filter(|name| !is_label(name)) {
        wrong.push(format!("route: group_by holds {name:?}; write kind, unit or names of labels"));
    }
    wrong
}

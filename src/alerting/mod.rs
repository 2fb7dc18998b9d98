//! From the outbox to the operators.
//!
//! ```text
//! outbox ──dispatch──▶ groups ──seal──▶ deliveries ──deliver──▶ channel ──▶ operator
//!                                            ╰── given up ──▶ dead letters
//! ```
//!
//! Timers come from no outbox: firing one queues its deliveries, see `timers.rs`.
//!
//! The engine stores everything between two arrows; a crash of the loops here loses nothing. `dispatch` is one loop,
//! like each other kind of [due work](due); `deliver` runs once for each receiver, so that a dead receiver does not
//! delay the others. The content of a notification is fixed when its group is sealed, before the first attempt; every
//! attempt sends the same under the same id. Delivery is at least once: after a crash between an attempt and its
//! record the notification is sent again, and the receiver knows the id.
//!
//! # Why each silence has a wait of its own
//! A unit that is back within `group_wait` is never notified. So a group that is due reports the silences whose own
//! wait is over, and not a unit that fell silent a second ago. The rest of a storm does not wait for
//! `group_interval`: it follows when the last member that had joined at that time has waited, at most `group_wait`
//! later. A return needs no wait: it goes out with the next notification of its group. The rules are in
//! `presence/grouping.rs`.
//!
//! If a transition is alone in a group that is due at once, it is sealed with its join. The delivery goes straight
//! into the receiver's buffer if a slot is free; the engine stores it anyway, leased to this instance.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::fleet::{AvailabilityHistory, FlapRules, Ownership, RemovedKinds, Roll, Silences, Timers, lease};
use crate::presence::{BrokerName, Filters, Kind, MassOfflineRule, is_label_name};
use crate::routing::{EVERY_LABEL, Inhibition};
use crate::store::{
    Cells, HearingStore, OutboxStore, Queries, Roster, StoredDeliveries, StoredGroups, UnitStore,
};

mod acknowledged;
mod alert;
mod assembly;
mod attempt;
mod blind;
mod buffer;
mod catch_up;
mod channel;
mod deliver;
mod digest;
mod dispatch;
mod due;
mod flapping;
mod fleet_notices;
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
mod probing;
mod put_off;
mod reports;
mod resend;
mod retry;
mod routed_groups;
mod silenced;
mod stateful_alerts;
mod text;
mod timers;
mod unsent;
mod unusual;

pub use assembly::run;
pub use channel::{
    AlertmanagerConfig, Channel, ChannelConfig, EmailConfig, ExecConfig, Failure, Format, HttpConfig,
    MqttConfig, SERVICES, Service, ServiceConfig, ServiceOption, WebhookConfig, open, probe, render,
    send_test,
};
#[doc(hidden)]
pub use channel::{MailContent, body};
pub use group::group_in;
#[doc(hidden)]
pub use group_incidents::GroupIncidents;
#[doc(hidden)]
pub use incidents::Incidents;
#[doc(hidden)]
pub use limit::{LimitState, OpenDigest, ReceiverLimit};
pub use limit::{MAX_MESSAGES, RateLimit};
#[doc(hidden)]
pub use message::ReceiverMessage;
pub use message::{Example, Links, MessageConfig, Zone};
pub use retry::Retry;
pub use unsent::without_receivers;

pub use crate::routing::Route;

/// The length of a delivery's lease. It is the length of an instance's lease, so that the deliveries of a dead
/// instance are free when its partitions have another owner.
pub const LEASE: Duration = lease::LENGTH;
/// The longest sleep of a loop: with every hint lost, everything still happens.
const TICK: Duration = Duration::from_secs(1);
/// The longest sleep beside other instances: their joins and seals in partitions of this instance come without a
/// hint.
const TICK_BESIDE_OTHERS: Duration = Duration::from_millis(200);
/// The shortest wait for something that should be due and is not: no loop spins.
const MIN_WAIT: Duration = Duration::from_millis(20);
/// The owner of this partition does the work that one instance does for the whole fleet.
const FIRST_PARTITION: u16 = 0;
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
    /// The brokers of a fleet that has several.
    pub brokers: Vec<BrokerName>,
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

/// The partitions, beginning with another one at each turn: a storm in one partition does not delay the others for
/// long.
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
    /// For reports, if there is history.
    pub history: Option<Arc<dyn AvailabilityHistory>>,
    /// For the number of units with a label, and units whose silence is unusual.
    pub roll: Arc<Roll>,
    /// For the kinds that other instances are configured with.
    pub roster: Arc<dyn Roster>,
    /// For notices of units whose kinds are no longer configured.
    pub removed_kinds: Arc<RemovedKinds>,
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

//! From the outbox to the operators.
//!
//! ```text
//! outbox ──tell──▶ groups ──seal──▶ deliveries ──deliver──▶ channel ──▶ operator
//!                                        ╰── given up ──▶ dead letters
//! ```
//!
//! Everything between two arrows is kept by the engine; the loops here hold nothing that a crash
//! could lose. `tell` is one loop; `deliver` runs once for each receiver, so that one that is dead
//! delays nobody. What is told is fixed when its group is sealed, before the first attempt; every
//! attempt says the same under the same id. A receiver is told at least once: after a crash
//! between an attempt and its record it is told again, and knows the id.
//!
//! # Why each silence has a wait of its own
//! A unit that is back within `group_wait` is never told. So a group that is due tells those whose own wait is
//! over, and not a unit that fell silent a second ago. The rest of a storm is not left for `group_interval`: it
//! follows when the last of those that had joined by then has waited, at most `group_wait` later. A return needs
//! no wait: it is told with whatever its group tells next.
//!
//! Who is alone in a group that is due at once is sealed with joining it, and goes straight into the
//! receiver's tray if there is room: the engine keeps it all the same, leased to this instance.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::fleet::{Ownership, lease};
use crate::presence::{Filters, is_label_name};
use crate::store::{Engine, Pace};
use crate::telemetry::Telemetry;

mod blind;
mod channel;
mod deliver;
mod email;
mod group;
mod letter;
mod next;
mod orphans;
mod tell;
mod text;
mod tray;
mod webhook;

pub use channel::{Channel, Failure, open, probe, send_test};
#[doc(hidden)]
pub use letter::Letter;
#[doc(hidden)]
pub use webhook::body;

use blind::Watch;
use deliver::{AHEAD, Deliver};
use orphans::Orphans;
use tell::Tell;
use tray::Tray;

/// How long a delivery is kept from others that is not prolonged: as long as an instance is taken to be
/// there, so that what it held is free when its partitions are another one's.
pub const LEASE: Duration = lease::LENGTH;
/// Said where it is so.
pub const NO_RECEIVER: &str =
    "no receiver is configured: nobody will be told; add a [[receiver]] and name it in route.receivers";
/// No loop sleeps longer: with every hint lost, everything still happens.
const TICK: Duration = Duration::from_secs(1);
/// The same where there are other instances: what they join and seal of ours comes without a bell.
const TICK_BESIDE_OTHERS: Duration = Duration::from_millis(200);
/// The shortest wait for something that should be due and is not: no loop spins.
const SHORTEST_WAIT: Duration = Duration::from_millis(20);
/// The waits while the engine fails.
const ENGINE_BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: TICK };

/// What alerting needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who is told of what.
    pub route: Route,
    /// The places to tell.
    pub receivers: Vec<ReceiverConfig>,
    /// Blindness that lasts for longer is told.
    pub blind_after: Duration,
    /// The filters by which each kind is heard.
    pub filters: Filters,
}

/// Who is told of what, and how transitions are grouped.
#[derive(Clone, Debug)]
pub struct Route {
    /// Names of receivers.
    pub receivers: Vec<String>,
    /// `kind`, `unit` and label names; transitions that share their values are told together.
    pub group_by: Vec<String>,
    /// The wait of each silence, and the least time between notifications of a group.
    pub pace: Pace,
}

/// A place to tell.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// Its name, `[a-z0-9_-]{1,32}`.
    pub name: String,
    /// How to tell it.
    pub channel: ChannelConfig,
    /// How many notifications are on their way to it at a time.
    pub concurrency: usize,
    /// After how long an attempt is given up.
    pub timeout: Duration,
    /// How failures are retried.
    pub retry: Retry,
}

/// How failures are retried: exponentially, with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// How long after its sealing a notification is given up.
    pub give_up_after: Duration,
}

impl Retry {
    fn backoff(&self) -> Backoff {
        Backoff { first: self.first, longest: self.longest }
    }
}

/// How to tell a receiver.
#[derive(Clone)]
pub enum ChannelConfig {
    /// Standard Webhooks.
    Webhook {
        /// Where to post.
        url: String,
        /// `whsec_…`.
        secret: Option<String>,
    },
    /// E-mail.
    Email {
        /// `smtp://`, `smtps://`, `smtp+starttls://user@host:port`.
        smtp: String,
        /// The password for the user in the address.
        password: Option<String>,
        /// The sender.
        from: String,
        /// The recipients.
        to: Vec<String>,
    },
}

/// Without secrets; an address that a webhook is posted to is often one.
impl std::fmt::Debug for ChannelConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ChannelConfig::Webhook { .. } => "Webhook",
            ChannelConfig::Email { .. } => "Email",
        })
    }
}

/// How long a loop may sleep.
fn tick(ownership: &Ownership) -> Duration {
    if ownership.view().instances.len() > 1 { TICK_BESIDE_OTHERS } else { TICK }
}

/// Tells until it is stopped; attempts that are under way get a moment to end. Ends early only
/// with an error. `news` is rung by whoever puts something into the outbox.
pub async fn run(
    config: Config,
    engine: Arc<dyn Engine>,
    ownership: Ownership,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    news: Arc<Notify>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    type Ended = (String, anyhow::Result<()>);
    let mut loops: FuturesUnordered<BoxFuture<'static, Ended>> = FuturesUnordered::new();
    let mut trays = HashMap::with_capacity(config.receivers.len());
    let mut told_directly = Vec::new();
    for receiver in config.receivers {
        let name = receiver.name.clone();
        let channel = open(&receiver).map_err(|error| anyhow::anyhow!("receiver {name}: {error}"))?;
        telemetry.receiver_configured(&name);
        let (tray, placed) = Tray::new(receiver.concurrency.max(1) * AHEAD);
        trays.insert(name.clone(), tray.clone());
        if config.route.receivers.contains(&name) {
            told_directly.push((receiver.clone(), channel.clone()));
        }
        let deliver = Deliver {
            receiver,
            channel,
            engine: engine.clone(),
            ownership: ownership.clone(),
            clock: clock.clone(),
            telemetry: telemetry.clone(),
            tray,
            stop: stop.clone(),
        };
        loops.push(deliver.run(placed).map(move |ended| (format!("delivering to {name}"), ended)).boxed());
    }
    let orphans = Orphans {
        configured: trays.keys().cloned().collect(),
        engine: engine.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        stop: stop.clone(),
    };
    loops.push(orphans.run().map(|ended| ("looking for orphans".to_owned(), ended)).boxed());
    let watch = Watch {
        after: config.blind_after,
        filters: config.filters,
        route: config.route.clone(),
        receivers: told_directly,
        engine: engine.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        trays: trays.clone(),
        stop: stop.clone(),
    };
    loops.push(watch.run().map(|ended| ("telling of blindness".to_owned(), ended)).boxed());
    let tell =
        Tell { route: config.route, engine, ownership, clock, telemetry, news, trays, stop: stop.clone() };
    loops.push(tell.run().map(|ended| ("telling".to_owned(), ended)).boxed());
    while let Some((what, ended)) = loops.next().await {
        ended.with_context(|| format!("alerting: {what} failed"))?;
        ensure!(stop.is_cancelled(), "alerting: {what} ended although nobody stopped it");
    }
    Ok(())
}

/// Everything that is wrong with the configuration, one line each: where, what, and what to write.
pub fn check(config: &Config) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut names = HashSet::new();
    for receiver in &config.receivers {
        let name = &receiver.name;
        if !names.insert(name.as_str()) {
            wrong.push(format!("receiver {name}: there are two of that name; rename one"));
        }
        if receiver.concurrency == 0 {
            wrong.push(format!("receiver {name}: concurrency is 0; write at least 1"));
        }
        if let Err(error) = open(receiver) {
            wrong.push(format!("receiver {name}: {error}"));
        }
    }
    for name in config.route.receivers.iter().filter(|name| !names.contains(name.as_str())) {
        wrong.push(format!("route: there is no receiver {name}; add a [[receiver]] of that name"));
    }
    let groups = |name: &&String| !matches!(name.as_str(), "kind" | "unit") && !is_label_name(name);
    for name in config.route.group_by.iter().filter(groups) {
        wrong.push(format!("route: group_by holds {name:?}; write kind, unit or names of labels"));
    }
    wrong
}

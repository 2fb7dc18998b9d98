//! Alerting against real receivers: webhooks and mails that go over sockets, and the loops over a
//! real engine.

mod alertmanager;
mod breaker;
mod deadman;
mod email;
mod escalation;
mod exec;
mod fallback;
mod flapping;
mod formats;
mod incidents;
mod inhibition;
mod instances;
mod limit;
mod loops;
mod mass_offline;
mod mqtt;
mod outages;
mod removals;
mod replays;
mod route_changes;
mod services;
mod shapes;
mod silences;
#[path = "../support/mod.rs"]
mod support;
mod timers;
mod unusual;
mod webhook;
mod world;

use std::time::Duration;

use rollcall::alerting::{ChannelConfig, EmailConfig, MessageConfig, ReceiverConfig, Retry, WebhookConfig};
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{Closing, Labels, OfflineRecord, Unit};
use rollcall::store::{Delivery, Group, GroupContext};

/// How long a test waits for a fact.
const MAX_WAIT: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3600);
/// The wait before the second attempt.
const FIRST_RETRY: Duration = Duration::from_secs(5);

fn receiver(name: &str, channel: ChannelConfig) -> ReceiverConfig {
    ReceiverConfig {
        name: name.to_owned(),
        channel,
        message: MessageConfig::default(),
        concurrency: 4,
        timeout: Duration::from_secs(10),
        retry: Retry { first: FIRST_RETRY, longest: HOUR, give_up_after: 72 * HOUR },
        fallback: None,
        rate_limit: None,
    }
}

fn webhook_to(url: String, secret: Option<&str>) -> ReceiverConfig {
    let secret = secret.map(str::to_owned);
    receiver("hook", webhook_of(WebhookConfig { url, secret, ..WebhookConfig::default() }))
}

fn webhook_of(config: WebhookConfig) -> ChannelConfig {
    ChannelConfig::Webhook(Box::new(config))
}

fn mail_to(smtp: String, to: &[&str]) -> ReceiverConfig {
    let to = to.iter().map(|&address| address.to_owned()).collect();
    let from = "Rollcall <rollcall@example.org>".to_owned();
    receiver("mail", ChannelConfig::Email(EmailConfig { smtp, from, to, ..EmailConfig::default() }))
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The present moment: verifiers of signatures accept no other.
fn now() -> Timestamp {
    Clock::system().now()
}

/// The record of a unit that fell silent two days before `deadline`.
fn silent(unit: &str, deadline: Timestamp) -> OfflineRecord {
    let unit: Unit = unit.parse().unwrap();
    OfflineRecord::open(unit, deadline - 48 * HOUR, deadline, deadline + Duration::from_millis(2))
}

/// The record when its unit is back.
fn back(record: &OfflineRecord, at: Timestamp) -> OfflineRecord {
    OfflineRecord { back_at: Some(at), closed_by: Some(Closing::Return), ..record.clone() }
}

fn delivery(offline: Vec<OfflineRecord>, online: Vec<OfflineRecord>) -> Delivery {
    Delivery {
        offline,
        online,
        ..Delivery::new(
            "0192f0c1-7.hook",
            "hook",
            Group { key: "kind=detector".to_owned(), labels: labels(&[("kind", "detector")]) },
            now(),
        )
    }
}

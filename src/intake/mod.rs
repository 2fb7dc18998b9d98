//! From MQTT to recorded heartbeats.
//!
//! ```text
//! broker ─▶ connection: poll, read ─▶ queue ─▶ record: roll.hear, canaries, acknowledge
//!               ▲                                                        │
//!               └── canary, once a second            acknowledgements ◀──┘
//! ```
//!
//! Three tasks. The connection never waits for the engine: it turns each message into a heartbeat
//! and queues it. The recorder takes whatever has queued up as one batch, so batches grow with the
//! load and no timer is needed. The canary proves that all of this works.
//!
//! # What holds the broker back
//! A message of QoS 1 is acknowledged after it was recorded. While the engine is away the batch
//! is kept and tried again, the broker reaches the receive maximum and holds everything else:
//! nothing that it was asked to keep is lost. Nobody holds back messages of QoS 0. Not to read
//! them would only starve the connection of its keep-alive; so when the queue is full they are
//! dropped and counted as `overflow`, and the canaries behind them are withheld until the ledger
//! shows that time as blind. A place in the queue is reserved for each message of QoS 1 that the
//! broker may send, so none of them ever finds it full.
//!
//! # What it never does
//! Decide anything about a unit, read a clock but the one handed in, or end on its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::address::BrokerAddress;
use crate::clock::Clock;
use crate::engine::{Roll, roll::Rules};
use crate::presence::Kind;
use crate::telemetry::{Oddity, Telemetry};

mod canary;
mod json;
mod mqtt;
mod payload;
mod reader;
mod record;
mod topic;

pub use mqtt::probe;
pub use topic::{Template, TemplateError};

/// The name of the one connection, in metrics and in its client id.
const CONNECTION: &str = "main";

/// The least room of the queue: about half a second of what one broker can deliver.
const LEAST_QUEUE: usize = 65_536;

/// What intake needs to know.
#[derive(Clone)]
pub struct Config {
    /// `mqtt://host:port` (TLS and websockets come later).
    pub url: String,
    /// Prefix of the client id; the connection's name is appended, and with a shared subscription
    /// something of each process's own.
    pub client_id: String,
    /// Name and password towards the broker.
    pub credentials: Option<(String, String)>,
    /// Name of a shared subscription; empty: one plain subscription with a persistent session.
    pub share: String,
    /// 0 or 1, for the fleet's topics and the canary alike.
    pub qos: u8,
    /// At most half of the time after which a dead connection is noticed.
    pub keep_alive: Duration,
    /// How long the broker keeps the session and its backlog while Rollcall is away.
    pub session_expiry: Duration,
    /// The most messages that the broker may send ahead of their acknowledgement.
    pub receive_maximum: u16,
    /// Payloads above this are rejected.
    pub max_payload: usize,
    /// The most heartbeats that are recorded in one go.
    pub max_batch: usize,
    /// The canary's period.
    pub canary_period: Duration,
    /// Topic templates with the kind that they belong to; `None` where the template captures
    /// `{kind}`. The first one that fits a topic wins.
    pub topics: Vec<(String, Option<Kind>)>,
    /// Names of the JSON fields that are read.
    pub fields: Fields,
}

/// Names of the JSON fields that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The device's own time.
    pub ts: String,
    /// The silence that the unit asks to be allowed.
    pub timeout: String,
    /// Labels.
    pub labels: String,
    /// A planned silence.
    pub sleep: String,
}

impl Default for Fields {
    fn default() -> Fields {
        let [ts, timeout, labels, sleep] = ["ts", "timeout", "labels", "sleep"].map(str::to_owned);
        Fields { ts, timeout, labels, sleep }
    }
}

/// Without the password.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("url", &self.url)
            .field("client_id", &self.client_id)
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Everything that is wrong with it, each in a sentence that says what would be right.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut must = |good: bool, text: String| {
            if !good {
                problems.push(text);
            }
        };
        if let Err(why) = self.url.parse::<BrokerAddress>() {
            must(false, format!("mqtt.url: {why}"));
        }
        let plain = |text: &str| !text.chars().any(|c| c.is_control() || matches!(c, '/' | '+' | '#'));
        let id = &self.client_id;
        must(plain(id) && (1..=64).contains(&id.len()), "mqtt.client_id: 1 to 64 bytes, no / + #".to_owned());
        must(plain(&self.share), format!("mqtt.share: {:?} has a / + or #", self.share));
        must(self.qos <= 1, format!("mqtt.qos: {} is neither 0 nor 1", self.qos));
        let seconds = self.keep_alive.as_secs();
        must((1..=3600).contains(&seconds), "mqtt.keep_alive: between 1 s and 1 h".to_owned());
        must(self.receive_maximum > 0, "mqtt.receive_maximum: at least 1".to_owned());
        must(self.max_batch > 0, "mqtt.max_batch: at least 1".to_owned());
        let most = mqtt::LARGEST_PACKET as usize / 2;
        must(self.max_payload <= most, format!("mqtt.max_payload: at most {most} bytes"));
        must(!self.canary_period.is_zero(), "mqtt.canary_period: more than nothing".to_owned());
        must(!self.topics.is_empty(), "no kind has a topic".to_owned());
        for (text, kind) in &self.topics {
            if let Err(why) = Template::parse(text, kind.clone()) {
                must(false, format!("topic {text:?}: {why}"));
            }
        }
        problems
    }

    fn topics(&self, rules: &Rules) -> anyhow::Result<topic::Topics> {
        let mut templates = Vec::new();
        for (text, kind) in &self.topics {
            if let Some(kind) = kind {
                anyhow::ensure!(
                    rules.contains_key(kind),
                    "topic {text:?} belongs to an unknown kind: {kind}"
                );
            }
            templates.push(Template::parse(text, kind.clone())?);
        }
        Ok(topic::Topics::new(templates, rules))
    }
}

/// What was odd about one message, each kind once, however often a payload repeats it.
#[derive(Default)]
pub(crate) struct Oddities(Vec<(Oddity, String)>);

impl Oddities {
    fn note(&mut self, oddity: Oddity, what: impl FnOnce() -> String) {
        if self.0.iter().all(|(noted, _)| *noted != oddity) {
            self.0.push((oddity, what()));
        }
    }

    fn take(self) -> Vec<(Oddity, String)> {
        self.0
    }

    #[cfg(test)]
    fn kinds(&self) -> Vec<Oddity> {
        self.0.iter().map(|(oddity, _)| *oddity).collect()
    }
}

/// Hears the fleet until `stop`. Then takes nothing more, records what has come already (unless
/// the engine is away; the broker keeps what was not acknowledged), and leaves the broker.
///
/// Loses and regains the broker and the engine as often as they come and go; an error is a
/// configuration that cannot work.
pub async fn run(
    config: Config,
    roll: Arc<Roll>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if let Some(problem) = config.problems().into_iter().next() {
        anyhow::bail!(problem);
    }
    let topics = config.topics(roll.rules())?;
    let session = mqtt::Session::new(&config, topics.filters())?;
    let room = LEAST_QUEUE.max(4 * usize::from(config.receive_maximum));
    let (queue, queued) = mpsc::channel(room);
    let (link, linked) = watch::channel(mqtt::Link::default());
    let recorded = CancellationToken::new();
    let client_id = session.client_id().to_owned();
    let reader = reader::Reader {
        topics,
        fields: config.fields.clone(),
        client_id: client_id.clone(),
        max_payload: config.max_payload,
        clock: clock.clone(),
        telemetry: telemetry.clone(),
    };
    let connection = mqtt::Connection::new(
        session,
        reader,
        queue,
        link,
        roll.gap() + config.canary_period,
        stop.clone(),
        recorded.clone(),
    );
    let recorder = record::Recorder::new(roll, clock.clone(), telemetry, linked.clone(), stop.clone());
    let canaries = mqtt::Canaries::new(&client_id, config.qos, config.canary_period, linked, clock);
    let mut tasks = JoinSet::new();
    tasks.spawn(connection.stay());
    tasks.spawn(async move {
        // Also when it panics: then the connection must not wait for it.
        let _recorded = recorded.drop_guard();
        recorder.record(queued, config.max_batch).await;
    });
    let stopped = stop.clone();
    tasks.spawn(async move {
        stopped.run_until_cancelled(canaries.sing()).await;
    });
    while let Some(ended) = tasks.join_next().await {
        ended.context("a part of intake failed")?;
        anyhow::ensure!(stop.is_cancelled(), "a part of intake ended on its own");
    }
    Ok(())
}

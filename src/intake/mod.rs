//! From MQTT to recorded heartbeats.
//!
//! ```text
//! broker ─▶ connection: poll, read ─▶ queue ─▶ record: roll.hear, canaries, acknowledge
//!               ▲                                                        │
//!               └── canary, once a period            acknowledgements ◀──┘
//! ```
//!
//! Each connection has a thread and a task. The connection, on the thread, never waits for the engine: it turns each
//! message into a heartbeat and queues it. The recorder, a task, takes all messages in the queue as one batch, so
//! batches grow with the load and no timer is needed. The canary proves that all of this works.
//!
//! # One or several
//! A plain subscription has one connection, which hears the whole fleet. Members of a shared subscription hear a share
//! each, in one process or in many. Rollcall has then heard as far as the slowest member, and the time in which one
//! member loses messages is blind for all: see [`crate::presence::HearingState`].
//!
//! # How the broker is held back
//! A QoS 1 message is acknowledged after it is recorded. While the engine is away, the batch is tried again, and the
//! broker reaches the receive maximum and stores all other messages: no QoS 1 message is lost. QoS 0 messages are not
//! held back, because leaving them unread would only starve the keep-alive of the connection. So when the queue is full
//! they are dropped and counted as `overflow`, and the canaries after them are withheld until the ledger shows that
//! time as blind. The queue reserves room for the QoS 1 messages that a broker may send, and for many more, because
//! brokers exceed their limit.
//!
//! # What it never does
//! Intake never decides anything about a unit, reads only the clock that it is given, and does not end by itself.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::fleet::{Roll, SharedRules, Timers};
use crate::presence::Heartbeat;
use crate::store::Catalogue;
use crate::telemetry::{PayloadIssue, Telemetry};

mod announcements;
mod bodies;
mod broker_watch;
mod canary;
mod config;
mod drops;
mod engine_writer;
mod fields;
mod filter_watch;
mod hearing_reporter;
mod json;
mod kind_metrics;
#[cfg(feature = "broker")]
pub mod listener;
#[cfg(not(feature = "broker"))]
#[path = "without_listener.rs"]
pub mod listener;
mod listener_config;
mod metric_tree;
mod mqtt;
mod payload;
mod probe;
mod probe_returns;
mod read_budget;
mod reader;
mod record;
mod standstill;
mod states;
mod thread;
mod timers;
mod tls;
mod topic;
mod value_buffer;

pub use announcements::{Format, Planned, PresenceRules, SparkplugHost, StateWords};
pub use bodies::Bodies;
pub use broker_watch::watch_elsewhere;
pub use config::Config;
pub use fields::Fields;
pub use mqtt::{TopicProblem, accepts_anonymous, probe};
pub use states::{StateSources, StatesConfig};
pub use tls::{Tls, TlsError, TlsFiles};
pub use topic::{Template, TemplateError};
pub use value_buffer::ValueBuffer;

/// The issues of one message: each kind of issue once, even if a payload repeats it.
#[derive(Default)]
pub(crate) struct PayloadIssues(Vec<(PayloadIssue, String)>);

impl PayloadIssues {
    fn note(&mut self, issue: PayloadIssue, detail: impl FnOnce() -> String) {
        if self.0.iter().all(|(noted, _)| *noted != issue) {
            self.0.push((issue, detail()));
        }
    }

    fn take(self) -> Vec<(PayloadIssue, String)> {
        self.0
    }

    #[cfg(test)]
    fn kinds(&self) -> Vec<PayloadIssue> {
        self.0.iter().map(|(issue, _)| *issue).collect()
    }
}

/// Hears the fleet until `stop`, from devices that connect to `listener`, or else from the broker. Then stops taking
/// messages, records those that have arrived (unless the engine is away; the broker keeps unacknowledged messages), and
/// disconnects.
///
/// `sources` are the states to publish, if publishing is configured. `values` takes the values of metrics, and `timers`
/// the requests about timers over MQTT, if they are allowed.
///
/// Reconnects to the broker and the engine as often as they go away; an error means a configuration that cannot work.
pub async fn run(
    (config, listener, sources): (Config, Option<listener::Listener>, Option<StateSources>),
    roll: Arc<Roll>,
    values: Option<Arc<ValueBuffer>>,
    timers: Arc<Timers>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if let Some(problem) = config.problems().into_iter().next() {
        anyhow::bail!(problem);
    }
    let topics = Arc::new(config.topics(roll.shared_rules())?);
    let proof_of = |filter: &str| config.proof_of(filter);
    let probes = probe::Probes::new(&topics.filters_of_kinds(), &roll.rules(), proof_of);
    roll.pace().at(config.broker_label()).probes(probes.all().len());
    let hearing = ProvedTopics { topics, probes: Arc::new(probes), recent: Arc::default() };
    let writer = engine_writer::EngineWriter { roll, timers, clock, telemetry, stop: stop.clone() };
    let mut tasks = JoinSet::new();
    let wanted = config.states.zip(sources);
    match listener {
        Some(listener) => {
            let publish = listener.start(&config, &hearing, values.clone(), &writer, &mut tasks);
            if let Some(wanted) = wanted {
                publish_to_devices(wanted, publish, &writer, &mut tasks);
            }
        }
        None => {
            if let Some(wanted) = wanted {
                publish_states(&config, wanted, &writer, &mut tasks);
            }
            for number in 1..=config.connections {
                let proof = listen(&config, number, &hearing, values.clone(), &writer, &mut tasks).await?;
                if number == 1 {
                    state_as_host(&config, proof, &writer, &mut tasks);
                }
            }
        }
    }
    let watch = filter_watch::FilterWatch::new(hearing.probes, &config, &writer);
    tasks.spawn(async move { watch.run().await });
    if let Some(values) = values {
        tasks.spawn(async move { values.write(&writer, &writer.stop).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a part of intake failed")?;
        anyhow::ensure!(stop.is_cancelled(), "a part of intake ended on its own");
    }
    Ok(())
}

/// Publishes the states of units at the broker.
fn publish_states(
    config: &Config,
    (states, sources): (StatesConfig, StateSources),
    writer: &engine_writer::EngineWriter,
    tasks: &mut JoinSet<()>,
) {
    let published = Arc::<states::Published>::default();
    let filters = states::filters(states);
    let (rules, telemetry) = (writer.roll.shared_rules().clone(), writer.telemetry.clone());
    let (connection, client) =
        mqtt::StateConnection::new(config, filters, published.clone(), rules, telemetry);
    let (outlet, writer, stop) = (Box::new(client), writer.clone(), writer.stop.clone());
    let broker = Some(config.broker_label().to_owned());
    let (mirror, expected) = (sources.mirror.clone(), published.clone());
    tasks.spawn(async move {
        if stop.run_until_cancelled(mirror.filled()).await.is_some() {
            expected.expect(mirror.total());
            connection.run(stop).await;
        }
    });
    let publisher = states::StatePublisher { broker, config: states, sources, writer, published, outlet };
    tasks.spawn(publisher.run());
}

/// Publishes the states of units at the in-process broker.
fn publish_to_devices(
    (config, sources): (StatesConfig, StateSources),
    publish: states::Publish,
    writer: &engine_writer::EngineWriter,
    tasks: &mut JoinSet<()>,
) {
    let published = Arc::<states::Published>::default();
    // This broker retains nothing from an earlier process.
    published.ready();
    let (outlet, writer) = (Box::new(states::Devices(publish)), writer.clone());
    let publisher = states::StatePublisher { broker: None, config, sources, writer, published, outlet };
    tasks.spawn(publisher.run());
}

/// Reads single messages as a connection does, for tests with arbitrary bytes: the returned function takes a topic and
/// a payload, and returns the heartbeat.
///
/// # Errors
/// A configuration that cannot work.
#[doc(hidden)]
pub fn reader_of_any(
    config: &Config,
    rules: &SharedRules,
    metrics: &Catalogue,
    clock: &Clock,
    telemetry: &Arc<Telemetry>,
) -> anyhow::Result<impl Fn(&[u8], &[u8]) -> Option<Heartbeat> + use<>> {
    let clock = clock.clone();
    let topics = config.topics(rules)?;
    let reader = reader::Reader {
        probes: Arc::new(probe::Probes::new(&topics.filters_of_kinds(), &rules.rules(), str::to_owned)),
        topics: Arc::new(topics),
        recent: Arc::default(),
        fields: config.fields.clone(),
        values: ValueBuffer::new(metrics, telemetry.clone()).map(Arc::new),
        client_id: "rollcall-main".to_owned(),
        key: canary::Key::of_fleet("of a trial"),
        broker: None,
        max_payload: config.max_payload,
        budget: read_budget::ReadBudget::default(),
        timers: None,
        max_age: None,
        telemetry: telemetry.clone(),
    };
    Ok(move |topic: &[u8], payload: &[u8]| {
        let message = reader::Incoming { topic, payload, ..reader::Incoming::default() };
        match reader.read(&message, clock.now()) {
            reader::Content::Heartbeat(heartbeat) => Some(heartbeat),
            reader::Content::Several(all) => all.into_iter().find_map(|one| match one {
                reader::Content::Heartbeat(heartbeat) => Some(heartbeat),
                _ => None,
            }),
            _ => None,
        }
    })
}

/// The topics of the fleet, and the probes that prove their hearing.
struct ProvedTopics {
    topics: Arc<topic::Topics>,
    probes: Arc<probe::Probes>,
    recent: Arc<announcements::RecentSessions>,
}

/// The reader of the messages of a connection.
fn reader(
    config: &Config,
    ProvedTopics { topics, probes, recent }: &ProvedTopics,
    client_id: &str,
    key: canary::Key,
    values: Option<Arc<ValueBuffer>>,
    telemetry: &Arc<Telemetry>,
) -> reader::Reader {
    let timers = config.timers.then(|| timers::TimerReader::new(topics.filters(), telemetry.clone()));
    reader::Reader {
        topics: topics.clone(),
        probes: probes.clone(),
        recent: recent.clone(),
        fields: config.fields.clone(),
        values,
        client_id: client_id.to_owned(),
        key,
        broker: config.broker.parse().ok().map(|broker| (broker, config.kinds_elsewhere.clone())),
        max_payload: config.max_payload,
        budget: read_budget::ReadBudget::default(),
        timers: timers.map(Arc::new),
        max_age: (!config.max_age.is_zero()).then_some(config.max_age),
        telemetry: telemetry.clone(),
    }
}

/// Publishes the state of Rollcall as a host application of Sparkplug, if it is one, when `proof` says that the fleet is
/// heard.
fn state_as_host(
    config: &Config,
    proof: watch::Receiver<mqtt::Proof>,
    writer: &engine_writer::EngineWriter,
    tasks: &mut JoinSet<()>,
) {
    let (clock, telemetry) = (writer.clock.clone(), writer.telemetry.clone());
    if let Some(host) = mqtt::HostConnection::new(config, proof, clock, telemetry) {
        tasks.spawn(host.run(writer.stop.clone()));
    }
}

/// Starts a connection and its recorder. Answers with the proof of the connection.
///
/// In one piece: it only builds their parts, one after the other.
async fn listen(
    config: &Config,
    number: u8,
    hearing: &ProvedTopics,
    values: Option<Arc<ValueBuffer>>,
    writer: &engine_writer::EngineWriter,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<watch::Receiver<mqtt::Proof>> {
    let ProvedTopics { topics, probes, .. } = hearing;
    let (name, is_first) = (&config.connection(number), number == 1);
    writer.telemetry.connection_configured(config.broker_label(), name);
    let session = Arc::new(mqtt::Session::new(config, name, topics.by_use())?);
    if is_first && session.share.is_some() {
        probes.answered_by(canary::answers_topic(session.client_id()));
    }
    // The second half is for messages without an acknowledgement.
    let room = 2 * session.most_unacknowledged;
    // If the engine is away, do not wait for this answer.
    let heard = writer.roll.heard_by(session.client_id()).await.ok().flatten();
    let (queue, queued) = mpsc::channel(room);
    let (link, linked) = watch::channel(mqtt::Link::default());
    let (prove, proof) = watch::channel(mqtt::Proof::default());
    let proved = proof.clone();
    let recorded = CancellationToken::new();
    let key = canary::Key::of_fleet(writer.roll.key());
    let canaries = mqtt::CanaryPublisher::new(&session, key.clone());
    let probing = (is_first).then(|| probes.clone());
    let state = mqtt::ConnectionState::new(
        session.clone(),
        writer.roll.pace().at(config.broker_label()),
        heard,
        canaries.instance(),
        probing.clone().map(mqtt::ProbeSchedule::new),
        rand::random::<u32>().into(),
    );
    let reader = reader(config, hearing, session.client_id(), key.clone(), values, &writer.telemetry);
    let session_expiry = Duration::from_secs(session.expiry.unwrap_or(0).into());
    let (id, share) = (session.client_id(), session.share.clone());
    let id = (config.broker_label(), id);
    let reporter = hearing_reporter::HearingReporter::new(id, share, session_expiry, prove, probes.clone());
    let reporter = match config.is_one_of_several {
        true => reporter.one_of_several(config.proof_of_share()),
        false => reporter,
    };
    let note_lost = {
        let (roll, client_id) = (writer.roll.clone(), session.client_id().to_owned());
        let broker = reader.broker.as_ref().map(|(broker, _)| broker.clone());
        move |number| roll.connection_lost(&client_id, broker.as_ref(), number)
    };
    let connection = mqtt::Connection {
        broker: config.broker_label().to_owned(),
        name: name.to_owned(),
        session,
        state,
        reader,
        note_lost: Box::new(note_lost),
        clock: writer.clock.clone(),
        drops: (config.watch_sys && is_first)
            .then(|| drops::BrokerDrops::new(writer.telemetry.clone(), config.broker_label())),
        queue: Some(mqtt::BatchSender::new(queue)),
        link,
        proof,
        canaries,
        probes: probing.map(|probes| mqtt::ProbePublisher::new(probes, key, config.user().to_owned())),
        accepted: None,
        takeovers: mqtt::Takeovers::default(),
        stop: writer.stop.clone(),
        recorded: recorded.clone(),
    };
    let recorder =
        record::Recorder { writer: writer.clone(), reporter, link: linked, is_applying: Arc::default() };
    let most = config.max_batch;
    let name = name.to_owned();
    tasks.spawn(async move { thread::on_its_own(&name, || (), connection.run()).await });
    tasks.spawn(async move {
        // The guard also works if the recorder panics, so that the connection does not wait for it.
        let _recorded = recorded.drop_guard();
        recorder.record(queued, most).await;
    });
    Ok(proved)
}

//! A broker, an engine, and a Rollcall that listens between them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::{HearingConfig, Rules};
use rollcall::fleet::{Mirror, Roll, TimerRules, Timers};
use rollcall::intake::{self, Config, Fields, ValueBuffer};
use rollcall::presence::{Facts, Interval, Kind, KindRules, Snapshot, TimeSource, Unit};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::Layout;
use rollcall::store::redis::RedisEngine;
use rollcall::store::{self, Catalogue, DataStore, HearingStore, Metric, MetricType, UnitStore};
use rollcall::telemetry::Telemetry;
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Packet, PublishNotice, PublishOptions, QoS};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::metrics;
use crate::support::redis::Redis;

/// The longest that any fact is awaited.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Awaits a fact.
pub async fn eventually(what: &str, fact: impl AsyncFn() -> bool) {
    let awaited = async {
        while !fact().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

/// Calls an engine that may be down for a while.
async fn sure<T, F: Future<Output = store::Result<T>>>(ask: impl Fn() -> F) -> T {
    let answered = async {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(MAX_WAIT, answered).await.expect("the engine answers")
}

/// The metric of pumps.
const PRESSURE: &str = "pump_pressure";

pub struct World {
    pub redis: Redis,
    pub broker: Server,
    pub config: Config,
    /// Canaries further apart than this enclose a blind interval.
    pub gap: Duration,
    /// An engine that reads recorded state.
    pub engine: Arc<RedisEngine>,
    dir: tempfile::TempDir,
}

impl World {
    /// A broker with `more` in its configuration, and a Rollcall to be started.
    pub async fn new(more: &str) -> World {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port().unwrap();
        let broker = Server::mosquitto(&dir.path().join("broker"), port, more).unwrap();
        let config = Config {
            url: format!("mqtt://127.0.0.1:{port}"),
            tls: None,
            client_id: "test".to_owned(),
            credentials: None,
            share: String::new(),
            connections: 1,
            qos: 1,
            keep_alive: Duration::from_secs(5),
            session_expiry: Duration::from_secs(3600),
            receive_maximum: 100,
            max_payload: 256 * 1024,
            max_age: Duration::ZERO,
            broker: String::new(),
            is_one_of_several: false,
            kinds: Vec::new(),
            kinds_elsewhere: Vec::new(),
            watch_sys: false,
            states: None,
            timers: false,
            max_batch: 50,
            canary_period: Duration::from_millis(100),
            topics: vec![
                ("units/{unit}/heartbeat".to_owned(), Some(kind("detector"))),
                ("fleet/{kind}/{site}/{unit}".to_owned(), None),
            ],
            presence: Vec::new(),
            fields: Fields::default(),
        };
        let redis = Redis::start();
        let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::system()))).await;
        World { redis, broker, gap: 3 * config.canary_period, config, engine, dir }
    }

    /// The private directory of the world.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// How many units are watched.
    pub async fn units(&self) -> usize {
        let partitions = 0..self.engine.partitions();
        let due = partitions.map(|p| sure(move || self.engine.due(p, None, Timestamp::NEVER, 0, 100_000)));
        futures_util::future::join_all(due).await.iter().map(Vec::len).sum()
    }

    pub async fn facts(&self, unit: &str) -> Option<Facts> {
        self.read(unit).await.facts
    }

    /// The last seen time of a unit, from its expiry key.
    pub async fn last_seen(&self, unit: &str) -> Option<Timestamp> {
        self.read(unit).await.alive
    }

    pub async fn is_known(&self, unit: &str) -> bool {
        self.last_seen(unit).await.is_some()
    }

    async fn read(&self, unit: &str) -> Snapshot {
        let unit: [Unit; 1] = [unit.parse().unwrap()];
        sure(|| self.engine.read(&unit)).await.remove(0)
    }

    /// The last pressure of a pump.
    pub async fn pressure(&self, pump: &str) -> Option<String> {
        let unit: Unit = pump.parse().unwrap();
        let values = sure(|| self.engine.values(&unit, &[PRESSURE])).await.remove(0);
        values.map(|value| value.text)
    }

    pub async fn heard(&self) -> Option<Timestamp> {
        sure(|| self.engine.hearing()).await.heard
    }

    pub async fn blind(&self) -> Vec<Interval> {
        sure(|| self.engine.hearing()).await.ledger.intervals().to_vec()
    }

    /// Whether `heard` is newer than this.
    pub async fn has_heard_more_than(&self, before: Option<Timestamp>) -> bool {
        self.heard().await > before
    }

    /// Kills the broker and starts one without state on the same port, with `more` in its
    /// configuration.
    pub fn restart_broker(&mut self, more: &str) {
        let port = self.broker.port();
        self.broker.kill();
        self.broker = Server::mosquitto(&self.dir.path().join("broker"), port, more).unwrap();
    }

    /// Starts the broker again, with a guard that grants subscriptions or refuses all of them.
    pub fn guard_broker(&mut self, subscribe: bool) {
        let guard = format!(
            "{{\"defaultACLAccess\":{{\"publishClientSend\":true,\"publishClientReceive\":true,\
             \"subscribe\":{subscribe},\"unsubscribe\":true}}}}"
        );
        let file = self.dir.path().join("guard.json");
        std::fs::write(&file, guard).unwrap();
        let (plugin, file) = (find_plugin(), file.display().to_string());
        self.restart_broker(&format!("plugin {plugin}\nplugin_opt_config_file {file}"));
    }

    /// How many connections the broker accepted from clients whose ids have this prefix.
    pub fn connections(&self, client_id: &str) -> usize {
        let log = std::fs::read_to_string(self.dir.path().join("broker/mosquitto.log")).unwrap();
        let welcome = format!(" as {client_id}");
        log.lines().filter(|line| line.contains("New client connected") && line.contains(&welcome)).count()
    }

    /// Starts a Rollcall and waits for its subscription.
    pub async fn start(&self) -> Running {
        let running = self.launch().await;
        eventually("subscribed", async || running.is_connected()).await;
        running
    }

    /// Starts a Rollcall.
    pub async fn launch(&self) -> Running {
        let clock = Clock::system();
        let telemetry = Arc::new(Telemetry::new(&clock));
        let mut rules: Rules =
            ["detector", "pump"].map(|name| (kind(name), KindRules::new(kind(name)))).into_iter().collect();
        let meter = KindRules { clock: TimeSource::Device, ..KindRules::new(kind("meter")) };
        rules.insert(kind("meter"), meter);
        let rules = Arc::new(rules);
        let engine = self.redis.engine(&telemetry).await;
        let mirror = Arc::new(Mirror::new(rules.clone(), engine.partitions()));
        let hearing = HearingConfig {
            gap: self.gap,
            follows: false,
            settle: Duration::ZERO,
            tell_after: Duration::from_secs(300),
        };
        let roll =
            Arc::new(Roll::new(engine.clone(), rules, mirror, telemetry.clone(), hearing, Arc::default()));
        let stop = CancellationToken::new();
        let timers = Timers::new(engine.clone(), TimerRules::default(), Arc::default(), telemetry.clone());
        let (config, timers) = (self.config.clone(), Arc::new(timers));
        let values = ValueBuffer::new(&metrics(), telemetry.clone()).map(Arc::new);
        let run =
            intake::run((config, None, None), roll, values, timers, clock, telemetry.clone(), stop.clone());
        Running { telemetry, stop, task: tokio::spawn(run) }
    }

    /// Subscribes with a kept session, and disconnects.
    pub async fn subscribes_and_goes_away(&self, filter: &str) {
        let mut options = MqttOptions::new("away", ("127.0.0.1", self.broker.port()));
        options.set_clean_start(true).set_session_expiry_interval(Some(3600));
        let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
        client.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
        while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
    }

    /// A client with this subscription.
    pub async fn reader(&self, filter: &str) -> (AsyncClient, EventLoop) {
        let options = MqttOptions::new("reader", ("127.0.0.1", self.broker.port()));
        let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
        client.subscribe(filter, QoS::AtMostOnce).await.unwrap();
        while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
        (client, events)
    }

    /// A client of a device.
    pub fn device(&self) -> Device {
        let mut options = MqttOptions::new("device", ("127.0.0.1", self.broker.port()));
        options.set_keep_alive(30);
        if let Some((name, password)) = &self.config.credentials {
            options.set_credentials(name, password.clone());
        }
        let (client, mut events) = AsyncClient::builder(options).capacity(1000).build();
        let task = tokio::spawn(async move { while events.poll().await.is_ok() {} });
        Device { client, task }
    }
}

/// A Rollcall that listens.
pub struct Running {
    pub telemetry: Arc<Telemetry>,
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    /// The sum of all series of a metric with this label value.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let labels = if label.is_empty() { vec![] } else { vec![label] };
        metrics::sum(&self.telemetry, &format!("rollcall_{name}"), &labels).unwrap_or_default()
    }

    pub fn heartbeats(&self, result: &str) -> f64 {
        self.metric("heartbeats_total", result)
    }

    /// How often this command was sent to the engine, failed ones included.
    pub fn asked(&self, command: &str) -> f64 {
        self.metric("engine_command_duration_seconds", command)
    }

    /// Whether the engine refuses commands.
    pub fn is_refused(&self) -> bool {
        self.metric("engine_up", "") == 0.0
    }

    pub fn is_connected(&self) -> bool {
        self.metric("mqtt_connected", "main") > 0.0
    }

    /// Stops Rollcall in order.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(MAX_WAIT, self.task).await.expect("it stops").unwrap().unwrap();
    }

    /// Ends Rollcall like a power cut.
    pub async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Waits until Rollcall ends by itself, and returns the error.
    pub async fn failure(self) -> String {
        format!(
            "{:#}",
            tokio::time::timeout(MAX_WAIT, self.task).await.expect("it ends").unwrap().unwrap_err()
        )
    }
}

/// A device, or many of them.
pub struct Device {
    client: AsyncClient,
    task: JoinHandle<()>,
}

impl Device {
    /// Publishes a message and waits until the broker has it.
    pub async fn publishes(&self, topic: &str, payload: impl Into<Vec<u8>>) {
        self.publish(topic, payload, PublishOptions::new(QoS::AtLeastOnce)).await;
    }

    pub async fn retains(&self, topic: &str, payload: &str) {
        self.publish(topic, payload, PublishOptions::new(QoS::AtLeastOnce).retained()).await;
    }

    async fn publish(&self, topic: &str, payload: impl Into<Vec<u8>>, options: PublishOptions) {
        let notice: PublishNotice =
            self.client.publish_tracked(topic, payload.into(), options).await.unwrap();
        let taken = tokio::time::timeout(MAX_WAIT, notice.wait_async()).await.expect("the broker answers");
        taken.unwrap();
    }

    /// Publishes a heartbeat of each of the units `<name>0` and so on.
    pub async fn heartbeats(&self, name: &str, count: usize) {
        for n in 0..count {
            self.publishes(&format!("units/{name}{n}/heartbeat"), "").await;
        }
    }

    /// Publishes `count` messages as fast as possible.
    pub async fn floods(&self, count: usize, qos: QoS) {
        for n in 0..count {
            let topic = format!("units/flood{}/heartbeat", n % 1000);
            self.client.publish(topic, "", PublishOptions::new(qos)).await.unwrap();
        }
        self.publishes("units/last/heartbeat", "").await;
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The metrics of pumps, which publish their pressure.
fn metrics() -> Arc<Catalogue> {
    let pressure = Metric {
        name: PRESSURE.to_owned(),
        pointer: vec!["pressure".to_owned()],
        metric_type: MetricType::Gauge,
        help: "Pressure.".to_owned(),
        unit: String::new(),
        label: "value".to_owned(),
    };
    Arc::new(Catalogue::new([(kind("pump"), vec![pressure])]))
}

pub fn kind(name: &str) -> Kind {
    name.parse().unwrap()
}

/// The broker's own plugin for access control.
fn find_plugin() -> String {
    let libraries = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    libraries
        .chain(["/usr/lib".into(), "/usr/local/lib".into()])
        .map(|dir| dir.join("mosquitto_dynamic_security.so"))
        .find(|path| path.is_file())
        .expect("mosquitto comes with mosquitto_dynamic_security.so")
        .display()
        .to_string()
}

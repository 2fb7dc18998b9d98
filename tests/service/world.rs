//! Real servers around one service: Redis, Mosquitto, a webhook sink, a mail sink; and a device.

use std::path::PathBuf;
use std::time::Duration;

use rollcall::config;
use rollcall::service::{self, Reload};
use rollcall::simulate::mail_sink::{self, MailSink};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::simulate::webhook_sink::{self, WebhookSink};
use rumqttc::{AsyncClient, MqttOptions, PublishOptions, QoS};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::client::client;
use crate::support::http::get;

/// The longest wait for a fact.
pub const MAX_WAIT: Duration = Duration::from_secs(120);

pub struct World {
    pub redis: Server,
    pub broker: Server,
    pub hook: WebhookSink,
    pub mail: MailSink,
    pub dir: TempDir,
    http: u16,
    /// Options beside the addresses, as TOML.
    options: String,
    running: Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
}

impl World {
    /// The servers, and a service with these options on top of short times. `redis` are arguments
    /// of the Redis server.
    pub async fn new(options: &str, redis: &[&str]) -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = TempDir::new().unwrap();
        let mut world = World {
            redis: Server::redis(&dir.path().join("redis"), free_port().unwrap(), redis).unwrap(),
            broker: Server::mosquitto(&dir.path().join("broker"), free_port().unwrap(), "").unwrap(),
            hook: WebhookSink::start(webhook_sink::Options::default()).await.unwrap(),
            mail: MailSink::start(mail_sink::MailSinkOptions::default()).await.unwrap(),
            dir,
            http: free_port().unwrap(),
            options: options.to_owned(),
            running: None,
        };
        world.start().await;
        world
    }

    /// Starts the service and waits until it is ready.
    pub async fn start(&mut self) {
        self.rewrite("", "");
        let file = self.file();
        let load = move || config::parse(&std::fs::read_to_string(&file).unwrap(), None, []);
        let (config, reload, stop) = (load().unwrap(), Reload::new(load), CancellationToken::new());
        let running = tokio::spawn(service::run_with(config, Some(reload), stop.clone()));
        self.running = Some((stop, running));
        self.eventually("the service is ready", async || self.status("/readyz").await == 200).await;
    }

    /// Starts one more instance, on an address that the test does not read.
    pub fn start_another(&self) -> (CancellationToken, JoinHandle<anyhow::Result<()>>) {
        self.start_another_by(|text| format!("mqtt.client_id = \"another\"\n{text}"))
    }

    /// Starts one more instance, with a configuration that is changed.
    pub fn start_another_by(
        &self,
        change: impl Fn(String) -> String,
    ) -> (CancellationToken, JoinHandle<anyhow::Result<()>>) {
        let here = format!("127.0.0.1:{}", self.http);
        let text = change(self.text().replace(&here, "127.0.0.1:0").replace("\"stays\"", "\"comes\""));
        let config = config::parse(&text, None, []).unwrap();
        let stop = CancellationToken::new();
        (stop.clone(), tokio::spawn(rollcall::service::run(config, stop)))
    }

    /// Stops the service.
    pub async fn stop(&mut self) {
        let (stop, running) = self.running.take().expect("it runs");
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    pub fn restart_broker(&mut self) {
        let port = self.broker.port();
        self.broker = Server::mosquitto(&self.dir.path().join("broker"), port, "").unwrap();
    }

    pub fn restart_redis(&mut self) {
        let port = self.redis.port();
        self.redis = Server::redis(&self.dir.path().join("redis"), port, &[]).unwrap();
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("serves.toml")
    }

    /// Writes the file of the configuration again, with `before` replaced by `after`.
    pub fn rewrite(&self, before: &str, after: &str) {
        let text = self.text();
        assert!(text.contains(before), "{text}");
        std::fs::write(self.file(), text.replace(before, after)).unwrap();
    }

    /// Replaces a part of the options, for the next start.
    pub fn change(&mut self, before: &str, after: &str) {
        assert!(self.options.contains(before), "{}", self.options);
        self.options = self.options.replace(before, after);
        self.rewrite("", "");
    }

    fn text(&self) -> String {
        format!(
            r#"
            {engine}
            {mqtt}
            http.listen = "127.0.0.1:{http}"
            hearing.canary_period = "200ms"
            {breaker}
            route = {{ receivers = ["hook", "mail"], group_wait = "0s", group_interval = "0s" }}
            {options}
            [[receiver]]
            name = "hook"
            type = "webhook"
            url = "{hook}"
            [[receiver]]
            name = "mail"
            type = "email"
            smtp = "{mail}"
            from = "rollcall@example.org"
            to = ["ops@example.org"]
            "#,
            engine = self.engine(),
            // Units fall silent together in most tests.
            breaker = if self.options.contains("breaker") { "" } else { "breaker.enabled = false" },
            mqtt = self.mqtt(),
            http = self.http,
            options = self
                .options
                .replace("{dir}", &self.dir.path().display().to_string())
                .replace("{broker}", &self.broker.port().to_string()),
            hook = self.hook.url(),
            mail = self.mail.url(),
        )
    }

    /// The engine: Redis, as the default user, unless the options name another.
    fn engine(&self) -> String {
        let port = self.redis.port();
        let user = if self.options.contains("# user roll") { "roll:secret@" } else { "" };
        let is_said = self.options.contains("engine.type");
        if is_said { String::new() } else { format!("engine.url = \"redis://{user}127.0.0.1:{port}/0\"") }
    }

    /// The broker, unless devices connect to the service.
    fn mqtt(&self) -> String {
        let is_within = self.options.contains("broker.listen") || self.options.contains("[[mqtt]]");
        let port = self.broker.port();
        if is_within { String::new() } else { format!("mqtt.url = \"mqtt://127.0.0.1:{port}\"") }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.http)
    }

    pub async fn status(&self, path: &str) -> u16 {
        get(self.url(path)).await.map_or(0, |answer| answer.status().as_u16())
    }

    pub async fn text_of(&self, path: &str) -> String {
        get(self.url(path)).await.unwrap().text().await.unwrap()
    }

    /// How many deadlines were checked because of this source.
    pub async fn checks(&self, source: &str) -> u64 {
        let page = self.text_of("/metrics").await;
        let source = format!("source=\"{source}\"}} ");
        let checks = page.lines().filter(|line| line.starts_with("rollcall_deadline_checks_total{"));
        let counts: Vec<u64> = checks.filter_map(|line| line.split_once(&source)?.1.parse().ok()).collect();
        assert!(!counts.is_empty(), "{page}");
        counts.iter().sum()
    }

    pub async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text_of(path).await).unwrap()
    }

    /// All records, newest first.
    pub async fn records(&self) -> Vec<Value> {
        let page = self.json("/api/v1/records?limit=1000").await;
        page["records"].as_array().expect("a list of records").clone()
    }

    /// The state of a unit, or the error of the page.
    pub async fn state(&self, unit: &str) -> String {
        let page = self.json(&format!("/api/v1/units/detector/{unit}")).await;
        page["state"].as_str().unwrap_or("none").to_owned()
    }

    /// Sends a command to Redis, as another program.
    pub async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let mut connection = client(self.redis.port()).await.unwrap();
        command.query_async(&mut connection).await.unwrap()
    }

    /// A device that publishes one heartbeat for each unit, and waits until the broker has them.
    pub async fn beat(&self, units: &[String]) {
        self.beat_to("units", units).await;
    }

    /// Sends a heartbeat of each of these units, on topics that begin with `begin`.
    pub async fn beat_to(&self, begin: &str, units: &[String]) {
        let mut options = MqttOptions::new(
            format!("device-{:x}", rand::random::<u32>()),
            ("127.0.0.1", self.broker.port()),
        );
        options.set_clean_start(true);
        let (client, mut events) = AsyncClient::builder(options).capacity(64).build();
        let follow = tokio::spawn(async move { while events.poll().await.is_ok() {} });
        for unit in units {
            let topic = format!("{begin}/{unit}/heartbeat");
            let notice =
                client.publish_tracked(topic, "{}", PublishOptions::new(QoS::AtLeastOnce)).await.unwrap();
            notice.wait_async().await.unwrap();
        }
        client.disconnect().await.unwrap();
        follow.await.unwrap();
    }

    /// Awaits a fact.
    pub async fn eventually(&self, what: &str, mut fact: impl AsyncFnMut() -> bool) {
        let mut every = tokio::time::interval(Duration::from_millis(20));
        let awaited = async {
            while !fact().await {
                every.tick().await;
            }
        };
        if tokio::time::timeout(MAX_WAIT, awaited).await.is_err() {
            panic!("never came true: {what}; logs are in {}", self.logs().display());
        }
    }

    fn logs(&self) -> PathBuf {
        self.dir.path().to_owned()
    }
}

pub fn units(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("unit-{n:03}")).collect()
}

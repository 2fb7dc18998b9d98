//! A service as operators run it: devices over MQTT, a webhook that is told, and history in a PostgreSQL.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::{Client, StatusCode};
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::OfflineRecord;
use rollcall::simulate::fleet::{self, FleetConfig, FleetProgress};
use rollcall::simulate::servers::free_port;
use rollcall::simulate::webhook_sink::{Options, WebhookSink};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::fleet::Service;
use crate::support::postgres::{PASSWORD, Postgres};
use crate::world::until_so;

/// The schema of its history.
pub const SCHEMA: &str = "lived";

pub struct Lived {
    service: Service,
    url: String,
    broker: String,
    client: Client,
    /// When each message came, and its body.
    messages: Arc<Mutex<Vec<(Timestamp, Value)>>>,
    /// The configuration, for commands.
    pub file: PathBuf,
    devices: Option<(CancellationToken, JoinHandle<()>)>,
    _sink: WebhookSink,
    // The last field, so that the service has ended when its directory goes.
    _dir: tempfile::TempDir,
}

impl Lived {
    /// With history at this port, and further lines of the configuration.
    pub async fn start(postgres: &Postgres, port: u16, more: &str) -> Lived {
        let dir = tempfile::tempdir().unwrap();
        let messages = Arc::<Mutex<Vec<(Timestamp, Value)>>>::default();
        let (kept, clock) = (messages.clone(), Clock::system());
        let watcher: rollcall::simulate::webhook_sink::Watcher = Box::new(move |received| {
            kept.lock().unwrap().push((clock.now(), received.json()));
        });
        let sink =
            WebhookSink::start(Options { watcher: Some(watcher), ..Options::default() }).await.unwrap();
        let password = dir.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let (http, broker) = (free_port().unwrap(), free_port().unwrap());
        let history = postgres.url().replace(&format!(":{}/", postgres.port()), &format!(":{port}/"));
        let text = format!(
            "[engine]\ntype = \"embedded\"\npath = {:?}\npartitions = 4\n[broker]\nlisten = \"127.0.0.1:{broker}\"\n\
             [http]\nlisten = \"127.0.0.1:{http}\"\ncount_by_labels = [\"site\"]\n\
             [history]\nurl = {history:?}\npassword_file = {password:?}\nschema = {SCHEMA:?}\n\
             [[kind]]\nname = \"detector\"\ntopics = [\"sites/{{site}}/{{unit}}/heartbeat\"]\ntimeout = \"2s\"\n\
             [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = {:?}\n{more}",
            dir.path().join("engine"),
            sink.url(),
        );
        let file = dir.path().join("rollcall.toml");
        std::fs::write(&file, &text).unwrap();
        let lived = Lived {
            service: Service::start(&text),
            url: format!("http://127.0.0.1:{http}"),
            broker: format!("mqtt://127.0.0.1:{broker}"),
            client: Client::builder().no_proxy().build().unwrap(),
            messages,
            file,
            devices: None,
            _sink: sink,
            _dir: dir,
        };
        let ready = format!("{}/readyz", lived.url);
        let is_ready =
            async || lived.client.get(&ready).send().await.is_ok_and(|answer| answer.status() == 200);
        until_so("it does its work", is_ready).await;
        lived
    }

    /// Devices that send heartbeats, all of which are known at the end of this call.
    pub async fn devices(&mut self, change: impl FnOnce(&mut FleetConfig)) {
        let mut config = FleetConfig {
            topic: "sites/{site}/{unit}/heartbeat".to_owned(),
            interval: Duration::from_millis(200),
            ..FleetConfig::new(&self.broker)
        };
        change(&mut config);
        let (units, stop) = (config.units as u64, CancellationToken::new());
        let run = fleet::run(config, watch::Sender::new(FleetProgress::default()), stop.clone());
        let running = tokio::spawn(async move { run.await.map(|_| ()).unwrap() });
        self.devices = Some((stop, running));
        until_so("each device is known", async || {
            let states = &self.json("/api/v1/summary").await["states"];
            states.as_object().is_some_and(|all| all.values().filter_map(Value::as_u64).sum::<u64>() >= units)
        })
        .await;
    }

    /// All devices fall silent.
    pub async fn fall_silent(&mut self) {
        let (stop, running) = self.devices.take().unwrap();
        stop.cancel();
        running.await.unwrap();
    }

    pub async fn text(&self, path: &str) -> (StatusCode, String) {
        let answer = self.client.get(format!("{}{path}", self.url)).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    pub async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await.1).unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) {
        let request = self.client.post(format!("{}{path}", self.url)).body(body.to_string());
        let answer = request.header("content-type", "application/json").send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }

    /// The records, once there are so many.
    pub async fn records(&self, count: usize) -> Vec<OfflineRecord> {
        let read = async || -> Vec<OfflineRecord> {
            serde_json::from_value(self.json("/api/v1/records?limit=1000").await["records"].clone()).unwrap()
        };
        until_so("so many records", async || read().await.len() >= count).await;
        read().await
    }

    /// When the webhook was told, and of what.
    pub fn told(&self) -> Vec<(Timestamp, Value)> {
        let messages = self.messages.lock().unwrap();
        let of_units = |body: &Value| body["type"] == "rollcall.notification";
        messages.iter().filter(|(_, body)| of_units(body)).cloned().collect()
    }

    /// Runs the program with this configuration.
    pub async fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        command.args(arguments).arg("--config").arg(&self.file);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    pub async fn end(self) {
        if let Some((stop, running)) = self.devices {
            stop.cancel();
            running.await.unwrap();
        }
        self.service.end().await;
    }
}

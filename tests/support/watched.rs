//! Rollcall watches a fleet, and Prometheus with the shipped rules watches Rollcall:
//! real processes, on either engine.

use std::path::Path;
use std::time::Duration;

use rollcall::simulate::fleet::{self, FleetConfig, FleetProgress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::simulate::webhook_sink::{Options, WebhookSink};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::prometheus::{self, Prometheus};

/// The fleet and its engine.
pub struct Plan {
    pub name: &'static str,
    /// Whether one instance has the embedded engine and the broker within; otherwise there are Redis and Mosquitto.
    pub embedded: bool,
    pub instances: usize,
    /// The number of units, of which one is silent now and then; 0: no unit ever sends.
    pub units: usize,
    /// How often Prometheus scrapes and evaluates.
    pub every: &'static str,
}

/// All processes, stopped on drop.
pub struct Watched {
    pub name: &'static str,
    _fleet: Option<DropGuard>,
    prometheus: Prometheus,
    _servers: Vec<Server>,
    _receiver: WebhookSink,
    _dir: tempfile::TempDir,
}

impl Watched {
    pub async fn start(plan: &Plan) -> Watched {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let receiver = WebhookSink::start(Options::default()).await.unwrap();
        let mut servers = Vec::new();
        let (engine, broker);
        if plan.embedded {
            let port = free_port().unwrap();
            engine = format!("engine.type = \"embedded\"\nbroker.listen = \"127.0.0.1:{port}\"");
            broker = format!("mqtt://127.0.0.1:{port}");
        } else {
            let durable = ["--appendonly", "yes"];
            let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &durable).unwrap();
            let mosquitto = dir.path().join("mosquitto");
            let mosquitto = Server::mosquitto(&mosquitto, free_port().unwrap(), "sys_interval 10").unwrap();
            broker = format!("mqtt://127.0.0.1:{}", mosquitto.port());
            engine = format!(
                "engine.url = \"redis://127.0.0.1:{}/0\"\nmqtt = {{ url = \"{broker}\", watch_sys = true, share = \"{}\" }}",
                redis.port(),
                if plan.instances > 1 { "watched" } else { "" },
            );
            servers.extend([redis, mosquitto]);
        }
        let ports: Vec<u16> = (0..plan.instances).map(|_| free_port().unwrap()).collect();
        for (number, port) in ports.iter().enumerate() {
            servers.push(instance(
                &dir.path().join(format!("instance-{number}")),
                number,
                *port,
                &engine,
                &receiver,
            ));
        }
        let asks = prometheus::with_rules(&ports, plan.every);
        let prometheus = Prometheus::start(&dir.path().join("prometheus"), &asks);
        let _fleet = (plan.units > 0).then(|| speak(plan.units, &broker));
        Watched { name: plan.name, _fleet, prometheus, _servers: servers, _receiver: receiver, _dir: dir }
    }

    /// The answer of Prometheus to a query; an error fails the test.
    pub async fn ask(&self, query: &str) -> Vec<Value> {
        self.prometheus.query(query).await
    }

    /// Every rule as Prometheus sees it.
    pub async fn rules(&self) -> Vec<Value> {
        let answer = self.prometheus.page("rules", &[]).await;
        let groups = answer["groups"].as_array().unwrap();
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }
}

fn instance(dir: &Path, number: usize, port: u16, engine: &str, receiver: &WebhookSink) -> Server {
    std::fs::create_dir_all(dir).unwrap();
    let text = format!(
        r#"
        {engine}
        instance.name = "instance-{number}"
        http.listen = "127.0.0.1:{port}"
        route = {{ receivers = ["hook"], group_wait = "1s" }}
        kind = [{{ name = "detector", topics = ["units/{{unit}}/heartbeat"], timeout = "30s" }}]
        receiver = [{{ name = "hook", type = "webhook", url = "{}" }}]
        "#,
        receiver.url(),
    );
    std::fs::write(dir.join("rollcall.toml"), text).unwrap();
    let arguments = ["serve".to_owned(), "--config".to_owned(), "rollcall.toml".to_owned()];
    Server::start(env!("CARGO_BIN_EXE_rollcall"), &arguments, dir, port, "listening for http").unwrap()
}

/// A fleet with a heartbeat every few seconds; one unit in a hundred is silent for some minutes.
fn speak(units: usize, broker: &str) -> DropGuard {
    let fleet = FleetConfig {
        units,
        topic: "units/{unit}/heartbeat".to_owned(),
        interval: Duration::from_secs(5),
        silence_chance: 0.000_5,
        silence_for: Duration::from_secs(45)..Duration::from_secs(180),
        qos: 1,
        ..FleetConfig::new(broker)
    };
    let stop = CancellationToken::new();
    tokio::spawn(fleet::run(fleet, watch::Sender::new(FleetProgress::default()), stop.clone()));
    stop.drop_guard()
}

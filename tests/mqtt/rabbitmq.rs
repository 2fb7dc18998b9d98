//! RabbitMQ 4 as the broker of two instances, each with a subscription of its own. RabbitMQ offers no shared
//! subscriptions: a request for one is granted as a topic of that name. `make versions` has RabbitMQ and runs this.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rollcall::simulate::servers::{Server, free_port};
use rollcall::simulate::webhook_sink::{Options, WebhookSink};
use serde_json::Value;
use tokio::process::{Child, Command};

const MAX_WAIT: Duration = Duration::from_secs(120);
const PERIOD: Duration = Duration::from_millis(200);
const UNITS: usize = 20;
/// The units from this one on fall silent.
const SILENT: usize = 15;

fn rabbitmq(dir: &Path) -> Server {
    let [port, other, another] = [(); 3].map(|()| free_port().unwrap());
    let arguments = [port, other, another].map(|port| port.to_string());
    Server::start("rabbitmq-mqtt", &arguments, dir, port, "Server startup complete").unwrap()
}

/// Writes the configuration of an instance into its directory; returns the port of its pages.
fn configure(dir: &Path, name: &str, share: &str, engine: u16, broker: u16, hook: &str) -> u16 {
    let http = free_port().unwrap();
    let text = format!(
        r#"
        engine.url = "redis://127.0.0.1:{engine}/0"
        instance.name = "{name}"
        mqtt = {{ url = "mqtt://127.0.0.1:{broker}", client_id = "{name}", share = "{share}" }}
        http.listen = "127.0.0.1:{http}"
        breaker.enabled = false
        route = {{ receivers = ["hook"], group_by = ["unit"], group_wait = "0s", group_interval = "0s" }}
        kind = [{{ name = "detector", topics = ["units/{{unit}}/heartbeat"], timeout = "3s" }}]
        receiver = [{{ name = "hook", type = "webhook", url = "{hook}" }}]
        "#
    );
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("rollcall.toml"), text).unwrap();
    http
}

fn rollcall(dir: &Path, command: &str) -> Command {
    let mut rollcall = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    rollcall.arg(command).current_dir(dir).kill_on_drop(true);
    rollcall
}

fn serve(dir: &Path) -> Child {
    let log = std::fs::File::create(dir.join("log")).unwrap();
    rollcall(dir, "serve").stderr(log).stdout(Stdio::null()).spawn().unwrap()
}

async fn until(what: &str, mut fact: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !fact().await {
            tokio::time::sleep(PERIOD).await;
        }
    };
    assert!(tokio::time::timeout(MAX_WAIT, waited).await.is_ok(), "never came true: {what}");
}

/// Sends a heartbeat of each of these units.
async fn beat(broker: u16, units: std::ops::Range<usize>) {
    for unit in units {
        let topic = format!("units/unit-{unit}/heartbeat");
        let mut sent = Command::new("mosquitto_pub");
        sent.args(["-V", "mqttv5", "-q", "1", "-p", &broker.to_string(), "-t", &topic, "-m", "{}"]);
        assert!(sent.status().await.unwrap().success());
    }
}

/// The units that were notified, as `offline` or `online`.
fn notified(sink: &WebhookSink, what: &str) -> Vec<String> {
    let all = sink.received().into_iter().map(|one| one.json());
    let named = all.flat_map(|one| one["data"][what].as_array().cloned().unwrap_or_default());
    let mut units: Vec<String> = named.map(|one: Value| one["unit"].as_str().unwrap().to_owned()).collect();
    units.sort();
    units
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "`make versions` has RabbitMQ and runs it"]
async fn two_instances_hear_a_fleet_on_rabbitmq_and_notify_each_silence_once() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
    let broker = rabbitmq(&dir.path().join("broker"));
    let sink = WebhookSink::start(Options::default()).await.unwrap();
    let start = |name| {
        let dir = dir.path().join(name);
        let http = configure(&dir, name, "", redis.port(), broker.port(), &sink.url());
        (http, serve(&dir))
    };
    let (mut one, two) = (start("one"), start("two"));
    let client = reqwest::Client::new();
    let page =
        async |port: u16, page: &str| client.get(format!("http://127.0.0.1:{port}{page}")).send().await;
    for port in [one.0, two.0] {
        until("it is ready", async || page(port, "/readyz").await.is_ok_and(|answer| answer.status() == 200))
            .await;
    }
    let heard = async |port: u16| {
        let text = page(port, "/metrics").await.unwrap().text().await.unwrap();
        text.lines().any(|line| {
            let count =
                line.strip_prefix("rollcall_heartbeats_total").and_then(|rest| rest.rsplit(' ').next());
            count.is_some_and(|count| count != "0")
        })
    };
    until("both hear", async || {
        beat(broker.port(), 0..UNITS).await;
        heard(one.0).await && heard(two.0).await
    })
    .await;
    let silent: Vec<String> = (SILENT..UNITS).map(|unit| format!("unit-{unit}")).collect();
    until("each silence is notified", async || {
        beat(broker.port(), 0..SILENT).await;
        notified(&sink, "offline") == silent
    })
    .await;
    // The other instance continues alone.
    one.1.kill().await.unwrap();
    until("each return is notified", async || {
        beat(broker.port(), 0..UNITS).await;
        notified(&sink, "online") == silent
    })
    .await;
    assert_eq!(notified(&sink, "offline"), silent, "no other unit, and none twice");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "`make versions` has RabbitMQ and runs it"]
async fn a_member_of_a_share_says_that_rabbitmq_offers_no_shared_subscriptions() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
    let broker = rabbitmq(&dir.path().join("broker"));
    let dir = dir.path().join("member");
    let http = configure(&dir, "member", "fleet", redis.port(), broker.port(), "http://127.0.0.1:9/");
    let _member = serve(&dir);
    let said =
        "offers no shared subscriptions, and says so when it accepts the connection; leave mqtt.share empty";
    until("it says why it does not hear", async || {
        let answer = reqwest::get(format!("http://127.0.0.1:{http}/readyz")).await;
        match answer {
            Ok(answer) => answer.status() == 503 && answer.text().await.is_ok_and(|text| text.contains(said)),
            Err(_) => false,
        }
    })
    .await;
    let checked = rollcall(&dir, "check").output().await.unwrap();
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    let is_named = |line: &str| line.starts_with("FAIL") && line.contains(said);
    assert!(checked.lines().any(is_named), "{checked}");
}

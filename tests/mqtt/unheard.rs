//! A broker that grants subscriptions and withholds messages; kinds and topics that come and go. Time that was not
//! heard is not a silence, and is reported within seconds.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollcall::simulate::servers::{Server, free_port};
use rumqttc::{AsyncClient, MqttOptions, PublishOptions, QoS};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::support::facts::until;
use crate::support::redis::Redis;

const TIMEOUT: Duration = Duration::from_secs(3);

/// The number of canaries of that timeout in three timeouts.
const THREE_TIMEOUTS: f64 = 60.0;

const READS: &str = "topic read units/+/heartbeat\ntopic read meters/#\n";
pub(super) const WRITES: &str = "topic write units/rollcall-probe/heartbeat\ntopic write meters/#\n";

/// The engine of a fleet.
pub(super) enum Engine {
    Redis(Redis),
    Embedded,
}

/// A broker with rules for Rollcall, and a fleet that beats.
pub(super) struct World {
    dir: TempDir,
    pub(super) broker: Server,
    /// The port by which Rollcall reaches the broker, if it is not the broker's own.
    pub(super) way: Option<u16>,
    engine: Engine,
    beating: Vec<JoinHandle<()>>,
}

impl World {
    pub(super) fn new(engine: Engine) -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = TempDir::new().unwrap();
        let rules = dir.path().join("rules");
        write_rules(&rules, &[READS, WRITES]);
        let more = format!("acl_file {}", rules.display());
        let broker = Server::mosquitto(&dir.path().join("broker"), free_port().unwrap(), &more).unwrap();
        World { dir, broker, way: None, engine, beating: Vec::new() }
    }

    /// Replaces the access rules of the broker.
    pub(super) fn rules(&self, rules: &[&str]) {
        write_rules(&self.dir.path().join("rules"), rules);
        let hup = Command::new("kill").args(["-HUP", &self.broker.pid().to_string()]).status();
        assert!(hup.unwrap().success());
    }

    /// Units send heartbeats on their topics until the returned flag is set.
    fn beat(&mut self, topics: Vec<String>) -> Arc<AtomicBool> {
        let silent = Arc::new(AtomicBool::new(false));
        let (until, port) = (silent.clone(), self.broker.port());
        self.beating.push(tokio::spawn(async move {
            let options =
                MqttOptions::new(format!("device-{:x}", rand::random::<u32>()), ("127.0.0.1", port));
            let (client, mut events) = AsyncClient::builder(options).capacity(64).build();
            let follow = tokio::spawn(async move { while events.poll().await.is_ok() {} });
            while !until.load(Ordering::Relaxed) {
                for topic in &topics {
                    let options = PublishOptions::new(QoS::AtLeastOnce);
                    client.publish(topic.clone(), "", options).await.unwrap();
                }
                tokio::time::sleep(TIMEOUT / 16).await;
            }
            follow.abort();
        }));
        silent
    }

    /// Twenty units that live, and a unit that dies when the returned flag is set.
    pub(super) fn fleet(&mut self) -> Arc<AtomicBool> {
        let topic = |name: &str| format!("units/{name}/heartbeat");
        self.beat((0..20).map(|n| topic(&format!("alive-{n}"))).collect());
        self.beat(vec![topic("dies")])
    }

    /// A Rollcall process with these kinds.
    pub(super) fn serve(&self, name: &str, kinds: &str) -> Rollcall {
        Rollcall::start(self, name, kinds, "")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.beating.iter().for_each(JoinHandle::abort);
    }
}

fn write_rules(file: &Path, rules: &[&str]) {
    let rules = rules.concat();
    let text = format!(
        "topic write units/#\ntopic write meters/#\nuser rollcall\ntopic readwrite rollcall/canary/#\n{rules}"
    );
    std::fs::write(file, text).unwrap();
}

pub(super) const DETECTORS: &str =
    "[[kind]]\nname = \"detector\"\ntopics = [\"units/{unit}/heartbeat\"]\ntimeout = \"3s\"\n";
const METERS: &str = "[[kind]]\nname = \"meter\"\ntopics = [\"meters/{unit}\"]\ntimeout = \"3s\"\n";

/// A process of `rollcall serve`.
pub(super) struct Rollcall {
    child: Child,
    http: u16,
    log: std::path::PathBuf,
}

impl Rollcall {
    pub(super) fn start(world: &World, name: &str, kinds: &str, mqtt: &str) -> Rollcall {
        let http = free_port().unwrap();
        let engine = match &world.engine {
            Engine::Redis(redis) => format!("url = \"{}\"", redis.url()),
            Engine::Embedded => "type = \"embedded\"\npath = \"fleet\"".to_owned(),
        };
        let text = format!(
            "[engine]\n{engine}\n[mqtt]\nurl = \"mqtt://127.0.0.1:{}\"\nusername = \"rollcall\"\n\
             password_file = \"password\"\n{mqtt}\n[http]\nlisten = \"127.0.0.1:{http}\"\n{kinds}",
            world.way.unwrap_or(world.broker.port())
        );
        let dir = world.dir.path();
        std::fs::write(dir.join("password"), "secret").unwrap();
        std::fs::write(dir.join(format!("{name}.toml")), text).unwrap();
        let log = dir.join(format!("{name}.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_rollcall"))
            .args(["serve", "--config", &format!("{name}.toml")])
            .current_dir(dir)
            .env_remove("RUST_LOG")
            .stdout(Stdio::null())
            .stderr(std::fs::File::options().create(true).append(true).open(&log).unwrap())
            .spawn()
            .unwrap();
        Rollcall { child, http, log }
    }

    /// Stops the process (SIGSTOP): it keeps its connections and reads nothing.
    fn freeze(&self) {
        let stopped = Command::new("kill").args(["-STOP", &self.child.id().to_string()]).status();
        assert!(stopped.unwrap().success());
    }

    async fn get(&self, path: &str) -> Option<(u16, String)> {
        let answer = crate::support::http::get(format!("http://127.0.0.1:{}{path}", self.http)).await.ok()?;
        Some((answer.status().as_u16(), answer.text().await.ok()?))
    }

    /// Whether `/readyz` answers with this status and contains all of these parts.
    pub(super) async fn readyz(&self, status: u16, says: &[&str]) -> bool {
        let answer = self.get("/readyz").await;
        answer.is_some_and(|(is, text)| is == status && says.iter().all(|says| text.contains(says)))
    }

    pub(super) async fn is_ready(&self) {
        until("it is ready", async || self.readyz(200, &[]).await).await;
    }

    /// The sum of the series of a metric.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let (_, page) = self.get("/metrics").await.unwrap();
        let begins = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let lines: Vec<&str> = page.lines().filter(begins).collect();
        assert!(!lines.is_empty(), "{name} is not in {page}");
        lines.iter().map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Waits while canaries return.
    pub(super) async fn hears_on(&self, canaries: f64) {
        let name = "rollcall_canary_round_trip_seconds_count";
        let before = self.metric(name).await;
        until("canaries come back", async || self.metric(name).await >= before + canaries).await;
    }

    /// The units of all records, one for each record.
    pub(super) async fn offline(&self) -> Vec<String> {
        let (_, text) = self.get("/api/v1/records?limit=1000").await.unwrap();
        let page: Value = serde_json::from_str(&text).unwrap();
        let records = page["records"].as_array().unwrap_or_else(|| panic!("{text}"));
        records.iter().map(|record| record["unit"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) async fn knows(&self, unit: &str) {
        let path = format!("/api/v1/units/{unit}");
        until(unit, async || self.get(&path).await.is_some_and(|(status, _)| status == 200)).await;
    }

    /// The output of `rollcall check` with its configuration.
    pub(super) fn check(&self) -> String {
        let file = self.log.with_extension("toml");
        let said =
            Command::new(env!("CARGO_BIN_EXE_rollcall")).arg("check").arg("--config").arg(file).output();
        String::from_utf8_lossy(&said.unwrap().stdout).into_owned()
    }

    /// Lines of the log that contain all of these parts.
    pub(super) fn lines(&self, holds: &[&str]) -> usize {
        let log = std::fs::read_to_string(&self.log).unwrap();
        log.lines().filter(|line| holds.iter().all(|holds| line.contains(holds))).count()
    }

    /// Stops the process with SIGTERM.
    fn stop(mut self) {
        let term = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(term.unwrap().success() && self.child.wait().unwrap().success());
    }
}

impl Drop for Rollcall {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the dead unit is reported once, and checks that no living unit is.
async fn the_dead_and_no_other(rollcall: &Rollcall) {
    until("the dead unit is reported", async || !rollcall.offline().await.is_empty()).await;
    rollcall.hears_on(THREE_TIMEOUTS).await;
    assert_eq!(rollcall.offline().await, ["dies"]);
}

pub(super) const REASON: &[&str] =
    &["units/+/heartbeat is not heard", "kind detector", "allow rollcall to read units/+/heartbeat"];

/// `withheld`: the access rules that withhold the fleet.
async fn heartbeats_that_a_broker_withholds_are_no_silence(engine: Engine, withheld: &[&str]) {
    let mut world = World::new(engine);
    let dies = world.fleet();
    let one = world.serve("one", DETECTORS);
    one.is_ready().await;
    one.knows("detector/dies").await;
    one.knows("detector/alive-19").await;
    assert_eq!(one.metric("rollcall_kinds_unheard").await, 0.0);
    // The messages are withheld while Rollcall runs; canaries return all the time.
    world.rules(withheld);
    until("it says so", async || one.readyz(503, REASON).await).await;
    assert_eq!(one.metric("rollcall_kinds_unheard").await, 1.0);
    dies.store(true, Ordering::Relaxed);
    one.hears_on(THREE_TIMEOUTS).await;
    assert_eq!(one.lines(&["ERROR", REASON[0]]), 1);
    assert_eq!(one.offline().await, Vec::<String>::new());
    one.stop();
    // The messages are withheld from the start.
    let two = world.serve("two", DETECTORS);
    until("it says so at once", async || two.readyz(503, REASON).await).await;
    two.hears_on(THREE_TIMEOUTS).await;
    assert_eq!(two.offline().await, Vec::<String>::new());
    assert_eq!(two.lines(&["ERROR", REASON[0]]), 1);
    let checks = two.metric("rollcall_deadline_checks_total").await;
    two.hears_on(THREE_TIMEOUTS).await;
    let checks = two.metric("rollcall_deadline_checks_total").await - checks;
    assert!(checks < 21.0 * THREE_TIMEOUTS / 4.0, "{checks} checks without result");
    world.rules(&[READS, WRITES]);
    two.is_ready().await;
    assert_eq!(two.metric("rollcall_kinds_unheard").await, 0.0);
    the_dead_and_no_other(&two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_a_broker_withholds_are_no_silence_on_redis() {
    heartbeats_that_a_broker_withholds_are_no_silence(Engine::Redis(Redis::start()), &[WRITES]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_a_broker_withholds_are_no_silence_on_the_embedded_engine() {
    heartbeats_that_a_broker_withholds_are_no_silence(Engine::Embedded, &[WRITES]).await;
}

/// The broker delivers neither the fleet nor probes: its answer does not show the read rights of Rollcall.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_grants_rollcall_only_its_canary_marks_no_unit_offline() {
    heartbeats_that_a_broker_withholds_are_no_silence(Engine::Embedded, &[]).await;
}

/// Only units of the withheld kind wait; the others are detected as usual.
#[tokio::test(flavor = "multi_thread")]
async fn another_kind_is_reported_as_usual_while_one_is_withheld() {
    let mut world = World::new(Engine::Embedded);
    world.fleet();
    let meter = world.beat(vec!["meters/one".to_owned()]);
    let rollcall = world.serve("one", &format!("{DETECTORS}{METERS}"));
    rollcall.is_ready().await;
    rollcall.knows("meter/one").await;
    world.rules(&[WRITES, "topic read meters/#\n"]);
    until("it says so", async || rollcall.readyz(503, REASON).await).await;
    assert_eq!(rollcall.metric("rollcall_kinds_unheard").await, 1.0, "of two");
    meter.store(true, Ordering::Relaxed);
    until("the meter is reported", async || rollcall.offline().await == ["one"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_probe_may_be_published_heartbeats_are_proof_and_a_warning_names_the_right() {
    let mut world = World::new(Engine::Embedded);
    world.rules(&[READS]);
    let dies = world.fleet();
    let rollcall = world.serve("one", DETECTORS);
    let right = "allow rollcall to read units/+/heartbeat and to write units/rollcall-probe/heartbeat";
    until("it works, and says what it cannot know", async || {
        rollcall.readyz(200, &["topic_not_proved", right]).await
    })
    .await;
    assert_eq!(rollcall.metric("rollcall_filters_unproved").await, 1.0);
    rollcall.knows("detector/dies").await;
    dies.store(true, Ordering::Relaxed);
    the_dead_and_no_other(&rollcall).await;
    assert_eq!(rollcall.lines(&["WARN", right]), 1);
    assert_eq!(rollcall.metric("rollcall_mqtt_connections_lost_total").await, 0.0);
}

/// Units send heartbeats all the time, also without a subscription to their topics; one of them dies then.
async fn heartbeats_that_were_not_subscribed_are_no_silence(engine: Engine) {
    let mut world = World::new(engine);
    let dies = world.fleet();
    let one = world.serve("one", &format!("{DETECTORS}{METERS}"));
    one.is_ready().await;
    one.knows("detector/dies").await;
    one.stop();
    let two = world.serve("two", METERS);
    two.is_ready().await;
    dies.store(true, Ordering::Relaxed);
    two.hears_on(THREE_TIMEOUTS).await;
    two.stop();
    let three = world.serve("three", &format!("{DETECTORS}{METERS}"));
    three.is_ready().await;
    the_dead_and_no_other(&three).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_was_out_of_the_configuration_is_not_offline_on_redis() {
    heartbeats_that_were_not_subscribed_are_no_silence(Engine::Redis(Redis::start())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_was_out_of_the_configuration_is_not_offline_on_the_embedded_engine() {
    heartbeats_that_were_not_subscribed_are_no_silence(Engine::Embedded).await;
}

/// Units still send heartbeats on a topic that is replaced by another one, and is configured again.
async fn a_topic_that_is_removed_is_no_silence(engine: Engine) {
    let mut world = World::new(engine);
    world.rules(&["topic readwrite units/#\ntopic readwrite spare/#\n"]);
    let dies = world.fleet();
    let one = world.serve("one", DETECTORS);
    one.is_ready().await;
    one.knows("detector/dies").await;
    one.knows("detector/alive-19").await;
    one.stop();
    let two = world.serve("two", &DETECTORS.replace("units/{unit}/heartbeat", "spare/{unit}"));
    let says = ["topic_removed", "units/+/heartbeat, by which units of kind detector were heard"];
    until("it says so", async || two.readyz(200, &says).await).await;
    dies.store(true, Ordering::Relaxed);
    two.hears_on(THREE_TIMEOUTS / 2.0).await;
    assert_eq!(two.offline().await, Vec::<String>::new());
    assert_eq!(two.lines(&["WARN", says[1]]), 1);
    two.stop();
    let three = world.serve("three", DETECTORS);
    three.is_ready().await;
    the_dead_and_no_other(&three).await;
    assert!(!three.readyz(200, &says).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_removed_marks_no_unit_offline_on_redis() {
    a_topic_that_is_removed_is_no_silence(Engine::Redis(Redis::start())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_removed_marks_no_unit_offline_on_the_embedded_engine() {
    a_topic_that_is_removed_is_no_silence(Engine::Embedded).await;
}

/// Timeouts of 1 s, 4 s and 48 h: on a machine of any speed, no kind is blind while the fleet is heard, except for
/// up to the interval of its probes.
#[tokio::test(flavor = "multi_thread")]
async fn no_kind_is_blind_while_the_fleet_is_heard() {
    let world = World::new(Engine::Redis(Redis::start()));
    world.rules(&["topic readwrite units/#\ntopic readwrite fleet/#\n"]);
    let kinds = [("fast", "1s"), ("slow", "4s"), ("lazy", "48h")];
    let kinds = kinds.map(|(name, timeout)| {
        format!(
            "[[kind]]\nname = \"{name}\"\ntopics = [\"fleet/{name}/{{unit}}\"]\ntimeout = \"{timeout}\"\n"
        )
    });
    let one = Rollcall::start(&world, "one", &kinds.concat(), "share = \"all\"\nclient_id = \"one\"");
    one.is_ready().await;
    let two = Rollcall::start(&world, "two", &kinds.concat(), "share = \"all\"\nclient_id = \"two\"");
    two.is_ready().await;
    two.hears_on(200.0).await;
    let Engine::Redis(redis) = &world.engine else { unreachable!() };
    let mut client = redis.client();
    let mut intervals = |key: &str| -> Vec<(i64, i64)> {
        let key = format!("rollcall:{{hearing}}:{key}");
        let all: Vec<String> = ::redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).query(&mut client).unwrap();
        let parse = |text: &String| {
            let (from, to) = text.split_once(' ').unwrap();
            (from.parse().unwrap(), to.parse().unwrap())
        };
        all.iter().map(parse).collect()
    };
    let mut beyond = |gaps: [(&str, i64); 3]| {
        let fleet = intervals("blind");
        for (kind, gap) in gaps {
            for (from, to) in intervals(&format!("blind:{kind}")) {
                let covered: i64 =
                    fleet.iter().map(|(begin, end)| (to.min(*end) - from.max(*begin)).max(0)).sum();
                assert!(to - from - covered <= gap, "{kind} {from} {to}, the fleet {fleet:?}");
            }
        }
        fleet.len()
    };
    let quiet = beyond([("fast", 0), ("slow", 0), ("lazy", 0)]);
    println!("{quiet} blind intervals of the fleet while nothing happened");
    // One instance is killed with messages that it has not read, then the broker.
    two.freeze();
    one.hears_on(10.0).await;
    drop(two);
    let alone = "rollcall_instances";
    until("it is alone", async || one.metric(alone).await == 1.0).await;
    one.hears_on(100.0).await;
    let mut world = world;
    let (port, dir) = (world.broker.port(), world.dir.path().join("broker"));
    world.broker.kill();
    world.broker = Server::mosquitto(&dir, port, "").unwrap();
    one.is_ready().await;
    one.hears_on(100.0).await;
    beyond([("fast", 1_000), ("slow", 1_000), ("lazy", 15_000)]);
}

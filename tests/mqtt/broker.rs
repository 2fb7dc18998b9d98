//! The listener, with the clients of Mosquitto, and with raw packets. Its messages are recorded by an embedded engine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::config::{self, EngineConfig};
use rollcall::fleet::{Mirror, Roll, Timers};
use rollcall::intake::listener::{Config, Listener, ListenerTls};
use rollcall::intake::{self, ValueBuffer};
use rollcall::simulate::servers::free_port;
use rollcall::store::Engine;
use rollcall::store::embedded::EmbeddedEngine;
use rollcall::telemetry::Telemetry;
use rollcall::trust::ServerFiles;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::served::{Killed, Served, value};
use crate::support::metrics;

pub const MAX_WAIT: Duration = Duration::from_secs(120);

/// A running listener.
pub struct World {
    dir: TempDir,
    telemetry: Arc<Telemetry>,
    pub port: u16,
    running: Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
}

pub fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_on_a_topic_that_no_kind_has_is_noted() {
    let world = World::new(|_, _| {}).await;
    for topic in ["units/1/heartbeat", "devices/1/state", "devices/1/state", "rollcall/x"] {
        world.publish(&["-q", "1", "-t", topic, "-m", "x"]);
    }
    let noted = world.telemetry.unknown_topics();
    assert_eq!(noted.topics.len(), 1, "{noted:?}");
    assert_eq!((noted.topics[0].topic.as_str(), noted.topics[0].messages), ("devices/1/state", 2));
}

fn plain(port: u16) -> Config {
    Config {
        listen: Some(loopback(port)),
        websocket_listen: None,
        tls: None,
        password_file: None,
        rules_file: None,
        own_client_id: "rollcall".to_owned(),
        max_connections: 100,
        max_packet: 4096,
        max_rate: 0,
        max_bytes_per_second: 0,
    }
}

/// A listener for TLS, with certificates of its own.
fn tls(port: u16, dir: &Path) -> ListenerTls {
    certificates(dir);
    ListenerTls {
        listen: Some(loopback(port)),
        websocket_listen: None,
        files: ServerFiles { cert: dir.join("server.pem"), key: dir.join("server.key"), client_ca: None },
    }
}

/// Records the messages that arrive at a listener.
async fn records(
    dir: PathBuf,
    listener: Listener,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let text = "engine = { type = \"embedded\", path = \"fleet\" }\nmqtt.timers = true\n\
                [[timer]]\ntype = \"report-due\"\nreceivers = [\"hook\"]\n\
                [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"http://127.0.0.1:9\"\n";
    let config = config::parse(text, None, [])?;
    let EngineConfig::Embedded(mut embedded) = config.engine else { panic!("it is embedded") };
    embedded.path = dir.join("fleet");
    let engine: Arc<dyn Engine> = Arc::new(EmbeddedEngine::open(&embedded, telemetry.clone()).await?);
    let rules = Arc::new(config.rules);
    let mirror = Arc::new(Mirror::of(&*engine, rules.clone(), &[]));
    let (clock, grew) = (Clock::system(), Arc::default());
    let roll = Roll::new(engine.clone(), rules, mirror, telemetry.clone(), config.hearing, grew);
    let timers = Timers::new(engine, config.timers, Arc::default(), telemetry.clone());
    let (roll, timers) = (Arc::new(roll), Arc::new(timers));
    let intake = config.intake.into_iter().next().unwrap();
    let values = ValueBuffer::new(&config.metrics, telemetry.clone()).map(Arc::new);
    intake::run((intake, Some(listener), None), roll, values, timers, clock, telemetry, stop).await
}

impl World {
    pub async fn new(change: impl FnOnce(&mut Config, &Path)) -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
        let mut config = plain(port);
        change(&mut config, dir.path());
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        let listener = Listener::bind(&config, telemetry.clone()).await.unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(records(dir.path().to_owned(), listener, telemetry.clone(), stop.clone()));
        let world = World { dir, telemetry, port, running: Some((stop, running)) };
        world.until("it answers", || TcpStream::connect(loopback(port)).is_ok()).await;
        world
    }

    async fn until(&self, what: &str, mut fact: impl FnMut() -> bool) {
        let awaited = async {
            while !fact() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(MAX_WAIT, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
    }

    /// The value of a counter, such as `broker_refused_total login`.
    pub fn counted(&self, what: &str) -> u64 {
        let (name, reason) = what.split_once(' ').map_or((what, None), |(name, reason)| (name, Some(reason)));
        let labels: Vec<&str> = reason.into_iter().collect();
        metrics::sum(&self.telemetry, &format!("rollcall_{name}"), &labels).expect(what) as u64
    }

    /// Publishes once, as a device does, and returns the result.
    pub fn publish(&self, arguments: &[&str]) -> Output {
        client("mosquitto_pub", self.port, arguments).output().unwrap()
    }

    pub async fn hear(&self, arguments: &[&str]) -> Subscription {
        Subscription::new(client("mosquitto_sub", self.port, arguments)).await
    }

    async fn stop(&mut self) {
        let (stop, running) = self.running.take().unwrap();
        stop.cancel();
        tokio::time::timeout(MAX_WAIT, running).await.expect("it ends").unwrap().unwrap();
    }
}

fn client(program: &str, port: u16, arguments: &[&str]) -> Command {
    // The output comes line by line, also into a pipe.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", program, "-h", "127.0.0.1"]);
    if !arguments.contains(&"-p") {
        command.args(["-p", &port.to_string()]);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A subscriber; hears lines of `topic payload`.
pub struct Subscription {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Subscription {
    /// Returns when the broker has granted the subscription.
    async fn new(mut command: Command) -> Subscription {
        let mut child = command.args(["-v", "-d"]).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let subscription = Subscription { child, lines };
        subscription.line(|line| line.contains("SUBACK") || line.starts_with("Subscribed"));
        subscription
    }

    fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.lines.recv_timeout(MAX_WAIT).expect("a line that is wanted");
            if wanted(&line) {
                return line;
            }
        }
    }

    /// The next message.
    pub fn message(&self) -> String {
        self.line(|line| !line.starts_with("Client ") && !line.starts_with("Subscribed"))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn users(dir: &Path) -> PathBuf {
    let file = dir.join("users");
    for (name, more) in [("gateway", "-c"), ("reader", "-b")] {
        let mut made = Command::new("mosquitto_passwd");
        if more == "-c" {
            made.arg("-c");
        }
        assert!(made.arg("-b").arg(&file).args([name, "secret"]).status().unwrap().success());
    }
    file
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_of_both_versions_and_both_qualities_are_heard() {
    let mut world = World::new(|_, _| {}).await;
    let subscription = world.hear(&["-t", "units/#", "-q", "1", "-V", "mqttv5"]).await;
    for (version, qos) in [("mqttv311", "0"), ("mqttv311", "1"), ("mqttv5", "0"), ("mqttv5", "1")] {
        let payload = format!("{version}-{qos}");
        let sent = world.publish(&["-V", version, "-q", qos, "-t", "units/a/heartbeat", "-m", &payload]);
        assert!(sent.status.success(), "{}", text(&sent));
        assert_eq!(subscription.message(), format!("units/a/heartbeat {payload}"));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_will_of_a_device_that_is_cut_off_is_heard() {
    let world = World::new(|_, _| {}).await;
    let subscription = world.hear(&["-t", "wills/#"]).await;
    let will = ["--will-topic", "wills/a", "--will-payload", "gone", "--will-qos", "1"];
    let device = world.hear(&[&["-t", "x", "-i", "a"], &will[..]].concat()).await;
    drop(device);
    assert_eq!(subscription.message(), "wills/a gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_users_of_the_file_get_in_and_only_where_the_rules_let_them() {
    let world = World::new(|config, dir| {
        config.password_file = Some(users(dir));
        let rules = dir.join("rules");
        let text = "user gateway\ntopic write units/+/heartbeat\nuser reader\ntopic read units/#\n";
        std::fs::write(&rules, text).unwrap();
        config.rules_file = Some(rules);
    })
    .await;
    let beat = ["-q", "1", "-V", "mqttv5", "-t", "units/a/heartbeat", "-m", "1"];
    for login in [&[][..], &["-u", "gateway", "-P", "wrong"], &["-u", "rollcall-inside", "-P", ""]] {
        let refused = world.publish(&[login, &beat].concat());
        assert!(!refused.status.success(), "{login:?}: {}", text(&refused));
    }
    assert_eq!(world.counted("broker_refused_total login"), 3);
    let subscription = world.hear(&["-u", "reader", "-P", "secret", "-t", "units/#"]).await;
    let gateway = ["-u", "gateway", "-P", "secret"];
    let elsewhere = ["-q", "1", "-V", "mqttv5", "-t", "units/a/data", "-m", "2"];
    let refused = world.publish(&[&gateway[..], &elsewhere].concat());
    assert!(text(&refused).contains("Not authorized"), "{}", text(&refused));
    assert!(world.publish(&[&gateway[..], &beat].concat()).status.success());
    assert_eq!(subscription.message(), "units/a/heartbeat 1");
    let greedy = ["-u", "gateway", "-P", "secret", "-t", "units/#", "-V", "mqttv5", "-E"];
    let refused = client("mosquitto_sub", world.port, &greedy).output().unwrap();
    assert!(text(&refused).contains("denied"), "{}", text(&refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rules_only_rollcall_speaks_and_hears_below_rollcall() {
    let world = World::new(|_, _| {}).await;
    let sent = world.publish(&["-q", "1", "-V", "mqttv5", "-t", "rollcall/canary/x", "-m", "{}"]);
    assert!(text(&sent).contains("Not authorized"), "{}", text(&sent));
    for filter in
        ["#", "+/#", "+/canary/#", "rollcall/#", "rollcall/+/x", "rollcall", "$share/g/#", "$share/g/+/a/b"]
    {
        let asked =
            client("mosquitto_sub", world.port, &["-V", "mqttv5", "-E", "-t", filter]).output().unwrap();
        assert!(text(&asked).contains("denied"), "{filter}: {}", text(&asked));
    }
    assert_eq!(world.counted("broker_refused_total publish"), 1);
    assert_eq!(world.counted("broker_refused_total subscribe"), 8);
    let alert = world.publish(&["-q", "1", "-V", "mqttv5", "-t", "rollcall/alerts/det/u1", "-m", "{}"]);
    assert!(alert.status.success(), "{}", text(&alert));
    for filter in
        ["units/#", "units/+/data", "$share/g/units/#", "rollcall/alerts/#", "$share/g/rollcall/alerts/+/u1"]
    {
        let asked =
            client("mosquitto_sub", world.port, &["-V", "mqttv5", "-E", "-t", filter]).output().unwrap();
        assert!(!text(&asked).contains("denied"), "{filter}: {}", text(&asked));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packet_that_is_too_large_is_refused_and_others_are_accepted() {
    let world = World::new(|_, _| {}).await;
    let subscription = world.hear(&["-t", "units/#"]).await;
    let large = "x".repeat(5000);
    let refused = world.publish(&["-q", "1", "-t", "units/a/data", "-m", &large]);
    assert!(!refused.status.success(), "{}", text(&refused));
    assert!(world.counted("broker_refused_total packet") >= 1);
    assert!(world.publish(&["-q", "1", "-t", "units/a/data", "-m", "small"]).status.success());
    assert_eq!(subscription.message(), "units/a/data small");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_clients_than_allowed_are_refused_and_room_is_made_by_those_that_leave() {
    let world = World::new(|config, _| config.max_connections = 2).await;
    let first = world.hear(&["-t", "a"]).await;
    let _second = world.hear(&["-t", "b"]).await;
    let beat = ["-q", "1", "-t", "units/a/data", "-m", "1"];
    assert!(!world.publish(&beat).status.success());
    drop(first);
    world.until("there is room again", || world.publish(&beat).status.success()).await;
}

/// Sends `count` messages on one connection and returns the result.
fn flood(port: u16, version: &str, qos: &str, count: usize) -> Output {
    let arguments = ["-V", version, "-q", qos, "-t", "units/a/data", "-l"];
    let mut child = client("mosquitto_pub", port, &arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = child.stdin.take().unwrap();
    let text: String = (0..count).map(|number| format!("{number}\n")).collect();
    lines.write_all(text.as_bytes()).unwrap();
    drop(lines);
    child.wait_with_output().unwrap()
}

/// Checks that every message is heard, in order and once.
fn hears_all(subscription: &Subscription, count: usize) {
    for number in 0..count {
        assert_eq!(subscription.message(), format!("units/a/data {number}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_too_fast_is_throttled_and_loses_nothing() {
    let world = World::new(|config, _| config.max_rate = 1000).await;
    let subscription = world.hear(&["-t", "units/#", "-q", "1"]).await;
    for (version, qos) in [("mqttv311", "1"), ("mqttv311", "0"), ("mqttv311", "2"), ("mqttv5", "1")] {
        let sent = flood(world.port, version, qos, 4000);
        assert!(sent.status.success(), "{version} {qos}: {}", text(&sent));
        hears_all(&subscription, 4000);
    }
    assert!(world.counted("broker_held_back_total") > 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_throttled_delays_no_other() {
    let world = World::new(|config, _| config.max_rate = 1).await;
    let subscription = world.hear(&["-t", "units/#", "-q", "1"]).await;
    let mut slow = client(
        "mosquitto_pub",
        world.port,
        &["-q", "1", "-t", "units/a/data", "-m", "1", "--repeat", "1000"],
    );
    let mut slow = slow.spawn().unwrap();
    assert_eq!(subscription.message(), "units/a/data 1");
    assert!(world.publish(&["-q", "1", "-t", "units/b/data", "-m", "1"]).status.success());
    // A thousand messages of this client would take a quarter of an hour.
    let heard = (0..1000).map(|_| subscription.message()).position(|line| line == "units/b/data 1");
    assert!(heard.is_some_and(|before| before < 900), "{heard:?}");
    slow.kill().unwrap();
    slow.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_every_quality_arrive_once_also_at_two() {
    let world = World::new(|_, _| {}).await;
    let subscription = world.hear(&["-t", "units/#", "-q", "2"]).await;
    for version in ["mqttv311", "mqttv5"] {
        for (qos, number) in [("2", "0"), ("1", "1"), ("0", "2"), ("2", "3")] {
            let sent = world.publish(&["-V", version, "-q", qos, "-t", "units/a/data", "-m", number]);
            assert!(sent.status.success(), "{}", text(&sent));
        }
        hears_all(&subscription, 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_messages_of_devices_are_not_retained() {
    let world = World::new(|_, _| {}).await;
    let subscription = world.hear(&["-t", "units/#", "-q", "1"]).await;
    for version in ["mqttv311", "mqttv5"] {
        // The heartbeat is heard, also as a will, and not retained.
        let beat = ["-V", version, "-r", "-q", "1", "-t", "units/a/data", "-m", "kept"];
        assert!(world.publish(&beat).status.success());
        assert_eq!(subscription.message(), "units/a/data kept");
        let will = ["--will-topic", "units/a/will", "--will-payload", "gone", "--will-retain"];
        drop(world.hear(&[&["-V", version, "-t", "x", "-i", "a"], &will[..]].concat()).await);
        assert_eq!(subscription.message(), "units/a/will gone");
    }
    assert_eq!(world.counted("broker_refused_total retained"), 4);
    let late = world.hear(&["-t", "units/#", "-q", "1"]).await;
    assert!(world.publish(&["-q", "1", "-t", "units/b/data", "-m", "live"]).status.success());
    assert_eq!(late.message(), "units/b/data live");

    // A session ends with its connection.
    let asleep = ["-V", "mqttv311", "-c", "-i", "sleeper", "-q", "1", "-t", "units/#"];
    let once = [&asleep[..], &["-E"]].concat();
    assert!(client("mosquitto_sub", world.port, &once).output().unwrap().status.success());
    assert!(world.publish(&["-q", "1", "-t", "units/c/data", "-m", "meanwhile"]).status.success());
    let awake = world.hear(&asleep).await;
    assert!(world.publish(&["-q", "1", "-t", "units/d/data", "-m", "awake"]).status.success());
    assert_eq!(awake.message(), "units/d/data awake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_id_belongs_to_its_user_and_those_of_rollcall_to_rollcall() {
    let world = World::new(|config, dir| config.password_file = Some(users(dir))).await;
    let (reader, gateway) = (["-u", "reader", "-P", "secret"], ["-u", "gateway", "-P", "secret"]);
    let beat = ["-q", "1", "-t", "units/a/data", "-m"];
    let held = world.hear(&[&reader[..], &["-i", "pump-7", "-t", "units/#"]].concat()).await;
    for id in ["pump-7", "rollcall-main", "rollcall", "rollcall-main-00c0ffee", "reader"] {
        let refused = world.publish(&[&gateway[..], &["-i", id], &beat[..], &["stolen"]].concat());
        assert!(!refused.status.success(), "{id}: {}", text(&refused));
    }
    assert_eq!(world.counted("broker_refused_total client_id"), 5);
    // A user's own name is reserved, and an id is free again when its client has left.
    for id in ["gateway", "pump-8"] {
        let sent = world.publish(&[&gateway[..], &["-i", id], &beat[..], &["own"]].concat());
        assert!(sent.status.success(), "{id}: {}", text(&sent));
        assert_eq!(held.message(), "units/a/data own", "the session was not taken");
    }
    drop(held);
    let free =
        || world.publish(&[&gateway[..], &["-i", "pump-7"], &beat[..], &["free"]].concat()).status.success();
    world.until("the id is free again", free).await;
}

/// Certificates: an authority, the broker's and a device's.
fn certificates(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    // With the default names, which are equal, a certificate seems to have signed itself.
    authority.distinguished_name.push(DnType::CommonName, "authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).unwrap();
    std::fs::write(dir.join("ca.pem"), certificate.pem()).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    for name in ["server", "device"] {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_speak_tls_and_show_a_certificate_where_one_is_wanted() {
    let port = free_port().unwrap();
    let world = World::new(|config, dir| {
        let mut tls = tls(port, dir);
        tls.files.client_ca = Some(dir.join("ca.pem"));
        config.tls = Some(tls);
    })
    .await;
    let subscription = world.hear(&["-t", "units/#"]).await;
    let file = |name: &str| world.dir.path().join(name).to_string_lossy().into_owned();
    let (ca, cert, key, port) = (file("ca.pem"), file("device.pem"), file("device.key"), port.to_string());
    let beat = ["-p", &port, "--cafile", &ca, "-q", "1", "-t", "units/a/data", "-m", "1"];
    assert!(!world.publish(&beat).status.success(), "without a certificate");
    let sent = world.publish(&[&beat[..], &["--cert", &cert, "--key", &key]].concat());
    assert!(sent.status.success(), "{}", text(&sent));
    assert_eq!(subscription.message(), "units/a/data 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_connects_and_sends_nothing_delays_no_device() {
    let port = free_port().unwrap();
    let world = World::new(|config, dir| config.tls = Some(tls(port, dir))).await;
    let _silent: Vec<TcpStream> =
        [port, world.port, port, world.port].map(|port| TcpStream::connect(loopback(port)).unwrap()).into();
    let ca = world.dir.path().join("ca.pem").to_string_lossy().into_owned();
    let beat = ["-q", "1", "-t", "units/a/data", "-m", "1"];
    assert!(world.publish(&beat).status.success());
    let sent = world.publish(&[&beat[..], &["-p", &port.to_string(), "--cafile", &ca]].concat());
    assert!(sent.status.success(), "{}", text(&sent));
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let (taken, bad) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), dir.path().join("bad"));
    std::fs::write(&bad, "gateway:hunter2\n").unwrap();
    let cases: [(Config, &str); 5] = [
        (Config { listen: Some(([0, 0, 0, 0], 0).into()), ..plain(0) }, "broker.password_file"),
        (Config { listen: None, ..plain(0) }, "broker.listen"),
        (Config { password_file: Some(dir.path().join("none")), ..plain(0) }, "cannot read"),
        (Config { password_file: Some(bad), ..plain(0) }, "line 1"),
        (plain(taken.local_addr().unwrap().port()), "check broker.listen"),
    ];
    for (config, expected) in cases {
        let why = format!(
            "{:#}",
            Listener::bind(&config, Arc::new(Telemetry::new(&Clock::system()))).await.err().expect(expected)
        );
        assert!(why.contains(expected) && !why.contains("hunter2"), "{why}");
    }
}

/// A device of MQTT 3.1.1 that publishes for `units` at QoS 1, in turn, as fast as the broker allows: it ends when
/// each heartbeat was acknowledged `rounds` times.
fn gateway(port: u16, units: u16, rounds: u16) {
    let mut stream = TcpStream::connect(loopback(port)).unwrap();
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
    stream.write_all(b"\x10\x13\x00\x04MQTT\x04\x02\x00\x3c\x00\x07gateway").unwrap();
    let mut answers = stream.try_clone().unwrap();
    let acknowledged = std::thread::spawn(move || {
        let mut answer = [0; 4];
        answers.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x20, 2, 0, 0], "it is let in");
        for _ in 0..u32::from(units) * u32::from(rounds) {
            answers.read_exact(&mut answer).unwrap();
            assert_eq!(answer[..2], [0x40, 2]);
        }
    });
    for number in 0..units * rounds {
        let topic = format!("units/{:03}/heartbeat", number % units);
        let mut frame = vec![0x32, (topic.len() + 4) as u8, 0, topic.len() as u8];
        frame.extend(topic.as_bytes());
        frame.extend((number + 1).to_be_bytes());
        stream.write_all(&frame).unwrap();
    }
    acknowledged.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_send_faster_than_rollcall_reads_are_all_heard_and_none_is_reported() {
    let engine = "type = \"embedded\", path = \"fleet\"";
    let served = Served::start(engine, "max_rate = 100", "[[kind]]\ntimeout = \"10s\"\n").await;
    // A round takes 1.5 s at this rate.
    let port = served.port;
    tokio::task::spawn_blocking(move || gateway(port, 150, 12)).await.unwrap();
    let page = served.page("/metrics").await.unwrap();
    assert_eq!(value(&page, "rollcall_units{kind=\"detector\",state=\"online\"}"), 150.0);
    let silent = "rollcall_unit_transitions_total{cause=\"silence\",to=\"offline\"}";
    assert_eq!(value(&page, silent), 0.0);
    assert!(value(&page, "rollcall_broker_held_back_total") > 1000.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_sends_nothing_but_large_payloads_blinds_nobody() {
    let engine = "type = \"embedded\", path = \"fleet\"";
    let served = Served::start(engine, "max_bytes_per_second = 0", "[[kind]]\ntimeout = \"60s\"\n").await;
    served.until("the fleet is heard", async || served.value("rollcall_blind").await == 0.0).await;
    let before = served.page("/metrics").await.unwrap();
    let port = served.port;
    tokio::task::spawn_blocking(move || bulk(port, 400)).await.unwrap();
    // A canary that was sent behind all of them is recorded.
    let canaries = "rollcall_canary_round_trip_seconds_count";
    let hears = async || served.value(canaries).await >= value(&before, canaries) + 8.0;
    served.until("it hears on", hears).await;
    let page = served.page("/metrics").await.unwrap();
    assert_eq!(value(&page, "rollcall_payload_issues_total{reason=\"too_large\"}"), 400.0);
    assert_eq!(value(&page, "rollcall_blind_seconds_total"), value(&before, "rollcall_blind_seconds_total"));
    assert_eq!(value(&page, "rollcall_units{kind=\"detector\",state=\"online\"}"), 1.0);
}

/// A device sends `count` payloads of 240 KiB, which are JSON, and awaits each acknowledgement.
pub fn bulk(port: u16, count: u16) {
    let mut stream = TcpStream::connect(loopback(port)).unwrap();
    stream.write_all(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04bulk").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    let payload = format!("{{\"a\":[0{}]}}", ",1".repeat(120 << 10));
    let mut reader = stream.try_clone().unwrap();
    let acknowledged =
        std::thread::spawn(move || reader.read_exact(&mut vec![0; 4 * usize::from(count)]).unwrap());
    for number in 1..=count {
        let topic = b"units/bulk/data";
        let length = 2 + topic.len() + 2 + payload.len();
        let mut frame = vec![0x32, (length & 0x7f | 0x80) as u8, (length >> 7 & 0x7f | 0x80) as u8];
        frame.extend([(length >> 14) as u8, 0, topic.len() as u8]);
        frame.extend(topic);
        frame.extend(number.to_be_bytes());
        frame.extend(payload.as_bytes());
        stream.write_all(&frame).unwrap();
    }
    acknowledged.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_does_not_read_is_disconnected_and_no_other_waits_for_it() {
    let world = World::new(|config, _| {
        (config.max_rate, config.max_packet) = (0, 1 << 20);
    })
    .await;
    let mut deaf = TcpStream::connect(loopback(world.port)).unwrap();
    deaf.write_all(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04deaf").unwrap();
    deaf.write_all(b"\x82\x0c\x00\x01\x00\x07units/#\x01").unwrap();
    let (mut connack, mut suback) = ([0; 4], [0; 5]);
    deaf.read_exact(&mut connack).unwrap();
    deaf.read_exact(&mut suback).unwrap();
    assert_eq!((connack, suback), ([0x20, 2, 0, 0], [0x90, 3, 0, 1, 1]));
    let payload = world.dir.path().join("payload");
    std::fs::write(&payload, vec![b'x'; 10_000]).unwrap();
    let file = payload.to_string_lossy().into_owned();
    let mut sent = client(
        "mosquitto_pub",
        world.port,
        &["-q", "1", "-t", "units/a/data", "-f", &file, "--repeat", "100000"],
    );
    let _sent = Killed(sent.spawn().unwrap());
    world.until("it is disconnected", || world.counted("broker_refused_total reader") > 0).await;
    assert!(world.publish(&["-q", "1", "-t", "units/b/data", "-m", "1"]).status.success());
    assert_eq!(world.counted("broker_refused_total reader"), 1);
}

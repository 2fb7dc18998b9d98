//! The broker within the process, with the clients that devices really use: those of Mosquitto,
//! which know nothing of the library that the broker is made of.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rollcall::broker::{Broker, Config, Tls};
use rollcall::simulate::servers::free_port;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(30);

/// A broker that serves.
struct World {
    dir: TempDir,
    port: u16,
    running: Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
}

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn plain(port: u16) -> Config {
    Config {
        listen: Some(loopback(port)),
        tls: None,
        password_file: None,
        rules_file: None,
        max_connections: 100,
        max_packet: 4096,
        max_rate: 0,
    }
}

impl World {
    async fn new(change: impl FnOnce(&mut Config, &Path)) -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
        let mut config = plain(port);
        change(&mut config, dir.path());
        let broker = Broker::bind(&config).await.unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(broker.serve(stop.clone()));
        let world = World { dir, port, running: Some((stop, running)) };
        world.until("it answers", || TcpStream::connect(loopback(port)).is_ok()).await;
        world
    }

    async fn until(&self, what: &str, mut fact: impl FnMut() -> bool) {
        let awaited = async {
            while !fact() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
    }

    /// Publishes once, as a device does, and says how that ended.
    fn publish(&self, arguments: &[&str]) -> Output {
        client("mosquitto_pub", self.port, arguments).output().unwrap()
    }

    async fn hear(&self, arguments: &[&str]) -> Ear {
        Ear::new(client("mosquitto_sub", self.port, arguments)).await
    }

    async fn stop(&mut self) {
        let (stop, running) = self.running.take().unwrap();
        stop.cancel();
        tokio::time::timeout(PATIENCE, running).await.expect("it ends").unwrap().unwrap();
    }
}

fn client(program: &str, port: u16, arguments: &[&str]) -> Command {
    // Line by line, also into a pipe.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", program, "-h", "127.0.0.1"]);
    if !arguments.contains(&"-p") {
        command.args(["-p", &port.to_string()]);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A subscriber; hears lines of `topic payload`.
struct Ear {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Ear {
    /// Returns when the broker has granted the subscription.
    async fn new(mut command: Command) -> Ear {
        let mut child = command.args(["-v", "-d"]).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let ear = Ear { child, lines };
        ear.line(|line| line.contains("SUBACK") || line.starts_with("Subscribed"));
        ear
    }

    fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("a line that is wanted");
            if wanted(&line) {
                return line;
            }
        }
    }

    /// The next message.
    fn message(&self) -> String {
        self.line(|line| !line.starts_with("Client ") && !line.starts_with("Subscribed"))
    }
}

impl Drop for Ear {
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
    let ear = world.hear(&["-t", "units/#", "-q", "1", "-V", "mqttv5"]).await;
    for (version, qos) in [("mqttv311", "0"), ("mqttv311", "1"), ("mqttv5", "0"), ("mqttv5", "1")] {
        let payload = format!("{version}-{qos}");
        let sent = world.publish(&["-V", version, "-q", qos, "-t", "units/a/heartbeat", "-m", &payload]);
        assert!(sent.status.success(), "{}", text(&sent));
        assert_eq!(ear.message(), format!("units/a/heartbeat {payload}"));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_will_of_a_device_that_is_cut_off_is_heard() {
    let world = World::new(|_, _| {}).await;
    let ear = world.hear(&["-t", "wills/#"]).await;
    let will = ["--will-topic", "wills/a", "--will-payload", "gone", "--will-qos", "1"];
    let device = world.hear(&[&["-t", "x", "-i", "a"], &will[..]].concat()).await;
    drop(device);
    assert_eq!(ear.message(), "wills/a gone");
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
    let ear = world.hear(&["-u", "reader", "-P", "secret", "-t", "units/#"]).await;
    let gateway = ["-u", "gateway", "-P", "secret"];
    let elsewhere = ["-q", "1", "-V", "mqttv5", "-t", "units/a/data", "-m", "2"];
    let refused = world.publish(&[&gateway[..], &elsewhere].concat());
    assert!(text(&refused).contains("Not authorized"), "{}", text(&refused));
    assert!(world.publish(&[&gateway[..], &beat].concat()).status.success());
    assert_eq!(ear.message(), "units/a/heartbeat 1");
    let greedy = ["-u", "gateway", "-P", "secret", "-t", "units/#", "-V", "mqttv5", "-E"];
    let refused = client("mosquitto_sub", world.port, &greedy).output().unwrap();
    assert!(text(&refused).contains("denied"), "{}", text(&refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rules_nobody_speaks_where_rollcall_proves_that_it_hears() {
    let world = World::new(|_, _| {}).await;
    let sent = world.publish(&["-q", "1", "-V", "mqttv5", "-t", "rollcall/canary/x", "-m", "{}"]);
    assert!(text(&sent).contains("Not authorized"), "{}", text(&sent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packet_that_is_too_large_is_not_taken_and_others_still_are() {
    let world = World::new(|_, _| {}).await;
    let ear = world.hear(&["-t", "units/#"]).await;
    let large = "x".repeat(5000);
    let refused = world.publish(&["-q", "1", "-t", "units/a/data", "-m", &large]);
    assert!(!refused.status.success(), "{}", text(&refused));
    assert!(world.publish(&["-q", "1", "-t", "units/a/data", "-m", "small"]).status.success());
    assert_eq!(ear.message(), "units/a/data small");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_too_fast_is_held_to_its_rate() {
    let world = World::new(|config, _| config.max_rate = 5).await;
    let ear = world.hear(&["-t", "units/#"]).await;
    let repeat = ["-q", "0", "-t", "units/a/data", "-m", "1", "--repeat", "100"];
    assert!(world.publish(&repeat).status.success());
    // Another client still gets through, and of the hundred only a few did.
    assert!(world.publish(&["-q", "1", "-t", "units/b/data", "-m", "last"]).status.success());
    let mut heard = 0;
    while ear.message() != "units/b/data last" {
        heard += 1;
    }
    assert!((1..50).contains(&heard), "{heard}");
}

/// Certificates: an authority, the broker's and a device's.
fn certificates(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    // By default all names are the same, and a certificate seems to have signed itself.
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
        certificates(dir);
        config.tls = Some(Tls {
            listen: loopback(port),
            cert_file: dir.join("server.pem"),
            key_file: dir.join("server.key"),
            client_ca_file: Some(dir.join("ca.pem")),
        });
    })
    .await;
    let ear = world.hear(&["-t", "units/#"]).await;
    let file = |name: &str| world.dir.path().join(name).to_string_lossy().into_owned();
    let (ca, cert, key, port) = (file("ca.pem"), file("device.pem"), file("device.key"), port.to_string());
    let beat = ["-p", &port, "--cafile", &ca, "-q", "1", "-t", "units/a/data", "-m", "1"];
    assert!(!world.publish(&beat).status.success(), "without a certificate");
    let sent = world.publish(&[&beat[..], &["--cert", &cert, "--key", &key]].concat());
    assert!(sent.status.success(), "{}", text(&sent));
    assert_eq!(ear.message(), "units/a/data 1");
}

#[tokio::test]
async fn what_cannot_work_is_refused_with_what_to_do() {
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
        let why = format!("{:#}", Broker::bind(&config).await.err().expect(expected));
        assert!(why.contains(expected) && !why.contains("hunter2"), "{why}");
    }
}

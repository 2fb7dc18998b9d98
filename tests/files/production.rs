//! The files of `config/` for production: the broker with users and rules separates devices and
//! admits Rollcall, and the unit of systemd is valid and confined.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rollcall::config::EngineConfig;
use rollcall::simulate::servers::{Server, free_port};
use tempfile::TempDir;
use tokio::io::AsyncBufReadExt;

use crate::reference::load;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn succeeds(program: &str, arguments: &[&str]) {
    let done = output(program, arguments);
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&said));
}

/// Every user has the same password: the rules are tested, not the passwords.
const PASSWORD: &str = "opens everything";

/// Mosquitto with the shipped files, except for port, address and directories.
struct Broker {
    /// The server, with the port of Rollcall's listener.
    server: Server,
    /// The port of the listener of devices.
    devices: u16,
    dir: TempDir,
}

impl Broker {
    fn start() -> Broker {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(at("server.pem"), certificate.pem()).unwrap();
        std::fs::write(at("server.key"), key.serialize_pem()).unwrap();
        std::fs::write(at("rollcall.acl"), read("config/mosquitto/production.acl")).unwrap();
        for (file, users) in [("devices", &["pump-7", "pump-8"][..]), ("programs", &["rollcall"])] {
            let users: String = users.iter().map(|name| format!("{name}:{PASSWORD}\n")).collect();
            std::fs::write(at(file), users).unwrap();
            succeeds("mosquitto_passwd", &["-U", &at(file)]);
        }
        let (devices, port) = (free_port().unwrap(), free_port().unwrap());
        let text = read("config/mosquitto/production.conf")
            .replace("\nlistener 8883\n", &format!("\nlistener {devices} 127.0.0.1\n"))
            .replace("\nlistener 8884\n", &format!("\nlistener {port} 127.0.0.1\n"))
            .replace("/etc/mosquitto/certs/", &at(""))
            .replace("/etc/mosquitto/", &at(""))
            .replace("/var/lib/mosquitto/", &at(""));
        let moved = [devices, port].iter().all(|port| text.contains(&format!("listener {port} ")));
        assert!(moved, "the lines of the listeners changed");
        // A Mosquitto that is started as root becomes `mosquitto`, which could not read the test's directory.
        std::fs::write(at("mosquitto.conf"), format!("{text}user root\n")).unwrap();
        let server =
            Server::start("mosquitto", &["-c".into(), at("mosquitto.conf")], dir.path(), port, "running");
        Broker { server: server.unwrap(), devices, dir }
    }

    fn port(&self) -> String {
        self.server.port().to_string()
    }

    fn authority(&self) -> String {
        self.dir.path().join("server.pem").to_str().unwrap().to_owned()
    }

    /// Publishes as a device; the broker may drop the message.
    fn publish(&self, name: &str, topic: &str) {
        self.publish_as(name, self.devices, topic, &[]);
    }

    fn publish_as(&self, name: &str, port: u16, topic: &str, more: &[&str]) -> Output {
        let (port, authority) = (port.to_string(), self.authority());
        let who = ["-u", name, "-P", PASSWORD, "-V", "mqttv5"];
        let how =
            ["-h", "localhost", "-p", &port, "--cafile", &authority, "-q", "1", "-t", topic, "-m", "{}"];
        output("mosquitto_pub", &[&who[..], &how[..], more].concat())
    }
}

/// Rollcall behind this broker.
struct Watch {
    listen: String,
    log: PathBuf,
    client: reqwest::Client,
    _redis: Server,
    _service: tokio::process::Child,
}

impl Watch {
    fn start(broker: &Broker, dir: &Path) -> Watch {
        Watch::of(broker, dir, "share = \"fleet\"")
    }

    fn of(broker: &Broker, dir: &Path, more: &str) -> Watch {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let redis = Server::redis(&dir.join("redis"), free_port().unwrap(), &[]).unwrap();
        let listen = format!("127.0.0.1:{}", free_port().unwrap());
        let text = format!(
            "engine.url = \"redis://127.0.0.1:{}/0\"\n\
             [mqtt]\nurl = \"mqtts://localhost:{}\"\nca_file = \"{}\"\nwatch_sys = true\n\
             username = \"rollcall\"\npassword_file = \"password\"\n{more}\n\
             [http]\nlisten = \"{listen}\"\n",
            redis.port(),
            broker.port(),
            broker.authority(),
        );
        std::fs::write(dir.join("password"), PASSWORD).unwrap();
        std::fs::write(dir.join("rollcall.toml"), text).unwrap();
        let log = dir.join("log");
        let service = tokio::process::Command::new(env!("CARGO_BIN_EXE_rollcall"))
            .arg("serve")
            .current_dir(dir)
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Watch { listen, log, client: reqwest::Client::new(), _redis: redis, _service: service }
    }

    async fn text(&self, page: &str) -> String {
        let answer = self.client.get(format!("http://{}{page}", self.listen)).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// The output so far.
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The status of a page; 0 while no server answers.
    async fn status(&self, page: &str) -> u16 {
        let answer = self.client.get(format!("http://{}{page}", self.listen)).send().await;
        answer.map_or(0, |answer| answer.status().as_u16())
    }

    async fn eventually(&self, page: &str, status: u16) {
        let mut tries = tokio::time::interval(Duration::from_millis(100));
        for _ in 0..300 {
            tries.tick().await;
            if self.status(page).await == status {
                return;
            }
        }
        panic!("{page} never answered {status}");
    }
}

#[tokio::test]
async fn a_device_speaks_for_itself_and_rollcall_hears_it() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start();
    let watch = Watch::start(&broker, dir.path());
    // The canary returns, so Rollcall may write and read below rollcall/.
    watch.eventually("/readyz", 200).await;
    // The probes return too, so no right is missing.
    let ready = watch.text("/readyz").await;
    assert!(!ready.contains("topic_") && ready.contains("\"problems\""), "{ready}");
    // Forbidden messages come first: when the last message is heard, all were processed.
    broker.publish("pump-7", "units/pump-9/heartbeat");
    broker.publish("unknown", "units/unknown/heartbeat");
    broker.publish("pump-8", "units/pump-8/data");
    broker.publish("pump-7", "units/pump-7/heartbeat");
    watch.eventually("/api/v1/units/detector/pump-7", 200).await;
    watch.eventually("/api/v1/units/detector/pump-8", 200).await;
    for unit in ["pump-9", "unknown"] {
        assert_eq!(watch.status(&format!("/api/v1/units/detector/{unit}")).await, 404, "{unit}");
    }
}

#[tokio::test]
async fn a_device_cannot_take_over_the_session_of_rollcall_or_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start();
    let watch = Watch::of(&broker, dir.path(), "client_id = \"rollcall\"");
    watch.eventually("/readyz", 200).await;
    // No user name of a device is accepted by the listener of Rollcall.
    let programs = broker.server.port();
    let refused = broker.publish_as("pump-7", programs, "units/pump-7/heartbeat", &["-i", "rollcall-main"]);
    assert!(!refused.status.success());
    // The listener of devices admits the thief, but under another client id.
    let authority = broker.authority();
    // The output comes line by line, also into a pipe.
    let mut thief = tokio::process::Command::new("stdbuf");
    thief.args(["-oL", "mosquitto_sub"]);
    let port = broker.devices.to_string();
    thief.args(["-h", "localhost", "-p", &port, "--cafile", &authority, "-V", "mqttv311", "-c", "-q", "1"]);
    thief.args(["-u", "pump-7", "-P", PASSWORD, "-i", "rollcall-main", "-t", "units/pump-7/answers"]);
    let mut thief = thief.args(["-d"]).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut said = tokio::io::BufReader::new(thief.stdout.take().unwrap()).lines();
    while !said.next_line().await.unwrap().expect("it is let in").contains("CONNACK (0)") {}
    // With Rollcall's session, the thief would have got this message.
    broker.publish("pump-8", "units/pump-8/heartbeat");
    watch.eventually("/api/v1/units/detector/pump-8", 200).await;
    let metrics = watch.text("/metrics").await;
    assert!(metrics.contains("rollcall_mqtt_connected{broker=\"main\",connection=\"main\"} 1"), "{metrics}");
    assert!(!watch.log().contains("no connection to the MQTT broker"), "{}", watch.log());
    assert!(thief.try_wait().unwrap().is_none(), "nor did Rollcall push it out");
}

#[tokio::test]
async fn only_rollcall_speaks_below_rollcall() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start();
    let watch = Watch::start(&broker, dir.path());
    watch.eventually("/readyz", 200).await;
    let (port, authority) = (broker.port(), broker.authority());
    let connection = ["-P", PASSWORD, "-V", "mqttv5", "-h", "localhost", "-p", &port, "--cafile", &authority];
    // A retained message reaches later subscribers, if the broker accepted it.
    broker.publish_as("pump-7", broker.devices, "rollcall/canary/false", &["-r"]);
    broker.publish_as("rollcall", broker.server.port(), "rollcall/canary/true", &["-r"]);
    // The messages arrive in the order of the subscriptions.
    let what = [
        "-u",
        "rollcall",
        "-t",
        "rollcall/canary/false",
        "-t",
        "rollcall/canary/true",
        "-C",
        "1",
        "-F",
        "%t",
    ];
    let heard = output("mosquitto_sub", &[&connection[..], &what[..]].concat());
    assert_eq!(String::from_utf8_lossy(&heard.stdout).trim(), "rollcall/canary/true");
}

/// The unit of systemd, with the program of this build.
fn service(dir: &Path) -> String {
    let text = read("config/systemd/rollcall.service");
    // systemd finds the program in /usr/local/bin, where an operator puts it, or in /usr/bin, where a package does.
    let here = text.replace("=rollcall ", &format!("={} ", env!("CARGO_BIN_EXE_rollcall")));
    assert_eq!(text.matches("=rollcall ").count(), 2, "the program moved");
    assert_ne!(text, here);
    let file = dir.join("rollcall.service");
    std::fs::write(&file, here).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn systemd_understands_every_line_of_the_service() {
    let dir = tempfile::tempdir().unwrap();
    let checked = output("systemd-analyze", &["verify", &service(dir.path())]);
    let said = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn the_service_of_systemd_is_confined() {
    let dir = tempfile::tempdir().unwrap();
    // The threshold is in tenths: 0 is no exposure, 100 full exposure; an ordinary service has 96.
    succeeds("systemd-analyze", &["security", "--offline=true", "--threshold=15", &service(dir.path())]);
}

#[test]
fn the_configuration_of_the_packages_needs_nothing_else_and_is_of_this_machine_alone() {
    let config = load(&read("config/packages/rollcall.toml"), "config/packages/rollcall.toml".as_ref());
    let EngineConfig::Embedded(engine) = &config.engine else { panic!("{} is a server", config.engine) };
    assert_eq!(engine.path, Path::new("/var/lib/rollcall"));
    assert!(config.broker.is_some() && config.http.listen.ip().is_loopback());
    assert!(read("config/packages/rollcall.toml").contains("listen = \"127.0.0.1:1883\""));
    assert!(read("config/systemd/rollcall.service").contains("\nStateDirectory=rollcall\n"));
}

/// `make packages` installs them; here only the shell reads them.
#[test]
fn every_script_of_the_packages_is_a_script() {
    for name in ["postinst", "prerm", "postrm"] {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/packages/deb").join(name);
        succeeds("sh", &["-n", script.to_str().unwrap()]);
    }
}

#[test]
fn the_service_is_not_started_again_and_again_with_a_wrong_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rollcall.toml");
    std::fs::write(&file, "engine.urll = \"redis://127.0.0.1\"\n").unwrap();
    let ended = output(env!("CARGO_BIN_EXE_rollcall"), &["serve", "--config", file.to_str().unwrap()]);
    let status = ended.status.code().unwrap();
    let service = read("config/systemd/rollcall.service");
    assert!(service.contains(&format!("\nRestartPreventExitStatus={status}\n")), "{status}");
}

//! The stack of `docker-compose.yml`, as far as it can be had without an engine that runs containers:
//! the shipped files are read, and real servers start with the shipped configurations. Only ports
//! and directories are others than in the containers.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rollcall::simulate::servers::{Server, free_port};
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_yaml_ng::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What is in `value` as a list of text; nothing if there is none.
fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn services(compose: &Value) -> Vec<(&str, &Value)> {
    compose["services"].as_object().unwrap().iter().map(|(name, service)| (name.as_str(), service)).collect()
}

fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

#[test]
fn every_port_of_the_stack_is_of_this_machine_alone() {
    let compose = yaml("docker-compose.yml");
    let mut count = 0;
    for (name, service) in services(&compose) {
        assert!(service["network_mode"] != "host", "{name} is on the network of the machine");
        for port in service["ports"].as_array().into_iter().flatten() {
            let port = port.as_str().unwrap_or_else(|| panic!("{name}: {port} is not written as text"));
            assert!(port.starts_with("127.0.0.1:"), "{name} publishes {port} to everybody");
            count += 1;
        }
    }
    assert!(count >= 5, "the ports are gone");
}

#[test]
fn every_image_has_a_tag_that_does_not_move() {
    let compose = yaml("docker-compose.yml");
    let composed = services(&compose).into_iter().map(|(_, service)| service["image"].as_str().unwrap());
    let dockerfile = read("Dockerfile");
    let based = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")?.split(' ').next());
    let images: BTreeSet<&str> = composed.chain(based).filter(|image| *image != "rollcall:local").collect();
    assert!(images.len() >= 7, "{images:?}");
    for image in images {
        let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
        let numbers =
            tag.trim_start_matches('v').split(['.', '-']).take_while(|part| part.parse::<u32>().is_ok());
        assert!(numbers.count() >= 2, "{image} is not pinned to a release");
    }
}

#[test]
fn every_file_that_is_mounted_is_here_and_every_volume_is_declared() {
    let compose = yaml("docker-compose.yml");
    let mut used = BTreeSet::new();
    for (name, service) in services(&compose) {
        for mount in texts(&service["volumes"]) {
            let source = mount.split(':').next().unwrap();
            if source.starts_with('.') {
                assert!(root().join(source).exists(), "{name} mounts {source}, which is not here");
                assert!(
                    mount.ends_with(":ro"),
                    "{name} may write to {source}, which is part of the repository"
                );
            } else {
                used.insert(source);
            }
        }
    }
    let declared = compose["volumes"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(used, declared);
}

#[test]
fn everything_that_stays_up_says_whether_it_is_healthy() {
    let compose = yaml("docker-compose.yml");
    let services = services(&compose);
    for (name, service) in &services {
        let restarts = service["restart"] == "unless-stopped";
        assert_eq!(restarts, service["healthcheck"].is_object(), "{name}");
        for (other, wanted) in service["depends_on"].as_object().into_iter().flatten() {
            let (_, other) = services.iter().find(|(name, _)| name == other).unwrap();
            let ends = if other["restart"].is_string() {
                "service_healthy"
            } else {
                "service_completed_successfully"
            };
            assert_eq!(wanted["condition"], ends, "{name}");
        }
    }
}

/// The service `secrets`, run here: what it writes, by the directories that it knows.
fn make_secrets(dir: &Path) -> (String, String) {
    let compose = yaml("docker-compose.yml");
    let command = texts(&compose["services"]["secrets"]["command"]);
    let here = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let script = command[2]
        .replace("$$", "$")
        .replace("/token", &here("token"))
        .replace("/password", &here("password"));
    for name in ["token", "password"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    let made = output(command[0], &[command[1], &script]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let secret = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    (secret("token/rollcall.token"), secret("password/grafana.password"))
}

#[test]
fn secrets_are_made_once_and_differ() {
    let dir = tempfile::tempdir().unwrap();
    let (token, password) = make_secrets(dir.path());
    assert_ne!(token, password);
    assert_eq!((token.len(), password.len()), (32, 32), "{token:?} {password:?}");
    assert!(token.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)), "{token:?}");
    assert_eq!(make_secrets(dir.path()), (token, password), "a second start made others");
    let elsewhere = tempfile::tempdir().unwrap();
    assert_ne!(make_secrets(elsewhere.path()), make_secrets(dir.path()));
}

/// Mosquitto with the shipped file; only its port, address and directory are others.
fn mosquitto(dir: &Path) -> Server {
    std::fs::create_dir_all(dir).unwrap();
    let port = free_port().unwrap();
    let text = read("config/mosquitto/mosquitto.conf");
    let replaced = text
        .replace("\nlistener 1883\n", &format!("\nlistener {port} 127.0.0.1\n"))
        .replace("/mosquitto/data/", &format!("{}/", dir.display()));
    assert_eq!(replaced.matches(&port.to_string()).count(), 1, "the line of the listener changed");
    // Started as root it becomes `mosquitto`, which could not write into a directory of ours.
    let file = dir.join("mosquitto.conf");
    std::fs::write(&file, format!("{replaced}user root\n")).unwrap();
    Server::start("mosquitto", &["-c".into(), file.to_str().unwrap().into()], dir, port, "running").unwrap()
}

/// Redis with the shipped file; only its port and address are others.
fn redis(dir: &Path) -> Server {
    let port = free_port().unwrap();
    let file = root().join("config/redis/redis.conf");
    let port_text = port.to_string();
    let arguments = [file.to_str().unwrap(), "--port", &port_text, "--bind", "127.0.0.1"].map(str::to_owned);
    Server::start("redis-server", &arguments, dir, port, "Ready to accept connections").unwrap()
}

#[test]
fn mosquitto_starts_with_the_shipped_file_and_understands_every_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut broker = mosquitto(dir.path());
    broker.kill();
    let log = std::fs::read_to_string(dir.path().join("mosquitto.log")).unwrap();
    let ours = |line: &&str| line.contains("as root");
    let complaints =
        log.lines().filter(|line| !ours(line) && (line.contains("Error") || line.contains("Warning")));
    assert_eq!(complaints.count(), 0, "{log}");
}

#[test]
fn redis_starts_with_the_shipped_file_as_rollcall_wants_it() {
    let dir = tempfile::tempdir().unwrap();
    let redis = redis(dir.path());
    let port = redis.port().to_string();
    let ask = |name: &str| {
        let answer = output("redis-cli", &["-p", &port, "CONFIG", "GET", name]);
        String::from_utf8_lossy(&answer.stdout).lines().nth(1).unwrap_or_default().to_owned()
    };
    let wanted = [
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("save", ""),
        ("maxmemory-policy", "noeviction"),
    ];
    for (name, value) in wanted {
        assert_eq!(ask(name), value, "{name}");
    }
    let flags = ask("notify-keyspace-events");
    assert!(flags.contains('E') && flags.contains('x'), "{flags}");
}

#[test]
fn the_configuration_of_prometheus_is_one() {
    let file = root().join("config/prometheus/prometheus.yml");
    // The file with the token is made by the stack.
    let checked = output("promtool", &["check", "config", "--syntax-only", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn grafana_finds_its_source_and_its_dashboards_where_they_are_mounted() {
    let compose = yaml("docker-compose.yml");
    let mounts = texts(&compose["services"]["grafana"]["volumes"]);
    let provider = yaml("config/grafana/provisioning/dashboards/rollcall.yml");
    let path = provider["providers"][0]["options"]["path"].as_str().unwrap();
    assert!(mounts.contains(&format!("./dashboards:{path}:ro").as_str()), "{path} is not among {mounts:?}");
    let home =
        compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].as_str();
    let home = home.unwrap().strip_prefix(path).unwrap();
    assert!(root().join(format!("dashboards{home}")).is_file());
    let source = &yaml("config/grafana/provisioning/datasources/prometheus.yml")["datasources"][0];
    let interval = &yaml("config/prometheus/prometheus.yml")["global"]["scrape_interval"];
    assert_eq!(source["jsonData"]["timeInterval"], *interval, "rates would have holes");
}

/// The parts of the stack together, without containers: shipped configurations of Redis, Mosquitto
/// and Rollcall, the token of the service `secrets`, and the probes of image and stack.
#[tokio::test]
async fn rollcall_becomes_healthy_on_the_servers_of_the_stack() {
    let dir = tempfile::tempdir().unwrap();
    let (token, _) = make_secrets(dir.path());
    std::fs::rename(dir.path().join("token"), dir.path().join("secrets")).unwrap();
    std::fs::write(dir.path().join("rollcall.toml"), read("config/compose/rollcall.toml")).unwrap();
    let redis = redis(&dir.path().join("redis-data"));
    let broker = mosquitto(&dir.path().join("mosquitto-data"));
    let port = free_port().unwrap();
    let _service = tokio::process::Command::new(env!("CARGO_BIN_EXE_rollcall"))
        .arg("serve")
        .current_dir(dir.path())
        .env("ROLLCALL_ENGINE__URL", format!("redis://127.0.0.1:{}/0", redis.port()))
        .env("ROLLCALL_MQTT__URL", format!("mqtt://127.0.0.1:{}", broker.port()))
        .env("ROLLCALL_HTTP__LISTEN", format!("0.0.0.0:{port}"))
        .kill_on_drop(true)
        .spawn()
        .unwrap();

    let compose = yaml("docker-compose.yml");
    let ready = texts(&compose["services"]["rollcall"]["healthcheck"]["test"]);
    becomes_healthy(&ready[1..], port).await;
    let dockerfile = read("Dockerfile");
    let health = dockerfile.lines().find_map(|line| line.trim().strip_prefix("CMD [\"bash\"")).unwrap();
    let health: Vec<String> = serde_json::from_str(&format!("[\"bash\"{health}")).unwrap();
    becomes_healthy(&health.iter().map(String::as_str).collect::<Vec<_>>(), port).await;

    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();
    let metrics = || client.get(format!("http://127.0.0.1:{port}/metrics"));
    assert_eq!(metrics().send().await.unwrap().status(), 401);
    assert_eq!(metrics().bearer_auth(token).send().await.unwrap().status(), 200);
}

/// Runs a probe for the usual port on another one until it succeeds.
async fn becomes_healthy(probe: &[&str], port: u16) {
    assert!(probe[2].contains("/8080 "), "{probe:?}");
    let script = probe[2].replace("/8080 ", &format!("/{port} "));
    let mut tries = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..300 {
        tries.tick().await;
        let tried = tokio::process::Command::new(probe[0]).args([probe[1], &script]).output().await.unwrap();
        if tried.status.success() {
            return;
        }
    }
    panic!("{probe:?} never succeeded");
}

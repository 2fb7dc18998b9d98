//! Real servers with the files of the stack. Only ports and directories differ from the
//! containers.

use std::path::Path;
use std::time::Duration;

use rollcall::simulate::servers::{Server, free_port};

use super::{output, read, root, texts, yaml};

/// Runs the service `secrets` here; returns its files by directory.
fn make_secrets(dir: &Path) -> (String, String) {
    let compose = yaml("docker-compose.yml");
    let command = texts(&compose["services"]["secrets"]["command"]);
    let here = |name: &str| format!("{}/", dir.join(name).display());
    let script = command[2]
        .replace("$$", "$")
        // Only root gives files away.
        .replace("chown ", ": ")
        .replace("/token/", &here("token"))
        .replace("/operator/", &here("operator"))
        .replace("/password/", &here("password"))
        .replace("/postgres/", &here("postgres"))
        .replace("/history/", &here("history"))
        .replace("/reader/", &here("reader"));
    for name in ["token", "operator", "password", "postgres", "history", "reader"] {
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

/// Mosquitto with the shipped file, except for its port, address and directory.
fn mosquitto(dir: &Path) -> Server {
    std::fs::create_dir_all(dir).unwrap();
    let port = free_port().unwrap();
    let text = read("config/mosquitto/mosquitto.conf");
    let replaced = text
        .replace("\nlistener 1883\n", &format!("\nlistener {port} 127.0.0.1\n"))
        .replace("/mosquitto/data/", &format!("{}/", dir.display()));
    assert_eq!(replaced.matches(&port.to_string()).count(), 1, "the line of the listener changed");
    // A Mosquitto that is started as root becomes `mosquitto`, which could not write into the test's directory.
    let file = dir.join("mosquitto.conf");
    std::fs::write(&file, format!("{replaced}user root\n")).unwrap();
    Server::start("mosquitto", &["-c".into(), file.to_str().unwrap().into()], dir, port, "running").unwrap()
}

/// Redis with the shipped file, except for its port and address.
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

/// The parts of the stack together, without containers: shipped configurations of Redis, Mosquitto
/// and both instances of Rollcall, the token of the service `secrets`, and the probes of image and stack.
#[tokio::test]
async fn both_instances_become_healthy_on_the_servers_of_the_stack() {
    let dir = tempfile::tempdir().unwrap();
    let (token, _) = make_secrets(dir.path());
    std::fs::rename(dir.path().join("token"), dir.path().join("secrets")).unwrap();
    std::fs::write(dir.path().join("rollcall.toml"), read("config/compose/rollcall.toml")).unwrap();
    let redis = redis(&dir.path().join("redis-data"));
    let broker = mosquitto(&dir.path().join("mosquitto-data"));
    let mut both = Vec::new();
    for name in ["rollcall-1", "rollcall-2"] {
        let port = free_port().unwrap();
        let service = tokio::process::Command::new(env!("CARGO_BIN_EXE_rollcall"))
            .arg("serve")
            .current_dir(dir.path())
            .env("ROLLCALL_INSTANCE__NAME", name)
            .env("ROLLCALL_ENGINE__URL", format!("redis://127.0.0.1:{}/0", redis.port()))
            .env("ROLLCALL_MQTT__URL", format!("mqtt://127.0.0.1:{}", broker.port()))
            .env("ROLLCALL_HTTP__LISTEN", format!("0.0.0.0:{port}"))
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        both.push((port, service));
    }

    let compose = yaml("docker-compose.yml");
    let ready = texts(&compose["services"]["rollcall-1"]["healthcheck"]["test"]);
    let dockerfile = read("Dockerfile");
    let health = dockerfile.lines().find_map(|line| line.trim().strip_prefix("CMD [\"rollcall\"")).unwrap();
    let health: Vec<String> = serde_json::from_str(&format!("[\"rollcall\"{health}")).unwrap();
    for (port, _) in &both {
        becomes_healthy(&ready[1..], dir.path(), *port).await;
        becomes_healthy(&health.iter().map(String::as_str).collect::<Vec<_>>(), dir.path(), *port).await;
    }

    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();
    let metrics = |port: u16| client.get(format!("http://127.0.0.1:{port}/metrics"));
    assert_eq!(metrics(both[0].0).send().await.unwrap().status(), 401);
    for page in scraped() {
        for (port, _) in &both {
            let asked = client.get(format!("http://127.0.0.1:{port}{page}")).bearer_auth(&token);
            assert_eq!(asked.send().await.unwrap().status(), 200, "{page}");
        }
    }
    // Until the first instance has noticed the other.
    let mut tries = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..300 {
        tries.tick().await;
        let mut pages = Vec::new();
        for (port, _) in &both {
            let page = metrics(*port).bearer_auth(&token).send().await.unwrap();
            pages.push(page.error_for_status().unwrap().text().await.unwrap());
        }
        let each = |name: &str| pages.iter().map(|page| value(page, name)).collect::<Vec<_>>();
        let owned = each("rollcall_partitions_owned");
        if each("rollcall_instances") == [2, 2] && owned.iter().sum::<u32>() == 16 && !owned.contains(&0) {
            return;
        }
    }
    panic!("they do not share the fleet");
}

/// Runs a probe where the instance runs, with its configuration, until it succeeds.
async fn becomes_healthy(probe: &[&str], dir: &Path, port: u16) {
    assert_eq!(probe[0], "rollcall");
    let mut tries = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..300 {
        tries.tick().await;
        let mut tried = tokio::process::Command::new(env!("CARGO_BIN_EXE_rollcall"));
        tried.args(&probe[1..]).current_dir(dir).env("ROLLCALL_HTTP__LISTEN", format!("0.0.0.0:{port}"));
        if tried.output().await.unwrap().status.success() {
            return;
        }
    }
    panic!("{probe:?} never succeeded");
}

/// The pages of Rollcall that the shipped Prometheus scrapes, with its settings.
fn scraped() -> Vec<String> {
    let prometheus = yaml("config/prometheus/prometheus.yml");
    let jobs = prometheus["scrape_configs"].as_array().unwrap().iter();
    let jobs = jobs.filter(|job| job["job_name"].as_str().unwrap().starts_with("rollcall"));
    let pages = jobs.map(|job| {
        let parameters = job["params"].as_object().into_iter().flatten();
        let parameters = parameters.map(|(name, values)| format!("{name}={}", texts(values)[0]));
        let page = job["metrics_path"].as_str().unwrap_or("/metrics");
        format!("{page}?{}", parameters.collect::<Vec<_>>().join("&"))
    });
    let pages: Vec<String> = pages.collect();
    assert_eq!(pages.len(), 2, "{pages:?}");
    pages
}

/// The value of a metric without labels on a page of metrics.
fn value(page: &str, name: &str) -> u32 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("there is no {name}")).parse().unwrap()
}

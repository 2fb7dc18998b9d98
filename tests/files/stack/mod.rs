//! The stack of `docker-compose.yml`, tested without containers:
//! here the shipped files are read, in `running` real servers start with them.

mod alarm;
mod cluster;
mod postgres;
mod running;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A YAML file with its merge keys (`<<`) resolved.
fn yaml(path: &str) -> Value {
    let parsed = serde_yaml_ng::from_str::<serde_yaml_ng::Value>(&read(path));
    let mut value = parsed.unwrap_or_else(|error| panic!("{path}: {error}"));
    // Repeated, because a merged value may have a merge key of its own.
    for _ in 0..2 {
        value.apply_merge().unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    serde_json::to_value(value).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `value` as a list of texts; empty if it is missing.
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
            assert!(port.starts_with("127.0.0.1:"), "{name} publishes {port} beyond this machine");
            count += 1;
        }
    }
    assert!(count >= 7, "the ports are gone");
}

/// The keys of a Compose service that this stack uses.
const KNOWN: &str = "build cap_add cap_drop command cpu_shares cpus depends_on environment healthcheck image logging \
    mem_limit network_mode pids_limit ports profiles read_only restart scale security_opt stop_grace_period tmpfs user volumes";

#[test]
fn compose_knows_every_word_of_the_stack() {
    let compose = yaml("docker-compose.yml");
    let known: BTreeSet<&str> = KNOWN.split_whitespace().collect();
    for (name, service) in services(&compose) {
        for word in service.as_object().unwrap().keys() {
            assert!(known.contains(word.as_str()), "{name}: {word}");
        }
    }
    for word in compose.as_object().unwrap().keys() {
        assert!(["name", "services", "volumes"].contains(&word.as_str()) || word.starts_with("x-"), "{word}");
    }
    // `$$` is the shell's own sign.
    for variable in read("docker-compose.yml").replace("$$", "").split("${").skip(1) {
        let inner = variable.split('}').next().unwrap();
        assert!(inner.contains(":-"), "the stack does not start without {inner} in the environment");
    }
}

/// Compose stops services of a profile only if the profile is named again.
#[test]
fn every_service_but_the_cluster_is_stopped_with_the_rest_and_the_fleet_starts_on_request() {
    let compose = yaml("docker-compose.yml");
    for (name, service) in services(&compose) {
        let of_the_cluster = name.starts_with("cluster-") && texts(&service["profiles"]) == ["cluster"];
        assert!(
            service["profiles"].is_null() || of_the_cluster,
            "`docker compose down` leaves {name} running"
        );
    }
    assert!(read("docker-compose.yml").contains("#   docker compose --profile cluster down"));
    assert_eq!(compose["services"]["fleet"]["scale"], "${DEMO_FLEET:-0}");
    assert!(read("README.md").contains("DEMO_FLEET=1 docker compose up --build --detach"));
}

#[test]
fn every_container_is_contained() {
    let compose = yaml("docker-compose.yml");
    for (name, service) in services(&compose) {
        assert_eq!(service["read_only"], true, "{name} may write to its root");
        assert_eq!(texts(&service["cap_drop"]), ["ALL"], "{name}");
        let kept: &[&str] = if name == "secrets" { &["CHOWN"] } else { &[] };
        assert_eq!(texts(&service["cap_add"]), kept, "{name}");
        assert_eq!(texts(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        for limit in ["mem_limit", "cpus", "pids_limit"] {
            assert!(!service[limit].is_null(), "{name} has no {limit}");
        }
        assert!(
            service["logging"]["options"]["max-size"].is_string(),
            "{name} may fill the disk with its log"
        );
    }
}

#[test]
fn every_image_is_pinned_to_a_release_and_its_digest() {
    let compose = yaml("docker-compose.yml");
    let composed = services(&compose).into_iter().map(|(_, service)| service["image"].as_str().unwrap());
    let dockerfile = read("Dockerfile");
    let based = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")?.split(' ').next());
    let images: BTreeSet<&str> =
        composed.chain(based).filter(|image| !["rollcall:local", "scratch"].contains(image)).collect();
    assert!(images.len() >= 7, "{images:?}");
    for image in images {
        let (image, digest) = image.split_once("@sha256:").unwrap_or((image, ""));
        assert!(
            digest.len() == 64 && digest.chars().all(|digit| digit.is_ascii_hexdigit()),
            "{image} is not pinned to a digest: make digests"
        );
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

#[test]
fn the_configuration_of_prometheus_is_one() {
    let file = root().join("config/prometheus/prometheus.yml");
    // The stack makes the file with the token; another test checks the rules.
    let checked = output("promtool", &["check", "config", "--syntax-only", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// The addresses of the containers of Rollcall.
fn instances(compose: &Value) -> Vec<String> {
    let services = services(compose).into_iter();
    let serving = services
        .filter(|(_, service)| service["image"] == "rollcall:local" && !service["command"].is_array());
    serving.map(|(name, _)| format!("{name}:8080")).collect()
}

#[test]
fn commands_in_every_container_of_rollcall_have_the_token_of_the_operator() {
    let (compose, text) = (yaml("docker-compose.yml"), read("config/compose/rollcall.toml"));
    let file = "/etc/rollcall/operator/operator.token";
    for instance in instances(&compose) {
        let service = &compose["services"][instance.trim_end_matches(":8080")];
        assert_eq!(service["environment"]["ROLLCALL_TOKEN_FILE"], file, "{instance}");
        assert!(
            texts(&service["volumes"]).contains(&"operator-token:/etc/rollcall/operator:ro"),
            "{instance}"
        );
    }
    assert!(text.contains(&format!("token_file = \"{}\"", file.trim_start_matches("/etc/rollcall/"))));
}

/// A container has a user by its number, so a secret of another number could not be read.
#[test]
fn a_secret_belongs_to_the_user_that_reads_it_and_to_nobody_else() {
    let compose = yaml("docker-compose.yml");
    let made = texts(&compose["services"]["secrets"]["command"])[2];
    let owners = made.split("; do").next().unwrap();
    for secret in [
        "10001:65534:/token/rollcall.token",
        "10001:10001:/operator/operator.token",
        "472:0:/password/grafana.password",
        "999:999:/postgres/postgres.password",
        "10001:999:/history/history.password",
        "472:999:/reader/reader.password",
    ] {
        assert!(owners.contains(secret), "{owners}");
    }
    assert!(made.contains("chmod 0440") && made.contains("umask 0277"), "{made}");
    assert!(read("Dockerfile").contains("\nUSER 10001:10001\n"));
    assert_eq!(compose["services"]["postgres"]["user"], "999:999");
    // The images of Prometheus and Grafana have these users of their own.
    for name in ["prometheus", "grafana", "rollcall-1", "rollcall-2"] {
        assert!(compose["services"][name]["user"].is_null(), "{name}");
    }
}

#[test]
fn prometheus_scrapes_every_instance_and_alerts_alertmanager() {
    let compose = yaml("docker-compose.yml");
    let instances = instances(&compose);
    assert!(instances.len() >= 2, "{instances:?}");
    let prometheus = yaml("config/prometheus/prometheus.yml");
    for job in ["rollcall", "rollcall-units"] {
        let jobs = prometheus["scrape_configs"].as_array().unwrap();
        let job = jobs.iter().find(|it| it["job_name"] == job).unwrap();
        assert_eq!(texts(&job["static_configs"][0]["targets"]), instances);
    }
    let targets = &prometheus["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"];
    assert_eq!(texts(targets), ["alertmanager:9093"]);
    let mounts = texts(&compose["services"]["prometheus"]["volumes"]);
    assert_eq!(texts(&prometheus["rule_files"]), ["rules/*.yml"]);
    assert!(mounts.contains(&"./config/prometheus/rules:/etc/prometheus/rules:ro"), "{mounts:?}");
}

#[test]
fn several_instances_share_one_subscription() {
    let config: toml::Table = read("config/compose/rollcall.toml").parse().unwrap();
    let share = config["mqtt"].get("share").and_then(|it| it.as_str()).unwrap_or_default();
    // Without a share, each instance would take the other's session.
    assert!(!share.is_empty() || instances(&yaml("docker-compose.yml")).len() == 1);
}

#[test]
fn alertmanager_notifies_operators_of_every_alert_but_the_watchdog() {
    let file = root().join("config/alertmanager/alertmanager.yml");
    let file = file.to_str().unwrap();
    let checked = output("amtool", &["check-config", file]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let receiver = |labels: &[&str]| {
        let config = format!("--config.file={file}");
        let tried = output("amtool", &[&["config", "routes", "test", &config], labels].concat());
        String::from_utf8_lossy(&tried.stdout).trim().to_owned()
    };
    assert_eq!(receiver(&["alertname=RollcallWatchdog", "severity=none"]), "watchdog");
    assert_eq!(receiver(&["alertname=RollcallBlind", "severity=critical"]), "mail");
    assert_eq!(receiver(&["alertname=RollcallDeadLetters", "severity=warning"]), "mail");
    // Every name in an inhibition rule must be an alert.
    let rules = read("config/prometheus/rules/rollcall-alerts.yml");
    let text = read("config/alertmanager/alertmanager.yml");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    for word in words.filter(|word| word.starts_with("Rollcall") && word.len() > "Rollcall".len()) {
        assert!(rules.contains(&format!("alert: {word}\n")), "there is no alert {word}");
    }
}

#[test]
fn the_image_is_built_from_what_reaches_it() {
    let dir = tempfile::tempdir().unwrap();
    let ignored = read(".dockerignore");
    let dockerfile = read("Dockerfile");
    assert!(!dockerfile.contains("# syntax="), "it would fetch a program that reads the file");
    let copied = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY "));
    for copied in copied.filter(|line| !line.starts_with("--from")) {
        let mut words: Vec<&str> = copied.split(' ').collect();
        let to = words.pop().unwrap();
        for from in words {
            assert!(
                ignored.lines().any(|line| line == format!("!{from}")),
                "{from} does not reach the build"
            );
            // The licence is copied straight into the image, without the build.
            if !to.starts_with('/') {
                let (from, to) = (root().join(from), dir.path().join(to));
                std::fs::create_dir_all(to.parent().unwrap()).unwrap();
                let done = output("cp", &["-r", from.to_str().unwrap(), to.to_str().unwrap()]);
                assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            }
        }
    }
    plans_to_build(dir.path());
    // There is no git in the image: the commit is an argument of the build.
    let compose = yaml("docker-compose.yml");
    let built: Vec<&Value> = services(&compose)
        .into_iter()
        .map(|(_, service)| &service["build"])
        .filter(|one| !one.is_null())
        .collect();
    assert!(dockerfile.contains("\nARG ROLLCALL_COMMIT=") && built.len() == 3, "{built:?}");
    for build in built {
        assert_eq!(build["context"], ".");
        assert_eq!(build["args"]["ROLLCALL_COMMIT"], "${ROLLCALL_COMMIT:-}");
    }

    // The layer with the dependencies has the same files, but empty.
    let empty = tempfile::tempdir().unwrap();
    for file in ["Cargo.toml", "Cargo.lock", "build.rs"] {
        std::fs::copy(root().join(file), empty.path().join(file)).unwrap();
    }
    let lines = dockerfile.replace("\\\n", " ");
    let run = lines.lines().find_map(|line| line.strip_prefix("RUN mkdir ")).unwrap();
    let (prepared, built) = run.rsplit_once(" && ").unwrap();
    assert_eq!(built.trim(), "cargo build --profile dist --locked --target \"$(cat triple)\" --bin rollcall");
    let done =
        Command::new("sh").args(["-ec", &format!("mkdir {prepared}")]).current_dir(empty.path()).output();
    assert!(done.as_ref().is_ok_and(|done| done.status.success()), "{done:?}");
    plans_to_build(empty.path());
}

/// The build plan, without compiling: only a plan looks for the file of every target. The option is
/// not stable yet, and a variable allows it.
fn plans_to_build(dir: &Path) {
    let cargo = Command::new(env!("CARGO"))
        .args(["build", "--bin=rollcall", "--locked", "--offline", "--unit-graph", "-Zunstable-options"])
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
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

//! The manifests of `config/kubernetes`: what they name is in Rollcall, in the image and in the stack. `make kubernetes` renders
//! base and chart, and checks them against the schemas of Kubernetes.

use std::path::Path;

use rollcall::config;
use serde_json::Value;

use crate::reference::load;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(path: &str) -> Value {
    serde_yaml_ng::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn base(name: &str) -> Value {
    yaml(&format!("config/kubernetes/base/{name}.yaml"))
}

const CONFIGURATION: &str = "config/kubernetes/base/rollcall.toml";

#[test]
fn the_configuration_is_one_for_several_instances_and_asks_for_tokens() {
    let text = read(CONFIGURATION);
    let config = load(&text, CONFIGURATION.as_ref());
    assert!(!config.intake[0].share.is_empty() && !config.http.listen.ip().is_loopback());
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert_eq!(read("config/kubernetes/chart/rollcall.toml"), text, "the chart has another one");
    // Each file is a key of the Secret, and the commands name it.
    let files = text.lines().filter(|line| line.contains("_file = ") && !line.starts_with('#'));
    let files: Vec<&str> = files.filter_map(|line| line.split('"').nth(1)).collect();
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        let key = file.strip_prefix("secrets/").unwrap_or_else(|| panic!("{file} is no secret"));
        for page in ["docs/install.md", "config/kubernetes/base/kustomization.yaml"] {
            assert!(read(page).contains(&format!("--from-file={key}")), "{page}: {key}");
        }
    }
}

#[test]
fn the_deployment_names_options_pages_and_paths_that_exist() {
    let deployment = base("deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let variables = container["env"].as_array().unwrap().iter();
    let variables =
        variables.filter_map(|one| one["name"].as_str().filter(|name| name.starts_with("ROLLCALL_")));
    let variables: Vec<&str> = variables.collect();
    assert_eq!(variables, ["ROLLCALL_INSTANCE__NAME", "ROLLCALL_HTTP__ADVERTISE"]);
    let values = ["rollcall-7d4b-x2x9k", "10.1.2.3:8080"].map(str::to_owned);
    let variables = variables.into_iter().map(str::to_owned).zip(values);
    config::parse("", None, variables).unwrap_or_else(|error| panic!("{error}"));
    let listen = load(&read(CONFIGURATION), CONFIGURATION.as_ref()).http.listen;
    assert_eq!(container["ports"][0]["containerPort"], listen.port());
    assert_eq!(base("service")["spec"]["ports"][0]["port"], listen.port());
    let pages = read("docs/http.md");
    for probe in ["livenessProbe", "readinessProbe"] {
        let page = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert!(pages.contains(&format!("| `{page}` |")), "{probe}: {page}");
    }
    let paths: Vec<&str> = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["/etc/rollcall/rollcall.toml", "/etc/rollcall/secrets", "/tmp"]);
    let dockerfile = read("Dockerfile");
    assert!(dockerfile.contains("\nWORKDIR /etc/rollcall\n") && dockerfile.contains("/image/tmp"));
    let user = &pod["securityContext"];
    assert!(dockerfile.contains(&format!("\nUSER {}:{}\n", user["runAsUser"], user["runAsGroup"])));
}

#[test]
fn a_pod_may_do_nothing_but_its_work() {
    let deployment = base("deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["capabilities"]["drop"], serde_json::json!(["ALL"]));
    // Neither every user of the pod nor the image's group reads more than it has to.
    let mode = read("config/kubernetes/base/deployment.yaml");
    assert!(mode.contains("defaultMode: 0440\n"), "secrets are readable by every user");
}

#[test]
fn instances_may_ask_each_other_where_they_advertise_themselves() {
    let deployment = base("deployment");
    let pod = &deployment["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    let advertised = |one: &&Value| one["name"] == "ROLLCALL_HTTP__ADVERTISE";
    let advertised = container["env"].as_array().unwrap().iter().find(advertised).unwrap();
    let port = advertised["value"].as_str().unwrap().strip_prefix("$(POD_IP):").unwrap();
    assert_eq!(container["ports"][0]["containerPort"].to_string(), port);
    let policy = base("networkpolicy");
    let pods = &policy["spec"]["podSelector"];
    // The pod template has the labels of the kustomization.
    let labels = &base("kustomization")["labels"][0]["pairs"];
    assert_eq!(pods["matchLabels"], *labels);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let rules = policy["spec"][direction].as_array().unwrap();
        let allows = |rule: &&Value| {
            let peers = rule[peers].as_array().into_iter().flatten();
            let has_pods = |peer: &Value| {
                let selected = &peer["podSelector"];
                *selected == *pods || selected.as_object().is_some_and(serde_json::Map::is_empty)
            };
            let ports = rule["ports"].as_array().into_iter().flatten();
            peers.into_iter().any(has_pods)
                && ports.into_iter().any(|one| one["port"] == container["ports"][0]["name"])
        };
        assert!(rules.iter().any(|rule| allows(&rule)), "{direction}: {rules:#?}");
    }
}

#[test]
fn the_next_instance_is_ready_before_another_is_stopped() {
    let deployment = base("deployment");
    let update = &deployment["spec"]["strategy"]["rollingUpdate"];
    assert_eq!((&update["maxUnavailable"], &update["maxSurge"]), (&0.into(), &1.into()));
    assert_eq!(base("poddisruptionbudget")["spec"]["maxUnavailable"], 1);
    // As long as systemd and Compose give it.
    let grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(read("config/systemd/rollcall.service").contains(&format!("\nTimeoutStopSec={grace}s\n")));
    assert!(read("docker-compose.yml").contains(&format!("stop_grace_period: {grace}s\n")));
}

#[test]
fn a_drain_does_not_wait_for_instances_that_are_not_ready_and_those_of_one_version_are_spread() {
    assert_eq!(base("poddisruptionbudget")["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    let deployment = base("deployment");
    let spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"].as_array().unwrap();
    assert_eq!(spread.len(), 2);
    for one in spread {
        assert_eq!(one["matchLabelKeys"], serde_json::json!(["pod-template-hash"]));
    }
    // Kubernetes has both since 1.27, the oldest version that the chart allows and is checked against.
    let chart = yaml("config/kubernetes/chart/Chart.yaml");
    assert_eq!(chart["kubeVersion"], ">=1.27.0-0");
    assert!(read(".ci/kubernetes").contains("\nfor schema in 1.27.0 "));
    assert!(read("docs/install.md").contains("It needs Kubernetes 1.27 or newer"));
}

#[test]
fn manifests_image_and_changelog_are_of_this_version() {
    let kustomization = base("kustomization");
    assert_eq!(kustomization["images"][0]["newTag"], env!("CARGO_PKG_VERSION"));
    let chart = yaml("config/kubernetes/chart/Chart.yaml");
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let label = concat!("org.opencontainers.image.version=\"", env!("CARGO_PKG_VERSION"), "\"");
    assert!(read("Dockerfile").contains(label), "the Dockerfile has no label {label}");
    let changes = concat!("\n## ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(read("CHANGELOG.md").contains(changes), "the changelog has no section of this version");
}

#[test]
fn the_service_monitor_scrapes_as_the_stack_does() {
    let monitor = yaml("config/kubernetes/monitoring/servicemonitor.yaml");
    let prometheus = yaml("config/prometheus/prometheus.yml");
    let jobs = prometheus["scrape_configs"].as_array().unwrap();
    let global = prometheus["global"]["scrape_interval"].as_str().unwrap();
    for endpoint in monitor["spec"]["endpoints"].as_array().unwrap() {
        let name = &endpoint["relabelings"][0]["replacement"];
        let job = jobs.iter().find(|job| job["job_name"] == *name).unwrap_or_else(|| panic!("no job {name}"));
        assert_eq!(endpoint["path"], job["metrics_path"].as_str().unwrap_or("/metrics"));
        assert_eq!(endpoint["params"], job["params"]);
        assert_eq!(endpoint["interval"], job["scrape_interval"].as_str().unwrap_or(global));
        assert_eq!(endpoint["scrapeTimeout"], job["scrape_timeout"]);
    }
    assert_eq!(monitor["spec"]["endpoints"].as_array().unwrap().len(), 2);
    assert!(read(CONFIGURATION).contains("secrets/prometheus.token"));
}

#[test]
fn the_chart_knows_every_value_of_its_schema_and_no_other() {
    let schema: Value = serde_json::from_str(&read("config/kubernetes/chart/values.schema.json")).unwrap();
    let values = yaml("config/kubernetes/chart/values.yaml");
    let checked = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<String> = checked.iter_errors(&values).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut known = names(&schema["properties"]);
    // helm gives it to every chart.
    known.retain(|name| name != "global");
    let mut given = names(&values);
    known.sort();
    given.sort();
    assert_eq!(given, known);
}

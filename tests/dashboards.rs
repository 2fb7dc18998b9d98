//! Dashboards show what Rollcall tells: every query of every dashboard is asked of a real Prometheus
//! that scraped a real Rollcall, which watched a fleet with silences.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::config;
use rollcall::service;
use rollcall::simulate::fleet::{self, FleetConfig, Progress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::simulate::webhook_sink::{Options, WebhookSink};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use url::Url;

/// How often a question is asked again until it has an answer, and how many times.
const AGAIN: Duration = Duration::from_millis(250);
const TIMES: usize = 160;

/// The dashboards by the names of their files.
fn dashboards() -> Vec<(PathBuf, Value)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|it| it == "json"));
    files
        .map(|path| (path.clone(), serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()))
        .collect()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The panels that show something.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    list(dashboard, "panels").iter().filter(|panel| panel["type"] != "row")
}

/// A query as Grafana would send it, with everything chosen.
fn chosen(expression: &Value) -> String {
    let text = expression.as_str().unwrap();
    let text = text.replace("$__rate_interval", "20s").replace("$__interval", "5s").replace("$kind", ".*");
    assert!(!text.contains('$'), "a variable that nobody sets: {text}");
    text
}

/// Prometheus, with Rollcall and a fleet behind it.
struct World {
    prometheus: Server,
    client: reqwest::Client,
    stop: CancellationToken,
    running: JoinSet<()>,
    _servers: [Server; 2],
    _receiver: WebhookSink,
    _dir: tempfile::TempDir,
}

impl World {
    async fn start() -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        // Without persistence: something to warn of.
        let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
        let broker = Server::mosquitto(&dir.path().join("mosquitto"), free_port().unwrap(), "").unwrap();
        let receiver = WebhookSink::start(Options::default()).await.unwrap();
        let listen = format!("127.0.0.1:{}", free_port().unwrap());
        let text = format!(
            r#"
            engine.url = "redis://127.0.0.1:{}/0"
            mqtt.url = "mqtt://127.0.0.1:{}"
            http.listen = "{listen}"
            route = {{ receivers = ["hook"], group_wait = "0s", group_interval = "1s" }}
            kind = [{{ name = "detector", topics = ["units/{{unit}}/heartbeat"], timeout = "1s" }}]
            receiver = [{{ name = "hook", type = "webhook", url = "{}" }}]
            "#,
            redis.port(),
            broker.port(),
            receiver.url(),
        );
        let fleet = FleetConfig {
            units: 20,
            interval: Duration::from_millis(200),
            silence_chance: 0.02,
            silence_for: Duration::from_secs(2)..Duration::from_secs(5),
            ..FleetConfig::new(&format!("mqtt://127.0.0.1:{}", broker.port()))
        };
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        let (config, stopped) = (config::parse(&text, None, []).unwrap(), stop.clone());
        running.spawn(async move { service::run(config, stopped).await.unwrap() });
        let stopped = stop.clone();
        running.spawn(async move {
            fleet::run(fleet, watch::channel(Progress::default()).0, stopped).await.unwrap();
        });
        World {
            prometheus: prometheus(&dir.path().join("prometheus"), &listen),
            client: reqwest::Client::new(),
            stop,
            running,
            _servers: [redis, broker],
            _receiver: receiver,
            _dir: dir,
        }
    }

    /// What Prometheus answers; an answer that is an error fails the test.
    async fn ask(&self, page: &str, parameters: &[(&str, String)]) -> Value {
        let url = format!("http://127.0.0.1:{}/api/v1/{page}", self.prometheus.port());
        let url = Url::parse_with_params(&url, parameters).unwrap();
        let answer = self.client.get(url).send().await.unwrap().bytes().await.unwrap();
        let mut answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["status"], "success", "{page} {parameters:?}: {answer}");
        answer["data"].take()
    }

    /// How many series or rows a query of a panel has at the moment.
    async fn rows(&self, target: &Value) -> usize {
        let query = ("query", chosen(&target["expr"]));
        let answer = if target["instant"] == true {
            self.ask("query", &[query]).await
        } else {
            let now = Clock::system().now().as_millis() / 1000;
            let range =
                [query, ("start", (now - 20).to_string()), ("end", now.to_string()), ("step", "1".into())];
            self.ask("query_range", &range).await
        };
        list(&answer, "result").len()
    }

    /// Asks a panel's queries until one of them has something to show.
    async fn shows_something(&self, panel: &Value) {
        let mut tries = tokio::time::interval(AGAIN);
        for _ in 0..TIMES {
            tries.tick().await;
            let mut rows = 0;
            for target in list(panel, "targets") {
                rows += self.rows(target).await;
            }
            if rows > 0 {
                return;
            }
        }
        panic!("the panel {} has nothing to show: {}", panel["title"], panel["targets"]);
    }

    /// Whether a variable has values to choose from.
    async fn offers_something(&self, variable: &Value) -> bool {
        let query = variable["query"].as_str().unwrap();
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (series, label) = inner.and_then(|inner| inner.split_once(", ")).expect(query);
        let values = self.ask(&format!("label/{label}/values"), &[("match[]", series.to_owned())]).await;
        !values.as_array().unwrap().is_empty()
    }

    async fn end(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap();
        }
    }
}

/// Prometheus that asks the shipped configuration's pages of `target`, only more often.
fn prometheus(dir: &Path, target: &str) -> Server {
    std::fs::create_dir_all(dir).unwrap();
    let text = format!(
        "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms }}\n\
         scrape_configs:\n\
         - {{ job_name: rollcall, static_configs: [{{ targets: ['{target}'] }}] }}\n\
         - {{ job_name: rollcall-units, metrics_path: /metrics/units, static_configs: [{{ targets: ['{target}'] }}] }}\n"
    );
    std::fs::write(dir.join("prometheus.yml"), text).unwrap();
    let port = free_port().unwrap();
    let arguments = [
        "--config.file=prometheus.yml".to_owned(),
        "--storage.tsdb.path=data".to_owned(),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ];
    Server::start("prometheus", &arguments, dir, port, "Server is ready to receive web requests").unwrap()
}

/// The names of Rollcall's metrics in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("rollcall_")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_every_dashboard_has_an_answer() {
    let world = World::start().await;
    let mut named = BTreeSet::new();
    for (path, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            assert!(
                !list(panel, "targets").is_empty(),
                "{}: {} asks nothing",
                path.display(),
                panel["title"]
            );
            world.shows_something(panel).await;
            named.extend(metrics(&panel["targets"].to_string()));
        }
        for variable in list(&dashboard["templating"], "list").iter().filter(|it| it["type"] == "query") {
            assert!(world.offers_something(variable).await, "{variable}");
        }
        for annotation in list(&dashboard["annotations"], "list").iter().filter(|it| it["expr"].is_string()) {
            world.rows(annotation).await;
            named.extend(metrics(annotation["expr"].as_str().unwrap()));
        }
    }
    // A part of a query that is always empty would not be noticed otherwise.
    let known = world.ask("label/__name__/values", &[]).await;
    let known: BTreeSet<String> = serde_json::from_value(known).unwrap();
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty() && named.len() > 15, "Rollcall tells nothing of {unknown:?}");
    world.end().await;
}

#[test]
fn every_panel_says_what_it_shows_and_in_what_unit() {
    let all = dashboards();
    assert!(!all.is_empty(), "the dashboards are gone");
    for (path, dashboard) in all {
        let mut ids = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap();
            assert!(panel["description"].as_str().is_some_and(|it| it.ends_with(['.', '?'])), "{title}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title} knows where Prometheus is");
            assert!(ids.insert(panel["id"].as_u64()), "{}: an id is there twice", path.display());
        }
        assert!(dashboard["uid"].as_str().is_some_and(|uid| uid.len() <= 40), "{}", path.display());
    }
}

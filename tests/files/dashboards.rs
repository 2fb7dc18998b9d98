//! Dashboards show metrics of Rollcall: every query of every dashboard runs on a real Prometheus
//! that scraped a real Rollcall, which watched a fleet with silences.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::simulate::fleet::{self, FleetConfig, FleetProgress};
use rollcall::simulate::servers::free_port;
use rollcall::simulate::webhook_sink::{Options, WebhookSink};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::fleet::{Servers, Service};
use crate::support::prometheus::{Prometheus, with_rules};

/// How often a query is repeated until it has a result, and how many times.
const AGAIN: Duration = Duration::from_millis(250);
const TIMES: usize = 160;

/// The unit that the dashboards show.
const UNIT: &str = "sim-000001";

/// The dashboards by the names of their files.
fn dashboards() -> Vec<(PathBuf, Value)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|it| it == "json"));
    files
        .map(|path| (path.clone(), serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()))
        .collect()
}

#[test]
fn a_dashboard_has_the_times_of_the_browser_or_says_which() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/history/years.json");
    let years: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for dashboard in dashboards().into_iter().map(|(_, dashboard)| dashboard).chain([years]) {
        let is_said = dashboard["description"].as_str().unwrap().contains("UTC");
        assert_eq!(dashboard["timezone"], if is_said { "utc" } else { "browser" }, "{}", dashboard["title"]);
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The panels with queries.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    list(dashboard, "panels").iter().filter(|panel| panel["type"] != "row")
}

/// A query as Grafana would send it, with all values selected, but only one unit.
fn chosen(expression: &Value) -> String {
    let text = expression.as_str().unwrap();
    let text = text.replace("$__rate_interval", "20s").replace("$__interval_ms", "5000");
    let text = text.replace("$__interval", "5s").replace("$__range", "20s");
    let text = text.replace("=\"$kind\"", "=\"detector\"").replace("$kind", ".*");
    let text = text.replace("$unit", UNIT).replace("$label", "site");
    let text = text.replace("$instance", ".*").replace("$receiver", ".*").replace("$place", ".*");
    // A capture group of a pattern is not a variable.
    assert!(!text.replace("$1", "").contains('$'), "an unknown variable: {text}");
    text
}

/// Prometheus, with Rollcall and a fleet behind it.
struct World {
    prometheus: Prometheus,
    service: Service,
    devices: JoinHandle<()>,
    stop: CancellationToken,
    _receiver: WebhookSink,
    // The last field, so that Prometheus has ended when the directory is removed.
    _servers: Servers,
}

impl World {
    async fn start() -> World {
        // Redis has no persistence, so there is a warning.
        let servers = Servers::start();
        let receiver = WebhookSink::start(Options::default()).await.unwrap();
        let listen = free_port().unwrap();
        let text = format!(
            r#"
            engine.url = "redis://127.0.0.1:{}/0"
            mqtt.url = "mqtt://127.0.0.1:{}"
            http.listen = "127.0.0.1:{listen}"
            http.count_by_labels = ["site"]
            route = {{ receivers = ["hook"], group_wait = "0s", group_interval = "1s" }}
            kind = [{{ name = "detector", topics = ["units/{{site}}/{{unit}}/heartbeat"], timeout = "1s", metric = [
                {{ name = "detector_battery", pointer = "/battery", type = "gauge", help = "Charge in percent." }},
            ] }}]
            receiver = [{{ name = "hook", type = "webhook", url = "{}" }}]
            "#,
            servers.redis.port(),
            servers.broker.port(),
            receiver.url(),
        );
        let fleet = FleetConfig {
            units: 20,
            interval: Duration::from_millis(200),
            silence_chance: 0.02,
            silence_for: Duration::from_secs(2)..Duration::from_secs(5),
            topic: "units/{site}/{unit}/heartbeat".to_owned(),
            ..FleetConfig::new(&format!("mqtt://127.0.0.1:{}", servers.broker.port()))
        };
        let service = Service::start(&text);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let devices = tokio::spawn(async move {
            fleet::run(fleet, watch::channel(FleetProgress::default()).0, stopped).await.unwrap();
        });
        let dir = servers.dir.path().join("prometheus");
        let prometheus = Prometheus::start(&dir, &with_rules(&[listen], "1s"));
        World { prometheus, service, devices, stop, _receiver: receiver, _servers: servers }
    }

    /// How many series or rows a query of a panel returns now.
    async fn rows(&self, target: &Value) -> usize {
        let query = chosen(&target["expr"]);
        let answer = if target["instant"] == true {
            self.prometheus.page("query", &[("query", &query)]).await
        } else {
            let now = Clock::system().now().as_millis() / 1000;
            let (start, end) = ((now - 20).to_string(), now.to_string());
            let range = [("query", query.as_str()), ("start", &start), ("end", &end), ("step", "1")];
            self.prometheus.page("query_range", &range).await
        };
        list(&answer, "result").len()
    }

    /// Repeats a panel's queries until one of them returns something.
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

    /// Whether a variable has values.
    async fn offers_something(&self, variable: &Value) -> bool {
        let query = &chosen(&variable["query"]);
        let asked = query.strip_prefix("query_result(").and_then(|rest| rest.strip_suffix(')'));
        if let Some(asked) = asked {
            // The variable's pattern takes the values from the names of series.
            let found = self.prometheus.page("query", &[("query", asked)]).await;
            let name = variable["regex"].as_str().and_then(|it| it.strip_prefix('/')?.split('=').next());
            return list(&found, "result").iter().any(|one| one["metric"][name.unwrap()].is_string());
        }
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (series, label) = inner.and_then(|inner| inner.split_once(", ")).expect(query);
        let values = self.prometheus.page(&format!("label/{label}/values"), &[("match[]", series)]).await;
        !values.as_array().unwrap().is_empty()
    }

    async fn end(self) {
        self.stop.cancel();
        self.service.end().await;
        self.devices.await.unwrap();
    }
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
    // Otherwise a part of a query that is always empty would not be noticed.
    let known = world.prometheus.page("label/__name__/values", &[]).await;
    let known: BTreeSet<String> = serde_json::from_value(known).unwrap();
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty() && named.len() > 25, "Rollcall tells nothing of {unknown:?}");
    for rule in rules().iter().filter_map(|rule| rule["record"].as_str()) {
        assert!(known.contains(rule), "nothing is recorded as {rule}");
    }
    let called = "count by (command) (rollcall_engine_command_duration_seconds_count > 0)";
    let known = world.prometheus.query(called).await;
    let known = known.iter().map(|row| row["metric"]["command"].as_str().unwrap().to_owned());
    let known: BTreeSet<String> = known.collect();
    let unknown: Vec<_> = commands().into_iter().filter(|command| !known.contains(command)).collect();
    assert!(unknown.is_empty(), "Rollcall does not call its engine for {unknown:?}");
    // Other alerts may be pending: units of this fleet fall silent all the time.
    let firing = world.prometheus.query(FIRING).await;
    assert!(firing.is_empty(), "{firing:?}");
    world.end().await;
}

/// The engine commands that dashboards and rules name.
fn commands() -> BTreeSet<String> {
    let (dashboards, rules) = (dashboards(), rules());
    let mut found = Vec::new();
    dashboards.iter().for_each(|(_, dashboard)| texts(dashboard, &mut found));
    rules.iter().for_each(|rule| texts(rule, &mut found));
    let named = found.iter().flat_map(|text| text.split("command=").skip(1));
    let named = named.filter_map(|rest| rest.trim_start_matches('~').split('"').nth(1));
    let commands: BTreeSet<String> = named.flat_map(|names| names.split('|')).map(str::to_owned).collect();
    assert!(commands.len() >= 10, "{commands:?}");
    commands
}

/// Alerts of a healthy Rollcall; the watchdog always fires.
const FIRING: &str = r#"ALERTS{alertstate="firing", alertname!="RollcallWatchdog"}"#;

/// The shipped rules.
fn rules() -> Vec<Value> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/prometheus/rules");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()));
    let parsed = files.map(|text| serde_yaml_ng::from_str::<Value>(&text.unwrap()).unwrap());
    let groups: Vec<Value> = parsed.flat_map(|file| list(&file, "groups").to_vec()).collect();
    groups.iter().flat_map(|group| list(group, "rules").to_vec()).collect()
}

/// All strings, at any depth.
fn texts<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| texts(field, found)),
        _ => {}
    }
}

#[test]
fn dashboards_lead_to_one_another_and_to_nothing_that_is_gone() {
    let all = dashboards();
    let uids: BTreeSet<&str> = all.iter().filter_map(|(_, it)| it["uid"].as_str()).collect();
    assert_eq!(uids.len(), all.len(), "a uid is there twice");
    assert!(uids.len() >= 4, "{uids:?}");
    let mut linked = 0;
    for (path, dashboard) in &all {
        let tag = &list(&list(dashboard, "links")[0], "tags")[0];
        assert!(list(dashboard, "tags").contains(tag), "{} is not among those it leads to", path.display());
        let mut found = Vec::new();
        texts(dashboard, &mut found);
        for rest in found.iter().filter_map(|text| text.strip_prefix("/d/")) {
            let uid = rest.split(['?', '/']).next().unwrap();
            assert!(uids.contains(uid), "{}: /d/{uid}", path.display());
            linked += 1;
        }
    }
    assert!(linked >= 2, "no unit leads to its page");
}

#[test]
fn every_row_of_a_unit_leads_to_its_page() {
    let mut rows = 0;
    for (path, dashboard) in dashboards() {
        let has_address = list(&dashboard["templating"], "list").iter().any(|it| it["name"] == "rollcall");
        for panel in panels(&dashboard).filter(|panel| panel["type"] == "table") {
            let overrides = list(&panel["fieldConfig"], "overrides").iter();
            let mut of_unit = overrides.filter(|one| one["matcher"]["options"] == "Unit").peekable();
            if of_unit.peek().is_some_and(|_| panel["datasource"]["type"] == "prometheus") {
                let mut found = Vec::new();
                of_unit.for_each(|one| texts(one, &mut found));
                let page = "${rollcall}/units/${__data.fields.Kind:percentencode}/${__data.fields.Unit:percentencode}";
                let (path, title) = (path.display(), &panel["title"]);
                assert!(has_address && found.contains(&page), "{path}: {title}: {found:?}");
                rows += 1;
            }
        }
    }
    assert!(rows >= 2, "{rows}");
}

/// Green is online: a count of offline units has no colour of a palette.
#[test]
fn colours_mean_states() {
    let mut counted = 0;
    for (path, dashboard) in dashboards() {
        for panel in panels(&dashboard).filter(|panel| panel["type"] == "timeseries") {
            let defaults = &panel["fieldConfig"]["defaults"]["color"];
            let is_offline = |target: &Value| {
                target["expr"].as_str().is_some_and(|asked| asked.contains("state=\"offline\""))
            };
            if list(panel, "targets").iter().all(is_offline) {
                let colours = format!("{defaults} {}", panel["fieldConfig"]["overrides"]);
                let title = &panel["title"];
                assert!(
                    colours.contains("red") && !colours.contains("palette"),
                    "{}: {title}: {colours}",
                    path.display()
                );
                counted += 1;
            }
        }
    }
    assert!(counted >= 2, "{counted}");
}

#[test]
fn every_variable_that_is_asked_for_can_be_chosen() {
    for (path, dashboard) in dashboards() {
        let variables = list(&dashboard["templating"], "list").iter().map(|it| it["name"].as_str().unwrap());
        let variables: BTreeSet<&str> = variables.collect();
        for target in panels(&dashboard).flat_map(|panel| list(panel, "targets")) {
            let expression = target["expr"].as_str().unwrap();
            for rest in expression.split('$').skip(1) {
                let name = rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap();
                let known = name.starts_with("__") || name == "1" || variables.contains(name);
                assert!(known, "{}: ${name} in {expression}", path.display());
            }
        }
    }
}

/// An event must be one bar: overlapping windows show it again and again. A rate over a step plus one scrape, times
/// the step, counts each increase once; steps have to be longer than a few scrapes for that.
#[test]
fn an_event_is_shown_once() {
    let mut counted = 0;
    for (path, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            for target in list(panel, "targets").iter().filter(|target| target["instant"] != true) {
                let (title, expression) = (&panel["title"], target["expr"].as_str().unwrap());
                let overlaps = expression.contains("increase(") && expression.contains("[$__");
                assert!(!overlaps, "{}: {title}: {expression}", path.display());
                if expression.contains("$__interval_ms") {
                    assert_eq!(panel["interval"], "1m", "{}: {title}", path.display());
                    counted += 1;
                }
            }
        }
    }
    assert!(counted >= 4, "{counted} counts of what happened");
}

/// An axis has labels at fractions, too: 1.5 K without decimals is 2 K.
#[test]
fn no_axis_is_rounded() {
    for (path, dashboard) in dashboards() {
        for panel in panels(&dashboard).filter(|panel| panel["type"] == "timeseries") {
            let shown = &panel["fieldConfig"]["defaults"];
            let (unit, title) = (shown["unit"].as_str().unwrap(), &panel["title"]);
            assert!(shown["decimals"].is_null() && unit != "short", "{}: {title}", path.display());
        }
    }
}

/// An operator selects the *kind* first: no panel beside it may show all kinds. Panels about Rollcall itself
/// have no kind.
#[test]
fn the_fleet_shows_only_the_chosen_kind() {
    let all = dashboards();
    let fleet = all.iter().find(|(path, _)| path.ends_with("fleet-overview.json")).unwrap();
    for panel in panels(&fleet.1) {
        for target in list(panel, "targets") {
            let expression = target["expr"].as_str().unwrap();
            let of_units = metrics(expression).iter().any(|name| name.starts_with("rollcall_unit"));
            assert_eq!(expression.contains("$kind"), of_units, "{}: {expression}", panel["title"]);
            let of_itself = ["rollcall_blind", "rollcall_engine_up", "rollcall_mqtt_connected"];
            assert!(of_units || of_itself.iter().any(|name| expression.contains(name)), "{expression}");
        }
    }
}

/// Whether two panels overlap on the grid.
fn overlap(a: &Value, b: &Value) -> bool {
    let side = |it: &Value, key: &str| it[key].as_u64().unwrap();
    let apart = |from: &str, length: &str| {
        side(a, from) + side(a, length) <= side(b, from) || side(b, from) + side(b, length) <= side(a, from)
    };
    !apart("x", "w") && !apart("y", "h")
}

#[test]
fn no_panel_covers_another_or_leaves_the_page() {
    for (path, dashboard) in dashboards() {
        let places: Vec<_> = list(&dashboard, "panels").iter().map(|panel| &panel["gridPos"]).collect();
        for (index, place) in places.iter().enumerate() {
            assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{place}");
            let covered = places[..index].iter().find(|other| overlap(place, other));
            assert!(covered.is_none(), "{}: {place} covers {covered:?}", path.display());
        }
    }
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

//! An HTTP server over a fleet, with a clock of its own.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Response};
use rollcall::clock::{Clock, Timestamp};
use rollcall::config;
use rollcall::fleet::coverage::Coverage;
use rollcall::fleet::ownership::View;
use rollcall::fleet::timers::TimerRules;
use rollcall::fleet::{FlapRules, HearingConfig, Rules};
use rollcall::fleet::{Mirror, Ownership, Roll, Silences, Timers};
use rollcall::http::{
    self, AlertRoutes, Config, PageSources, Proxies, ShownConfiguration, Token, UnitMetrics,
};
use rollcall::intake::Bodies;
use rollcall::presence::{
    Declared, Guarantee, Heartbeat, Kind, KindRules, Labels, MassOfflineRule, Policy, TimerClass, TimerType,
    Unit,
};
use rollcall::routing::{Inhibition, Route, Routes, parse_matchers};
use rollcall::simulate::servers::Server;
use rollcall::store::Layout;
use rollcall::store::redis::RedisEngine;
use rollcall::store::{Catalogue, DataStore, Metric, MetricType, Reading, StoredDeliveries, StoredGroups};
use rollcall::telemetry::Telemetry;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::openapi::assert_described;
use crate::support::redis as private;

pub const SECOND: Duration = Duration::from_secs(1);
pub const MAX_WAIT: Duration = Duration::from_secs(120);
const BREAKER: MassOfflineRule =
    MassOfflineRule { share: 0.5, min_units: 50, window: SECOND, max_hold: Duration::from_secs(600) };

/// 2026-03-01T12:00:00Z
pub const NOON: Timestamp = Timestamp::from_millis(1_772_366_400_000);

/// Meters announce that they are gone, as proof.
const INTAKE: &str = "mqtt.max_age = '1d'\n[[kind]]\nname = 'detector'\n[[kind]]\nname = 'meter'\ntopics = []\n\
                      presence = { format = 'last_will', trust = 'proof' }";

/// A server over a fleet of kinds `detector` (100 s, 20 s grace) and `meter` (48 h), at noon.
pub struct Fleet {
    pub url: String,
    pub client: Client,
    pub engine: Arc<RedisEngine>,
    pub roll: Arc<Roll>,
    pub mirror: Arc<Mirror>,
    pub timers: Arc<Timers>,
    pub bodies: Arc<Bodies>,
    pub telemetry: Arc<Telemetry>,
    pub clock: Clock,
    pub routes: watch::Sender<Arc<AlertRoutes>>,
    pub stop: CancellationToken,
    pub server: JoinHandle<anyhow::Result<()>>,
    pub redis: Server,
    /// The last field, so that the server has ended when the directory is removed.
    _dir: TempDir,
}

impl Fleet {
    pub async fn start() -> Fleet {
        Fleet::start_with(Vec::new(), UnitMetrics::All).await
    }

    pub async fn start_with(tokens: Vec<Token>, unit_metrics: UnitMetrics) -> Fleet {
        Fleet::start_configured(|config| (config.tokens, config.unit_metrics) = (tokens, unit_metrics)).await
    }

    pub async fn start_configured(configure: impl FnOnce(&mut Config)) -> Fleet {
        Fleet::start_as(View::new("one", vec!["one".into(), "two".into()], 2), configure).await
    }

    /// The only instance of its fleet.
    pub async fn start_alone(configure: impl FnOnce(&mut Config)) -> Fleet {
        Fleet::start_as(View::new("one", vec!["one".into()], 16), configure).await
    }

    async fn start_as(view: View, configure: impl FnOnce(&mut Config)) -> Fleet {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let clock = Clock::by_hand(NOON);
        let dir = tempfile::tempdir().unwrap();
        let (redis, engine) = private::engine(dir.path()).await;
        let rules = rules();
        let mirror = Mirror::new(rules.clone(), engine.partitions()).with_labels(&["site".to_owned()]);
        let mirror = Arc::new(mirror);
        let telemetry = Arc::new(Telemetry::new(&clock));
        let config =
            HearingConfig { gap: 3 * SECOND, follows: false, settle: 300 * SECOND, tell_after: 300 * SECOND };
        let outbox_grew = Arc::new(Notify::new());
        let roll = Arc::new(Roll::new(
            engine.clone(),
            rules,
            mirror.clone(),
            telemetry.clone(),
            config,
            outbox_grew,
        ));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listen = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let timers = Timers::new(engine.clone(), timer_rules(), Arc::default(), telemetry.clone());
        let timers = Arc::new(timers);
        let silences = Arc::new(Silences::new(engine.clone()));
        let intake = config::parse(INTAKE, None, []).unwrap().intake;
        let bodies = Bodies::new(&intake, roll.shared_rules().clone(), None, telemetry.clone());
        let bodies = Arc::new(bodies);
        let current = watch::Sender::new(Arc::new(routes()));
        let sources = PageSources {
            ownership: Ownership::fixed(view),
            units: engine.clone(),
            records: engine.clone(),
            deliveries: StoredDeliveries::new(engine.clone()),
            groups: StoredGroups::new(engine.clone()),
            values: engine.clone(),
            roster: engine.clone(),
            roll: roll.clone(),
            mirror: mirror.clone(),
            metrics: Arc::new(Catalogue::new([(rules_of("detector").kind, metrics())])),
            cells: engine.clone(),
            bodies: bodies.clone(),
            coverage: Arc::new(Coverage::new(silences.clone())),
            silences,
            timers: timers.clone(),
            history: None,
            keep_records: 90 * 86_400 * SECOND,
            keep_deliveries: 7 * 86_400 * SECOND,
            routes: current.subscribe(),
            reloads: None,
            configuration: watch::Sender::new(Arc::new(configuration())).subscribe(),
            telemetry: telemetry.clone(),
            clock: clock.clone(),
        };
        let mut config = Config {
            listen,
            tokens: Vec::new(),
            unit_metrics: UnitMetrics::All,
            unit_metrics_limit: 1_000_000,
            requests_per_second: 0,
            external_url: None,
            tls: None,
            proxies: Proxies::default(),
            switches: None,
            example_topic: None,
        };
        configure(&mut config);
        let pages = http::Pages::new(config, "one", telemetry.clone());
        pages.show(sources, &stop);
        let server = tokio::spawn(http::serve(listener, pages, telemetry.clone(), stop.clone()));
        let client = Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{listen}");
        let _dir = dir;
        Fleet {
            url,
            client,
            engine,
            roll,
            mirror,
            timers,
            bodies,
            telemetry,
            clock,
            routes: current,
            stop,
            server,
            redis,
            _dir,
        }
    }

    pub async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    pub async fn text(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        response.text().await.unwrap()
    }

    pub async fn json(&self, path: &str) -> Value {
        let answer = serde_json::from_str(&self.text(path).await).unwrap();
        assert_described(path, &answer);
        answer
    }

    pub async fn hear(&self, units: &[&str]) {
        let now = self.clock.now();
        let beat = |unit: &&str| Heartbeat::of(the(unit), now);
        let beats: Vec<Heartbeat> = units.iter().map(beat).collect();
        self.roll.hear(&beats, now).await.unwrap();
    }

    /// Hears a heartbeat of a unit at this site.
    pub async fn hear_at(&self, site: &str, unit: &str) {
        let labels = Labels::from([("site".to_owned(), site.to_owned())]);
        let declared = Declared { labels, ..Declared::default() };
        let now = self.clock.now();
        let beat = Heartbeat { declared, ..Heartbeat::of(the(unit), now) };
        self.roll.hear(&[beat], now).await.unwrap();
    }

    pub async fn report(&self, unit: &str, metric: &str, value: &str) {
        let reading = Reading { unit: &the(unit), metric, at: self.clock.now(), value };
        self.engine.keep_values(&[reading]).await.unwrap();
    }

    /// Advances the clock, with everything heard, and checks the units.
    pub async fn pass(&self, span: Duration, units: &[&str]) {
        let end = self.clock.now() + span;
        // Canaries further apart would enclose blind time.
        while self.clock.now() < end {
            self.clock.advance(end.since(self.clock.now()).min(self.roll.gap()));
            self.roll.canary_returned(self.clock.now()).await.unwrap();
        }
        let units: Vec<Unit> = units.iter().map(|unit| the(unit)).collect();
        self.roll.check_deadlines(&units, self.clock.now()).await.unwrap();
    }

    pub fn fill(&self) {
        for partition in 0..self.engine.partitions() {
            let mark = self.mirror.mark(partition);
            self.mirror.finish(mark, self.clock.now());
        }
    }
}

/// The metrics of detectors.
pub fn metrics() -> Vec<Metric> {
    let metric = |name: &str, metric_type, unit: &str| Metric {
        name: name.to_owned(),
        pointer: vec!["any".to_owned()],
        metric_type,
        help: format!("Of a detector: {name}."),
        unit: unit.to_owned(),
        label: "version".to_owned(),
    };
    vec![
        metric("detector_firmware_info", MetricType::Info, ""),
        metric("detector_battery_volts", MetricType::Gauge, "volts"),
        metric("detector_alarms_total", MetricType::Counter, ""),
    ]
}

/// Detectors go to `mail`, grouped by site; all others to `hook`.
fn routes() -> AlertRoutes {
    let of = |receiver: &str, group_by: &str| Route {
        receivers: vec![receiver.to_owned()],
        group_by: vec![group_by.to_owned()],
        ..Route::default()
    };
    let detectors = Route { matchers: parse_matchers("kind=detector").unwrap(), ..of("mail", "site") };
    let routes = Routes::new(Route { routes: vec![detectors], ..of("hook", "kind") });
    let receivers = ["hook", "mail"].map(str::to_owned).into();
    let types = [("hook", "webhook"), ("mail", "email")];
    let types = types.map(|(name, of)| (name.to_owned(), of)).into();
    let (inhibition, flapping) = (Inhibition::default(), FlapRules::new());
    AlertRoutes {
        routes,
        receivers,
        types,
        limited: Default::default(),
        inhibition,
        breaker: Some(BREAKER),
        unsent: None,
        flapping,
    }
}

/// `report` may have five timers that wait, `command` any number; a token may ask for 1000 a second.
pub fn timer_rules() -> TimerRules {
    let class = |name: &str, most: u64| {
        let timer_type: TimerType = name.parse().unwrap();
        let receivers = vec!["hook".to_owned()];
        let guarantee = Guarantee::AtLeastOnce;
        let class =
            TimerClass { timer_type: timer_type.clone(), receivers, guarantee, keep: 3600 * SECOND, most };
        (timer_type, class)
    };
    let classes = [class("report", 5), class("command", 1_000_000)].into();
    TimerRules { classes, reports: Vec::new(), most: 1_000_000, rate: 1000 }
}

/// The options on the page of the configuration.
fn configuration() -> ShownConfiguration {
    let text = r#"
        engine.url = "redis://roll:hunter2@redis.example.org"
        http.count_by_labels = ["site"]
        [[kind]]
        name = "detector"
        timeout = "100s"
        grace = "20s"
        [[receiver]]
        name = "hook"
        type = "webhook"
        url = "https://hooks.example.org/services/hunter2"
    "#;
    let variables = [("ROLLCALL_MQTT__CLIENT_ID".to_owned(), "one <script>".to_owned())];
    config::parse(text, None, variables).expect("it is valid").shown
}

pub fn rules_of(kind: &str) -> KindRules {
    rules()[&kind.parse::<Kind>().unwrap()].clone()
}

pub fn rules() -> Arc<Rules> {
    let detector: Kind = "detector".parse().unwrap();
    let meter: Kind = "meter".parse().unwrap();
    let policy = Policy { timeout: 100 * SECOND, grace: 20 * SECOND };
    Arc::new(Rules::from_iter([
        (detector.clone(), KindRules { policy, ..KindRules::new(detector) }),
        (meter.clone(), KindRules::new(meter)),
    ]))
}

pub fn the(unit: &str) -> Unit {
    unit.parse().unwrap()
}

/// The samples of that name.
pub fn samples<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(name)).collect()
}

pub async fn assert_problem(response: Response, status: u16) -> Value {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    let problem: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(problem["status"], status);
    assert_eq!(problem["type"], "about:blank");
    for field in ["title", "detail"] {
        assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
    }
    problem
}

pub fn assert_promtool_accepts(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is in the Debian package prometheus");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}

//! What Rollcall shows, asked over a real connection.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, WWW_AUTHENTICATE};
use reqwest::{Client, Method, Response};
use rollcall::clock::{Clock, Timestamp};
use rollcall::engine::redis::RedisEngine;
use rollcall::engine::roll::{HearingConfig, Rules};
use rollcall::engine::roster::View;
use rollcall::engine::{
    Catalogue, DataStore, Metric, MetricType, Mirror, Ownership, Reading, Roll, Roster, UnitStore,
};
use rollcall::http::{self, Config, Role, Shown, Token, UnitMetrics};
use rollcall::presence::{
    Declared, Heartbeat, Interval, Kind, KindRules, Labels, Override, Policy, Registration, Unit,
};
use rollcall::simulate::servers::Server;
use rollcall::telemetry::{Ailment, Telemetry};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[path = "support/redis.rs"]
mod private;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// 2026-03-01T12:00:00Z
const NOON: Timestamp = Timestamp::from_millis(1_772_366_400_000);

/// A served fleet of kinds `detector` (100 s, 20 s grace) and `meter` (48 h), at noon.
struct Fleet {
    url: String,
    client: Client,
    engine: Arc<RedisEngine>,
    roll: Arc<Roll>,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    stop: CancellationToken,
    server: JoinHandle<anyhow::Result<()>>,
    redis: Server,
    /// The last one, so that the server has ended when it is removed.
    _dir: TempDir,
}

impl Fleet {
    async fn start() -> Fleet {
        Fleet::start_with(Vec::new(), UnitMetrics::All).await
    }

    async fn start_with(tokens: Vec<Token>, unit_metrics: UnitMetrics) -> Fleet {
        Fleet::start_limited(tokens, unit_metrics, 1_000_000).await
    }

    async fn start_limited(tokens: Vec<Token>, unit_metrics: UnitMetrics, unit_metrics_limit: u64) -> Fleet {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let clock = Clock::by_hand(NOON);
        let dir = tempfile::tempdir().unwrap();
        let (redis, engine) = private::engine(dir.path()).await;
        let rules = rules();
        let mirror = Mirror::new(rules.clone(), engine.partitions()).with_labels(&["site".to_owned()]);
        let mirror = Arc::new(mirror);
        let telemetry = Arc::new(Telemetry::new(&clock));
        let config = HearingConfig { gap: 3 * SECOND, settle: 300 * SECOND, tell: 300 * SECOND };
        let news = Arc::new(Notify::new());
        let roll =
            Arc::new(Roll::new(engine.clone(), rules, mirror.clone(), telemetry.clone(), config, news));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listen = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let shown = Shown {
            ownership: Ownership::fixed(View::new("one", vec!["one".into(), "two".into()], 2)),
            engine: engine.clone(),
            roll: roll.clone(),
            mirror: mirror.clone(),
            metrics: Arc::new(Catalogue::new([(rules_of("detector").kind, metrics())])),
            telemetry: telemetry.clone(),
            clock: clock.clone(),
        };
        let config = Config { listen, tokens, unit_metrics, unit_metrics_limit };
        let server = tokio::spawn(http::serve(config, listener, shown, stop.clone()));
        let client = Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{listen}");
        Fleet { url, client, engine, roll, mirror, telemetry, clock, stop, server, redis, _dir: dir }
    }

    async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    async fn text(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        response.text().await.unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await).unwrap()
    }

    async fn hear(&self, units: &[&str]) {
        let now = self.clock.now();
        let beat = |unit: &&str| Heartbeat {
            unit: the(unit),
            at: now,
            not_before: None,
            declared: Declared::default(),
        };
        let beats: Vec<Heartbeat> = units.iter().map(beat).collect();
        self.roll.hear(&beats, now).await.unwrap();
    }

    /// A heartbeat of a unit at that site.
    async fn hear_at(&self, site: &str, unit: &str) {
        let labels = Labels::from([("site".to_owned(), site.to_owned())]);
        let declared = Declared { labels, ..Declared::default() };
        let now = self.clock.now();
        let beat = Heartbeat { unit: the(unit), at: now, not_before: None, declared };
        self.roll.hear(&[beat], now).await.unwrap();
    }

    /// A unit tells something of itself.
    async fn tell(&self, unit: &str, metric: &str, value: &str) {
        let reading = Reading { unit: &the(unit), metric, at: self.clock.now(), value };
        self.engine.keep_values(&[reading]).await.unwrap();
    }

    /// That much later, all of it heard, and the units were looked at.
    async fn pass(&self, span: Duration, units: &[&str]) {
        let end = self.clock.now() + span;
        // Canaries further apart would enclose blind time.
        while self.clock.now() < end {
            self.clock.advance(end.since(self.clock.now()).min(self.roll.gap()));
            self.roll.canary_returned(self.clock.now()).await.unwrap();
        }
        let units: Vec<Unit> = units.iter().map(|unit| the(unit)).collect();
        self.roll.look(&units, self.clock.now()).await.unwrap();
    }

    fn fill(&self) {
        for partition in 0..self.engine.partitions() {
            let mark = self.mirror.mark(partition);
            self.mirror.finish(mark, self.clock.now());
        }
    }
}

/// What detectors tell of themselves.
fn metrics() -> Vec<Metric> {
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

fn rules_of(kind: &str) -> KindRules {
    rules()[&kind.parse::<Kind>().unwrap()].clone()
}

fn rules() -> Arc<Rules> {
    let detector: Kind = "detector".parse().unwrap();
    let meter: Kind = "meter".parse().unwrap();
    let policy = Policy { timeout: 100 * SECOND, grace: 20 * SECOND };
    Arc::new(Rules::from([
        (detector.clone(), KindRules { policy, ..KindRules::new(detector) }),
        (meter.clone(), KindRules::new(meter)),
    ]))
}

fn the(unit: &str) -> Unit {
    unit.parse().unwrap()
}

/// Lines that are samples of that name.
fn samples<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(name)).collect()
}

async fn assert_problem(response: Response, status: u16) -> Value {
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

fn assert_promtool_accepts(text: &str) {
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

#[tokio::test]
async fn metrics_are_what_promtool_accepts_and_start_at_zero() {
    let fleet = Fleet::start().await;
    let response = fleet.get("/metrics").await;
    assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let text = response.text().await.unwrap();
    assert_promtool_accepts(&text);
    for kind in ["detector", "meter"] {
        for state in ["online", "late", "offline", "never_seen", "paused", "unknown"] {
            let line = format!("rollcall_units{{kind=\"{kind}\",state=\"{state}\"}} 0");
            assert!(text.lines().any(|other| other == line), "{line}");
        }
    }
    for window in ["1m", "5m", "15m", "1h", "6h", "24h", "48h", "7d"] {
        let line = format!("rollcall_units_seen_within{{window=\"{window}\"}} 0");
        assert!(text.lines().any(|other| other == line), "{line}");
    }
    for ailment in Ailment::ALL {
        let line = format!("rollcall_engine_warning{{name=\"{}\"}} 0", ailment.as_str());
        assert!(text.lines().any(|other| other == line), "{line}");
    }
    assert!(text.lines().filter(|line| !line.starts_with('#')).count() < 500);
}

#[tokio::test]
async fn metrics_count_units_as_they_are_at_the_moment() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1", "detector:2", "meter:1"]).await;
    fleet.pass(110 * SECOND, &[]).await;
    fleet.hear(&["detector:2"]).await;
    let text = fleet.text("/metrics").await;
    for line in [
        "rollcall_units{kind=\"detector\",state=\"online\"} 1",
        "rollcall_units{kind=\"detector\",state=\"late\"} 1",
        "rollcall_units{kind=\"meter\",state=\"online\"} 1",
        "rollcall_units_seen_within{window=\"1m\"} 1",
        "rollcall_units_seen_within{window=\"5m\"} 3",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn each_unit_has_two_series_with_the_samples_of_a_family_together() {
    let fleet = Fleet::start().await;
    let odd = r#"meter:say "hé" \ \n"#;
    fleet.hear(&["detector:1", odd]).await;
    fleet.roll.register(&the("meter:new"), &Registration::default(), fleet.clock.now()).await.unwrap();
    fleet.pass(121 * SECOND, &["detector:1"]).await;
    let response = fleet.get("/metrics/units").await;
    assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let text = response.text().await.unwrap();
    assert_promtool_accepts(&text);
    let mut lines: Vec<&str> = text.lines().filter(|line| line.contains("rollcall_unit_up")).collect();
    lines.extend(text.lines().filter(|line| line.contains("rollcall_unit_last_seen")));
    lines[2..5].sort();
    lines[7..].sort();
    assert_eq!(
        lines,
        [
            "# HELP rollcall_unit_up 1 if the unit is present, 0 if it is offline or was never heard.",
            "# TYPE rollcall_unit_up gauge",
            r#"rollcall_unit_up{kind="detector",unit="1"} 0"#,
            r#"rollcall_unit_up{kind="meter",unit="new"} 0"#,
            r#"rollcall_unit_up{kind="meter",unit="say \"hé\" \\ \\n"} 1"#,
            "# HELP rollcall_unit_last_seen_timestamp_seconds When the unit was last heard.",
            "# TYPE rollcall_unit_last_seen_timestamp_seconds gauge",
            r#"rollcall_unit_last_seen_timestamp_seconds{kind="detector",unit="1"} 1772366400.000"#,
            r#"rollcall_unit_last_seen_timestamp_seconds{kind="meter",unit="say \"hé\" \\ \\n"} 1772366400.000"#,
        ]
    );
    for (line, count) in [("rollcall_unit_metrics_truncated 0", 1), ("rollcall_unit_values_read 1", 1)] {
        assert_eq!(text.lines().filter(|other| *other == line).count(), count, "{line}");
    }
}

#[tokio::test]
async fn a_removed_unit_leaves_the_metrics_at_once() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1", "detector:2"]).await;
    fleet.roll.retire(&the("detector:1"), fleet.clock.now()).await.unwrap();
    fleet.hear(&["detector:1"]).await;
    let text = fleet.text("/metrics/units").await;
    assert_eq!(samples(&text, "rollcall_unit_up"), [r#"rollcall_unit_up{kind="detector",unit="2"} 1"#]);
}

#[tokio::test]
async fn the_mode_chooses_all_units_those_that_are_offline_or_none() {
    let fleet = Fleet::start_with(Vec::new(), UnitMetrics::Off).await;
    fleet.hear(&["detector:1", "meter:1", "meter:2"]).await;
    fleet.pass(121 * SECOND, &["detector:1"]).await;
    for (query, expected) in [("", 0), ("?mode=off", 0), ("?mode=offline", 1), ("?mode=all", 3)] {
        let text = fleet.text(&format!("/metrics/units{query}")).await;
        for family in ["rollcall_unit_up{", "rollcall_unit_last_seen_timestamp_seconds{"] {
            assert_eq!(samples(&text, family).len(), expected, "{query} {family}");
        }
    }
    for query in ["?mode=some", "?mod=all"] {
        let problem = assert_problem(fleet.get(&format!("/metrics/units{query}")).await, 400).await;
        assert!(problem["detail"].as_str().unwrap().contains("mod"), "{problem}");
    }
}

#[tokio::test]
async fn a_large_fleet_is_listed_completely_also_compressed() {
    let fleet = Fleet::start().await;
    for number in 0..30_000 {
        fleet.mirror.seen(&the(&format!("meter:sensor-{number}")), fleet.clock.now());
    }
    let plain = fleet.text("/metrics/units").await;
    for family in ["rollcall_unit_up{", "rollcall_unit_last_seen_timestamp_seconds{"] {
        let mut all = samples(&plain, family);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 30_000);
    }
    let url = format!("{}/metrics/units", fleet.url);
    let response = fleet.client.get(url).header(ACCEPT_ENCODING, "gzip").send().await.unwrap();
    assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
    let compressed = response.bytes().await.unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(&compressed[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, plain);
}

/// A fleet whose list is larger than what sockets hold, so that a client who does not read holds
/// up the writing.
async fn large() -> Fleet {
    let fleet = Fleet::start().await;
    for number in 0..200_000 {
        fleet.mirror.seen(&the(&format!("meter:{number:0100}")), fleet.clock.now());
    }
    fleet
}

#[tokio::test]
async fn a_shard_is_written_for_one_client_at_a_time_and_no_longer_when_it_is_gone() {
    let fleet = large().await;
    let first = fleet.get("/metrics/units?shard=0&shards=2").await;
    let other = fleet.get("/metrics/units?shard=1&shards=2").await;
    assert_eq!([first.status().as_u16(), other.status().as_u16()], [200, 200], "each shard for one");
    // Who comes in between is refused after a while, or answered when the place is free.
    assert_problem(fleet.get("/metrics/units?shard=0&shards=2").await, 503).await;
    let waiting = fleet.get("/metrics/units?shard=0&shards=2");
    let (waited, ()) = tokio::join!(waiting, async { drop(first) });
    assert_eq!(waited.status(), 200);
    drop(other);
    let freed = async { while fleet.get("/metrics/units?shard=1&shards=2").await.status() != 200 {} };
    tokio::time::timeout(PATIENCE, freed).await.expect("its place becomes free");
}

#[tokio::test]
async fn each_unit_is_in_one_shard() {
    let fleet = Fleet::start().await;
    let units: Vec<String> = (0..50).map(|number| format!("meter:{number}")).collect();
    fleet.hear(&units.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut all = Vec::new();
    for shard in 0..2 {
        let text = fleet.text(&format!("/metrics/units?shard={shard}&shards=2")).await;
        let up = samples(&text, "rollcall_unit_up{");
        assert!(up.len() > 10, "shard {shard} has {}", up.len());
        assert_eq!(samples(&text, "rollcall_unit_last_seen_timestamp_seconds{").len(), up.len());
        all.extend(up.into_iter().map(str::to_owned));
    }
    let text = fleet.text("/metrics/units").await;
    let mut whole = samples(&text, "rollcall_unit_up{");
    whole.sort();
    all.sort();
    assert_eq!(all, whole);
}

#[tokio::test]
async fn units_are_chosen_by_kind_and_by_a_label_that_they_are_counted_by() {
    let fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:1").await;
    fleet.hear_at("south", "detector:2").await;
    fleet.hear_at("north", "meter:1").await;
    fleet.hear(&["meter:2"]).await;
    for unit in ["detector:1", "detector:2"] {
        fleet.tell(unit, "detector_battery_volts", "3.6").await;
    }
    for (query, up, volts) in [
        ("", 4, 2),
        ("?kind=meter", 2, 0),
        ("?kind=detector&label=site=south", 1, 1),
        ("?label=site=north", 2, 1),
        ("?label=site=nowhere", 0, 0),
        ("?label=site%3Dnorth&mode=offline", 0, 0),
        ("?mode=off", 0, 0),
    ] {
        let text = fleet.text(&format!("/metrics/units{query}")).await;
        assert_eq!(samples(&text, "rollcall_unit_up{").len(), up, "{query}");
        assert_eq!(samples(&text, "detector_battery_volts{").len(), volts, "{query}");
    }
    for (query, word) in [
        ("kind=lamp", "lamp"),
        ("label=site", "name=value"),
        ("label=floor=3", "http.count_by_labels"),
        ("shard=2&shards=2", "from 0"),
        ("shard=0&shards=3", "engine.partitions"),
        ("shard=0", "belong together"),
    ] {
        let problem = assert_problem(fleet.get(&format!("/metrics/units?{query}")).await, 400).await;
        assert!(problem["detail"].as_str().unwrap().contains(word), "{query}: {problem}");
    }
}

#[tokio::test]
async fn units_beyond_the_limit_are_left_out_and_counted() {
    let fleet = Fleet::start_limited(Vec::new(), UnitMetrics::All, 3).await;
    fleet.hear(&["detector:1", "detector:2", "meter:1", "meter:2", "meter:3"]).await;
    for (query, shown, left_out) in [("", 3, 2), ("?kind=meter", 3, 0), ("?kind=detector", 2, 0)] {
        let text = fleet.text(&format!("/metrics/units{query}")).await;
        for family in ["rollcall_unit_up{", "rollcall_unit_last_seen_timestamp_seconds{"] {
            assert_eq!(samples(&text, family).len(), shown, "{query} {family}");
        }
        let line = format!("rollcall_unit_metrics_truncated {left_out}");
        assert_eq!(samples(&text, "rollcall_unit_metrics_truncated"), [line], "{query}");
    }
}

#[tokio::test]
async fn who_asks_for_openmetrics_gets_it() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1"]).await;
    fleet.tell("detector:1", "detector_alarms_total", "7").await;
    fleet.tell("detector:1", "detector_firmware_info", "v1").await;
    fleet.tell("detector:1", "detector_battery_volts", "3.6").await;
    for page in ["/metrics/units", "/probe?unit=detector:1"] {
        let request = fleet.client.get(format!("{}{page}", fleet.url));
        let response = request.header(ACCEPT, "application/openmetrics-text").send().await.unwrap();
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!(response.headers()[CONTENT_TYPE], content_type);
        let text = response.text().await.unwrap();
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        for line in [
            "# TYPE detector_alarms counter",
            r#"detector_alarms_total{kind="detector",unit="1"} 7"#,
            "# TYPE detector_firmware info",
            r#"detector_firmware_info{kind="detector",unit="1",version="v1"} 1"#,
            "# UNIT detector_battery_volts volts",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}

#[tokio::test]
async fn what_units_tell_of_themselves_is_shown_and_leaves_with_them() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:1", r#"detector:"2""#, "detector:3"]).await;
    fleet.tell("detector:1", "detector_battery_volts", "3.6").await;
    fleet.tell("detector:1", "detector_firmware_info", "v1 \"a\"").await;
    fleet.tell(r#"detector:"2""#, "detector_battery_volts", "-2").await;
    fleet.tell("detector:3", "detector_battery_volts", "of another type once").await;
    let text = fleet.text("/metrics/units").await;
    assert_promtool_accepts(&text);
    let mut volts = samples(&text, "detector_battery_volts{");
    volts.sort();
    assert_eq!(
        volts,
        [
            r#"detector_battery_volts{kind="detector",unit="1"} 3.6"#,
            r#"detector_battery_volts{kind="detector",unit="\"2\""} -2"#,
        ]
    );
    let firmware = [r#"detector_firmware_info{kind="detector",unit="1",version="v1 \"a\""} 1"#];
    assert_eq!(samples(&text, "detector_firmware_info{"), firmware);

    let at = "2026-03-01T12:00:00.000Z";
    let told = json!({
        "detector_battery_volts": { "value": 3.6, "at": at },
        "detector_firmware_info": { "value": "v1 \"a\"", "at": at },
    });
    assert_eq!(fleet.json("/api/v1/units/detector/1").await["values"], told);

    fleet.roll.retire(&the("detector:1"), fleet.clock.now()).await.unwrap();
    let text = fleet.text("/metrics/units").await;
    assert_eq!(samples(&text, "detector_battery_volts{").len(), 1);
    assert_eq!(samples(&text, "detector_firmware_info{"), [""; 0]);
}

#[tokio::test]
async fn values_that_a_crash_left_behind_are_nobodys_and_go_when_they_are_met() {
    let mut fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:1", "detector:gone"]).await;
    for unit in ["detector:1", "detector:gone"] {
        fleet.tell(unit, "detector_battery_volts", "3.6").await;
    }
    // As if it had been removed, and a crash had come before its values were.
    let url = format!("redis://127.0.0.1:{}/", fleet.redis.port());
    let mut other = redis::Client::open(url).unwrap().get_connection().unwrap();
    let pages: Vec<String> = redis::cmd("KEYS").arg("*:facts:*").query(&mut other).unwrap();
    for page in pages {
        redis::cmd("HDEL").arg(page).arg("detector:gone").exec(&mut other).unwrap();
    }
    fleet.mirror.keep(|_| false);
    fleet.mirror.keep(|_| true);
    fleet.hear(&["detector:1"]).await;
    let values = async || {
        let text = fleet.text("/metrics/units").await;
        assert_eq!(samples(&text, "detector_battery_volts{").len(), 1, "{text}");
        fleet.engine.values(&the("detector:gone"), &["detector_battery_volts"]).await.unwrap()
    };
    assert_ne!(values().await, [None], "before all units were read nobody is nobody");
    fleet.fill();
    fleet.hear(&["detector:1"]).await;
    let gone = async { while values().await != [None] {} };
    tokio::time::timeout(PATIENCE, gone).await.expect("they go");
    fleet.redis.kill();
    let text = fleet.text("/metrics/units").await;
    assert_eq!(samples(&text, "rollcall_unit_up{").len(), 1, "presence is shown without the engine");
    assert_eq!(samples(&text, "rollcall_unit_values_read"), ["rollcall_unit_values_read 0"]);
}

#[tokio::test]
async fn one_unit_is_probed_by_name_whoever_owns_it() {
    let fleet = Fleet::start().await;
    fleet.mirror.keep(|_| false);
    fleet.hear(&["detector:a 1"]).await;
    fleet.tell("detector:a 1", "detector_battery_volts", "3.6").await;
    for unit in ["detector:a%201", "detector/a%201"] {
        let text = fleet.text(&format!("/probe?unit={unit}")).await;
        assert_promtool_accepts(&text);
        for line in [
            r#"rollcall_unit_up{kind="detector",unit="a 1"} 1"#,
            r#"rollcall_unit_last_seen_timestamp_seconds{kind="detector",unit="a 1"} 1772366400.000"#,
            r#"rollcall_unit_deadline_timestamp_seconds{kind="detector",unit="a 1"} 1772366520.000"#,
            r#"rollcall_unit_state{kind="detector",unit="a 1",state="online"} 1"#,
            r#"rollcall_unit_state{kind="detector",unit="a 1",state="offline"} 0"#,
            r#"detector_battery_volts{kind="detector",unit="a 1"} 3.6"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
    fleet.pass(121 * SECOND, &["detector:a 1"]).await;
    let text = fleet.text("/probe?unit=detector:a%201").await;
    assert!(text.contains(r#"rollcall_unit_up{kind="detector",unit="a 1"} 0"#), "{text}");
    for (query, status) in [("unit=detector:2", 404), ("unit=lamp:2", 404), ("unit=2", 400), ("", 400)] {
        assert_problem(fleet.get(&format!("/probe?{query}")).await, status).await;
    }
}

#[tokio::test]
async fn the_targets_are_every_instance_that_says_where_it_is_and_each_shard_of_it() {
    let fleet = Fleet::start().await;
    fleet.engine.announce("one", "10.0.0.1:8080", 100 * SECOND).await.unwrap();
    fleet.engine.announce("gone", "10.0.0.9:8080", 100 * SECOND).await.unwrap();
    let path = "/api/v1/prometheus/targets";
    let expected = json!([{
        "targets": ["10.0.0.1:8080"],
        "labels": { "__metrics_path__": "/metrics", "rollcall_instance": "one" },
    }]);
    assert_eq!(fleet.json(path).await, expected);
    fleet.engine.announce("two", "10.0.0.2:8080", 100 * SECOND).await.unwrap();
    let targets = fleet.json(&format!("{path}?shards=2")).await;
    let shards: Vec<String> = targets
        .as_array()
        .unwrap()
        .iter()
        .map(|group| {
            let label = |name: &str| group["labels"][name].as_str().unwrap().to_owned();
            let (page, shard, of) =
                (label("__metrics_path__"), label("__param_shard"), label("__param_shards"));
            assert_eq!(label("shard"), shard);
            format!("{} {page} {shard}/{of}", group["targets"][0].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        shards,
        [
            "10.0.0.1:8080 /metrics/units 0/2",
            "10.0.0.1:8080 /metrics/units 1/2",
            "10.0.0.2:8080 /metrics/units 0/2",
            "10.0.0.2:8080 /metrics/units 1/2",
        ]
    );
    for shards in ["0", "3", "x"] {
        assert_problem(fleet.get(&format!("{path}?shards={shards}")).await, 400).await;
    }
}

#[tokio::test]
async fn units_are_counted_by_label_at_the_moment_and_values_that_are_gone_leave() {
    let fleet = Fleet::start().await;
    fleet.hear(&["meter:2"]).await;
    fleet.hear_at("north", "meter:1").await;
    let by_site = |value: &str, state: &str, count: u64| {
        format!("rollcall_units_by_label{{label=\"site\",state=\"{state}\",value=\"{value}\"}} {count}\n")
    };
    let text = fleet.text("/metrics").await;
    assert!(text.contains(&by_site("north", "online", 1)), "{text}");
    assert!(text.contains(&by_site("north", "offline", 0)));
    fleet.hear_at("south", "meter:1").await;
    let text = fleet.text("/metrics").await;
    assert!(text.contains(&by_site("south", "online", 1)) && !text.contains("north"), "{text}");
}

#[tokio::test]
async fn the_oldest_outage_is_that_of_the_unit_that_was_heard_least_lately() {
    let fleet = Fleet::start().await;
    let oldest =
        |text: &str| samples(text, "rollcall_oldest_outage_timestamp_seconds{kind=\"detector\"}").concat();
    assert!(oldest(&fleet.text("/metrics").await).ends_with("} 0"));
    fleet.hear(&["detector:1"]).await;
    fleet.clock.advance(SECOND);
    fleet.hear(&["detector:2"]).await;
    fleet.pass(130 * SECOND, &["detector:1", "detector:2"]).await;
    assert!(oldest(&fleet.text("/metrics").await).ends_with("} 1772366400"));
    fleet.hear(&["detector:1"]).await;
    assert!(oldest(&fleet.text("/metrics").await).ends_with("} 1772366401"));
}

#[tokio::test]
async fn a_stop_cuts_a_list_off_so_that_nobody_takes_it_for_the_whole() {
    let fleet = large().await;
    let mut reader = fleet.get("/metrics/units").await;
    assert!(!reader.chunk().await.unwrap().unwrap().is_empty());
    fleet.stop.cancel();
    let rest = async {
        while reader.chunk().await?.is_some() {}
        reqwest::Result::Ok(())
    };
    let rest = tokio::time::timeout(PATIENCE, rest).await.expect("the list ends");
    assert!(rest.is_err(), "it ended as if it were whole");
    tokio::time::timeout(PATIENCE, fleet.server).await.expect("the server ends").unwrap().unwrap();
}

#[tokio::test]
async fn a_stop_ends_idle_connections_at_once() {
    let fleet = Fleet::start().await;
    fleet.text("/healthz").await;
    fleet.stop.cancel();
    fleet.server.await.unwrap().unwrap();
    assert!(fleet.client.get(&fleet.url).send().await.is_err());
}

#[tokio::test]
async fn readiness_names_every_reason_and_health_needs_none() {
    let fleet = Fleet::start().await;
    assert_eq!(fleet.text("/healthz").await, "ok");
    let names = |readiness: &Value| -> Vec<String> {
        let problems = readiness["problems"].as_array().unwrap().iter();
        problems.map(|problem| problem["name"].as_str().unwrap().to_owned()).collect()
    };
    let response = fleet.get("/readyz").await;
    assert_eq!(response.status(), 503);
    let readiness: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(readiness["ready"], false);
    assert_eq!(names(&readiness), ["mirror_not_filled", "engine_down", "mqtt_disconnected", "not_hearing"]);

    fleet.fill();
    fleet.telemetry.engine_up(None);
    fleet.telemetry.mqtt_connected("fleet", "mqtt://127.0.0.1:1883");
    fleet.telemetry.blind(false, Some(fleet.clock.now()));
    fleet.telemetry.engine_warning(Ailment::PersistenceOff, Some("redis keeps nothing; set appendonly yes"));
    let readiness = fleet.json("/readyz").await;
    let warning = json!({
        "name": "persistence_off", "text": "redis keeps nothing; set appendonly yes", "severity": "warning"
    });
    assert_eq!(
        readiness,
        json!({
            "ready": true, "problems": [warning], "instance": "one", "instances": ["one", "two"], "partitions": []
        })
    );

    let page = fleet.text("/").await;
    assert!(page.contains("<p>one speaks of its own part of the fleet; there are one, two.</p>"), "{page}");

    // A partition that came and is not filled yet.
    fleet.mirror.keep(|partition| partition == 1);
    fleet.mirror.keep(|_| true);
    let readiness = fleet.json("/readyz").await;
    assert_eq!(names(&readiness), ["mirror_not_filled", "persistence_off"]);
    fleet.fill();

    fleet.telemetry.engine_up(Some(&"connection refused"));
    assert_eq!(fleet.get("/readyz").await.status(), 503);
}

#[tokio::test]
async fn an_instance_that_owns_nothing_shows_nothing_and_that_does_not_age() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["meter:1"]).await;
    fleet.clock.advance(5 * SECOND);
    let page = fleet.text("/metrics").await;
    assert!(page.contains("rollcall_mirror_age_seconds 5\n"), "{page}");
    assert!(page.contains("rollcall_units{kind=\"meter\",state=\"online\"} 1\n"), "{page}");
    fleet.mirror.keep(|_| false);
    let page = fleet.text("/metrics").await;
    assert!(page.contains("rollcall_mirror_age_seconds 0\n"), "{page}");
    assert!(page.contains("rollcall_units{kind=\"meter\",state=\"online\"} 0\n"), "{page}");
}

#[tokio::test]
async fn pages_need_a_known_token_where_tokens_are_configured_but_probes_do_not() {
    let sha256 = hmac_sha256::Hash::hash(b"s3cret");
    let token = Token { name: "grafana".to_owned(), sha256, role: Role::Viewer };
    let other = Token { name: "other".to_owned(), sha256: [7; 32], role: Role::Admin };
    let fleet = Fleet::start_with(vec![other, token], UnitMetrics::All).await;
    let pages = [
        "/",
        "/metrics",
        "/metrics/units",
        "/probe?unit=meter:1",
        "/api/v1/prometheus/targets",
        "/api/v1/records",
        "/api/v1/units/meter/1",
        "/nowhere",
    ];
    for page in pages {
        let response = fleet.get(page).await;
        assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer", "{page}");
        assert_problem(response, 401).await;
    }
    let ask = |value: &'static str| {
        fleet.client.get(format!("{}/metrics", fleet.url)).header("Authorization", value).send()
    };
    for wrong in ["Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret"] {
        assert_eq!(ask(wrong).await.unwrap().status(), 401, "{wrong}");
    }
    for right in ["Bearer s3cret", "bearer s3cret"] {
        assert_eq!(ask(right).await.unwrap().status(), 200, "{right}");
    }
    assert_eq!(fleet.get("/healthz").await.status(), 200);
    assert_eq!(fleet.get("/readyz").await.status(), 503);
}

#[tokio::test]
async fn an_address_that_others_reach_is_not_served_without_a_token() {
    let fleet = Fleet::start().await;
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let config = Config {
        listen: listener.local_addr().unwrap(),
        tokens: Vec::new(),
        unit_metrics: UnitMetrics::All,
        unit_metrics_limit: 1,
    };
    let shown = Shown {
        ownership: Ownership::of_everything(2),
        engine: fleet.engine.clone(),
        roll: fleet.roll.clone(),
        mirror: fleet.mirror.clone(),
        metrics: Arc::default(),
        telemetry: fleet.telemetry.clone(),
        clock: fleet.clock.clone(),
    };
    let served = http::serve(config, listener, shown, CancellationToken::new());
    let refused = tokio::time::timeout(PATIENCE, served).await.expect("it is refused");
    assert!(refused.unwrap_err().to_string().contains("token"));
}

#[tokio::test]
async fn whatever_goes_wrong_is_told_as_problem_details() {
    let mut fleet = Fleet::start().await;
    for (path, status) in [
        ("/nowhere", 404),
        ("/api/v1/records/detector:1:5", 404),
        ("/api/v1/records/nonsense", 400),
        ("/api/v1/records?limit=0", 400),
        ("/api/v1/records?limit=1001", 400),
        ("/api/v1/records?limit=many", 400),
        ("/api/v1/records?open=perhaps", 400),
        ("/api/v1/records?cursor=00", 400),
        ("/api/v1/records?offset=1", 400),
        ("/api/v1/units/detector/unknown", 404),
        ("/api/v1/units/unknown/1", 404),
        ("/api/v1/units/UNKNOWN/1", 400),
        ("/api/v1/units/detector/a%2Fb", 400),
        ("/api/v1/units/detector/%FF", 400),
    ] {
        let response = fleet.get(path).await;
        assert_eq!(response.status(), status, "{path}");
        assert_problem(response, status).await;
    }
    for method in [Method::POST, Method::DELETE, Method::OPTIONS] {
        let request = fleet.client.request(method, format!("{}/metrics", fleet.url));
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()[ALLOW], "GET,HEAD");
        assert_problem(response, 405).await;
    }
    fleet.redis.kill();
    for path in [
        "/api/v1/records",
        "/api/v1/records/detector:1:5",
        "/api/v1/units/detector/1",
        "/api/v1/prometheus/targets",
        "/probe?unit=detector:1",
    ] {
        assert_problem(fleet.get(path).await, 503).await;
    }
}

#[tokio::test]
async fn every_page_answers_head_as_it_answers_get_but_without_a_body() {
    let fleet = Fleet::start().await;
    fleet.hear(&["meter:1"]).await;
    for page in ["/", "/healthz", "/metrics", "/metrics/units", "/api/v1/records", "/api/v1/units/meter/1"] {
        let request = fleet.client.head(format!("{}{page}", fleet.url));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{page}");
        assert_eq!(response.headers()[CONTENT_TYPE], fleet.get(page).await.headers()[CONTENT_TYPE]);
        assert!(response.bytes().await.unwrap().is_empty(), "{page}");
    }
}

#[tokio::test]
async fn records_are_paged_newest_first_and_none_comes_twice() {
    let fleet = Fleet::start().await;
    let units: Vec<String> = (0..25).map(|number| format!("detector:ü {number}")).collect();
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    for some in units.chunks(10) {
        fleet.hear(some).await;
        fleet.pass(121 * SECOND, some).await;
    }
    fleet.hear(&units[..5]).await;
    for (open, expected) in [("true", 20), ("false", 25)] {
        let mut all: Vec<Value> = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = fleet.json(&format!("/api/v1/records?open={open}&limit=7{cursor}")).await;
            all.extend(page["records"].as_array().unwrap().iter().cloned());
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let detected: Vec<&str> = all.iter().map(|record| record["detected_at"].as_str().unwrap()).collect();
        assert!(detected.is_sorted_by(|a, b| a >= b), "{detected:?}");
        let mut ids: Vec<&str> = all.iter().map(|record| record["id"].as_str().unwrap()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), expected, "open={open}");
    }
    assert_eq!(fleet.json("/api/v1/records").await["next"], Value::Null);
}

#[tokio::test]
async fn a_record_is_found_by_its_id_however_the_unit_is_named() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:Halle 3: ü%"]).await;
    fleet.pass(121 * SECOND, &["detector:Halle 3: ü%"]).await;
    let record = fleet.json("/api/v1/records/detector:Halle%203:%20%C3%BC%25:1772366400000").await;
    let expected = json!({
        "id": "detector:Halle 3: ü%:1772366400000",
        "kind": "detector",
        "unit": "Halle 3: ü%",
        "labels": {},
        "last_seen": "2026-03-01T12:00:00.000Z",
        "deadline": "2026-03-01T12:02:00.000Z",
        "detected_at": "2026-03-01T12:02:01.000Z",
        "back_at": null,
        "cause": "silence",
        "closed_by": null,
    });
    assert_eq!(record, expected);
    let unit = fleet.json("/api/v1/units/detector/Halle%203:%20%C3%BC%25").await;
    assert_eq!(unit["state"], "offline");
    assert_eq!(unit["record"], expected);
}

#[tokio::test]
async fn a_unit_is_shown_with_all_that_is_known_of_it() {
    let fleet = Fleet::start().await;
    let now = fleet.clock.now();
    let wanted = Registration {
        set: Override { timeout: Some(90 * SECOND), grace: None },
        labels: Labels::from([("site".to_owned(), "north".to_owned())]),
        pause: Some(Interval { from: now, to: now + 60 * SECOND }),
    };
    fleet.roll.register(&the("detector:1"), &wanted, now).await.unwrap();
    let expected = json!({
        "kind": "detector",
        "unit": "1",
        "state": "paused",
        "last_seen": null,
        "deadline": "2026-03-01T12:02:50.000Z",
        "timeout_seconds": 90.0,
        "grace_seconds": 20.0,
        "labels": { "site": "north" },
        "paused_from": "2026-03-01T12:00:00.000Z",
        "paused_until": "2026-03-01T12:01:00.000Z",
        "sleeps_until": null,
        "record": null,
        "values": {},
    });
    assert_eq!(fleet.json("/api/v1/units/detector/1").await, expected);
    fleet.clock.advance(61 * SECOND);
    fleet.hear(&["detector:1"]).await;
    let unit = fleet.json("/api/v1/units/detector/1").await;
    assert_eq!((&unit["state"], &unit["paused_until"]), (&json!("online"), &Value::Null));
    assert_eq!(unit["last_seen"], "2026-03-01T12:01:01.000Z");
    fleet.roll.retire(&the("detector:1"), fleet.clock.now()).await.unwrap();
    assert_problem(fleet.get("/api/v1/units/detector/1").await, 404).await;
}

#[tokio::test]
async fn the_first_page_counts_the_fleet_and_loads_nothing() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1", "detector:2"]).await;
    let response = fleet.get("/").await;
    assert!(
        response.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'")
    );
    let page = response.text().await.unwrap();
    assert!(page.contains("<th scope=\"row\">detector<td>2<td>0"), "{page}");
    for link in page.split("href=\"").skip(1) {
        let link = link.split('"').next().unwrap();
        assert_ne!(fleet.get(link).await.status(), 404, "{link}");
    }
}

//! What Rollcall shows, asked over a real connection.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, WWW_AUTHENTICATE};
use reqwest::{Client, Method, Response};
use rollcall::clock::{Clock, Timestamp};
use rollcall::engine::redis::RedisEngine;
use rollcall::engine::roll::{HearingConfig, Rules};
use rollcall::engine::roster::View;
use rollcall::engine::{Mirror, Ownership, Roll, UnitStore};
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
        let _ = rustls::crypto::ring::default_provider().install_default();
        let clock = Clock::by_hand(NOON);
        let dir = tempfile::tempdir().unwrap();
        let (redis, engine) = private::engine(dir.path()).await;
        let rules = rules();
        let mirror = Arc::new(Mirror::new(rules.clone(), engine.partitions()));
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
            telemetry: telemetry.clone(),
            clock: clock.clone(),
        };
        let config = Config { listen, tokens, unit_metrics };
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
    let mut lines: Vec<&str> = text.lines().collect();
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
async fn the_list_is_written_for_four_clients_at_a_time_and_no_longer_when_they_are_gone() {
    let fleet = large().await;
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(fleet.get("/metrics/units").await);
    }
    assert_problem(fleet.get("/metrics/units").await, 503).await;
    drop(readers);
    let freed = async { while fleet.get("/metrics/units").await.status() != 200 {} };
    tokio::time::timeout(PATIENCE, freed).await.expect("the places become free");
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
    let pages = ["/", "/metrics", "/metrics/units", "/api/v1/records", "/api/v1/units/meter/1", "/nowhere"];
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
    let config =
        Config { listen: listener.local_addr().unwrap(), tokens: Vec::new(), unit_metrics: UnitMetrics::All };
    let shown = Shown {
        ownership: Ownership::of_everything(2),
        engine: fleet.engine.clone(),
        roll: fleet.roll.clone(),
        mirror: fleet.mirror.clone(),
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
    for path in ["/api/v1/records", "/api/v1/records/detector:1:5", "/api/v1/units/detector/1"] {
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

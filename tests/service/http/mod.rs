//! The pages of Rollcall, over real connections.

mod changes;
mod commands;
mod compression;
mod connections;
mod fleet;
mod heartbeats;
mod import;
mod inventory;
mod login;
mod metrics;
mod openapi;
mod pages;
mod past_counts;
mod receivers;
mod registry;
mod rhythm;
mod roles;
mod silences;
mod strangers;
mod stream;
mod timeline;
mod timers;
mod tls;
mod top;
mod unit_metrics;
mod values;
mod web;
pub mod world;

use std::sync::Arc;

use reqwest::Method;
use reqwest::header::{ALLOW, CONTENT_TYPE, WWW_AUTHENTICATE};
use rollcall::fleet::coverage::Coverage;
use rollcall::fleet::{Ownership, Silences};
use rollcall::http::{self, Config, PageSources, Proxies, Role, Token, UnitMetrics};
use rollcall::presence::{Interval, Labels, Override, Registration};
use rollcall::store::{StoredDeliveries, StoredGroups};
use rollcall::telemetry::{EngineWarning, Loop};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use world::{Fleet, MAX_WAIT, SECOND, assert_problem, the};

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
    fleet.telemetry.engine_answered(Loop::Sweep, "");
    fleet.telemetry.mqtt_connected(("main", "fleet"), "mqtt://127.0.0.1:1883");
    fleet.telemetry.blind(false, Some(fleet.clock.now()));
    fleet
        .telemetry
        .engine_warning(EngineWarning::PersistenceOff, Some("redis keeps nothing; set appendonly yes"));
    let readiness = fleet.json("/readyz").await;
    let warning = json!({
        "name": "persistence_off", "text": "redis keeps nothing; set appendonly yes", "severity": "warning"
    });
    assert_eq!(
        readiness,
        json!({
            "ready": true, "problems": [warning], "notes": [], "instance": "one", "instances": ["one", "two"], "partitions": []
        })
    );

    // A new partition that is not filled yet.
    fleet.mirror.keep(|partition| partition == 1);
    fleet.mirror.keep(|_| true);
    let readiness = fleet.json("/readyz").await;
    assert_eq!(names(&readiness), ["mirror_not_filled", "persistence_off"]);
    fleet.fill();

    fleet.telemetry.engine_failed(Loop::Sweep, "", &"connection refused");
    assert_eq!(fleet.get("/readyz").await.status(), 503);
}

#[tokio::test]
async fn pages_need_a_known_token_where_tokens_are_configured_but_probes_do_not() {
    let sha256 = Token::digest("s3cret");
    let token = Token {
        name: "grafana".to_owned(),
        sha256,
        role: Role::Viewer,
        expires_at: None,
        device: Default::default(),
    };
    let other = Token {
        name: "other".to_owned(),
        sha256: [7; 32],
        role: Role::Admin,
        expires_at: None,
        device: Default::default(),
    };
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
        requests_per_second: 0,
        external_url: None,
        tls: None,
        proxies: Proxies::default(),
        switches: None,
        example_topic: None,
    };
    let silences = Arc::new(Silences::new(fleet.engine.clone()));
    let sources = PageSources {
        ownership: Ownership::of_everything(2),
        units: fleet.engine.clone(),
        records: fleet.engine.clone(),
        deliveries: StoredDeliveries::new(fleet.engine.clone()),
        groups: StoredGroups::new(fleet.engine.clone()),
        values: fleet.engine.clone(),
        cells: fleet.engine.clone(),
        bodies: fleet.bodies.clone(),
        roster: fleet.engine.clone(),
        roll: fleet.roll.clone(),
        mirror: fleet.mirror.clone(),
        metrics: Arc::default(),
        silences: silences.clone(),
        coverage: Arc::new(Coverage::new(silences)),
        timers: fleet.timers.clone(),
        history: None,
        keep_records: 90 * 86_400 * SECOND,
        keep_deliveries: 7 * 86_400 * SECOND,
        routes: watch::Sender::new(Arc::default()).subscribe(),
        reloads: None,
        configuration: watch::Sender::new(Arc::default()).subscribe(),
        telemetry: fleet.telemetry.clone(),
        clock: fleet.clock.clone(),
    };
    let stop = CancellationToken::new();
    let pages = http::Pages::new(config, "one", fleet.telemetry.clone());
    pages.show(sources, &stop);
    let served = http::serve(listener, pages, fleet.telemetry.clone(), stop);
    let refused = tokio::time::timeout(MAX_WAIT, served).await.expect("it is refused");
    assert!(refused.unwrap_err().to_string().contains("token"));
}

#[tokio::test]
async fn every_error_is_answered_as_problem_details() {
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
async fn a_unit_is_shown_with_all_its_facts() {
    let fleet = Fleet::start().await;
    let now = fleet.clock.now();
    let wanted = Registration {
        set: Override { timeout: Some(90 * SECOND), grace: None },
        labels: Labels::from([("site".to_owned(), "north".to_owned())]),
        pause: Some(Interval { from: now, to: now + 60 * SECOND }),
        note: None,
    };
    fleet.roll.register(&the("detector:1"), &wanted, now).await.unwrap();
    let expected = json!({
        "kind": "detector",
        "unit": "1",
        "state": "paused",
        "last_seen": null,
        "deadline": "2026-03-01T12:02:50.000Z",
        "timeout_seconds": 90.0,
        "timeout_rule": "operator",
        "grace_seconds": 20.0,
        "labels": { "site": "north" },
        "known_since": "2026-03-01T12:00:00.000Z",
        "note": "",
        "paused_from": "2026-03-01T12:00:00.000Z",
        "paused_until": "2026-03-01T12:01:00.000Z",
        "sleeps_until": null,
        "record": null,
        "archived": false,
        "flapping": false,
        "rhythm": {
            "intervals": 0,
            "intervals_needed": 8,
            "usual_seconds": null,
            "spread_seconds": null,
            "longest_seconds": null,
            "allows_seconds": null,
            "unusual_since": null,
        },
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
async fn the_first_page_counts_the_fleet_and_its_links_exist() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1", "detector:2"]).await;
    let response = fleet.get("/").await;
    assert!(
        response.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'")
    );
    let page = response.text().await.unwrap();
    assert!(page.contains("<a href=\"/\" aria-current=\"true\"><b>2</b><span>units</span>"), "{page}");
    for link in page.split("href=\"").skip(1) {
        let link = link.split('"').next().unwrap();
        if link.starts_with("data:") || link.starts_with('#') {
            continue;
        }
        assert_ne!(fleet.get(link).await.status(), 404, "{link}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_body_is_said_in_words() {
    let fleet = Fleet::start().await;
    let (silences, timers, alertmanager) =
        ("/api/v1/silences", "/api/v1/timers", "/alertmanager/api/v2/silences");
    let pause = "/api/v1/units/detector/a/pause";
    let deep = "[".repeat(200);
    for (method, path, body, said) in [
        (Method::POST, silences, "", "the body: it is empty; write JSON"),
        (Method::POST, silences, "{\"for\": \"2h", "the body: it is cut off"),
        (Method::POST, silences, &deep, "the body: write an object, not a list"),
        (Method::POST, silences, "{\"comment\": \"x\"}", "the body: matchers is missing"),
        (
            Method::POST,
            silences,
            "{\"matchers\": [5], \"comment\": \"x\"}",
            "matchers[0]: write a text, not 5",
        ),
        (Method::POST, silences, "{\"colour\": 1}", "there is no field \\\"colour\\\"; known here: matchers"),
        (Method::POST, alertmanager, "{\"matchers\": 5}", "matchers: write a list, not 5"),
        (Method::POST, timers, "[{\"type\": 5}]", "type: write a text, not 5"),
        (Method::PUT, pause, "{}", "write either until or for"),
        (Method::PUT, pause, "{\"until\": 5}", "until: write a moment as in RFC 3339, such as"),
        (Method::PUT, pause, "{\"until\": \"soon\"}", "until: a moment is written as in RFC 3339"),
    ] {
        let asked = fleet.client.request(method, format!("{}{path}", fleet.url));
        let asked = asked.header(CONTENT_TYPE, "application/json").body(body.to_owned());
        let answer = asked.send().await.unwrap().text().await.unwrap();
        assert!(answer.contains(said), "{path} {body}: {answer}");
    }
}

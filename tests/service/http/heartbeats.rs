//! Heartbeats of devices over HTTP, by real clients: single ones, batches, and what a token of a device may do.

use std::process::Command;
use std::sync::Arc;

use futures_util::stream::poll_fn;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, Response};
use rollcall::clock::Clock;
use rollcall::config;
use rollcall::fleet::BodyReader;
use rollcall::http::{DeviceRights, Role, Token, UnitMetrics};
use rollcall::intake::Bodies;
use rollcall::presence::Registration;
use rollcall::telemetry::Telemetry;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::changes::{send, token};
use super::world::{Fleet, NOON, SECOND, assert_problem, the};
use crate::support::facts::until;

async fn ping(fleet: &Fleet, method: Method, path: &str) -> u16 {
    fleet.client.request(method, format!("{}/ping/{path}", fleet.url)).send().await.unwrap().status().as_u16()
}

async fn unit(fleet: &Fleet, unit: &str) -> Value {
    fleet.json(&format!("/api/v1/units/{unit}")).await
}

async fn batch(fleet: &Fleet, media: &str, body: impl Into<reqwest::Body>) -> Response {
    let request = fleet.client.post(format!("{}/api/v1/heartbeats", fleet.url)).header(CONTENT_TYPE, media);
    request.body(body).send().await.unwrap()
}

async fn json_of(answer: Response) -> Value {
    assert_eq!(answer.status(), 200);
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

/// The errors of the answers, in order; empty: recorded.
fn errors(answer: &Value) -> Vec<&str> {
    let all = answer["heartbeats"].as_array().unwrap();
    all.iter().map(|one| one["error"].as_str().unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_ping_is_a_heartbeat_that_is_recorded_before_the_answer() {
    let fleet = Fleet::start().await;
    for (at, method) in [Method::GET, Method::POST, Method::HEAD].into_iter().enumerate() {
        assert_eq!(ping(&fleet, method, &format!("detector/{at}")).await, 200);
        assert_eq!(unit(&fleet, &format!("detector/{at}")).await["state"], "online");
    }
    assert_eq!(ping(&fleet, Method::GET, "detector/starts/start").await, 200);
    let url = format!("{}/ping/detector/curl", fleet.url);
    let said =
        tokio::task::spawn_blocking(move || Command::new("curl").args(["-fsS", &url]).output().unwrap());
    assert_eq!(said.await.unwrap().stdout, b"OK\n");
    assert_eq!(unit(&fleet, "detector/curl").await["state"], "online");

    fleet.pass(121 * SECOND, &["detector:0", "detector:starts"]).await;
    assert_eq!(unit(&fleet, "detector/0").await["state"], "offline");
    assert_eq!(ping(&fleet, Method::GET, "detector/0").await, 200);
    let records = fleet.json("/api/v1/records").await;
    let closed: Vec<(&str, &str)> = records["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| (record["unit"].as_str().unwrap(), record["closed_by"].as_str().unwrap_or_default()))
        .collect();
    assert!(closed.contains(&("0", "return")) && closed.contains(&("starts", "")), "{records}");

    for (path, status) in [
        ("gone/1", 400),
        ("DETECTOR/1", 400),
        ("detector/a%2Fb", 400),
        ("detector/rollcall-probe", 400),
        ("detector/1/log", 404),
    ] {
        assert_eq!(ping(&fleet, Method::GET, path).await, status, "{path}");
    }
    assert_eq!(ping(&fleet, Method::PUT, "detector/1").await, 405);
    fleet.roll.retire(&the("detector:1"), fleet.clock.now()).await.unwrap();
    assert_eq!(ping(&fleet, Method::GET, "detector/1").await, 409);
}

#[tokio::test]
async fn the_body_of_a_ping_is_read_as_a_payload_and_any_body_proves_life() {
    let fleet = Fleet::start().await;
    let post = async |unit: &str, body: String| {
        let request = fleet.client.post(format!("{}/ping/detector/{unit}", fleet.url)).body(body);
        assert_eq!(request.send().await.unwrap().status(), 200, "{unit}");
    };
    post("1", json!({ "timeout": "3h", "labels": { "site": "north" } }).to_string()).await;
    let page = unit(&fleet, "detector/1").await;
    assert_eq!((&page["labels"]["site"], &page["timeout_seconds"]), (&json!("north"), &json!(10_800.0)));
    post("2", "{ broken".to_owned()).await;
    post("3", "x".repeat(400 * 1024)).await;
    for id in ["2", "3"] {
        assert_eq!(unit(&fleet, &format!("detector/{id}")).await["state"], "online");
    }
}

#[tokio::test]
async fn a_fail_is_an_announcement_and_its_kind_says_what_that_is_worth() {
    let fleet = Fleet::start().await;
    for id in ["detector/back", "detector/hint", "meter/proof"] {
        assert_eq!(ping(&fleet, Method::GET, id).await, 200);
    }
    let all = ["detector:back", "detector:hint", "meter:proof"];
    fleet.pass(SECOND, &all).await;
    for id in ["detector/back/fail", "detector/hint/fail", "meter/proof/fail"] {
        assert_eq!(ping(&fleet, Method::POST, id).await, 200, "{id}");
    }
    // A heartbeat in the millisecond of the announcement came after it.
    assert_eq!(ping(&fleet, Method::GET, "detector/back").await, 200);
    fleet.pass(SECOND / 1000, &[]).await;
    let hint = unit(&fleet, "detector/hint").await;
    assert_eq!((&hint["state"], &hint["late_cause"]), (&json!("late"), &json!("disconnected")));
    fleet.pass(SECOND, &all).await;
    let proof = unit(&fleet, "meter/proof").await;
    assert_eq!((&proof["state"], &proof["record"]["cause"]), (&json!("offline"), &json!("disconnected")));
    fleet.pass(12 * SECOND, &all).await;
    assert_eq!(unit(&fleet, "detector/hint").await["state"], "offline");
    assert_eq!(unit(&fleet, "detector/back").await["state"], "online");
    assert_eq!(ping(&fleet, Method::GET, "meter/proof").await, 200);
    assert_eq!(unit(&fleet, "meter/proof").await["state"], "online");
}

#[tokio::test]
async fn a_fail_counts_while_no_broker_is_heard_and_a_proof_is_offline_before_the_answer() {
    let fleet = Fleet::start().await;
    fleet.roll.canary_returned(fleet.clock.now()).await.unwrap();
    for id in ["detector/hint", "meter/proof"] {
        assert_eq!(ping(&fleet, Method::GET, id).await, 200);
    }
    // The broker is down for two minutes; they fail in the middle.
    fleet.clock.advance(60 * SECOND);
    for id in ["detector/hint/fail", "meter/proof/fail"] {
        assert_eq!(ping(&fleet, Method::GET, id).await, 200, "{id}");
    }
    let proof = unit(&fleet, "meter/proof").await;
    assert_eq!((&proof["state"], &proof["record"]["cause"]), (&json!("offline"), &json!("disconnected")));
    assert_eq!(proof["record"]["deadline"], "2026-03-01T12:01:00.000Z");
    fleet.clock.advance(60 * SECOND);
    fleet.roll.canary_returned(fleet.clock.now()).await.unwrap();
    assert_eq!(unit(&fleet, "meter/proof").await["state"], "offline");
    fleet.pass(9 * SECOND, &["detector:hint"]).await;
    assert_eq!(unit(&fleet, "detector/hint").await["state"], "late");
    fleet.pass(2 * SECOND, &["detector:hint"]).await;
    let hint = unit(&fleet, "detector/hint").await;
    assert_eq!((&hint["state"], &hint["record"]["cause"]), (&json!("offline"), &json!("disconnected")));
}

#[test]
fn a_body_is_read_as_the_first_broker_of_its_kind_says() {
    let options = r#"
        [[mqtt]]
        name = "eu"
        max_age = "1m"
        [[mqtt]]
        name = "us"
        url = "mqtt://us"
        fields = { timeout = "interval" }
        [[kind]]
        name = "pump"
        brokers = ["eu"]
        [[kind]]
        name = "valve"
        brokers = ["us"]
        [[kind]]
        name = "truck"
        topics = ["trucks/{unit}"]
        [[kind]]
        name = "job"
        topics = []
        brokers = ["us"]
    "#;
    let config = config::parse(options, None, []).unwrap();
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(NOON)));
    let bodies = Bodies::new(&config.intake, Arc::new(config.rules).into(), None, telemetry);
    // Each kind, the timeout that it reads, and whether a message of five minutes ago is too old.
    for (kind, timeout, is_too_old) in
        [("pump", 180, true), ("valve", 420, false), ("truck", 180, true), ("job", 420, false)]
    {
        let of = the(&format!("{kind}:1"));
        let read = |body: &[u8]| bodies.heartbeat(of.clone(), body, NOON);
        let heard = read(br#"{"timeout": "3m", "interval": "7m"}"#).unwrap();
        assert_eq!(heard.declared.timeout, Some(timeout * SECOND), "{kind}");
        assert_eq!(read(br#"{"ts": "2026-03-01T11:55:00Z"}"#).is_err(), is_too_old, "{kind}");
    }
}

#[test]
fn a_kind_of_sparkplug_has_over_http_the_units_that_its_topics_name() {
    let options = "[[kind]]\nname = 'plant'\npresence = { format = 'sparkplug' }";
    let config = config::parse(options, None, []).unwrap();
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(NOON)));
    let bodies = Bodies::new(&config.intake, Arc::new(config.rules).into(), None, telemetry);
    for (id, expected) in [
        ("g.n", Some("group=g node=n")),
        ("g.n.d", Some("device=d group=g node=n")),
        ("g.n.d.1", Some("device=d.1 group=g node=n")),
        ("g", None),
        ("g.", None),
        (".n", None),
        ("g..d", None),
        ("g.n.", None),
    ] {
        let unit = the(&format!("plant:{id}"));
        let labels = bodies.heartbeat(unit.clone(), b"", NOON).ok().map(|heartbeat| {
            let labels = heartbeat.declared.topic_labels;
            let texts: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            texts.join(" ")
        });
        assert_eq!(labels.as_deref(), expected, "{id}");
        assert_eq!(bodies.departure(unit, NOON).is_ok(), expected.is_some(), "{id}");
    }
}

#[tokio::test]
async fn a_fail_of_a_unit_that_sleeps_ends_its_sleep_and_counts() {
    let fleet = Fleet::start().await;
    for id in ["detector/1", "meter/1"] {
        let sleep = fleet.client.post(format!("{}/ping/{id}", fleet.url)).body(r#"{"sleep": "10h"}"#);
        assert_eq!(sleep.send().await.unwrap().status(), 200);
        assert_eq!(unit(&fleet, id).await["state"], "paused");
    }
    fleet.pass(SECOND, &[]).await;
    for id in ["detector/1", "meter/1"] {
        assert_eq!(ping(&fleet, Method::GET, &format!("{id}/fail")).await, 200);
    }
    let proof = unit(&fleet, "meter/1").await;
    assert_eq!((&proof["state"], &proof["record"]["cause"]), (&json!("offline"), &json!("disconnected")));
    fleet.pass(SECOND, &["detector:1"]).await;
    let hint = unit(&fleet, "detector/1").await;
    assert_eq!((&hint["state"], &hint["late_cause"]), (&json!("late"), &json!("disconnected")));
    fleet.pass(12 * SECOND, &["detector:1"]).await;
    assert_eq!(unit(&fleet, "detector/1").await["state"], "offline");
}

/// A job whose first run fails has never been heard before.
#[tokio::test]
async fn a_fail_of_a_unit_that_was_never_heard_is_found_like_any_other() {
    let fleet = Fleet::start().await;
    let now = fleet.clock.now();
    fleet.roll.register(&the("meter:registered"), &Registration::default(), now).await.unwrap();
    fleet.hear(&["meter:removed"]).await;
    fleet.roll.retire(&the("meter:removed"), now).await.unwrap();
    for (path, status) in [
        ("meter/new/fail", 200),
        ("meter/registered/fail", 200),
        ("detector/new/fail", 200),
        ("meter/removed/fail", 409),
    ] {
        assert_eq!(ping(&fleet, Method::POST, path).await, status, "{path}");
    }
    assert_eq!(unit(&fleet, "meter/new").await["last_seen"], "2026-03-01T12:00:00.000Z");
    let all = ["meter:new", "meter:registered", "detector:new"];
    fleet.pass(SECOND, &all).await;
    for proof in ["meter/new", "meter/registered"] {
        let page = unit(&fleet, proof).await;
        let (state, cause) = (&page["state"], &page["record"]["cause"]);
        assert_eq!((state, cause), (&json!("offline"), &json!("disconnected")), "{proof}");
    }
    assert_eq!(unit(&fleet, "detector/new").await["late_cause"], "disconnected");
    let records = async || fleet.json("/api/v1/records").await["records"].as_array().unwrap().len();
    assert_eq!(records().await, 2);
    // The next failure of a unit that is offline is the same silence.
    assert_eq!(ping(&fleet, Method::POST, "meter/new/fail").await, 200);
    assert_eq!((records().await, &unit(&fleet, "meter/new").await["state"]), (2, &json!("offline")));
    fleet.pass(12 * SECOND, &all).await;
    assert_eq!(unit(&fleet, "detector/new").await["state"], "offline");
    assert_eq!(ping(&fleet, Method::GET, "meter/new").await, 200);
    assert_eq!(unit(&fleet, "meter/new").await["state"], "online");
}

#[tokio::test]
async fn a_batch_has_an_answer_for_each_heartbeat_in_order() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:removed"]).await;
    fleet.roll.retire(&the("detector:removed"), fleet.clock.now()).await.unwrap();
    let lines = [
        r#"{"kind": "detector", "unit": "1", "timeout": 600, "labels": {"site": "south"}}"#,
        r#"{"kind": "gone", "unit": "1"}"#,
        r#"{"kind": "detector", "unit": "a/b"}"#,
        r#"{"kind": "detector"}"#,
        "[1]",
        r#"{"kind": "detector", "unit": "removed"}"#,
        r#"{"kind": "meter", "unit": "2", "ts": "2026-02-28T10:00:00Z"}"#,
        r#"{"kind": "meter", "unit": "2", "ts": "2026-03-01T11:00:00Z"}"#,
    ];
    let expected =
        ["", "no kind gone", "no /, +, #", "unit", "", "was removed", "longer ago than mqtt.max_age", ""];
    for (media, body) in [
        ("application/json", format!("[{}]", lines.join(","))),
        ("application/x-ndjson", lines.join("\n")),
        ("application/jsonl; charset=utf-8", lines.join("\n")),
    ] {
        let answer = json_of(batch(&fleet, media, body).await).await;
        assert_eq!((&answer["recorded"], &answer["refused"]), (&json!(2), &json!(6)), "{answer}");
        let errors = errors(&answer);
        assert_eq!(errors.len(), expected.len(), "{answer}");
        for (error, expected) in errors.iter().zip(expected) {
            assert!(error.contains(expected), "{error} {expected}");
        }
        assert!(errors[0].is_empty() && errors[7].is_empty() && !errors[4].is_empty(), "{answer}");
        assert_eq!(answer["heartbeats"][5]["unit"], "removed");
        let said = |nr: usize| (&answer["heartbeats"][nr]["kind"], &answer["heartbeats"][nr]["unit"]);
        assert_eq!(said(2), (&json!("detector"), &json!("a/b")), "as the request says it");
        assert_eq!(said(3), (&json!("detector"), &Value::Null));
        assert_eq!(said(4), (&Value::Null, &Value::Null));
    }
    let page = unit(&fleet, "detector/1").await;
    assert_eq!((&page["labels"]["site"], &page["timeout_seconds"]), (&json!("south"), &json!(600.0)));
    // The kind of meters goes by arrival.
    assert_eq!(unit(&fleet, "meter/2").await["last_seen"], "2026-03-01T12:00:00.000Z");

    let many: Vec<Value> =
        (0..2500).map(|n| json!({ "kind": "detector", "unit": format!("m{n}") })).collect();
    let answer = json_of(batch(&fleet, "application/json", json!(many).to_string()).await).await;
    assert_eq!((&answer["recorded"], &answer["refused"]), (&json!(2500), &json!(0)));
    assert_eq!(unit(&fleet, "detector/m2499").await["state"], "online");
    // What came before the fault is recorded.
    let broken = r#"[{"kind": "detector", "unit": "before"}, {]"#;
    let problem = assert_problem(batch(&fleet, "application/json", broken).await, 400).await;
    assert_eq!(problem["answered"], 1);
    assert_eq!(unit(&fleet, "detector/before").await["state"], "online");
    // A name of any length is said as far as an id may be long.
    let long = json!([{ "kind": "k".repeat(300), "unit": "ü".repeat(300) }]).to_string();
    let answer = json_of(batch(&fleet, "application/json", long).await).await;
    let said = |field: &str| answer["heartbeats"][0][field].as_str().unwrap().len();
    assert_eq!((said("kind"), said("unit")), (128, 128));
    assert_eq!(batch(&fleet, "text/plain", "{}").await.status(), 415);
    let url = format!("{}/api/v1/heartbeats", fleet.url);
    let compressed = fleet.client.post(url).header(CONTENT_TYPE, "application/json");
    let compressed = compressed.header(CONTENT_ENCODING, "gzip").body("[]").send().await.unwrap();
    assert_eq!(compressed.status(), 415);
}

#[tokio::test]
async fn what_is_refused_is_counted_by_reason_and_one_unit_may_stand_twice_in_a_batch() {
    let device =
        DeviceRights { kinds: vec![], unit_prefixes: vec!["north-".to_owned()], heartbeats_per_second: 1 };
    let tokens = vec![
        Token { device, ..token("north", Role::Device) },
        token("any", Role::Device),
        token("screen", Role::Viewer),
    ];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    let ping = async |token: &str, path: &str| {
        send(&fleet, token, Method::GET, &format!("/ping/{path}"), Value::Null).await.status().as_u16()
    };
    for (path, status) in [
        ("gone/1", 400),
        ("DETECTOR/1", 400),
        ("detector/a%2Fb", 400),
        ("detector/%00", 400),
        ("detector/%ff", 400),
        ("detector/rollcall-probe/fail", 400),
        ("gone/1/fail", 400),
    ] {
        assert_eq!(ping("any", path).await, status, "{path}");
    }
    assert_eq!(ping("north", "detector/south-1").await, 403);
    let lines = [
        r#"{"kind": "detector", "unit": "twice", "ts": "2026-03-01T11:59:58Z"}"#,
        r#"{"kind": "detector", "unit": "twice"}"#,
        r#"{"kind": "detector", "unit": "ahead", "ts": "2036-03-01T12:00:00Z"}"#,
        r#"{"kind": "meter", "unit": "old", "ts": "2026-02-27T12:00:00Z"}"#,
        r#"{"kind": "detector", "unit": "\ud800"}"#,
        "7",
    ];
    let body = lines.join("\n").into_bytes();
    let body = [body, b"\n{\"kind\": \"detector\", \"unit\": \"\xff\"}".to_vec()].concat();
    let url = format!("{}/api/v1/heartbeats", fleet.url);
    let post = fleet.client.post(url).header(CONTENT_TYPE, "application/x-ndjson").body(body);
    let answer = json_of(post.bearer_auth("any").send().await.unwrap()).await;
    assert_eq!((&answer["recorded"], &answer["refused"]), (&json!(3), &json!(4)), "{answer}");

    let metrics = send(&fleet, "screen", Method::GET, "/metrics", Value::Null).await.text().await.unwrap();
    for (reason, count) in
        [("unknown_kind", 2), ("bad_unit", 5), ("forbidden", 1), ("too_old", 1), ("unreadable", 3)]
    {
        let line = format!("rollcall_heartbeats_total{{result=\"{reason}\"}} {count}");
        assert!(metrics.lines().any(|one| one == line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn the_token_of_a_device_is_for_its_units_and_for_so_many_heartbeats() {
    let device = DeviceRights {
        kinds: vec!["detector".parse().unwrap()],
        unit_prefixes: vec!["north-".to_owned()],
        heartbeats_per_second: 1,
    };
    let tokens = vec![
        Token { device, ..token("north", Role::Device) },
        token("any", Role::Device),
        token("screen", Role::Viewer),
    ];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    let ask = async |token: &str, path: &str| {
        send(&fleet, token, Method::GET, path, Value::Null).await.status().as_u16()
    };
    for (token, path, status) in [
        ("north", "/ping/detector/north-1", 200),
        ("north", "/ping/detector/south-1", 403),
        ("north", "/ping/detector/south-1/fail", 403),
        ("north", "/ping/meter/north-1", 403),
        ("any", "/ping/meter/south-1", 200),
        ("screen", "/ping/meter/south-1", 403),
        ("wrong", "/ping/meter/south-1", 401),
        ("north", "/api/v1/units", 403),
        ("north", "/", 403),
        ("any", "/healthz", 200),
    ] {
        assert_eq!(ask(token, path).await, status, "{token} {path}");
    }
    let lines = json!([{ "kind": "detector", "unit": "north-2" }, { "kind": "detector", "unit": "south-2" }]);
    let answer = send(&fleet, "north", Method::POST, "/api/v1/heartbeats", lines.clone()).await;
    let answer = json_of(answer).await;
    assert!(errors(&answer)[0].is_empty() && errors(&answer)[1].contains("may not send"), "{answer}");

    // It has saved up ten, and six are used: a batch is never cut in two, and the next one waits.
    let many: Vec<Value> =
        (0..30).map(|n| json!({ "kind": "detector", "unit": format!("north-{n}") })).collect();
    let answer = send(&fleet, "north", Method::POST, "/api/v1/heartbeats", json!(many)).await;
    assert_eq!(json_of(answer).await["recorded"], 30);
    let refused = send(&fleet, "north", Method::GET, "/ping/detector/north-1", Value::Null).await;
    let wait: u64 = refused.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!(refused.status() == 429 && (20..=30).contains(&wait), "{wait}");
    fleet.clock.advance(SECOND * wait as u32);
    assert_eq!(ask("north", "/ping/detector/north-1").await, 200);
    assert_eq!(ask("any", "/ping/detector/north-1").await, 200);
}

#[tokio::test]
async fn a_heartbeat_does_not_wait_for_the_rest_of_its_batch() {
    let fleet = Fleet::start().await;
    let (sender, mut lines) = mpsc::channel(1);
    let sent = async {
        for id in ["1", "2"] {
            let line = format!("{{\"kind\": \"detector\", \"unit\": \"{id}\"}}\n");
            sender.send(Ok::<_, std::io::Error>(line)).await.unwrap();
            let path = format!("/api/v1/units/detector/{id}");
            until("the unit is there", async || fleet.get(&path).await.status() == 200).await;
        }
        drop(sender);
    };
    let body = reqwest::Body::wrap_stream(poll_fn(move |context| lines.poll_recv(context)));
    let (answer, ()) = tokio::join!(batch(&fleet, "application/x-ndjson", body), sent);
    assert_eq!(json_of(answer).await["recorded"], 2);
}

#[tokio::test]
async fn a_request_that_names_no_unit_counts_as_one_heartbeat() {
    let device = DeviceRights { heartbeats_per_second: 1, ..DeviceRights::default() };
    let fleet =
        Fleet::start_with(vec![Token { device, ..token("one", Role::Device) }], UnitMetrics::All).await;
    for n in 0..10 {
        let (method, path, body, status) = match n % 2 {
            0 => (Method::GET, "/ping/detector/%ff", Value::Null, 400),
            _ => (Method::POST, "/api/v1/heartbeats", json!([]), 200),
        };
        let answer = send(&fleet, "one", method, path, body).await;
        assert_eq!(answer.status(), status, "{n} {path}");
    }
    for path in ["/ping/detector/%ff", "/ping/detector/1"] {
        assert_eq!(send(&fleet, "one", Method::GET, path, Value::Null).await.status(), 429, "{path}");
    }
}

#[tokio::test]
async fn a_device_cannot_push_out_labels_of_operators_nor_use_up_their_room() {
    let fleet = Fleet::start().await;
    let path = format!("{}/api/v1/units/detector/1", fleet.url);
    let put = async |labels: Value| {
        let body = json!({ "labels": labels, "author": "ana" }).to_string();
        let request = fleet.client.put(&path).header(CONTENT_TYPE, "application/json").body(body);
        request.send().await.unwrap().status().as_u16()
    };
    let many = |of: &str| -> Value {
        (0..16).map(|n| (format!("{of}{n:02}"), json!("x"))).collect::<serde_json::Map<_, _>>().into()
    };
    assert_eq!(put(json!({ "team": "red" })).await, 204);
    let ping = fleet.client.post(format!("{}/ping/detector/1", fleet.url));
    ping.body(json!({ "labels": many("a") }).to_string()).send().await.unwrap();
    let labels = unit(&fleet, "detector/1").await["labels"].clone();
    assert_eq!((&labels["team"], labels.as_object().unwrap().len()), (&json!("red"), 16));
    let metrics = fleet.text("/metrics").await;
    assert!(metrics.contains("rollcall_payload_issues_total{reason=\"bad_label\"} 1"), "{metrics}");
    assert_eq!(put(many("b")).await, 204);
    assert_eq!(put(json!({ "c": "x" })).await, 409);
    assert_eq!(put(json!({ "b00": "y" })).await, 204);
}

#[tokio::test]
async fn a_page_of_another_site_sends_no_heartbeat() {
    let fleet = Fleet::start().await;
    let of_site = |site: &'static str| {
        fleet.client.get(format!("{}/ping/detector/1", fleet.url)).header("sec-fetch-site", site).send()
    };
    assert_eq!(of_site("cross-site").await.unwrap().status(), 403);
    assert_eq!(of_site("none").await.unwrap().status(), 200);
}

#[tokio::test]
async fn time_in_which_no_instance_listened_is_blind_for_units_that_are_heard_over_http() {
    let fleet = Fleet::start().await;
    fleet.roll.canary_returned(fleet.clock.now()).await.unwrap();
    assert_eq!(ping(&fleet, Method::GET, "meter/1").await, 200);
    assert_eq!(ping(&fleet, Method::GET, "detector/1").await, 200);
    // Nothing runs for an hour, and devices cannot ask.
    fleet.clock.advance(3600 * SECOND);
    fleet.roll.canary_returned(fleet.clock.now()).await.unwrap();
    fleet.pass(SECOND, &["detector:1"]).await;
    assert_eq!(unit(&fleet, "detector/1").await["state"], "online");
    assert_eq!(ping(&fleet, Method::GET, "detector/1").await, 200);
    fleet.pass(119 * SECOND, &["detector:1"]).await;
    assert_ne!(unit(&fleet, "detector/1").await["state"], "offline");
    fleet.pass(2 * SECOND, &["detector:1"]).await;
    assert_eq!(unit(&fleet, "detector/1").await["state"], "offline");
}

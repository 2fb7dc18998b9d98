//! Units that are registered and removed by administrators.

use reqwest::Method;
use rollcall::http::{Role, UnitMetrics};
use serde_json::{Value, json};

use super::changes::{send, token};
use super::world::{Fleet, SECOND, assert_problem};

const UNIT: &str = "/api/v1/units/detector/9";

#[tokio::test]
async fn an_administrator_registers_changes_and_removes_a_unit() {
    let tokens = vec![token("desk", Role::Operator), token("root", Role::Admin)];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    let wanted =
        json!({ "timeout_seconds": 60, "labels": { "site": "north" }, "author": "ana", "comment": "new" });
    for (method, body) in [(Method::PUT, wanted.clone()), (Method::DELETE, Value::Null)] {
        assert_problem(send(&fleet, "desk", method, UNIT, body).await, 403).await;
    }
    let root = async |method: Method, body: Value| send(&fleet, "root", method, UNIT, body).await.status();
    let shown = async || {
        let answer = send(&fleet, "root", Method::GET, UNIT, Value::Null).await;
        let status = answer.status();
        (status.as_u16(), serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap())
    };
    assert_eq!(shown().await.0, 404);
    assert_eq!(root(Method::PUT, wanted).await, 204);
    let (_, unit) = shown().await;
    assert_eq!((&unit["state"], &unit["timeout_seconds"]), (&"never_seen".into(), &60.0.into()));
    assert_eq!((&unit["last_seen"], &unit["labels"]["site"]), (&Value::Null, &"north".into()));

    // The unit is heard, and its settings change: a missing setting is left to the kind. The pause stays.
    fleet.hear(&["detector:9"]).await;
    let until = json!({ "until": "2026-03-01T13:00:00Z", "author": "ana" });
    let paused = send(&fleet, "root", Method::PUT, &format!("{UNIT}/pause"), until).await;
    assert_eq!(paused.status(), 200);
    assert_eq!(root(Method::PUT, json!({ "grace_seconds": 0.5, "author": "ana" })).await, 204);
    let (_, unit) = shown().await;
    assert_eq!((&unit["timeout_seconds"], &unit["grace_seconds"]), (&100.0.into(), &0.5.into()));
    assert_eq!((&unit["state"], &unit["labels"]["site"]), (&"paused".into(), &"north".into()));

    // A removed unit stays away, though it is heard again; then it is registered once more.
    assert_eq!(root(Method::DELETE, Value::Null).await, 204);
    fleet.pass(SECOND, &["detector:9"]).await;
    fleet.hear(&["detector:9"]).await;
    assert_eq!((shown().await.0, root(Method::DELETE, Value::Null).await.as_u16()), (404, 404));
    assert_eq!(root(Method::PUT, json!({ "author": "ana" })).await, 204);
    let (_, unit) = shown().await;
    assert_eq!((&unit["state"], &unit["paused_until"]), (&"never_seen".into(), &Value::Null));

    let audit = send(&fleet, "root", Method::GET, "/api/v1/audit", Value::Null).await;
    let audit: Value = serde_json::from_str(&audit.text().await.unwrap()).unwrap();
    let line =
        |entry: &Value| format!("{} {}", entry["change"].as_str().unwrap(), entry["text"].as_str().unwrap());
    let lines: Vec<String> = audit["audit"].as_array().unwrap().iter().map(line).collect();
    let paused = lines.iter().position(|line| line.starts_with("paused")).unwrap();
    assert_eq!(lines[..paused], ["registered ", "removed ", "registered grace 0.5 s"]);
    assert_eq!(lines[paused + 1..], ["registered timeout 60 s, site=\"north\": new"]);
}

#[tokio::test]
async fn a_registration_that_makes_no_sense_is_refused_and_changes_nothing() {
    let fleet = Fleet::start().await;
    let with = |name: &str, value: Value| json!({ "author": "ana", name: value });
    let labels: Value =
        (0..17).map(|n| (format!("l{n}"), "x".into())).collect::<serde_json::Map<_, _>>().into();
    for (path, body, status) in [
        (UNIT, with("timeout_seconds", json!(0.5)), 400),
        (UNIT, with("timeout_seconds", json!(-1)), 400),
        (UNIT, with("timeout_seconds", json!(1e300)), 400),
        (UNIT, with("grace_seconds", json!("1h")), 400),
        (UNIT, with("labels", labels), 400),
        (UNIT, with("labels", json!({ "unit": "x" })), 400),
        (UNIT, with("labels", json!({ "a b": "x" })), 400),
        (UNIT, with("labels", json!({ "site": "" })), 400),
        (UNIT, with("labels", json!({ "site": "a\nb" })), 400),
        (UNIT, with("colour", json!("red")), 400),
        (UNIT, Value::Null, 415),
        ("/api/v1/units/detector/rollcall-probe", with("labels", json!({})), 400),
        ("/api/v1/units/unknown/9", with("labels", json!({})), 404),
        ("/api/v1/units/DETECTOR/9", with("labels", json!({})), 400),
    ] {
        let answer = send(&fleet, "any", Method::PUT, path, body.clone()).await;
        assert_eq!(answer.status(), status, "{path} {body}");
        assert_problem(answer, status).await;
    }
    assert_problem(fleet.get(UNIT).await, 404).await;
}

//! The export of all units.

use reqwest::Method;
use reqwest::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use rollcall::presence::{Declared, Heartbeat, Labels};
use serde_json::{Value, json};

use super::changes::send;
use super::world::{Fleet, SECOND, assert_problem, the};

const EXPORT: &str = "/api/v1/units:export";

async fn exported(fleet: &Fleet, query: &str) -> Vec<Value> {
    let text = fleet.text(&format!("{EXPORT}{query}")).await;
    let mut units: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    units.sort_by_key(|unit| format!("{}/{}", unit["kind"], unit["unit"]));
    units
}

#[tokio::test]
async fn an_export_has_every_unit_once_with_its_settings() {
    let fleet = Fleet::start().await;
    fleet.fill();
    assert_eq!(exported(&fleet, "").await, [Value::Null; 0]);
    fleet.hear_at("north, \"left\"", "detector:1").await;
    fleet.hear(&["meter:=1-1", "detector:gone"]).await;
    let put = async |path: &str, body: Value| {
        let answer = send(&fleet, "", Method::PUT, path, body).await;
        assert!(answer.status().is_success(), "{path}");
    };
    let settings = json!({ "timeout_seconds": 60.5, "grace_seconds": 0, "author": "ana" });
    put("/api/v1/units/detector/2", settings).await;
    put("/api/v1/units/detector/1/pause", json!({ "until": "2026-03-01T14:00:00Z", "author": "ana" })).await;
    let removed = send(&fleet, "", Method::DELETE, "/api/v1/units/detector/gone", Value::Null).await;
    assert_eq!(removed.status(), 204);

    let noon = "2026-03-01T12:00:00.000Z";
    let unit = |kind: &str, unit: &str, labels: Value| {
        json!({
            "kind": kind, "unit": unit, "labels": labels, "timeout_seconds": null, "grace_seconds": null,
            "paused_until": null, "note": "", "last_seen": noon,
        })
    };
    let mut all = [
        unit("detector", "1", json!({ "site": "north, \"left\"" })),
        unit("detector", "2", json!({})),
        unit("meter", "=1-1", json!({})),
    ];
    all[0]["paused_until"] = "2026-03-01T14:00:00.000Z".into();
    all[1]["timeout_seconds"] = 60.5.into();
    all[1]["grace_seconds"] = 0.0.into();
    all[1]["last_seen"] = Value::Null;
    assert_eq!(exported(&fleet, "").await, all);
    assert_eq!(exported(&fleet, "?kind=meter").await, all[2..]);
    fleet.clock.advance(2 * 3600 * SECOND);
    assert_eq!(exported(&fleet, "?kind=detector").await[0]["paused_until"], Value::Null);

    let answer = fleet.get(&format!("{EXPORT}?format=csv")).await;
    let headers =
        [CONTENT_TYPE, CONTENT_DISPOSITION].map(|name| answer.headers()[name].to_str().unwrap().to_owned());
    assert_eq!(headers, ["text/csv; charset=utf-8", "attachment; filename=\"units.csv\""]);
    let text = answer.text().await.unwrap();
    let mut lines: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(lines.remove(0), "kind,unit,timeout_seconds,grace_seconds,labels,paused_until,note,last_seen");
    lines.sort_unstable();
    let labels = "\"{\"\"site\"\":\"\"north, \\\"\"left\\\"\"\"\"}\"";
    let expected = [
        format!("detector,1,,,{labels},,,{noon}"),
        "detector,2,60.5,0,,,,".to_owned(),
        format!("meter,\"'=1-1\",,,,,,{noon}"),
    ];
    assert_eq!(lines, expected);
    for wrong in ["?kind=pump", "?format=xml", "?limit=1"] {
        let answer = fleet.get(&format!("{EXPORT}{wrong}")).await;
        let status = answer.status().as_u16();
        assert!(status == 400 || status == 404, "{wrong}: {status}");
        assert_problem(answer, status).await;
    }
}

#[tokio::test]
async fn a_large_export_is_complete_and_ends_with_an_error_if_the_engine_fails() {
    let mut fleet = Fleet::start().await;
    fleet.fill();
    // More units than the buffers between a server and its client hold.
    let names: Vec<String> = (0..10_000).map(|number| format!("detector:{number:08}")).collect();
    let labels: Labels = (0..8).map(|number| (format!("label{number}"), "x".repeat(250))).collect();
    let now = fleet.clock.now();
    for names in names.chunks(1000) {
        let declared = Declared { labels: labels.clone(), ..Declared::default() };
        let beat = |name: &String| Heartbeat { declared: declared.clone(), ..Heartbeat::of(the(name), now) };
        fleet.roll.hear(&names.iter().map(beat).collect::<Vec<Heartbeat>>(), now).await.unwrap();
    }
    let units = exported(&fleet, "").await;
    assert_eq!(units.len(), names.len());
    assert!(units.iter().zip(&names).all(|(unit, name)| name.ends_with(unit["unit"].as_str().unwrap())));

    // Two clients that do not read keep both writers; when they are gone, others are answered.
    let slow = [fleet.get(EXPORT).await, fleet.get(EXPORT).await];
    assert_problem(fleet.get(EXPORT).await, 503).await;
    let [mut one, other] = slow;
    drop(other);
    fleet.redis.kill();
    let cut_off = async {
        loop {
            match one.chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    };
    assert!(cut_off.await, "the end of a list that was cut off looks like its end");
}

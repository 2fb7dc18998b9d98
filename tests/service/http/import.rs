//! The import of an inventory.

use reqwest::{Method, Response};
use rollcall::http::{Role, UnitMetrics};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::changes::{send, token};
use super::world::{Fleet, SECOND, assert_problem};

const NDJSON: &str = "application/x-ndjson";
const CSV: &str = "text/csv";

async fn post(fleet: &Fleet, token: &str, query: &str, media: &str, body: impl Into<Vec<u8>>) -> Response {
    let url = format!("{}/api/v1/units:import{query}", fleet.url);
    let request = fleet.client.post(url).header("content-type", media).bearer_auth(token);
    request.body(body.into()).send().await.unwrap()
}

/// Imports an inventory, and returns the outcome.
async fn import(fleet: &Fleet, query: &str, media: &str, body: impl Into<Vec<u8>>) -> Value {
    let answer = post(fleet, "", query, media, body).await;
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn counts(outcome: &Value) -> [u64; 6] {
    ["lines", "new", "changed", "same", "removed", "bad_lines"].map(|name| outcome[name].as_u64().unwrap())
}

async fn unit(fleet: &Fleet, name: &str) -> Value {
    let answer = fleet.get(&format!("/api/v1/units/{name}")).await;
    if answer.status() == 404 {
        return Value::Null;
    }
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn an_import_registers_units_and_the_same_import_changes_nothing_more() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:1"]).await;
    let lines = r#"
{"kind": "detector", "unit": "1", "timeout_seconds": 50, "labels": {"site": "north"}}
{"kind": "detector", "unit": "new", "paused_until": "2026-03-01T13:00:00Z", "note": "in the attic", "parent": "meter/gw"}

{"kind": "meter", "unit": "gw", "last_seen": null}"#;
    assert_eq!(counts(&import(&fleet, "?dry_run=true", NDJSON, lines).await), [3, 2, 1, 0, 0, 0]);
    assert_eq!(unit(&fleet, "detector/new").await, Value::Null);

    assert_eq!(counts(&import(&fleet, "", NDJSON, lines).await), [3, 2, 1, 0, 0, 0]);
    let one = unit(&fleet, "detector/1").await;
    assert_eq!((&one["timeout_seconds"], &one["labels"]), (&50.0.into(), &json!({ "site": "north" })));
    let new = unit(&fleet, "detector/new").await;
    assert_eq!((&new["state"], &new["note"]), (&"paused".into(), &"in the attic".into()));
    assert_eq!(new["labels"], json!({ "parent": "meter/gw" }));
    assert_eq!(unit(&fleet, "meter/gw").await["state"], "never_seen");
    assert_eq!(counts(&import(&fleet, "", NDJSON, lines).await), [3, 0, 0, 3, 0, 0]);

    // The deadline moves at once: to 50 s and 20 s of grace after it was heard.
    assert_eq!(unit(&fleet, "detector/1").await["deadline"], "2026-03-01T12:01:10.000Z");
    fleet.pass(71 * SECOND, &["detector:1"]).await;
    assert_eq!(unit(&fleet, "detector/1").await["state"], "offline");
}

#[tokio::test]
async fn what_was_exported_is_imported_again_and_a_replacement_removes_the_rest() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear_at("north, \"left\"", "detector:-1").await;
    fleet.hear(&["meter:=1-1", "detector:2"]).await;
    let settings = json!({ "timeout_seconds": 60.5, "note": "a\n-b;=1", "author": "ana" });
    assert_eq!(send(&fleet, "", Method::PUT, "/api/v1/units/detector/2", settings).await.status(), 204);
    for (format, media) in [("ndjson", NDJSON), ("ndjson", "application/jsonl"), ("csv", CSV)] {
        let file = fleet.text(&format!("/api/v1/units:export?format={format}")).await;
        assert_eq!(
            counts(&import(&fleet, "?replace=true", media, file).await),
            [3, 0, 0, 3, 0, 0],
            "{format}"
        );
    }

    // Columns in another order, as a spreadsheet writes them; labels have columns of their own.
    let file = "\u{feff}unit,label.site,kind,note\r\n2,\"south\r\nyard\",,\r\nfresh,east,detector,hello\r\n";
    let dry = import(&fleet, "?replace=true&kind=detector&dry_run=true&bad_lines=refuse", CSV, file).await;
    assert_eq!(counts(&dry), [2, 1, 0, 0, 2, 1]);
    assert_eq!(dry["bad"][0]["line"], 2);
    let file = file.replace("\r\nyard", "");
    let dry = import(&fleet, "?replace=true&kind=detector&dry_run=true", CSV, file.clone()).await;
    assert_eq!(counts(&dry), [2, 1, 1, 0, 1, 0]);
    let change = |change: &str, unit: &str| json!({ "kind": "detector", "unit": unit, "change": change });
    let changes = [change("changed", "2"), change("new", "fresh"), change("removed", "-1")];
    assert_eq!(dry["changes"], json!(changes));
    assert_eq!(unit(&fleet, "detector/-1").await["state"], "online");
    let outcome = import(&fleet, "?replace=true&kind=detector", CSV, file).await;
    assert_eq!(counts(&outcome), [2, 1, 1, 0, 1, 0]);
    assert_eq!(unit(&fleet, "detector/-1").await, Value::Null);
    let states = ["detector/2", "detector/fresh", "meter/=1-1"];
    for (name, state) in states.into_iter().zip(["online", "never_seen", "online"]) {
        assert_eq!(unit(&fleet, name).await["state"], state, "{name}");
    }
    let audit: Value = serde_json::from_str(&fleet.text("/api/v1/audit?limit=1").await).unwrap();
    let entry = &audit["audit"][0];
    assert_eq!((&entry["change"], &entry["subject"]), (&"inventory_imported".into(), &"detector".into()));
    assert_eq!(entry["text"], "2 lines, 0 of them bad; removes 1 of 2 units");
    // A file that would remove more than half of the units counts as the wrong file, unless the client confirms it.
    let other = "kind,unit\ndetector,fresh\n";
    let problem = assert_problem(post(&fleet, "", "?replace=true", CSV, other).await, 409).await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("would remove 2 of 3 units, more than half; nothing was changed"), "{detail}");
    assert_eq!(unit(&fleet, "detector/2").await["state"], "online");
    let dry = import(&fleet, "?replace=true&dry_run=true", CSV, other.to_owned()).await;
    assert_eq!(counts(&dry)[4], 2, "a dry run answers: {dry}");
    let forced = import(&fleet, "?replace=true&force=true", CSV, other.to_owned()).await;
    assert_eq!(counts(&forced)[4], 2, "{forced}");
}

#[tokio::test]
async fn bad_lines_are_named_by_their_numbers_and_nothing_or_the_rest_is_taken() {
    let fleet = Fleet::start().await;
    let long = format!(r#"{{"kind": "detector", "unit": "{}"}}"#, "x".repeat(70_000));
    let lines = [
        r#"{"kind": "detector", "unit": "good"}"#,
        r#"{"kind": "pump", "unit": "1"}"#,
        r#"{"kind": "detector"}"#,
        r#"{"kind": "detector", "unit": "a/b"}"#,
        r#"{"kind": "detector", "unit": "1", "timeout": 5}"#,
        r#"{"kind": "detector", "unit": "1", "timeout_seconds": 0.5}"#,
        r#"{"kind": "detector", "unit": "1", "labels": {"kind": "x"}}"#,
        r#"{"kind": "detector", "unit": "1", "paused_until": "2020-01-01T00:00:00Z"}"#,
        r#"{"kind": "detector", "unit": "1", "parent": "detector/1"}"#,
        r#"{"kind": "detector", "unit": "1", "note": "\u0000"}"#,
        r#"{"kind": "detector", "unit": "good"}"#,
        r#"["detector", "1"]"#,
        "\u{1}",
        &long,
        r#"{"kind": "detector", "unit": "last"}"#,
    ];
    let body = lines.join("\n");
    let answer = post(&fleet, "", "", NDJSON, body.clone()).await;
    assert_eq!(answer.status(), 422);
    let problem: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let bad: Vec<u64> =
        problem["bad"].as_array().unwrap().iter().map(|bad| bad["line"].as_u64().unwrap()).collect();
    assert_eq!(bad, (2..=14).collect::<Vec<u64>>());
    assert!(problem["detail"].as_str().unwrap().starts_with("13 of 15 lines are bad, first line 2: "));
    assert_eq!(unit(&fleet, "detector/good").await, Value::Null);

    assert_eq!(counts(&import(&fleet, "?bad_lines=skip", NDJSON, body).await), [15, 2, 0, 0, 0, 13]);
    assert_eq!(unit(&fleet, "detector/last").await["state"], "never_seen");
    assert_eq!(unit(&fleet, "detector/1").await, Value::Null);

    let rows: &[u8] = b"kind,unit\ndetector,c1,more\ndetector\ndetector,\xff\ndetector,c2\n";
    let outcome = import(&fleet, "?bad_lines=skip", CSV, rows).await;
    assert_eq!(counts(&outcome), [4, 1, 0, 0, 0, 3]);
    let lines = outcome["bad"].as_array().unwrap().iter().map(|bad| bad["line"].as_u64().unwrap());
    assert_eq!(lines.collect::<Vec<u64>>(), [2, 3, 4]);
}

#[tokio::test]
async fn an_import_that_is_not_understood_changes_nothing() {
    let tokens = vec![token("desk", Role::Operator), token("root", Role::Admin)];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    let line = r#"{"kind": "detector", "unit": "1"}"#;
    let cases = [
        ("desk", "", NDJSON, line, 403),
        ("root", "", "application/json", line, 415),
        ("root", "?kind=pump", NDJSON, line, 400),
        ("root", "?replace=maybe", NDJSON, line, 400),
        ("root", "?replace=true&bad_lines=skip", NDJSON, line, 400),
        ("root", "?replace=true", NDJSON, "", 400),
        ("root", "", CSV, "kind,unit,colour\ndetector,1,red\n", 400),
        ("root", "", CSV, "kind,kind,unit\ndetector,detector,1\n", 400),
        ("root", "", CSV, "kind,timeout_seconds\ndetector,1\n", 400),
    ];
    for (token, query, media, body, status) in cases {
        assert_problem(post(&fleet, token, query, media, body).await, status).await;
    }
    let shown = send(&fleet, "root", Method::GET, "/api/v1/units/detector/1", Value::Null).await;
    assert_eq!(shown.status(), 404);
}

#[tokio::test]
async fn an_upload_that_stalls_holds_up_no_other_token_and_gives_its_place_back() {
    let tokens = vec![token("one", Role::Admin), token("two", Role::Admin)];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    fleet.fill();
    let line = r#"{"kind": "detector", "unit": "1"}"#;
    let address = fleet.url.trim_start_matches("http://");
    let mut stalled = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /api/v1/units:import HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer one\r\n\
         Content-Type: {NDJSON}\r\nContent-Length: 1000000\r\n\r\n{line}"
    );
    stalled.write_all(head.as_bytes()).await.unwrap();
    // The place of the first upload is taken once a second upload of the token is refused.
    let refused = async { while post(&fleet, "one", "?dry_run=true", NDJSON, line).await.status() != 503 {} };
    tokio::time::timeout(30 * SECOND, refused).await.unwrap();
    assert_eq!(post(&fleet, "two", "", NDJSON, line).await.status(), 200);
    drop(stalled);
    let accepted = async { while post(&fleet, "one", "", NDJSON, line).await.status() != 200 {} };
    tokio::time::timeout(30 * SECOND, accepted).await.unwrap();
}

#[tokio::test]
async fn the_columns_and_cells_of_csv_are_bounded() {
    let fleet = Fleet::start().await;
    let labels = |count: usize| (0..count).map(|n| format!(",label.l{n}")).collect::<String>();
    let long = "x".repeat(100_000);
    for (text, expected) in [
        (format!("unit{}\n", labels(100_000)), "more than"),
        (format!("unit{}\n", labels(300)), "at most 256"),
        (format!("unit,label.{}\n", "x".repeat(300)), "is not one of"),
        (format!("unit,{long}\n"), "more than"),
        (format!("unit,note\n1,\"{long}\n"), "from line 2 on"),
        ("unit,unit\n".to_owned(), "each once"),
    ] {
        let problem = assert_problem(post(&fleet, "", "?kind=detector", CSV, text).await, 400).await;
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(expected) && detail.len() < 1000, "{detail}");
    }
}

//! Requests that change something: the clients that may send them, and their entries in the audit.

use reqwest::{Method, Response};
use rollcall::http::{Role, Token, UnitMetrics};
use serde_json::{Value, json};

use super::world::{Fleet, SECOND, assert_problem};

const SILENCES: &str = "/alertmanager/api/v2/silences";

pub(super) fn token(name: &str, role: Role) -> Token {
    let (sha256, device) = (Token::digest(name), Default::default());
    Token { name: name.to_owned(), sha256, role, expires_at: None, device }
}

pub(super) async fn send(fleet: &Fleet, token: &str, method: Method, path: &str, body: Value) -> Response {
    let request = fleet.client.request(method, format!("{}{path}", fleet.url));
    let request = request.header("Authorization", format!("Bearer {token}"));
    let request = match body {
        Value::Null => request,
        body => request.header("content-type", "application/json").body(body.to_string()),
    };
    request.send().await.unwrap()
}

fn silence() -> Value {
    json!({
        "matchers": [{ "name": "kind", "value": "detector", "isRegex": false }],
        "startsAt": "2026-03-01T12:00:00Z",
        "endsAt": "2026-03-01T14:00:00Z",
        "createdBy": "ana",
        "comment": "works",
    })
}

#[tokio::test]
async fn a_viewer_may_look_and_only_an_operator_may_change() {
    let tokens = vec![token("screen", Role::Viewer), token("desk", Role::Operator)];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    fleet.hear(&["detector:1"]).await;
    fleet.pass(121 * SECOND, &["detector:1"]).await;
    let look = |token: &'static str, path: &'static str| send(&fleet, token, Method::GET, path, Value::Null);
    let record = look("screen", "/api/v1/records").await.text().await.unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let ack = format!("/api/v1/records/{}/ack", record["records"][0]["id"].as_str().unwrap());
    let pause = "/api/v1/units/detector/1/pause".to_owned();
    let taken = json!({ "author": "ana", "comment": "on my way" });
    let until = json!({ "author": "ana", "until": "2026-03-01T16:00:00+01:00" });
    for (token, status) in [("screen", 403), ("desk", 204)] {
        assert_eq!(look(token, SILENCES).await.status(), 200, "{token}");
        let posted = send(&fleet, token, Method::POST, SILENCES, silence()).await;
        assert_eq!(posted.status(), if status == 403 { 403 } else { 200 }, "{token}");
        for (path, body) in [(&ack, &taken), (&pause, &until)] {
            for (method, body) in [(Method::PUT, body.clone()), (Method::DELETE, Value::Null)] {
                let answer = send(&fleet, token, method.clone(), path, body).await;
                let is_pause = status == 204 && method == Method::PUT && *path == pause;
                assert_eq!(answer.status(), if is_pause { 200 } else { status }, "{token} {method} {path}");
            }
        }
    }
    let audit = look("screen", "/api/v1/audit?limit=10").await.text().await.unwrap();
    let audit: Value = serde_json::from_str(&audit).unwrap();
    let lines = audit["audit"].as_array().unwrap().iter();
    let lines: Vec<_> = lines.map(|entry| (entry["change"].clone(), entry["author"].clone())).collect();
    let expected = [
        ("pause_ended", "desk"),
        ("paused", "ana (desk)"),
        ("acknowledgement_undone", "desk"),
        ("acknowledged", "ana (desk)"),
        ("silence_added", "ana (desk)"),
    ];
    assert_eq!(lines, expected.map(|(change, author)| (json!(change), json!(author))));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1"]).await;
    let ana = || json!({ "author": "ana" });
    let until = |time: &str| json!({ "author": "ana", "until": time });
    for (method, path, body, status) in [
        (Method::PUT, "/api/v1/records/detector:1:5/ack", ana(), 404),
        (Method::DELETE, "/api/v1/records/detector:1:5/ack", Value::Null, 404),
        (Method::PUT, "/api/v1/records/nonsense/ack", ana(), 400),
        // The author is that of the token if the request names none.
        (Method::PUT, "/api/v1/records/detector:1:5/ack", json!({}), 404),
        (Method::PUT, "/api/v1/units/detector/2/pause", json!({ "until": "2026-03-02T11:00:00Z" }), 404),
        (Method::PUT, "/api/v1/records/detector:1:5/ack", json!({ "author": "" }), 400),
        (Method::PUT, "/api/v1/records/detector:1:5/ack", json!({ "by": "ana" }), 400),
        (Method::PUT, "/api/v1/records/detector:1:5/ack", Value::Null, 415),
        (Method::GET, "/api/v1/records/detector:1:5/ack", Value::Null, 405),
        (Method::PUT, "/api/v1/units/detector/1/pause", until("2026-03-01T11:00:00Z"), 400),
        (Method::PUT, "/api/v1/units/detector/1/pause", until("9999-01-01T00:00:00Z"), 400),
        (Method::PUT, "/api/v1/units/detector/1/pause", until("tomorrow"), 400),
        (Method::PUT, "/api/v1/units/detector/1/pause", ana(), 400),
        (Method::PUT, "/api/v1/units/detector/1/pause", json!({ "for": "500d" }), 400),
        (Method::PUT, "/api/v1/units/detector/1/pause", json!({ "for": "0s" }), 400),
        (
            Method::PUT,
            "/api/v1/units/detector/1/pause",
            json!({ "for": "1h", "until": "2026-03-02T11:00:00Z" }),
            400,
        ),
        (Method::DELETE, "/api/v1/units/detector/1?comment=a%00b", Value::Null, 400),
        (Method::DELETE, "/api/v1/units/detector/1?author=ana", Value::Null, 400),
        (Method::PUT, "/api/v1/units/detector/nowhere/pause", until("2026-03-02T11:00:00Z"), 404),
        (Method::PUT, "/api/v1/units/unknown/1/pause", until("2026-03-02T11:00:00Z"), 404),
        (Method::DELETE, "/api/v1/units/detector/1/pause", Value::Null, 404),
        (Method::GET, "/api/v1/audit?limit=0", Value::Null, 400),
    ] {
        let answer = send(&fleet, "any", method.clone(), path, body.clone()).await;
        assert_eq!(answer.status(), status, "{method} {path} {body}");
        assert_problem(answer, status).await;
    }
    let large = format!("{{\"author\":\"{}\"}}", "x".repeat(262_144));
    let request = fleet.client.put(format!("{}/api/v1/records/detector:1:5/ack", fleet.url));
    let request = request.header("content-type", "application/json").body(large);
    assert_problem(request.send().await.unwrap(), 413).await;
}

#[tokio::test]
async fn a_pause_lasts_from_the_clock_of_the_instance_and_its_end_has_a_comment() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:1"]).await;
    let pause = "/api/v1/units/detector/1/pause";
    let paused = send(&fleet, "", Method::PUT, pause, json!({ "for": "2h", "comment": "new battery" })).await;
    assert_eq!(paused.status(), 200);
    assert_eq!(paused.text().await.unwrap(), r#"{"until":"2026-03-01T14:00:00.000Z"}"#);
    assert_eq!(fleet.json("/api/v1/units/detector/1").await["paused_until"], "2026-03-01T14:00:00.000Z");
    for path in ["/api/v1/units/detector/1/pause?comment=is%20done", "/api/v1/units/detector/1?comment=sold"]
    {
        assert_eq!(send(&fleet, "", Method::DELETE, path, Value::Null).await.status(), 204, "{path}");
    }
    let audit = fleet.json("/api/v1/audit").await;
    let texts: Vec<&str> =
        audit["audit"].as_array().unwrap().iter().map(|entry| entry["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["sold", "is done", "until 2026-03-01T14:00:00.000Z: new battery"]);
}

//! Timers over HTTP: one by one, in batches, in lists, on their page and from the command line.

use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, Response};
use rollcall::http::{Role, UnitMetrics};
use rollcall::presence::TimerId;
use rollcall::store::{Layout, StoredTimers, TimerCapacity};
use serde_json::{Value, json};

use super::changes::{send, token};
use super::commands::rollcall;
use super::web::submit;
use super::world::{Fleet, SECOND, assert_problem, timer_rules};

const PATH: &str = "/api/v1/timers";

async fn put(fleet: &Fleet, id: &str, body: Value) -> Response {
    send(fleet, "", Method::PUT, &format!("{PATH}/{id}"), body).await
}

async fn cancel(fleet: &Fleet, body: Value) -> Response {
    send(fleet, "", Method::POST, "/api/v1/timers:cancel", body).await
}

async fn batch(fleet: &Fleet, media: &str, body: impl Into<reqwest::Body>) -> Response {
    let request = fleet.client.post(format!("{}{PATH}", fleet.url)).header(CONTENT_TYPE, media);
    request.body(body).send().await.unwrap()
}

async fn json_of(answer: Response) -> Value {
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

/// The outcome of a batch, and the number of timers with each result.
async fn counts(answer: Response) -> (u16, Value) {
    let status = answer.status().as_u16();
    let answer = json_of(answer).await;
    (status, json!([answer["created"], answer["changed"], answer["refused"]]))
}

fn requests(fleet: &Fleet, result: &str) -> f64 {
    crate::support::metrics::sum(&fleet.telemetry, "rollcall_timer_requests_total", &[result])
        .unwrap_or_default()
}

fn timers(fleet: &Fleet) -> StoredTimers {
    StoredTimers::new(fleet.engine.clone())
}

/// How many timers wait.
async fn waiting(fleet: &Fleet) -> u64 {
    let partitions: Vec<u16> = (0..fleet.engine.partitions()).collect();
    timers(fleet).count_timers(&partitions).await.unwrap().values().sum()
}

/// Fires the timers with these ids, as the loop does.
async fn fire(fleet: &Fleet, ids: &[&str]) {
    let ids: Vec<TimerId> = ids.iter().map(|id| id.parse().unwrap()).collect();
    let waiting: Vec<_> = timers(fleet).timers(&ids).await.unwrap().into_iter().flatten().collect();
    let rules = timer_rules();
    let now = fleet.clock.now();
    let fired = timers(fleet).fire(&waiting, &rules.classes, &TimerCapacity::NONE, now).await.unwrap();
    assert_eq!(fired.timers.len(), ids.len());
}

#[tokio::test]
async fn a_timer_is_registered_shown_changed_and_cancelled_once() {
    let fleet = Fleet::start().await;
    let id = "report%207%3A%C3%BC";
    let data = json!({ "site": "north", "exact": 1 });
    let wanted = json!({ "type": "report", "in": "30m", "data": data });
    let created = put(&fleet, id, wanted).await;
    assert_eq!(created.status(), 201);
    let expected = json!({
        "id": "report 7:ü", "type": "report", "due": "2026-03-01T12:30:00.000Z", "result": "created",
    });
    assert_eq!(json_of(created).await, expected);
    let one = format!("{PATH}/{id}");
    let shown = fleet.json(&one).await;
    assert_eq!(
        shown,
        json!({
            "id": "report 7:ü", "type": "report", "state": "waiting", "due": "2026-03-01T12:30:00.000Z",
            "fired_at": null, "cancelled_at": null, "notification": null, "receivers": [], "data": data,
        })
    );
    let later = json!({ "type": "command", "due": "2026-03-01T14:00:00+01:00" });
    let changed = put(&fleet, id, later.clone()).await;
    assert_eq!((changed.status().as_u16(), &json_of(changed).await["result"]), (200, &json!("changed")));
    let shown = fleet.json(&one).await;
    assert_eq!((&shown["due"], &shown["type"]), (&"2026-03-01T13:00:00.000Z".into(), &"command".into()));
    assert_eq!(shown["data"], Value::Null);

    let mut only_new = later;
    only_new["if_absent"] = true.into();
    assert_problem(put(&fleet, id, only_new).await, 409).await;
    for was_waiting in [true, false] {
        let answer = send(&fleet, "", Method::DELETE, &one, Value::Null).await;
        assert_eq!(
            (answer.status().as_u16(), json_of(answer).await),
            (200, json!({ "cancelled": was_waiting }))
        );
    }
    let shown = fleet.json(&one).await;
    assert_eq!(
        (&shown["state"], &shown["cancelled_at"]),
        (&"cancelled".into(), &"2026-03-01T12:00:00.000Z".into())
    );
    assert_problem(fleet.get(&format!("{PATH}/unknown")).await, 404).await;
    let never = send(&fleet, "", Method::DELETE, &format!("{PATH}/unknown"), Value::Null).await;
    assert_eq!(json_of(never).await, json!({ "cancelled": false }));
    assert_eq!(fleet.json("/api/v1/audit").await["audit"], json!([]), "no operator is named");
    for (result, count) in
        [("created", 1.0), ("changed", 1.0), ("exists", 1.0), ("cancelled", 1.0), ("not_waiting", 2.0)]
    {
        assert_eq!(requests(&fleet, result), count, "{result}");
    }
}

#[tokio::test]
async fn a_timer_that_fired_at_its_moment_does_not_fire_again_for_the_same_request() {
    let fleet = Fleet::start().await;
    let past = json!({ "type": "command", "due": "2020-01-01T00:00:00Z" });
    assert_eq!(put(&fleet, "a", past.clone()).await.status(), 201);
    fire(&fleet, &["a"]).await;
    let shown = fleet.json(&format!("{PATH}/a")).await;
    assert_eq!((&shown["state"], &shown["notification"]), (&"fired".into(), &"a:1577836800000".into()));
    assert_eq!(shown["receivers"], json!([{ "receiver": "hook", "state": "pending" }]));
    let again = put(&fleet, "a", past).await;
    assert_eq!((again.status().as_u16(), &json_of(again).await["result"]), (200, &json!("fired")));
    let other = json!({ "type": "command", "in": "1h" });
    assert_eq!(put(&fleet, "a", other).await.status(), 201, "another moment is another firing");
}

#[tokio::test]
async fn what_is_no_timer_is_refused_with_the_reason() {
    let fleet = Fleet::start().await;
    for (body, why) in [
        (json!({}), "type is missing"),
        (json!({ "type": "nothing", "in": "1m" }), "there is no class of timers nothing"),
        (json!({ "type": "report" }), "either due"),
        (json!({ "type": "report", "in": "1m", "due": "2026-03-01T14:00:00Z" }), "either due"),
        (json!({ "type": "report", "due": "noon" }), "is not a moment"),
        (json!({ "type": "report", "in": "11y" }), "is not a span"),
        (json!({ "type": "report", "in": "5000d" }), "within 3653 days"),
        (json!({ "type": "report", "in": "1m", "colour": 1 }), "colour"),
        (json!({ "type": "report", "in": "1m", "id": "b" }), "is not the id a of the request"),
        (json!({ "type": "report", "in": "1m", "data": "x".repeat(70_000) }), "65536 bytes"),
        (json!(["report"]), "JSON object"),
    ] {
        let problem = assert_problem(put(&fleet, "a", body.clone()).await, 400).await;
        assert!(problem["detail"].as_str().unwrap().contains(why), "{body}: {problem}");
    }
    let large = put(&fleet, "a", json!({ "type": "report", "in": "1m", "data": "x".repeat(200_000) })).await;
    assert_problem(large, 413).await;
    let fine = || json!({ "type": "report", "in": "1m" });
    for id in ["a%2Fb", "%23", "a%2Bb", "a%0Ab", "%C2%85", &"x".repeat(129)] {
        assert_problem(put(&fleet, id, fine()).await, 400).await;
    }
    assert_eq!(fleet.get(&format!("{PATH}/%FF")).await.status(), 400);
    let text = fleet.client.put(format!("{}{PATH}/a", fleet.url)).body(fine().to_string());
    assert_problem(text.send().await.unwrap(), 415).await;
    assert_eq!(fleet.json(PATH).await, json!({ "timers": [], "next": null }));
}

#[tokio::test]
async fn a_batch_is_answered_entry_by_entry_in_order() {
    let fleet = Fleet::start().await;
    let lines = [
        r#"{"id":"a","type":"report","in":"1h"}"#,
        "",
        "{\"id\":\"b\",\"type\":\"report\",\"in\":\"soon\"}\r",
        "{",
        r#"{"id":"a","type":"report","in":"2h"}"#,
        r#"{"id":"c","type":"nothing","in":"1h"}"#,
        r#"{"id":"a","type":"report","in":"3h","if_absent":true}"#,
        r#"{"type":"report","in":"1h"}"#,
    ];
    let answer = batch(&fleet, "application/x-ndjson", lines.join("\n")).await;
    assert_eq!(answer.status(), 200);
    let answer = json_of(answer).await;
    assert_eq!((&answer["created"], &answer["refused"]), (&json!(2), &json!(4)), "{answer}");
    let of: Vec<String> = answer["timers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let id = one["id"].as_str().map(|id| if id.starts_with("tmr_") { "made" } else { id });
            format!("{} {}", id.unwrap_or("none"), one["result"].as_str().unwrap_or("refused"))
        })
        .collect();
    assert_eq!(
        of,
        ["a created", "b refused", "none refused", "a changed", "c refused", "a refused", "made created"]
    );
    assert_eq!(fleet.json(&format!("{PATH}/a")).await["due"], "2026-03-01T14:00:00.000Z");
    for (body, expected) in
        [("[]", json!([0, 0, 0])), (r#"[{"id":"d","type":"report","in":"1h"},7]"#, json!([1, 0, 1]))]
    {
        assert_eq!(counts(batch(&fleet, "application/json", body).await).await, (200, expected), "{body}");
    }
}

#[tokio::test]
async fn a_batch_that_ends_early_says_how_much_of_it_was_registered() {
    let fleet = Fleet::start().await;
    let one = |id: &str| json!({ "id": id, "type": "command", "in": "1h" }).to_string();
    for (body, why) in [
        (format!("[{},{},", one("a"), one("b")), "has no end"),
        (format!("[{},{}}}", one("a"), one("b")), "a bracket too many"),
        (format!("[{},{}] more", one("a"), one("b")), "after the array"),
    ] {
        let problem = assert_problem(batch(&fleet, "application/json", body).await, 400).await;
        assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
        let answered = problem["answered"].as_u64().unwrap();
        assert!(answered >= 1, "{problem}");
        assert_eq!(fleet.json(PATH).await["timers"][0]["id"], "a");
    }
    for body in ["", "{}", "null", "\"["] {
        assert_problem(batch(&fleet, "application/json", body).await, 400).await;
    }
    for media in ["text/plain", "application/x-www-form-urlencoded", ""] {
        assert_problem(batch(&fleet, media, "[]").await, 415).await;
    }
}

#[tokio::test]
async fn a_batch_has_at_most_100_000_timers_and_the_rest_is_left_out() {
    let fleet = Fleet::start().await;
    let mut lines = String::new();
    for number in 0..100_003 {
        lines +=
            &format!("{{\"id\":\"t{number:06}\",\"type\":\"command\",\"due\":\"2026-03-01T13:00:00Z\"}}\n");
    }
    let problem = assert_problem(batch(&fleet, "application/x-ndjson", lines).await, 413).await;
    assert_eq!(problem["answered"], 100_000);
    assert_eq!(waiting(&fleet).await, 100_000);
    assert_problem(fleet.get(&format!("{PATH}/t100000")).await, 404).await;
    // Each request cancels a part of the timers.
    let mut cursor = Value::Null;
    for rest in [80_000, 60_000] {
        fleet.clock.advance(1000 * SECOND);
        let answer = json_of(cancel(&fleet, json!({ "type": "command", "cursor": cursor })).await).await;
        assert_eq!(answer["cancelled"], 20_000);
        assert_eq!(waiting(&fleet).await, rest);
        cursor = answer["next"].clone();
        assert!(cursor.is_string(), "{answer}");
    }
}

#[tokio::test]
async fn timers_are_listed_by_moment_in_pages_by_type_state_and_time() {
    let fleet = Fleet::start().await;
    let mut lines = Vec::new();
    for minute in 0..25 {
        let class = if minute % 2 == 0 { "command" } else { "report" };
        if class == "report" && minute > 9 {
            continue;
        }
        lines.push(
            json!({ "id": format!("t{:02}", 50 - minute), "type": class, "in": format!("{minute}m") })
                .to_string(),
        );
    }
    assert_eq!(
        counts(batch(&fleet, "application/x-ndjson", lines.join("\n")).await).await,
        (200, json!([18, 0, 0]))
    );
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = fleet.json(&format!("{PATH}?limit=5{cursor}")).await;
        let timers = page["timers"].as_array().unwrap();
        assert!(timers.len() <= 5, "{page}");
        seen.extend(timers.iter().map(|one| one["due"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={}", next.replace(':', "%3A"));
    }
    assert_eq!(seen.len(), 18);
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(
        (seen[0].as_str(), seen[17].as_str()),
        ("2026-03-01T12:00:00.000Z", "2026-03-01T12:24:00.000Z")
    );
    fire(&fleet, &["t50"]).await;
    assert_eq!(json_of(cancel(&fleet, json!({ "ids": ["t49"] })).await).await["cancelled"], 1);
    let ids = async |query: &str| -> Vec<String> {
        let page = fleet.json(&format!("{PATH}?{query}")).await;
        page["timers"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("type=report&state=waiting").await, ["t47", "t45", "t43", "t41"]);
    assert_eq!(ids("state=fired,cancelled").await, ["t50", "t49"]);
    assert_eq!(ids("from=2026-03-01T12:02:00Z&until=2026-03-01T12:05:00Z").await, ["t48", "t47", "t46"]);
    assert_eq!(ids("type=report,command&until=2026-03-01T12:01:00Z").await, ["t50"]);
    for wrong in ["state=open", "type=A", "limit=0", "limit=1001", "cursor=x", "from=noon", "colour=1"] {
        assert_problem(fleet.get(&format!("{PATH}?{wrong}")).await, 400).await;
    }
}

#[tokio::test]
async fn timers_are_cancelled_together_by_ids_or_by_type_and_time() {
    let fleet = Fleet::start().await;
    for (id, class, span) in
        [("a", "report", "1h"), ("b", "command", "2h"), ("c", "command", "3h"), ("d", "report", "4h")]
    {
        assert_eq!(put(&fleet, id, json!({ "type": class, "in": span })).await.status(), 201);
    }
    let answer = json_of(cancel(&fleet, json!({ "ids": ["a", "never", "a/b", "a"] })).await).await;
    assert_eq!(answer["cancelled"], 1);
    let timers = answer["timers"].as_array().unwrap();
    assert_eq!(timers[0], json!({ "id": "a", "cancelled": true }));
    assert_eq!(timers[1], json!({ "id": "never", "cancelled": false }));
    assert!(timers[2]["error"].as_str().unwrap().contains("the id of a timer"), "{answer}");
    assert_eq!(timers[3], json!({ "id": "a", "cancelled": false }));
    let range = json!({ "type": "command", "from": "2026-03-01T14:00:00Z", "until": "2026-03-01T15:00:00Z" });
    assert_eq!(json_of(cancel(&fleet, range).await).await, json!({ "cancelled": 1, "next": null }));
    let rest = fleet.json(&format!("{PATH}?state=waiting")).await;
    let ids: Vec<&str> =
        rest["timers"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["c", "d"]);
    let many: Vec<String> = (0..10_001).map(|number| number.to_string()).collect();
    for (body, status) in [
        (json!({}), 400),
        (json!({ "ids": ["c"], "type": "command" }), 400),
        (json!({ "type": "A" }), 400),
        (json!({ "cursor": "x", "type": "command" }), 400),
        (json!({ "ids": many }), 413),
        (json!([]), 400),
    ] {
        assert_problem(cancel(&fleet, body).await, status).await;
    }
}

#[tokio::test]
async fn a_class_has_room_for_as_many_as_are_allowed_and_a_change_needs_none() {
    let fleet = Fleet::start().await;
    for id in ["1", "2", "3", "4", "5"] {
        assert_eq!(put(&fleet, id, json!({ "type": "report", "in": "1h" })).await.status(), 201);
    }
    let problem = assert_problem(put(&fleet, "6", json!({ "type": "report", "in": "1h" })).await, 422).await;
    assert_eq!(problem["reason"], "class_full");
    assert!(problem["detail"].as_str().unwrap().contains("5 timers of the class report wait"), "{problem}");
    assert_eq!(put(&fleet, "5", json!({ "type": "report", "in": "2h" })).await.status(), 200);
    assert_eq!(put(&fleet, "6", json!({ "type": "command", "in": "1h" })).await.status(), 201);
    let both = r#"[{"id":"5","type":"report","in":"3h"},{"id":"7","type":"report","in":"3h"}]"#;
    assert_eq!(counts(batch(&fleet, "application/json", both).await).await, (200, json!([0, 1, 1])));
    // A cancelled timer makes room.
    assert_eq!(json_of(cancel(&fleet, json!({ "ids": ["1"] })).await).await["cancelled"], 1);
    assert_eq!(put(&fleet, "8", json!({ "type": "report", "in": "1h" })).await.status(), 201);
    assert_problem(put(&fleet, "9", json!({ "type": "report", "in": "1h" })).await, 422).await;
}

#[tokio::test]
async fn a_token_that_asks_for_too_many_waits_and_others_do_not() {
    let tokens =
        vec![token("desk", Role::Operator), token("other", Role::Operator), token("screen", Role::Viewer)];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    let mut lines = String::new();
    for number in 0..10_500 {
        lines += &format!("{{\"id\":\"{number}\",\"type\":\"command\",\"in\":\"1h\"}}\n");
    }
    let request = fleet.client.post(format!("{}{PATH}", fleet.url)).bearer_auth("desk");
    let answer = request.header(CONTENT_TYPE, "application/x-ndjson").body(lines).send().await.unwrap();
    assert_eq!(counts(answer).await, (200, json!([10_500, 0, 0])), "ten seconds of 1000 are saved up");
    let one = json!({ "type": "command", "in": "1h" });
    let again = |token: &'static str| send(&fleet, token, Method::PUT, "/api/v1/timers/x", one.clone());
    let refused = again("desk").await;
    assert_eq!(refused.headers()[RETRY_AFTER], "1");
    assert_problem(refused, 429).await;
    assert_problem(send(&fleet, "desk", Method::DELETE, "/api/v1/timers/1", Value::Null).await, 429).await;
    assert_eq!(again("other").await.status(), 201);
    assert_eq!(again("screen").await.status(), 403);
    fleet.clock.advance(SECOND);
    assert_eq!(again("desk").await.status(), 200);
    assert_eq!(requests(&fleet, "rate"), 2.0);
}

#[tokio::test]
async fn the_page_of_timers_lists_and_cancels_them() {
    let fleet = Fleet::start().await;
    let hostile = "a%3Cb%3E%22";
    assert_eq!(put(&fleet, hostile, json!({ "type": "report", "in": "90s" })).await.status(), 201);
    assert_eq!(put(&fleet, "later", json!({ "type": "command", "in": "3h" })).await.status(), 201);
    let page = fleet.text("/timers").await;
    assert!(page.contains("a&lt;b&gt;&quot;") && !page.contains("a<b>"), "{page}");
    assert!(
        page.contains(">1m 30s</time>") && page.find("a&lt;b").unwrap() < page.find("later").unwrap(),
        "{page}"
    );
    assert!(!fleet.text("/timers?type=command").await.contains("a&lt;b"));
    let own = fleet.url.clone();
    let fields = format!("id={hostile}");
    assert_eq!(submit(&fleet, "/timers/cancel", "", "http://evil.example", &fields).await.status(), 403);
    assert_eq!(submit(&fleet, "/timers/cancel", "", &own, &fields).await.status(), 303);
    assert!(!fleet.text("/timers").await.contains("a&lt;b"));
    assert!(fleet.text("/timers?state=cancelled").await.contains("a&lt;b"));
    let audit = fleet.json("/api/v1/audit").await;
    assert_eq!(
        (&audit["audit"][0]["change"], &audit["audit"][0]["subject"]),
        (&"timer_cancelled".into(), &"a<b>\"".into())
    );
    assert_eq!(submit(&fleet, "/timers/cancel", "", &own, "id=a%2Fb").await.status(), 400);
    assert_eq!(fleet.get("/timers?state=open").await.status(), 400);
}

#[tokio::test]
async fn the_command_line_registers_lists_shows_and_cancels() {
    let fleet = Fleet::start().await;
    let run = async |arguments: &[&str]| {
        let output = rollcall(&fleet.url, &[&["timers"], arguments].concat(), None).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let add = ["add", "a b", "--type", "report", "--in", "30m", "--data", "{\"x\": 1}", "--author", "ana"];
    assert_eq!(run(&add).await.1, "a b created, due at 2026-03-01T12:30:00.000Z\n");
    let (code, _, why) =
        run(&["add", "a b", "--type", "report", "--due", "2026-03-01T14:00:00Z", "--if-absent"]).await;
    assert!(code == Some(1) && why.contains("409"), "{why}");
    let made = run(&["add", "--type", "report", "--in", "1h", "--json"]).await.1;
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["result"], "created");
    let (code, _, why) = run(&["add", "--type", "nothing", "--in", "1h"]).await;
    assert!(code == Some(1) && why.contains("there is no class"), "{why}");
    for wrong in [&["add", "x", "--type", "report"][..], &["cancel"], &["cancel", "x", "--type", "report"]] {
        assert_eq!(run(wrong).await.0, Some(2), "{wrong:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("timers.ndjson");
    std::fs::write(
        &file,
        "{\"id\":\"c\",\"type\":\"command\",\"in\":\"2h\"}\n{\"id\":\"d\",\"type\":\"x\",\"in\":\"2h\"}\n",
    )
    .unwrap();
    let (code, text, errors) = run(&["add", "--file", file.to_str().unwrap()]).await;
    assert_eq!((code, text.as_str()), (Some(1), "1 created, 0 changed, 1 refused\n"));
    assert!(errors.contains("timer 2 d: there is no class of timers x"), "{errors}");

    let list = run(&["list"]).await.1;
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[1].starts_with("a b ") && lines.len() == 4, "{list}");
    let csv = run(&["list", "--type", "command", "--csv"]).await.1;
    assert_eq!(csv, "id,type,state,due,fired_at\r\nc,command,waiting,2026-03-01T14:00:00.000Z,\r\n");
    let shown: Value = serde_json::from_str(&run(&["show", "a b", "--json"]).await.1).unwrap();
    assert_eq!(shown["data"], json!({ "x": 1 }));
    assert_eq!(
        run(&["cancel", "a b", "never"]).await.1,
        "a b is cancelled\nnever is not waiting: it fired, was cancelled, or does not exist\n"
    );
    assert_eq!(
        run(&["watch", "a b"]).await,
        (Some(1), "a b is cancelled, due at 2026-03-01T12:30:00.000Z\n".into(), String::new())
    );
    assert_eq!(run(&["cancel", "--type", "command", "--author", "ben"]).await.1, "1 cancelled\n");
    let audit = fleet.json("/api/v1/audit").await;
    let of = |at: usize| format!("{} {}", audit["audit"][at]["change"], audit["audit"][at]["author"]);
    assert_eq!(of(0), "\"timers_cancelled\" \"ben (http)\"");
    assert_eq!(of(1), "\"timer_registered\" \"ana (http)\"");
}

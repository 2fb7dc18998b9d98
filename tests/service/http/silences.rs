//! Alert silences in Rollcall's own form, and their page.

use reqwest::Method;
use reqwest::header::LOCATION;
use serde_json::{Value, json};

use super::changes::send;
use super::web::submit;
use super::world::{Fleet, SECOND, assert_problem};
use crate::support::facts::until;

const PATH: &str = "/api/v1/silences";

async fn post(fleet: &Fleet, body: Value) -> reqwest::Response {
    send(fleet, "", Method::POST, PATH, body).await
}

async fn body(answer: reqwest::Response) -> Value {
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

fn wanted() -> Value {
    json!({ "matchers": ["site=\"north\", kind=~\"det.*\"", "unit!=pump"], "for": "2h", "author": "ana", "comment": "works" })
}

#[tokio::test]
async fn a_silence_is_added_shown_changed_and_ended() {
    let fleet = Fleet::start().await;
    let answer = post(&fleet, wanted()).await;
    assert_eq!(answer.status(), 201);
    let id = body(answer).await["id"].as_str().unwrap().to_owned();
    let one = format!("{PATH}/{id}");
    let shown = fleet.json(&one).await;
    assert_eq!(
        shown,
        json!({
            "id": id, "state": "active", "matchers": ["site=\"north\"", "kind=~\"det.*\"", "unit!=\"pump\""],
            "starts_at": "2026-03-01T12:00:00.000Z", "ends_at": "2026-03-01T14:00:00.000Z", "updated_at": "2026-03-01T12:00:00.000Z",
            "author": "ana", "comment": "works", "units": 0,
        })
    );
    let longer = json!({
        "matchers": ["site=north", "kind=~\"det.*\"", "unit!=pump"], "starts_at": "2026-03-01T12:00:00Z",
        "ends_at": "2026-03-01T16:00:00+01:00", "author": "ben", "comment": "still",
    });
    let changed = send(&fleet, "", Method::PUT, &one, longer).await;
    assert_eq!((changed.status().as_u16(), body(changed).await), (200, json!({ "id": id, "units": 0 })));
    assert_eq!(fleet.json(&one).await["ends_at"], "2026-03-01T15:00:00.000Z");
    // Without a begin in the request, the silence keeps its own, and lasts from now on.
    fleet.clock.advance(1800 * SECOND);
    let changed = send(&fleet, "", Method::PUT, &one, wanted()).await;
    assert_eq!((changed.status().as_u16(), body(changed).await), (200, json!({ "id": id, "units": 0 })));
    let shown = fleet.json(&one).await;
    let times = ["starts_at", "ends_at", "state"].map(|name| shown[name].as_str().unwrap());
    assert_eq!(times, ["2026-03-01T12:00:00.000Z", "2026-03-01T14:30:00.000Z", "active"]);
    fleet.clock.advance(1800 * SECOND);
    for _ in 0..2 {
        assert_eq!(send(&fleet, "", Method::DELETE, &one, Value::Null).await.status(), 204);
    }
    let over = fleet.json(&one).await;
    assert_eq!((&over["state"], &over["ends_at"]), (&json!("expired"), &json!("2026-03-01T13:00:00.000Z")));
    assert_eq!(fleet.json("/alertmanager/api/v2/silences").await[0]["status"]["state"], "expired");
    let unknown = format!("{PATH}/00000000-0000-4000-8000-000000000000");
    assert_problem(fleet.get(&unknown).await, 404).await;
    assert_problem(send(&fleet, "", Method::DELETE, &unknown, Value::Null).await, 404).await;
    assert_problem(fleet.get(&format!("{PATH}/x")).await, 400).await;
}

#[tokio::test]
async fn a_silence_is_extended_by_the_clock_of_the_instance_and_never_shortened() {
    let fleet = Fleet::start().await;
    let id = body(post(&fleet, wanted()).await).await["id"].as_str().unwrap().to_owned();
    let path = format!("{PATH}/{id}/extend");
    fleet.clock.advance(3600 * SECOND);
    for (request, ends_at, extended) in [
        (json!({ "for": "30m" }), "2026-03-01T14:00:00.000Z", false),
        (json!({ "for": "2h" }), "2026-03-01T15:00:00.000Z", true),
        (json!({ "ends_at": "2026-03-01T17:00:00+01:00" }), "2026-03-01T16:00:00.000Z", true),
        (json!({ "ends_at": "2026-03-01T15:30:00Z" }), "2026-03-01T16:00:00.000Z", false),
    ] {
        let answer = send(&fleet, "", Method::POST, &path, request.clone()).await;
        let expected = json!({ "id": id, "ends_at": ends_at, "extended": extended });
        assert_eq!((answer.status().as_u16(), body(answer).await), (200, expected), "{request}");
        assert_eq!(fleet.json(&format!("{PATH}/{id}")).await["ends_at"], ends_at, "{request}");
    }
    let audit = fleet.json("/api/v1/audit").await;
    assert_eq!(audit["audit"].as_array().unwrap().len(), 3, "what changes nothing leaves no entry: {audit}");
    let unknown = format!("{PATH}/00000000-0000-4000-8000-000000000000/extend");
    let later = || json!({ "for": "1h" });
    assert_eq!(send(&fleet, "", Method::DELETE, &format!("{PATH}/{id}"), Value::Null).await.status(), 204);
    for (path, request, status) in [
        (&unknown, later(), 404),
        (&path, later(), 409),
        (&path, json!({}), 400),
        (&path, json!({ "for": "1h", "ends_at": "2026-03-01T17:00:00Z" }), 400),
        (&path, json!({ "for": "soon" }), 400),
    ] {
        assert_problem(send(&fleet, "", Method::POST, path, request).await, status).await;
    }
}

#[tokio::test]
async fn a_silence_says_how_many_units_it_covers_and_that_it_covers_none() {
    let fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:a").await;
    fleet.hear_at("north", "detector:b").await;
    fleet.hear_at("south", "meter:c").await;
    let add = async |matchers: &[&str]| {
        let body = json!({ "matchers": matchers, "for": "2h", "author": "ana", "comment": "works" });
        self::body(post(&fleet, body).await).await
    };
    for (matchers, units) in [
        (&["site=\"north\""][..], 2),
        (&["kind=meter"], 1),
        (&["unit=~\"a|c\""], 2),
        (&["site!=\"north\"", "kind=~\".+\""], 1),
        (&["site=\"nort\""], 0),
    ] {
        let answer = add(matchers).await;
        assert_eq!(answer["units"], units, "{matchers:?}: {answer}");
    }
    let listed = fleet.json(PATH).await;
    let mut units: Vec<u64> =
        listed["silences"].as_array().unwrap().iter().map(|one| one["units"].as_u64().unwrap()).collect();
    units.sort_unstable();
    assert_eq!(units, [0, 1, 1, 2, 2]);
    let page = fleet.text("/silences").await;
    assert!(page.contains("none: no unit has these labels"), "{page}");
    // Alertmanager's API has no field for the number, but the units are counted.
    let other = json!({
        "matchers": [{ "name": "unit", "value": "[abc]", "isRegex": true }], "startsAt": "2026-03-01T12:00:00Z",
        "endsAt": "2026-03-01T13:00:00Z", "createdBy": "ana", "comment": "works",
    });
    let answer = send(&fleet, "", Method::POST, "/alertmanager/api/v2/silences", other).await;
    let id = body(answer).await["silenceID"].as_str().unwrap().to_owned();
    let counted = async || fleet.json(&format!("{PATH}/{id}")).await["units"] == 3;
    until("the units are counted", counted).await;
    // Expired silences cover nothing, but that says nothing about their matchers.
    fleet.clock.advance(10_000 * SECOND);
    assert_eq!(fleet.json(PATH).await["silences"][0]["units"], Value::Null);
    assert!(!fleet.text("/silences").await.contains("none: no unit"));
}

#[tokio::test]
async fn silences_come_in_pages_and_by_state() {
    let fleet = Fleet::start().await;
    for (begin, end) in [(13, 15), (12, 14), (12, 13), (14, 15)] {
        let mut body = wanted();
        body.as_object_mut().unwrap().remove("for");
        body["starts_at"] = format!("2026-03-01T{begin}:00:00Z").into();
        body["ends_at"] = format!("2026-03-01T{end}:00:00Z").into();
        assert_eq!(post(&fleet, body).await.status(), 201);
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = fleet.json(&format!("{PATH}?limit=3{cursor}")).await;
        seen.extend(page["silences"].as_array().unwrap().iter().map(|one| {
            [&one["state"], &one["starts_at"], &one["ends_at"]].map(|text| text.as_str().unwrap().to_owned())
        }));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let times: Vec<String> =
        seen.iter().map(|[state, from, to]| format!("{state} {} {}", &from[11..13], &to[11..13])).collect();
    assert_eq!(times, ["active 12 13", "active 12 14", "pending 13 15", "pending 14 15"]);
    let active = fleet.json(&format!("{PATH}?state=active")).await;
    assert_eq!(active["silences"].as_array().unwrap().len(), 2);
    for wrong in
        ["?state=on", "?limit=0", "?limit=1001", "?cursor=1", "?cursor=00000000-0000-4000-8000-000000000000"]
    {
        assert_problem(fleet.get(&format!("{PATH}{wrong}")).await, 400).await;
    }
}

#[tokio::test]
async fn a_silence_that_makes_no_sense_is_refused() {
    let fleet = Fleet::start().await;
    let with = |name: &str, value: Value| {
        let mut body = wanted();
        body[name] = value;
        body
    };
    for (body, why) in [
        (with("matchers", json!([])), "matcher"),
        (with("matchers", json!(["site="])), "empty"),
        (with("matchers", json!(["site=\"north"])), "matchers"),
        (with("matchers", json!(["site=~\"(\""])), "matchers"),
        (with("for", json!("soon")), "is not a span"),
        (with("for", json!("0s")), "is not a span"),
        (with("for", Value::Null), "ends_at"),
        (with("ends_at", json!("2026-03-01T16:00:00Z")), "ends_at"),
        (with("author", json!("")), "author"),
        (with("comment", json!("a\u{1b}[2J")), "comment"),
        (with("colour", json!(1)), "colour"),
    ] {
        let problem = assert_problem(post(&fleet, body.clone()).await, 400).await;
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(why), "{body}: {detail}");
    }
    assert_eq!(fleet.json(PATH).await, json!({ "silences": [], "next": null }));
}

#[tokio::test]
async fn the_page_of_silences_adds_and_ends_them() {
    let fleet = Fleet::start().await;
    fleet.hear(&["detector:a\"b, c"]).await;
    let page = fleet.text("/units/detector/a%22b%2C%20c").await;
    assert!(page.contains("Silence its alerts"), "{page}");
    let own = fleet.url.clone();
    let matchers = "matchers=kind%3Ddetector%2C+unit%3D%22a%5C%22b%2C+c%22";
    let form = fleet.text(&format!("/silences?{matchers}")).await;
    assert!(form.contains("kind=detector, unit=&quot;a\\&quot;b, c&quot;"), "{form}");
    let add = async |origin: &str, fields: &str| submit(&fleet, "/silences", "", origin, fields).await;
    let fields = format!("{matchers}&hours=1.5&author=ana&comment=%3Cb%3Eworks");
    assert_eq!(add("http://evil.example", &fields).await.status(), 403);
    let added = add(&own, &fields).await;
    assert_eq!((added.status().as_u16(), added.headers()[LOCATION].to_str().unwrap()), (303, "/silences"));
    let shown = fleet.json(PATH).await["silences"][0].clone();
    assert_eq!(shown["matchers"], json!(["kind=\"detector\"", "unit=\"a\\\"b, c\""]));
    assert_eq!(shown["ends_at"], "2026-03-01T13:30:00.000Z");
    let page = fleet.text("/silences").await;
    assert!(
        page.contains("&lt;b&gt;works") && page.contains("active") && !page.contains("<b>works"),
        "{page}"
    );
    for wrong in ["hours=0", "hours=NaN", "hours=1e300", "hours=", "matchers=x"] {
        let (name, _) = wrong.split_once('=').unwrap();
        let others: Vec<&str> = fields.split('&').filter(|field| !field.starts_with(name)).collect();
        assert_eq!(add(&own, &format!("{}&{wrong}", others.join("&"))).await.status(), 400, "{wrong}");
    }
    let end = format!("/silences/{}/expire", shown["id"].as_str().unwrap());
    assert_eq!(submit(&fleet, &end, "", &own, "").await.status(), 303);
    assert!(fleet.text("/silences?state=active").await.contains("No silences."));
    assert!(fleet.text("/silences?state=expired").await.contains("over"));
    assert_eq!(submit(&fleet, "/silences/x/expire", "", &own, "").await.status(), 400);
}

#[tokio::test]
async fn expressions_are_bounded_in_length_number_and_memory() {
    let fleet = Fleet::start().await;
    let of =
        |matchers: Vec<String>| json!({ "matchers": matchers, "for": "2h", "author": "ana", "comment": "" });
    let braces = format!("site=~\"{}\"", "{".repeat(120_000));
    let letters = |count: usize| (0..count).map(|n| format!(r#"site=~"{n}\\pL{{22}}""#)).collect();
    let many = (0..400).map(|n| format!("site=~\"{n}.*\"")).collect();
    for (matchers, expected) in [
        (vec![braces.clone()], "more than"),
        (letters(64), "too large"),
        (many, "more than 64 matchers"),
        (vec![format!("site=~\"{}\"", "a".repeat(5000))], "more than 4096 bytes"),
    ] {
        let problem = assert_problem(post(&fleet, of(matchers)).await, 400).await;
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(expected) && detail.len() < 1000, "{detail}");
    }
    let matcher = json!({ "name": "site", "value": "{".repeat(120_000), "isRegex": true });
    let times = ["2026-03-01T12:00:00Z", "2026-03-01T14:00:00Z"];
    let posted = json!({ "matchers": [matcher], "startsAt": times[0], "endsAt": times[1], "createdBy": "a", "comment": "" });
    let refused = send(&fleet, "", Method::POST, "/alertmanager/api/v2/silences", posted).await;
    assert_eq!(refused.status(), 400);
    for page in ["alerts", "alerts/groups", "silences"] {
        let filters: Vec<String> = (0..400).map(|n| format!("filter=site%3D~%22{n}.*%22")).collect();
        let asked = fleet.get(&format!("/alertmanager/api/v2/{page}?{}", filters.join("&"))).await;
        assert_eq!(asked.status(), 400, "{page}");
        let few = fleet.get(&format!("/alertmanager/api/v2/{page}?{}", filters[..64].join("&"))).await;
        assert_eq!(few.status(), 200, "{page}");
    }
    // An expression that is in force stays so, and an expression of allowed size is accepted.
    assert_eq!(post(&fleet, of(vec![r#"site=~"nor.*|\\pL{3}""#.to_owned()])).await.status(), 201);
    assert_eq!(fleet.get("/healthz").await.status(), 200);
}

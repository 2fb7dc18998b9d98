//! The list of units and the summary: one instance answers for the whole fleet.

use reqwest::header::{ETAG, IF_NONE_MATCH};
use rollcall::fleet::ownership::View;
use rollcall::store::Roster;
use serde_json::{Value, json};

use super::world::{Fleet, SECOND, assert_problem};

fn ids(page: &Value) -> Vec<&str> {
    page["units"].as_array().unwrap().iter().map(|unit| unit["unit"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn units_are_listed_with_their_labels_those_first_that_are_offline() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear_at("north", "detector:a").await;
    fleet.hear_at("south", "detector:b:<i>").await;
    fleet.hear(&["meter:c"]).await;
    fleet.pass(121 * SECOND, &["detector:a"]).await;
    fleet.hear_at("south", "detector:b:<i>").await;
    let page = fleet.json("/api/v1/units").await;
    assert_eq!(ids(&page), ["a", "b:<i>", "c"]);
    let first = &page["units"][0];
    assert_eq!((&first["state"], &first["labels"]), (&json!("offline"), &json!({ "site": "north" })));
    assert_eq!(first["offline_since"], "2026-03-01T12:02:00.000Z");
    let record = fleet.json("/api/v1/records").await["records"][0]["id"].clone();
    assert_eq!((&first["record"], &first["acknowledged"]), (&record, &Value::Null));
    assert_eq!((&page["next"], &page["incomplete"]), (&Value::Null, &json!(["two"])));

    for (query, expected) in [
        ("state=offline", &["a"][..]),
        ("state=online,offline", &["a", "b:<i>", "c"]),
        ("kind=meter", &["c"]),
        ("label=site=south", &["b:<i>"]),
        ("q=b", &["b:<i>"]),
        ("contains=%3Ci", &["b:<i>"]),
        ("silent_seconds=60", &["a", "c"]),
        ("sort=unit&limit=2", &["a", "b:<i>"]),
        ("sort=-last_seen", &["b:<i>", "a", "c"]),
    ] {
        let page = fleet.json(&format!("/api/v1/units?{query}")).await;
        assert_eq!(ids(&page), expected, "{query}");
    }
}

#[tokio::test]
async fn the_pages_of_a_list_have_every_unit_once() {
    let fleet = Fleet::start().await;
    let names: Vec<String> = (0..23).map(|number| format!("detector:{number:02}")).collect();
    fleet.hear(&names.iter().map(String::as_str).collect::<Vec<&str>>()).await;
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for _ in 0..5 {
        let page = fleet.json(&format!("/api/v1/units?sort=unit&limit=5{cursor}")).await;
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, names.iter().map(|name| &name["detector:".len()..]).collect::<Vec<&str>>());
}

#[tokio::test]
async fn queries_that_make_no_sense_are_refused() {
    let fleet = Fleet::start().await;
    for query in [
        "state=up",
        "state=",
        "kind=unknown",
        "label=site",
        "label=room=1",
        "limit=0",
        "limit=1001",
        "limit=x",
        "sort=name",
        "cursor=00",
        "silent_seconds=-1",
        "silent_seconds=NaN",
        "colour=red",
    ] {
        assert_problem(fleet.get(&format!("/api/v1/units?{query}")).await, 400).await;
    }
    let long = format!("/api/v1/units?contains={}", "x".repeat(129));
    assert_problem(fleet.get(&long).await, 400).await;
    for query in ["from=yesterday", "label=site", "cause=rain", "kind=A", "until=1"] {
        assert_problem(fleet.get(&format!("/api/v1/records?{query}")).await, 400).await;
    }
}

#[tokio::test]
async fn the_list_is_there_without_details_while_the_engine_does_not_answer() {
    let mut fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:a").await;
    fleet.redis.kill();
    let page = fleet.json("/api/v1/units").await;
    assert_eq!(ids(&page), ["a"]);
    assert_eq!((&page["units"][0]["state"], &page["units"][0]["labels"]), (&json!("online"), &Value::Null));
    assert_eq!(fleet.json("/api/v1/summary").await["states"]["online"], 1);
}

#[tokio::test]
async fn the_summary_counts_the_fleet_and_has_an_etag() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear_at("north", "detector:a").await;
    fleet.hear_at("south", "detector:b").await;
    fleet.pass(121 * SECOND, &["detector:a", "detector:b"]).await;
    fleet.hear_at("south", "detector:b").await;
    let answer = fleet.get("/api/v1/summary").await;
    let tag = answer.headers()[ETAG].clone();
    let summary: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!((&summary["units"], &summary["states"]["offline"]), (&json!(2), &json!(1)));
    let worst = &summary["labels"][0];
    assert_eq!((&worst["value"], &worst["states"]["offline"]), (&json!("north"), &json!(1)));
    assert_eq!((&summary["instances"][0]["name"], &summary["incomplete"]), (&json!("one"), &json!(["two"])));
    assert_eq!(summary["breaker_tripped"], false);

    let again = async || {
        let request = fleet.client.get(format!("{}/api/v1/summary", fleet.url));
        request.header(IF_NONE_MATCH, tag.clone()).send().await.unwrap().status().as_u16()
    };
    assert_eq!(again().await, 304);
    fleet.hear(&["detector:c"]).await;
    assert_eq!(again().await, 200);
}

#[tokio::test]
async fn an_instance_asks_the_others_for_their_units() {
    let fleet = Fleet::start().await;
    let other = Fleet::start().await;
    other.fill();
    fleet.fill();
    fleet.hear(&["detector:a"]).await;
    other.hear_at("north", "detector:b").await;
    let address = other.url.trim_start_matches("http://");
    let roster: &dyn Roster = &*fleet.engine;
    roster.announce("two", address).await.unwrap();
    let page = fleet.json("/api/v1/units").await;
    assert_eq!((ids(&page), &page["incomplete"]), (vec!["a", "b"], &json!([])));
    let summary = fleet.json("/api/v1/summary").await;
    assert_eq!((&summary["units"], &summary["labels"][0]["value"]), (&json!(2), &json!("north")));
    let page = fleet.json("/api/v1/units?sort=unit&limit=1").await;
    let next = format!("/api/v1/units?sort=unit&limit=1&cursor={}", page["next"].as_str().unwrap());
    assert_eq!((ids(&page), ids(&fleet.json(&next).await)), (vec!["a"], vec!["b"]));
}

#[tokio::test]
async fn records_are_selected_by_time_kind_label_and_cause() {
    let fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:a").await;
    fleet.pass(SECOND, &[]).await;
    fleet.hear_at("south", "detector:b").await;
    fleet.pass(121 * SECOND, &["detector:a", "detector:b"]).await;
    fleet.pass(SECOND, &[]).await;
    fleet.hear_at("south", "detector:c").await;
    fleet.pass(121 * SECOND, &["detector:c"]).await;
    let found = async |query: &str| {
        let page = fleet.json(&format!("/api/v1/records?{query}")).await;
        let mut units: Vec<String> = page["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["unit"].as_str().unwrap().to_owned())
            .collect();
        units.sort();
        units.concat()
    };
    let detected = fleet.json("/api/v1/records?limit=1").await["records"][0]["detected_at"].clone();
    let last = detected.as_str().unwrap();
    for (query, units) in [
        (String::new(), "abc"),
        ("label=site=south".to_owned(), "bc"),
        ("kind=meter".to_owned(), ""),
        ("cause=silence".to_owned(), "abc"),
        ("cause=never_seen".to_owned(), ""),
        (format!("from={last}"), "c"),
        (format!("until={last}"), "ab"),
        (format!("until={last}&label=site=south"), "b"),
        ("open=true&limit=1&label=site=north".to_owned(), "a"),
    ] {
        assert_eq!(found(&query).await, units, "{query}");
    }
}

#[tokio::test]
async fn an_instance_says_what_each_instance_does() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:a", "detector:b"]).await;
    let answer = fleet.json("/api/v1/instances").await;
    let one = &answer["instances"][0];
    assert_eq!((&one["name"], &one["units"], &one["complete"]), (&json!("one"), &json!(2), &json!(true)));
    assert_eq!(one["started_at"], answer["at"], "the clock was not moved");
    let view = View::new("one", vec!["one".into(), "two".into()], 2);
    assert_eq!((&one["partitions"], &answer["partitions"]), (&json!(view.partitions), &json!(2)));
    assert_eq!((answer["instances"].as_array().unwrap().len(), &answer["missing"]), (1, &json!(["two"])));
}

//! The pages of incidents, of the configuration and about Rollcall.

use std::sync::Arc;

use reqwest::header::LOCATION;
use rollcall::fleet::{MassBreaker, Silences};
use rollcall::presence::MassOfflineRule;
use rollcall::store::Queries;
use serde_json::Value;

use super::web::submit;
use super::world::{Fleet, SECOND};

#[tokio::test]
async fn incidents_are_the_groups_of_units_that_are_offline_and_the_breaker_is_released_there() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    assert!(fleet.text("/incidents").await.contains("No incidents: no unit is offline"));
    fleet.hear_at("north", "detector:b").await;
    fleet.pass(SECOND, &[]).await;
    for (site, unit) in [("north", "detector:a"), ("north", "detector:c"), ("<script>", "detector:d")] {
        fleet.hear_at(site, unit).await;
    }
    fleet.pass(121 * SECOND, &["detector:a", "detector:b", "detector:d"]).await;
    // One page serves all requests of the same moment.
    let page = shows(&fleet, "<b>2</b> of 3").await;
    for text in ["site=north", "site=&lt;script&gt;", "label=site%3Dnorth", "/units/detector/b", "mail"] {
        assert!(page.contains(text), "{text} in {page}");
    }
    assert!(!page.contains("Release the breaker") && !page.contains("<script>\""), "{page}");

    let rule = MassOfflineRule { share: 0.5, min_units: 2, window: 60 * SECOND, max_hold: 900 * SECOND };
    let silences = Arc::new(Silences::new(fleet.engine.clone()));
    let engine = || fleet.engine.clone();
    let breaker =
        MassBreaker::new(Some((rule, engine())), engine(), engine(), silences, fleet.telemetry.clone());
    assert!(breaker.judge(fleet.clock.now()).await.unwrap().is_some());
    shows(&fleet, "3 of 4 units").await;
    let own = fleet.url.clone();
    let release = async |fields: &str| submit(&fleet, "/incidents/release", "", &own, fields).await;
    assert_eq!(release("comment=x").await.status(), 400);
    let foreign = submit(&fleet, "/incidents/release", "", "http://evil.example", "author=ana").await;
    assert_eq!(foreign.status(), 403);
    let released = release("author=ana&comment=seen").await;
    assert_eq!(
        (released.status().as_u16(), &released.headers()[LOCATION]),
        (303, &"/incidents".parse().unwrap())
    );
    assert!(!fleet.text("/incidents").await.contains("Release the breaker"));
    assert_eq!(release("author=ana").await.status(), 404);
    assert!(fleet.text("/api/v1/audit").await.contains("breaker_released"));
    assert_eq!(fleet.engine.records(true, None, 10).await.unwrap().len(), 3);
}

/// Waits until the page of incidents has this text, and returns it.
async fn shows(fleet: &Fleet, text: &str) -> String {
    let mut page = String::new();
    for _ in 0..200 {
        page = fleet.text("/incidents").await;
        if page.contains(text) {
            return page;
        }
        tokio::time::sleep(SECOND / 20).await;
    }
    panic!("no {text} in {page}");
}

#[tokio::test]
async fn the_configuration_is_shown_with_where_it_comes_from_and_without_secrets() {
    let fleet = Fleet::start_alone(|_| ()).await;
    let page = fleet.text("/configuration").await;
    for text in [
        "kind[0].timeout",
        "1m 40s",
        "redis://redis.example.org",
        "one &lt;script&gt;",
        "environment",
        "https://hooks.example.org",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    assert!(!page.contains("mqtt.keep_alive"), "{page}");
    let all = fleet.text("/configuration?all=true").await;
    assert!(all.contains("mqtt.keep_alive") && all.contains("default"), "{all}");
    for page in [page, all] {
        assert!(!page.contains("hunter2"), "{page}");
    }
    assert_eq!(fleet.get("/configuration?all=maybe").await.status(), 400);
}

#[tokio::test]
async fn a_page_says_which_version_runs_on_what() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.clock.advance(90 * SECOND);
    let page = fleet.text("/about").await;
    for text in [
        env!("CARGO_PKG_VERSION"),
        "Apache-2.0",
        "Redis at redis://redis.example.org",
        "mqtt://127.0.0.1:1883",
        "1m 30s ago",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    assert!(!page.contains("hunter2"));
}

#[tokio::test]
async fn a_query_and_a_form_that_cannot_be_read_are_explained_in_words() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:1"]).await;
    for (path, expected) in [
        (
            "/api/v1/records?cause=flapping",
            "cause: \"flapping\" is unknown; write one of silence, never_seen, last_will",
        ),
        ("/api/v1/records?limit=many", "limit is not a whole number in its bounds"),
        ("/api/v1/records?open=1", "open: write true or false"),
        (
            "/api/v1/records?nope=1",
            "there is no parameter \"nope\"; known here: open, from, until, kind, label",
        ),
        ("/api/v1/units?silent_seconds=x", "silent_seconds is not a number"),
        ("/api/v1/units?sort=size", "sort: \"size\" is unknown; write one of state, unit"),
        ("/probe", "unit is missing"),
    ] {
        let answer: Value = serde_json::from_str(&fleet.get(path).await.text().await.unwrap()).unwrap();
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.starts_with(expected), "{path}: {detail}");
    }
    let form = fleet.client.post(format!("{}/units/detector/1/pause", fleet.url));
    let form = form.header("content-type", "application/x-www-form-urlencoded").header("origin", &fleet.url);
    let answer = form.body("hours=x&author=ana").send().await.unwrap();
    assert_eq!(answer.status(), 400);
    let page = answer.text().await.unwrap();
    assert!(page.contains("hours is not a number") && !page.contains("eserialize"), "{page}");
}

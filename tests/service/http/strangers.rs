//! Ids that were heard and are no units of the fleet.

use reqwest::Method;
use rollcall::fleet::Rules;
use rollcall::http::{Role, UnitMetrics};
use rollcall::presence::{KindRules, Registry};
use serde_json::{Value, json};

use super::changes::{send, token};
use super::web::submit;
use super::world::{Fleet, SECOND, assert_problem, rules, rules_of};

/// `detector` is closed, and `meter` has room for one unit.
fn closed() -> Rules {
    let mut rules = (*rules()).clone();
    let detector = KindRules { registry: Registry::Closed, ..rules_of("detector") };
    rules.insert(detector.kind.clone(), detector);
    let meter = KindRules { max_units: 1, ..rules_of("meter") };
    rules.insert(meter.kind.clone(), meter);
    rules
}

fn names(page: &Value) -> Vec<String> {
    let name = |one: &Value| format!("{}:{}", one["kind"].as_str().unwrap(), one["unit"].as_str().unwrap());
    page["strangers"].as_array().unwrap().iter().map(name).collect()
}

#[tokio::test]
async fn strangers_are_listed_with_the_reason_until_they_are_admitted() {
    let fleet = Fleet::start().await;
    fleet.roll.replace_rules(&closed());
    fleet.hear(&["detector:<b>", "detector:a", "meter:1", "meter:2"]).await;
    fleet.pass(SECOND, &[]).await;
    fleet.hear(&["detector:a"]).await;
    let page = fleet.json("/api/v1/strangers").await;
    assert_eq!(names(&page), ["detector:<b>", "detector:a", "meter:2"]);
    let all = page["strangers"].as_array().unwrap();
    assert_eq!((&all[1]["heartbeats"], &all[1]["reason"]), (&json!(2), &json!("unregistered")));
    assert_ne!(all[1]["first_heard"], all[1]["last_heard"]);
    assert_eq!(all[2]["reason"], "too_many_units");
    assert_eq!((&page["unlisted_heartbeats"], &page["next"]), (&json!(0), &Value::Null));

    let first = fleet.json("/api/v1/strangers?limit=1&kind=detector").await;
    let next = format!("/api/v1/strangers?limit=5&kind=detector&cursor={}", first["next"].as_str().unwrap());
    assert_eq!(
        (names(&first), names(&fleet.json(&next).await)),
        (vec!["detector:<b>".into()], vec!["detector:a".into()])
    );
    assert_eq!(names(&fleet.json("/api/v1/strangers?q=a").await), ["detector:a"]);
    for wrong in ["cursor=zz", "limit=0", "kind=none", "offset=1"] {
        assert_problem(fleet.get(&format!("/api/v1/strangers?{wrong}")).await, 400).await;
    }

    let shown = fleet.text("/strangers").await;
    assert!(shown.contains("&lt;b&gt;") && !shown.contains("<b>"), "{shown}");
    let own = fleet.url.clone();
    assert_eq!(submit(&fleet, "/strangers/admit", "", &own, "kind=detector&unit=a").await.status(), 303);
    assert_eq!(submit(&fleet, "/strangers/admit", "", &own, "kind=detector&unit=%23").await.status(), 400);
    assert_eq!(names(&fleet.json("/api/v1/strangers").await), ["detector:<b>", "meter:2"]);
    fleet.hear(&["detector:a"]).await;
    assert_eq!(fleet.json("/api/v1/units/detector/a").await["state"], "online");
}

#[tokio::test]
async fn a_removed_unit_that_is_heard_is_a_stranger_and_only_an_administrator_admits_it() {
    let tokens = vec![token("desk", Role::Operator), token("root", Role::Admin)];
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    fleet.hear(&["detector:a"]).await;
    let path = "/api/v1/units/detector/a";
    assert_eq!(send(&fleet, "root", Method::DELETE, path, Value::Null).await.status(), 204);
    fleet.pass(SECOND, &[]).await;
    fleet.hear(&["detector:a"]).await;
    let page = async || {
        let answer = send(&fleet, "desk", Method::GET, "/api/v1/strangers", Value::Null).await;
        serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap()
    };
    assert_eq!(page().await["strangers"][0]["reason"], "removed");
    let body = json!({ "author": "ana" });
    assert_problem(send(&fleet, "desk", Method::PUT, path, body.clone()).await, 403).await;
    assert_eq!(send(&fleet, "root", Method::PUT, path, body).await.status(), 204);
    assert_eq!(names(&page().await), Vec::<String>::new());
}

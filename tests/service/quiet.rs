//! No rule fires for a healthy Rollcall, on either engine. Here each is evaluated once its metrics
//! exist; `make quiet MINUTES=30` waits for as long as the rules do.

use std::time::Duration;

use crate::support::watched::{Plan, Watched};

const MAX_WAIT: Duration = Duration::from_secs(120);

/// Whether every rule was evaluated after its metrics had come.
async fn is_visible(watched: &Watched, plan: &Plan) -> bool {
    // Counted for each instance: two scrapes between two sweeps show no sweep for a moment.
    let sweeps = format!("count(rate(rollcall_sweeps_total[5m]) > 0) == {}", plan.instances);
    let mut facts = vec![sweeps.as_str(), "max(rollcall_blind) == 0"];
    if plan.units > 0 {
        facts.push("sum(kind_state:rollcall_units:sum{state=\"online\"}) == 20");
    }
    for fact in facts {
        if watched.ask(fact).await.is_empty() {
            return false;
        }
    }
    true
}

/// Ignores `for`: the expression of a rule must not hold even for a moment.
async fn asks_nothing_of_an_operator(plan: Plan) {
    let watched = Watched::start(&plan).await;
    let seen = async {
        while !is_visible(&watched, &plan).await {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, seen).await.expect("Prometheus sees a Rollcall that works");
    let mut asked = 0;
    for rule in watched.rules().await.iter().filter(|rule| rule["type"] == "alerting") {
        assert_ne!(rule["health"], "err", "{rule}");
        let found = watched.ask(rule["query"].as_str().unwrap()).await;
        let should = usize::from(rule["name"] == "RollcallWatchdog");
        assert_eq!(found.len(), should, "{}: {} finds {found:?}", plan.name, rule["name"]);
        asked += 1;
    }
    assert!(asked >= 15, "{asked} rules");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_rule_fires_for_two_healthy_instances_on_redis() {
    asks_nothing_of_an_operator(Plan {
        name: "redis",
        embedded: false,
        instances: 2,
        units: 20,
        every: "500ms",
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_rule_fires_for_a_healthy_embedded_engine() {
    asks_nothing_of_an_operator(Plan {
        name: "embedded",
        embedded: true,
        instances: 1,
        units: 20,
        every: "500ms",
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_rule_fires_for_a_rollcall_without_units() {
    asks_nothing_of_an_operator(Plan {
        name: "idle",
        embedded: true,
        instances: 1,
        units: 0,
        every: "500ms",
    })
    .await;
}

//! Real Prometheus servers, with the shipped rules and intervals, watch healthy instances of
//! Rollcall for any time: on both engines, with a fleet and without. An alert that fires is false, and
//! makes the program end with 1. `make quiet MINUTES=30`.

use std::process::ExitCode;
use std::time::Duration;

#[path = "../tests/support/mod.rs"]
mod support;

use rollcall::clock::monotonic;
use support::watched::{Plan, Watched};

const PLANS: [Plan; 4] = [
    Plan { name: "Redis, two instances, 300 units", embedded: false, instances: 2, units: 300, every: "10s" },
    Plan { name: "Redis, no units", embedded: false, instances: 1, units: 0, every: "10s" },
    Plan { name: "embedded, 300 units", embedded: true, instances: 1, units: 300, every: "10s" },
    Plan { name: "embedded, no units", embedded: true, instances: 1, units: 0, every: "10s" },
];

/// Alerts that fired, and for how many evaluations.
const FIRED: &str = r#"count_over_time(ALERTS{alertname!="RollcallWatchdog", alertstate="firing"}[1d])"#;
/// How often all rules were evaluated.
const EVALUATED: &str = r#"count_over_time(ALERTS{alertname="RollcallWatchdog", alertstate="firing"}[1d])"#;
/// How many records were opened: a busy run without records has tested little.
const SILENCES: &str = r#"sum(increase(rollcall_unit_transitions_total{to="offline"}[1d]))"#;

fn main() -> ExitCode {
    let minutes = std::env::var("MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    println!("{minutes} minutes in which no alert may fire");
    let runtime = tokio::runtime::Runtime::new().expect("threads can be made");
    let alarms = runtime.block_on(watch(Duration::from_secs(60 * minutes)));
    println!("{alarms} false alarms");
    if alarms == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Watches for the time `span`; returns how many alerts fired. A rule that cannot be evaluated counts as an alert.
async fn watch(span: Duration) -> usize {
    let mut all = Vec::new();
    for plan in &PLANS {
        all.push(Watched::start(plan).await);
    }
    let end = monotonic() + span;
    let mut minutes = tokio::time::interval(Duration::from_secs(60));
    while monotonic() < end {
        minutes.tick().await;
        for watched in &all {
            for alert in watched.ask(r#"ALERTS{alertname!="RollcallWatchdog"}"#).await {
                println!("{}: {}", watched.name, alert["metric"]);
            }
        }
    }
    let mut alarms = 0;
    for watched in &all {
        for alert in watched.ask(FIRED).await {
            println!("{}: FIRED {}", watched.name, alert["metric"]);
            alarms += 1;
        }
        let rules = watched.rules().await;
        for rule in rules.iter().filter(|rule| rule["health"] != "ok") {
            println!("{}: CANNOT BE EVALUATED {rule}", watched.name);
            alarms += 1;
        }
        let evaluated = watched.ask(EVALUATED).await;
        let silences = watched.ask(SILENCES).await;
        let number =
            |found: &[serde_json::Value]| found.first().map_or("0".into(), |one| one["value"][1].to_string());
        println!(
            "{}: {} rules, evaluated {} times; {} silences",
            watched.name,
            rules.len(),
            number(&evaluated),
            number(&silences)
        );
        // Rules that were never evaluated would be quiet, too.
        alarms += usize::from(evaluated.is_empty());
    }
    alarms
}

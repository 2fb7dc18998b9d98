//! The shipped rules of Prometheus: they are valid, each alert is tested firing and not
//! firing, links to an existing section of the runbook, and uses metrics that Rollcall has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rollcall::clock::{Clock, Timestamp};
use rollcall::telemetry::{Telemetry, Unreached};
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file with rules, or with their cases, in a directory.
fn files(dir: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(dir)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "yml"));
    assert!(!files.is_empty(), "{dir} is empty");
    files
}

const RULES: &str = "config/prometheus/rules";
const CASES: &str = "tests/files/rules";

fn promtool(arguments: &[&str], files: &[PathBuf]) -> String {
    let output = Command::new("promtool").args(arguments).args(files).output();
    let output = output.unwrap_or_else(|error| panic!("promtool: {error}"));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    said
}

/// Every rule of every file.
pub fn rules() -> Vec<Value> {
    let parsed = files(RULES).into_iter().map(|path| {
        let text = read(&path);
        serde_yaml_ng::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    });
    let groups = parsed.flat_map(|file| file["groups"].as_array().unwrap().clone());
    groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

#[test]
fn every_rule_is_sound() {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal"], &files(RULES));
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    promtool(&["test", "rules"], &files(CASES));
    let cases: String = files(CASES).iter().map(|path| read(path)).collect();
    for rule in rules() {
        let name = rule["alert"].as_str().or(rule["record"].as_str()).unwrap();
        assert!(cases.contains(name) || is_used(name), "no case tests {name}");
    }
}

/// Whether an alert uses a recording rule; then the case of the alert tests both.
fn is_used(name: &str) -> bool {
    alerts().iter().any(|alert| alert["expr"].as_str().unwrap().contains(name))
}

/// The anchors of the runbook's sections.
fn sections() -> BTreeSet<String> {
    let runbook = read(&root().join("docs/runbook.md"));
    let heads = runbook.lines().filter_map(|line| line.strip_prefix("## "));
    heads.map(|head| head.to_lowercase()).collect()
}

#[test]
fn every_alert_says_what_is_wrong_and_leads_to_help_that_exists() {
    let sections = sections();
    let mut helped = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "none"].contains(&severity), "{name}: {severity:?}");
        for key in ["summary", "description"] {
            assert!(alert["annotations"][key].as_str().is_some_and(|text| text.len() > 20), "{name}: {key}");
        }
        let link = ["runbook_url", "runbook"].iter().find_map(|key| alert["annotations"][key].as_str());
        let link = link.unwrap_or_default();
        let (file, section) = link.split_once('#').unwrap_or_else(|| panic!("{name} leads to {link:?}"));
        let page = file.rsplit('/').next().unwrap_or(file);
        assert!(root().join("docs").join(page).is_file(), "{name}: there is no {file}");
        assert_eq!(section, name.to_lowercase(), "{name}");
        assert!(sections.contains(section), "{name} has no section in the runbook");
        helped.insert(section.to_owned());
    }
    let idle: Vec<_> = sections.difference(&helped).collect();
    assert!(idle.is_empty(), "the runbook speaks of alerts that are gone: {idle:?}");
    assert!(helped.len() >= 13, "alerts are gone: {helped:?}");
}

/// The metrics of `/metrics/units` about the page itself; tests/service/http reads them there.
const ON_THE_PAGE_OF_UNITS: [&str; 1] = ["rollcall_unit_metrics_truncated"];

#[test]
fn every_metric_in_the_rules_is_one_of_rollcall() {
    let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
    telemetry.receiver_configured("hook");
    telemetry.unreached("hook", Some(&Unreached::Deferred("ana@example.org".to_owned())));
    telemetry.units("detector", "online", 1);
    telemetry.sweep_configured();
    telemetry.mirror_age(Some(std::time::Duration::ZERO));
    telemetry.connection_configured("main", "main");
    telemetry.broker_heard("eu", None, true);
    telemetry.mqtt_disconnected(
        ("main", "main"),
        "broker",
        (rollcall::telemetry::ConnectionLoss::Broken, "gone"),
        std::time::Duration::ZERO,
    );
    let families = telemetry.gather();
    let known = families.iter().map(|family| family.name()).chain(ON_THE_PAGE_OF_UNITS);
    let known: BTreeSet<&str> = known.collect();
    for rule in rules() {
        let expression = rule["expr"].as_str().unwrap();
        let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c)));
        for word in words.filter(|word| word.starts_with("rollcall_")) {
            let family = word.trim_end_matches("_bucket").trim_end_matches("_count");
            assert!(known.contains(family), "{word} in {expression}");
        }
    }
}

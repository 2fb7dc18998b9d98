use super::*;
use crate::presence::Closing;
use crate::routing::parse_matchers;

const TIMEOUT: Duration = Duration::from_secs(300);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_732_147_200_000 + seconds * 1000)
}

fn record(unit: &str, site: &str) -> OfflineRecord {
    let labels = if site.is_empty() { Vec::new() } else { vec![("site".to_owned(), site.to_owned())] };
    let open = OfflineRecord::open(unit.parse().unwrap(), at(-300), at(0), at(0));
    OfflineRecord { labels: labels.into_iter().collect(), ..open }
}

fn ended(record: OfflineRecord, seconds: i64) -> OfflineRecord {
    OfflineRecord { back_at: Some(at(seconds)), closed_by: Some(Closing::Return), ..record }
}

fn rule(source: &str, target: &str, equal: &[&str]) -> InhibitRule {
    let [source, target] = [source, target].map(|text| parse_matchers(text).unwrap());
    InhibitRule { source, target, equal: equal.iter().map(|name| (*name).to_owned()).collect() }
}

fn inhibitors(rules: Vec<InhibitRule>, records: &[OfflineRecord]) -> Inhibitors {
    Inhibitors::new(Inhibition { rules: rules.into(), longest: 4 * TIMEOUT }, records)
}

fn of_gates() -> InhibitRule {
    rule("kind=gate", "kind=sensor", &["site"])
}

/// The units that hold a target, at a moment.
fn by(inhibitors: &Inhibitors, target: &OfflineRecord, now: i64) -> String {
    let held = inhibitors.held(target, at(now));
    let by = held.iter().flat_map(|held| &held.by).map(|source| source.unit.to_string());
    by.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_source_holds_targets_with_the_same_labels() {
    let two = rule("kind=~\"gate|hub\"", "kind=~\"hub|sensor\"", &["site"]);
    let own = rule("site=north", "site=north", &[]);
    let (north, bare) = (record("gate:1", "north"), record("gate:1", ""));
    let hubs = [record("hub:1", "north"), record("hub:2", "north")];
    type Case<'a> = (InhibitRule, &'a [OfflineRecord], OfflineRecord, &'a str);
    let cases: [Case<'_>; 11] = [
        (of_gates(), std::slice::from_ref(&north), record("sensor:1", "north"), "gate:1"),
        (of_gates(), std::slice::from_ref(&north), record("sensor:1", "south"), ""),
        (of_gates(), std::slice::from_ref(&north), record("pump:1", "north"), ""),
        // A missing label is empty.
        (of_gates(), std::slice::from_ref(&bare), record("sensor:1", ""), "gate:1"),
        (of_gates(), std::slice::from_ref(&north), record("sensor:1", ""), ""),
        // The source itself is not a target.
        (of_gates(), std::slice::from_ref(&north), north.clone(), ""),
        (own.clone(), std::slice::from_ref(&north), north.clone(), ""),
        // Both are source and target.
        (own, std::slice::from_ref(&north), record("sensor:1", "north"), ""),
        (two.clone(), &hubs, record("hub:3", "north"), ""),
        (two.clone(), &hubs, record("sensor:1", "north"), "hub:1 hub:2"),
        (two, &[hubs[0].clone(), north.clone()], record("hub:1", "north"), "gate:1"),
    ];
    for (rule, sources, target, expected) in cases {
        let found = by(&inhibitors(vec![rule.clone()], sources), &target, 10);
        assert_eq!(found, expected, "{rule:?} {:?}", target.id);
    }
    // A closed record of a target is not held.
    assert_eq!(by(&inhibitors(vec![of_gates()], &[north]), &ended(record("sensor:1", "north"), 5), 10), "");
}

#[test]
fn a_target_is_held_while_its_source_is_offline_and_for_its_timeout_after_that() {
    let target = record("sensor:1", "north");
    let until = |sources: &[OfflineRecord], target: &OfflineRecord, now: i64| {
        inhibitors(vec![of_gates()], sources).held(target, at(now)).map(|held| held.until)
    };
    let gate = |number: u32| record(&format!("gate:{number}"), "north");
    assert_eq!(until(&[gate(1)], &target, 5), Some(at(65)), "it is looked at every minute");
    assert_eq!(until(&[ended(gate(1), 50)], &target, 60), Some(at(350)));
    assert_eq!(until(&[ended(gate(1), 50)], &target, 349), Some(at(350)));
    assert_eq!(until(&[ended(gate(1), 50)], &target, 350), None);
    // The strongest of several counts, whatever their order.
    let mut several = [ended(gate(1), 50), ended(gate(2), 80), ended(gate(3), 70)];
    for _ in 0..3 {
        several.rotate_left(1);
        assert_eq!(until(&several, &target, 90), Some(at(380)), "{several:?}");
        assert_eq!(until(&[&several[..], &[gate(4)]].concat(), &target, 900), Some(at(960)));
    }
    // Blind time in its silence does not count for longer than the longest timeout.
    let blind = OfflineRecord { last_seen: at(-90_000), ..target.clone() };
    assert_eq!(until(&[ended(gate(1), 50)], &blind, 60), Some(at(50 + 1200)));
    let lost = OfflineRecord { silent_from: Some(at(-100)), ..blind };
    assert_eq!(until(&[ended(gate(1), 50)], &lost, 60), Some(at(150)));
}

#[test]
fn the_last_record_of_a_source_counts_in_whatever_order_records_come() {
    let first = record("gate:1", "north");
    let again = OfflineRecord { detected_at: at(100), ..first.clone() };
    let in_order = [first.clone(), ended(first, 50), again.clone(), ended(again, 150)];
    for (at, known) in in_order.iter().enumerate() {
        for (other, record) in in_order.iter().enumerate() {
            assert_eq!(replaces(record, known), other > at, "{other} after {at}");
        }
    }
    let inhibition = Inhibition { rules: [of_gates()].into(), longest: TIMEOUT };
    assert!(in_order.iter().all(|record| inhibition.has_source(record)));
    assert!(!inhibition.has_source(&record("sensor:1", "north")));
    let past = |now: i64| in_order.iter().filter(|record| inhibition.is_past(record, at(now))).count();
    assert_eq!([past(349), past(350), past(450)], [0, 1, 2]);
}

//! Both engines change the last transitions of units alike, and find those that are looked at: generated changes are
//! given to the script on Redis and to the rule by which the embedded engine decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rollcall::clock::Timestamp;
use rollcall::presence::Unit;
use rollcall::store::{Engine, FlapChange};

use crate::both_engines::{PARTITIONS, engines};
use crate::support::redis::Redis;

const UNITS: [&str; 5] = ["door:1", "door:2", "lift:a b,%d [x]", "lift:Köln \"☃\"\\'", "lift:-"];
const TEXTS: [&str; 4] = ["{\"last\":1}", "{\"last\":2}", "%s\n\"", " "];

/// The change of a unit.
#[derive(Clone, Debug)]
struct Step {
    unit: usize,
    before: Before,
    /// The text, and when the unit is looked at (s).
    after: Option<(usize, i64)>,
}

#[derive(Clone, Debug)]
enum Before {
    /// As it was read before this call.
    Read,
    Text(usize),
    None,
}

fn step() -> impl Strategy<Value = Step> {
    let before = prop_oneof![
        6 => Just(Before::Read),
        2 => (0..TEXTS.len()).prop_map(Before::Text),
        1 => Just(Before::None),
    ];
    let after = prop::option::weighted(0.7, (0..TEXTS.len(), -5..30i64));
    (0..UNITS.len(), before, after).prop_map(|(unit, before, after)| Step { unit, before, after })
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_732_147_200_000 + seconds * 1000)
}

fn unit(number: usize) -> Unit {
    UNITS[number].parse().unwrap()
}

fn change(step: &Step, read: &[Option<String>]) -> FlapChange {
    let before = match step.before {
        Before::Read => read[step.unit].clone(),
        Before::Text(text) => Some(TEXTS[text].to_owned()),
        Before::None => None,
    };
    let after = step.after.map(|(text, seconds)| (TEXTS[text].to_owned(), at(seconds)));
    FlapChange { unit: unit(step.unit), before, after }
}

/// The flaps that the engine shows, as text, and the texts of all units.
async fn shows(engine: &Arc<dyn Engine>, now: Timestamp) -> (String, Vec<Option<String>>) {
    let units: Vec<Unit> = (0..UNITS.len()).map(unit).collect();
    let texts = engine.flaps(&units).await.unwrap();
    let mut shown = Vec::new();
    for part in (0..PARTITIONS).map(|one| vec![one]).chain([vec![], (0..PARTITIONS).collect()]) {
        let mut due = engine.due_flaps(&part, now, 100).await.unwrap();
        due.sort();
        let first = engine.first_flaps(&part).await.unwrap();
        shown.push(format!("in {part:?} due {due:?} first {first:?}"));
    }
    for partition in 0..PARTITIONS {
        // Those that are to be looked at first, in order.
        let few = engine.due_flaps(&[partition], now, 1).await.unwrap();
        let mut all = engine.flaps_in(partition).await.unwrap();
        all.sort();
        shown.push(format!("{few:?} of {all:?}"));
    }
    (format!("{texts:?} {shown:?}"), texts)
}

#[test]
fn flaps_are_changed_and_found_alike_on_both_engines() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = Redis::start();
    let number = AtomicUsize::new(0);
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let calls = prop::collection::vec((prop::collection::vec(step(), 0..6), -10..40i64), 1..20);
    let tried = runner.run(&calls, |calls| {
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let [scripts, rules] = engines(&redis, number.fetch_add(1, Ordering::Relaxed), &dir).await;
            let mut read = vec![None; UNITS.len()];
            for (n, (steps, now)) in calls.iter().enumerate() {
                let changes: Vec<FlapChange> = steps.iter().map(|step| change(step, &read)).collect();
                let written = [scripts.change_flaps(&changes).await, rules.change_flaps(&changes).await];
                let [by_script, by_rule] = written.map(Result::unwrap);
                prop_assert_eq!(by_script, by_rule, "call {}: {:?}", n, changes);
                let (shown, texts) = shows(&scripts, at(*now)).await;
                prop_assert_eq!(shown, shows(&rules, at(*now)).await.0, "after call {}: {:?}", n, changes);
                read = texts;
            }
            Ok::<(), TestCaseError>(())
        })
    });
    tried.unwrap();
}

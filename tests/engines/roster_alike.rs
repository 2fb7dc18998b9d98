//! `renew.lua` keeps the roster by the rules of `presence/roster.rs` and `clock/steps.rs`: both are given the same generated cases, the
//! script with a clock of the case's own.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rollcall::clock::{HeldStep, Skip, Steps, Timestamp};
use rollcall::presence::{EngineTime, FARTHEST_AHEAD, MAX_LEASE, Renewed, RosterState};
use rollcall::store::redis::RENEW;

use crate::support::redis::Redis;

const BEGIN: i64 = 1_732_147_200_000;

/// The stored state, the instance that renews, and when. Moments are milliseconds after the beginning.
#[derive(Clone, Debug)]
struct Case {
    /// The server's clock and the time of the fleet at the last renewal.
    last: Option<(i64, i64)>,
    ends: BTreeMap<String, i64>,
    instance: String,
    lease_ms: u64,
    heard: Option<i64>,
    clock: i64,
    /// The time of the fleet that the caller expects.
    expected: Option<i64>,
    /// A step that is not accepted yet: how far the clock is ahead, and since when.
    held: Option<(i64, i64)>,
}

/// Moments close to one another, and moments about as far apart as clocks may be.
fn ms() -> impl Strategy<Value = i64> {
    let far = FARTHEST_AHEAD.as_millis() as i64;
    prop_oneof![
        12 => 0..40_000i64,
        3 => 40_000..200_000i64,
        1 => far - 40_000..far + 40_000,
        1 => -far - 40_000..40_000 - far,
    ]
}

/// Such moments, and one that never comes.
fn stored() -> impl Strategy<Value = i64> {
    prop_oneof![16 => ms(), 1 => Just(Timestamp::NEVER.as_millis() - BEGIN)]
}

fn case() -> impl Strategy<Value = Case> {
    let names = || prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned);
    let last = prop::option::of((stored(), stored()));
    let ends = prop::collection::btree_map(names(), stored(), 0..4);
    let lease = prop::sample::select(vec![300, 10_000, 15_000, 60_000]);
    let held = prop::option::of((1_001..200_000i64, -70_000..40_000i64));
    (last, ends, names(), lease, prop::option::of(stored()), ms(), prop::option::of(ms()), held).prop_map(
        |(last, ends, instance, lease_ms, heard, clock, expected, held)| Case {
            last,
            ends,
            instance,
            lease_ms,
            heard,
            clock,
            expected,
            held,
        },
    )
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(BEGIN + ms)
}

/// The sum of the steps that were accepted before.
const ACCEPTED: u64 = 7000;

type Outcome = (Renewed, BTreeMap<String, Timestamp>, Steps);

fn steps(held: Option<(i64, i64)>, accepted: u64, skipped: Option<(i64, i64)>) -> Steps {
    let held =
        held.map(|(ahead, since)| HeldStep { ahead: Duration::from_millis(ahead as u64), since: at(since) });
    let skipped = skipped.map(|(from, to)| Skip { from: at(from), to: at(to) });
    Steps { held, accepted: Duration::from_millis(accepted), skipped }
}

fn by_rule(case: &Case) -> Outcome {
    let mut state = RosterState {
        last: case.last.map(|(_, fleet)| at(fleet)),
        steps: steps(case.held, ACCEPTED, None),
        ends: case.ends.iter().map(|(name, end)| (name.clone(), at(*end))).collect(),
    };
    let lease = Duration::from_millis(case.lease_ms);
    // A jump forward is not a time that has passed.
    let passed = case.last.map(|(server, _)| at(case.clock).since(at(server)).min(lease)).unwrap_or_default();
    let time = EngineTime { clock: at(case.clock), passed, expected: case.expected.map(at) };
    let renewed = state.renew(&case.instance, lease, case.heard.map(at), time);
    (renewed, state.ends, state.steps)
}

fn by_script(case: &Case, server: &mut redis::Connection) -> Outcome {
    redis::cmd("FLUSHALL").exec(server).unwrap();
    if let Some((server_ms, fleet)) = case.last {
        let mut set = redis::cmd("HSET");
        set.arg("clock").arg("server").arg(BEGIN + server_ms).arg("fleet").arg(BEGIN + fleet);
        set.exec(server).unwrap();
    }
    redis::cmd("HSET").arg("clock").arg("stepped").arg(ACCEPTED).exec(server).unwrap();
    if let Some((ahead, since)) = case.held {
        let mut set = redis::cmd("HSET");
        set.arg("clock").arg("ahead").arg(ahead).arg("since").arg(BEGIN + since).exec(server).unwrap();
    }
    for (name, end) in &case.ends {
        redis::cmd("ZADD").arg("roster").arg(BEGIN + end).arg(name).exec(server).unwrap();
    }
    let text = RENEW.replace("redis.call('TIME')", "{ ARGV[9], ARGV[10] }");
    assert_ne!(text, RENEW, "the script asks for the time in another way");
    let mut run = redis::cmd("EVAL");
    run.arg(text).arg(3).arg("roster").arg("clock").arg("heard");
    run.arg(&case.instance).arg(case.lease_ms).arg(case.heard.map_or(0, |heard| BEGIN + heard));
    run.arg("channel").arg("").arg(MAX_LEASE.as_millis() as u64);
    run.arg(case.expected.map(|ms| (BEGIN + ms).to_string()).unwrap_or_default()).arg("0");
    let now = BEGIN + case.clock;
    run.arg(now / 1000).arg(now % 1000 * 1000);
    let answer: Vec<String> = run.query(server).unwrap();
    let moment = |text: &str| Timestamp::from_millis(text.parse().unwrap());
    let removed: usize = answer[7].parse().unwrap();
    let ends: Vec<(String, f64)> =
        redis::cmd("ZRANGE").arg("roster").arg(0).arg(-1).arg("WITHSCORES").query(server).unwrap();
    let ends: BTreeMap<String, Timestamp> =
        ends.into_iter().map(|(name, end)| (name, Timestamp::from_millis(end as i64))).collect();
    let mut instances = answer[8 + removed..].to_vec();
    instances.sort();
    assert_eq!(instances, ends.keys().cloned().collect::<Vec<_>>());
    let mut implausible = answer[8..8 + removed].to_vec();
    implausible.sort();
    let renewed = Renewed {
        now: moment(&answer[0]),
        implausible,
        is_new: answer[3] == "1",
        first_end: Some(&answer[2]).filter(|text| !text.is_empty()).map(|text| moment(text)),
    };
    let (ahead, since, accepted): (Option<i64>, Option<i64>, u64) =
        redis::cmd("HMGET").arg("clock").arg("ahead").arg("since").arg("stepped").query(server).unwrap();
    assert_eq!(answer[4], ahead.map(|ms| ms.to_string()).unwrap_or_default());
    let ms = |text: &str| text.parse::<i64>().unwrap() - BEGIN;
    let skipped = answer[6].split_once(' ').map(|(from, to)| (ms(from), ms(to)));
    (renewed, ends, steps(ahead.zip(since.map(|since| since - BEGIN)), accepted, skipped))
}

#[test]
fn the_script_renews_a_lease_by_the_rule() {
    let redis = Redis::start();
    let server = std::cell::RefCell::new(redis.client());
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&case(), |case| {
        prop_assert_eq!(by_script(&case, &mut server.borrow_mut()), by_rule(&case));
        Ok(())
    });
    tried.unwrap();
}

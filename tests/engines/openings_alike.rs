//! The transaction of a deadline check and `apply.lua` write the openings of records alike: generated fleets go through
//! the same rounds twice, once by each way, and every key is compared after each round.
//!
//! The transaction runs on a server nearby, the script on one far away: see `store/redis/deadline_check.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{
    Announced, Announcement, Cause, Change, Declared, Hearing, Heartbeat, KindRules, Registration, Snapshot,
    Unit, Verdict, announce, check_deadline, hear, register,
};
use rollcall::store::redis::{HashTags, RedisEngine, facts_key};
use rollcall::store::{Engine, partition_of};
use rollcall::telemetry::Telemetry;

use crate::support::redis::Redis;

const PARTITIONS: u16 = 2;
const BEGIN: i64 = 1_732_147_200_000;
const MINUTE: Duration = Duration::from_secs(60);
/// Units that share a page, on each of three pages.
const ON_PAGE: usize = 3;

/// A time in the life of a fleet: some units are heard or registered, some keys expire, then all units are checked.
#[derive(Clone, Debug)]
struct Round {
    /// Since the last round (minutes).
    after: u64,
    /// By unit.
    events: Vec<Event>,
    /// Whether the kind allows two hours of silence, else one. A longer silence closes records, which a shorter one
    /// opens again under the same id.
    is_lenient: bool,
    /// A unit that is heard between reading and writing.
    heard_meanwhile: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    HeartbeatResult,
    Registered,
    KeyExpires,
    /// The unit is announced as gone, a second ago, with proof.
    Announced,
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let event = prop_oneof![
        3 => Just(Event::Nothing),
        3 => Just(Event::HeartbeatResult),
        1 => Just(Event::Registered),
        4 => Just(Event::KeyExpires),
        2 => Just(Event::Announced),
    ];
    let events = prop::collection::vec(event, 3 * ON_PAGE);
    let meanwhile = prop::option::weighted(0.2, 0..3 * ON_PAGE);
    let round = (0..100u64, events, any::<bool>(), meanwhile).prop_map(
        |(after, events, is_lenient, heard_meanwhile)| Round { after, events, is_lenient, heard_meanwhile },
    );
    prop::collection::vec(round, 2..6)
}

/// Units on two pages of one partition and on one of the other.
fn units() -> Vec<Unit> {
    let mut pages: BTreeMap<String, Vec<Unit>> = BTreeMap::new();
    for number in 0..20_000 {
        let unit: Unit = format!("detector:unit-{number}").parse().unwrap();
        pages.entry(facts_key("", PARTITIONS, HashTags::Plain, &unit)).or_default().push(unit);
    }
    let full = |partition: u16| {
        let of_partition = |on: &&Vec<Unit>| partition_of(&on[0], PARTITIONS) == partition;
        pages
            .values()
            .filter(|on| on.len() >= ON_PAGE)
            .filter(of_partition)
            .map(|on| on[..ON_PAGE].to_vec())
            .collect()
    };
    let (first, second): (Vec<Vec<Unit>>, Vec<Vec<Unit>>) = (full(0), full(1));
    [first[0].clone(), first[1].clone(), second[0].clone()].concat()
}

/// A way of writing openings, with a fleet of its own.
struct Way {
    engine: Arc<dyn Engine>,
    prefix: String,
    /// Whether changes are written by the deadline check, else by the script.
    is_checked: bool,
}

/// The outcome of a round: the units as they were read, and whether the change of each was applied.
type Outcome = (Vec<Snapshot>, BTreeMap<String, bool>);

impl Way {
    async fn new(redis: &Redis, prefix: String, is_checked: bool) -> Way {
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        let config = rollcall::store::redis::RedisConfig {
            url: redis.url(),
            prefix: prefix.clone(),
            partitions: Some(PARTITIONS),
            ..Default::default()
        };
        Way { engine: Arc::new(RedisEngine::connect(&config, telemetry).await.unwrap()), prefix, is_checked }
    }

    async fn take(
        &self,
        units: &[Unit],
        round: &Round,
        now: Timestamp,
        redis: &mut redis::Connection,
    ) -> Outcome {
        let mut rules = KindRules::new("detector".parse().unwrap());
        rules.policy.timeout = if round.is_lenient { 120 * MINUTE } else { 60 * MINUTE };
        let hearing = Hearing { heard: Some(now), ..Hearing::default() };
        for (unit, event) in units.iter().zip(&round.events) {
            match event {
                Event::Nothing | Event::Announced => {}
                Event::HeartbeatResult => self.hear(unit, &rules, &hearing, now).await,
                Event::Registered => {
                    let seen = self.engine.read(std::slice::from_ref(unit)).await.unwrap().remove(0);
                    let change = register(&seen, &Registration::default(), &rules, &hearing, now);
                    self.engine.apply(&[(seen, change)]).await.unwrap();
                }
                Event::KeyExpires => {
                    let partition = partition_of(unit, PARTITIONS);
                    let key = format!("{}:{{p{partition}}}:alive:{unit}", self.prefix);
                    redis::cmd("DEL").arg(key).exec(redis).unwrap();
                }
            }
        }
        let is_announced = |unit: &Unit| {
            units
                .iter()
                .zip(&round.events)
                .any(|(one, event)| one == unit && matches!(event, Event::Announced))
        };
        let change = |seen: &Snapshot| {
            if is_announced(&seen.unit) {
                return announce(
                    seen,
                    &gone(&seen.unit, now - Duration::from_secs(1)),
                    &rules,
                    &hearing,
                    now,
                )
                .1;
            }
            match check_deadline(seen, &rules, &hearing, now) {
                Verdict::Alive(change)
                | Verdict::Offline(change)
                | Verdict::Back(change)
                | Verdict::Gone(change) => Some(change),
                Verdict::Undecided => None,
            }
        };
        let decide = |units: Vec<Snapshot>| -> Vec<(Snapshot, Change)> {
            units.into_iter().filter_map(|seen| change(&seen).map(|change| (seen, change))).collect()
        };
        let (mut read, mut answers) = (Vec::new(), BTreeMap::new());
        let mut note = |changes: &[(Snapshot, Change)], applied: Vec<bool>| {
            answers.extend(changes.iter().zip(applied).map(|((seen, _), is)| (seen.unit.to_string(), is)));
        };
        let meanwhile = round.heard_meanwhile.map(|index| &units[index]);
        if self.is_checked {
            let mut checks = Vec::new();
            for pending in self.engine.check_present(units) {
                checks.push(pending.await.unwrap());
            }
            if let Some(unit) = meanwhile {
                self.hear(unit, &rules, &hearing, now).await;
            }
            for check in checks {
                read.extend(check.units.clone());
                let changes = decide(check.units);
                let applied = check.guard.apply(&changes).await.unwrap();
                note(&changes, applied);
            }
        } else {
            read = self.engine.read(units).await.unwrap();
            if let Some(unit) = meanwhile {
                self.hear(unit, &rules, &hearing, now).await;
            }
            let changes = decide(read.clone());
            let applied = self.engine.apply(&changes).await.unwrap();
            note(&changes, applied);
        }
        read.sort_by_key(|seen| seen.unit.to_string());
        (read, answers)
    }

    async fn hear(&self, unit: &Unit, rules: &KindRules, hearing: &Hearing, now: Timestamp) {
        let seen = self.engine.read(std::slice::from_ref(unit)).await.unwrap().remove(0);
        let labels = [("site".to_owned(), format!("\"{unit}\""))].into();
        let declared = Declared { labels, ..Declared::default() };
        let beat = Heartbeat { declared, ..Heartbeat::of(unit.clone(), now) };
        if let (_, Some(change)) = hear(&seen, &beat, rules, hearing, now) {
            self.engine.apply(&[(seen, change)]).await.unwrap();
        }
    }

    /// The contents of all keys of the fleet, by name. The id of the fleet, which is random, is left out. The entries
    /// of an outbox are compared as one set of events: a step of the script may write more of them into one entry.
    fn stored(&self, redis: &mut redis::Connection) -> BTreeMap<String, String> {
        let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{}:*", self.prefix)).query(redis).unwrap();
        let mut stored = BTreeMap::new();
        for key in keys {
            let name = key[self.prefix.len()..].to_owned();
            let sort: String = redis::cmd("TYPE").arg(&key).query(redis).unwrap();
            let value = match sort.as_str() {
                "string" => redis::cmd("GET").arg(&key).query(redis).unwrap(),
                "hash" => {
                    let fields: BTreeMap<String, String> =
                        redis::cmd("HGETALL").arg(&key).query(redis).unwrap();
                    format!("{fields:?}")
                }
                "zset" => {
                    let range = &mut redis::cmd("ZRANGE");
                    let members: Vec<(String, f64)> =
                        range.arg(&key).arg(0).arg(-1).arg("WITHSCORES").query(redis).unwrap();
                    format!("{members:?}")
                }
                "stream" => {
                    let range = &mut redis::cmd("XRANGE");
                    let entries: Vec<(String, Vec<String>)> =
                        range.arg(&key).arg("-").arg("+").query(redis).unwrap();
                    let fields: Vec<String> = entries.into_iter().flat_map(|(_, fields)| fields).collect();
                    let mut events: Vec<&[String]> = fields.chunks(2).collect();
                    events.sort_unstable();
                    format!("{events:?}")
                }
                sort => panic!("{key} is a {sort}"),
            };
            if !name.ends_with(":meta") && !name.ends_with("}:heard") {
                stored.insert(name, value);
            }
        }
        stored
    }
}

fn gone(unit: &Unit, at: Timestamp) -> Announcement {
    let says = Announced::Gone { cause: Cause::LastWill, settle: Duration::ZERO };
    Announcement::of(unit.clone(), at, says)
}

/// How many transactions the server has executed.
fn executed(redis: &mut redis::Connection) -> u64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query(redis).unwrap();
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_exec:calls="));
    calls.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn openings_are_written_alike_by_transaction_and_script() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Redis::start();
    let units = units();
    let number = std::sync::atomic::AtomicUsize::new(0);
    let transactions = std::sync::atomic::AtomicU64::new(0);
    let with_keys = std::sync::atomic::AtomicUsize::new(0);
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&rounds(), |rounds| {
        runtime.block_on(async {
            let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let client = &mut server.client();
            let nearby = Way::new(&server, format!("case-{number}-nearby"), true).await;
            let far = Way::new(&server, format!("case-{number}-far"), false).await;
            let mut now = Timestamp::from_millis(BEGIN);
            for (n, round) in rounds.iter().enumerate() {
                now = now + Duration::from_secs(60 * round.after + 1);
                let before = executed(client);
                let by_transaction = nearby.take(&units, round, now, client).await;
                transactions.fetch_add(executed(client) - before, std::sync::atomic::Ordering::Relaxed);
                let had_key = |(unit, event): (&Unit, &Event)| {
                    let seen = by_transaction.0.iter().find(|seen| seen.unit == *unit);
                    let is_applied = by_transaction.1.get(&unit.to_string()) == Some(&true);
                    matches!(event, Event::Announced) && is_applied && seen.unwrap().alive.is_some()
                };
                let count = units.iter().zip(&round.events).filter(|both| had_key(*both)).count();
                with_keys.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
                let by_script = far.take(&units, round, now, client).await;
                prop_assert_eq!(by_transaction, by_script, "round {}: {:?}", n, round);
                prop_assert_eq!(nearby.stored(client), far.stored(client), "round {}: {:?}", n, round);
            }
            Ok::<(), TestCaseError>(())
        })
    });
    tried.unwrap();
    let transactions = transactions.into_inner();
    assert!(transactions > 30, "only {transactions} transactions were executed");
    let with_keys = with_keys.into_inner();
    assert!(with_keys > 10, "only {with_keys} units that were announced as gone had keys");
}

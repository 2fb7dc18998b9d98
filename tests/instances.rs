//! Several instances over one engine: they share the work, and cover for one another.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::engine::redis::RedisEngine;
use rollcall::engine::roll::{HearingConfig, Rules};
use rollcall::engine::roster::View;
use rollcall::engine::{AlertStore, Mirror, Ownership, Queries, Roll, UnitStore, partition_of};
use rollcall::expiry::{self, Expiry};
use rollcall::presence::{Declared, Heartbeat, Kind, KindRules, Policy, Unit};
use rollcall::telemetry::Telemetry;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

#[path = "support/redis.rs"]
mod redis;

use redis::Redis;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(100);
const PATIENCE: Duration = Duration::from_secs(30);
const UNITS: usize = 400;

/// One of the instances "a" and "b".
struct Instance {
    engine: Arc<RedisEngine>,
    roll: Arc<Roll>,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    ownership: Ownership,
}

impl Instance {
    async fn new(name: &str, redis: &Redis, clock: &Clock) -> Instance {
        let kind: Kind = "detector".parse().unwrap();
        let policy = Policy { timeout: TIMEOUT, grace: Duration::ZERO };
        let rules = Arc::new(Rules::from([(kind.clone(), KindRules { policy, ..KindRules::new(kind) })]));
        let telemetry = Arc::new(Telemetry::new(clock));
        let engine = redis.engine(&telemetry).await;
        let mirror = Arc::new(Mirror::new(rules.clone(), engine.partitions()));
        let config = HearingConfig { gap: 1000 * SECOND, settle: Duration::ZERO, tell: 1000 * SECOND };
        let news = Arc::new(Notify::new());
        let roll = Roll::new(engine.clone(), rules, mirror.clone(), telemetry.clone(), config, news);
        let both = vec!["a".to_owned(), "b".to_owned()];
        let ownership = Ownership::fixed(View::new(name, both, engine.partitions()));
        Instance { engine, roll: Arc::new(roll), mirror, telemetry, clock: clock.clone(), ownership }
    }

    /// Finds silences until the guard is dropped.
    fn expire(&self, sweep: bool, hints: bool) -> DropGuard {
        let expiry = Expiry {
            config: expiry::Config { tick: 10 * MILLISECOND, sweep, hints },
            engine: self.engine.clone(),
            roll: self.roll.clone(),
            ownership: self.ownership.clone(),
            mirror: self.mirror.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
        };
        let stop = CancellationToken::new();
        tokio::spawn(expiry.run(stop.clone()));
        stop.drop_guard()
    }

    fn metric(&self, series: &str) -> usize {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.telemetry.gather()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series)).expect("such a series");
        line.trim().parse().unwrap()
    }

    fn swept(&self) -> usize {
        self.metric("rollcall_suspects_total{source=\"sweep\"}")
    }

    /// How often it asked what is due first.
    fn looked(&self) -> usize {
        self.metric("rollcall_engine_command_duration_seconds_count{command=\"first_looks\"}")
    }

    fn won(&self) -> usize {
        self.metric("rollcall_takes_total{result=\"won\"}")
    }

    /// How many of the units are in its partitions.
    fn own(&self) -> usize {
        let partition = |unit: &Unit| partition_of(unit, self.engine.partitions());
        units().iter().filter(|unit| self.ownership.owns(partition(unit))).count()
    }

    async fn records(&self) -> usize {
        self.engine.records(false, None, 10 * UNITS).await.unwrap().len()
    }
}

fn units() -> Vec<Unit> {
    (0..UNITS).map(|number| format!("detector:unit-{number}").parse().unwrap()).collect()
}

/// Two instances whose units were heard once, and it is a millisecond after their deadline.
async fn overdue() -> (Redis, Clock, Instance, Instance) {
    let redis = Redis::start();
    let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
    let a = Instance::new("a", &redis, &clock).await;
    let b = Instance::new("b", &redis, &clock).await;
    let now = clock.now();
    let beat = |unit: Unit| Heartbeat { unit, at: now, declared: Declared::default() };
    a.roll.canary_returned(now).await.unwrap();
    a.roll.hear(&units().into_iter().map(beat).collect::<Vec<_>>(), now).await.unwrap();
    clock.advance(TIMEOUT + MILLISECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    assert!(a.own() > 0 && b.own() > 0 && a.own() + b.own() == UNITS);
    (redis, clock, a, b)
}

async fn until(what: &str, fact: impl AsyncFn() -> bool) {
    let awaited = async {
        while !fact().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

#[tokio::test]
async fn each_silence_is_found_once_and_by_the_owner_of_its_partition() {
    let (_redis, _clock, a, b) = overdue().await;
    let _both = (a.expire(true, true), b.expire(true, true));
    until("all are recorded", async || a.records().await == UNITS).await;
    until("all is counted", async || a.won() + b.won() == UNITS).await;
    assert_eq!((a.won(), b.won()), (a.own(), b.own()));
    assert_eq!((a.swept(), b.swept()), (a.own(), b.own()), "nobody looked for the other");
}

#[tokio::test]
async fn an_owner_that_is_gone_is_covered_after_a_second() {
    let (_redis, clock, a, b) = overdue().await;
    let _only_a = a.expire(true, true);
    until("its own are recorded", async || a.records().await == a.own()).await;
    clock.advance(SECOND - MILLISECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    let before = a.looked();
    until("it has looked again", async || a.looked() > before + 2).await;
    assert_eq!(a.swept(), a.own(), "the others have a second");
    clock.advance(MILLISECOND);
    until("all are recorded", async || a.records().await == UNITS).await;
    assert_eq!((a.swept(), b.swept()), (UNITS, 0));
}

#[tokio::test]
async fn an_owner_that_is_slow_and_those_who_cover_for_it_record_each_silence_once() {
    let (_redis, clock, a, b) = overdue().await;
    clock.advance(SECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    let _both = (a.expire(true, true), b.expire(true, true));
    until("all are recorded", async || a.records().await == UNITS).await;
    until("all is counted", async || a.won() + b.won() == UNITS).await;
    assert_eq!(a.engine.outbox(10 * UNITS).await.unwrap().len(), UNITS);
}

#[tokio::test]
async fn without_a_sweep_every_hint_is_followed() {
    let (redis, _clock, a, b) = overdue().await;
    let expire = || {
        let mut client = redis.client();
        for unit in units() {
            let partition = partition_of(&unit, a.engine.partitions());
            let key = format!("rollcall:{{p{partition}}}:alive:{unit}");
            ::redis::cmd("PEXPIRE").arg(key).arg(1).exec(&mut client).unwrap();
        }
    };
    let _only_a = a.expire(false, true);
    ::redis::cmd("CONFIG")
        .arg("SET")
        .arg("notify-keyspace-events")
        .arg("Ex")
        .exec(&mut redis.client())
        .unwrap();
    until("it listens", async || {
        let listening: Vec<(String, usize)> = ::redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg("__keyevent@0__:expired")
            .query(&mut redis.client())
            .unwrap();
        listening[0].1 == 1
    })
    .await;
    expire();
    until("all are recorded", async || a.records().await == UNITS).await;
    assert_eq!((a.won(), b.won()), (UNITS, 0));
}

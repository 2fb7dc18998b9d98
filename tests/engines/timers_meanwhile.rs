//! Timers that change between the read and the write of a step on Redis.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{Guarantee, NewTimer, Receipt, TimerClass, TimerId, TimerLifecycle};
use rollcall::store::{AttemptEnd, AttemptMade, Delivery, EndedLease, Layout, StoredDeliveries};
use rollcall::store::{StoredTimers, TimerCancelled, TimerCapacity, TimerClasses, TimerRegistered};
use rollcall::store::{redis::RedisConfig, redis::RedisEngine};
use rollcall::telemetry::Telemetry;

use crate::instances::proxy::{Proxy, Wire};
use crate::support::node::until;
use crate::support::redis::Redis;

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const KEEP: Duration = Duration::from_secs(60);

/// Two instances; the connections of the first one can be stalled.
struct World {
    redis: Redis,
    wire: Proxy,
    one: Arc<RedisEngine>,
    other: Arc<RedisEngine>,
    all: Vec<u16>,
    classes: TimerClasses,
}

impl World {
    async fn new() -> World {
        let redis = Redis::start();
        let wire = Proxy::start("127.0.0.1:0", &format!("127.0.0.1:{}", redis.port())).await;
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(BEGIN)));
        let config =
            RedisConfig { url: format!("redis://127.0.0.1:{}/0", wire.port()), ..RedisConfig::default() };
        let one = Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap());
        let other = redis.engine(&telemetry).await;
        let class = TimerClass {
            timer_type: "once".parse().unwrap(),
            receivers: vec!["hook".to_owned(), "mail".to_owned()],
            guarantee: Guarantee::AtMostOnce,
            keep: KEEP,
            most: 1000,
        };
        let all = (0..other.partitions()).collect();
        World { redis, wire, one, other, all, classes: [(class.timer_type.clone(), class)].into() }
    }

    fn timers(&self, engine: &Arc<RedisEngine>) -> StoredTimers {
        StoredTimers::new(engine.clone())
    }

    async fn registers(&self) -> TimerRegistered {
        let (timer_type, data) = ("once".parse().unwrap(), "1".parse().unwrap());
        let timer = NewTimer { is_span: false, id: id(), timer_type, due: BEGIN, data };
        self.timers(&self.other).register(&[timer], false).await.unwrap()[0]
    }

    async fn cancels(&self, now: Timestamp) {
        let answers = self.timers(&self.other).cancel(&[id()], &self.classes, now).await.unwrap();
        assert_eq!(answers, [TimerCancelled::Yes]);
    }

    /// The first instance has read timers, and waits for the answer.
    async fn has_read(&self, before: usize) {
        until("timers are read", async || reads(&self.redis) > before).await;
    }

    async fn lifecycle(&self) -> TimerLifecycle {
        self.timers(&self.other).timers(&[id()]).await.unwrap().remove(0).unwrap().lifecycle
    }
}

/// How often the server was asked for fields of a hash.
fn reads(redis: &Redis) -> usize {
    let stats: String = ::redis::cmd("INFO").arg("commandstats").query(&mut redis.client()).unwrap();
    let calls = stats.split("cmdstat_hmget:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

fn id() -> TimerId {
    "a".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_is_recorded_while_attempts_are_given_up_stays() {
    let world = World::new().await;
    world.registers().await;
    let due = world.timers(&world.other).due_timers(&world.all, BEGIN, 10).await.unwrap();
    world.timers(&world.other).fire(&due, &world.classes, &TimerCapacity::NONE, BEGIN).await.unwrap();
    let mut leased: Vec<Delivery> = Vec::new();
    for receiver in ["hook", "mail"] {
        leased.extend(
            StoredDeliveries::new(world.other.clone())
                .lease(&world.all, receiver, BEGIN, BEGIN + KEEP, 10)
                .await
                .unwrap(),
        );
    }
    let begun: Vec<&Delivery> = leased.iter().collect();
    assert_eq!(
        StoredDeliveries::new(world.other.clone()).begin_only_attempts(&begun, BEGIN).await.unwrap(),
        [true; 2]
    );

    let (before, later) = (reads(&world.redis), BEGIN + KEEP);
    world.wire.set(Wire::StallsAfter("HMGET"));
    let give_up = tokio::spawn({
        let (one, all) = (world.one.clone(), world.all.clone());
        async move { StoredTimers::new(one).give_up_only_attempts(&all, later).await }
    });
    world.has_read(before).await;
    let attempt = Some(AttemptMade { at: BEGIN, took: Duration::ZERO, answer: String::new() });
    let ended = EndedLease { delivery: Arc::new(leased[1].clone()), end: AttemptEnd::Delivered, attempt };
    StoredDeliveries::new(world.other.clone()).end_attempts(&[ended], later).await.unwrap();
    world.wire.set(Wire::Whole);
    let types = give_up.await.unwrap().unwrap();
    assert_eq!(types.iter().map(|of| of.as_str()).collect::<Vec<_>>(), ["once"], "the other attempt");
    let TimerLifecycle::Fired { receipts, .. } = world.lifecycle().await else { panic!("it has fired") };
    assert_eq!(receipts, [("hook".to_owned(), Receipt::Unknown), ("mail".to_owned(), Receipt::Delivered)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_ends_again_while_it_is_being_forgotten_is_kept() {
    let world = World::new().await;
    world.registers().await;
    world.cancels(BEGIN).await;
    let (before, later) = (reads(&world.redis), BEGIN + KEEP);
    world.wire.set(Wire::StallsAfter("HMGET"));
    let forget = tokio::spawn({
        let (one, all) = (world.one.clone(), world.all.clone());
        async move { StoredTimers::new(one).forget_timers(&all, later).await }
    });
    world.has_read(before).await;
    assert_eq!(world.registers().await, TimerRegistered::Created);
    world.cancels(later).await;
    world.wire.set(Wire::Whole);
    assert_eq!(forget.await.unwrap().unwrap(), 0);
    assert_eq!(world.lifecycle().await, TimerLifecycle::Cancelled { at: later });
    assert_eq!(world.timers(&world.other).forget_timers(&world.all, later + KEEP).await.unwrap(), 1);
}

//! A Redis that is full and evicts expiry keys of living units.

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{Heartbeat, Unit};
use rollcall::store::redis::{RedisConfig, RedisEngine};
use rollcall::store::{EngineError, Queries, UnitStore};
use rollcall::telemetry::Telemetry;

use crate::clocks::renew;
use crate::facts::until;
use crate::world::cluster::ClusterPlan;
use crate::world::redis::{DURABLE, Redis, Topology};
use crate::world::sentinel::SentinelPlan;
use crate::world::{TIMEOUT, crowd};

const POLICY: &str = "volatile-random";

async fn set(redis: &Redis, name: &str, value: &str) {
    redis.tell_all(cmd("CONFIG").arg("SET").arg(name).arg(value)).await;
}

/// The policy changes while the instance runs.
async fn evicted_keys_are_no_silence(topology: Topology) {
    let dir = tempfile::TempDir::new().unwrap();
    let redis = Redis::of(&topology, dir.path(), &[], &DURABLE).await;
    let (engine, roll) = crowd::roll(redis.url()).await;
    // By the clock the checks come before the eviction: keys count as evicted until they were found absent.
    let begin = renew(&*engine).await - 8 * TIMEOUT;
    let at = |part: f64| begin + TIMEOUT.mul_f64(part);
    let units: Vec<Unit> = (0..40).map(|n| format!("detector:finch-{n}").parse().unwrap()).collect();
    let hear = async |at: Timestamp| {
        let beat = |unit: &Unit| Heartbeat::of(unit.clone(), at);
        roll.hear(&units.iter().map(beat).collect::<Vec<_>>(), at).await.unwrap();
    };
    let hear_until = async |tenths: std::ops::Range<u32>| {
        for tenths in tenths {
            roll.canary_returned(at(f64::from(tenths) / 10.0)).await.unwrap();
        }
    };
    let open = async || engine.records(true, None, 100).await.unwrap().len();
    hear_until(0..1).await;
    hear(begin).await;
    hear(at(0.9)).await;
    hear_until(1..13).await;
    set(&redis, "maxmemory-policy", POLICY).await;
    set(&redis, "maxmemory", "1").await;
    until("the keys are evicted", async || {
        engine.read(&units).await.unwrap().iter().all(|seen| seen.alive.is_none())
    })
    .await;
    set(&redis, "maxmemory", "0").await;
    roll.check_deadlines(&units, at(1.2)).await.unwrap();
    assert_eq!(open().await, 0, "their last heartbeats are gone");
    renew(&*engine).await;
    roll.check_deadlines(&units, at(2.1)).await.unwrap();
    assert_eq!(open().await, 0, "they may have been heard until then");
    hear_until(13..60).await;
    roll.check_deadlines(&units, at(5.7)).await.unwrap();
    assert_eq!(open().await, units.len(), "they are silent");

    let connect = async |permitted: &str| {
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        let allow_eviction = permitted.to_owned();
        let config = RedisConfig { url: redis.url(), allow_eviction, ..RedisConfig::default() };
        RedisEngine::connect(&config, telemetry).await.map(drop)
    };
    for permitted in ["", "volatile-lru"] {
        let Err(EngineError::Refused(why)) = connect(permitted).await else { panic!("{permitted}") };
        for part in ["maxmemory-policy volatile-random", "noeviction", "engine.allow_eviction"] {
            assert!(why.contains(part), "{why}");
        }
    }
    connect(POLICY).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_redis_evicts_are_no_silence() {
    evicted_keys_are_no_silence(Topology::Single).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_a_primary_of_sentinels_evicts_are_no_silence() {
    evicted_keys_are_no_silence(Topology::Sentinel(SentinelPlan::new(1))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_nodes_of_a_cluster_evict_are_no_silence() {
    evicted_keys_are_no_silence(Topology::Cluster(ClusterPlan::new(0))).await;
}

/// Living units of a whole service, whose keys are evicted again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_on_a_redis_that_evicts_its_keys_again_and_again_is_alive() {
    use crate::world::{Plan, World};
    let mut world = World::new(Plan::new(2)).await;
    world.live(4 * TIMEOUT);
    let mark = world.disturb();
    set(&world.redis, "maxmemory-policy", "volatile-lru").await;
    for _ in 0..6 {
        world.pass(Duration::from_millis(700)).await;
        set(&world.redis, "maxmemory", "1").await;
        set(&world.redis, "maxmemory", "0").await;
    }
    let is_shown = async |world: &World| {
        let page = world.instances[0].page("/readyz").await;
        page.is_some_and(|(_, page)| page.contains("keys_evicted") && page.contains("eviction_possible"))
    };
    world.eventually("readyz shows it", is_shown).await;
    world.disturbed_since(mark);
    world.rests().await;
}

//! Crowds of units that were heard once, at one moment, and never again. They have no diary.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::{HearingConfig, Mirror, Roll, Rules};
use rollcall::presence::{Heartbeat, Kind, KindRules};
use rollcall::store::embedded::EmbeddedEngine;
use rollcall::store::redis::RedisEngine;
use rollcall::store::{Engine, embedded, redis};
use rollcall::telemetry::Telemetry;

use super::connect::connected;
use super::{CROWD, TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

fn prefix(crowd: usize) -> String {
    format!("{CROWD}{crowd}-")
}

/// The engine of a world. The embedded engine is available while no instance runs.
async fn engine(world: &World, telemetry: Arc<Telemetry>) -> Arc<dyn Engine> {
    if world.plan.embedded {
        let config =
            embedded::EmbeddedConfig { path: world.directory.path().to_owned(), partitions: Some(16) };
        return Arc::new(EmbeddedEngine::open(&config, telemetry).await.unwrap());
    }
    on_redis(world.redis.url(), telemetry).await
}

async fn on_redis(url: String, telemetry: Arc<Telemetry>) -> Arc<RedisEngine> {
    Arc::new(connected(&redis::RedisConfig { url, ..Default::default() }, telemetry).await)
}

/// A roll like that of an instance, and its engine, on the Redis at this address.
pub async fn roll(url: String) -> (Arc<RedisEngine>, Roll) {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine = on_redis(url, telemetry.clone()).await;
    (engine.clone(), roll_of(engine, telemetry))
}

fn roll_of(engine: Arc<dyn Engine>, telemetry: Arc<Telemetry>) -> Roll {
    let kind: Kind = "detector".parse().unwrap();
    let mut rules = KindRules::new(kind.clone());
    rules.policy.timeout = TIMEOUT;
    let rules = Arc::new(Rules::from_iter([(kind, rules)]));
    let hearing = HearingConfig { gap: SECOND, follows: false, settle: SECOND, tell_after: SECOND };
    let mirror = Arc::new(Mirror::of(&*engine, Arc::clone(&rules), &[]));
    Roll::new(engine, rules, mirror, telemetry, hearing, Default::default())
}

/// Records one heartbeat for each unit of this crowd.
pub async fn fill(world: &World, crowd: usize, units: usize, at: Timestamp) {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let roll = roll_of(engine(world, telemetry.clone()).await, telemetry);
    let beat = |n: usize| Heartbeat::of(format!("detector:{}{n:06}", prefix(crowd)).parse().unwrap(), at);
    let beats: Vec<Heartbeat> = (0..units).map(beat).collect();
    roll.hear(&beats, at).await.unwrap();
}

/// Waits until every unit of this crowd has its record and was notified, under one id.
pub async fn all_are_notified_once(world: &World, crowd: usize, units: usize) {
    let recorded = async |world: &World| world.open().await >= Some(units);
    world.eventually("every silence has its record", recorded).await;
    world.eventually("nothing waits", async |world| world.waiting().await == Some(0)).await;
    let notified_records = world.notified_records().into_iter();
    let of_crowd =
        notified_records.filter(|notified| notified.record.unit.as_str().starts_with(&prefix(crowd)));
    let ids: BTreeSet<_> =
        of_crowd.map(|notified| (notified.record.id.to_string(), notified.notification)).collect();
    assert_eq!(ids.len(), units, "each under one id");
}

//! Crowds that were heard once, at one moment, and never again. They keep no diary.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use rollcall::clock::{Clock, Timestamp};
use rollcall::engine::redis::{Config, RedisEngine};
use rollcall::engine::{Mirror, Roll, roll::HearingConfig};
use rollcall::presence::{Declared, Heartbeat, Kind, KindRules};
use rollcall::telemetry::Telemetry;

use super::{CROWD, TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

fn prefix(crowd: usize) -> String {
    format!("{CROWD}{crowd}-")
}

/// A roll as an instance has it, and the engine below, on the Redis of that port.
pub async fn roll(redis: u16) -> (Arc<RedisEngine>, Roll) {
    let kind: Kind = "detector".parse().unwrap();
    let mut rules = KindRules::new(kind.clone());
    rules.policy.timeout = TIMEOUT;
    let rules = Arc::new([(kind, rules)].into());
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let url = format!("redis://127.0.0.1:{redis}/0");
    let engine = RedisEngine::connect(&Config { url, ..Config::default() }, telemetry.clone()).await.unwrap();
    let engine = Arc::new(engine);
    let hearing = HearingConfig { gap: SECOND, settle: SECOND, tell: SECOND };
    let mirror = Arc::new(Mirror::new(Arc::clone(&rules), 16));
    let roll = Roll::new(engine.clone(), rules, mirror, telemetry, hearing, Default::default());
    (engine, roll)
}

/// The units of that crowd were heard at one moment.
pub async fn fill(world: &World, crowd: usize, units: usize, at: Timestamp) {
    let (_, roll) = roll(world.redis.port()).await;
    let beat = |n: usize| Heartbeat {
        unit: format!("detector:{}{n:06}", prefix(crowd)).parse().unwrap(),
        at,
        not_before: None,
        declared: Declared::default(),
    };
    let beats: Vec<Heartbeat> = (0..units).map(beat).collect();
    roll.hear(&beats, at).await.unwrap();
}

/// Awaits that every unit of that crowd has its record and was told, under one id.
pub async fn all_are_told_once(world: &World, crowd: usize, units: usize) {
    let recorded = async |world: &World| {
        let mut open = 0;
        for partition in 0..16 {
            let key = format!("rollcall:{{p{partition}}}:open");
            open += world.redis.try_ask::<usize>(cmd("ZCARD").arg(key)).await.unwrap_or(0);
        }
        open >= units
    };
    world.eventually("every silence has its record", recorded).await;
    world.eventually("nothing waits", async |world| world.redis.waiting().await == Some(0)).await;
    let tellings = world.tellings().into_iter();
    let of_crowd = tellings.filter(|telling| telling.record.unit.as_str().starts_with(&prefix(crowd)));
    let told: BTreeSet<_> =
        of_crowd.map(|telling| (telling.record.id.to_string(), telling.notification)).collect();
    assert_eq!(told.len(), units, "each under one id");
}

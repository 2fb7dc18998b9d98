//! Connections to a server that refuses them, or is gone, for a while.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::store::redis::{Config, RedisEngine};
use rollcall::store::{EngineError, HearingStore, Layout, Queries, UnitStore};
use rollcall::telemetry::Telemetry;
use tokio::sync::mpsc;

use crate::support::node::until;
use crate::support::redis::Redis;

fn telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new(&Clock::system()))
}

fn set_user(redis: &Redis) {
    let rules = ["fleet", "on", ">pw", "~*", "&*", "+@all"];
    redis::cmd("ACL").arg("SETUSER").arg(&rules).exec(&mut redis.client()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_was_gone_for_a_while_is_logged_in_again() {
    let redis = Redis::start();
    set_user(&redis);
    let url = format!("redis://fleet@127.0.0.1:{}/0", redis.port());
    let config = Config { url, password: Some("pw".to_owned()), ..Config::default() };
    let engine = RedisEngine::connect(&config, telemetry()).await.unwrap();
    redis::cmd("ACL").arg("DELUSER").arg("fleet").exec(&mut redis.client()).unwrap();
    let is_refused = async || matches!(engine.hearing().await, Err(EngineError::Refused(_)));
    until("the login is refused", is_refused).await;
    set_user(&redis);
    until("it works again", async || engine.hearing().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_is_notified_again_after_an_outage_of_the_server() {
    let mut redis = Redis::start();
    let engine = redis.engine(&telemetry()).await;
    let (hints, _hinted) = mpsc::channel(16);
    let listening = engine.clone();
    tokio::spawn(async move {
        loop {
            let _cut = listening.listen(hints.clone()).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    until("it listens", async || redis.listeners() == 1).await;
    redis.kill();
    until("the server is gone", async || engine.hearing().await.is_err()).await;
    // Longer than any connection tries by itself.
    for _ in 0..20 {
        assert!(engine.hearing().await.is_err());
    }
    redis.restart();
    until("it listens again", async || redis.listeners() == 1).await;
}

/// In a cluster its server may come back empty, while others have the fleet.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_whose_properties_are_lost_is_the_same_after_a_start() {
    let redis = Redis::start();
    let config = Config { url: redis.url(), partitions: Some(7), ..Config::default() };
    let first = RedisEngine::connect(&config, telemetry()).await.unwrap();
    redis::cmd("DEL").arg("rollcall:meta").exec(&mut redis.client()).unwrap();
    let config = Config { partitions: None, ..config };
    let second = RedisEngine::connect(&config, telemetry()).await.unwrap();
    assert_eq!((second.partitions(), second.fleet_id()), (7, first.fleet_id()));
    assert_eq!(second.key(), first.key());
}

//! Connections to a server that refuses them, or is gone, for a while.

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::Interval;
use rollcall::store::redis::{RedisConfig, RedisEngine};
use rollcall::store::{EngineError, HearingStore, Layout, OutboxEvent, OutboxStore, Queries, UnitStore};
use rollcall::telemetry::Telemetry;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::conformance::world::roll;
use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::connect::connected;
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
    let config = RedisConfig { url, password: Some("pw".to_owned()), ..RedisConfig::default() };
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
    let config = RedisConfig { url: redis.url(), partitions: Some(7), ..RedisConfig::default() };
    let first = RedisEngine::connect(&config, telemetry()).await.unwrap();
    redis::cmd("DEL").arg("rollcall:meta").exec(&mut redis.client()).unwrap();
    let config = RedisConfig { partitions: None, ..config };
    let second = RedisEngine::connect(&config, telemetry()).await.unwrap();
    assert_eq!((second.partitions(), second.fleet_id()), (7, first.fleet_id()));
    assert_eq!(second.key(), first.key());
}

/// The server of hearing comes back empty while no instance runs; the others know up to when the fleet was heard.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_server_of_hearing_is_a_loss_also_for_an_instance_that_starts_then() {
    let plan = ClusterPlan { node_timeout: Duration::from_secs(30), ..ClusterPlan::new(0) };
    let cluster = Cluster::start(plan).await;
    let config = RedisConfig { url: cluster.url(), ..RedisConfig::default() };
    let begin = Timestamp::from_millis(1_800_000_000_000);
    let at = |seconds: u64| begin + Duration::from_secs(seconds);
    let hears = async |seconds: &[u64]| {
        let engine = Arc::new(connected(&config, telemetry()).await);
        let roll = roll(engine.clone());
        roll.refresh_hearing().await.unwrap();
        for seconds in seconds {
            roll.canary_returned(at(*seconds)).await.unwrap();
        }
        (engine.outbox(&[engine.partitions()], 10).await.unwrap(), roll.hearing().ledger.intervals().to_vec())
    };
    assert_eq!(hears(&[1, 2, 3]).await, (vec![], vec![]));
    let key = "rollcall:{hearing}:heard";
    cluster.ask::<()>(key, cmd("FLUSHALL").arg("SYNC")).await;
    let (events, blind) = hears(&[60, 61]).await;
    let interval = Interval { from: at(3), to: at(60) };
    assert_eq!(blind, [interval]);
    let events: Vec<OutboxEvent> = events.into_iter().map(|entry| entry.event).collect();
    let [OutboxEvent::DataLost(loss)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(loss.interval, interval);
    assert!(loss.partitions.is_some_and(|lost| (8..=24).contains(&lost)), "a third of 48: {loss:?}");
}

/// Both servers that say what the fleet is come back empty; others have units.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_not_created_beside_the_rest_of_a_lost_one() {
    let plan = ClusterPlan { node_timeout: Duration::from_secs(30), ..ClusterPlan::new(0) };
    let cluster = Cluster::start(plan).await;
    let config = RedisConfig { url: cluster.url(), ..RedisConfig::default() };
    let engine = Arc::new(connected(&config, telemetry()).await);
    roll(engine.clone()).canary_returned(Timestamp::from_millis(1_800_000_000_000)).await.unwrap();
    drop(engine);
    for key in ["rollcall:meta", "rollcall:{hearing}:heard"] {
        cluster.ask::<()>(key, cmd("DEL").arg(key)).await;
    }
    let refused = RedisEngine::connect(&config, telemetry()).await.err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|why| why.contains("restore a backup")), "{refused:?}");
    let config = RedisConfig { prefix: "other".to_owned(), ..config };
    assert!(RedisEngine::connect(&config, telemetry()).await.is_ok());
}

/// A proxy in front of a server that takes what arrives on its connections and passes nothing on, but for new ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_takes_requests_and_answers_none_is_replaced() {
    let redis = Redis::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/0", listener.local_addr().unwrap());
    let (swallow, swallows) = watch::channel(0);
    let server = ("127.0.0.1", redis.port());
    tokio::spawn(async move {
        for number in 1_u64.. {
            let (mut client, _) = listener.accept().await.unwrap();
            let (mut to, mut swallows) = (TcpStream::connect(server).await.unwrap(), swallows.clone());
            tokio::spawn(async move {
                let swallowed = async {
                    while *swallows.borrow_and_update() < number {
                        swallows.changed().await.unwrap()
                    }
                };
                let is_swallowed = tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut to) => false,
                    () = swallowed => true,
                };
                while is_swallowed && client.read(&mut [0; 1024]).await.is_ok_and(|count| count > 0) {}
            });
        }
    });
    let config = RedisConfig { url, ..RedisConfig::default() };
    let engine = RedisEngine::connect(&config, telemetry()).await.unwrap();
    assert!(engine.hearing().await.is_ok());
    swallow.send_replace(100);
    assert!(engine.hearing().await.is_err(), "its connection answers nothing");
    swallow.send_replace(0);
    until("it connects again", async || engine.hearing().await.is_ok()).await;
}

//! A silence that one instance holds while it goes on at another one.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::Silences;
use rollcall::presence::{Closing, OfflineRecord};
use rollcall::routing::{alert_silence::SilenceRequest, parse_label_matchers};
use rollcall::store::{Capacity, Destinations, Group, Join, Layout, OutboxEvent, Pace, StoredGroups};
use rollcall::store::{redis::RedisConfig, redis::RedisEngine};
use rollcall::telemetry::Telemetry;

use crate::instances::proxy::{Proxy, Wire};
use crate::support::node::until;
use crate::support::redis::Redis;

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn seconds(seconds: u64) -> Timestamp {
    BEGIN + Duration::from_secs(seconds)
}

/// How often the server was asked for fields of hashes.
fn reads(redis: &Redis) -> usize {
    let stats: String = ::redis::cmd("INFO").arg("commandstats").query(&mut redis.client()).unwrap();
    let calls = stats.split("cmdstat_hmget:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

async fn join(engine: &Arc<RedisEngine>, record: &OfflineRecord, to: &Destinations, now: Timestamp) {
    let groups = vec![Group { key: "unit=a".to_owned(), labels: Default::default() }];
    let joins = [Join { groups, event: OutboxEvent::Record(record.clone()) }];
    StoredGroups::new(engine.clone()).join(&joins, to, &Capacity::NONE, now).await.unwrap();
}

/// An instance has read a silence and holds it back; before it writes that, another instance, for which the alert
/// silence is over, notifies of the silence, and its unit is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_return_that_joins_while_its_silence_is_being_held_is_not_held_back() {
    let redis = Redis::start();
    let wire = Proxy::start("127.0.0.1:0", &format!("127.0.0.1:{}", redis.port())).await;
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(BEGIN)));
    let url = format!("redis://127.0.0.1:{}/0", wire.port());
    let config = RedisConfig { url, ..RedisConfig::default() };
    let one = Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap());
    let other = redis.engine(&telemetry).await;
    let partitions: Vec<u16> = (0..other.partitions()).collect();
    let to = Destinations::all(Pace::new(Duration::from_secs(2), Duration::ZERO), &["hook".to_owned()]);
    let wanted = SilenceRequest {
        matchers: parse_label_matchers("unit=a").unwrap(),
        starts_at: BEGIN,
        ends_at: seconds(3600),
        author: "ana".to_owned(),
        comment: "cable works".to_owned(),
    };
    let silences = Silences::new(other.clone());
    silences.put(None, wanted, "ana", BEGIN).await.unwrap();
    let held = to.clone().with_silences(silences.current().await.unwrap());
    let silence = OfflineRecord::open("detector:a".parse().unwrap(), BEGIN, BEGIN, BEGIN);
    join(&other, &silence, &to, BEGIN).await;

    let before = reads(&redis);
    wire.set(Wire::StallsAfter("HMGET"));
    let seal = tokio::spawn({
        let (one, partitions) = (one.clone(), partitions.clone());
        async move { StoredGroups::new(one).seal(&partitions, &held, seconds(2)).await }
    });
    until("the silence is read", async || reads(&redis) > before).await;
    let groups = StoredGroups::new(other.clone());
    assert_eq!(groups.seal(&partitions, &to, seconds(2)).await.unwrap(), 1);
    let back = OfflineRecord { back_at: Some(seconds(3)), closed_by: Some(Closing::Return), ..silence };
    join(&other, &back, &to, seconds(3)).await;
    wire.set(Wire::Whole);
    assert_eq!(seal.await.unwrap().unwrap(), 0);
    assert_eq!(groups.first_seal(&partitions).await.unwrap(), Some(seconds(5)));
    assert_eq!(groups.seal(&partitions, &to, seconds(5)).await.unwrap(), 1, "the return is notified in time");
    assert_eq!(groups.first_seal(&partitions).await.unwrap(), None);
}

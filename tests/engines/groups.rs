//! Groups that several instances change at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::OfflineRecord;
use rollcall::store::{
    Capacity, Destinations, Group, Join, Layout, OutboxEvent, Pace, StoredDeliveries, StoredGroups,
};
use rollcall::telemetry::Telemetry;

use crate::support::redis::Redis;

const BEGIN: i64 = 1_700_000_000_000;
const UNITS: usize = 2000;
/// How many tasks let silences join.
const TASKS: usize = 4;

/// A moment later than each moment before.
fn next(clock: &AtomicI64) -> Timestamp {
    Timestamp::from_millis(clock.fetch_add(1, Ordering::SeqCst))
}

fn silence(number: usize) -> OfflineRecord {
    let begin = Timestamp::from_millis(BEGIN);
    OfflineRecord::open(format!("detector:{number}").parse().unwrap(), begin, begin, begin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn silences_that_join_while_their_group_is_sealed_are_notified_once_each() {
    let redis = Redis::start();
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::from_millis(BEGIN))));
    let (clock, joined) = (Arc::new(AtomicI64::new(BEGIN)), Arc::new(AtomicUsize::new(0)));
    let pace = Pace::new(Duration::from_millis(1), Duration::ZERO);
    let to = Destinations::all(pace, &["hook".to_owned()]);
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let groups = StoredGroups::new(redis.engine(&telemetry).await);
        let (to, clock, joined) = (to.clone(), clock.clone(), joined.clone());
        tasks.push(tokio::spawn(async move {
            for number in (task..UNITS).step_by(TASKS) {
                // Two of each group, by two tasks: what is passed over once is not found by a later one.
                let group = Group { key: format!("pair={}", number / 2), labels: Default::default() };
                let joins = [Join { groups: vec![group], event: OutboxEvent::Record(silence(number)) }];
                groups.join(&joins, &to, &Capacity::NONE, next(&clock)).await.unwrap();
            }
            joined.fetch_add(1, Ordering::SeqCst);
        }));
    }
    for _ in 0..2 {
        let groups = StoredGroups::new(redis.engine(&telemetry).await);
        let (to, clock, joined) = (to.clone(), clock.clone(), joined.clone());
        tasks.push(tokio::spawn(async move {
            let all: Vec<u16> = (0..groups.partitions()).collect();
            while joined.load(Ordering::SeqCst) < TASKS {
                groups.seal(&all, &to, next(&clock) + Duration::from_millis(5)).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let engine = redis.engine(&telemetry).await;
    let (groups, all): (_, Vec<u16>) =
        (StoredGroups::new(engine.clone()), (0..engine.partitions()).collect());
    // Whatever waits is due at some time.
    while let Some(due) = groups.first_seal(&all).await.unwrap() {
        groups.seal(&all, &to, due).await.unwrap();
    }
    let deliveries = StoredDeliveries::new(engine);
    let (now, mut notified) = (next(&clock) + Duration::from_secs(3600), BTreeMap::new());
    loop {
        let leased = deliveries.lease(&all, "hook", now, now + Duration::from_secs(60), 100).await.unwrap();
        if leased.is_empty() {
            break;
        }
        for record in leased.iter().flat_map(|delivery| &delivery.offline) {
            *notified.entry(record.id.unit.to_string()).or_insert(0) += 1;
        }
        deliveries.delivered(&leased, now).await.unwrap();
    }
    let expected = (0..UNITS).map(|number| (format!("detector:{number}"), 1));
    assert_eq!(notified, expected.collect());
}

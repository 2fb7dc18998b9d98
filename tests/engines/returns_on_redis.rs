//! What returns that wait cost a server.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{Closing, OfflineRecord, Recoveries};
use rollcall::store::{
    Capacity, Cells, Destinations, Group, Index, Join, Layout, OutboxEvent, Pace, StoredGroups,
};
use rollcall::telemetry::Telemetry;

use crate::attempts_on_redis::asked;
use crate::support::redis::Redis;

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const SECOND: Duration = Duration::from_secs(1);

fn silence(name: String, at: Timestamp) -> OfflineRecord {
    OfflineRecord::open(format!("detector:{name}").parse().unwrap(), at, at, at)
}

#[tokio::test]
async fn a_silence_that_joins_costs_the_same_however_many_returns_wait_in_its_group() {
    let redis = Redis::start();
    let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::by_hand(BEGIN)))).await;
    let (groups, all) = (StoredGroups::new(engine.clone()), (0..engine.partitions()).collect::<Vec<u16>>());
    let recoveries = Recoveries::After(100_000 * SECOND);
    let pace = Pace { is_shared: true, recoveries, ..Pace::new(10 * SECOND, 300 * SECOND) };
    let to = Destinations::all(pace, &["hook".to_owned()]);
    let join = async |records: &[OfflineRecord], now: Timestamp| {
        let group = || Group { key: "site=north".to_owned(), labels: Default::default() };
        let join = |record: &OfflineRecord| Join {
            groups: vec![group()],
            event: OutboxEvent::Record(record.clone()),
        };
        let joins: Vec<Join> = records.iter().map(join).collect();
        groups.join(&joins, &to, &Capacity::NONE, now).await.unwrap();
    };
    let mut costs = Vec::new();
    for (round, count) in [10, 1000].into_iter().enumerate() {
        let begin = BEGIN + round as u32 * 600 * SECOND;
        let silences: Vec<OfflineRecord> =
            (0..count).map(|number| silence(format!("{round}-{number}"), begin)).collect();
        join(&silences, begin).await;
        while groups.seal(&all, &to, begin + 10 * SECOND).await.unwrap() > 0 {}
        let (back_at, closed_by) = (Some(begin + 20 * SECOND), Some(Closing::Return));
        let back = silences.into_iter().map(|record| OfflineRecord { back_at, closed_by, ..record });
        join(&back.collect::<Vec<_>>(), begin + 20 * SECOND).await;
        let before = asked(&redis);
        for name in ["one", "two"] {
            let at = begin + 30 * SECOND;
            join(&[silence(format!("{round}-{name}"), at)], at).await;
        }
        let after = asked(&redis);
        costs.push((after.0 - before.0, after.1 - before.1));
    }
    let waiting: i64 = engine.sizes(Index::Returning, &all).await.unwrap().into_iter().sum();
    assert_eq!(waiting, 1010);
    // The answers to INFO differ by a few digits.
    assert!(costs[0].0 == costs[1].0 && costs[1].1 < costs[0].1 + 500, "{costs:?}");
}

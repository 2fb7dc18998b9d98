//! What the record of attempts costs a server.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::Attempts;
use rollcall::presence::OfflineRecord;
use rollcall::store::{AttemptEnd, AttemptMade, Delivery, EndedLease, Group, Layout, StoredDeliveries};
use rollcall::telemetry::Telemetry;

use crate::support::redis::Redis;

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn record(name: &str) -> OfflineRecord {
    OfflineRecord::open(format!("detector:{name}").parse().unwrap(), BEGIN, BEGIN, BEGIN)
}

/// The end of an attempt at the notification of one silence, which is alone in its group.
fn ended(name: &str, end: AttemptEnd) -> EndedLease {
    let group = Group { key: format!("unit={name}"), labels: Default::default() };
    let offline = vec![record(name)];
    let delivery = Delivery { offline, ..Delivery::new(format!("ntf_{name}.hook"), "hook", group, BEGIN) };
    let attempt = Some(AttemptMade { at: BEGIN, took: Duration::ZERO, answer: "503".to_owned() });
    EndedLease { delivery: Arc::new(delivery), end, attempt }
}

/// How often the server was asked, by commands and scripts, and how many bytes it has answered.
pub fn asked(redis: &Redis) -> (usize, usize) {
    let info = |section| -> String { ::redis::cmd("INFO").arg(section).query(&mut redis.client()).unwrap() };
    let commands = info("commandstats");
    let calls = commands.lines().filter(|line| !line.starts_with("cmdstat_info"));
    let calls =
        calls.filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<usize>().ok());
    let stats = info("stats");
    let bytes = stats.split("total_net_output_bytes:").nth(1).and_then(|rest| rest.lines().next());
    (calls.sum(), bytes.unwrap().parse().unwrap())
}

#[tokio::test]
async fn the_attempts_of_one_record_cost_the_same_however_many_others_there_are() {
    let redis = Redis::start();
    let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::by_hand(BEGIN)))).await;
    let (attempts, wanted) = (Attempts::new(engine.clone()), record("wanted").id);
    StoredDeliveries::new(engine.clone())
        .end_attempts(&[ended("wanted", AttemptEnd::Delivered)], BEGIN)
        .await
        .unwrap();
    let mut costs = Vec::new();
    for count in [0, 3000] {
        let others: Vec<EndedLease> =
            (0..count).map(|n| ended(&format!("{n}"), AttemptEnd::Delivered)).collect();
        StoredDeliveries::new(engine.clone()).end_attempts(&others, BEGIN).await.unwrap();
        let before = asked(&redis);
        let found = attempts.of_record(&wanted).await.unwrap();
        assert_eq!((found.len(), found[0].notification.as_str()), (1, "ntf_wanted"));
        assert_eq!(attempts.of_notification("ntf_wanted").await.unwrap(), found);
        let after = asked(&redis);
        costs.push((after.0 - before.0, after.1 - before.1));
    }
    // The answers to INFO differ by a few digits.
    assert!(costs[0].0 == costs[1].0 && costs[1].1 < costs[0].1 + 500, "{costs:?}");
}

#[tokio::test]
async fn retries_of_a_partition_are_recorded_together() {
    let redis = Redis::start();
    let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::by_hand(BEGIN)))).await;
    let later = |n: u64| AttemptEnd::RetryAt(BEGIN + Duration::from_secs(n));
    let retries: Vec<EndedLease> = (0..400).map(|n| ended(&format!("{n}"), later(n))).collect();
    StoredDeliveries::new(engine.clone()).end_attempts(&retries[..1], BEGIN).await.unwrap();
    let scripts = || {
        let stats: String = ::redis::cmd("INFO").arg("commandstats").query(&mut redis.client()).unwrap();
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.unwrap().parse::<usize>().unwrap()
    };
    let before = scripts();
    StoredDeliveries::new(engine.clone()).end_attempts(&retries, BEGIN).await.unwrap();
    let steps = scripts() - before;
    assert!(steps <= 2 * usize::from(engine.partitions()), "{steps} scripts for 400 retries");
}

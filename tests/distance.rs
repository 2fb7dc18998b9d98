//! The whole service with an engine that is far away: it keeps up with a fleet that speaks more often than an answer
//! takes to be worked with.

#[path = "support/distance.rs"]
mod distance;
#[path = "support/facts.rs"]
mod facts;
#[path = "support/redis.rs"]
mod redis;

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::engine::{HearingStore, Queries, UnitStore};
use rollcall::simulate::fleet::{self, FleetConfig, Progress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::telemetry::Telemetry;
use rollcall::{config, service};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use distance::Distance;
use facts::until;
use redis::Redis;

const TIMEOUT: Duration = Duration::from_secs(5);
const ROUND_TRIP: Duration = Duration::from_millis(600);
const DYING: usize = 5;
const LIVING: usize = 20;

/// Units that speak often until the guard is dropped.
fn speak(
    broker: &str,
    units: usize,
    topic: &str,
) -> (tokio_util::sync::DropGuard, watch::Receiver<Progress>) {
    let fleet = FleetConfig {
        units,
        topic: topic.to_owned(),
        interval: TIMEOUT / 5,
        connections: 1,
        ..FleetConfig::new(broker)
    };
    let (sender, progress) = watch::channel(Progress::default());
    let silence = CancellationToken::new();
    tokio::spawn(fleet::run(fleet, sender, silence.clone()));
    (silence.drop_guard(), progress)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_heard_and_its_silences_are_told_where_the_engine_is_far_away() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Server::mosquitto(dir.path(), free_port().unwrap(), "").unwrap();
    let (redis, url) = (Redis::start(), format!("mqtt://127.0.0.1:{}", broker.port()));
    let far = Distance::to(redis.port(), ROUND_TRIP).await;
    let text = format!(
        r#"
        engine.url = "redis://127.0.0.1:{}/0"
        mqtt.url = "{url}"
        http.listen = "127.0.0.1:0"
        [[kind]]
        name = "detector"
        timeout = "{}s"
        topics = ["living/{{unit}}"]
        [[kind]]
        name = "lamp"
        timeout = "{}s"
        topics = ["dying/{{unit}}"]
        "#,
        far.port(),
        TIMEOUT.as_secs(),
        TIMEOUT.as_secs()
    );
    let config = config::parse(&text, None, []).unwrap();
    let stop = CancellationToken::new();
    let service = tokio::spawn(service::run(config, stop.clone()));
    let _living = speak(&url, LIVING, "living/{unit}");
    let dying = speak(&url, DYING, "dying/{unit}");
    let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::system()))).await;
    let known = async || {
        let mut units = 0;
        for partition in 0..engine.partitions() {
            units += engine.due(partition, None, Timestamp::NEVER, 0, LIVING + DYING).await.ok()?.len();
        }
        Some(units)
    };
    until("all are known", async || known().await == Some(LIVING + DYING)).await;
    // Whatever waited when the service began has been written by now.
    let settled = Clock::system().now() + 2 * TIMEOUT;
    let heard = async || engine.hearing().await.ok().and_then(|hearing| hearing.heard).unwrap_or_default();
    until("it hears for two timeouts", async || heard().await > settled).await;

    drop(dying);
    let records = async || engine.records(false, None, 2 * (LIVING + DYING)).await.unwrap_or_default();
    until("all are offline", async || records().await.len() >= DYING).await;
    let records = records().await;
    assert_eq!(records.len(), DYING, "{records:?}");
    assert!(records.iter().all(|record| record.kind.as_str() == "lamp"), "{records:?}");
    let late = records.iter().map(|record| record.detected_at.since(record.deadline)).max().unwrap();
    println!("{late:?} late where a round trip takes {ROUND_TRIP:?}");
    stop.cancel();
    service.await.unwrap().unwrap();
}

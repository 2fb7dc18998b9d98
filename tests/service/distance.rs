//! The whole service with an engine that is far away: it keeps up with a fleet that speaks more often than an answer
//! takes to be worked with, and tells of silences by some round trips late, and no more.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::simulate::fleet::{self, FleetConfig, Progress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::Layout;
use rollcall::store::{HearingStore, Queries, UnitStore};
use rollcall::telemetry::Telemetry;
use rollcall::{config, service};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::distance::Distance;
use crate::support::facts::until;
use crate::support::redis::Redis;

const TIMEOUT: Duration = Duration::from_secs(5);
const DYING: usize = 40;
const LIVING: usize = 2000;

/// A silence is told before anything else that goes there and back does so more often than this.
const TRIPS: usize = 8;

/// Units that speak often until the guard is dropped.
fn speak(
    broker: &str,
    units: usize,
    topic: &str,
) -> (tokio_util::sync::DropGuard, watch::Receiver<Progress>) {
    let fleet = FleetConfig {
        units,
        topic: topic.to_owned(),
        interval: TIMEOUT / 2,
        connections: 1,
        ..FleetConfig::new(broker)
    };
    let (sender, progress) = watch::channel(Progress::default());
    let silence = CancellationToken::new();
    tokio::spawn(fleet::run(fleet, sender, silence.clone()));
    (silence.drop_guard(), progress)
}

/// Goes there and back, again and again, beside the service: what this machine and the way really take.
struct Traveller {
    back: Arc<Mutex<Vec<Timestamp>>>,
    task: JoinHandle<()>,
}

impl Traveller {
    async fn on(port: u16) -> Traveller {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{port}/0")).unwrap();
        let patience =
            ::redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&patience).await.unwrap();
        let (back, clock) = (Arc::new(Mutex::new(Vec::new())), Clock::system());
        let noted = back.clone();
        let task = tokio::spawn(async move {
            loop {
                ::redis::cmd("PING").exec_async(&mut connection).await.unwrap();
                noted.lock().unwrap().push(clock.now());
            }
        });
        Traveller { back, task }
    }

    /// How often it came back in between.
    fn trips(&self, from: Timestamp, to: Timestamp) -> usize {
        self.back.lock().unwrap().iter().filter(|back| from < **back && **back <= to).count()
    }

    /// The longest time that it took.
    fn longest(&self) -> Duration {
        let back = self.back.lock().unwrap();
        back.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap_or_default()
    }
}

impl Drop for Traveller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn silences_are_notified_some_round_trips_late(round_trip: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let broker = Server::mosquitto(dir.path(), free_port().unwrap(), "").unwrap();
    let (redis, url) = (Redis::start(), format!("mqtt://127.0.0.1:{}", broker.port()));
    let far = Distance::to(redis.port(), round_trip).await;
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
    let gap = config.hearing.gap;
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
    let traveller = Traveller::on(far.port()).await;
    // Whatever waited when the service began has been written by now.
    let began = Clock::system().now();
    let settled = began + 2 * TIMEOUT;
    let heard = async || engine.hearing().await.ok().and_then(|hearing| hearing.heard).unwrap_or_default();
    until("it hears for two timeouts", async || heard().await > settled).await;

    drop(dying);
    let records = async || engine.records(false, None, 2 * (LIVING + DYING)).await.unwrap_or_default();
    until("all are offline", async || records().await.len() >= DYING).await;
    let blind = engine.hearing().await.unwrap().ledger;
    let blind: Vec<_> = blind.intervals().iter().filter(|interval| interval.from > began).collect();
    stop.cancel();
    service.await.unwrap().unwrap();

    let records = records().await;
    assert_eq!(records.len(), DYING, "{records:?}");
    assert!(records.iter().all(|record| record.kind.as_str() == "lamp"), "{records:?}");
    let late = records.iter().map(|record| record.detected_at.since(record.deadline)).max().unwrap();
    let trips =
        records.iter().map(|record| traveller.trips(record.deadline, record.detected_at)).max().unwrap();
    let longest = traveller.longest();
    println!(
        "{late:?} late where a round trip takes {round_trip:?} and took up to {longest:?}: {trips} of them"
    );
    assert!(trips <= TRIPS, "{trips} round trips late: {late:?}");
    // A machine that stands still sends no canaries.
    assert!(blind.is_empty() || longest > round_trip + gap / 2, "{blind:?} though it heard all the time");
}

#[tokio::test(flavor = "multi_thread")]
async fn silences_are_notified_some_round_trips_late_where_one_takes_six_tenths_of_a_second() {
    silences_are_notified_some_round_trips_late(Duration::from_millis(600)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silences_are_notified_some_round_trips_late_where_one_takes_two_tenths_of_a_second() {
    silences_are_notified_some_round_trips_late(Duration::from_millis(200)).await;
}

//! The whole service with an engine that is far away: it keeps up with a fleet that sends faster than round trips end,
//! and records silences only some round trips late.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::config;
use rollcall::store::HearingStore;
use tokio::task::JoinHandle;

use crate::fleet_world::FleetWorld;
use crate::support::distance::Distance;
use crate::support::facts::until;

const TIMEOUT: Duration = Duration::from_secs(5);
const DYING: usize = 40;
const LIVING: usize = 2000;

/// The most round trips between a deadline and its record.
const TRIPS: usize = 8;

/// Sends PING again and again beside the service, to measure the round trips that this machine really reaches.
struct Pinger {
    answers: Arc<Mutex<Vec<Timestamp>>>,
    task: JoinHandle<()>,
}

impl Pinger {
    async fn on(port: u16) -> Pinger {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{port}/0")).unwrap();
        let patience =
            ::redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&patience).await.unwrap();
        let (answers, clock) = (Arc::new(Mutex::new(Vec::new())), Clock::system());
        let noted = answers.clone();
        let task = tokio::spawn(async move {
            loop {
                ::redis::cmd("PING").exec_async(&mut connection).await.unwrap();
                noted.lock().unwrap().push(clock.now());
            }
        });
        Pinger { answers, task }
    }

    /// How many round trips ended in between.
    fn trips(&self, from: Timestamp, to: Timestamp) -> usize {
        self.answers.lock().unwrap().iter().filter(|at| from < **at && **at <= to).count()
    }

    /// The longest round trip.
    fn longest(&self) -> Duration {
        let answers = self.answers.lock().unwrap();
        answers.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap_or_default()
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn silences_are_notified_some_round_trips_late(round_trip: Duration) {
    let world = FleetWorld::new().await;
    let far = Distance::to(world.redis.port(), round_trip).await;
    let seconds = TIMEOUT.as_secs();
    let options = format!(
        r#"
        [[kind]]
        name = "detector"
        timeout = "{seconds}s"
        topics = ["living/{{unit}}"]
        [[kind]]
        name = "lamp"
        timeout = "{seconds}s"
        topics = ["dying/{{unit}}"]
        "#
    );
    let service = world.serve(&format!("redis://127.0.0.1:{}/0", far.port()), &options);
    let _living = world.fleet(LIVING, "living/{unit}", TIMEOUT / 2, 0);
    let dying = world.fleet(DYING, "dying/{unit}", TIMEOUT / 2, 0);
    until("all are known", async || world.units().await == Some(LIVING + DYING)).await;
    let pinger = Pinger::on(far.port()).await;
    // Everything that waited when the service started is written two timeouts later.
    let began = Clock::system().now();
    world.hears_for(2 * TIMEOUT).await;

    drop(dying);
    until("all are offline", async || world.records().await.len() >= DYING).await;
    let blind = world.engine.hearing().await.unwrap().ledger;
    let blind: Vec<_> = blind.intervals().iter().filter(|interval| interval.from > began).collect();
    service.stop().await;

    let records = world.records().await;
    assert_eq!(records.len(), DYING, "{records:?}");
    assert!(records.iter().all(|record| record.kind.as_str() == "lamp"), "{records:?}");
    let late = records.iter().map(|record| record.detected_at.since(record.deadline)).max().unwrap();
    let trips = records.iter().map(|record| pinger.trips(record.deadline, record.detected_at)).max().unwrap();
    let longest = pinger.longest();
    println!(
        "{late:?} late where a round trip takes {round_trip:?} and took up to {longest:?}: {trips} of them"
    );
    assert!(trips <= TRIPS, "{trips} round trips late: {late:?}");
    // A machine that stalls sends no canaries.
    let gap = config::parse(&options, None, []).unwrap().hearing.gap;
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

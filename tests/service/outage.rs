//! The whole service when the engine is away: nobody is called offline who spoke, and whoever falls
//! silent afterwards is.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::simulate::fleet::{self, FleetConfig, Progress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::Layout;
use rollcall::store::redis::RedisEngine;
use rollcall::store::{HearingStore, Queries, UnitStore};
use rollcall::telemetry::Telemetry;
use rollcall::{config, service};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::facts::until;
use crate::support::redis::Redis;

const PATIENCE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(2);
const UNITS: usize = 50;
/// How often the fleet speaks while the engine is away: five of its timeouts.
const MEANWHILE: u64 = 20 * UNITS as u64;

/// A service that watches a fleet which never falls silent.
struct World {
    redis: Redis,
    engine: Arc<RedisEngine>,
    fleet: CancellationToken,
    progress: watch::Receiver<Progress>,
    service: (CancellationToken, JoinHandle<anyhow::Result<()>>),
    _broker: Server,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let broker = Server::mosquitto(dir.path(), free_port().unwrap(), "").unwrap();
        let (redis, url) = (Redis::start(), format!("mqtt://127.0.0.1:{}", broker.port()));
        let text = format!(
            r#"
            engine.url = "{}"
            mqtt.url = "{url}"
            http.listen = "127.0.0.1:0"
            hearing.canary_period = "200ms"
            [[kind]]
            name = "detector"
            timeout = "{}s"
            "#,
            redis.url(),
            TIMEOUT.as_secs()
        );
        let config = config::parse(&text, None, []).unwrap();
        let stop = CancellationToken::new();
        let service = (stop.clone(), tokio::spawn(service::run(config, stop)));
        let fleet = FleetConfig {
            units: UNITS,
            topic: "units/{unit}/heartbeat".to_owned(),
            interval: TIMEOUT / 4,
            ..FleetConfig::new(&url)
        };
        let (sender, progress) = watch::channel(Progress::default());
        let silence = CancellationToken::new();
        tokio::spawn(fleet::run(fleet, sender, silence.clone()));
        let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::system()))).await;
        let world = World { redis, engine, fleet: silence, progress, service, _broker: broker, _dir: dir };
        until("the fleet is known", async || world.units().await == Some(UNITS)).await;
        world
    }

    async fn units(&self) -> Option<usize> {
        let mut units = 0;
        for partition in 0..self.engine.partitions() {
            units += self.engine.due(partition, None, Timestamp::NEVER, 0, UNITS).await.ok()?.len();
        }
        Some(units)
    }

    async fn heard(&self) -> Timestamp {
        self.engine.hearing().await.ok().and_then(|hearing| hearing.heard).unwrap_or_default()
    }

    /// The fleet speaks that often.
    async fn speaks(&self, more: u64) {
        let mut progress = self.progress.clone();
        let enough = progress.borrow().sent + more;
        let spoken = progress.wait_for(|now| now.sent >= enough);
        tokio::time::timeout(PATIENCE, spoken).await.expect("the fleet speaks").unwrap();
    }

    /// The engine is back: whoever was to be called offline has been, once Rollcall has heard for
    /// two timeouts. Nobody was; then the fleet falls silent, and everybody is, once.
    async fn proves_that_no_unit_went_offline(self) {
        let enough = Clock::system().now() + 2 * TIMEOUT;
        until("it hears for two timeouts", async || self.heard().await > enough).await;
        assert_eq!(self.engine.records(false, None, 10).await.unwrap(), []);
        self.fleet.cancel();
        let records = async || self.engine.records(false, None, 10 * UNITS).await.unwrap();
        until("all are offline", async || records().await.len() >= UNITS).await;
        let (stop, service) = self.service;
        stop.cancel();
        service.await.unwrap().unwrap();
        assert_eq!(records().await.len(), UNITS);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_frozen_for_five_timeouts_marks_no_unit_offline() {
    let world = World::new().await;
    world.redis.signal("-STOP");
    world.speaks(MEANWHILE).await;
    world.redis.signal("-CONT");
    world.proves_that_no_unit_went_offline().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_gone_for_five_timeouts_marks_no_unit_offline() {
    let mut world = World::new().await;
    world.redis.kill();
    world.speaks(MEANWHILE).await;
    world.redis.restart();
    world.proves_that_no_unit_went_offline().await;
}

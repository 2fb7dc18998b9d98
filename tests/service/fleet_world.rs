//! Services over a private Redis and Mosquitto, with simulated fleets: for tests that count records after a
//! disturbance.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::OfflineRecord;
use rollcall::simulate::fleet::{self, FleetConfig, FleetProgress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::redis::RedisEngine;
use rollcall::store::{HearingStore, Layout, Queries, UnitStore};
use rollcall::telemetry::Telemetry;
use rollcall::{config, service};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::facts::until;
use crate::support::redis::Redis;

const MAX_WAIT: Duration = Duration::from_secs(120);

/// More records than any of these fleets has.
const MAX_RECORDS: usize = 10_000;

pub struct FleetWorld {
    pub redis: Redis,
    pub broker: Server,
    /// Reads the state of the fleet directly, not through the service.
    pub engine: Arc<RedisEngine>,
    _dir: tempfile::TempDir,
}

impl FleetWorld {
    pub async fn new() -> FleetWorld {
        let dir = tempfile::tempdir().unwrap();
        let broker = Server::mosquitto(dir.path(), free_port().unwrap(), "").unwrap();
        let redis = Redis::start();
        let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::system()))).await;
        FleetWorld { redis, broker, engine, _dir: dir }
    }

    fn broker_url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.broker.port())
    }

    /// Starts a service with these options (TOML) and the addresses of the servers; `engine_url`: the address by which
    /// it reaches Redis.
    pub fn serve(&self, engine_url: &str, options: &str) -> Service {
        let text = format!(
            "engine.url = \"{engine_url}\"\nmqtt.url = \"{}\"\nhttp.listen = \"127.0.0.1:0\"\n{options}",
            self.broker_url()
        );
        let config = config::parse(&text, None, []).unwrap();
        let stop = CancellationToken::new();
        Service { stop: stop.clone(), running: tokio::spawn(service::run(config, stop)) }
    }

    /// Starts a fleet that sends heartbeats until it is dropped.
    pub fn fleet(&self, units: usize, topic: &str, interval: Duration, qos: u8) -> Fleet {
        let config = FleetConfig {
            units,
            topic: topic.to_owned(),
            interval,
            qos,
            connections: 1,
            ..FleetConfig::new(&self.broker_url())
        };
        let (sender, progress) = watch::channel(FleetProgress::default());
        let silence = CancellationToken::new();
        tokio::spawn(fleet::run(config, sender, silence.clone()));
        Fleet { progress, _silence: silence.drop_guard() }
    }

    /// How many units the engine watches; `None` while it does not answer.
    pub async fn units(&self) -> Option<usize> {
        let mut units = 0;
        for partition in 0..self.engine.partitions() {
            units += self.engine.due(partition, None, Timestamp::NEVER, 0, MAX_RECORDS).await.ok()?.len();
        }
        Some(units)
    }

    /// Waits until everything is heard up to `duration` from now: by then every silence so far is recorded.
    pub async fn hears_for(&self, duration: Duration) {
        let enough = Clock::system().now() + duration;
        let heard =
            async || self.engine.hearing().await.ok().and_then(|hearing| hearing.heard).unwrap_or_default();
        until("it hears long enough", async || heard().await > enough).await;
    }

    pub async fn records(&self) -> Vec<OfflineRecord> {
        self.engine.records(false, None, MAX_RECORDS).await.unwrap()
    }
}

pub struct Service {
    stop: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
}

impl Service {
    /// Stops the service in order.
    pub async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
    }

    /// Ends the service like a power cut.
    pub async fn crash(self) {
        self.running.abort();
        assert!(self.running.await.unwrap_err().is_cancelled());
    }
}

pub struct Fleet {
    progress: watch::Receiver<FleetProgress>,
    _silence: DropGuard,
}

impl Fleet {
    /// Waits until the fleet has sent `more` more heartbeats.
    pub async fn sends(&self, more: u64) {
        let mut progress = self.progress.clone();
        let enough = progress.borrow().sent + more;
        let sent = progress.wait_for(|now| now.sent >= enough);
        tokio::time::timeout(MAX_WAIT, sent).await.expect("the fleet sends").unwrap();
    }
}

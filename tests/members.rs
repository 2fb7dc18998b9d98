//! Two whole services that share the fleet: whatever becomes of either, nobody is called offline
//! who speaks, and whoever falls silent is, once.

#[path = "support/facts.rs"]
mod facts;
#[path = "support/redis.rs"]
mod redis;

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::engine::redis::RedisEngine;
use rollcall::engine::{HearingStore, Queries};
use rollcall::simulate::fleet::{self, FleetConfig, Progress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::telemetry::Telemetry;
use rollcall::{config, service};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use facts::until;
use redis::Redis;

const TIMEOUT: Duration = Duration::from_secs(1);
const UNITS: usize = 60;

struct World {
    redis: Redis,
    url: String,
    engine: Arc<RedisEngine>,
    silence: CancellationToken,
    _broker: Server,
    _dir: tempfile::TempDir,
}

struct Service {
    stop: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
}

impl World {
    /// A fleet that speaks all the time.
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let broker = Server::mosquitto(dir.path(), free_port().unwrap(), "").unwrap();
        let url = format!("mqtt://127.0.0.1:{}", broker.port());
        let redis = Redis::start();
        let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::system()))).await;
        let fleet = FleetConfig {
            units: UNITS,
            topic: "units/{unit}/heartbeat".to_owned(),
            interval: TIMEOUT / 4,
            qos: 1,
            ..FleetConfig::new(&url)
        };
        let silence = CancellationToken::new();
        tokio::spawn(fleet::run(fleet, watch::Sender::new(Progress::default()), silence.clone()));
        World { redis, url, engine, silence, _broker: broker, _dir: dir }
    }

    /// One more service, which hears before it is given back.
    async fn serve(&self) -> Service {
        let text = format!(
            r#"
            engine.url = "{}"
            mqtt = {{ url = "{}", share = "all" }}
            http.listen = "127.0.0.1:0"
            hearing.canary_period = "100ms"
            [[kind]]
            name = "detector"
            timeout = "{}s"
            "#,
            self.redis.url(),
            self.url,
            TIMEOUT.as_secs()
        );
        let config = config::parse(&text, None, []).unwrap();
        let stop = CancellationToken::new();
        let members = self.members();
        let service = Service { stop: stop.clone(), running: tokio::spawn(service::run(config, stop)) };
        until("it attends", async || self.members() > members).await;
        self.hears_on().await;
        service
    }

    fn members(&self) -> usize {
        let mut client = self.redis.client();
        ::redis::cmd("HLEN").arg("rollcall:{hearing}:members").query(&mut client).unwrap()
    }

    async fn heard(&self) -> Timestamp {
        self.engine.hearing().await.ok().and_then(|hearing| hearing.heard).unwrap_or_default()
    }

    /// It hears for two timeouts from now on; whoever was to be called offline has been.
    async fn hears_on(&self) {
        let enough = Clock::system().now() + 2 * TIMEOUT;
        until("it hears for two timeouts", async || self.heard().await > enough).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_share_the_fleet_come_crash_and_leave_and_no_living_unit_is_called_offline() {
    let world = World::new().await;
    let mut one = world.serve().await;
    for _ in 0..2 {
        let two = world.serve().await;
        // A power cut of the one, and an orderly end of the other.
        one.running.abort();
        assert!(one.running.await.unwrap_err().is_cancelled());
        until("the broker said so", async || world.members() == 1).await;
        world.hears_on().await;
        one = world.serve().await;
        two.stop.cancel();
        two.running.await.unwrap().unwrap();
        world.hears_on().await;
    }
    let records = async || world.engine.records(false, None, 10 * UNITS).await.unwrap();
    assert_eq!(records().await, []);
    world.silence.cancel();
    until("all are offline", async || records().await.len() >= UNITS).await;
    one.stop.cancel();
    one.running.await.unwrap().unwrap();
    assert_eq!(records().await.len(), UNITS);
}

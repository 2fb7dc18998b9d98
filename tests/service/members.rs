//! Two whole services that share the fleet: whatever becomes of either, nobody is called offline
//! who speaks, and whoever falls silent is, once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::simulate::fleet::{self, FleetConfig, Progress};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::redis::RedisEngine;
use rollcall::store::{HearingStore, Queries};
use rollcall::telemetry::Telemetry;
use rollcall::{config, service};
use rumqttc::{AsyncClient, Event, MqttOptions, Packet, PublishOptions, QoS};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::facts::until;
use crate::support::redis::Redis;

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
async fn services_that_share_the_fleet_start_crash_and_stop_and_no_living_unit_is_marked_offline() {
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

/// The fleet is heard as far as its slowest member. So each must prove as often as the shortest timeout wants that any
/// of them met.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_that_one_unit_declares_speeds_up_the_canaries_of_every_member() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Server::mosquitto(dir.path(), free_port().unwrap(), "").unwrap();
    let redis = Redis::start();
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    for name in ["one", "two"] {
        let text = format!(
            "instance.name = \"{name}\"\nengine.url = \"{}\"\nhttp.listen = \"127.0.0.1:0\"\n\
             mqtt = {{ url = \"mqtt://127.0.0.1:{}\", share = \"all\", client_id = \"{name}\" }}\n",
            redis.url(),
            broker.port()
        );
        let text = text + "[[kind]]\nname = \"detector\"\n";
        tokio::spawn(service::run(config::parse(&text, None, []).unwrap(), stop.clone()));
    }
    let options = MqttOptions::new("device", ("127.0.0.1", broker.port()));
    let (client, mut events) = AsyncClient::builder(options).capacity(100).build();
    client.subscribe("rollcall/canary/+", QoS::AtMostOnce).await.unwrap();
    // Of each member how many canaries in a row were sent sooner after one another than the default has them.
    let mut canaries: BTreeMap<Vec<u8>, (i64, u32)> = BTreeMap::new();
    let listened = async {
        while canaries.len() < 2 || canaries.values().any(|(_, fast)| *fast < 10) {
            let event = events.poll().await.unwrap();
            let Event::Incoming(Packet::Publish(canary)) = event else { continue };
            let said: serde_json::Value = serde_json::from_slice(&canary.payload).unwrap();
            let sent_at = said["sent_at"].as_i64().unwrap();
            let (last, fast) = canaries.entry(canary.topic.to_vec()).or_default();
            *fast = if sent_at - *last < 500 { *fast + 1 } else { 0 };
            *last = sent_at;
            // Again and again: a member asks for its share only when its canary has come back.
            if canaries.len() == 2 {
                let options = PublishOptions::new(QoS::AtLeastOnce);
                client.publish("units/fast/heartbeat", "{\"timeout\":\"2s\"}", options).await.unwrap();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(90), listened).await.expect("canaries of both get faster");
    stop.cancel();
}

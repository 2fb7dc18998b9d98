//! Redis, Mosquitto and processes of Rollcall, each with a directory and ports of its own.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use rollcall::clock::Clock;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::{redis::RedisConfig, redis::RedisEngine};
use rollcall::telemetry::Telemetry;

use super::until;

/// The limits of the shipped file. Without a bound of messages in flight, Mosquitto at times delivers only a third.
const BROKER: &str = "max_inflight_messages 1000\nmax_queued_messages 1000000\nmax_queued_bytes 536870912";

/// The shipped configuration of the service.
const SERVICE: &str = include_str!("../../config/systemd/rollcall.service");

/// Made once: a new client reads the certificates of the machine, which takes longer than a request.
static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(reqwest::Client::new);

/// How long a process may take until it is ready.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// The servers of one benchmark.
pub struct World {
    pub redis: Server,
    pub broker: Server,
    started: u32,
    // The last field, so that the servers have ended when the directory is removed.
    dir: TempDir,
}

impl World {
    /// Fresh servers. Redis has no persistence.
    pub fn new() -> anyhow::Result<World> {
        let dir = TempDir::new()?;
        let redis = Server::redis(&dir.path().join("redis"), free_port()?, &[])?;
        let broker = Server::mosquitto(&dir.path().join("broker"), free_port()?, BROKER)?;
        Ok(World { redis, broker, started: 0, dir })
    }

    /// The address of Redis.
    pub fn redis(&self) -> anyhow::Result<redis::Client> {
        Ok(redis::Client::open(format!("redis://127.0.0.1:{}/?protocol=resp3", self.redis.port()))?)
    }

    /// Replaces the broker by one without sessions.
    pub fn renew_broker(&mut self) -> anyhow::Result<()> {
        self.broker = Server::mosquitto(&self.dir.path().join("broker"), free_port()?, BROKER)?;
        Ok(())
    }

    /// A connection to Redis, as any other client would have.
    pub async fn client(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(self.redis.port()).await
    }

    /// Rollcall's engine within this process.
    pub async fn engine(&self) -> anyhow::Result<Arc<RedisEngine>> {
        let url = format!("redis://127.0.0.1:{}/0", self.redis.port());
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        Ok(Arc::new(RedisEngine::connect(&RedisConfig { url, ..RedisConfig::default() }, telemetry).await?))
    }

    /// Starts a process of Rollcall and waits until it is ready. `options` are added to its configuration.
    pub async fn serve(&mut self, options: &str) -> anyhow::Result<Rollcall> {
        let engine = format!("url = \"redis://127.0.0.1:{}/0\"", self.redis.port());
        self.serve_on(&engine, options).await
    }

    /// Starts a process of Rollcall on another engine, and waits until it is ready.
    pub async fn serve_on(&mut self, engine: &str, options: &str) -> anyhow::Result<Rollcall> {
        self.launch(engine, options)?.until_ready().await
    }

    /// Starts a process of Rollcall to which devices connect, and waits until it is ready.
    pub async fn serve_straight(&mut self, engine: &str, options: &str) -> anyhow::Result<Rollcall> {
        let client_id = format!("mqtt.client_id = \"bench-{}\"", self.started);
        self.launch_with(engine, &client_id, options)?.until_ready().await
    }

    /// Starts a process of Rollcall.
    pub fn launch(&mut self, engine: &str, options: &str) -> anyhow::Result<Rollcall> {
        let url = format!("mqtt://127.0.0.1:{}", self.broker.port());
        let mqtt = format!("mqtt.url = \"{url}\"\nmqtt.client_id = \"bench-{}\"", self.started);
        self.launch_with(engine, &mqtt, options)
    }

    /// Starts a process of Rollcall at brokers with these ports, and waits until it is ready.
    pub async fn serve_at(&mut self, ports: &[u16], options: &str) -> anyhow::Result<Rollcall> {
        let engine = format!("url = \"redis://127.0.0.1:{}/0\"", self.redis.port());
        let broker = |port: &u16| {
            let id = self.started;
            format!("{{ name = \"b{port}\", url = \"mqtt://127.0.0.1:{port}\", client_id = \"bench-{id}\" }}")
        };
        let mqtt = format!("mqtt = [{}]", ports.iter().map(broker).collect::<Vec<_>>().join(", "));
        self.launch_with(&engine, &mqtt, options)?.until_ready().await
    }

    /// One more broker.
    pub fn another_broker(&self) -> anyhow::Result<Server> {
        let port = free_port()?;
        Ok(Server::mosquitto(&self.dir.path().join(format!("broker-{port}")), port, BROKER)?)
    }

    fn launch_with(&mut self, engine: &str, mqtt: &str, options: &str) -> anyhow::Result<Rollcall> {
        self.started += 1;
        let dir = self.dir.path().join(format!("rollcall-{}", self.started));
        let http = free_port()?;
        std::fs::create_dir_all(&dir)?;
        let file = dir.join("rollcall.toml");
        let text = format!(
            "engine = {{ {engine} }}\n{mqtt}\nhttp.listen = \"127.0.0.1:{http}\"\nbreaker.enabled = false\n{options}\n"
        );
        std::fs::write(&file, text)?;
        let file = file.to_string_lossy().into_owned();
        let args = ["-n", niceness()?, env!("CARGO_BIN_EXE_rollcall"), "serve", "--config", &file];
        let server = Server::start("nice", &args.map(str::to_owned), &dir, http, "listening for http")?;
        Ok(Rollcall { server, ready_after: Duration::ZERO })
    }

    /// Switches on Redis's append-only file, and waits until it holds everything.
    pub async fn persist(&self) -> anyhow::Result<()> {
        let mut client = self.client().await?;
        redis::cmd("CONFIG").arg("SET").arg("appendonly").arg("yes").exec_async(&mut client).await?;
        until("redis has written down what it holds", MAX_WAIT, async || {
            let info: String = redis::cmd("INFO").arg("persistence").query_async(&mut client).await?;
            let is_done = |line: &str| info.lines().any(|l| l == line);
            Ok(is_done("aof_rewrite_in_progress:0")
                && is_done("aof_rewrite_scheduled:0")
                && is_done("aof_enabled:1"))
        })
        .await?;
        Ok(())
    }
}

/// A connection to the Redis at a port of this machine.
pub async fn connect(port: u16) -> anyhow::Result<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/?protocol=resp3"))?;
    let patience = redis::AsyncConnectionConfig::new().set_response_timeout(Some(MAX_WAIT));
    Ok(client.get_multiplexed_async_connection_with_config(&patience).await?)
}

/// The niceness of Rollcall as a service of systemd.
fn niceness() -> anyhow::Result<&'static str> {
    SERVICE.lines().find_map(|line| line.strip_prefix("Nice=")).context("a service with a niceness")
}

/// A process of Rollcall, which ends with this value.
pub struct Rollcall {
    pub server: Server,
    /// The time from listening to readiness.
    pub ready_after: Duration,
}

impl Rollcall {
    /// Waits until the process is ready, and measures the time.
    pub async fn until_ready(mut self) -> anyhow::Result<Rollcall> {
        let ready = until("rollcall is ready", MAX_WAIT, async || {
            let answer = CLIENT.get(self.page("/readyz")).send().await;
            Ok(answer.is_ok_and(|answer| answer.status().is_success()))
        });
        self.ready_after = ready.await?;
        Ok(self)
    }

    /// The address of a page of the process.
    pub fn page(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.server.port())
    }

    /// The sum of the series whose lines have this prefix.
    pub async fn metric(&self, begins: &str) -> anyhow::Result<f64> {
        let text = CLIENT.get(self.page("/metrics")).send().await?.text().await?;
        let values = text.lines().filter(|line| line.starts_with(begins)).filter_map(|line| {
            let (_, value) = line.rsplit_once(' ')?;
            value.parse::<f64>().ok()
        });
        Ok(values.sum())
    }

    /// The number of recorded heartbeats.
    pub async fn recorded(&self) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for result in ["new", "refreshed", "back"] {
            sum += self.metric(&format!("rollcall_heartbeats_total{{result=\"{result}\"}}")).await?;
        }
        Ok(sum)
    }
}

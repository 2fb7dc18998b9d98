//! `rollcall demo`: a fleet that lives fast, on private servers, with everything that operators are
//! told on the screen.
//!
//! Redis and Mosquitto are started on free ports of the loopback address, in a directory that goes
//! with the demo. The units, the broker, the engine and the receiver are real; only time is short:
//! five seconds of silence are too many.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tokio::sync::watch;

use super::{logging, signals, simulate};
use crate::config::{self, Config, LogConfig, LogFormat};
use crate::service;
use crate::simulate::fleet::{self, FleetConfig, Progress};
use crate::simulate::servers::{Server, free_port, is_installed};
use crate::simulate::webhook_sink::{Options, WebhookSink};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// How many units.
    #[arg(long, value_name = "COUNT", default_value_t = 40)]
    units: usize,
    /// Where the web server listens, on this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// When to end; without it, when told to.
    #[arg(long, value_name = "SPAN", value_parser = simulate::span)]
    duration: Option<Duration>,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start(&LogConfig { format: LogFormat::Human, level: "warn".into() });
    let stop = signals::stop()?;
    let world = World::start().await?;
    let config = world.config(arguments.listen)?;
    println!("A fleet of {} units; one that is silent for 5 s is offline.", arguments.units);
    println!("Look at http://{}/ and stop with Ctrl-C. What operators are told:", arguments.listen);
    let fleet = fleet::run(world.fleet(&arguments), watch::channel(Progress::default()).0, stop.clone());
    // When one ends, well or not, the other has nothing to do any more.
    let (served, fleet) = tokio::join!(
        async {
            let _stop = stop.clone().drop_guard();
            service::run(config, stop.clone()).await
        },
        async {
            let _stop = stop.clone().drop_guard();
            fleet.await
        }
    );
    served?;
    println!("{} heartbeats were sent.", fleet?.sent);
    Ok(ExitCode::SUCCESS)
}

/// What there is to watch, and where it is told.
struct World {
    redis: Server,
    broker: Server,
    receiver: WebhookSink,
    /// The last one, so that the servers have ended when it is removed.
    _dir: Directory,
}

impl World {
    async fn start() -> anyhow::Result<World> {
        for program in ["redis-server", "mosquitto"] {
            if !is_installed(program) {
                bail!("{program} is not installed; install the package of that name, or use `make demo`");
            }
        }
        let dir = Directory::new().context("no directory for the demo")?;
        let redis = Server::redis(&dir.0.join("redis"), free_port()?, &["--save", "60 1"])?;
        let broker = Server::mosquitto(&dir.0.join("mosquitto"), free_port()?, "")?;
        let options = Options { print: Some(Box::new(|line| println!("  {line}"))), ..Options::default() };
        let receiver = WebhookSink::start(options).await?;
        Ok(World { redis, broker, receiver, _dir: dir })
    }

    fn config(&self, listen: SocketAddr) -> anyhow::Result<Config> {
        let text = format!(
            r#"
            engine.url = "redis://127.0.0.1:{redis}/0"
            mqtt.url = "mqtt://127.0.0.1:{broker}"
            http.listen = "{listen}"
            route = {{ receivers = ["screen"], group_wait = "2s", group_interval = "5s" }}
            [[kind]]
            name = "detector"
            topics = ["sites/{{site}}/{{unit}}/heartbeat"]
            timeout = "5s"
            [[receiver]]
            name = "screen"
            type = "webhook"
            url = "{receiver}"
            "#,
            redis = self.redis.port(),
            broker = self.broker.port(),
            receiver = self.receiver.url(),
        );
        Ok(config::parse(&text, None, [])?)
    }

    /// Units that speak every second and fall silent about once in two minutes.
    fn fleet(&self, arguments: &Arguments) -> FleetConfig {
        FleetConfig {
            units: arguments.units,
            topic: "sites/{site}/{unit}/heartbeat".to_owned(),
            interval: Duration::from_secs(1),
            silence_chance: 0.01,
            silence_for: Duration::from_secs(8)..Duration::from_secs(20),
            duration: arguments.duration,
            ..FleetConfig::new(&format!("mqtt://127.0.0.1:{}", self.broker.port()))
        }
    }
}

/// A directory of its own that goes when the value goes.
struct Directory(PathBuf);

impl Directory {
    fn new() -> io::Result<Directory> {
        let path = std::env::temp_dir().join(format!("rollcall-demo-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&path)?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

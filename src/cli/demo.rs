//! `rollcall demo`: a fleet that lives fast, on private servers, with everything that operators are
//! told on the screen.
//!
//! The units, the broker, the engine and the receivers are real; only time is short: five seconds of
//! silence are too many. About every eight seconds one unit falls silent, however large the fleet
//! is, so that a newcomer sees units go and come back within a minute and can still follow.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::sync::watch;

use super::logging;
use super::signals::{self, HangUp};
use super::simulate::span;
use crate::config::{LogConfig, LogFormat};
use crate::service;
use crate::simulate::fleet::{self, FleetConfig, Progress, Summary};
use screen::Screen;
use world::World;

mod screen;
mod world;

/// The usual port of the web server; the demo takes another where it is taken.
const USUAL_PORT: u16 = 8080;
/// How often each unit speaks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Silences of the whole fleet that begin in one interval, on average.
const SILENCES: f64 = 0.125;
/// How often the screen says how the fleet is.
const NEWS: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// How many units.
    #[arg(long, value_name = "COUNT", default_value_t = 40)]
    units: usize,
    /// What all chance comes from: the same number is the same fleet.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// When to end; without it, when told to.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    duration: Option<Duration>,
    /// Where the web server listens [default: 127.0.0.1:8080, or a free port where that is taken].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    // Whatever a start and a stop warn of is expected here; RUST_LOG shows more.
    logging::start(&LogConfig { format: LogFormat::Human, level: "error".into() });
    let stop = signals::stop(HangUp::Stop)?;
    let screen = Screen::new(stop.clone());
    let listen = free_address(arguments.listen)?;
    let world = World::start(&screen).await?;
    let config = world.config(listen)?;
    screen.welcome(&arguments, listen, world.broker.port());
    let (progress, seen) = watch::channel(Progress::default());
    let fleet = fleet::run(fleet_config(&arguments, world.broker.port()), progress, stop.clone());
    // When one ends, well or not, the others have nothing to do any more.
    let (served, fleet, ()) = tokio::join!(
        async {
            let _stop = stop.clone().drop_guard();
            service::run(config, stop.clone()).await
        },
        async {
            let _stop = stop.clone().drop_guard();
            fleet.await
        },
        follow(seen, &screen),
    );
    served?;
    summarize(&fleet?, &world, &screen);
    Ok(ExitCode::SUCCESS)
}

/// The address that was asked for; else the usual one, or one with a free port where it is taken.
fn free_address(asked_for: Option<SocketAddr>) -> anyhow::Result<SocketAddr> {
    let found = match asked_for {
        Some(address) => TcpListener::bind(address)
            .with_context(|| format!("cannot listen on {address}; choose another --listen"))?,
        None => TcpListener::bind((Ipv4Addr::LOCALHOST, USUAL_PORT))
            .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?,
    };
    Ok(found.local_addr()?)
}

fn fleet_config(arguments: &Arguments, broker: u16) -> FleetConfig {
    FleetConfig {
        units: arguments.units,
        topic: "sites/{site}/{unit}/heartbeat".to_owned(),
        interval: INTERVAL,
        silence_chance: (SILENCES / arguments.units.max(1) as f64).min(1.0),
        silence_for: Duration::from_secs(10)..Duration::from_secs(25),
        seed: arguments.seed,
        duration: arguments.duration,
        ..FleetConfig::new(&format!("mqtt://127.0.0.1:{broker}"))
    }
}

/// Says how the fleet is from time to time, until it has ended.
async fn follow(mut seen: watch::Receiver<Progress>, screen: &Screen) {
    let mut ticks = tokio::time::interval(NEWS);
    ticks.tick().await;
    loop {
        tokio::select! {
            changed = seen.changed() => if changed.is_err() { return },
            _ = ticks.tick() => {
                let now = seen.borrow().clone();
                screen.say(&format!("fleet: {} of {} units are silent; {} heartbeats so far", now.silent, now.total, now.sent));
            }
        }
    }
}

fn summarize(fleet: &Summary, world: &World, screen: &Screen) {
    let ((offline, back), (webhooks, mails)) = (world.told(), world.received());
    screen.say(&format!(
        "the fleet has ended after {:.0} s and {} heartbeats; operators were told of {offline} silences and {back} \
         returns, in {webhooks} webhooks and {mails} mails",
        fleet.took.as_secs_f64(),
        fleet.sent,
    ));
}

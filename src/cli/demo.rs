//! `rollcall demo`: a fleet that lives fast, watched by a whole Rollcall, in one process and with nothing
//! else installed.
//!
//! The service is the one that `rollcall serve` runs, on the embedded engine and with the broker within;
//! heartbeats and webhooks go over real sockets of the loopback address. Only time is short: five
//! seconds of silence are too many. About every eight seconds one unit falls silent, however large the
//! fleet is, and a site loses power early, so that a newcomer sees all of it within a minute and can
//! still follow.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::logging;
use super::signals::{self, HangUp};
use super::simulate::span;
use crate::service;
use crate::simulate::fleet::{self, FleetConfig, PowerCuts, Progress, Summary};
use screen::Screen;
use world::World;

mod screen;
mod story;
mod told;
mod world;

/// The port of the broker, if it is free.
const BROKER_PORT: u16 = 1883;
/// Over how many sites the fleet is spread.
const SITES: usize = 5;
/// How often each unit speaks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Silences of the whole fleet that begin in one interval, on average.
const SILENCES: f64 = 0.125;
/// How long the service may take until it hears the fleet.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is asked meanwhile.
const ASK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// How many units, up to 100000.
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    units: usize,
    /// Where the web server listens on 127.0.0.1; a port in use is replaced by a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// What all chance comes from: the same number is the same fleet.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// When to end; without it, when told to.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    duration: Option<Duration>,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    // Whatever a start and a stop warn of is expected here; RUST_LOG shows more.
    ensure!(
        cfg!(feature = "broker"),
        "the demo needs the in-process broker; build rollcall with the feature `broker`"
    );
    logging::start_quietly()?;
    let stop = signals::stop(HangUp::Stop)?;
    let screen = Screen::new(stop.clone());
    let world = World::prepare(arguments.port, BROKER_PORT, &screen).await?;
    let fleet = fleet_config(&arguments, world.broker.found);
    // The fleet ends first: its farewell needs a broker.
    let serving = CancellationToken::new();
    let (served, lived) = tokio::join!(
        async {
            let _stop = stop.clone().drop_guard();
            service::run(world.config()?, serving.clone()).await
        },
        async {
            let _serving = serving.clone().drop_guard();
            live(fleet, &world, &screen, &stop).await
        },
    );
    served?;
    if let Some(lived) = lived? {
        screen.farewell(&world, &lived);
    }
    Ok(ExitCode::SUCCESS)
}

fn fleet_config(arguments: &Arguments, broker: u16) -> FleetConfig {
    let sites = SITES.min(arguments.units);
    FleetConfig {
        units: arguments.units,
        sites,
        topic: "sites/{site}/{unit}/heartbeat".to_owned(),
        interval: INTERVAL,
        silence_chance: (SILENCES / arguments.units as f64).min(1.0),
        silence_for: Duration::from_secs(10)..Duration::from_secs(25),
        power_cuts: Some(PowerCuts {
            site: (arguments.seed % sites as u64) as usize,
            first: Duration::from_secs(15),
            lasts: Duration::from_secs(15),
            every: Duration::from_secs(120),
        }),
        seed: arguments.seed,
        duration: arguments.duration,
        ..FleetConfig::new(&format!("mqtt://127.0.0.1:{broker}"))
    }
}

/// Lets the fleet live until `stop` or for its time; `None` if it was stopped before it began.
async fn live(
    fleet: FleetConfig,
    world: &World,
    screen: &Screen,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Summary>> {
    match stop.run_until_cancelled(ready(world)).await {
        None => return Ok(None),
        Some(ready) => ready?,
    }
    screen.welcome(world, &fleet);
    let (progress, seen) = watch::channel(Progress::default());
    let ending = stop.child_token();
    let story = ending.run_until_cancelled(story::tell(&fleet, seen, screen));
    let (lived, _) = tokio::join!(
        async {
            let _ending = ending.clone().drop_guard();
            fleet::run(fleet.clone(), progress, stop.clone()).await
        },
        story,
    );
    lived.map(Some)
}

/// Waits until the service hears the fleet.
async fn ready(world: &World) -> anyhow::Result<()> {
    let page = format!("http://{}/readyz", world.web.address());
    let client = reqwest::Client::builder().no_proxy().build().context("no HTTP client")?;
    let asking = async {
        while !client.get(&page).send().await.is_ok_and(|answer| answer.status().is_success()) {
            tokio::time::sleep(ASK).await;
        }
    };
    if tokio::time::timeout(PATIENCE, asking).await.is_err() {
        bail!("the service did not begin to work within {} s; RUST_LOG=info says more", PATIENCE.as_secs());
    }
    Ok(())
}

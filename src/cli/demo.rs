//! `rollcall demo`: a simulated fleet with short timeouts and a whole Rollcall, in one process and with nothing else
//! installed.
//!
//! The demo runs the same service as `rollcall serve`, on the embedded engine and with the in-process broker;
//! heartbeats and webhooks go over real sockets of the loopback address. Only times are short: the timeout is five
//! seconds. About every eight seconds one unit falls silent, whatever the size of the fleet, and a site loses power
//! early: a new user sees everything within a minute, and can still follow.

use std::io;
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
use crate::http::Switches;
use crate::service;
use crate::simulate::fleet::{self, FleetConfig, FleetProgress, PowerCuts, Summary};
use output::DemoOutput;
use setup::DemoSetup;

mod events;
mod notification;
mod output;
mod setup;

/// The port of the broker, if it is free.
const BROKER_PORT: u16 = 1883;
/// How often free ports are searched for.
const MAX_ATTEMPTS: u32 = 3;
const SITES: usize = 5;
/// The time between two heartbeats of a unit.
const INTERVAL: Duration = Duration::from_secs(1);
/// Silences of the whole fleet that begin in one interval, on average.
const SILENCES: f64 = 0.125;
/// How long the service may take until it hears the fleet.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How often its readiness is polled meanwhile.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// The number of units, up to 100000.
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    units: usize,
    /// The port of the web server on 127.0.0.1; if it is in use, a free one is taken.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// The seed of all random numbers: the same number gives the same fleet.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// How long to run; by default until Ctrl-C.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    duration: Option<Duration>,
}

pub(super) async fn run(arguments: DemoArguments) -> anyhow::Result<ExitCode> {
    ensure!(
        cfg!(feature = "broker"),
        "the demo needs the in-process broker; build rollcall with the feature `broker`"
    );
    // Warnings at the start and the stop are expected here; RUST_LOG shows more.
    logging::start_quietly()?;
    let stop = signals::stop(HangUp::Stop)?;
    // Another program may take a port after it was found to be free.
    for _ in 1..MAX_ATTEMPTS {
        match show(&arguments, stop.child_token()).await {
            Err(error) if is_address_in_use(&error) && !stop.is_cancelled() => {}
            ended => return ended,
        }
    }
    show(&arguments, stop).await
}

fn is_address_in_use(error: &anyhow::Error) -> bool {
    let is_in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_in_use))
}

/// Shows the fleet until `stop`, or for its duration.
async fn show(arguments: &DemoArguments, stop: CancellationToken) -> anyhow::Result<ExitCode> {
    let output = DemoOutput::new(stop.clone());
    let printer = output.clone();
    let print = move |received: &_| notification::lines(received).iter().for_each(|line| printer.line(line));
    let setup = DemoSetup::prepare(arguments.port, BROKER_PORT, Box::new(print)).await?;
    let fleet = fleet_config(arguments, setup.broker.found);
    let switches = Switches::new((0..fleet.sites).map(|site| fleet.site_name(site)));
    let fleet = FleetConfig { switched_off: switches.off(), ..fleet };
    // The fleet ends first: to disconnect it needs a broker.
    let serving = CancellationToken::new();
    let (served, simulated) = tokio::join!(
        async {
            let _stop = stop.clone().drop_guard();
            service::run(setup.config(switches)?, serving.clone()).await
        },
        async {
            let _serving = serving.clone().drop_guard();
            simulate(fleet, &setup, &output, &stop).await
        },
    );
    served?;
    if let Some(summary) = simulated? {
        output.summary(&setup, &summary);
    }
    Ok(ExitCode::SUCCESS)
}

fn fleet_config(arguments: &DemoArguments, broker: u16) -> FleetConfig {
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

/// Simulates the fleet until `stop` or for its duration; `None` if `stop` came before the fleet began.
async fn simulate(
    fleet: FleetConfig,
    setup: &DemoSetup,
    output: &DemoOutput,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Summary>> {
    match stop.run_until_cancelled(ready(setup)).await {
        None => return Ok(None),
        Some(ready) => ready?,
    }
    output.welcome(setup, &fleet);
    let (progress, seen) = watch::channel(FleetProgress::default());
    let ending = stop.child_token();
    let events = ending.run_until_cancelled(events::print(&fleet, seen, output));
    let (summary, _) = tokio::join!(
        async {
            let _ending = ending.clone().drop_guard();
            fleet::run(fleet.clone(), progress, stop.clone()).await
        },
        events,
    );
    summary.map(Some)
}

/// Waits until the service hears the fleet.
async fn ready(setup: &DemoSetup) -> anyhow::Result<()> {
    let page = format!("http://{}/readyz", setup.web.address());
    let client = reqwest::Client::builder().no_proxy().build().context("no HTTP client")?;
    let asking = async {
        while !client.get(&page).send().await.is_ok_and(|answer| answer.status().is_success()) {
            tokio::time::sleep(POLL).await;
        }
    };
    if tokio::time::timeout(START_TIMEOUT, asking).await.is_err() {
        bail!("the service was not ready within {} s; RUST_LOG=info says more", START_TIMEOUT.as_secs());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_told_from_other_failures() {
        let failed = |kind| anyhow::Error::from(io::Error::from(kind)).context("the broker cannot listen");
        assert!(is_address_in_use(&failed(io::ErrorKind::AddrInUse)));
        assert!(!is_address_in_use(&failed(io::ErrorKind::PermissionDenied)));
    }
}

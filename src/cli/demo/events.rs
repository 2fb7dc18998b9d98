//! The events of the fleet, printed when they happen: the reader sees them before Rollcall detects them.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{interval, sleep_until};

use super::output::DemoOutput;
use crate::clock::monotonic;
use crate::simulate::fleet::{FleetConfig, FleetEvent, FleetEvents, FleetProgress};

/// How often the state of the fleet is printed.
const STATUS_INTERVAL: Duration = Duration::from_secs(20);

/// Prints events until it is dropped.
pub(super) async fn print(
    fleet: &FleetConfig,
    mut progress: watch::Receiver<FleetProgress>,
    output: &DemoOutput,
) {
    let began = monotonic();
    let mut status = interval(STATUS_INTERVAL);
    status.tick().await;
    for (at, event) in FleetEvents::new(fleet) {
        loop {
            tokio::select! {
                () = sleep_until((began + at).into()) => break,
                _ = status.tick() => output.line(&describe_status(&progress.borrow_and_update())),
            }
        }
        output.line(&describe(fleet, event));
    }
}

fn describe_status(fleet: &FleetProgress) -> String {
    format!("fleet  silent: {} of {} units; {} heartbeats so far", fleet.silent, fleet.total, fleet.sent)
}

fn describe(fleet: &FleetConfig, event: FleetEvent) -> String {
    let unit = |number| format!("fleet  {} at {}", fleet.unit(number), fleet.site_name(fleet.site(number)));
    match event {
        FleetEvent::FallsSilent(number) => format!("{} falls silent", unit(number)),
        FleetEvent::IsBack(number) => format!("{} is back", unit(number)),
        FleetEvent::LosesPower(site) => format!("fleet  {} loses power", fleet.site_name(site)),
        FleetEvent::HasPower(site) => format!("fleet  {} has power again", fleet.site_name(site)),
    }
}

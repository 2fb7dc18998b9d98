//! What happens to the fleet, said at the moment it does, so that whoever watches knows before Rollcall
//! what it has to find out.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until};

use super::screen::Screen;
use crate::simulate::fleet::{FleetConfig, FleetEvent, Plan, Progress};

/// How often the screen says how the fleet is.
const NEWS: Duration = Duration::from_secs(20);

/// Tells it until it is dropped.
pub(super) async fn tell(fleet: &FleetConfig, mut progress: watch::Receiver<Progress>, screen: &Screen) {
    let began = Instant::now();
    let mut news = interval(NEWS);
    news.tick().await;
    for (at, event) in Plan::new(fleet) {
        loop {
            tokio::select! {
                () = sleep_until(began + at) => break,
                _ = news.tick() => screen.say(&standing(&progress.borrow_and_update())),
            }
        }
        screen.say(&describe(fleet, event));
    }
}

fn standing(fleet: &Progress) -> String {
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

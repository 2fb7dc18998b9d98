//! What the demo shows: one line for each thing that happens, with its time.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::world::{TIMEOUT, World};
use crate::clock::Clock;
use crate::presence::Shown;
use crate::simulate::fleet::{FleetConfig, Summary};

/// Standard output. When nobody reads it any more, the demo ends.
#[derive(Clone)]
pub(super) struct Screen(Arc<(Clock, CancellationToken)>);

impl Screen {
    pub fn new(stop: CancellationToken) -> Screen {
        Screen(Arc::new((Clock::system(), stop)))
    }

    /// A line with its time.
    pub fn say(&self, text: &str) {
        self.print(&format!("{}  {}", self.time(), Shown(text)));
    }

    /// What runs, where it is to be seen, and what to try.
    pub fn welcome(&self, world: &World, fleet: &FleetConfig) {
        for (port, whose) in [(world.web, "the web server"), (world.broker, "the broker")] {
            if port.is_another() {
                self.print(&format!("Port {} is taken; {whose} listens on {}.", port.wanted, port.found));
            }
        }
        let (units, sites, timeout) = (fleet.units, fleet.sites, TIMEOUT.as_secs());
        let cut = fleet.power_cuts.map_or(Duration::ZERO, |cuts| cuts.first).as_secs();
        let (web, broker) = (world.web.address(), world.broker.found);
        self.print(&format!(
            "\nRollcall watches {units} simulated units at {sites} sites. Each sends a heartbeat every second; who is \
             silent\nfor {timeout} s is offline. Now and then a unit falls silent, and in {cut} s a site loses power \
             for a while.\n\n\
             \x20 see        http://{web}/                           how the fleet is\n\
             \x20            http://{web}/api/v1/records?open=true   who is offline\n\
             \x20            http://{web}/metrics                    for Prometheus; each unit: /metrics/units\n\
             \x20 be a unit  mosquitto_pub -h 127.0.0.1 -p {broker} -t sites/north/mine/heartbeat -m '{{}}'\n\
             \x20            and do not send again: {timeout} s later it is offline\n\
             \x20 stop       Ctrl-C; the fleet is in {dir} until then\n\n\
             What happens to the fleet, and what operators are told (times are UTC):\n",
            dir = world.directory.path().display(),
        ));
    }

    /// What was told, and where things were.
    pub fn farewell(&self, world: &World, fleet: &Summary) {
        let told = world.told();
        self.print(&format!(
            "\nThe fleet sent {} heartbeats in {:.0} s. Operators were told of {} silences and {} returns, by {} \
             webhooks.",
            fleet.sent,
            fleet.took.as_secs_f64(),
            told.silences,
            told.returns,
            told.notifications,
        ));
        let dir = world.directory.path().display();
        self.print(&match world.directory.remove() {
            Ok(()) => format!("All of it was in {dir}, which is removed."),
            Err(error) => format!("All of it is in {dir}, which could not be removed: {error}."),
        });
    }

    /// Hours, minutes and seconds of now.
    fn time(&self) -> String {
        let now = self.0.0.now().to_string();
        now.get(11..19).unwrap_or_default().to_owned()
    }

    fn print(&self, text: &str) {
        let mut out = stdout().lock();
        if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
            self.0.1.cancel();
        }
    }
}

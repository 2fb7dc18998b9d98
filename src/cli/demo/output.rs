//! The output of the demo: one line for each event, with its time.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::setup::{DemoSetup, TIMEOUT};
use crate::clock::Clock;
use crate::presence::Shown;
use crate::simulate::fleet::{FleetConfig, Summary};

/// Standard output. When its reader is gone, the demo ends.
#[derive(Clone)]
pub(super) struct DemoOutput(Arc<(Clock, CancellationToken)>);

impl DemoOutput {
    pub fn new(stop: CancellationToken) -> DemoOutput {
        DemoOutput(Arc::new((Clock::system(), stop)))
    }

    /// Prints a line with the time.
    pub fn line(&self, text: &str) {
        self.print(&format!("{}  {}", self.time(), Shown(text)));
    }

    /// Prints the running parts, their addresses, and commands to try.
    pub fn welcome(&self, setup: &DemoSetup, fleet: &FleetConfig) {
        self.print(&format!(
            "http://{}/ shows the fleet: units by state, silent units, and since when they are silent.",
            setup.web.address()
        ));
        for (port, server) in [(setup.web, "the web server"), (setup.broker, "the broker")] {
            if port.is_another() {
                self.print(&format!("Port {} is in use; {server} listens on {}.", port.wanted, port.found));
            }
        }
        let (units, sites, timeout) = (fleet.units, fleet.sites, TIMEOUT.as_secs());
        let cut = fleet.power_cuts.map_or(Duration::ZERO, |cuts| cuts.first).as_secs();
        let (web, broker) = (setup.web.address(), setup.broker.found);
        self.print(&format!(
            "\nRollcall watches {units} simulated units at {sites} sites. Each sends a heartbeat every second; a unit \
             that is silent\nfor {timeout} s is offline. Now and then a unit falls silent, and in {cut} s a site loses \
             power for a while.\n\n\
             \x20 see        http://{web}/                           the fleet\n\
             \x20            http://{web}/api/v1/records?open=true   offline units\n\
             \x20            http://{web}/metrics                    for Prometheus; each unit: /metrics/units\n\
             \x20 be a unit  mosquitto_pub -h 127.0.0.1 -p {broker} -t sites/north/mine/heartbeat -m '{{}}'\n\
             \x20            and do not send again: {timeout} s later it is offline\n\
             \x20 stop       Ctrl-C; the fleet is in {dir} until then\n\n\
             Events of the fleet, and alerts to operators (times are UTC):\n",
            dir = setup.directory.path().display(),
        ));
    }

    /// Prints the number of notifications, and removes the directory.
    pub fn summary(&self, setup: &DemoSetup, fleet: &Summary) {
        let counts = setup.notifications();
        self.print(&format!(
            "\nThe fleet sent {} heartbeats in {:.0} s. Receivers were notified of {} silences and {} returns in {} \
             notifications.",
            fleet.sent,
            fleet.took.as_secs_f64(),
            counts.silences,
            counts.returns,
            counts.notifications,
        ));
        let dir = setup.directory.path().display();
        self.print(&match setup.directory.remove() {
            Ok(()) => format!("The directory {dir} is removed."),
            Err(error) => format!("The directory {dir} could not be removed: {error}."),
        });
    }

    /// Hours, minutes and seconds.
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

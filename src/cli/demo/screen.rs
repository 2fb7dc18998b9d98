//! What the demo shows: one line for each thing that happens, with its time.

use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Arguments, USUAL_PORT};
use crate::clock::Clock;
use crate::simulate::webhook_sink::Printer;

/// Standard output. When nobody reads it any more, the demo ends.
#[derive(Clone)]
pub(super) struct Screen(Arc<(Clock, CancellationToken)>);

impl Screen {
    pub fn new(stop: CancellationToken) -> Screen {
        Screen(Arc::new((Clock::system(), stop)))
    }

    /// A line with its time.
    pub fn say(&self, text: &str) {
        self.print(&format!("{}  {text}", self.time()));
    }

    /// Prints what a receiver is told.
    pub fn printer(&self) -> Printer {
        let screen = self.clone();
        Box::new(move |line| screen.say(line))
    }

    /// What is to be seen here, and what to try.
    pub fn welcome(&self, arguments: &Arguments, listen: SocketAddr, broker: u16) {
        let units = arguments.units;
        self.print(&format!(
            "\nA fleet of {units} units; each sends a heartbeat every second, and one that is silent for 5 s is \
             offline.\nNow and then a unit falls silent, and is back 10 to 25 s later.\n"
        ));
        if arguments.listen.is_none() && listen.port() != USUAL_PORT {
            self.print(&format!(
                "Port {USUAL_PORT} is taken; the web server listens on {}.\n",
                listen.port()
            ));
        }
        self.print(&format!(
            "  see        http://{listen}/               how the fleet is\n\
             \x20            http://{listen}/metrics        for Prometheus: the fleet\n\
             \x20            http://{listen}/metrics/units  for Prometheus: every unit\n\
             \x20 be a unit  mosquitto_pub -p {broker} -t sites/north/mine/heartbeat -m '{{}}'\n\
             \x20            and do not send again: 5 s later it is offline\n\
             \x20 stop       Ctrl-C; nothing is left behind\n\n\
             What operators are told, by webhook and by mail (times are UTC):\n"
        ));
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

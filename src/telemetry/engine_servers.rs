//! The servers of the engine, and whether each of them answers: `rollcall_engine_up`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::IntGaugeVec;

use crate::clock::monotonic;

/// How long a server counts as down after it refused a command: its callers retry meanwhile.
const REFUSED: Duration = Duration::from_secs(10);

/// Whether a server answered its last call, and when it last refused a command. Its connections set this at every call,
/// so it is not a metric.
#[derive(Clone, Debug)]
pub struct ServerAnswers(Arc<EngineServer>);

#[derive(Debug)]
struct EngineServer {
    answers: AtomicBool,
    refused: Mutex<Option<Instant>>,
}

impl Default for ServerAnswers {
    fn default() -> ServerAnswers {
        ServerAnswers(Arc::new(EngineServer { answers: AtomicBool::new(true), refused: Mutex::default() }))
    }
}

impl ServerAnswers {
    pub fn set(&self, answers: bool) {
        self.0.answers.store(answers, Ordering::Relaxed);
    }

    /// The server refused a command, and would refuse it again.
    pub fn refuse(&self) {
        *self.0.refused.lock() = Some(monotonic());
    }

    fn get(&self, now: Instant) -> bool {
        let refused = *self.0.refused.lock();
        self.0.answers.load(Ordering::Relaxed) && refused.is_none_or(|at| now.duration_since(at) >= REFUSED)
    }
}

pub(super) struct EngineServers {
    /// No essential loop fails.
    is_up: AtomicBool,
    servers: Mutex<Vec<(String, ServerAnswers)>>,
}

/// The label while no server is known. Prometheus treats an empty label as absent.
const UNKNOWN: &str = "";

impl EngineServers {
    pub fn at_start() -> EngineServers {
        EngineServers { is_up: AtomicBool::new(false), servers: Mutex::default() }
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    pub fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::Relaxed);
    }

    /// Replaces the servers, and removes the series of servers that are gone.
    pub fn replace(&self, gauge: &IntGaugeVec, servers: Vec<(String, ServerAnswers)>) {
        let mut before = self.servers.lock();
        let known = before.iter().map(|(address, _)| address.as_str()).chain([UNKNOWN]);
        for address in known.filter(|known| servers.iter().all(|(address, _)| address != known)) {
            // An error means that the series does not exist, which is fine.
            let _ = gauge.remove_label_values(&[address]);
        }
        *before = servers;
    }

    /// Sets the series. If a loop fails, the servers that do not answer or refuse a command are down; without such a
    /// server, all are down.
    pub fn count(&self, gauge: &IntGaugeVec) {
        let servers = self.servers.lock();
        let now = monotonic();
        let all_answer = servers.iter().all(|(_, answers)| answers.get(now));
        let is_up = self.is_up();
        if servers.is_empty() {
            gauge.with_label_values(&[UNKNOWN]).set(is_up.into());
        }
        for (address, answers) in servers.iter() {
            let is_up = answers.get(now) && (is_up || !all_answer);
            gauge.with_label_values(&[address]).set(is_up.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::ServerAnswers;
    use crate::clock::{Clock, Timestamp};
    use crate::telemetry::{Loop, Telemetry};

    fn up(telemetry: &Telemetry) -> BTreeMap<String, bool> {
        let families = telemetry.gather();
        let family = families.iter().find(|family| family.name() == "rollcall_engine_up").unwrap();
        let series = family.get_metric().iter();
        series
            .map(|one| (one.get_label()[0].value().to_owned(), one.get_gauge().get_value() == 1.0))
            .collect()
    }

    fn of(expected: &[(&str, bool)]) -> BTreeMap<String, bool> {
        expected.iter().map(|(server, is_up)| ((*server).to_owned(), *is_up)).collect()
    }

    #[test]
    fn each_server_has_a_series_as_long_as_it_is_used() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        assert_eq!(up(&telemetry), of(&[("", false)]));
        let (one, other) = (ServerAnswers::default(), ServerAnswers::default());
        telemetry.engine_servers(vec![("one".into(), one.clone()), ("other".into(), other.clone())]);
        assert_eq!(up(&telemetry), of(&[("one", false), ("other", false)]));
        telemetry.engine_answered(Loop::Sweep, "");
        assert_eq!(up(&telemetry), of(&[("one", true), ("other", true)]));
        other.set(false);
        assert_eq!(up(&telemetry), of(&[("one", true), ("other", false)]));
        telemetry.engine_failed(Loop::Sweep, "", &"other does not answer");
        assert_eq!(up(&telemetry), of(&[("one", true), ("other", false)]));
        telemetry.engine_servers(vec![("one".into(), one)]);
        assert_eq!(up(&telemetry), of(&[("one", false)]), "it refuses something");
        telemetry.engine_answered(Loop::Sweep, "");
        assert_eq!(up(&telemetry), of(&[("one", true)]));
    }

    #[test]
    fn a_server_that_refuses_commands_is_down_and_the_others_are_not() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        let (one, other) = (ServerAnswers::default(), ServerAnswers::default());
        telemetry.engine_servers(vec![("one".into(), one.clone()), ("other".into(), other.clone())]);
        telemetry.engine_answered(Loop::Sweep, "");
        other.refuse();
        // The server still answers commands that it does not refuse.
        other.set(true);
        telemetry.engine_failed(Loop::Sweep, "", &"other is full");
        assert_eq!(up(&telemetry), of(&[("one", true), ("other", false)]));
    }
}

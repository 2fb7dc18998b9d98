//! Metrics, log and problems: one method per fact, which counts it and, if an operator should know, logs it.
//!
//! Handed in, never global. Labels come from enums and from the configuration, never from devices, so the number of
//! series is bounded. The methods are in files by the module that calls them.
//!
//! The module also stores the current problems, so that `/readyz` agrees with metrics and log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64};

use parking_lot::Mutex;
use prometheus::Registry;

mod configuration;
mod engine;
mod engine_servers;
mod fleet;
mod hearing;
mod heartbeats;
mod history;
mod http;
mod labels;
mod log_limit;
mod mqtt;
mod orphans_text;
mod problems;
mod process;
mod receivers;
mod removed_kinds_text;
mod sampler;
mod series;
mod short_failures;
mod snapshot;
mod timer_requests;
mod timers;
mod transitions;
mod two_places;
mod unknown_topics;
mod unreadable;

use engine_servers::EngineServers;
pub use engine_servers::ServerAnswers;
pub use labels::{
    AnnouncementOutcome, BrokerRefusal, CheckOutcome, CheckSource, ConnectionLoss, CutReason,
    DeliveryOutcome, EngineWarning, Loop, PayloadIssue, PublishedOutcome, Rejection, Stored, TimerOutcome,
    ValueOutcome,
};
pub use log_limit::LogLimit;
pub use orphans_text::{Backlog, orphans_text};
pub use problems::{Consequence, HealthProblem, NOT_HEARING, PROBLEMS_OF_IDS, Severity};
use problems::{NOT_DELIVERED, OpenProblems};
pub use receivers::Unreached;
pub use removed_kinds_text::removed_kinds_text;
use sampler::Sampler;
use series::Series;
pub use short_failures::LoopFailure;
use short_failures::ShortFailures;
use two_places::TwoPlaces;
use unknown_topics::SharedTopicList;
pub use unknown_topics::{UnknownTopic, UnknownTopics};
use unreadable::UnreadableValues;

use crate::clock::{Clock, monotonic};

/// The longest text from a device that the log shows, in characters.
pub const MAX_SHOWN: usize = 200;

pub struct Telemetry {
    registry: Registry,
    series: Series,
    samples: Sampler,
    unreadable: UnreadableValues,
    two_places: TwoPlaces,
    blocking_values: ShortFailures,
    passing: ShortFailures,
    clock: Clock,
    problems: OpenProblems,
    engine_servers: EngineServers,
    /// Limits the log lines about units that went offline.
    offline_log: Mutex<LogLimit>,
    /// Limits the log lines about new units.
    new_log: Mutex<LogLimit>,
    /// Limits the log lines about units that are back.
    online_log: Mutex<LogLimit>,
    has_heard: AtomicBool,
    /// The moment up to which blind time is counted, in milliseconds.
    blind_until: AtomicI64,
    /// By broker and kind: the filters that are not heard.
    unheard: Mutex<BTreeMap<String, BTreeMap<String, BTreeSet<String>>>>,
    /// By broker: the filters on which it lets Rollcall publish no probe.
    unproved: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// The labels and values that have series.
    labels_counted: Mutex<BTreeSet<(String, String)>>,
    topics_of_no_kind: SharedTopicList,
}

impl Telemetry {
    /// A registry with every metric at zero.
    pub fn new(clock: &Clock) -> Telemetry {
        let registry = Registry::new();
        Telemetry {
            series: Series::new(&registry),
            registry,
            samples: Sampler::new(clock.clone()),
            unreadable: UnreadableValues::new(clock.clone()),
            two_places: TwoPlaces::new(clock.clone()),
            blocking_values: ShortFailures::new(clock.clone()),
            passing: ShortFailures::new(clock.clone()),
            clock: clock.clone(),
            problems: OpenProblems::at_start(),
            engine_servers: EngineServers::at_start(),
            offline_log: Mutex::new(LogLimit::new(monotonic())),
            new_log: Mutex::new(LogLimit::new(monotonic())),
            online_log: Mutex::new(LogLimit::new(monotonic())),
            has_heard: AtomicBool::new(false),
            blind_until: AtomicI64::new(0),
            unheard: Mutex::default(),
            unproved: Mutex::default(),
            labels_counted: Mutex::default(),
            topics_of_no_kind: SharedTopicList::default(),
        }
    }

    /// Every metric, for the metrics page.
    pub fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.count_unreadable();
        self.count_two_places();
        self.engine_servers.count(&self.series.engine_up);
        self.registry.gather()
    }

    /// The current problems, the serious ones first.
    pub fn problems(&self) -> Vec<HealthProblem> {
        self.count_unreadable();
        self.count_two_places();
        self.problems.list()
    }

    /// Returns whether the engine or a broker is down: the log then omits the consequences.
    pub fn is_dependency_down(&self) -> bool {
        self.problems.has_outage()
    }

    /// The problems that keep Rollcall from its work, or a notification from its receiver.
    pub fn failures(&self) -> Vec<HealthProblem> {
        let mut problems = self.problems();
        problems.retain(|one| one.severity == Severity::Serious || one.name == NOT_DELIVERED);
        problems
    }
}

/// The first `length` characters of a text.
pub fn truncate(text: &str, length: usize) -> &str {
    text.char_indices().nth(length).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::problems::{ENGINE_DOWN, MQTT_DISCONNECTED, NOT_HEARING};
    use super::*;
    use crate::clock::Timestamp;
    use crate::presence::State;

    fn names(telemetry: &Telemetry) -> Vec<&'static str> {
        telemetry.problems().iter().map(|problem| problem.name).collect()
    }

    #[test]
    fn each_part_is_a_problem_until_it_has_worked_once() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        assert_eq!(names(&telemetry), [ENGINE_DOWN, MQTT_DISCONNECTED, NOT_HEARING]);
        telemetry.engine_answered(Loop::Sweep, "");
        telemetry.mqtt_connected(("main", "main"), "mqtt://127.0.0.1");
        telemetry.blind(false, Some(Timestamp::ZERO));
        assert_eq!(telemetry.problems(), []);
    }

    /// The limit in docs/metrics.md: for a large site, and for each further receiver and kind.
    #[test]
    fn a_service_of_eleven_kinds_and_five_receivers_has_fewer_than_500_series() {
        let large = series_of(11, 5);
        assert!(large < 500, "{large} series");
        let (receiver, kind) = (series_of(11, 6) - large, series_of(12, 5) - large);
        assert!(receiver <= 20 && kind <= 15, "{receiver} for a receiver, {kind} for a kind");
    }

    fn series_of(kinds: usize, receivers: usize) -> usize {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        let values =
            ["site", "row"].map(|label| (0..6).map(move |value| (label.to_owned(), value.to_string())));
        telemetry.units_by_label(values.into_iter().flatten().map(|both| (both, [1; 6])).collect());
        for connection in ["main", "second", "third", "fourth"] {
            telemetry.connection_configured("main", connection);
        }
        for receiver in 0..receivers {
            telemetry.receiver_configured(&format!("receiver-{receiver}"));
        }
        for kind in 0..kinds {
            let kind = format!("kind-{kind}");
            State::ALL.iter().for_each(|state| telemetry.units(&kind, state.as_str(), 1));
            telemetry.silent_since(&kind, Some(Timestamp::ZERO));
            telemetry.filter_configured("main", &format!("{kind}/+"), &[&kind], String::new());
        }
        telemetry.sweep_configured();
        telemetry.mirror_age(Some(Duration::ZERO));
        telemetry.silences((1..=8).map(|hours| (Duration::from_secs(hours), 1)), 1, Duration::ZERO);
        let text = prometheus::TextEncoder::new().encode_to_string(&telemetry.gather()).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).count()
    }

    #[test]
    fn counters_and_only_counters_end_in_total() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.receiver_configured("hook");
        telemetry.sweep_configured();
        let families = telemetry.gather();
        assert!(families.len() > 25, "{}", families.len());
        for family in families {
            let is_counter = family.get_field_type() == prometheus::proto::MetricType::COUNTER;
            assert_eq!(family.name().ends_with("_total"), is_counter, "{}", family.name());
        }
    }

    /// Otherwise the value 0 would mean a moment in 1970, or a mirror that was just compared.
    #[test]
    fn a_gauge_without_a_value_has_no_series() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        let shown = |name: &str| telemetry.gather().iter().any(|family| family.name() == name);
        for name in ["rollcall_oldest_outage_timestamp_seconds", "rollcall_mirror_age_seconds"] {
            assert!(!shown(name), "{name}");
            telemetry.silent_since("detector", Some(Timestamp::ZERO));
            telemetry.mirror_age(Some(Duration::ZERO));
            assert!(shown(name), "{name}");
            telemetry.silent_since("detector", None);
            telemetry.mirror_age(None);
            assert!(!shown(name), "{name}");
        }
    }
}

//! What Rollcall tells of itself: one method per fact, which counts it and, where a person should
//! know, logs it.
//!
//! Handed in, never global. Labels come from enums and from the configuration, never from devices,
//! so the number of series is bounded.
//!
//! It also keeps what is wrong at the moment, so that readiness tells the same as metrics and log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use crate::clock::{Clock, Timestamp};
use crate::presence::{Closing, Heard, Interval, OfflineRecord, State, Unit};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// Every variant.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The word for it in metrics and logs.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

words! {
    /// Why a message did not count as a heartbeat.
    Rejection {
        /// The topic fits no template.
        BadTopic => "bad_topic",
        /// `{unit}` is no unit id.
        BadUnit => "bad_unit",
        /// `{kind}` is not configured.
        UnknownKind => "unknown_kind",
        /// The payload is larger than allowed.
        TooLarge => "too_large",
        /// A retained message: it may be of any age.
        Retained => "retained",
        /// Older than `max_age`.
        TooOld => "too_old",
        /// It was not acknowledged and came faster than it could be recorded.
        Overflow => "overflow",
    }
}

words! {
    /// Something in a payload that was passed over; the message still proves life.
    Oddity {
        /// Starts like JSON and is not.
        BrokenJson => "broken_json",
        /// `ts` is no plausible time.
        BadTimestamp => "bad_timestamp",
        /// `timeout` is no timeout or out of bounds.
        BadTimeout => "bad_timeout",
        /// A label's name or value cannot be one.
        BadLabel => "bad_label",
        /// `sleep` is no duration or out of bounds.
        BadSleep => "bad_sleep",
    }
}

words! {
    /// Where a suspicion came from.
    Source {
        /// An expiry notification.
        Notification => "notification",
        /// The deadline index.
        Sweep => "sweep",
        /// The walk over the mirror.
        Walk => "walk",
    }
}

words! {
    /// How a take ended.
    Take {
        /// This caller wrote the record.
        Won => "won",
        /// Somebody else was faster, or the unit changed meanwhile.
        Lost => "lost",
        /// The unit has time left.
        Alive => "alive",
        /// Not heard far enough to say.
        Undecided => "undecided",
    }
}

words! {
    /// How an attempt to deliver ended.
    Outcome {
        /// The receiver has it.
        Delivered => "delivered",
        /// To be tried again.
        Retry => "retry",
        /// Given up.
        Dead => "dead",
    }
}

words! {
    /// What may be wrong with an engine that works all the same.
    Ailment {
        /// The fleet in it is another one than at the start.
        LostItsData => "engine_lost_its_data",
        /// It has thrown keys away for want of memory.
        KeysEvicted => "keys_evicted",
        /// It would do so if it were full.
        EvictionPossible => "eviction_possible",
        /// A restart loses what it holds.
        PersistenceOff => "persistence_off",
        /// It does not tell when keys expire.
        NotificationsOff => "notifications_off",
        /// Its clock and ours are apart.
        ClockOff => "clock_off",
    }
}

/// Something that is wrong at the moment.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// A short constant name.
    pub name: &'static str,
    /// What is wrong and what to do.
    pub text: String,
    /// How bad it is.
    pub severity: Severity,
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Rollcall does not do its work.
    Serious,
    /// Rollcall works; somebody should have a look all the same.
    Warning,
}

/// Counts and logs. Cheap to share.
pub struct Telemetry {
    registry: Registry,
    samples: Sampler,
    problems: Problems,
    heartbeats: IntCounterVec,
    oddities: IntCounterVec,
    heartbeat_lag: Histogram,
    connected: IntGaugeVec,
    canary_round_trip: Histogram,
    blind: IntGauge,
    has_heard: AtomicBool,
    blind_seconds: prometheus::Counter,
    suspects: IntCounterVec,
    takes: IntCounterVec,
    detection_delay: Histogram,
    transitions: IntCounterVec,
    notifications: IntCounterVec,
    notification_duration: HistogramVec,
    queue_length: IntGaugeVec,
    dead_letters: IntGaugeVec,
    engine_up: IntGauge,
    engine_command: HistogramVec,
    engine_warnings: IntGaugeVec,
    partitions_owned: IntGauge,
    mirror_age: Gauge,
    units: IntGaugeVec,
    seen_within: IntGaugeVec,
    units_by_label: IntGaugeVec,
    counted: Mutex<BTreeSet<(String, String)>>,
    hints_dropped: IntCounter,
}

/// A histogram's buckets from 1 ms to 60 s.
const LATENCIES: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// A command's buckets: few, because there are dozens of commands and every bucket of each is a
/// series.
const COMMANDS: [f64; 5] = [0.001, 0.005, 0.025, 0.1, 1.0];

impl Telemetry {
    /// A registry with every metric at zero.
    pub fn new(clock: &Clock) -> Telemetry {
        let registry = Registry::new();
        let make = Maker(&registry);
        let telemetry = Telemetry {
            samples: Sampler::new(clock.clone()),
            problems: Problems::of_a_beginning(),
            heartbeats: make.counters(
                "heartbeats_total",
                "Messages from devices by what became of them.",
                &["result"],
            ),
            oddities: make.counters(
                "payload_oddities_total",
                "Things in payloads that were passed over.",
                &["reason"],
            ),
            heartbeat_lag: make
                .histogram("heartbeat_lag_seconds", "From the arrival of a heartbeat to its being applied."),
            connected: make.gauges(
                "mqtt_connected",
                "Whether a connection to the MQTT broker stands and is subscribed.",
                &["connection"],
            ),
            canary_round_trip: make.histogram(
                "canary_round_trip_seconds",
                "From the sending of a canary to its being recorded by the engine.",
            ),
            blind: make.gauge("blind", "1 while Rollcall cannot prove that it hears the fleet."),
            has_heard: AtomicBool::new(false),
            blind_seconds: make
                .counter("blind_seconds_total", "Length of the blind intervals that this instance wrote."),
            suspects: make.counters(
                "suspects_total",
                "Units looked at, by what raised the suspicion.",
                &["source"],
            ),
            takes: make.counters("takes_total", "Looks at suspects by how they ended.", &["result"]),
            detection_delay: make.histogram(
                "offline_detection_delay_seconds",
                "From a unit's deadline to its offline record being written.",
            ),
            transitions: make.counters(
                "unit_transitions_total",
                "Records opened (to offline) and closed (to online).",
                &["to", "cause"],
            ),
            notifications: make.counters(
                "notifications_total",
                "Attempts to deliver a notification by how they ended.",
                &["receiver", "outcome"],
            ),
            notification_duration: make.histograms(
                "notification_duration_seconds",
                "How long an attempt to deliver took.",
                &["receiver"],
                &LATENCIES,
            ),
            queue_length: make.gauges(
                "notification_queue_length",
                "Groups that wait for a delivery to a receiver.",
                &["receiver"],
            ),
            dead_letters: make.gauges(
                "dead_letters",
                "Deliveries that were given up and are kept.",
                &["receiver"],
            ),
            engine_up: make.gauge("engine_up", "1 while the engine answers."),
            engine_command: make.histograms(
                "engine_command_duration_seconds",
                "How long a call of the engine took, whole batches as one.",
                &["command"],
                &COMMANDS,
            ),
            engine_warnings: make.gauges(
                "engine_warning",
                "1 while something is wrong with the engine though it answers; the name says what.",
                &["name"],
            ),
            partitions_owned: make
                .gauge("partitions_owned", "Partitions that this instance sweeps, delivers and exports."),
            mirror_age: {
                let gauge = Gauge::with_opts(Opts::new(
                    "rollcall_mirror_age_seconds",
                    "Since the oldest part of the mirror was last compared with the engine.",
                ))
                .expect("a constant name");
                make.keep(gauge)
            },
            units: make.gauges("units", "Units by kind and state.", &["kind", "state"]),
            units_by_label: make.gauges(
                "units_by_label",
                "Units by the value of a label and state, as of the last round over all units.",
                &["label", "value", "state"],
            ),
            counted: Mutex::default(),
            seen_within: make.gauges(
                "units_seen_within",
                "Units whose last heartbeat is at most that old.",
                &["window"],
            ),
            hints_dropped: make.int_counter(
                "hints_dropped_total",
                "Expiry notifications that found the queue full; the sweep finds their units.",
            ),
            registry,
        };
        telemetry.start_at_zero();
        telemetry
    }

    fn start_at_zero(&self) {
        let build = GaugeVec::new(
            Opts::new("rollcall_build_info", "Constant 1, labelled with the version."),
            &["version"],
        )
        .expect("a constant name");
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Maker(&self.registry).keep(build);
        for heard in HEARD {
            self.heartbeats.with_label_values(&[heard_as_str(heard)]);
        }
        for reason in Rejection::ALL {
            self.heartbeats.with_label_values(&[reason.as_str()]);
        }
        for oddity in Oddity::ALL {
            self.oddities.with_label_values(&[oddity.as_str()]);
        }
        for source in Source::ALL {
            self.suspects.with_label_values(&[source.as_str()]);
        }
        for take in Take::ALL {
            self.takes.with_label_values(&[take.as_str()]);
        }
        for ailment in Ailment::ALL {
            self.engine_warnings.with_label_values(&[ailment.as_str()]);
        }
        for (to, cause) in [
            ("offline", "silence"),
            ("offline", "never_seen"),
            ("online", "return"),
            ("online", "policy"),
            ("online", "removed"),
        ] {
            self.transitions.with_label_values(&[to, cause]);
        }
    }

    /// Lets a receiver's series start at zero.
    pub fn receiver_configured(&self, receiver: &str) {
        for outcome in Outcome::ALL {
            self.notifications.with_label_values(&[receiver, outcome.as_str()]);
        }
        self.notification_duration.with_label_values(&[receiver]);
        self.queue_length.with_label_values(&[receiver]);
        self.dead_letters.with_label_values(&[receiver]);
    }

    /// Everything, for the metrics page.
    pub fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.registry.gather()
    }

    /// Heartbeats were applied or decided upon.
    pub fn heartbeats(&self, heard: Heard, count: u64) {
        self.heartbeats.with_label_values(&[heard_as_str(heard)]).inc_by(count);
    }

    /// A heartbeat was applied that long after its arrival.
    pub fn heartbeat_lag(&self, lag: Duration) {
        self.heartbeat_lag.observe(lag.as_secs_f64());
    }

    /// A message did not count. `what` is shown in the log now and then.
    pub fn message_rejected(&self, topic: &str, why: Rejection, what: &str) {
        self.heartbeats.with_label_values(&[why.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(why.as_str()) {
            let topic = shorten(topic);
            tracing::warn!(topic, reason = why.as_str(), suppressed, "message rejected: {what}");
        }
    }

    /// Something in a payload was passed over. `what` is shown in the log now and then.
    pub fn payload_odd(&self, unit: &Unit, odd: Oddity, what: &str) {
        self.oddities.with_label_values(&[odd.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(odd.as_str()) {
            tracing::warn!(%unit, reason = odd.as_str(), suppressed, "payload passed over: {what}");
        }
    }

    /// A connection to the broker stands and is subscribed.
    pub fn mqtt_connected(&self, connection: &str, broker: &str) {
        self.connected.with_label_values(&[connection]).set(1);
        self.problems.clear(MQTT_DISCONNECTED, "");
        self.problems.clear(MQTT_DISCONNECTED, connection);
        tracing::info!(connection, broker, "connected to the MQTT broker and subscribed");
    }

    /// A connection to the broker was lost or could not be made.
    pub fn mqtt_disconnected(&self, connection: &str, broker: &str, why: &str, retry_in: Duration) {
        self.connected.with_label_values(&[connection]).set(0);
        self.problems.clear(MQTT_DISCONNECTED, "");
        let text = format!("connection {connection} to the MQTT broker at {broker} does not stand: {why}");
        self.problems.set(MQTT_DISCONNECTED, connection, text, Severity::Serious);
        tracing::warn!(
            connection,
            broker,
            retry_in_ms = retry_in.as_millis() as u64,
            "no connection to the MQTT broker: {why}"
        );
    }

    /// A canary came all the way.
    pub fn canary_returned(&self, round_trip: Duration) {
        self.canary_round_trip.observe(round_trip.as_secs_f64());
    }

    /// A blind interval was written into the ledger.
    pub fn was_blind(&self, interval: &Interval) {
        self.blind_seconds.inc_by(interval.length().as_secs_f64());
        tracing::warn!(
            from = %interval.from,
            to = %interval.to,
            seconds = interval.length().as_secs_f64(),
            "was blind: this time does not count as silence of any unit"
        );
    }

    /// Whether Rollcall can prove that it hears the fleet. Logs the change; that a start begins
    /// without proof is as it should be.
    pub fn blind(&self, blind: bool, heard: Option<Timestamp>) {
        let before = self.blind.get();
        self.blind.set(blind.into());
        let has_heard = self.has_heard.fetch_or(!blind, Ordering::Relaxed);
        if blind {
            self.problems.set(NOT_HEARING, "", not_hearing(heard), Severity::Serious);
        } else {
            self.problems.clear(NOT_HEARING, "");
        }
        match (before, blind) {
            (0, true) if !has_heard => tracing::info!(
                heard = heard.map(tracing::field::display),
                "has not heard the fleet yet; no unit is declared offline until the first canary comes back"
            ),
            (0, true) => tracing::warn!(
                heard = heard.map(tracing::field::display),
                "blind: canaries do not come back; no unit is declared offline until they do"
            ),
            (1, false) => tracing::info!("hearing again"),
            _ => {}
        }
    }

    /// Units are about to be looked at.
    pub fn suspects(&self, source: Source, count: u64) {
        self.suspects.with_label_values(&[source.as_str()]).inc_by(count);
    }

    /// Looks at suspects ended.
    pub fn takes(&self, result: Take, count: u64) {
        self.takes.with_label_values(&[result.as_str()]).inc_by(count);
    }

    /// An expiry notification found the queue full.
    pub fn hint_dropped(&self) {
        self.hints_dropped.inc();
    }

    /// A record was opened.
    pub fn went_offline(&self, record: &OfflineRecord) {
        self.transitions.with_label_values(&["offline", record.cause.as_str()]).inc();
        self.detection_delay.observe(record.detected_at.since(record.deadline).as_secs_f64());
        tracing::debug!(record = %record.id, deadline = %record.deadline, "unit offline");
    }

    /// A record was closed.
    pub fn came_back(&self, record: &OfflineRecord) {
        let cause = record.closed_by.map_or("return", Closing::as_str);
        self.transitions.with_label_values(&["online", cause]).inc();
        tracing::debug!(record = %record.id, cause, "unit back");
    }

    /// An attempt to deliver ended. Log lines for failures are the caller's, who knows what next.
    pub fn notification(&self, receiver: &str, outcome: Outcome, took: Duration) {
        self.notifications.with_label_values(&[receiver, outcome.as_str()]).inc();
        self.notification_duration.with_label_values(&[receiver]).observe(took.as_secs_f64());
    }

    /// What waits for a receiver and what was given up.
    pub fn backlog(&self, receiver: &str, waiting: u64, dead: u64) {
        self.queue_length.with_label_values(&[receiver]).set(waiting as i64);
        self.dead_letters.with_label_values(&[receiver]).set(dead as i64);
    }

    /// A call of the engine ended.
    pub fn engine_command(&self, command: &'static str, took: Duration) {
        self.engine_command.with_label_values(&[command]).observe(took.as_secs_f64());
    }

    /// Whether the engine answers. Logs the change.
    pub fn engine_up(&self, error: Option<&dyn std::fmt::Display>) {
        let before = self.engine_up.get();
        self.engine_up.set(error.is_none().into());
        match error {
            Some(error) => {
                let text = format!("the engine does not answer: {error}");
                self.problems.set(ENGINE_DOWN, "", text, Severity::Serious);
            }
            None if before == 0 => self.problems.clear(ENGINE_DOWN, ""),
            None => {}
        }
        match (before, error) {
            (0, None) => tracing::info!("engine answers"),
            (1, Some(error)) => tracing::error!("engine does not answer: {error}"),
            (_, Some(error)) => {
                if let Some(suppressed) = self.samples.admit("engine") {
                    tracing::warn!(suppressed, "engine does not answer: {error}");
                }
            }
            _ => {}
        }
    }

    /// Something is wrong with the engine though it answers, or is not (any more). Logs the change.
    pub fn engine_warning(&self, what: Ailment, text: Option<&str>) {
        let name = what.as_str();
        let gauge = self.engine_warnings.with_label_values(&[name]);
        let before = gauge.get();
        gauge.set(text.is_some().into());
        match text {
            Some(text) => self.problems.set(name, "", text.to_owned(), Severity::Warning),
            None => self.problems.clear(name, ""),
        }
        match (before, text) {
            (0, Some(text)) => tracing::warn!(name, "{text}"),
            (1, None) => tracing::info!(name, "problem is gone"),
            _ => {}
        }
    }

    /// What is wrong at the moment, the serious first.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.list()
    }

    /// How many partitions this instance owns.
    pub fn partitions_owned(&self, count: u16) {
        self.partitions_owned.set(count.into());
    }

    /// The age of the oldest part of the mirror.
    pub fn mirror_age(&self, age: Duration) {
        self.mirror_age.set(age.as_secs_f64());
    }

    /// How many units of a kind are in a state.
    pub fn units(&self, kind: &str, state: &str, count: u64) {
        self.units.with_label_values(&[kind, state]).set(count as i64);
    }

    /// How many units are in which state, by label and value. Values that are gone leave.
    pub fn units_by_label(&self, counted: BTreeMap<(String, String), [u64; State::ALL.len()]>) {
        let mut before = self.counted.lock().expect("nothing panics under this lock");
        for ((label, value), counts) in &counted {
            for (state, count) in State::ALL.iter().zip(counts) {
                self.units_by_label.with_label_values(&[label, value, state.as_str()]).set(*count as i64);
            }
        }
        let now: BTreeSet<(String, String)> = counted.into_keys().collect();
        for (label, value) in before.difference(&now) {
            for state in State::ALL {
                // It is an error that there is none, and that is what is wanted.
                let _ = self.units_by_label.remove_label_values(&[label, value, state.as_str()]);
            }
        }
        *before = now;
    }

    /// How many units were heard within a window.
    pub fn seen_within(&self, window: &str, count: u64) {
        self.seen_within.with_label_values(&[window]).set(count as i64);
    }
}

const HEARD: [Heard; 6] =
    [Heard::New, Heard::Refreshed, Heard::Back, Heard::Stale, Heard::Stranger, Heard::Retired];

fn heard_as_str(heard: Heard) -> &'static str {
    match heard {
        Heard::New => "new",
        Heard::Refreshed => "refreshed",
        Heard::Back => "back",
        Heard::Stale => "stale",
        Heard::Stranger => "stranger",
        Heard::Retired => "retired",
    }
}

fn shorten(topic: &str) -> String {
    topic.chars().take(200).collect()
}

const ENGINE_DOWN: &str = "engine_down";
const MQTT_DISCONNECTED: &str = "mqtt_disconnected";
const NOT_HEARING: &str = "not_hearing";

fn not_hearing(heard: Option<Timestamp>) -> String {
    match heard {
        None => "no canary has come back yet; no unit is declared offline until one does".to_owned(),
        Some(heard) => format!(
            "blind: no canary that was sent after {heard} has come back; no unit is declared offline until one does"
        ),
    }
}

/// What is wrong at the moment, by name and, where there are several of a sort, by which of them.
/// Both come from constants and from the configuration, so there are few.
struct Problems(Mutex<BTreeMap<(&'static str, String), Problem>>);

impl Problems {
    /// Nothing is known to work before it was seen to.
    fn of_a_beginning() -> Problems {
        let problems = Problems(Mutex::default());
        let yet = |what: &str| format!("{what} since the start");
        problems.set(ENGINE_DOWN, "", yet("the engine has not answered"), Severity::Serious);
        problems.set(MQTT_DISCONNECTED, "", yet("the MQTT broker was not reached"), Severity::Serious);
        problems.set(NOT_HEARING, "", not_hearing(None), Severity::Serious);
        problems
    }

    fn set(&self, name: &'static str, which: &str, text: String, severity: Severity) {
        self.lock().insert((name, which.to_owned()), Problem { name, text, severity });
    }

    fn clear(&self, name: &'static str, which: &str) {
        self.lock().remove(&(name, which.to_owned()));
    }

    fn list(&self) -> Vec<Problem> {
        let (mut all, warnings): (Vec<_>, Vec<_>) =
            self.lock().values().cloned().partition(|problem| problem.severity == Severity::Serious);
        all.extend(warnings);
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(&'static str, String), Problem>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

/// Makes metrics and registers them.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn keep<C: prometheus::core::Collector + Clone + 'static>(&self, metric: C) -> C {
        self.0.register(Box::new(metric.clone())).expect("names are constants and unique");
        metric
    }
    fn opts(name: &str, help: &str) -> Opts {
        Opts::new(name, help).namespace("rollcall")
    }
    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(Self::opts(name, help), labels).expect("a constant name"))
    }
    fn counter(&self, name: &str, help: &str) -> prometheus::Counter {
        self.keep(prometheus::Counter::with_opts(Self::opts(name, help)).expect("a constant name"))
    }
    fn int_counter(&self, name: &str, help: &str) -> IntCounter {
        self.keep(IntCounter::with_opts(Self::opts(name, help)).expect("a constant name"))
    }
    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.keep(IntGauge::with_opts(Self::opts(name, help)).expect("a constant name"))
    }
    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.keep(IntGaugeVec::new(Self::opts(name, help), labels).expect("a constant name"))
    }
    fn histogram(&self, name: &str, help: &str) -> Histogram {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(LATENCIES.to_vec());
        self.keep(Histogram::with_opts(opts).expect("a constant name"))
    }
    fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(buckets.to_vec());
        self.keep(HistogramVec::new(opts, labels).expect("a constant name"))
    }
}

/// Lets one line per reason and ten seconds through, so that a flood of bad messages cannot flood
/// the log.
struct Sampler {
    clock: Clock,
    reasons: HashMap<&'static str, (AtomicI64, AtomicI64)>,
}

impl Sampler {
    const EVERY_MS: i64 = 10_000;

    fn new(clock: Clock) -> Sampler {
        let words = Rejection::ALL.iter().map(|r| r.as_str()).chain(Oddity::ALL.iter().map(|o| o.as_str()));
        let reasons = words.chain(["engine"]).map(|word| (word, Default::default())).collect();
        Sampler { clock, reasons }
    }

    /// `Some` with the number of lines held back since the last one, if a line may be written.
    fn admit(&self, reason: &'static str) -> Option<i64> {
        let (next, held) = self.reasons.get(reason)?;
        let now = self.clock.now().as_millis();
        let due = next.load(Ordering::Relaxed);
        let won = now >= due
            && next.compare_exchange(due, now + Self::EVERY_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won {
            Some(held.swap(0, Ordering::Relaxed))
        } else {
            held.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(telemetry: &Telemetry) -> Vec<&'static str> {
        telemetry.problems().iter().map(|problem| problem.name).collect()
    }

    #[test]
    fn nothing_is_known_to_work_before_it_was_seen_to() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        assert_eq!(names(&telemetry), [ENGINE_DOWN, MQTT_DISCONNECTED, NOT_HEARING]);
        telemetry.engine_up(None);
        telemetry.mqtt_connected("fleet", "mqtt://127.0.0.1");
        telemetry.blind(false, Some(Timestamp::ZERO));
        assert_eq!(telemetry.problems(), []);
    }

    #[test]
    fn a_service_of_several_kinds_and_receivers_has_fewer_than_500_series() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        // Some forty commands; any names will do.
        const ALPHABET: &str = "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9 - _";
        let states = ["online", "late", "offline", "never_seen", "paused", "unknown"];
        for command in ALPHABET.split(' ') {
            telemetry.engine_command(command, Duration::ZERO);
        }
        for receiver in ["mail", "hook"] {
            telemetry.receiver_configured(receiver);
        }
        for kind in ["detector", "meter", "camera"] {
            for state in states {
                telemetry.units(kind, state, 1);
            }
        }
        let text = prometheus::TextEncoder::new().encode_to_string(&telemetry.gather()).unwrap();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!(series < 500, "{series} series");
    }

    #[test]
    fn each_connection_that_does_not_stand_is_named_until_it_stands() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_up(None);
        telemetry.blind(false, None);
        telemetry.mqtt_connected("one", "broker");
        telemetry.mqtt_disconnected("two", "broker", "refused", Duration::ZERO);
        let [problem] = &telemetry.problems()[..] else { panic!("{:?}", telemetry.problems()) };
        assert!(problem.text.contains("two") && problem.text.contains("refused"), "{}", problem.text);
        telemetry.mqtt_connected("two", "broker");
        assert_eq!(telemetry.problems(), []);
    }

    #[test]
    fn a_warning_of_the_engine_is_no_serious_problem_and_goes_when_it_is_over() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_warning(Ailment::PersistenceOff, Some("switch it on"));
        assert_eq!(telemetry.problems().last().unwrap().severity, Severity::Warning);
        telemetry.engine_up(None);
        telemetry.engine_up(Some(&"gone"));
        assert!(names(&telemetry).contains(&ENGINE_DOWN));
        telemetry.engine_warning(Ailment::PersistenceOff, None);
        assert!(!names(&telemetry).contains(&"persistence_off"));
    }
}

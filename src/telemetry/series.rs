//! The metrics: names, help, labels and buckets, and every known label set at zero from the start.
//!
//! Names follow the advice of Prometheus: a counter ends in `_total` and only grows. A gauge without a value has no
//! series, rather than a 0 that looks like a value. A dozen kinds and five receivers have fewer than 500 series; each
//! kind and receiver adds some, units add none.

use prometheus::{
    CounterVec, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::labels::{
    BrokerRefusal, CheckOutcome, CheckSource, ConnectionLoss, CutReason, EngineWarning, HEARD, PayloadIssue,
    Rejection, ValueOutcome, heard_as_str,
};
use super::process::Process;
use super::snapshot::SnapshotHistogram;

/// Every metric, except those of single units.
pub(super) struct Series {
    pub heartbeats: IntCounterVec,
    /// No series before the first announcement: most fleets have none.
    pub announcements: IntCounterVec,
    /// No series before the first state: most fleets publish none.
    pub states_published: IntCounterVec,
    pub payload_issues: IntCounterVec,
    pub unit_values: IntCounterVec,
    pub heartbeat_lag: Histogram,
    pub connected: IntGaugeVec,
    pub connections_lost: IntCounterVec,
    pub broker_dropped: IntCounterVec,
    pub broker_refused: IntCounterVec,
    pub broker_held_back: IntCounter,
    pub canary_round_trip: HistogramVec,
    pub blind: IntGauge,
    pub blind_seconds: prometheus::Counter,
    /// No series in a fleet with one broker.
    pub broker_blind: IntGaugeVec,
    pub broker_blind_seconds: CounterVec,
    pub broker_heard: GaugeVec,
    pub kinds_unheard: IntGaugeVec,
    pub filters_unproved: IntGaugeVec,
    pub checks: IntCounterVec,
    /// No series if sweeping is off.
    pub sweeps: IntCounterVec,
    pub detection_delay: Histogram,
    pub transitions: IntCounterVec,
    pub notifications: IntCounterVec,
    pub notifications_merged: IntCounterVec,
    pub notification_duration: HistogramVec,
    pub queue_length: IntGaugeVec,
    pub dead_letters: IntGaugeVec,
    pub receiver_failing: IntGaugeVec,
    pub receiver_incomplete: IntGaugeVec,
    pub orphaned: IntGauge,
    /// The servers are counted when the metrics are gathered.
    pub engine_up: IntGaugeVec,
    pub engine_command: HistogramVec,
    pub engine_warnings: IntGaugeVec,
    pub replica_waits: IntCounterVec,
    pub unreadable_values: IntGaugeVec,
    pub instances: IntGauge,
    pub partitions_owned: IntGauge,
    /// No series before the first comparison.
    pub mirror_age: GaugeVec,
    pub units: IntGaugeVec,
    pub archived_units: IntGaugeVec,
    pub unusual_units: IntGaugeVec,
    /// No series for a kind without offline units.
    pub oldest_outage: GaugeVec,
    pub silence: SnapshotHistogram,
    pub units_by_label: IntGaugeVec,
    pub notifications_dropped: IntCounter,
    pub connections_cut: IntCounterVec,
    pub inhibiting_units: IntGauge,
    pub breaker_tripped: IntGauge,
    pub flapping_units: IntGaugeVec,
    /// No series for a kind without such units.
    pub units_at_two_places: IntGaugeVec,
    pub timer_requests: IntCounterVec,
    pub timers: IntGaugeVec,
    pub timers_fired: IntCounterVec,
    pub timer_lateness: HistogramVec,
    pub timers_unknown: IntCounterVec,
    /// No series if history is off.
    pub history_rows: IntCounterVec,
    pub history_lag: GaugeVec,
    pub history_losses: IntCounterVec,
    pub reload_successful: IntGauge,
    pub reload_success_at: GaugeVec,
    pub web_info: IntGaugeVec,
}

/// From 1 ms to 60 s.
const LATENCIES: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0];

/// Buckets of attempts to deliver: few, because every receiver has them.
const ATTEMPTS: [f64; 5] = [0.05, 0.25, 1.0, 5.0, 30.0];

/// Buckets of engine calls: few, because every named call has them.
const COMMANDS: [f64; 3] = [0.001, 0.01, 0.1];

/// Calls of the engine with series of their own: the calls for heartbeats, deadline checks, the walk and
/// notifications. There are several times as many calls, and each would have six series.
pub(super) const NAMED_COMMANDS: [&str; 16] = [
    "refresh",
    "deadline_check",
    "apply",
    "due",
    "first_checks",
    "advance",
    "attend",
    "depart",
    "renew",
    "page",
    "keep_values",
    "outbox",
    "remove_entries",
    "read_cells",
    "write_cells",
    OTHER,
];
/// The label of all other calls.
pub(super) const OTHER: &str = "other";

impl Series {
    /// Registers every metric.
    ///
    /// In one piece: it is only a list.
    pub fn new(registry: &Registry) -> Series {
        let make = MetricFactory(registry);
        let series = Series {
            heartbeats: make.counters(
                "heartbeats_total",
                "Messages from devices by result.",
                &["result"],
            ),
            announcements: make.counters(
                "announcements_total",
                "Announcements that units are gone, by effect.",
                &["result"],
            ),
            states_published: make.counters(
                "states_published_total",
                "States of units that were published (mqtt.publish_state), by outcome.",
                &["result"],
            ),
            payload_issues: make.counters(
                "payload_issues_total",
                "Parts of payloads that were ignored; the message counted as a heartbeat anyway.",
                &["reason"],
            ),
            unit_values: make.counters(
                "unit_values_total",
                "Values that units sent of themselves ([[kind.metric]]) by result.",
                &["result"],
            ),
            heartbeat_lag: make
                .histogram("heartbeat_lag_seconds", "Time from the arrival of a heartbeat until it is applied."),
            connected: make.gauges(
                "mqtt_connected",
                "1 while a connection to the MQTT broker is established and subscribed.",
                &["broker", "connection"],
            ),
            connections_lost: make.counters(
                "mqtt_connections_lost_total",
                "Connections to the MQTT broker that ended or could not be made, by reason.",
                &["broker", "reason"],
            ),
            broker_dropped: make.counters(
                "broker_messages_dropped_total",
                "Messages to any of its clients that the broker dropped since this instance started \
                 (mqtt.watch_sys).",
                &["broker"],
            ),
            broker_refused: make.counters(
                "broker_refused_total",
                "Requests of devices that the broker within the process refused, or did not do as asked.",
                &["reason"],
            ),
            broker_held_back: make.int_counter(
                "broker_held_back_total",
                "Messages that waited in the broker within the process because they came too fast.",
            ),
            canary_round_trip: make.histograms(
                "canary_round_trip_seconds",
                "Time from the sending of a canary until the engine has recorded it.",
                &["broker"],
                &LATENCIES,
            ),
            blind: make.gauge("blind", "1 while Rollcall cannot prove that it hears the fleet."),
            blind_seconds: make
                .counter("blind_seconds_total", "Length of the blind intervals that this instance wrote."),
            broker_blind: make.gauges(
                "mqtt_blind",
                "1 while Rollcall cannot prove that it hears every kind of this broker, one of several.",
                &["broker"],
            ),
            broker_blind_seconds: make.float_counters(
                "mqtt_blind_seconds_total",
                "Time in which a kind of this broker, one of several, was not heard there, as this instance saw it end.",
                &["broker"],
            ),
            broker_heard: make.float_gauges(
                "mqtt_heard_timestamp_seconds",
                "Up to when every kind of this broker, one of several, was heard there.",
                &["broker"],
            ),
            kinds_unheard: make.gauges(
                "kinds_unheard",
                "Kinds with topics whose messages do not reach Rollcall; the log and /readyz name them.",
                &["broker"],
            ),
            filters_unproved: make.gauges(
                "filters_unproved",
                "Topic filters that are not proved to be heard, because the broker does not let Rollcall publish there.",
                &["broker"],
            ),
            checks: make.counters(
                "deadline_checks_total",
                "Checks of the deadlines of units, by the source of the check and its result.",
                &["source", "result"],
            ),
            sweeps: make.counters("sweeps_total", "Times that the deadline index was asked for due units.", &[]),
            detection_delay: make.histogram(
                "offline_detection_delay_seconds",
                "Time from a unit's deadline until its offline record is written.",
            ),
            transitions: make.counters(
                "unit_transitions_total",
                "Records opened (to offline) and closed (to online).",
                &["to", "cause"],
            ),
            notifications: make.counters(
                "notifications_total",
                "Attempts to deliver a notification by outcome; left_out: none was made, because all of its transitions were over.",
                &["receiver", "outcome"],
            ),
            notifications_merged: make.counters(
                "notifications_merged_total",
                "Notifications that were delivered in digests, because their receiver has a rate limit.",
                &["receiver"],
            ),
            notification_duration: make.histograms(
                "notification_duration_seconds",
                "Duration of attempts to deliver.",
                &["receiver"],
                &ATTEMPTS,
            ),
            queue_length: make.gauges(
                "notification_queue_length",
                "Groups that wait for delivery to a receiver.",
                &["receiver"],
            ),
            dead_letters: make.gauges(
                "dead_letters",
                "Deliveries that were given up and are kept.",
                &["receiver"],
            ),
            orphaned: make.gauge(
                "orphaned_notifications",
                "Waiting groups and dead letters of receivers that are not configured.",
            ),
            receiver_failing: make.gauges(
                "receiver_failing",
                "1 after a failed attempt, or a start with dead letters, until an attempt succeeds.",
                &["receiver"],
            ),
            receiver_incomplete: make.gauges(
                "receiver_incomplete",
                "1 while a receiver takes notifications, and some of its recipients or servers do not.",
                &["receiver", "name"],
            ),
            engine_up: make.gauges("engine_up", "1 while the engine answers, by server.", &["server"]),
            engine_command: make.histograms(
                "engine_command_duration_seconds",
                "Duration of calls of the engine, a whole batch as one call; rare calls are together in other.",
                &["command"],
                &COMMANDS,
            ),
            engine_warnings: make.gauges(
                "engine_warning",
                "1 while an engine that answers has the named problem.",
                &["name"],
            ),
            unreadable_values: make.gauges(
                "unreadable_values",
                "Stored values that cannot be read, by sort (no series: none was met); the log names them.",
                &["what"],
            ),
            instances: make.gauge("instances", "Instances with a valid lease, this one included."),
            partitions_owned: make
                .gauge("partitions_owned", "Partitions that this instance sweeps, delivers and exports."),
            mirror_age: make.float_gauges(
                "mirror_age_seconds",
                "Time since the oldest part of the mirror was compared with the engine.",
                &[],
            ),
            units: make.gauges("units", "Units by kind and state.", &["kind", "state"]),
            archived_units: make.gauges(
                "archived_units",
                "Units that have been offline for longer than archive_after of their kind; no other metric counts them.",
                &["kind"],
            ),
            unusual_units: make.gauges(
                "units_unusual",
                "Units that are not offline and have been silent for unusually long by their rhythm.",
                &["kind"],
            ),
            oldest_outage: make.float_gauges(
                "oldest_outage_timestamp_seconds",
                "When the unit that has been offline for longest was last heard.",
                &["kind"],
            ),
            silence: make.keep(SnapshotHistogram::new(
                "rollcall_unit_silence_seconds",
                "Units by the time since they were last heard, at the moment of the scrape: not a count over time.",
            )),
            units_by_label: make.gauges(
                "units_by_label",
                "Units by the value of a label and state.",
                &["label", "value", "state"],
            ),
            replica_waits: make.counters(
                "engine_replica_waits_total",
                "Waits for replicas before notifications, by result.",
                &["result"],
            ),
            notifications_dropped: make.int_counter(
                "expiry_notifications_dropped_total",
                "Expiry notifications of Redis that found the queue full; the sweep finds their units.",
            ),
            connections_cut: make.counters(
                "http_connections_cut_total",
                "Connections to the web server that it closed or refused, by reason.",
                &["reason"],
            ),
            breaker_tripped: make.gauge(
                "breaker_tripped",
                "1 while the mass-offline breaker holds notifications of single units.",
            ),
            units_at_two_places: make.gauges(
                "units_at_two_places",
                "Units that are heard on two topics in turn, of which only one can be theirs.",
                &["kind"],
            ),
            flapping_units: make.gauges(
                "flapping_units",
                "Units that flap, of those whose partitions this instance owns.",
                &["kind"],
            ),
            timers: make.gauges(
                "timers",
                "Timers that wait, by type, in the partitions of this instance.",
                &["type", "state"],
            ),
            timers_fired: make.counters("timers_fired_total", "Timers that this instance fired.", &["type"]),
            timer_lateness: make.histograms(
                "timer_lateness_seconds",
                "Time from the moment of a timer until it fired.",
                &[],
                &LATENCIES,
            ),
            timers_unknown: make.counters(
                "timers_unknown_total",
                "Attempts at timers that are delivered at most once with an unknown outcome, because an instance died.",
                &["type"],
            ),
            timer_requests: make.counters(
                "timer_requests_total",
                "Timers that clients registered or cancelled, over HTTP and MQTT, by result.",
                &["result"],
            ),
            inhibiting_units: make.gauge(
                "inhibiting_units",
                "Units that are offline and inhibit the notifications of others.",
            ),
            history_rows: make.counters("history_rows_total", "Rows written to history, by table.", &["table"]),
            history_lag: make.float_gauges(
                "history_lag_seconds",
                "How much time of the engine is not written to history yet, by source.",
                &["source"],
            ),
            history_losses: make.counters(
                "history_losses_total",
                "Times for which history may lack rows, because they left the engine before they were written, by table.",
                &["table"],
            ),
            reload_successful: make.gauge(
                "config_last_reload_successful",
                "1 if the last attempt to load the configuration succeeded.",
            ),
            reload_success_at: make.float_gauges(
                "config_last_reload_success_timestamp_seconds",
                "When the configuration was loaded last.",
                &[],
            ),
            web_info: make.gauges(
                "web_info",
                "Constant 1, labelled with the address by which operators reach the pages.",
                &["url"],
            ),
        };
        series.start_at_zero();
        make.build_info();
        make.keep(Process::default());
        series
    }

    /// Lets the series of a connection and of its broker start at zero.
    pub fn connection_at_zero(&self, broker: &str, connection: &str) {
        self.connected.with_label_values(&[broker, connection]);
        for loss in ConnectionLoss::ALL {
            self.connections_lost.with_label_values(&[broker, loss.as_str()]);
        }
        self.broker_dropped.with_label_values(&[broker]);
        self.canary_round_trip.with_label_values(&[broker]);
        self.kinds_unheard.with_label_values(&[broker]);
        self.filters_unproved.with_label_values(&[broker]);
    }

    fn start_at_zero(&self) {
        for heard in HEARD {
            self.heartbeats.with_label_values(&[heard_as_str(heard)]);
        }
        for reason in Rejection::ALL {
            self.heartbeats.with_label_values(&[reason.as_str()]);
        }
        for refusal in BrokerRefusal::ALL {
            self.broker_refused.with_label_values(&[refusal.as_str()]);
        }
        for issue in PayloadIssue::ALL {
            self.payload_issues.with_label_values(&[issue.as_str()]);
        }
        for command in NAMED_COMMANDS {
            self.engine_command.with_label_values(&[command]);
        }
        for outcome in ValueOutcome::ALL {
            self.unit_values.with_label_values(&[outcome.as_str()]);
        }
        for cut in CutReason::ALL {
            self.connections_cut.with_label_values(&[cut.as_str()]);
        }
        for source in CheckSource::ALL {
            for result in CheckOutcome::ALL {
                self.checks.with_label_values(&[source.as_str(), result.as_str()]);
            }
        }
        for warning in EngineWarning::ALL {
            self.engine_warnings.with_label_values(&[warning.as_str()]);
        }
        for (to, cause) in [
            ("offline", "silence"),
            ("offline", "never_seen"),
            ("online", "return"),
            ("online", "policy"),
            ("online", "removed"),
            ("online", "kind_removed"),
        ] {
            self.transitions.with_label_values(&[to, cause]);
        }
    }
}

/// Makes metrics and registers them.
struct MetricFactory<'a>(&'a Registry);

impl MetricFactory<'_> {
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
    fn float_gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.keep(GaugeVec::new(Self::opts(name, help), labels).expect("a constant name"))
    }
    fn float_counters(&self, name: &str, help: &str, labels: &[&str]) -> CounterVec {
        self.keep(CounterVec::new(Self::opts(name, help), labels).expect("a constant name"))
    }
    fn histogram(&self, name: &str, help: &str) -> Histogram {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(LATENCIES.to_vec());
        self.keep(Histogram::with_opts(opts).expect("a constant name"))
    }
    fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(buckets.to_vec());
        self.keep(HistogramVec::new(opts, labels).expect("a constant name"))
    }
    fn build_info(&self) {
        let build = GaugeVec::new(
            Opts::new("rollcall_build_info", "Constant 1, labelled with the version."),
            &["version"],
        )
        .expect("a constant name");
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        self.keep(build);
    }
}

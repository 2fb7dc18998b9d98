//! The series: names, help, labels and buckets, and every known label set at zero from the start.
//!
//! Named as Prometheus has it: a counter ends in `_total` and only grows, a gauge is of the moment, and
//! what there is none of has no series rather than a 0 that looks like a value. All together are fewer
//! than 500, also with a dozen kinds and several receivers.

use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use super::labels::{
    BrokerRefusal, CheckOutcome, CheckSource, ConnectionLoss, Cut, EngineWarning, HEARD, PayloadIssue,
    Rejection, ValueOutcome, heard_as_str,
};
use super::process::Process;
use super::snapshot::SnapshotHistogram;

/// Every metric that is kept; those of single units are not.
pub(super) struct Series {
    pub heartbeats: IntCounterVec,
    pub oddities: IntCounterVec,
    pub unit_values: IntCounterVec,
    pub heartbeat_lag: Histogram,
    pub connected: IntGaugeVec,
    pub connections_lost: IntCounterVec,
    pub broker_dropped: IntCounter,
    pub broker_refused: IntCounterVec,
    pub broker_held_back: IntCounter,
    pub canary_round_trip: Histogram,
    pub blind: IntGauge,
    pub blind_seconds: prometheus::Counter,
    pub kinds_unheard: IntGauge,
    pub filters_unproved: IntGauge,
    pub checks: IntCounterVec,
    /// No series where sweeping is off.
    pub sweeps: IntCounterVec,
    pub detection_delay: Histogram,
    pub transitions: IntCounterVec,
    pub notifications: IntCounterVec,
    pub notification_duration: HistogramVec,
    pub queue_length: IntGaugeVec,
    pub dead_letters: IntGaugeVec,
    pub receiver_failing: IntGaugeVec,
    pub orphaned: IntGauge,
    pub engine_up: IntGauge,
    pub engine_command: HistogramVec,
    pub engine_warnings: IntGaugeVec,
    pub unreadable_values: IntGaugeVec,
    pub instances: IntGauge,
    pub partitions_owned: IntGauge,
    /// No series as long as nothing is mirrored.
    pub mirror_age: GaugeVec,
    pub units: IntGaugeVec,
    /// No series for a kind without offline units.
    pub oldest_outage: GaugeVec,
    pub silence: SnapshotHistogram,
    pub units_by_label: IntGaugeVec,
    pub notifications_dropped: IntCounter,
    pub connections_cut: IntCounterVec,
}

/// A histogram's buckets from 1 ms to 60 s.
const LATENCIES: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0];

/// The buckets of an attempt to deliver: few, because every receiver has them.
const ATTEMPTS: [f64; 5] = [0.05, 0.25, 1.0, 5.0, 30.0];

/// A command's buckets: few, because every bucket of each is a series.
const COMMANDS: [f64; 3] = [0.001, 0.01, 0.1];

/// Calls of the engine that are told apart: those of the road of a heartbeat, of a look, of the walk and
/// of a notification. There are three times as many, and every one has six series.
pub(super) const TOLD_APART: [&str; 18] = [
    "refresh",
    "look",
    "apply",
    "due",
    "first_checks",
    "advance",
    "attend",
    "gone",
    "renew",
    "page",
    "keep_values",
    "outbox",
    "settle",
    "join",
    "seal",
    "lease",
    "finish",
    OTHER,
];
/// All other calls.
pub(super) const OTHER: &str = "other";

impl Series {
    /// Registers every metric.
    pub fn new(registry: &Registry) -> Series {
        let make = Maker(registry);
        let series = Series {
            heartbeats: make.counters(
                "heartbeats_total",
                "Messages from devices by what became of them.",
                &["result"],
            ),
            oddities: make.counters(
                "payload_oddities_total",
                "Parts of payloads that were passed over; the message counted as a heartbeat all the same.",
                &["reason"],
            ),
            unit_values: make.counters(
                "unit_values_total",
                "Values that units told of themselves ([[kind.metric]]) by what became of them.",
                &["result"],
            ),
            heartbeat_lag: make
                .histogram("heartbeat_lag_seconds", "From the arrival of a heartbeat to its being applied."),
            connected: make.gauges(
                "mqtt_connected",
                "Whether a connection to the MQTT broker stands and is subscribed.",
                &["connection"],
            ),
            connections_lost: make.counters(
                "mqtt_connections_lost_total",
                "Connections to the MQTT broker that ended or could not be made, by reason.",
                &["reason"],
            ),
            broker_dropped: make.int_counter(
                "broker_messages_dropped_total",
                "Messages to any of its clients that the broker threw away since this instance started \
                 (mqtt.watch_sys).",
            ),
            broker_refused: make.counters(
                "broker_refused_total",
                "What the broker within the process refused to devices, or did not do as they asked.",
                &["reason"],
            ),
            broker_held_back: make.int_counter(
                "broker_held_back_total",
                "Messages that waited in the broker within the process because they came too fast.",
            ),
            canary_round_trip: make.histogram(
                "canary_round_trip_seconds",
                "From the sending of a canary to its being recorded by the engine.",
            ),
            blind: make.gauge("blind", "1 while Rollcall cannot prove that it hears the fleet."),
            blind_seconds: make
                .counter("blind_seconds_total", "Length of the blind intervals that this instance wrote."),
            kinds_unheard: make.gauge(
                "kinds_unheard",
                "Kinds with topics of which what is published does not reach Rollcall; the log and /readyz name them.",
            ),
            filters_unproved: make.gauge(
                "filters_unproved",
                "Topic filters of which it is not known whether they are heard, because the broker does not let \
                 Rollcall publish there.",
            ),
            checks: make.counters(
                "deadline_checks_total",
                "Units whose deadline was checked, by what asked for it and what it came to.",
                &["source", "result"],
            ),
            sweeps: make.counters("sweeps_total", "Times that the index of deadlines was asked what is due.", &[]),
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
                "Attempts to deliver a notification by how they ended; left_out: none was made, for nothing of it was to be told.",
                &["receiver", "outcome"],
            ),
            notification_duration: make.histograms(
                "notification_duration_seconds",
                "How long an attempt to deliver took.",
                &["receiver"],
                &ATTEMPTS,
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
            orphaned: make.gauge(
                "orphaned_notifications",
                "Groups that wait, and dead letters, of receivers that are not configured.",
            ),
            receiver_failing: make.gauges(
                "receiver_failing",
                "1 from an attempt that failed, or from a start with dead letters, until one succeeds.",
                &["receiver"],
            ),
            engine_up: make.gauge("engine_up", "1 while the engine answers."),
            engine_command: make.histograms(
                "engine_command_duration_seconds",
                "How long a call of the engine took, whole batches as one; rare ones are told together as other.",
                &["command"],
                &COMMANDS,
            ),
            engine_warnings: make.gauges(
                "engine_warning",
                "1 while something is wrong with the engine though it answers; the name says what.",
                &["name"],
            ),
            unreadable_values: make.gauges(
                "unreadable_values",
                "Values of the engine that cannot be read, by what they are (no series: none was met); the log names them.",
                &["what"],
            ),
            instances: make.gauge("instances", "Instances whose lease stands, this one included."),
            partitions_owned: make
                .gauge("partitions_owned", "Partitions that this instance sweeps, delivers and exports."),
            mirror_age: make.float_gauges(
                "mirror_age_seconds",
                "Since the oldest part of the mirror was last compared with the engine.",
                &[],
            ),
            units: make.gauges("units", "Units by kind and state.", &["kind", "state"]),
            oldest_outage: make.float_gauges(
                "oldest_outage_timestamp_seconds",
                "When the unit that has been offline for longest was last heard.",
                &["kind"],
            ),
            silence: make.keep(SnapshotHistogram::new(
                "rollcall_unit_silence_seconds",
                "Units by how long ago they were last heard, at the moment of the scrape: not a count over time.",
            )),
            units_by_label: make.gauges(
                "units_by_label",
                "Units by the value of a label and state.",
                &["label", "value", "state"],
            ),
            notifications_dropped: make.int_counter(
                "expiry_notifications_dropped_total",
                "Expiry notifications of Redis that found the queue full; the sweep finds their units.",
            ),
            connections_cut: make.counters(
                "http_connections_cut_total",
                "Connections to the web server that it closed or did not take, by the reason.",
                &["reason"],
            ),
        };
        series.start_at_zero();
        make.build_info();
        make.keep(Process::default());
        series
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
        for loss in ConnectionLoss::ALL {
            self.connections_lost.with_label_values(&[loss.as_str()]);
        }
        for oddity in PayloadIssue::ALL {
            self.oddities.with_label_values(&[oddity.as_str()]);
        }
        for command in TOLD_APART {
            self.engine_command.with_label_values(&[command]);
        }
        for kept in ValueOutcome::ALL {
            self.unit_values.with_label_values(&[kept.as_str()]);
        }
        for cut in Cut::ALL {
            self.connections_cut.with_label_values(&[cut.as_str()]);
        }
        for source in CheckSource::ALL {
            for result in CheckOutcome::ALL {
                self.checks.with_label_values(&[source.as_str(), result.as_str()]);
            }
        }
        for ailment in EngineWarning::ALL {
            self.engine_warnings.with_label_values(&[ailment.as_str()]);
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
    fn float_gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.keep(GaugeVec::new(Self::opts(name, help), labels).expect("a constant name"))
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

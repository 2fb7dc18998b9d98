//! The series: names, help, labels and buckets, and every known label set at zero from the start.

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::words::{Ailment, Cut, HEARD, Kept, Oddity, Rejection, Source, Take, heard_as_str};

/// Every metric that is kept; those of single units are not.
pub(super) struct Series {
    pub heartbeats: IntCounterVec,
    pub oddities: IntCounterVec,
    pub unit_values: IntCounterVec,
    pub heartbeat_lag: Histogram,
    pub connected: IntGaugeVec,
    pub broker_dropped: IntGauge,
    pub canary_round_trip: Histogram,
    pub blind: IntGauge,
    pub blind_seconds: prometheus::Counter,
    pub suspects: IntCounterVec,
    pub takes: IntCounterVec,
    pub detection_delay: Histogram,
    pub transitions: IntCounterVec,
    pub notifications: IntCounterVec,
    pub notification_duration: HistogramVec,
    pub queue_length: IntGaugeVec,
    pub dead_letters: IntGaugeVec,
    pub receiver_failing: IntGaugeVec,
    pub engine_up: IntGauge,
    pub engine_command: HistogramVec,
    pub engine_warnings: IntGaugeVec,
    pub instances: IntGauge,
    pub partitions_owned: IntGauge,
    pub mirror_age: Gauge,
    pub units: IntGaugeVec,
    pub oldest_outage: GaugeVec,
    pub seen_within: IntGaugeVec,
    pub units_by_label: IntGaugeVec,
    pub hints_dropped: IntCounter,
    pub connections_cut: IntCounterVec,
}

/// A histogram's buckets from 1 ms to 60 s.
const LATENCIES: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// A command's buckets: few, because every bucket of each is a series.
const COMMANDS: [f64; 4] = [0.001, 0.01, 0.1, 1.0];

/// Calls of the engine that are told apart: those that are made all the time, or that say that
/// something happened. There are twice as many, and every one has seven series.
pub(super) const TOLD_APART: [&str; 26] = [
    "refresh",
    "look",
    "read",
    "apply",
    "due",
    "first_looks",
    "advance",
    "hearing",
    "attend",
    "gone",
    "renew",
    "page",
    "alive",
    "keep_values",
    "walk_values",
    "outbox",
    "settle",
    "join",
    "seal",
    "first_seal",
    "lease",
    "first_lease",
    "finish",
    "backlog",
    "queue",
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
                "Things in payloads that were passed over.",
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
            broker_dropped: make.gauge(
                "broker_messages_dropped",
                "What the broker says that it threw away, for all its clients (mqtt.watch_sys).",
            ),
            canary_round_trip: make.histogram(
                "canary_round_trip_seconds",
                "From the sending of a canary to its being recorded by the engine.",
            ),
            blind: make.gauge("blind", "1 while Rollcall cannot prove that it hears the fleet."),
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
            instances: make.gauge("instances", "Instances whose lease stands, this one included."),
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
            oldest_outage: {
                let opts = Opts::new(
                    "rollcall_oldest_outage_timestamp_seconds",
                    "When the unit that has been offline for longest was last heard; 0 while none is offline.",
                );
                make.keep(GaugeVec::new(opts, &["kind"]).expect("a constant name"))
            },
            units_by_label: make.gauges(
                "units_by_label",
                "Units by the value of a label and state.",
                &["label", "value", "state"],
            ),
            seen_within: make.gauges(
                "units_seen_within",
                "Units whose last heartbeat is at most that old.",
                &["window"],
            ),
            hints_dropped: make.int_counter(
                "hints_dropped_total",
                "Expiry notifications that found the queue full; the sweep finds their units.",
            ),
            connections_cut: make.counters(
                "http_connections_cut_total",
                "Connections to the web server that it closed or did not take, by the reason.",
                &["reason"],
            ),
        };
        series.start_at_zero();
        make.build_info();
        series
    }

    fn start_at_zero(&self) {
        for heard in HEARD {
            self.heartbeats.with_label_values(&[heard_as_str(heard)]);
        }
        for reason in Rejection::ALL {
            self.heartbeats.with_label_values(&[reason.as_str()]);
        }
        for oddity in Oddity::ALL {
            self.oddities.with_label_values(&[oddity.as_str()]);
        }
        for command in TOLD_APART {
            self.engine_command.with_label_values(&[command]);
        }
        for kept in Kept::ALL {
            self.unit_values.with_label_values(&[kept.as_str()]);
        }
        for cut in Cut::ALL {
            self.connections_cut.with_label_values(&[cut.as_str()]);
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

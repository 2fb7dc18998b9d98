//! Kinds of units, and the values in their messages that are metrics: `[[kind]]`.

use serde::{Deserialize, Serialize};

use crate::config::Span;
use crate::presence;

section! {
    Kind {
        name: String = "detector".into(),
        topics: Vec<String> = vec!["units/{unit}/heartbeat".into(), "units/{unit}/data".into()],
        brokers: Vec<String> = Vec::new(),
        unit: Option<String> = None,
        presence: Presence = Default::default(),
        timeout: Span = Span(presence::DEFAULT_TIMEOUT),
        grace: Span = Span::from_secs(0),
        accept_timeout: bool = true,
        accept_sleep: bool = true,
        max_sleep: Span = Span(presence::MAX_TIMEOUT),
        clock: ClockSource = ClockSource::Arrival,
        registry: Registry = Registry::Open,
        first_timeout: Span = Span::from_secs(0),
        forget_after: Span = Span::from_days(30),
        max_units: u64 = presence::DEFAULT_MAX_UNITS,
        archive_after: Span = Span::from_secs(0),
        flapping: crate::config::flapping::Flapping = Default::default(),
        metric: Vec<Metric> = Vec::new(),
    }
}

section! {
    /// What devices, brokers and bridges announce of units of a kind.
    Presence {
        format: PresenceFormat = PresenceFormat::None,
        trust: Trust = Trust::Hint,
        settle: Span = Span::from_secs(10),
        on_planned: OnPlanned = OnPlanned::Ignore,
        topics: Vec<String> = Vec::new(),
        online: Vec<String> = vec!["online".into()],
        offline: Vec<String> = vec!["offline".into()],
        field: String = String::new(),
        bridge: String = String::new(),
        host: String = String::new(),
        rebirth: bool = false,
    }
}

/// The format of announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "options are explained in config/reference.toml, their one home")]
pub enum PresenceFormat {
    None,
    LastWill,
    Tasmota,
    Homie,
    Zigbee2mqtt,
    #[serde(rename = "homeassistant")]
    HomeAssistant,
    Esphome,
    Emqx,
    Mosquitto,
    Aws,
    Sparkplug,
}

choice! {
    /// What an announcement that a unit is gone is worth.
    Trust { Hint, Proof }
}

choice! {
    /// What follows from a departure that is planned.
    OnPlanned { Pause, Offline, Ignore }
}

section! {
    /// A value in the messages of units of a kind.
    Metric {
        name: String = String::new(),
        pointer: String = String::new(),
        #[serde(rename = "type")]
        metric_type: Option<MetricType> = None,
        help: String = String::new(),
        unit: String = String::new(),
        label: String = "value".into(),
    }
}

choice! {
    /// The type of the metric in Prometheus.
    MetricType { Gauge, Counter, Info }
}

choice! {
    /// The time of a heartbeat.
    ClockSource { Arrival, Device }
}

choice! {
    /// Whether a heartbeat registers a new unit.
    Registry { Open, Closed }
}

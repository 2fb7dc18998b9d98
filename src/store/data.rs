//! Metrics of units: battery, signal, firmware.
//!
//! A kind names [`Metric`]s that are read from its messages. The engine keeps the newest value of each unit and
//! metric, as the text for Prometheus; Prometheus keeps the history. No rule depends on values. Values are removed
//! with their unit.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Layout, Result};
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};

/// The longest value, in bytes.
pub const MAX_VALUE: usize = 128;

/// The type of a metric in Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A number that goes up and down.
    Gauge,
    /// A number that only grows, until it starts again. The name of the metric ends in `_total`.
    Counter,
    /// A text, as a label of a series that is always 1. The name of the metric ends in `_info`.
    Info,
}

impl MetricType {
    /// The name of the type in the configuration and in OpenMetrics.
    pub fn as_str(self) -> &'static str {
        match self {
            MetricType::Gauge => "gauge",
            MetricType::Counter => "counter",
            MetricType::Info => "info",
        }
    }
}

/// A metric of the units of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name of the series of this metric.
    pub name: String,
    /// The location of the value in a message: the tokens of a JSON pointer (RFC 6901).
    pub pointer: Vec<String>,
    pub metric_type: MetricType,
    pub help: String,
    /// The unit of measurement, which ends the name; empty for a metric without one.
    pub unit: String,
    /// The label with the text of an info.
    pub label: String,
}

/// The metrics of every kind; most kinds have none.
#[derive(Clone, Debug, Default)]
pub struct Catalogue(HashMap<Kind, Arc<[Metric]>>);

impl Catalogue {
    /// A name has the same meaning in all kinds.
    pub fn new(kinds: impl IntoIterator<Item = (Kind, Vec<Metric>)>) -> Catalogue {
        let some = kinds.into_iter().filter(|(_, metrics)| !metrics.is_empty());
        Catalogue(some.map(|(kind, metrics)| (kind, metrics.into())).collect())
    }

    /// Kinds that have metrics.
    pub fn kinds(&self) -> impl Iterator<Item = (&Kind, &Arc<[Metric]>)> {
        self.0.iter()
    }

    pub fn of(&self, kind: &Kind) -> &[Metric] {
        self.0.get(kind).map(|metrics| &**metrics).unwrap_or_default()
    }

    /// Whether no kind has metrics.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each metric once, by name.
    pub fn metrics(&self) -> Vec<Metric> {
        let all = self.0.values().flat_map(|metrics| metrics.iter());
        let by_name: BTreeMap<&str, &Metric> = all.map(|metric| (metric.name.as_str(), metric)).collect();
        by_name.into_values().cloned().collect()
    }
}

/// A value to be written.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    pub unit: &'a Unit,
    /// The name of the metric.
    pub metric: &'a str,
    /// The moment of the heartbeat that brought the value.
    pub at: Timestamp,
    /// The value as text, at most [`MAX_VALUE`] bytes without control characters.
    pub value: &'a str,
}

/// The newest value of a metric of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricValue {
    /// The moment of the heartbeat that brought the value.
    pub at: Timestamp,
    pub text: String,
}

/// The newest values of units.
#[async_trait]
pub trait DataStore: Layout {
    /// Writes values, unless a newer value of the same metric and unit is stored. Values of unknown and removed units
    /// are dropped. Answers, in order, whether the unit is known. Safe to repeat.
    async fn keep_values(&self, readings: &[Reading<'_>]) -> Result<Vec<bool>>;

    /// The values of one unit, in the order of the metrics named.
    async fn values(&self, unit: &Unit, metrics: &[&str]) -> Result<Vec<Option<MetricValue>>>;

    /// The values of one metric on some of the [`super::Layout::pages`] of a partition, with the names of their units
    /// (`<kind>:<unit>`), in any order. Every value of a partition is on exactly one page. Values of a unit that was
    /// just removed may still be included.
    async fn walk_values(
        &self,
        partition: u16,
        metric: &str,
        pages: Range<u32>,
    ) -> Result<Vec<(String, String)>>;

    /// Removes the values of those `units` that are unknown or removed, also values of metrics that are not configured
    /// any more. Safe to repeat.
    async fn forget_values(&self, units: &[Unit]) -> Result<()>;
}

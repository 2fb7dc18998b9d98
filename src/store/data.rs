//! What units tell of themselves beside that they live: battery, signal, firmware.
//!
//! A kind names [`Metric`]s that are taken from its messages. The engine keeps of each unit and metric
//! the newest value, as the text that Prometheus is given, and nothing older: history is Prometheus's.
//! Values decide nothing; they belong to their unit and leave with it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Layout, Result};
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};

/// The longest value, in bytes.
pub const LONGEST_VALUE: usize = 128;

/// What a value is to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A number that goes up and down.
    Gauge,
    /// A number that only grows, until it begins anew. Its name ends in `_total`.
    Counter,
    /// A text, as a label of a series that is always 1. Its name ends in `_info`.
    Info,
}

impl MetricType {
    /// The word for it in the configuration and in OpenMetrics.
    pub fn as_str(self) -> &'static str {
        match self {
            MetricType::Gauge => "gauge",
            MetricType::Counter => "counter",
            MetricType::Info => "info",
        }
    }
}

/// A value that units of a kind tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name of its series.
    pub name: String,
    /// Where it stands in a message: the tokens of a JSON pointer (RFC 6901).
    pub pointer: Vec<String>,
    /// What it is.
    pub metric_type: MetricType,
    /// What it means.
    pub help: String,
    /// In what it is measured; empty: in nothing. The name ends in it.
    pub unit: String,
    /// The label that has the text of an info.
    pub label: String,
}

/// The metrics of every kind; most kinds have none.
#[derive(Clone, Debug, Default)]
pub struct Catalogue(HashMap<Kind, Arc<[Metric]>>);

impl Catalogue {
    /// The metrics of kinds. One name means the same wherever it is.
    pub fn new(kinds: impl IntoIterator<Item = (Kind, Vec<Metric>)>) -> Catalogue {
        let some = kinds.into_iter().filter(|(_, metrics)| !metrics.is_empty());
        Catalogue(some.map(|(kind, metrics)| (kind, metrics.into())).collect())
    }

    /// Kinds that have metrics.
    pub fn kinds(&self) -> impl Iterator<Item = (&Kind, &Arc<[Metric]>)> {
        self.0.iter()
    }

    /// The metrics of a kind.
    pub fn of(&self, kind: &Kind) -> &[Metric] {
        self.0.get(kind).map(|metrics| &**metrics).unwrap_or_default()
    }

    /// Whether no kind has any.
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

/// A value on its way into the engine.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// Whose.
    pub unit: &'a Unit,
    /// The name of the metric.
    pub metric: &'a str,
    /// The moment of the heartbeat that brought it.
    pub at: Timestamp,
    /// The value as text, at most [`LONGEST_VALUE`] bytes without control characters.
    pub value: &'a str,
}

/// A value as the engine holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The moment of the heartbeat that brought it.
    pub at: Timestamp,
    /// The value as text.
    pub text: String,
}

/// The newest values of units.
#[async_trait]
pub trait DataStore: Layout {
    /// Writes values, unless there is a newer one of the same metric and unit. A unit that is not
    /// known, or was removed, gets none. Answers, in order, whether the unit is known. Safe to repeat.
    async fn keep_values(&self, readings: &[Reading<'_>]) -> Result<Vec<bool>>;

    /// The values of one unit, in the order of the metrics named.
    async fn values(&self, unit: &Unit, metrics: &[&str]) -> Result<Vec<Option<Value>>>;

    /// The values of one metric on some pages of a partition, with the names of their units
    /// (`<kind>:<unit>`), in any order. There are as many pages as [`super::Layout::pages`] says;
    /// every value of a partition is on exactly one. Values of a unit that was removed a moment ago may
    /// still be among them.
    async fn walk_values(
        &self,
        partition: u16,
        metric: &str,
        pages: Range<u32>,
    ) -> Result<Vec<(String, String)>>;

    /// Removes the values of those of these units that are not known or were removed, also of metrics
    /// that are configured no more. Safe to repeat.
    async fn forget_values(&self, units: &[Unit]) -> Result<()>;
}

//! Values of metrics that wait to be written to the engine.
//!
//! Values arrive faster than it is worth writing them. So the newest value of each unit and metric waits here for a
//! moment. Values are written in batches, one after the other; a value that arrives meanwhile waits for the next round.
//! A crash loses the waiting values; the next message brings them again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::engine_writer::EngineWriter;
use super::kind_metrics::KindMetrics;
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};
use crate::store::{Catalogue, Reading};
use crate::telemetry::{Loop, Telemetry, ValueOutcome};

/// The longest wait of values while the engine answers.
const ROUND: Duration = Duration::from_secs(2);
/// The most units with waiting values. Values of further units are counted, and the next message brings them again.
/// While a round is written, as many again may collect.
const MAX_UNITS: usize = 100_000;
/// The most units in one batch: some sixty for each of the usual number of partitions.
const BATCH: usize = 1000;
/// The most attempts for values of a unit that the engine does not know: its first heartbeat may not be recorded yet.
const MAX_ATTEMPTS: u8 = 3;

/// The newest values of units that wait.
pub struct ValueBuffer {
    kinds: HashMap<Kind, KindMetrics>,
    waiting: Mutex<HashMap<Unit, UnitValues, FixedState>>,
    telemetry: Arc<Telemetry>,
}

/// The values of one unit that wait.
#[derive(Default)]
struct UnitValues {
    tried: u8,
    /// The values, each with the index of its metric in the kind.
    values: Vec<(u8, Timestamp, Box<str>)>,
}

impl UnitValues {
    fn put(&mut self, metric: u8, at: Timestamp, value: Box<str>) {
        match self.values.iter_mut().find(|(known, ..)| *known == metric) {
            Some((_, before, _)) if *before > at => {}
            Some(old) => *old = (metric, at, value),
            None => self.values.push((metric, at, value)),
        }
    }
}

impl ValueBuffer {
    /// `None` if no kind has metrics.
    pub fn new(catalogue: &Catalogue, telemetry: Arc<Telemetry>) -> Option<ValueBuffer> {
        let kinds = catalogue.kinds();
        let kinds = kinds.map(|(kind, metrics)| (kind.clone(), KindMetrics::new(metrics.clone())));
        let new = || ValueBuffer { kinds: kinds.collect(), waiting: Mutex::default(), telemetry };
        (!catalogue.is_empty()).then(new)
    }

    pub(super) fn metrics_of(&self, kind: &Kind) -> Option<&KindMetrics> {
        self.kinds.get(kind)
    }

    /// Takes the values of a message that was sent at this moment.
    pub(super) fn take(&self, unit: &Unit, at: Timestamp, values: Vec<(u8, Box<str>)>) {
        if values.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock();
        let full = waiting.len() >= MAX_UNITS;
        match waiting.get_mut(unit) {
            Some(known) => values.into_iter().for_each(|(metric, value)| known.put(metric, at, value)),
            None if full => self.telemetry.unit_values(ValueOutcome::Overflow, values.len() as u64),
            None => {
                let values = values.into_iter().map(|(metric, value)| (metric, at, value)).collect();
                waiting.insert(unit.clone(), UnitValues { tried: 0, values });
            }
        }
    }

    /// Writes the waiting values, round by round, until `stop`; then once more.
    pub(super) async fn write(&self, writer: &EngineWriter, stop: &CancellationToken) {
        loop {
            let is_last = stop.run_until_cancelled(tokio::time::sleep(ROUND)).await.is_none();
            if is_last {
                // A stop waits no longer than this: the next messages bring the rest.
                let _ = tokio::time::timeout(ROUND, self.round(writer)).await;
                return;
            }
            self.round(writer).await;
        }
    }

    async fn round(&self, writer: &EngineWriter) {
        let round: Vec<(Unit, UnitValues)> = std::mem::take(&mut *self.waiting.lock()).into_iter().collect();
        let mut rest = round.into_iter();
        loop {
            let batch: Vec<(Unit, UnitValues)> = rest.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return;
            }
            match writer.roll.keep_values(&self.readings(&batch)).await {
                Ok(known) => {
                    writer.telemetry.engine_answered(Loop::Values, "");
                    self.written(batch, known);
                }
                Err(error) => {
                    writer.telemetry.engine_failed(Loop::Values, "", &error);
                    // The values wait for the next round, unless a newer value arrived meanwhile.
                    return self.put_back(batch.into_iter().chain(rest));
                }
            }
        }
    }

    fn readings<'a>(&'a self, batch: &'a [(Unit, UnitValues)]) -> Vec<Reading<'a>> {
        let of_unit = |(unit, waiting): &'a (Unit, UnitValues)| {
            let metrics = &self.kinds[&unit.kind].metrics;
            waiting.values.iter().map(move |(metric, at, value)| Reading {
                unit,
                metric: &metrics[usize::from(*metric)].name,
                at: *at,
                value,
            })
        };
        batch.iter().flat_map(of_unit).collect()
    }

    fn written(&self, batch: Vec<(Unit, UnitValues)>, known: Vec<bool>) {
        let mut known = known.into_iter();
        let (mut written, mut unknown) = (0, 0);
        let mut again = Vec::new();
        for (unit, mut waiting) in batch {
            let count = waiting.values.len();
            // All values of a unit have the same answer.
            if known.by_ref().take(count).filter(|known| *known).count() == count {
                written += count;
                continue;
            }
            waiting.tried += 1;
            if waiting.tried < MAX_ATTEMPTS {
                again.push((unit, waiting));
            } else {
                unknown += count;
            }
        }
        self.telemetry.unit_values(ValueOutcome::Written, written as u64);
        self.telemetry.unit_values(ValueOutcome::UnknownUnit, unknown as u64);
        self.put_back(again.into_iter());
    }

    fn put_back(&self, values: impl Iterator<Item = (Unit, UnitValues)>) {
        let mut waiting = self.waiting.lock();
        for (unit, before) in values {
            let now = waiting.entry(unit).or_default();
            now.tried = now.tried.max(before.tried);
            for (metric, at, value) in before.values {
                if now.values.iter().all(|(known, ..)| *known != metric) {
                    now.put(metric, at, value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::intake::PayloadIssues;
    use crate::intake::json::{FieldSelection, scan};
    use crate::store::{Metric, MetricType};

    fn buffer() -> ValueBuffer {
        let metric = |name: &str| Metric {
            name: name.to_owned(),
            pointer: vec![name.to_owned()],
            metric_type: MetricType::Gauge,
            help: "any".to_owned(),
            unit: String::new(),
            label: String::new(),
        };
        let catalogue = Catalogue::new([("pump".parse().unwrap(), vec![metric("volts"), metric("bars")])]);
        ValueBuffer::new(&catalogue, Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)))).unwrap()
    }

    fn take(buffer: &ValueBuffer, unit: &str, at: i64, payload: &str) {
        let unit: Unit = unit.parse().unwrap();
        let Some(metrics) = buffer.metrics_of(&unit.kind) else { return };
        let wanted = FieldSelection { fields: None, metrics: Some(&metrics.tree) };
        let found = scan(payload.as_bytes(), wanted).unwrap().values;
        let values = metrics.accept(found, &mut PayloadIssues::default());
        buffer.take(&unit, Timestamp::from_millis(at), values);
    }

    /// The values that wait, sorted.
    fn waiting(buffer: &ValueBuffer) -> Vec<(String, String, i64, String)> {
        let waiting = std::mem::take(&mut *buffer.waiting.lock());
        let batch: Vec<(Unit, UnitValues)> = waiting.into_iter().collect();
        let text = |r: &Reading| (r.unit.to_string(), r.metric.into(), r.at.as_millis(), r.value.into());
        let mut all: Vec<_> = buffer.readings(&batch).iter().map(text).collect();
        buffer.put_back(batch.into_iter());
        all.sort();
        all
    }

    #[test]
    fn of_each_metric_the_newest_value_waits_whatever_the_order() {
        let buffer = buffer();
        take(&buffer, "pump:1", 5, "{\"volts\":1,\"bars\":7}");
        take(&buffer, "pump:1", 9, "{\"volts\":2}");
        take(&buffer, "pump:1", 7, "{\"volts\":3}");
        take(&buffer, "meter:1", 7, "{\"volts\":4}");
        let value =
            |metric: &str, at, value: &str| ("pump:1".to_owned(), metric.to_owned(), at, value.to_owned());
        assert_eq!(waiting(&buffer), [value("bars", 5, "7"), value("volts", 9, "2")]);
        // The old values are put back; a value that arrived meanwhile is newer and stays.
        let before = std::mem::take(&mut *buffer.waiting.lock());
        take(&buffer, "pump:1", 8, "{\"volts\":4}");
        buffer.put_back(before.into_iter());
        assert_eq!(waiting(&buffer), [value("bars", 5, "7"), value("volts", 8, "4")]);
    }

    #[test]
    fn a_unit_that_is_not_known_is_tried_a_few_times() {
        let buffer = buffer();
        take(&buffer, "pump:1", 5, "{\"volts\":1,\"bars\":7}");
        for left in [1, 1, 0] {
            let batch = std::mem::take(&mut *buffer.waiting.lock()).into_iter().collect();
            buffer.written(batch, vec![false, false]);
            assert_eq!(buffer.waiting.lock().len(), left);
        }
    }

    #[test]
    fn units_beyond_the_bound_wait_for_their_next_message() {
        let buffer = buffer();
        for unit in 0..MAX_UNITS + 10 {
            take(&buffer, &format!("pump:{unit}"), 5, "{\"volts\":1}");
        }
        assert_eq!(buffer.waiting.lock().len(), MAX_UNITS);
        take(&buffer, "pump:1", 6, "{\"volts\":2}");
        assert_eq!(
            &*buffer.waiting.lock()[&"pump:1".parse().unwrap()].values[0].2,
            "2",
            "those that wait go on"
        );
    }
}

//! What units tell of themselves, on its way to the engine.
//!
//! Messages bring values faster than they are worth writing. So they wait here for a moment, of each
//! unit and metric the newest, and are written in steps, one after the other: what comes in between
//! waits for the next turn. A crash loses what waits; the next message brings it again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio_util::sync::CancellationToken;

use super::PayloadIssues;
use super::fields::Tree;
use super::record::Writer;
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};
use crate::store::{Catalogue, Metric, Reading};
use crate::telemetry::{Loop, Telemetry, ValueOutcome};

/// How long values wait, at the most, while the engine answers.
const TURN: Duration = Duration::from_secs(2);
/// The most units whose values wait. Beyond, values are counted and left to the next message. While a
/// turn is written as many again may gather.
const MOST_UNITS: usize = 100_000;
/// Units whose values are written in one step: some sixty for each partition that there usually is.
const STEP: usize = 1000;
/// How often values of a unit that the engine does not know are tried: its first heartbeat may
/// still be on its way there.
const TRIES: u8 = 3;

/// Takes values from messages and writes them.
pub(super) struct Told {
    kinds: HashMap<Kind, (Tree, Arc<[Metric]>)>,
    waiting: Mutex<HashMap<Unit, Waiting, FixedState>>,
    telemetry: Arc<Telemetry>,
}

/// What waits of one unit.
#[derive(Default)]
struct Waiting {
    tried: u8,
    /// By the place of the metric in its kind.
    values: Vec<(u8, Timestamp, Box<str>)>,
}

impl Waiting {
    fn put(&mut self, metric: u8, at: Timestamp, value: Box<str>) {
        match self.values.iter_mut().find(|(known, ..)| *known == metric) {
            Some((_, before, _)) if *before > at => {}
            Some(old) => *old = (metric, at, value),
            None => self.values.push((metric, at, value)),
        }
    }
}

impl Told {
    /// Takes what the catalogue names; `None` if that is nothing.
    pub fn new(catalogue: &Catalogue, telemetry: Arc<Telemetry>) -> Option<Told> {
        let kinds = catalogue.kinds().map(|(kind, metrics)| {
            let pointers = metrics.iter().map(|metric| metric.pointer.as_slice());
            (kind.clone(), (Tree::new(pointers), metrics.clone()))
        });
        (!catalogue.is_empty()).then(|| Told { kinds: kinds.collect(), waiting: Mutex::default(), telemetry })
    }

    /// Takes the values of a message that was sent at that moment.
    pub fn take(&self, unit: &Unit, at: Timestamp, payload: &[u8], odd: &mut PayloadIssues) {
        let Some((tree, metrics)) = self.kinds.get(&unit.kind) else { return };
        let values = tree.read(payload, metrics, odd);
        if values.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        let full = waiting.len() >= MOST_UNITS;
        match waiting.get_mut(unit) {
            Some(known) => values.into_iter().for_each(|(metric, value)| known.put(metric, at, value)),
            None if full => self.telemetry.unit_values(ValueOutcome::Overflow, values.len() as u64),
            None => {
                let values = values.into_iter().map(|(metric, value)| (metric, at, value)).collect();
                waiting.insert(unit.clone(), Waiting { tried: 0, values });
            }
        }
    }

    /// Writes what waits, turn by turn, until `stop`; then once more.
    pub async fn write(&self, writer: &Writer, stop: &CancellationToken) {
        loop {
            let is_last = stop.run_until_cancelled(tokio::time::sleep(TURN)).await.is_none();
            if is_last {
                // Not longer than anybody should wait for it: the next messages bring the rest.
                let _ = tokio::time::timeout(TURN, self.turn(writer)).await;
                return;
            }
            self.turn(writer).await;
        }
    }

    async fn turn(&self, writer: &Writer) {
        let turn: Vec<(Unit, Waiting)> = std::mem::take(&mut *self.lock()).into_iter().collect();
        let mut rest = turn.into_iter();
        loop {
            let step: Vec<(Unit, Waiting)> = rest.by_ref().take(STEP).collect();
            if step.is_empty() {
                return;
            }
            match writer.roll.keep_values(&self.readings(&step)).await {
                Ok(known) => {
                    writer.telemetry.engine_answered(Loop::Values, "");
                    self.written(step, known);
                }
                Err(error) => {
                    writer.telemetry.engine_failed(Loop::Values, "", &error);
                    // With the next turn; what came meanwhile is newer.
                    return self.put_back(step.into_iter().chain(rest));
                }
            }
        }
    }

    fn readings<'a>(&'a self, step: &'a [(Unit, Waiting)]) -> Vec<Reading<'a>> {
        let of_unit = |(unit, waiting): &'a (Unit, Waiting)| {
            let metrics = &self.kinds[&unit.kind].1;
            waiting.values.iter().map(move |(metric, at, value)| Reading {
                unit,
                metric: &metrics[usize::from(*metric)].name,
                at: *at,
                value,
            })
        };
        step.iter().flat_map(of_unit).collect()
    }

    fn written(&self, step: Vec<(Unit, Waiting)>, known: Vec<bool>) {
        let mut known = known.into_iter();
        let (mut written, mut unknown) = (0, 0);
        let mut again = Vec::new();
        for (unit, mut waiting) in step {
            let count = waiting.values.len();
            // All values of a unit have the same answer.
            if known.by_ref().take(count).filter(|known| *known).count() == count {
                written += count;
                continue;
            }
            waiting.tried += 1;
            if waiting.tried < TRIES {
                again.push((unit, waiting));
            } else {
                unknown += count;
            }
        }
        self.telemetry.unit_values(ValueOutcome::Written, written as u64);
        self.telemetry.unit_values(ValueOutcome::UnknownUnit, unknown as u64);
        self.put_back(again.into_iter());
    }

    fn put_back(&self, values: impl Iterator<Item = (Unit, Waiting)>) {
        let mut waiting = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Unit, Waiting, FixedState>> {
        self.waiting.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::MetricType;

    fn told() -> Told {
        let metric = |name: &str| Metric {
            name: name.to_owned(),
            pointer: vec![name.to_owned()],
            metric_type: MetricType::Gauge,
            help: "any".to_owned(),
            unit: String::new(),
            label: String::new(),
        };
        let catalogue = Catalogue::new([("pump".parse().unwrap(), vec![metric("volts"), metric("bars")])]);
        Told::new(&catalogue, Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)))).unwrap()
    }

    fn take(told: &Told, unit: &str, at: i64, payload: &str) {
        let at = Timestamp::from_millis(at);
        told.take(&unit.parse().unwrap(), at, payload.as_bytes(), &mut PayloadIssues::default());
    }

    /// What waits, sorted.
    fn waiting(told: &Told) -> Vec<(String, String, i64, String)> {
        let waiting = std::mem::take(&mut *told.lock());
        let step: Vec<(Unit, Waiting)> = waiting.into_iter().collect();
        let text = |r: &Reading| (r.unit.to_string(), r.metric.into(), r.at.as_millis(), r.value.into());
        let mut all: Vec<_> = told.readings(&step).iter().map(text).collect();
        told.put_back(step.into_iter());
        all.sort();
        all
    }

    #[test]
    fn of_each_metric_the_newest_value_waits_whatever_the_order() {
        let told = told();
        take(&told, "pump:1", 5, "{\"volts\":1,\"bars\":7}");
        take(&told, "pump:1", 9, "{\"volts\":2}");
        take(&told, "pump:1", 7, "{\"volts\":3}");
        take(&told, "meter:1", 7, "{\"volts\":4}");
        let value =
            |metric: &str, at, value: &str| ("pump:1".to_owned(), metric.to_owned(), at, value.to_owned());
        assert_eq!(waiting(&told), [value("bars", 5, "7"), value("volts", 9, "2")]);
        // Put back beside one that came meanwhile.
        let before = std::mem::take(&mut *told.lock());
        take(&told, "pump:1", 8, "{\"volts\":4}");
        told.put_back(before.into_iter());
        assert_eq!(waiting(&told), [value("bars", 5, "7"), value("volts", 8, "4")]);
    }

    #[test]
    fn a_unit_that_is_not_known_is_tried_a_few_times() {
        let told = told();
        take(&told, "pump:1", 5, "{\"volts\":1,\"bars\":7}");
        for left in [1, 1, 0] {
            let step = std::mem::take(&mut *told.lock()).into_iter().collect();
            told.written(step, vec![false, false]);
            assert_eq!(told.lock().len(), left);
        }
    }

    #[test]
    fn units_beyond_the_bound_wait_for_their_next_message() {
        let told = told();
        for unit in 0..MOST_UNITS + 10 {
            take(&told, &format!("pump:{unit}"), 5, "{\"volts\":1}");
        }
        assert_eq!(told.lock().len(), MOST_UNITS);
        take(&told, "pump:1", 6, "{\"volts\":2}");
        assert_eq!(&*told.lock()[&"pump:1".parse().unwrap()].values[0].2, "2", "those that wait go on");
    }
}

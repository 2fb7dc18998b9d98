//! The instances, the mirror, and how many units are in which state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Telemetry;
use super::problems::{Severity, UNUSUAL_FULL};
use crate::clock::Timestamp;
use crate::presence::State;

impl Telemetry {
    /// The number of instances, and the number of partitions that this one owns.
    pub fn ownership(&self, instances: usize, partitions: usize) {
        self.series.instances.set(instances as i64);
        self.series.partitions_owned.set(partitions as i64);
    }

    /// The age of the oldest part of the mirror; `None` if nothing is mirrored.
    pub fn mirror_age(&self, age: Option<Duration>) {
        match age {
            Some(age) => self.series.mirror_age.with_label_values::<&str>(&[]).set(age.as_secs_f64()),
            None => self.series.mirror_age.reset(),
        }
    }

    /// The number of units of a kind in a state.
    pub fn units(&self, kind: &str, state: &str, count: u64) {
        self.series.units.with_label_values(&[kind, state]).set(count as i64);
    }

    pub fn units_archived(&self, kind: &str, count: u64) {
        self.series.archived_units.with_label_values(&[kind]).set(count as i64);
    }

    /// The number of units of a kind whose silence is unusual.
    pub fn units_unusual(&self, kind: &str, count: u64) {
        self.series.unusual_units.with_label_values(&[kind]).set(count as i64);
    }

    /// There is room for notices of unusual silences again, or all `most` notices are taken and a unit waits for one.
    /// Logs the change.
    pub fn unusual_notices(&self, is_full: bool, most: usize) {
        if !is_full {
            if self.problems.clear(UNUSUAL_FULL, "") {
                tracing::info!(name = UNUSUAL_FULL, "problem is gone");
            }
            return;
        }
        let text = format!(
            "receivers are not notified of further units that are silent for unusually long: {most} are, and are not \
             offline. `rollcall units --unusual` lists them; look for what they share, or for a kind that needs no \
             unusual=\"true\""
        );
        if self.problems.set(UNUSUAL_FULL, "", text.clone(), Severity::Warning) {
            tracing::warn!("{text}");
        }
    }

    /// The last heartbeat of the unit of a kind that has been offline for longest; `None` if no unit is offline.
    pub fn silent_since(&self, kind: &str, moment: Option<Timestamp>) {
        let oldest = &self.series.oldest_outage;
        match moment {
            Some(moment) => oldest.with_label_values(&[kind]).set(moment.as_millis() as f64 / 1e3),
            // An error means that the series does not exist, which is fine.
            None => drop(oldest.remove_label_values(&[kind])),
        }
    }

    /// The number of units in each state, by label and value. Removes the series of values that are gone.
    pub fn units_by_label(&self, counted: BTreeMap<(String, String), [u64; State::ALL.len()]>) {
        let mut before = self.labels_counted.lock();
        for ((label, value), counts) in &counted {
            for (state, count) in State::ALL.iter().zip(counts) {
                self.series
                    .units_by_label
                    .with_label_values(&[label, value, state.as_str()])
                    .set(*count as i64);
            }
        }
        let now: BTreeSet<(String, String)> = counted.into_keys().collect();
        for (label, value) in before.difference(&now) {
            for state in State::ALL {
                // An error means that the series does not exist, which is fine.
                let _ = self.series.units_by_label.remove_label_values(&[label, value, state.as_str()]);
            }
        }
        *before = now;
    }

    /// The silences of units: the number of units within each span, their total, and the sum of their silences.
    pub fn silences(&self, within: impl IntoIterator<Item = (Duration, u64)>, units: u64, sum: Duration) {
        self.series.silence.set(within, units, sum);
    }
}

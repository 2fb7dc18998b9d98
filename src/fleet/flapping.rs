//! The last transitions of units whose kinds have flap detection, between the store and the rule in
//! `presence/flapping.rs`.
//!
//! The store is read and written only for such kinds. A transition is noted by the instance that lets it join its
//! groups, before it joins; noting it again changes nothing. Several instances may note transitions of one unit: each
//! change is decided from the transitions as read, and decided again if these have changed meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use crate::clock::Timestamp;
use crate::presence::{FlapNotification, FlapRule, Flaps, Kind, OfflineRecord, Unit};
use crate::store::{EngineError, FlapChange, FlapStore, Result};
use crate::telemetry::Telemetry;

/// How often a change is decided again while other instances change the same unit.
const ATTEMPTS: usize = 20;
/// How many units are read in one step.
const STEP: usize = 500;

/// The kinds that have flap detection.
pub type FlapRules = BTreeMap<Kind, FlapRule>;

/// A unit as it is stored.
#[derive(Clone, Debug)]
pub struct StoredFlaps {
    pub unit: Unit,
    pub flaps: Flaps,
    text: Option<String>,
}

impl StoredFlaps {
    /// The same after it was written.
    pub fn written(&self, flaps: &Flaps) -> Result<StoredFlaps> {
        Ok(StoredFlaps { unit: self.unit.clone(), flaps: flaps.clone(), text: Some(json(flaps)?) })
    }

    /// One that cannot be read counts as none.
    fn of(unit: Unit, text: Option<String>) -> StoredFlaps {
        let flaps = text.as_ref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        StoredFlaps { unit, flaps, text }
    }
}

/// The last transitions of units.
pub struct Flapping {
    store: Arc<dyn FlapStore>,
    rules: FlapRules,
    telemetry: Arc<Telemetry>,
    /// How many units of each kind flap, as far as this instance knows.
    counts: Mutex<HashMap<Kind, i64>>,
}

impl Flapping {
    pub fn new(store: Arc<dyn FlapStore>, rules: FlapRules, telemetry: Arc<Telemetry>) -> Flapping {
        Flapping { store, rules, telemetry, counts: Mutex::default() }
    }

    /// Whether a kind has flap detection; if not, the store is asked only for what an earlier configuration left.
    pub fn is_configured(&self) -> bool {
        !self.rules.is_empty()
    }

    pub fn rule(&self, kind: &Kind) -> Option<&FlapRule> {
        self.rules.get(kind)
    }

    /// Notes transitions, in order. Answers the notification that follows each.
    pub async fn note(&self, records: &[&OfflineRecord]) -> Result<Vec<FlapNotification>> {
        let mut noted = vec![FlapNotification::Plain; records.len()];
        let mut by_unit: BTreeMap<&Unit, Vec<usize>> = BTreeMap::new();
        for (at, record) in records.iter().enumerate().filter(|(_, one)| self.rules.contains_key(&one.kind)) {
            by_unit.entry(&record.id.unit).or_default().push(at);
        }
        for _ in 0..ATTEMPTS {
            if by_unit.is_empty() {
                return Ok(noted);
            }
            let units: Vec<Unit> = by_unit.keys().map(|unit| (*unit).clone()).collect();
            let mut changes = Vec::new();
            for stored in self.read(&units).await? {
                let rule = self.rules[&stored.unit.kind];
                let mut flaps = stored.flaps.clone();
                for at in &by_unit[&stored.unit] {
                    noted[*at] = flaps.note(records[*at], &rule);
                }
                if flaps == stored.flaps {
                    by_unit.remove(&stored.unit);
                } else {
                    let look = flaps.look_at(Some(&rule));
                    changes.push((stored, Some((flaps, look))));
                }
            }
            let written = self.change(&changes).await?;
            for ((stored, _), _) in changes.iter().zip(written).filter(|(_, is_written)| *is_written) {
                by_unit.remove(&stored.unit);
            }
        }
        let why = format!("others changed the transitions of a unit {ATTEMPTS} times meanwhile");
        Err(EngineError::Unavailable(why))
    }

    /// Those of these units that flap, each with its episode.
    pub async fn lasting<'a>(
        &self,
        units: impl Iterator<Item = &'a Unit>,
    ) -> Result<HashMap<Unit, OfflineRecord>> {
        let units: Vec<Unit> = units.filter(|unit| self.rules.contains_key(&unit.kind)).cloned().collect();
        let stored = self.read(&units).await?.into_iter();
        Ok(stored.filter_map(|one| Some((one.unit, one.flaps.lasting()?.clone()))).collect())
    }

    /// All units of these partitions that flap, each with its episode.
    pub async fn all_lasting(&self, partitions: &[u16]) -> Result<HashMap<Unit, OfflineRecord>> {
        let mut all = HashMap::new();
        for partition in partitions.iter().filter(|_| self.is_configured()) {
            for (unit, text) in self.store.flaps_in(*partition).await? {
                let StoredFlaps { unit, flaps, .. } = StoredFlaps::of(unit, Some(text));
                all.extend(flaps.lasting().map(|episode| (unit, episode.clone())));
            }
        }
        Ok(all)
    }

    /// Counts the units of these partitions that flap.
    pub async fn count(&self, partitions: &[u16]) -> Result<()> {
        let mut counts: HashMap<Kind, i64> = self.rules.keys().map(|kind| (kind.clone(), 0)).collect();
        for unit in self.all_lasting(partitions).await?.into_keys() {
            *counts.entry(unit.kind).or_default() += 1;
        }
        self.telemetry.flapping_units(&counts);
        *self.counts.lock().expect("nothing panics under this lock") = counts;
        Ok(())
    }

    /// Up to `limit` units of these partitions that are to be looked at by now.
    pub async fn due(&self, partitions: &[u16], now: Timestamp, limit: usize) -> Result<Vec<StoredFlaps>> {
        let due = self.store.due_flaps(partitions, now, limit).await?.into_iter();
        Ok(due.map(|(unit, text)| StoredFlaps::of(unit, text)).collect())
    }

    /// When the next unit of these partitions is to be looked at.
    pub async fn first(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        self.store.first_flaps(partitions).await
    }

    /// Writes each unit with the moment of its next look, or forgets it, if it is still as it was read. Answers, in
    /// order, which are written.
    pub async fn change(&self, changes: &[(StoredFlaps, Option<(Flaps, Timestamp)>)]) -> Result<Vec<bool>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let texts = changes.iter().map(|(stored, after)| {
            let after = after.as_ref().map(|(flaps, look)| Ok((json(flaps)?, *look))).transpose()?;
            Ok(FlapChange { unit: stored.unit.clone(), before: stored.text.clone(), after })
        });
        let written = self.store.change_flaps(&texts.collect::<Result<Vec<_>>>()?).await?;
        let mut counts = self.counts.lock().expect("nothing panics under this lock");
        for ((before, after), _) in changes.iter().zip(&written).filter(|(_, is_written)| **is_written) {
            let is_lasting = after.as_ref().is_some_and(|(flaps, _)| flaps.lasting().is_some());
            let change = i64::from(is_lasting) - i64::from(before.flaps.lasting().is_some());
            if change != 0 {
                *counts.entry(before.unit.kind.clone()).or_default() += change;
                self.telemetry.flapping_units(&counts);
            }
        }
        Ok(written)
    }

    async fn read(&self, units: &[Unit]) -> Result<Vec<StoredFlaps>> {
        let mut stored = Vec::with_capacity(units.len());
        for units in units.chunks(STEP) {
            let texts = self.store.flaps(units).await?;
            stored.extend(units.iter().cloned().zip(texts).map(|(unit, text)| StoredFlaps::of(unit, text)));
        }
        Ok(stored)
    }
}

fn json(flaps: &Flaps) -> Result<String> {
    serde_json::to_string(flaps).map_err(|error| EngineError::Damaged(format!("cannot be written: {error}")))
}

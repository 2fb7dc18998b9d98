//! The last transitions of units whose kinds have flap detection, between the store and the rule in
//! `presence/flapping.rs`.
//!
//! The store is read and written only for such kinds. A transition is noted by the instance that lets it join its
//! groups, before it joins; noting it again changes nothing. Several instances may note transitions of one unit: each
//! change is decided from the transitions as read, and decided again if these have changed meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{FlapNotification, FlapRule, Flaps, Kind, OfflineRecord, Unit};
use crate::store::{
    Cells, ChangeSet, Document, Documents, EngineError, Index, MAX_CHANGES, Result, Table, TableValue,
};
use crate::telemetry::Telemetry;

/// The kinds that have flap detection.
pub type FlapRules = BTreeMap<Kind, FlapRule>;

impl TableValue for Flaps {
    type Name = Unit;
    const TABLE: Table = Table::Flaps;
}

/// The record of an episode that lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct EpisodeRecord(OfflineRecord);

impl TableValue for EpisodeRecord {
    type Name = Unit;
    const TABLE: Table = Table::Episodes;
}

/// A unit as it is stored.
pub type StoredFlaps = Document<Flaps>;

/// The last transitions of units.
pub struct FlapDetector {
    documents: Documents,
    rules: FlapRules,
    telemetry: Arc<Telemetry>,
    /// How many units of each kind flap, as far as this instance knows.
    counts: Mutex<HashMap<Kind, i64>>,
}

impl FlapDetector {
    pub fn new(cells: Arc<dyn Cells>, rules: FlapRules, telemetry: Arc<Telemetry>) -> FlapDetector {
        FlapDetector { documents: Documents::new(cells), rules, telemetry, counts: Mutex::default() }
    }

    /// Whether a kind has flap detection; if not, the store is read only for units that an earlier configuration
    /// left.
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
        for _ in 0..MAX_CHANGES {
            if by_unit.is_empty() {
                return Ok(noted);
            }
            let units: Vec<Unit> = by_unit.keys().map(|unit| (*unit).clone()).collect();
            let mut changes = Vec::new();
            for stored in self.documents.read::<Flaps>(&units).await? {
                let rule = self.rules[&stored.name.kind];
                let before = stored.value.clone().unwrap_or_default();
                let mut flaps = before.clone();
                for at in &by_unit[&stored.name] {
                    noted[*at] = flaps.note(records[*at], &rule);
                }
                if flaps == before {
                    by_unit.remove(&stored.name);
                } else {
                    let look = flaps.look_at(Some(&rule));
                    changes.push((stored, Some((flaps, look))));
                }
            }
            let written = self.change(&changes).await?;
            for ((stored, _), _) in changes.iter().zip(written).filter(|(_, is_written)| *is_written) {
                by_unit.remove(&stored.name);
            }
        }
        Err(EngineError::contended("the transitions of a unit"))
    }

    /// The units that flap among `units`, each with its episode.
    pub async fn lasting<'a>(
        &self,
        units: impl Iterator<Item = &'a Unit>,
    ) -> Result<HashMap<Unit, OfflineRecord>> {
        let units: Vec<Unit> = units.filter(|unit| self.rules.contains_key(&unit.kind)).cloned().collect();
        let episodes = self.documents.read::<EpisodeRecord>(&units).await?.into_iter();
        Ok(episodes.filter_map(|one| Some((one.name, one.value?.0))).collect())
    }

    /// All units of some partitions that flap, each with its episode.
    pub async fn all_lasting(&self, partitions: &[u16]) -> Result<HashMap<Unit, OfflineRecord>> {
        if !self.is_configured() {
            return Ok(HashMap::new());
        }
        let episodes = self.documents.all::<EpisodeRecord>(partitions).await?.into_iter();
        Ok(episodes.map(|(unit, episode)| (unit, episode.0)).collect())
    }

    /// Counts the units that flap in some partitions.
    pub async fn count(&self, partitions: &[u16]) -> Result<()> {
        let mut counts: HashMap<Kind, i64> = self.rules.keys().map(|kind| (kind.clone(), 0)).collect();
        for unit in self.all_lasting(partitions).await?.into_keys() {
            *counts.entry(unit.kind).or_default() += 1;
        }
        self.telemetry.flapping_units(&counts);
        *self.counts.lock() = counts;
        Ok(())
    }

    /// Up to `limit` units of some partitions that are due for a check.
    pub async fn due(&self, partitions: &[u16], now: Timestamp, limit: usize) -> Result<Vec<StoredFlaps>> {
        self.documents.due(Index::FlapChecks, partitions, now, limit).await
    }

    /// When the next unit of some partitions is due for a check.
    pub async fn first(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        self.documents.first(Index::FlapChecks, partitions).await
    }

    /// Writes each unit with the moment of its next check, or removes it, if it is unchanged since it was read.
    /// Answers for each, in order, whether it was written.
    pub async fn change(&self, changes: &[(StoredFlaps, Option<(Flaps, Timestamp)>)]) -> Result<Vec<bool>> {
        let sets = changes.iter().map(|(stored, after)| self.change_set(stored, after.as_ref()));
        let written = self.documents.write(&sets.collect::<Result<Vec<_>>>()?).await?;
        let mut counts = self.counts.lock();
        for ((before, after), _) in changes.iter().zip(&written).filter(|(_, is_written)| **is_written) {
            let is_lasting =
                |flaps: Option<&Flaps>| i64::from(flaps.is_some_and(|flaps| flaps.lasting().is_some()));
            let change =
                is_lasting(after.as_ref().map(|(flaps, _)| flaps)) - is_lasting(before.value.as_ref());
            if change != 0 {
                *counts.entry(before.name.kind.clone()).or_default() += change;
                self.telemetry.flapping_units(&counts);
            }
        }
        Ok(written)
    }

    fn change_set(&self, stored: &StoredFlaps, after: Option<&(Flaps, Timestamp)>) -> Result<ChangeSet> {
        let name = stored.name.to_string();
        let episode = after.and_then(|(flaps, _)| Some(EpisodeRecord(flaps.lasting()?.clone())));
        let set = self.documents.change(stored, after.map(|(flaps, _)| flaps))?;
        let set = self.documents.put(set, &stored.name, episode.as_ref())?;
        Ok(set.enter(Index::FlapChecks, &name, after.map(|(_, at)| at.as_millis())))
    }
}

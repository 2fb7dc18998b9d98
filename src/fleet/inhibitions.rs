//! The units whose silence inhibits others, as this instance knows them.
//!
//! The store has the last record of each such unit. This instance holds a copy, and reads it again only when the
//! version has changed. The instance that lets a transition join enters it first, so every instance knows a source
//! before its transition is anywhere else. Entering is idempotent and independent of order: see [`replaces`].
//!
//! The stored sources follow from the open records. At the start, after a reload, and every few minutes both are
//! compared, which repairs the losses of a failover.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::collection::{Changed, Collection, DocumentsByName};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, Unit};
use crate::routing::{Inhibition, Inhibitors, replaces};
use crate::store::{Cells, Documents, EngineError, OpenPages, Queries, Result, Table, TableValue};
use crate::telemetry::Telemetry;

/// The most sources that are stored. Offline sources beyond this number inhibit nothing, which is logged.
const MAX_SOURCES: usize = 10_000;

/// How many records are read at once.
const AT_ONCE: usize = 16;

/// The last record of a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct SourceRecord(OfflineRecord);

impl TableValue for SourceRecord {
    type Name = Unit;
    const TABLE: Table = Table::Sources;
}

/// Sources by their units, each with its last record.
type RecordsBySource = HashMap<Unit, OfflineRecord>;

struct KnownSources {
    sources: RecordsBySource,
    inhibitors: Arc<Inhibitors>,
}

/// The units whose silence inhibits others.
pub struct Inhibitions {
    inhibition: Inhibition,
    telemetry: Arc<Telemetry>,
    known: Collection<SourceRecord, KnownSources>,
}

impl Inhibitions {
    pub fn new(cells: Arc<dyn Cells>, inhibition: Inhibition, telemetry: Arc<Telemetry>) -> Inhibitions {
        let (rules, counted) = (inhibition.clone(), telemetry.clone());
        let known = Collection::new(Documents::new(cells), move |sources: DocumentsByName<SourceRecord>| {
            let sources: RecordsBySource =
                sources.into_iter().map(|(unit, SourceRecord(record))| (unit, record)).collect();
            let inhibitors = Arc::new(Inhibitors::new(rules.clone(), sources.values()));
            KnownSources { sources, inhibitors }
        });
        let known = known.on_new(move |known| counted.inhibiting_units(known.inhibitors.open()));
        Inhibitions { inhibition, telemetry, known }
    }

    /// Whether there are rules; if not, the store is never read.
    pub fn is_configured(&self) -> bool {
        !self.inhibition.is_empty()
    }

    /// The current sources.
    pub async fn current(&self) -> Result<Arc<Inhibitors>> {
        if !self.is_configured() {
            return Ok(Arc::default());
        }
        Ok(self.known.current().await?.inhibitors.clone())
    }

    /// Enters the sources among records that were opened or closed.
    pub async fn enter<'a>(
        &self,
        records: impl Iterator<Item = &'a OfflineRecord>,
        now: Timestamp,
    ) -> Result<()> {
        if !self.is_configured() {
            return Ok(());
        }
        let records: Vec<&OfflineRecord> =
            records.filter(|record| self.inhibition.has_source(record)).collect();
        if records.is_empty() {
            return Ok(());
        }
        self.change(now, |known| {
            let is_new = |record: &&OfflineRecord| {
                let before = known.get(&record.id.unit);
                before.is_none_or(|known| replaces(record, known))
            };
            let mut write: RecordsBySource = HashMap::new();
            for record in records.iter().copied().filter(is_new) {
                let newest = write.entry(record.id.unit.clone()).or_insert_with(|| record.clone());
                if replaces(record, newest) {
                    *newest = record.clone();
                }
            }
            write
        })
        .await
    }

    /// Compares the sources with the open records.
    pub async fn compare(&self, queries: &dyn Queries, now: Timestamp) -> Result<()> {
        if !self.is_configured() {
            // A reload may have removed the last rule.
            self.telemetry.inhibiting_units(0);
            return Ok(());
        }
        let known = self.known.current().await?;
        let before = &known.sources;
        let mut open: RecordsBySource = HashMap::new();
        let mut pages = OpenPages::new(queries);
        while let Some(page) = pages.next().await? {
            let sources = page.into_iter().filter(|record| self.inhibition.has_source(record));
            open.extend(sources.map(|record| (record.id.unit.clone(), record)));
        }
        let is_open = |unit: &Unit, known: &OfflineRecord| {
            open.get(unit).is_some_and(|open| open.detected_at >= known.detected_at)
        };
        let mut gone = Vec::new();
        for (unit, known) in before.iter().filter(|(_, known)| known.back_at.is_none()) {
            if !is_open(unit, known) {
                // A record that is gone has ended before it was removed.
                gone.push(async move {
                    let stored = queries.record(&known.id).await?.filter(|record| record.back_at.is_some());
                    let end = || OfflineRecord { back_at: Some(now), ..known.clone() };
                    Ok::<_, EngineError>((unit.clone(), stored.unwrap_or_else(end)))
                });
            }
        }
        let ended: RecordsBySource = stream::iter(gone).buffered(AT_ONCE).try_collect().await?;
        self.change(now, |known| {
            let is_as_before = |unit: &Unit| known.get(unit) == before.get(unit);
            let open = open.iter().filter(|(unit, record)| {
                // A record that is open although its end is known was lost and opened again.
                known.get(*unit).is_none_or(|known| {
                    replaces(record, known) || (known.back_at.is_some() && is_as_before(unit))
                })
            });
            let ended = ended.iter().filter(|(unit, _)| is_as_before(unit));
            open.chain(ended).map(|(unit, record)| (unit.clone(), record.clone())).collect()
        })
        .await
    }

    /// Writes the change that `decide` returns, and removes sources that inhibit no more.
    async fn change(
        &self,
        now: Timestamp,
        decide: impl Fn(&RecordsBySource) -> RecordsBySource,
    ) -> Result<()> {
        let decided = |KnownSources { sources, .. }: &KnownSources| {
            let mut write = decide(sources);
            let is_past = |record: &OfflineRecord| {
                self.inhibition.is_past(record, now) || !self.inhibition.has_source(record)
            };
            let forget =
                sources.iter().filter(|(unit, record)| is_past(record) && !write.contains_key(*unit));
            let forget: Vec<Unit> = forget.map(|(unit, _)| unit.clone()).collect();
            if write.is_empty() && forget.is_empty() {
                return Ok(None);
            }
            let rest = MAX_SOURCES.saturating_sub(sources.len() - forget.len());
            let is_added = |unit: &Unit| !sources.contains_key(unit);
            let added: Vec<Unit> = write.keys().filter(|unit| is_added(unit)).skip(rest).cloned().collect();
            if !added.is_empty() {
                tracing::warn!(
                    left_out = added.len(),
                    "more than {MAX_SOURCES} units inhibit others: further units inhibit nothing; write \
                     source_matchers that match fewer units"
                );
                added.iter().for_each(|unit| drop(write.remove(unit)));
            }
            let write = write.into_iter().map(|(unit, record)| (unit, SourceRecord(record))).collect();
            Ok::<_, EngineError>(Some(Changed { write, forget, with: None }))
        };
        self.known.change(decided).await
    }
}

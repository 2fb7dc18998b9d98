//! The units whose silence inhibits others, as this instance knows them.
//!
//! The store has the last record of each such unit; this instance keeps a copy, and reads it again only when the
//! version is another one. The instance that lets a transition join enters it first, so every instance knows a source
//! before its transition is anywhere else. Entering is idempotent and independent of order: see [`replaces`].
//!
//! The stored sources follow from the open records. At the start, after a reload, and every few minutes both are
//! compared, which repairs the losses of a failover.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::newest::Newest;
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::routing::{Inhibition, Inhibitors, replaces};
use crate::store::{
    EngineError, OpenPages, Queries, Result, Shared, SharedChange, SharedEntries, SharedStore,
};
use crate::telemetry::Telemetry;

/// The most sources that are kept. Those that are offline and beyond inhibit nothing, which is logged.
const MAX_SOURCES: usize = 10_000;

/// How often a change is decided again while other instances change the sources.
const ATTEMPTS: usize = 20;
/// How many records are read at once.
const AT_ONCE: usize = 16;

/// Sources by their units, each with its last record.
type Sources = HashMap<String, OfflineRecord>;

#[derive(Clone)]
struct KnownSources {
    sources: Arc<Sources>,
    inhibitors: Arc<Inhibitors>,
}

/// The units whose silence inhibits others.
pub struct Inhibitions {
    store: Arc<dyn SharedStore>,
    inhibition: Inhibition,
    telemetry: Arc<Telemetry>,
    known: Newest<KnownSources>,
}

impl Inhibitions {
    pub fn new(
        store: Arc<dyn SharedStore>,
        inhibition: Inhibition,
        telemetry: Arc<Telemetry>,
    ) -> Inhibitions {
        Inhibitions { store, inhibition, telemetry, known: Newest::default() }
    }

    /// Whether there are rules; if not, the store is never asked.
    pub fn is_configured(&self) -> bool {
        !self.inhibition.is_empty()
    }

    /// The sources of the moment.
    pub async fn current(&self) -> Result<Arc<Inhibitors>> {
        if !self.is_configured() {
            return Ok(Arc::default());
        }
        Ok(self.refreshed().await?.1.inhibitors)
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
                let before = known.get(&record.id.unit.to_string());
                before.is_none_or(|known| replaces(record, known))
            };
            let mut write: Sources = HashMap::new();
            for record in records.iter().copied().filter(is_new) {
                let newest = write.entry(record.id.unit.to_string()).or_insert_with(|| record.clone());
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
        let before = self.refreshed().await?.1.sources;
        let mut open: Sources = HashMap::new();
        let mut pages = OpenPages::new(queries);
        while let Some(page) = pages.next().await? {
            let sources = page.into_iter().filter(|record| self.inhibition.has_source(record));
            open.extend(sources.map(|record| (record.id.unit.to_string(), record)));
        }
        let is_open = |unit: &String, known: &OfflineRecord| {
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
        let ended: Sources = stream::iter(gone).buffered(AT_ONCE).try_collect().await?;
        self.change(now, |known| {
            let is_as_before = |unit: &String| known.get(unit) == before.get(unit);
            let open = open.iter().filter(|(unit, record)| {
                // A record that is open although its end was known has been lost and opened again.
                known.get(*unit).is_none_or(|known| {
                    replaces(record, known) || (known.back_at.is_some() && is_as_before(unit))
                })
            });
            let ended = ended.iter().filter(|(unit, _)| is_as_before(unit));
            open.chain(ended).map(|(unit, record)| (unit.clone(), record.clone())).collect()
        })
        .await
    }

    /// Writes the answer of `decide`, and removes sources that inhibit no more.
    async fn change(&self, now: Timestamp, decide: impl Fn(&Sources) -> Sources) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let (version, KnownSources { sources, .. }) = self.refreshed().await?;
            let mut write = decide(&sources);
            let is_past = |record: &OfflineRecord| {
                self.inhibition.is_past(record, now) || !self.inhibition.has_source(record)
            };
            let forget =
                sources.iter().filter(|(unit, record)| is_past(record) && !write.contains_key(*unit));
            let forget: Vec<String> = forget.map(|(unit, _)| unit.clone()).collect();
            if write.is_empty() && forget.is_empty() {
                return Ok(());
            }
            let rest = MAX_SOURCES.saturating_sub(sources.len() - forget.len());
            let is_added = |unit: &String| !sources.contains_key(unit);
            let added: Vec<String> = write.keys().filter(|unit| is_added(unit)).skip(rest).cloned().collect();
            if !added.is_empty() {
                tracing::warn!(
                    left_out = added.len(),
                    "more than {MAX_SOURCES} units inhibit others: the silences of more of them inhibit nothing; write \
                     source_matchers that match fewer"
                );
                added.iter().for_each(|unit| drop(write.remove(unit)));
            }
            let write = write.iter().map(|(unit, record)| Ok((unit.clone(), json(record)?)));
            let change = SharedChange { version, write: write.collect::<Result<_>>()?, forget };
            if self.store.change_shared(Shared::Sources, &change).await? {
                self.refreshed().await?;
                return Ok(());
            }
        }
        let why = format!("others changed the sources of inhibition {ATTEMPTS} times meanwhile");
        Err(EngineError::Unavailable(why))
    }

    async fn refreshed(&self) -> Result<(Option<String>, KnownSources)> {
        loop {
            let begun = self.known.begin();
            if let Some(known) = &begun.known
                && known.0 == self.store.shared_version(Shared::Sources).await?
            {
                return Ok(known.clone());
            }
            let SharedEntries { version, entries } = self.store.shared(Shared::Sources).await?;
            // One that cannot be read is written again when the sources are compared with the open records.
            let read = |(unit, text): (String, String)| Some((unit, serde_json::from_str(&text).ok()?));
            let sources: Sources = entries.into_iter().filter_map(read).collect();
            let inhibitors = Arc::new(Inhibitors::new(self.inhibition.clone(), sources.values()));
            let open = inhibitors.open();
            let known = (version, KnownSources { sources: Arc::new(sources), inhibitors });
            if self.known.keep(&begun, &known, || self.telemetry.inhibiting_units(open)) {
                return Ok(known);
            }
        }
    }
}

fn json(record: &OfflineRecord) -> Result<String> {
    serde_json::to_string(record).map_err(|error| EngineError::Damaged(format!("cannot be written: {error}")))
}

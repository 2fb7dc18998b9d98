//! How many units alert silences cover: a silence that covers none has a mistake in its matchers, and an operator is
//! told at once, not when the alert comes that it should have held.
//!
//! Labels of units are in the store alone, so all units are read, page by page. A count that takes longer than its
//! budget is given up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::stream::{self, Stream, StreamExt};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, Snapshot};
use crate::routing::{AlertSilence, AlertSilences, SilenceId};
use crate::store::{EngineError, Queries};

/// How long a count may take.
pub const BUDGET: Duration = Duration::from_secs(3);

/// Pages that are read ahead.
const READ_AHEAD: usize = 32;
/// Pages of a step, of which those without units are left out.
const STEP: u32 = 64;
/// Pages that are compared at a time, on a thread of their own: expressions may take long.
const COMPARED: usize = 16;

/// The numbers of units that silences cover.
pub type Covered = HashMap<SilenceId, u64>;

/// Counts the units that each of the silences covers, or would at its time; `None`: that takes too long.
///
/// # Errors
/// The store does not answer.
pub async fn covered(
    queries: Arc<dyn Queries>,
    silences: &[AlertSilence],
) -> Result<Option<Covered>, EngineError> {
    if silences.is_empty() {
        return Ok(Some(Covered::new()));
    }
    match timeout(BUDGET, count(queries, silences)).await {
        Ok(counted) => counted.map(Some),
        Err(_) => Ok(None),
    }
}

async fn count(queries: Arc<dyn Queries>, silences: &[AlertSilence]) -> Result<Covered, EngineError> {
    let mut sums: Covered = silences.iter().map(|silence| (silence.id, 0)).collect();
    let silences = Arc::new(AlertSilences::from(silences.to_vec()));
    let mut chunks = pages(queries).try_chunks(COMPARED);
    while let Some(chunk) = chunks.next().await {
        let units = chunk.map_err(|error| error.1)?;
        let silences = silences.clone();
        let compare = spawn_blocking(move || of_units(&silences, units.into_iter().flatten()));
        let found = compare.await.map_err(|error| EngineError::Unavailable(error.to_string()))?;
        for (id, count) in found {
            *sums.entry(id).or_default() += count;
        }
    }
    Ok(sums)
}

fn of_units(silences: &AlertSilences, units: impl Iterator<Item = Snapshot>) -> Covered {
    let mut sums = Covered::new();
    for seen in units.filter(Snapshot::is_known) {
        let Some(facts) = seen.facts else { continue };
        let moment = Timestamp::ZERO;
        let record = OfflineRecord {
            labels: facts.labels,
            ..OfflineRecord::open(seen.unit, facts.last_seen, moment, moment)
        };
        for silence in silences.matching(&record) {
            *sums.entry(silence.id).or_default() += 1;
        }
    }
    sums
}

/// Partitions and pages that have units, in order.
pub fn places(queries: Arc<dyn Queries>) -> impl Stream<Item = Result<(u16, u32), EngineError>> {
    let steps = stream::iter(0..queries.partitions()).map(move |partition| {
        let queries = queries.clone();
        async move { Ok((partition, queries.occupied(partition, STEP).await?)) }
    });
    let places = steps.buffered(READ_AHEAD).map_ok(|(partition, steps)| {
        stream::iter(steps.into_iter().flatten().map(move |page| Ok((partition, page))))
    });
    places.try_flatten()
}

/// The pages of all partitions that have units, in order.
pub fn pages(queries: Arc<dyn Queries>) -> impl Stream<Item = Result<Vec<Snapshot>, EngineError>> {
    let pages = places(queries.clone()).map(move |place| {
        let queries = queries.clone();
        async move {
            let (partition, page) = place?;
            queries.walk(partition, page).await
        }
    });
    pages.buffered(READ_AHEAD)
}

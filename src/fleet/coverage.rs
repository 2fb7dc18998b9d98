//! How many units alert silences cover: a silence that covers none has a mistake in its matchers, and the operator
//! learns that at once, not when the alert comes that it should have held.
//!
//! Only the store has the labels of units. So the walk counts while it reads whole partitions, each instance its own,
//! and a request only reads the number. A new silence is counted at once, by reading all units page by page; that
//! number stands until the walk has read every partition. A count that takes longer than its budget is given up.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use futures_util::TryStreamExt;
use futures_util::stream::{self, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Silences;
use crate::clock::{Stopwatch, Timestamp};
use crate::presence::{OfflineRecord, Snapshot};
use crate::routing::alert_silence::SilenceState;
use crate::routing::{AlertSilence, AlertSilences, Matcher, SilenceId};
use crate::store::{EngineError, Queries};

/// How long the count of a new silence may take.
const BUDGET: Duration = Duration::from_secs(3);

/// How long the walk may compare the units of all partitions with expressions. Beyond that a partition is not counted:
/// thousands of silences with expressions alone would keep a core busy for ever.
const COMPARISONS: Duration = Duration::from_secs(4);

/// Pages that are read ahead.
const READ_AHEAD: usize = 32;
/// Pages of a step; pages without units are left out.
const STEP: u32 = 64;
/// Pages that are compared at a time, on a thread of their own: expressions may take long.
const COMPARED: usize = 16;

/// A silence, and a digest of its matchers: a pending silence keeps its id when its matchers are changed.
type SilenceKey = (SilenceId, u64);

/// The counts that this instance has.
pub struct Coverage {
    silences: Arc<Silences>,
    known: Mutex<KnownCounts>,
    /// One count at a time of all units.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct KnownCounts {
    /// Counts of the walk, for each partition that it has read whole.
    walked: HashMap<u16, HashMap<SilenceKey, u64>>,
    /// Counts of the whole fleet, taken when the silence was created.
    made: HashMap<SilenceKey, u64>,
}

/// Counts the units of a partition while the walk reads it.
pub(super) struct PartitionCount {
    silences: Arc<AlertSilences>,
    now: Timestamp,
    budget: Duration,
    so_far: Mutex<SoFar>,
}

#[derive(Default)]
struct SoFar {
    sums: HashMap<SilenceId, u64>,
    spent: Duration,
}

impl Coverage {
    pub fn new(silences: Arc<Silences>) -> Coverage {
        Coverage { silences, known: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// How many units of some partitions a silence covers; `None`: not all of the partitions were counted yet.
    pub fn of_partitions(&self, silence: &AlertSilence, partitions: &[u16]) -> Option<u64> {
        let (known, key) = (self.known.lock(), key(silence));
        partitions.iter().map(|partition| known.walked.get(partition)?.get(&key).copied()).sum()
    }

    /// How many units of the whole fleet a silence covered when it was created at this instance.
    pub fn when_made(&self, silence: &AlertSilence) -> Option<u64> {
        self.known.lock().made.get(&key(silence)).copied()
    }

    /// Counts the units of the whole fleet that a new silence covers. `None`: the count takes too long, or the store
    /// does not answer; the walk counts them later.
    pub async fn count(&self, queries: Arc<dyn Queries>, made: SilenceId) -> Option<u64> {
        let counted = async {
            let _turn = self.turn.lock().await;
            let stored = self.silences.cached().await?;
            let Some(silence) = stored.iter().find(|one| one.id == made) else { return Ok(None) };
            let units = count(queries, silence).await?;
            let mut known = self.known.lock();
            known.made.retain(|(id, _), _| stored.iter().any(|one| one.id == *id));
            known.made.insert(key(silence), units);
            Ok::<_, EngineError>(Some(units))
        };
        timeout(BUDGET, counted).await.ok()?.ok().flatten()
    }

    /// Whether there is a silence whose units are to be counted.
    pub(super) async fn has_silences(&self, now: Timestamp) -> bool {
        self.silences.current().await.is_ok_and(|stored| stored.iter().any(|one| lasts(one, now)))
    }

    /// Begins to count the units of a partition; `partitions`: the number of partitions. `None`: the silences cannot
    /// be read.
    pub(super) async fn begin(&self, partitions: u16, now: Timestamp) -> Option<PartitionCount> {
        let silences = self.silences.current().await.ok()?;
        let budget = COMPARISONS / u32::from(partitions.max(1));
        Some(PartitionCount { silences, now, budget, so_far: Mutex::default() })
    }

    /// Stores the count of a partition that was read whole.
    pub(super) fn counted(&self, partition: u16, count: PartitionCount) {
        let SoFar { sums, spent } = count.so_far.into_inner();
        let lasting = count.silences.iter().filter(|one| lasts(one, count.now));
        let counts = lasting.map(|one| (key(one), sums.get(&one.id).copied().unwrap_or_default()));
        let mut known = self.known.lock();
        if spent > count.budget {
            known.walked.remove(&partition);
        } else {
            known.walked.insert(partition, counts.collect());
        }
    }
}

impl PartitionCount {
    /// Adds the units of a page.
    pub async fn add(&self, page: &[Snapshot]) {
        if !self.silences.iter().any(|one| lasts(one, self.now)) || self.so_far.lock().spent > self.budget {
            return;
        }
        let records: Vec<OfflineRecord> = page.iter().filter_map(record).collect();
        let silences = self.silences.clone();
        let began = Stopwatch::start();
        // Expressions may take long.
        let Ok(found) = spawn_blocking(move || of_records(&silences, &records)).await else { return };
        let mut so_far = self.so_far.lock();
        so_far.spent += began.elapsed();
        for (id, count) in found {
            *so_far.sums.entry(id).or_default() += count;
        }
    }
}

fn lasts(silence: &AlertSilence, now: Timestamp) -> bool {
    silence.state(now) != SilenceState::Expired
}

fn key(silence: &AlertSilence) -> SilenceKey {
    let text = |one: &Matcher| (one.name().to_owned(), one.operator() as u8, one.value().to_owned());
    (silence.id, FixedState::default().hash_one(silence.matchers.iter().map(text).collect::<Vec<_>>()))
}

/// Counts the units that a silence covers, or would at its time.
async fn count(queries: Arc<dyn Queries>, silence: &AlertSilence) -> Result<u64, EngineError> {
    let silences = Arc::new(AlertSilences::from(vec![silence.clone()]));
    let (mut chunks, mut sum) = (pages(queries).try_chunks(COMPARED), 0);
    while let Some(chunk) = chunks.next().await {
        let units = chunk.map_err(|error| error.1)?;
        let silences = silences.clone();
        let records = move || units.iter().flatten().filter_map(record).collect::<Vec<_>>();
        let compare = spawn_blocking(move || of_records(&silences, &records()));
        let found = compare.await.map_err(|error| EngineError::Unavailable(error.to_string()))?;
        sum += found.values().sum::<u64>();
    }
    Ok(sum)
}

/// How many of the records each silence matches.
fn of_records(silences: &AlertSilences, records: &[OfflineRecord]) -> HashMap<SilenceId, u64> {
    let mut sums = HashMap::new();
    for silence in records.iter().flat_map(|record| silences.matching(record)) {
        *sums.entry(silence.id).or_default() += 1;
    }
    sums
}

/// The record that the unit would have if it fell silent; `None`: the unit is not in the fleet any more.
fn record(seen: &Snapshot) -> Option<OfflineRecord> {
    let facts = seen.facts.as_ref().filter(|_| seen.is_known())?;
    let (labels, moment) = (facts.labels.clone(), Timestamp::ZERO);
    Some(OfflineRecord { labels, ..OfflineRecord::open(seen.unit.clone(), facts.last_seen, moment, moment) })
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

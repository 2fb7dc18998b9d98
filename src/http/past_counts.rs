//! `/api/v1/history/counts`: how many units were in each state over time, how much of it was blind, and the incidents.
//!
//! A bucket of the answer has the counts of its worst minute, or `null` if no minute is known: Rollcall did not run, or
//! not all instances counted. With `label`, it has the most units with that value that were offline at once.

use axum::extract::State;
use axum::http::Uri;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::PageSources;
use super::http_error::{HttpError, query};
use super::shared_answers::{MaxAge, SharedAnswers};
use super::summary::States;
use super::unit_filter::label_pair;
use crate::clock::{Clock, Timestamp};
use crate::fleet::{Mirror, PastCounts, Roll};
use crate::presence::{CountBucket, CountRange, IncidentMark, Interval, Ledger};

/// The most answers that are kept: for ranges and values of labels.
const MAX_KEPT: usize = 32;

/// Reads the counts over time. Cheap to share.
#[derive(Clone)]
pub(super) struct PastCountReader {
    counts: PastCounts,
    roll: Arc<Roll>,
    mirror: Arc<Mirror>,
    clock: Clock,
    last: SharedAnswers<CountsOverTime>,
}

pub(super) fn page(reader: PastCountReader) -> Router {
    Router::new().route("/api/v1/history/counts", get(counts)).with_state(reader)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CountsQuery {
    #[serde(default)]
    range: CountRange,
    label: Option<String>,
}

/// The counts of a range, oldest first.
#[derive(Serialize)]
pub(super) struct CountsOverTime {
    pub range: CountRange,
    pub from: Timestamp,
    pub until: Timestamp,
    pub step_seconds: u64,
    /// The value of a label to which the counts are limited; `null` for the whole fleet.
    pub label: Option<String>,
    pub points: Vec<CountPoint>,
    pub incidents: Vec<IncidentMark>,
}

#[derive(Serialize)]
pub(super) struct CountPoint {
    pub at: Timestamp,
    /// The units by state; `null` if unknown, and with a label.
    pub states: Option<States>,
    /// The units that are offline; `null` if unknown.
    pub offline: Option<u64>,
    /// The units whose silence is unusual, though they are not offline; `null` if unknown, and with a label.
    pub unusual: Option<u64>,
    pub blind_seconds: f64,
}

async fn counts(
    State(reader): State<PastCountReader>,
    uri: Uri,
) -> Result<Json<serde_json::Value>, HttpError> {
    let CountsQuery { range, label } = query(&uri)?;
    let counts = reader.read(range, label.as_deref()).await?;
    let written = serde_json::to_value(&*counts);
    written.map(Json).map_err(|error| HttpError::internal(format!("the counts cannot be written: {error}")))
}

impl PastCountReader {
    pub fn new(sources: &PageSources) -> PastCountReader {
        PastCountReader {
            counts: PastCounts::new(sources.cells.clone()),
            roll: sources.roll.clone(),
            mirror: sources.mirror.clone(),
            clock: sources.clock.clone(),
            last: SharedAnswers::new(MAX_KEPT),
        }
    }

    /// The counts of the range that ends now; `label` limits them to units with this `name=value`.
    pub async fn read(
        &self,
        range: CountRange,
        label: Option<&str>,
    ) -> Result<Arc<CountsOverTime>, HttpError> {
        let label = label.map(|label| label_pair(label, &self.mirror)).transpose()?;
        let asked = label.as_ref().map_or(String::new(), |(name, value)| format!("{name}={value}"));
        let reader = self.clone();
        let read = async move { reader.counts_in(range, label).await };
        self.last.get(&format!("{} {asked}", range.as_str()), MaxAge::PER_MINUTE, read).await
    }

    async fn counts_in(
        &self,
        range: CountRange,
        label: Option<(String, String)>,
    ) -> Result<CountsOverTime, HttpError> {
        let now = self.clock.now();
        let (moments, marks) = self.counts.read(range, now).await?;
        let hearing = self.roll.hearing_so_far();
        // The last bucket ends after now.
        let until_now = |one: &Interval| Interval { to: one.to.min(now), ..*one };
        let blind = Ledger::new(hearing.ledger.intervals().iter().map(until_now));
        let within = range.at(now);
        let buckets = range.fill(now, moments, &blind);
        let place = label.as_ref().map(|(name, value)| format!("{name}={value}"));
        let is_shown = |mark: &IncidentMark| place.as_ref().is_none_or(|place| *place == mark.place);
        let (step, _) = range.buckets();
        Ok(CountsOverTime {
            range,
            from: within.from,
            until: now,
            step_seconds: step.as_secs(),
            points: buckets.into_iter().map(|bucket| point(bucket, label.as_ref())).collect(),
            incidents: marks.into_iter().filter(is_shown).collect(),
            label: place,
        })
    }
}

fn point(bucket: CountBucket, label: Option<&(String, String)>) -> CountPoint {
    let CountBucket { from, worst, blind } = bucket;
    let states = worst.as_ref().filter(|_| label.is_none()).map(|worst| States::from(worst.states));
    let offline = match label {
        Some((name, value)) => worst.as_ref().and_then(|worst| worst.offline_at(name, value)),
        None => states.map(|states| states.offline),
    };
    let unusual = worst.as_ref().filter(|_| label.is_none()).map(|worst| worst.unusual);
    CountPoint { at: from, states, offline, unusual, blind_seconds: blind.as_secs_f64() }
}

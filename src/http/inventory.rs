//! `/api/v1/units:export`: all units with their settings, as NDJSON or CSV.
//!
//! They are read from the engine page by page while the client reads the answer, so memory is bounded, and any instance answers
//! for the whole fleet. If the engine fails meanwhile, the answer is cut off, which clients see as an error.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::Sources;
use super::csv::csv_line;
use super::problem::{Problem, query};
use super::unit_filter::known_kind;
use crate::clock::{Clock, Timestamp};
use crate::fleet::Mirror;
use crate::presence::{Kind, Labels, Snapshot, UnitId};
use crate::store::{EngineError, Queries};

/// Exports that are written at the same time; others are refused.
const WRITERS: usize = 2;
/// Pages that are read ahead of the client.
const READ_AHEAD: usize = 16;
/// Pages of a step, of which those without units are left out.
const STEP: u32 = 64;

/// The columns of a CSV.
pub(super) const FIELDS: [&str; 8] =
    ["kind", "unit", "timeout_seconds", "grace_seconds", "labels", "paused_until", "note", "last_seen"];

#[derive(Clone)]
pub(super) struct InventoryState {
    queries: Arc<dyn Queries>,
    mirror: Arc<Mirror>,
    clock: Clock,
    writers: Arc<Semaphore>,
}

pub(super) fn page(state: InventoryState) -> Router {
    Router::new().route("/api/v1/units:export", get(export)).with_state(state)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportQuery {
    #[serde(default)]
    format: Format,
    kind: Option<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Ndjson,
    Csv,
}

/// A unit of the inventory.
#[derive(Serialize)]
struct Entry<'a> {
    kind: &'a Kind,
    unit: &'a UnitId,
    /// What an operator has set for this unit; `null`: nothing.
    timeout_seconds: Option<f64>,
    grace_seconds: Option<f64>,
    labels: &'a Labels,
    paused_until: Option<Timestamp>,
    note: &'a str,
    /// `null` if it was never heard.
    last_seen: Option<Timestamp>,
}

async fn export(State(state): State<InventoryState>, uri: Uri) -> Result<Response, Problem> {
    let ExportQuery { format, kind } = query(&uri)?;
    let kind = kind.map(|kind| known_kind(&kind, &state.mirror)).transpose()?;
    let Ok(permit) = state.writers.clone().try_acquire_owned() else {
        return Err(Problem::unavailable(format!("{WRITERS} exports are being written; try again later")));
    };
    let (head, media, name) = match format {
        Format::Ndjson => (String::new(), "application/x-ndjson", "units.ndjson"),
        Format::Csv => (csv_line(FIELDS), "text/csv; charset=utf-8", "units.csv"),
    };
    let now = state.clock.now();
    let lines = pages(state.queries).map(move |page| {
        let _permit = &permit;
        let page = page.map_err(io::Error::other)?;
        let wanted = page.iter().filter(|seen| kind.as_ref().is_none_or(|kind| *kind == seen.unit.kind));
        Ok::<Bytes, io::Error>(wanted.filter_map(|seen| line(seen, format, now)).collect::<String>().into())
    });
    let body = Body::from_stream(stream::once(async { Ok(head.into()) }).chain(lines));
    let disposition = format!("attachment; filename=\"{name}\"");
    Ok(([(CONTENT_TYPE, media.to_owned()), (CONTENT_DISPOSITION, disposition)], body).into_response())
}

/// The pages of all partitions that have units, in order.
pub(super) fn pages(queries: Arc<dyn Queries>) -> impl Stream<Item = Result<Vec<Snapshot>, EngineError>> {
    let engine = queries.clone();
    let steps = stream::iter(0..queries.partitions()).map(move |partition| {
        let engine = engine.clone();
        async move { Ok((partition, engine.occupied(partition, STEP).await?)) }
    });
    let pages = steps.buffered(READ_AHEAD).map_ok(|(partition, steps)| {
        stream::iter(steps.into_iter().flatten().map(move |page| Ok((partition, page))))
    });
    let pages = pages.try_flatten().map(move |place| {
        let queries = queries.clone();
        async move {
            let (partition, page) = place?;
            queries.walk(partition, page).await
        }
    });
    pages.buffered(READ_AHEAD)
}

fn line(seen: &Snapshot, format: Format, now: Timestamp) -> Option<String> {
    let facts = seen.facts.as_ref().filter(|_| seen.is_known())?;
    let entry = Entry {
        kind: &seen.unit.kind,
        unit: &seen.unit.id,
        timeout_seconds: facts.set.timeout.map(|span| span.as_secs_f64()),
        grace_seconds: facts.set.grace.map(|span| span.as_secs_f64()),
        labels: &facts.labels,
        paused_until: facts.pause.map(|pause| pause.to).filter(|until| *until > now),
        note: &facts.note,
        last_seen: seen.last_heard(),
    };
    match format {
        Format::Ndjson => serde_json::to_string(&entry).ok().map(|json| json + "\n"),
        Format::Csv => entry.to_csv(),
    }
}

impl InventoryState {
    pub fn new(sources: &Sources) -> InventoryState {
        InventoryState {
            queries: sources.records.clone(),
            mirror: sources.mirror.clone(),
            clock: sources.clock.clone(),
            writers: Arc::new(Semaphore::new(WRITERS)),
        }
    }
}

impl Entry<'_> {
    /// Labels are a JSON object, and nothing where there is none.
    fn to_csv(&self) -> Option<String> {
        let labels =
            if self.labels.is_empty() { String::new() } else { serde_json::to_string(self.labels).ok()? };
        let text = |value: Option<&dyn ToString>| value.map(ToString::to_string).unwrap_or_default();
        Some(csv_line([
            self.kind.as_str(),
            self.unit.as_str(),
            &text(self.timeout_seconds.as_ref().map(|seconds| seconds as _)),
            &text(self.grace_seconds.as_ref().map(|seconds| seconds as _)),
            &labels,
            &text(self.paused_until.as_ref().map(|until| until as _)),
            self.note,
            &text(self.last_seen.as_ref().map(|at| at as _)),
        ]))
    }
}

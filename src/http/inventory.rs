//! `/api/v1/units:export`: all units with their settings, as NDJSON or CSV.
//!
//! The units are read from the engine page by page while the client reads the answer, so memory is bounded, and any
//! instance answers for the whole fleet. If the engine fails meanwhile, the answer is cut off, which clients see as an
//! error.

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
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryChunksError, TryStreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::PageSources;
use super::http_error::{HttpError, query};
use super::unit_filter::known_kind;
use crate::clock::{Clock, Timestamp};
use crate::csv_row::csv_row;
use crate::fleet::Mirror;
use crate::fleet::coverage::places;
use crate::presence::{Kind, Labels, Snapshot, UnitId};
use crate::store::{EngineError, Queries};

/// The exports that are written at the same time; others are refused.
const WRITERS: usize = 2;
/// Pages that are read ahead of the client.
const READ_AHEAD: usize = 32;
/// The pages that one task reads at once and writes: on Redis a page has some sixty units, and writing them takes less
/// time than starting a task.
const PAGES_A_TASK: usize = 8;
/// The usual length of a line, in bytes; longer ones take more room.
const USUAL_LINE: usize = 192;

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
    format: ExportFormat,
    kind: Option<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ExportFormat {
    #[default]
    Ndjson,
    Csv,
}

/// A unit of the inventory.
#[derive(Serialize)]
struct InventoryUnit<'a> {
    kind: &'a Kind,
    unit: &'a UnitId,
    /// The value that an operator set for this unit alone; `null` if none is set.
    timeout_seconds: Option<f64>,
    grace_seconds: Option<f64>,
    labels: &'a Labels,
    paused_until: Option<Timestamp>,
    note: &'a str,
    /// `null` if the unit was never heard.
    last_seen: Option<Timestamp>,
}

async fn export(State(state): State<InventoryState>, uri: Uri) -> Result<Response, HttpError> {
    let ExportQuery { format, kind } = query(&uri)?;
    let kind = kind.map(|kind| known_kind(&kind, &state.mirror)).transpose()?;
    let Ok(permit) = state.writers.clone().try_acquire_owned() else {
        return Err(HttpError::unavailable(format!("{WRITERS} exports are being written; try again later")));
    };
    let (head, media, name) = match format {
        ExportFormat::Ndjson => (String::new(), "application/x-ndjson", "units.ndjson"),
        ExportFormat::Csv => (csv_row(FIELDS), "text/csv; charset=utf-8", "units.csv"),
    };
    let (queries, now) = (state.queries, state.clock.now());
    // Several tasks, because reading and writing a million units is work for more than one core.
    let lines = places(queries.clone()).try_chunks(PAGES_A_TASK).map(move |places| {
        let (queries, kind) = (queries.clone(), kind.clone());
        let write = async move {
            let places = places.map_err(|TryChunksError(_, error)| error)?;
            let pages = places.iter().map(|(partition, page)| queries.walk(*partition, *page));
            let pages: Vec<Snapshot> = try_join_all(pages).await?.into_iter().flatten().collect();
            Ok::<Bytes, EngineError>(lines(&pages, kind.as_ref(), format, now))
        };
        async move { tokio::spawn(write).await.map_err(io::Error::other)?.map_err(io::Error::other) }
    });
    let lines = lines.buffered(READ_AHEAD / PAGES_A_TASK).inspect(move |_| {
        let _until_the_last = &permit;
    });
    let body = Body::from_stream(stream::once(async { Ok(head.into()) }).chain(lines));
    let disposition = format!("attachment; filename=\"{name}\"");
    Ok(([(CONTENT_TYPE, media.to_owned()), (CONTENT_DISPOSITION, disposition)], body).into_response())
}

fn lines(page: &[Snapshot], kind: Option<&Kind>, format: ExportFormat, now: Timestamp) -> Bytes {
    let mut text = Vec::with_capacity(page.len() * USUAL_LINE);
    for seen in page.iter().filter(|seen| kind.is_none_or(|kind| *kind == seen.unit.kind)) {
        let Some(facts) = seen.facts.as_ref().filter(|_| seen.is_known()) else { continue };
        let entry = InventoryUnit {
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
            ExportFormat::Ndjson => {
                serde_json::to_writer(&mut text, &entry).expect("names, numbers and moments are always JSON");
                text.push(b'\n');
            }
            ExportFormat::Csv => text.extend_from_slice(entry.to_csv().as_bytes()),
        }
    }
    text.into()
}

impl InventoryState {
    pub fn new(sources: &PageSources) -> InventoryState {
        InventoryState {
            queries: sources.records.clone(),
            mirror: sources.mirror.clone(),
            clock: sources.clock.clone(),
            writers: Arc::new(Semaphore::new(WRITERS)),
        }
    }
}

impl InventoryUnit<'_> {
    /// The cell of the labels is a JSON object; it is empty for a unit without labels.
    fn to_csv(&self) -> String {
        let labels = match self.labels.is_empty() {
            true => String::new(),
            false => serde_json::to_string(self.labels).expect("names and values are always JSON"),
        };
        let text = |value: Option<&dyn ToString>| value.map(ToString::to_string).unwrap_or_default();
        csv_row([
            self.kind.as_str(),
            self.unit.as_str(),
            &text(self.timeout_seconds.as_ref().map(|seconds| seconds as _)),
            &text(self.grace_seconds.as_ref().map(|seconds| seconds as _)),
            &labels,
            &text(self.paused_until.as_ref().map(|until| until as _)),
            self.note,
            &text(self.last_seen.as_ref().map(|at| at as _)),
        ])
    }
}

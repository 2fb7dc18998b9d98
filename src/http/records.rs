//! `/api/v1/records`: offline records, newest first, in pages; and a single record.
//!
//! The engine keeps records in the order of their detection. A page with a filter (kind, label or cause) reads a
//! bounded number of records and answers the matching ones; `next` continues from there, also when the page has no
//! record.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::cursor::{cursor, place};
use super::http_error::{HttpError, page_limit, query};
use super::shared_answers::{MaxAge, SharedAnswers};
use crate::clock::Timestamp;
use crate::presence::{Cause, Kind, OfflineRecord, RecordId};
use crate::store::Queries;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// The most records that one page reads.
const MAX_READ: usize = 10_000;

/// The most pages that are kept for waiting requests.
const MAX_KEPT: usize = 16;

/// Reads records. Cheap to share.
#[derive(Clone)]
pub(super) struct Records {
    engine: Arc<dyn Queries>,
    pages: SharedAnswers<RecordPage>,
}

pub(super) fn pages(records: Records) -> Router {
    Router::new()
        .route("/api/v1/records", get(list))
        .route("/api/v1/records/{id}", get(record))
        .with_state(records)
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordsQuery {
    #[serde(default)]
    pub open: bool,
    /// Only records that were detected at or after this moment.
    from: Option<Timestamp>,
    /// Only records that were detected before this moment.
    until: Option<Timestamp>,
    kind: Option<Kind>,
    /// `name=value`.
    label: Option<String>,
    cause: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Serialize)]
pub(super) struct RecordPage {
    pub records: Vec<OfflineRecord>,
    /// The `cursor` of the next page; `null` on the last.
    pub next: Option<String>,
}

async fn list(State(records): State<Records>, uri: Uri) -> Result<Response, HttpError> {
    Ok(Json(&*records.page(&query(&uri)?).await?).into_response())
}

impl Records {
    pub fn new(engine: Arc<dyn Queries>) -> Records {
        Records { engine, pages: SharedAnswers::new(MAX_KEPT) }
    }

    /// The page that a request selects. Requests for the same page that come while it is read share the next read: in a
    /// storm with many operators, the engine reads one page at a time.
    pub async fn page(&self, wanted: &RecordsQuery) -> Result<Arc<RecordPage>, HttpError> {
        let asked = serde_json::to_string(wanted)
            .map_err(|error| HttpError::internal(format!("the query cannot be written: {error}")))?;
        let (engine, wanted) = (self.engine.clone(), wanted.clone());
        self.pages.get(&asked, MaxAge::EXACT, async move { read(&*engine, &wanted).await }).await
    }
}

async fn read(engine: &dyn Queries, query: &RecordsQuery) -> Result<RecordPage, HttpError> {
    let limit = page_limit(query.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let filter = RecordFilter::new(query)?;
    let before = query.cursor.as_deref().map(read_cursor);
    let until = query.until.map(|until| (until, first_id()));
    let begins = before.transpose()?.into_iter().chain(until);
    let begin = begins.min_by_key(|(detected_at, id)| (*detected_at, id.to_string()));
    page(engine, &filter, begin, limit).await
}

/// Up to `limit` records before `begin`.
async fn page(
    engine: &dyn Queries,
    filter: &RecordFilter<'_>,
    begin: Option<(Timestamp, RecordId)>,
    limit: usize,
) -> Result<RecordPage, HttpError> {
    let step = if filter.selects_all() { limit } else { MAX_LIMIT };
    let (mut records, mut read, mut before) = (Vec::new(), 0, begin);
    while read < MAX_READ {
        let batch = engine.records(filter.open, before.clone(), step).await?;
        let is_last = batch.len() < step;
        for record in batch {
            if filter.from.is_some_and(|from| record.detected_at < from) {
                return Ok(RecordPage { records, next: None });
            }
            read += 1;
            before = Some((record.detected_at, record.id.clone()));
            if filter.selects(&record) {
                records.push(record);
            }
            if records.len() == limit {
                return Ok(RecordPage { records, next: before.as_ref().map(write_cursor) });
            }
        }
        if is_last {
            return Ok(RecordPage { records, next: None });
        }
    }
    Ok(RecordPage { records, next: before.as_ref().map(write_cursor) })
}

/// The records that a request selects.
struct RecordFilter<'a> {
    open: bool,
    from: Option<Timestamp>,
    kind: Option<&'a Kind>,
    label: Option<(&'a str, &'a str)>,
    cause: Option<Cause>,
}

impl RecordFilter<'_> {
    fn new(query: &RecordsQuery) -> Result<RecordFilter<'_>, HttpError> {
        let RecordsQuery { open, from, kind, .. } = query;
        let cause = query.cause.as_deref().map(cause_of).transpose()?;
        let label = match query.label.as_deref().map(|label| label.split_once('=')) {
            Some(None) => {
                return Err(HttpError::bad_request("label is written name=value, e.g. label=site=north"));
            }
            label => label.flatten(),
        };
        Ok(RecordFilter { open: *open, from: *from, kind: kind.as_ref(), label, cause })
    }

    fn selects_all(&self) -> bool {
        self.kind.is_none() && self.label.is_none() && self.cause.is_none()
    }

    fn selects(&self, record: &OfflineRecord) -> bool {
        self.kind.is_none_or(|kind| *kind == record.kind)
            && self.cause.is_none_or(|cause| cause == record.cause)
            && self.label.is_none_or(|(name, value)| record.labels.get(name).is_some_and(|has| has == value))
    }
}

/// The cause with this name. An episode of flapping is not a cause of records.
fn cause_of(name: &str) -> Result<Cause, HttpError> {
    let found = Cause::OF_SILENCES.into_iter().find(|cause| cause.as_str() == name);
    found.ok_or_else(|| {
        let known = Cause::OF_SILENCES.map(Cause::as_str).join(", ");
        HttpError::bad_request(format!("cause: {name:?} is unknown; write one of {known}"))
    })
}

/// An id that sorts before every record id.
pub(super) fn first_id() -> RecordId {
    "-: :0".parse().expect("a kind, an id and a time")
}

async fn record(
    State(records): State<Records>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<OfflineRecord>, HttpError> {
    let Path(id) = id?;
    let id: RecordId = id.parse().map_err(|error| HttpError::bad_request(format!("{id:?}: {error}")))?;
    match records.engine.record(&id).await? {
        Some(record) => Ok(Json(record)),
        None => Err(HttpError::not_found(format!("there is no record {id}"))),
    }
}

/// The place of a record in the list: the time of detection (ms) and its id.
fn write_cursor((detected_at, id): &(Timestamp, RecordId)) -> String {
    cursor(&(detected_at.as_millis(), id.to_string()))
}

fn read_cursor(text: &str) -> Result<(Timestamp, RecordId), HttpError> {
    place(text, |(detected_at, id): (i64, String)| {
        Some((Timestamp::from_millis(detected_at), id.parse().ok()?))
    })
}

//! `/api/v1/records`: offline records, newest first, in pages; and a single record.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::routing::get;
use axum::{Json, Router};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};

use super::problem::{Problem, query};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::store::Queries;

const DEFAULT_LIMIT: usize = 100;
const LARGEST_LIMIT: usize = 1000;

pub(super) fn pages(engine: Arc<dyn Queries>) -> Router {
    Router::new()
        .route("/api/v1/records", get(records))
        .route("/api/v1/records/{id}", get(record))
        .with_state(engine)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordsQuery {
    #[serde(default)]
    open: bool,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Serialize)]
struct Page {
    records: Vec<OfflineRecord>,
    /// The `cursor` of the next page; `null` on the last.
    next: Option<String>,
}

async fn records(State(engine): State<Arc<dyn Queries>>, uri: Uri) -> Result<Json<Page>, Problem> {
    let query: RecordsQuery = query(&uri)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=LARGEST_LIMIT).contains(&limit) {
        return Err(Problem::bad_request(format!("limit is a number from 1 to {LARGEST_LIMIT}")));
    }
    let before = match &query.cursor {
        None => None,
        Some(cursor) => Some(read_cursor(cursor).ok_or_else(|| {
            Problem::bad_request("cursor is not one that a page before this gave as `next`")
        })?),
    };
    let records = engine.records(query.open, before, limit).await?;
    let next = records.last().filter(|_| records.len() == limit).map(write_cursor);
    Ok(Json(Page { records, next }))
}

async fn record(
    State(engine): State<Arc<dyn Queries>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<OfflineRecord>, Problem> {
    let Path(id) = id?;
    let id: RecordId = id.parse().map_err(|error| Problem::bad_request(format!("{id:?}: {error}")))?;
    match engine.record(&id).await? {
        Some(record) => Ok(Json(record)),
        None => Err(Problem::not_found(format!("there is no record {id}"))),
    }
}

/// The position of a record in the list: the time of detection and its id, as hexadecimal digits, which need no
/// escaping in a URL.
fn write_cursor(record: &OfflineRecord) -> String {
    let text = format!("{}|{}", record.detected_at.as_millis(), record.id);
    HEXLOWER.encode(text.as_bytes())
}

fn read_cursor(cursor: &str) -> Option<(Timestamp, RecordId)> {
    let text = String::from_utf8(HEXLOWER_PERMISSIVE.decode(cursor.as_bytes()).ok()?).ok()?;
    let (detected_at, id) = text.split_once('|')?;
    Some((Timestamp::from_millis(detected_at.parse().ok()?), id.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_is_not_from_a_page_is_refused() {
        for cursor in ["", "0", "zz", "é", "ff", "313233", "7c", "317c61"] {
            assert!(read_cursor(cursor).is_none(), "{cursor}");
        }
        let text = HEXLOWER.encode("17|detector:ü|x:5".as_bytes());
        let (detected_at, id) = read_cursor(&text).unwrap();
        assert_eq!((detected_at, id.to_string()), (Timestamp::from_millis(17), "detector:ü|x:5".to_owned()));
    }
}

//! `POST /api/v1/timers:cancel`: cancels timers by their ids, or by type and moment.

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::TimersState;
use super::shown::{from_cursor, to_cursor};
use crate::clock::Timestamp;
use crate::http::body::read;
use crate::http::changes::Caller;
use crate::http::http_error::HttpError;
use crate::presence::{TimerId, TimerType};
use crate::store::{Audited, FindTimers};

/// The longest body, in bytes.
pub(super) const MAX_BODY: usize = 4 << 20;
/// The most ids of a request.
const MAX_IDS: usize = 10_000;

/// Timers to cancel: by their ids, or by type and moment.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelRequest {
    ids: Option<Vec<String>>,
    r#type: Option<TimerType>,
    /// Only timers that are due at or after this moment.
    from: Option<Timestamp>,
    /// Only timers that are due before this moment.
    until: Option<Timestamp>,
    /// The place where the previous request stopped.
    cursor: Option<String>,
}

pub(super) async fn cancel(
    State(state): State<TimersState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, HttpError> {
    state.admit(&caller)?;
    match read::<CancelRequest>(&body?)? {
        CancelRequest { ids: Some(ids), r#type: None, from: None, until: None, cursor: None } => {
            state.cancel_ids(ids, &caller).await.map(Json)
        }
        CancelRequest { ids: Some(_), .. } => {
            Err(HttpError::bad_request("write either ids, or type and times"))
        }
        CancelRequest { r#type: None, from: None, until: None, .. } => Err(HttpError::bad_request(
            "write ids, or at least one of type, from and until: this would be all timers",
        )),
        range => state.cancel_range(range, &caller).await.map(Json),
    }
}

impl TimersState {
    /// Answers each id in order.
    async fn cancel_ids(&self, ids: Vec<String>, caller: &Caller) -> Result<Value, HttpError> {
        if ids.len() > MAX_IDS {
            return Err(HttpError::too_large(format!("a request has at most {MAX_IDS} ids")));
        }
        let parsed: Vec<Result<TimerId, String>> = ids
            .iter()
            .map(|id| id.parse().map_err(|error: crate::presence::TimerError| error.to_string()))
            .collect();
        let good: Vec<TimerId> = parsed.iter().flatten().cloned().collect();
        self.count(caller, good.len());
        let mut was_waiting = self.timers.cancel(&good, self.clock.now()).await?.into_iter();
        let mut cancelled = 0;
        let mut timers = Vec::with_capacity(ids.len());
        for (id, parsed) in ids.into_iter().zip(parsed) {
            timers.push(match parsed {
                Ok(_) => match was_waiting.next().unwrap_or(Ok(false)) {
                    Ok(was_waiting) => {
                        cancelled += usize::from(was_waiting);
                        json!({ "id": id, "cancelled": was_waiting })
                    }
                    Err(refused) => json!({ "id": id, "error": refused.why }),
                },
                Err(why) => json!({ "id": id, "error": why }),
            });
        }
        if cancelled > 0 {
            let text = || String::new();
            self.note(caller, Audited::TimersCancelled, &format!("{cancelled} timers"), text).await?;
        }
        Ok(json!({ "cancelled": cancelled, "timers": timers, "next": null }))
    }

    /// Cancels a bounded number of timers, and returns where the next request continues.
    async fn cancel_range(&self, range: CancelRequest, caller: &Caller) -> Result<Value, HttpError> {
        let CancelRequest { r#type, from, until, cursor, .. } = range;
        let after = cursor.as_deref().map(from_cursor).transpose()?;
        let find =
            FindTimers { types: r#type.into_iter().collect(), from, until, after, ..FindTimers::default() };
        let text = || {
            let of = find.types.first().map_or(String::new(), |of| format!("type {of} "));
            let from = from.map_or(String::new(), |from| format!("from {from} "));
            format!("{of}{from}{}", until.map_or(String::new(), |until| format!("until {until}")))
        };
        let text = text().trim_end().to_owned();
        let (cancelled, next) = self.timers.cancel_all(find, self.clock.now()).await?;
        self.count(caller, cancelled);
        if cancelled > 0 {
            self.note(caller, Audited::TimersCancelled, &format!("{cancelled} timers"), || text).await?;
        }
        Ok(json!({ "cancelled": cancelled, "next": next.as_ref().map(to_cursor) }))
    }
}

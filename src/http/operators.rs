//! Changes by operators: `/api/v1/records/{id}/ack` acknowledges an open record, `/api/v1/units/{kind}/{unit}/pause`
//! pauses a unit. PUT sets the state, DELETE takes it back. The audit notes both.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::put;
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};

use super::PageSources;
use super::body::{end, read};
use super::changes::{self, Caller, HasTokens, MAX_BODY};
use super::http_error::{HttpError, query};
use super::units::{check_name, parse};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{Operators, Roll, Silences, Subject, UnitChange};
use crate::presence::{Acknowledgement, MAX_LABELS_IN_ALL, MAX_PAUSE, RecordId, Unit, is_pause};
use crate::routing::alert_silence::{is_author, is_comment};

#[derive(Clone)]
pub(super) struct OperatorState {
    roll: Arc<Roll>,
    silences: Arc<Silences>,
    clock: Clock,
}

pub(super) fn pages(sources: &PageSources, has_tokens: HasTokens) -> Router {
    Router::new()
        .route("/api/v1/records/{id}/ack", put(acknowledge).delete(undo))
        .route("/api/v1/units/{kind}/{unit}/pause", put(pause).delete(end_pause))
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(OperatorState::new(sources))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcknowledgementRequest {
    /// The operator of the change; the default is the name of the token.
    author: Option<String>,
    #[serde(default)]
    comment: String,
}

async fn acknowledge(
    State(state): State<OperatorState>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, HttpError> {
    let (id, AcknowledgementRequest { author, comment }) = (record(&id?.0)?, read(&body?)?);
    let by = caller.by(author.as_deref());
    let author = author.unwrap_or_else(|| caller.operator().to_owned());
    check(&author, &comment)?;
    let at = state.clock.now();
    let acknowledged =
        UnitChange::Acknowledge(Some(Acknowledgement { at, author, comment: comment.clone() }));
    state.change(Subject::Record(id), acknowledged, (&by, &comment)).await
}

async fn undo(
    State(state): State<OperatorState>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<StatusCode, HttpError> {
    let (id, comment) = (record(&id?.0)?, comment(&uri)?);
    state.change(Subject::Record(id), UnitChange::Acknowledge(None), (&caller.by(None), &comment)).await
}

/// The query of a URL that is deleted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteQuery {
    #[serde(default)]
    comment: String,
}

/// The comment on a change whose request has no body.
pub(super) fn comment(uri: &Uri) -> Result<String, HttpError> {
    let DeleteQuery { comment } = query(uri)?;
    match is_comment(&comment) {
        true => Ok(comment),
        false => Err(HttpError::bad_request("comment is a short text without control characters")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseRequest {
    until: Option<Timestamp>,
    /// How long the pause is, instead of `until`.
    r#for: Option<String>,
    /// The operator of the change; the default is the name of the token.
    author: Option<String>,
    #[serde(default)]
    comment: String,
}

/// The answer to a [`PauseRequest`].
#[derive(Serialize)]
struct Paused {
    until: Timestamp,
}

pub(super) type UnitPath = Result<Path<(String, String)>, PathRejection>;

async fn pause(
    State(state): State<OperatorState>,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Paused>, HttpError> {
    let (unit, PauseRequest { until, r#for, author, comment }) = (unit(path)?, read(&body?)?);
    let (by, now) = (caller.by(author.as_deref()), state.clock.now());
    check(author.as_deref().unwrap_or(caller.operator()), &comment)?;
    let until = end(("until", until), r#for.as_deref(), now)?;
    if !is_pause(until, now) {
        let days = MAX_PAUSE.as_secs() / 86_400;
        let why = format!("the end of a pause is in the future, within {days} days");
        return Err(HttpError::bad_request(why));
    }
    state.change(Subject::Unit(unit), UnitChange::Pause(Some(until)), (&by, &comment)).await?;
    Ok(Json(Paused { until }))
}

async fn end_pause(
    State(state): State<OperatorState>,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    uri: Uri,
) -> Result<StatusCode, HttpError> {
    let (unit, comment) = (unit(path)?, comment(&uri)?);
    state.change(Subject::Unit(unit), UnitChange::Pause(None), (&caller.by(None), &comment)).await
}

impl OperatorState {
    /// Refuses a unit that could never be heard. The error for a kind that is not configured comes from elsewhere.
    pub fn check_name(&self, unit: &Unit) -> Result<(), String> {
        let rules = self.roll.shared_rules().of(unit.kind.as_str());
        rules.map_or(Ok(()), |rules| check_name(unit, &rules.name))
    }

    pub fn new(sources: &PageSources) -> OperatorState {
        OperatorState {
            roll: sources.roll.clone(),
            silences: sources.silences.clone(),
            clock: sources.clock.clone(),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub async fn change(
        &self,
        subject: Subject,
        wanted: UnitChange,
        by: (&str, &str),
    ) -> Result<StatusCode, HttpError> {
        let operators = Operators { roll: &self.roll, silences: &self.silences };
        if operators.change(&subject, &wanted, by, self.clock.now()).await? {
            return Ok(StatusCode::NO_CONTENT);
        }
        let kind = &subject.unit().kind;
        if matches!(wanted, UnitChange::Register(_)) && self.roll.rules().contains_key(kind) {
            let most = MAX_LABELS_IN_ALL;
            return Err(HttpError::conflict(format!(
                "with these labels, {subject} would have more than {most}"
            )));
        }
        Err(HttpError::not_found(match wanted {
            UnitChange::Register(_) => format!("kind {kind} is not configured; see [[kind]]"),
            UnitChange::Pause(Some(_)) if !self.roll.rules().contains_key(kind) => {
                format!("kind {kind} is not configured; see [[kind]]")
            }
            UnitChange::Acknowledge(Some(_)) => format!("there is no open record {subject}"),
            UnitChange::Acknowledge(None) => {
                format!("there is no open record {subject} that is acknowledged")
            }
            UnitChange::Pause(Some(_)) | UnitChange::Remove => format!("there is no unit {subject}"),
            UnitChange::Pause(None) => format!("no operator has paused unit {subject}"),
        }))
    }
}

pub(super) fn check(author: &str, comment: &str) -> Result<(), HttpError> {
    match (is_author(author), is_comment(comment)) {
        (false, _) => Err(HttpError::bad_request("author is a short text without control characters")),
        (_, false) => Err(HttpError::bad_request("comment is a short text without control characters")),
        _ => Ok(()),
    }
}

fn record(id: &str) -> Result<RecordId, HttpError> {
    id.parse().map_err(|error| HttpError::bad_request(format!("{id:?}: {error}")))
}

pub(super) fn unit(path: UnitPath) -> Result<Unit, HttpError> {
    let Path((kind, id)) = path?;
    parse(&kind, &id).map_err(|error| HttpError::bad_request(error.to_string()))
}

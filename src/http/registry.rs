//! Registers and removes units: PUT and DELETE of `/api/v1/units/{kind}/{unit}`, for administrators. The audit notes
//! both.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::put;
use axum::{Extension, Router};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::body::read;
use super::changes::{self, Caller, HasTokens, MAX_BODY};
use super::http_error::HttpError;
use super::operators::{OperatorState, UnitPath, check, comment, unit};
use super::settings::SettingsRequest;
use super::{PageSources, Role};
use crate::fleet::{Subject, UnitChange};

pub(super) fn pages(sources: &PageSources, has_tokens: HasTokens) -> Router {
    Router::new()
        .route("/api/v1/units/{kind}/{unit}", put(register).delete(remove))
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(OperatorState::new(sources))
}

/// The author and comment of a change; the body has them beside the settings.
#[derive(Deserialize)]
struct Signed {
    author: Option<String>,
    #[serde(default)]
    comment: String,
    #[serde(flatten)]
    settings: Map<String, Value>,
}

async fn register(
    State(state): State<OperatorState>,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, HttpError> {
    caller.require(Role::Admin)?;
    let (unit, Signed { author, comment, settings }) = (unit(path)?, read(&body?)?);
    check(author.as_deref().unwrap_or(caller.operator()), &comment)?;
    let wanted = SettingsRequest::from_json(settings).and_then(|wanted| wanted.check(&unit, state.now()));
    let wanted = wanted.map_err(HttpError::bad_request)?;
    state.check_name(&unit).map_err(HttpError::bad_request)?;
    let by = caller.by(author.as_deref());
    state.change(Subject::Unit(unit), UnitChange::Register(wanted), (&by, &comment)).await
}

async fn remove(
    State(state): State<OperatorState>,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    uri: Uri,
) -> Result<StatusCode, HttpError> {
    caller.require(Role::Admin)?;
    let (unit, comment) = (unit(path)?, comment(&uri)?);
    state.change(Subject::Unit(unit), UnitChange::Remove, (&caller.by(None), &comment)).await
}

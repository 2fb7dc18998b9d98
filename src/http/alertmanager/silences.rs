//! `silences` and `silence/{id}`: alert silences, listed, added, changed and ended.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::{Extension, Json};

use super::filter::silence_filter;
use super::silence::{AlertmanagerSilence, ApiSilence, Posted};
use super::{AlertmanagerState, list};
use crate::cause::json;
use crate::http::changes::Caller;
use crate::http::expressions::compiled;
use crate::http::http_error::HttpError;
use crate::routing::SilenceId;
use crate::routing::alert_silence::in_order;

/// Lists alert silences: active ones first, then pending ones, then expired ones.
pub(super) async fn all(State(state): State<AlertmanagerState>, uri: Uri) -> Result<Response, HttpError> {
    let filter = silence_filter(&uri).await?;
    let permit = state.permit().await?;
    let (now, stored) = (state.clock.now(), state.silences.current().await?);
    let wanted = in_order(&stored, now).into_iter();
    // As in Alertmanager, a filter selects silences that contain these matchers; it does not compare values.
    let wanted = wanted.filter(|silence| filter.iter().all(|one| silence.matchers.contains(one)));
    let shown: Vec<ApiSilence> = wanted.map(|silence| ApiSilence::of(silence, now)).collect();
    list(&shown, permit)
}

pub(super) async fn one(
    State(state): State<AlertmanagerState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ApiSilence>, HttpError> {
    let id = parse(&id?.0)?;
    let (now, stored) = (state.clock.now(), state.silences.current().await?);
    let found = stored.iter().find(|silence| silence.id == id);
    let found = found.ok_or_else(|| HttpError::not_found(format!("there is no silence {id}")))?;
    Ok(Json(ApiSilence::of(found, now)))
}

pub(super) async fn post(
    State(state): State<AlertmanagerState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Posted>, HttpError> {
    let posted: AlertmanagerSilence =
        json::read(&body?).map_err(|why| HttpError::bad_request(format!("this is not a silence: {why}")))?;
    let (id, wanted) = compiled(|| posted.wanted().map_err(HttpError::bad_request)).await?;
    let by = caller.by(Some(&wanted.author));
    let id = state.silences.put(id, wanted, &by, state.clock.now()).await?;
    // The API has no field for this number, but the page of silences shows it, so start counting now.
    let units = state.units.clone();
    tokio::spawn(async move { units.count(id).await });
    Ok(Json(Posted { id }))
}

pub(super) async fn expire(
    State(state): State<AlertmanagerState>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, HttpError> {
    let id = parse(&id?.0)?;
    // An expired silence stays expired, so the request may be repeated.
    state.silences.expire(id, &caller.by(None), state.clock.now()).await?;
    Ok(StatusCode::OK)
}

fn parse(id: &str) -> Result<SilenceId, HttpError> {
    id.parse().map_err(|error| HttpError::bad_request(format!("{id:?}: {error}")))
}

//! `/api/v1/breaker`: the last trip of the mass-offline breaker. POST to `/api/v1/breaker/release` releases it; the
//! audit notes the release.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::body::read;
use super::changes::{self, Caller, HasTokens, MAX_BODY};
use super::http_error::HttpError;
use super::operators::check;
use super::{AlertRoutes, PageSources};
use crate::clock::Clock;
use crate::fleet::MassBreaker;
use crate::presence::Trip;

#[derive(Clone)]
struct BreakerState {
    breaker: Arc<MassBreaker>,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    clock: Clock,
}

/// The breaker for the pages: it only reads and releases the trip, and never trips.
pub(super) fn breaker(sources: &PageSources) -> MassBreaker {
    let PageSources { cells, records, silences, telemetry, .. } = sources.clone();
    MassBreaker::new(None, cells, records, silences, telemetry)
}

pub(super) fn pages(sources: &PageSources, has_tokens: HasTokens) -> Router {
    let state = BreakerState {
        breaker: Arc::new(breaker(sources)),
        routes: sources.routes.clone(),
        clock: sources.clock.clone(),
    };
    Router::new()
        .route("/api/v1/breaker/release", post(release))
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .route("/api/v1/breaker", get(show))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(state)
}

#[derive(Debug, Serialize)]
struct ShownBreaker {
    /// Whether the configuration enables the breaker.
    enabled: bool,
    /// Whether the breaker holds notifications now.
    tripped: bool,
    /// The last trip; `None` if the breaker never tripped.
    trip: Option<Trip>,
}

impl ShownBreaker {
    fn new(enabled: bool, trip: Option<Trip>) -> ShownBreaker {
        ShownBreaker { enabled, tripped: enabled && trip.as_ref().is_some_and(Trip::is_held), trip }
    }
}

async fn show(State(state): State<BreakerState>) -> Result<Json<ShownBreaker>, HttpError> {
    let enabled = state.routes.borrow().breaker.is_some();
    Ok(Json(ShownBreaker::new(enabled, state.breaker.last().await?)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseRequest {
    author: Option<String>,
    #[serde(default)]
    comment: String,
}

async fn release(
    State(state): State<BreakerState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, HttpError> {
    let ReleaseRequest { author, comment } = read(&body?)?;
    check(author.as_deref().unwrap_or(caller.operator()), &comment)?;
    let by = caller.by(author.as_deref());
    if state.breaker.release((&by, &comment), state.clock.now()).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(HttpError::not_found("the mass-offline breaker holds nothing"))
}

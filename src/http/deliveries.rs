//! `/api/v1/deliveries`: notifications that wait, that were given up and that were delivered, in pages; one of them with
//! every attempt; delivering again; removing dead letters. Changes are in the audit.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::Uri;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::changes::{self, Caller, HasTokens, LONGEST_BODY};
use super::problem::{Problem, query};
use super::{AlertRoutes, Sources};
use crate::clock::{Clock, Timestamp};
use crate::fleet::deliveries::{
    Deliveries, DeliveriesChanged, DeliveriesError, DeliveryDetails, DeliveryFilter, DeliveryPage,
    DeliveryState, LARGEST_PAGE,
};

const DEFAULT_LIMIT: usize = 100;

#[derive(Clone)]
struct DeliveriesState {
    deliveries: Deliveries,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    clock: Clock,
}

pub(super) fn pages(sources: &Sources, has_tokens: HasTokens) -> Router {
    let state = DeliveriesState {
        deliveries: Deliveries {
            alerts: sources.alerts.clone(),
            queries: sources.records.clone(),
            silences: sources.silences.clone(),
        },
        routes: sources.routes.clone(),
        clock: sources.clock.clone(),
    };
    Router::new()
        .route("/api/v1/deliveries", get(list))
        .route("/api/v1/deliveries/{id}", get(show))
        .route("/api/v1/deliveries/{id}/replay", post(replay))
        .route("/api/v1/deliveries/replay", post(replay_all))
        .route("/api/v1/deliveries/purge", post(purge))
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .with_state(state)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    receiver: Option<String>,
    state: Option<DeliveryState>,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    limit: Option<usize>,
    cursor: Option<String>,
}

impl DeliveriesState {
    fn configured(&self) -> Vec<String> {
        self.routes.borrow().receivers.clone()
    }
}

async fn list(State(state): State<DeliveriesState>, uri: Uri) -> Result<Json<DeliveryPage>, Problem> {
    let ListQuery { receiver, state: wanted, from, until, limit, cursor } = query(&uri)?;
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(Problem::bad_request(format!("limit is a number from 1 to {LARGEST_PAGE}")));
    }
    let filter = DeliveryFilter { receiver, state: wanted, from, until };
    let page = state.deliveries.list(&filter, limit, cursor.as_deref(), &state.configured()).await?;
    Ok(Json(page))
}

async fn show(
    State(state): State<DeliveriesState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeliveryDetails>, Problem> {
    Ok(Json(state.deliveries.show(&id?.0, &state.configured()).await?))
}

async fn replay(
    State(state): State<DeliveriesState>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeliveriesChanged>, Problem> {
    let count = state.deliveries.replay(&id?.0, &caller.by(None), state.clock.now()).await?;
    Ok(Json(DeliveriesChanged { count, more: false }))
}

/// What is delivered again or removed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    filter: DeliveryFilter,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Serialize)]
struct Replayed {
    #[serde(flatten)]
    changed: DeliveriesChanged,
    /// The `cursor` of the next call.
    next: Option<String>,
}

async fn replay_all(
    State(state): State<DeliveriesState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Replayed>, Problem> {
    let Wanted { filter, cursor } = read(&body?)?;
    let (by, now) = (caller.by(None), state.clock.now());
    let (changed, next) = state.deliveries.replay_all(&filter, cursor.as_deref(), &by, now).await?;
    Ok(Json(Replayed { changed, next }))
}

async fn purge(
    State(state): State<DeliveriesState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DeliveriesChanged>, Problem> {
    let Wanted { filter, .. } = read(&body?)?;
    Ok(Json(state.deliveries.purge(&filter, &caller.by(None), state.clock.now()).await?))
}

fn read(body: &Bytes) -> Result<Wanted, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(error.to_string()))
}

impl From<DeliveriesError> for Problem {
    fn from(error: DeliveriesError) -> Problem {
        match error {
            DeliveriesError::Unknown(_) => Problem::not_found(error.to_string()),
            DeliveriesError::Cursor | DeliveriesError::Refused(_) => Problem::bad_request(error.to_string()),
            DeliveriesError::Engine(error) => error.into(),
        }
    }
}

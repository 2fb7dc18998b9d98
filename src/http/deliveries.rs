//! `/api/v1/deliveries`: lists waiting, delivered and dead notifications in pages, shows a notification with every
//! attempt, delivers notifications again, removes dead letters, and discards the notifications of a receiver. The audit
//! notes each change.

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

use super::body::{object, read};
use super::breaker::breaker;
use super::changes::{self, Caller, HasTokens, MAX_BODY};
use super::http_error::{HttpError, page_limit, query};
use super::{AlertRoutes, PageSources, Role};
use crate::clock::{Clock, Timestamp};
use crate::fleet::Attempts;
use crate::fleet::deliveries::{
    Deliveries, DeliveriesChanged, DeliveriesError, DeliveryDetails, DeliveryFilter, DeliveryPage, MAX_PAGE,
    WantedState,
};

const DEFAULT_LIMIT: usize = 100;

/// Lists and changes deliveries.
#[derive(Clone)]
pub(super) struct DeliveriesState {
    deliveries: Deliveries,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    clock: Clock,
}

pub(super) fn pages(state: DeliveriesState, has_tokens: HasTokens) -> Router {
    Router::new()
        .route("/api/v1/deliveries", get(list))
        .route("/api/v1/deliveries/{id}", get(show))
        .route("/api/v1/deliveries/{id}/replay", post(replay))
        .route("/api/v1/deliveries/replay", post(replay_all))
        .route("/api/v1/deliveries/purge", post(purge))
        .route("/api/v1/deliveries/discard", post(discard))
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(state)
}

/// The query of a URL of deliveries.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeliveriesQuery {
    receiver: Option<String>,
    state: Option<WantedState>,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    limit: Option<usize>,
    cursor: Option<String>,
}

impl DeliveriesQuery {
    pub fn filter(&self) -> DeliveryFilter {
        let DeliveriesQuery { receiver, state, from, until, .. } = self;
        DeliveryFilter { receiver: receiver.clone(), state: *state, from: *from, until: *until }
    }
}

impl DeliveriesState {
    pub fn new(sources: &PageSources) -> DeliveriesState {
        DeliveriesState {
            deliveries: Deliveries {
                records: sources.deliveries.clone(),
                attempts: Attempts::new(sources.cells.clone()),
                queries: sources.records.clone(),
                groups: sources.groups.clone(),
                roll: sources.roll.clone(),
                breaker: Arc::new(breaker(sources)),
                timers: sources.timers.store(),
                silences: sources.silences.clone(),
            },
            routes: sources.routes.clone(),
            clock: sources.clock.clone(),
        }
    }

    fn configured(&self) -> Vec<String> {
        self.routes.borrow().receivers.clone()
    }

    pub async fn page(&self, wanted: &DeliveriesQuery) -> Result<DeliveryPage, HttpError> {
        let limit = page_limit(wanted.limit, DEFAULT_LIMIT, MAX_PAGE)?;
        let cursor = wanted.cursor.as_deref();
        Ok(self.deliveries.list(&wanted.filter(), limit, cursor, &self.configured()).await?)
    }

    pub async fn details(&self, id: &str) -> Result<DeliveryDetails, HttpError> {
        Ok(self.deliveries.show(id, &self.configured()).await?)
    }

    /// Delivers a notification again; returns how many deliveries were queued.
    pub async fn replay(&self, id: &str, caller: &Caller) -> Result<usize, HttpError> {
        Ok(self.deliveries.replay(id, &self.configured(), &caller.by(None), self.clock.now()).await?)
    }

    /// Delivers up to 500 notifications again; returns the `cursor` for the next call.
    pub async fn replay_all(
        &self,
        filter: &DeliveryFilter,
        cursor: Option<&str>,
        caller: &Caller,
    ) -> Result<(DeliveriesChanged, Option<String>), HttpError> {
        let (configured, now) = (self.configured(), self.clock.now());
        Ok(self.deliveries.replay_all(filter, cursor, &configured, &caller.by(None), now).await?)
    }
}

async fn list(State(state): State<DeliveriesState>, uri: Uri) -> Result<Json<DeliveryPage>, HttpError> {
    Ok(Json(state.page(&query(&uri)?).await?))
}

async fn show(
    State(state): State<DeliveriesState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<DeliveryDetails>, HttpError> {
    Ok(Json(state.details(&id?.0).await?))
}

async fn replay(
    State(state): State<DeliveriesState>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DeliveriesChanged>, HttpError> {
    let EmptyBody {} = read(&body?)?;
    Ok(Json(DeliveriesChanged { count: state.replay(&id?.0, &caller).await?, more: false }))
}

/// A body without fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptyBody {}

/// The body of a replay or a purge, which selects deliveries.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliveriesRequest {
    #[serde(deserialize_with = "object")]
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
    /// The `until` of the next call, so that deliveries that end meanwhile are not selected.
    until: Timestamp,
}

async fn replay_all(
    State(state): State<DeliveriesState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Replayed>, HttpError> {
    let DeliveriesRequest { filter, cursor } = read::<DeliveriesRequest>(&body?)?;
    let until = filter.until.unwrap_or_else(|| state.clock.now());
    let filter = DeliveryFilter { until: Some(until), ..filter };
    let (changed, next) = state.replay_all(&filter, cursor.as_deref(), &caller).await?;
    Ok(Json(Replayed { changed, next, until }))
}

async fn purge(
    State(state): State<DeliveriesState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DeliveriesChanged>, HttpError> {
    let DeliveriesRequest { filter, .. } = read::<DeliveriesRequest>(&body?)?;
    Ok(Json(state.deliveries.purge(&filter, &caller.by(None), state.clock.now()).await?))
}

/// The body of a request to discard the notifications of a receiver.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiscardRequest {
    receiver: String,
    /// Discard also if the receiver is configured.
    #[serde(default)]
    force: bool,
}

async fn discard(
    State(state): State<DeliveriesState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DeliveriesChanged>, HttpError> {
    caller.require(Role::Admin)?;
    let DiscardRequest { receiver, force } = read(&body?)?;
    if !force && state.configured().contains(&receiver) {
        return Err(HttpError::conflict(format!(
            "receiver {receiver} is configured, and its notifications will be delivered; to discard them anyway, use force"
        )));
    }
    Ok(Json(state.deliveries.discard(&receiver, &caller.by(None), state.clock.now()).await?))
}

impl From<DeliveriesError> for HttpError {
    fn from(error: DeliveriesError) -> HttpError {
        match error {
            DeliveriesError::Unknown(_) => HttpError::not_found(error.to_string()),
            DeliveriesError::Cursor | DeliveriesError::Refused(_) => {
                HttpError::bad_request(error.to_string())
            }
            DeliveriesError::Engine(error) => error.into(),
        }
    }
}

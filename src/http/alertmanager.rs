//! `/alertmanager/api/v2/…`: the API of Alertmanager, so that `amtool`, Karma and Grafana's data source work with it.
//!
//! Open records are its alerts. Its silences are Rollcall's alert silences. Its receivers and groups follow from the
//! current routes, although a record stays in the groups that it joined first.
//!
//! An answer shows the newest open records up to a bound. If there are more, the answer contains an extra alert that
//! says so, because the API has no other place for it.
//!
//! Errors are a JSON string, as in Alertmanager, whose clients read no problem details.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::changes::{self, HasTokens, MAX_BODY};
use super::coverage::CoveredUnits;
use super::http_error::HttpError;
use super::{AlertRoutes, PageSources};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{MassBreaker, Ownership, Silences};
use crate::store::{Cells, Queries};
use crate::telemetry::Telemetry;

mod alert;
mod alerts;
mod filter;
mod original_config;
mod silence;
mod silences;

use original_config::original_config;

/// The most lists of alerts or silences that are built and written at the same time, because each is in memory as a
/// whole. Other requests wait.
const AT_ONCE: usize = 4;

/// The most bytes of a list that are written at once.
const CHUNK: usize = 64 * 1024;

/// The beginning of all paths of this API.
pub(super) const PREFIX: &str = "/alertmanager/";

/// The receiver name for a route without receivers: clients expect each route to have one.
const NOBODY: &str = "none";

/// The version of Alertmanager that this API reports; clients adapt to it.
const API_OF: &str = "0.27.0";

#[derive(Clone)]
struct AlertmanagerState {
    records: Arc<dyn Queries>,
    silences: Arc<Silences>,
    units: CoveredUnits,
    breaker: Arc<MassBreaker>,
    cells: Arc<dyn Cells>,
    telemetry: Arc<Telemetry>,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    ownership: Ownership,
    clock: Clock,
    started: Timestamp,
    permits: Arc<Semaphore>,
    /// See [`super::Config::external_url`].
    base: Option<Arc<str>>,
}

pub(super) fn pages(sources: &PageSources, external_url: Option<&str>, has_tokens: HasTokens) -> Router {
    let state = AlertmanagerState {
        records: sources.records.clone(),
        silences: sources.silences.clone(),
        units: CoveredUnits::new(sources),
        breaker: Arc::new(super::breaker::breaker(sources)),
        cells: sources.cells.clone(),
        telemetry: sources.telemetry.clone(),
        routes: sources.routes.clone(),
        ownership: sources.ownership.clone(),
        started: sources.clock.now(),
        clock: sources.clock.clone(),
        permits: Arc::new(Semaphore::new(AT_ONCE)),
        base: external_url.map(Arc::from),
    };
    Router::new()
        .route("/alertmanager/metrics", get(build_info))
        .route("/alertmanager/api/v2/status", get(status))
        .route("/alertmanager/api/v2/receivers", get(receivers))
        .route("/alertmanager/api/v2/alerts", get(alerts::alerts))
        .route("/alertmanager/api/v2/alerts/groups", get(alerts::groups))
        .route("/alertmanager/api/v2/silences", get(silences::all).post(silences::post))
        .route("/alertmanager/api/v2/silence/{id}", get(silences::one).delete(silences::expire))
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(state)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    cluster: ClusterStatus,
    version_info: VersionInfo,
    config: OriginalConfig,
    uptime: Timestamp,
}

#[derive(Serialize)]
struct ClusterStatus {
    name: String,
    status: &'static str,
    /// Always empty. Every instance has all silences, so clients need no peers.
    peers: [(); 0],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionInfo {
    version: &'static str,
    revision: &'static str,
    branch: &'static str,
    build_user: &'static str,
    build_date: &'static str,
    go_version: &'static str,
}

#[derive(Serialize)]
struct OriginalConfig {
    original: String,
}

async fn status(State(state): State<AlertmanagerState>) -> Json<Status> {
    let version_info = VersionInfo {
        version: API_OF,
        revision: concat!("rollcall ", env!("CARGO_PKG_VERSION")),
        branch: "",
        build_user: "",
        build_date: "",
        go_version: "",
    };
    let name = state.ownership.view().instance.clone();
    Json(Status {
        cluster: ClusterStatus { name, status: "disabled", peers: [] },
        version_info,
        config: OriginalConfig { original: original_config(&state.routes()) },
        uptime: state.started,
    })
}

/// The version, at the path where Karma reads it.
async fn build_info() -> impl IntoResponse {
    let version = format!("alertmanager_build_info{{version=\"{API_OF}\"}} 1\n");
    let help = "# HELP alertmanager_build_info The version of Alertmanager whose API Rollcall speaks.\n";
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        format!("{help}# TYPE alertmanager_build_info gauge\n{version}"),
    )
}

/// A receiver in this API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Receiver {
    name: String,
}

async fn receivers(State(state): State<AlertmanagerState>) -> Json<Vec<Receiver>> {
    Json(state.routes().receivers.iter().map(|name| Receiver { name: name.clone() }).collect())
}

impl AlertmanagerState {
    fn routes(&self) -> Arc<AlertRoutes> {
        self.routes.borrow().clone()
    }

    /// A permit to build a list.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        let permit = self.permits.clone().acquire_owned().await;
        permit.map_err(|_| HttpError::unavailable("the server stops"))
    }
}

/// A list as JSON. The permit is held until the client has read the list, or has disconnected.
fn list(all: &[impl Serialize], permit: OwnedSemaphorePermit) -> Result<Response, HttpError> {
    let json = serde_json::to_vec(all).map_err(|error| HttpError::internal(error.to_string()))?;
    let chunks = unfold((Bytes::from(json), permit), async |(mut rest, permit)| {
        let chunk = rest.split_to(rest.len().min(CHUNK));
        (!chunk.is_empty()).then_some((Ok::<Bytes, Infallible>(chunk), (rest, permit)))
    });
    Ok(([(CONTENT_TYPE, "application/json")], Body::from_stream(chunks)).into_response())
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn a_list_holds_its_permit_until_it_is_read_or_its_client_is_gone() {
        let permits = Arc::new(Semaphore::new(1));
        let long = vec!["x".repeat(99); CHUNK / 33];
        let answer = async || list(&long, permits.clone().acquire_owned().await.unwrap()).unwrap();
        let unread = answer().await;
        assert_eq!(permits.available_permits(), 0);
        drop(unread);
        assert_eq!(permits.available_permits(), 1);
        let read = to_bytes(answer().await.into_body(), usize::MAX).await.unwrap();
        assert_eq!(serde_json::from_slice::<Vec<String>>(&read).unwrap(), long);
        assert_eq!(permits.available_permits(), 1);
    }
}

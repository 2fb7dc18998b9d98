//! `/healthz`: the process lives. `/readyz`: it does its work, or why not.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde::Serialize;

use crate::engine::Mirror;
use crate::telemetry::{Problem, Severity, Telemetry};

#[derive(Clone)]
struct Watched {
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
}

/// Both pages.
pub(super) fn pages(mirror: Arc<Mirror>, telemetry: Arc<Telemetry>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readiness))
        .with_state(Watched { mirror, telemetry })
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    problems: Vec<Problem>,
}

async fn readiness(State(watched): State<Watched>) -> (StatusCode, Json<Readiness>) {
    let mut problems = watched.telemetry.problems();
    if !watched.mirror.is_filled() {
        let text = "not all units were read from the engine since the start; counts and lists are incomplete";
        let severity = Severity::Serious;
        problems.insert(0, Problem { name: "mirror_not_filled", text: text.to_owned(), severity });
    }
    let ready = problems.iter().all(|problem| problem.severity != Severity::Serious);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready, problems }))
}

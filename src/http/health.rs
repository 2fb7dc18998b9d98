//! `/healthz`: the process runs. `/readyz`: it does its work, or the reasons why not.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde::Serialize;

use crate::fleet::ownership::View;
use crate::fleet::{Mirror, Ownership};
use crate::telemetry::{HealthProblem, Severity, Telemetry};

#[derive(Clone)]
struct HealthState {
    ownership: Ownership,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
}

pub(super) fn pages(ownership: Ownership, mirror: Arc<Mirror>, telemetry: Arc<Telemetry>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readiness))
        .with_state(HealthState { ownership, mirror, telemetry })
}

/// `/healthz` and `/readyz` before the engine answers: the process runs, and `/readyz` says that it waits for the
/// engine.
pub(super) fn early_pages(instance: String, telemetry: Arc<Telemetry>) -> Router {
    let waiting = move || async move {
        let (problems, instances, partitions) = (telemetry.problems(), Vec::new(), Vec::new());
        (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(Readiness { ready: false, problems, notes: Vec::new(), instance, instances, partitions }),
        )
    };
    Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(waiting))
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    problems: Vec<HealthProblem>,
    /// Facts that an operator may want to know, and that are no problem of Rollcall.
    notes: Vec<String>,
    /// The name of this instance.
    instance: String,
    /// The instances with a valid lease, as this instance sees them.
    instances: Vec<String>,
    /// The partitions that this instance owns.
    partitions: Vec<u16>,
}

async fn readiness(State(state): State<HealthState>) -> (StatusCode, Json<Readiness>) {
    let mut problems = state.telemetry.problems();
    if !state.mirror.is_filled() {
        let text = "not all units were read from the engine yet; counts and lists are incomplete. It takes seconds; if it \
                    lasts, see what the engine is busy with, and the log";
        // Partitions that are taken over later are read within seconds, and do not delay other partitions: a warning.
        let severity = if state.mirror.was_ever_filled() { Severity::Warning } else { Severity::Serious };
        HealthProblem::new("mirror_not_filled", text.to_owned(), severity).put_first(&mut problems);
    }
    let ready = problems.iter().all(|problem| problem.severity != Severity::Serious);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let View { instance, instances, partitions, .. } = (*state.ownership.view()).clone();
    let notes = state.telemetry.unknown_topics().sentence().into_iter().collect();
    (status, Json(Readiness { ready, problems, notes, instance, instances, partitions }))
}

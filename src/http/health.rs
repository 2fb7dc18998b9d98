//! `/healthz`: the process lives. `/readyz`: it does its work, or why not.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde::Serialize;

use crate::fleet::ownership::View;
use crate::fleet::{Mirror, Ownership};
use crate::telemetry::{Problem, Severity, Telemetry};

#[derive(Clone)]
struct Watched {
    ownership: Ownership,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
}

/// Both pages.
pub(super) fn pages(ownership: Ownership, mirror: Arc<Mirror>, telemetry: Arc<Telemetry>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readiness))
        .with_state(Watched { ownership, mirror, telemetry })
}

/// Both pages before the engine is there: the process lives, and says what it waits for.
pub(super) fn early_pages(instance: String, telemetry: Arc<Telemetry>) -> Router {
    let waiting = move || async move {
        let (problems, instances, partitions) = (telemetry.problems(), Vec::new(), Vec::new());
        (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(Readiness { ready: false, problems, instance, instances, partitions }),
        )
    };
    Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(waiting))
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    problems: Vec<Problem>,
    /// The name of this instance.
    instance: String,
    /// Every instance that is there, as this one sees it.
    instances: Vec<String>,
    /// The partitions that are this instance's.
    partitions: Vec<u16>,
}

async fn readiness(State(watched): State<Watched>) -> (StatusCode, Json<Readiness>) {
    let mut problems = watched.telemetry.problems();
    if !watched.mirror.is_filled() {
        let text = "not all units were read from the engine yet; counts and lists are incomplete. It takes seconds; if it \
                    lasts, see what the engine is busy with, and the log";
        // Partitions that come later are read within seconds, and nothing else waits for that.
        let severity = if watched.mirror.was_ever_filled() { Severity::Warning } else { Severity::Serious };
        problems.insert(0, Problem { name: "mirror_not_filled", text: text.to_owned(), severity });
    }
    let ready = problems.iter().all(|problem| problem.severity != Severity::Serious);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let View { instance, instances, partitions, .. } = (*watched.ownership.view()).clone();
    (status, Json(Readiness { ready, problems, instance, instances, partitions }))
}

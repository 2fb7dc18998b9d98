//! Registers and removes units: PUT and DELETE of `/api/v1/units/{kind}/{unit}`, for administrators. Both are in the
//! audit.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::put;
use axum::{Extension, Router};
use serde::Deserialize;

use super::changes::{self, Caller, HasTokens, LONGEST_BODY};
use super::operators::{OperatorState, UnitPath, check, read, unit};
use super::problem::Problem;
use super::{Role, Sources};
use crate::fleet::{Subject, UnitChange};
use crate::presence::{
    LONGEST_LABEL, LONGEST_TIMEOUT, Labels, MOST_LABELS, Override, Unit, is_label_name, is_label_value,
    is_timeout,
};

pub(super) fn pages(sources: &Sources, has_tokens: HasTokens) -> Router {
    Router::new()
        .route("/api/v1/units/{kind}/{unit}", put(register).delete(remove))
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .with_state(OperatorState::new(sources))
}

/// The settings of a unit; those that are missing are left to the unit and to its kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedUnit {
    timeout_seconds: Option<f64>,
    grace_seconds: Option<f64>,
    #[serde(default)]
    labels: Labels,
    author: String,
    #[serde(default)]
    comment: String,
}

async fn register(
    State(state): State<OperatorState>,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Admin)?;
    let (unit, wanted): (Unit, WantedUnit) = (unit(path)?, read(&body?)?);
    if unit.id.is_reserved() {
        return Err(Problem::bad_request(format!("the id {:?} is reserved", unit.id.as_str())));
    }
    let WantedUnit { timeout_seconds, grace_seconds, labels, author, comment } = wanted;
    check(&author, &comment)?;
    check_labels(&labels)?;
    let set = Override {
        timeout: span("timeout_seconds", timeout_seconds)?,
        grace: span("grace_seconds", grace_seconds)?,
    };
    if set.timeout.is_some_and(|timeout| !is_timeout(timeout)) {
        let days = LONGEST_TIMEOUT.as_secs() / 86_400;
        return Err(Problem::bad_request(format!("timeout_seconds is from 1 second to {days} days")));
    }
    let by = caller.by(Some(&author));
    state.change(Subject::Unit(unit), UnitChange::Register { set, labels }, (&by, &comment)).await
}

async fn remove(
    State(state): State<OperatorState>,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Admin)?;
    state.change(Subject::Unit(unit(path)?), UnitChange::Remove, (&caller.by(None), "")).await
}

/// A span in seconds, to the millisecond.
fn span(name: &str, seconds: Option<f64>) -> Result<Option<Duration>, Problem> {
    let Some(seconds) = seconds else { return Ok(None) };
    if !(0.0..=LONGEST_TIMEOUT.as_secs_f64()).contains(&seconds) {
        let most = LONGEST_TIMEOUT.as_secs();
        return Err(Problem::bad_request(format!("{name} is a number of seconds from 0 to {most}")));
    }
    Ok(Some(Duration::from_millis((seconds * 1000.0).round() as u64)))
}

fn check_labels(labels: &Labels) -> Result<(), Problem> {
    if labels.len() > MOST_LABELS {
        return Err(Problem::bad_request(format!("labels are at most {MOST_LABELS}")));
    }
    for (name, value) in labels {
        if !is_label_name(name) || matches!(name.as_str(), "kind" | "unit") {
            return Err(Problem::bad_request(format!("{name:?} is no name of a label")));
        }
        if !is_label_value(value) {
            let problem = format!(
                "label {name}: its value is a text of 1 to {LONGEST_LABEL} bytes without control characters"
            );
            return Err(Problem::bad_request(problem));
        }
    }
    Ok(())
}

//! `/api/v1/instances`: the instances of the fleet, and the state of each.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::PageSources;
use super::peers::{Peers, is_from_peer};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{Census, Mirror, Ownership};
use crate::telemetry::{Consequence, Severity, Telemetry};

const PATH: &str = "/api/v1/instances";

#[derive(Clone)]
struct InstancesState {
    mirror: Arc<Mirror>,
    ownership: Ownership,
    telemetry: Arc<Telemetry>,
    census: Arc<Census>,
    peers: Peers,
    clock: Clock,
    started_at: Timestamp,
}

pub(super) fn page(sources: &PageSources) -> Router {
    let state = InstancesState {
        mirror: sources.mirror.clone(),
        ownership: sources.ownership.clone(),
        telemetry: sources.telemetry.clone(),
        census: sources.roll.census().clone(),
        peers: Peers::new(sources),
        clock: sources.clock.clone(),
        started_at: sources.clock.now(),
    };
    Router::new().route(PATH, get(instances)).with_state(state)
}

#[derive(Serialize)]
struct InstancesPage {
    at: Timestamp,
    /// The number of partitions of the fleet.
    partitions: u16,
    /// The instances, sorted by name.
    instances: Vec<ShownInstance>,
    /// The instances that did not answer.
    missing: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct ShownInstance {
    name: String,
    version: String,
    /// When the instance began to serve this fleet.
    started_at: Timestamp,
    /// The numbers of the partitions that the instance sweeps, notifies of and shows.
    partitions: Vec<u16>,
    units: u64,
    /// The instance has read all its units since it became owner of their partitions.
    complete: bool,
    /// The greatest age of the units in its mirror; `null` before it has read them.
    mirror_age_seconds: Option<f64>,
    blind: bool,
    /// A digest of the configured kinds, routes, receivers and timers.
    configuration: String,
    /// The problems, the most serious first.
    problems: Vec<ShownProblem>,
}

#[derive(Serialize, Deserialize)]
struct ShownProblem {
    name: String,
    text: String,
    severity: Severity,
    /// The consequences of the problem.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    consequences: Vec<Consequence>,
}

async fn instances(State(state): State<InstancesState>, headers: HeaderMap) -> Response {
    let own = state.own();
    if is_from_peer(&headers) {
        return Json(own).into_response();
    }
    let others = state.peers.ask::<ShownInstance>(PATH).await;
    let (mut instances, mut missing) = (others.parts, others.missing);
    instances.push(own);
    instances.sort_by(|a, b| a.name.cmp(&b.name));
    missing.sort();
    let partitions = state.mirror.partition_count();
    Json(InstancesPage { at: state.clock.now(), partitions, instances, missing }).into_response()
}

impl InstancesState {
    fn own(&self) -> ShownInstance {
        let view = self.ownership.view();
        let mut problems: Vec<ShownProblem> = self
            .telemetry
            .problems()
            .into_iter()
            .map(|one| ShownProblem {
                name: one.name.to_owned(),
                text: one.text,
                severity: one.severity,
                consequences: one.consequences,
            })
            .collect();
        problems.sort_by_key(|problem| problem.severity != Severity::Serious);
        ShownInstance {
            name: view.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            partitions: view.partitions.clone(),
            units: self.mirror.kinds().map(|kind| self.mirror.unit_count(kind)).sum(),
            complete: self.mirror.is_filled(),
            mirror_age_seconds: self.mirror.age(self.clock.now()).map(|age| age.as_secs_f64()),
            blind: self.telemetry.is_blind(),
            configuration: format!("{:012x}", self.census.configuration()),
            problems,
        }
    }
}

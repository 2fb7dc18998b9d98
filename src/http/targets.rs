//! `/api/v1/prometheus/targets`: the targets for the `http_sd_configs` of Prometheus.
//!
//! Every instance shows its own partitions, so Prometheus has to scrape all instances; each instance lists all of them.
//! By default the targets are `/metrics` of each instance; with `shards=N`, N shards of its `/metrics/units`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::http_error::{HttpError, query};
use crate::fleet::Ownership;
use crate::store::Roster;

#[derive(Clone)]
struct TargetsState {
    roster: Arc<dyn Roster>,
    ownership: Ownership,
}

pub(super) fn page(roster: Arc<dyn Roster>, ownership: Ownership) -> Router {
    Router::new()
        .route("/api/v1/prometheus/targets", get(targets))
        .with_state(TargetsState { roster, ownership })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetsQuery {
    shards: Option<u16>,
}

/// Targets that share their labels, in the format of Prometheus.
#[derive(Serialize)]
struct TargetGroup {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

async fn targets(State(state): State<TargetsState>, uri: Uri) -> Result<Json<Vec<TargetGroup>>, HttpError> {
    let TargetsQuery { shards } = query(&uri)?;
    let partitions = state.roster.partitions();
    if shards.is_some_and(|shards| !(1..=partitions).contains(&shards)) {
        let text = format!("shards is 1 to {partitions}, the number of partitions (engine.partitions)");
        return Err(HttpError::bad_request(text));
    }
    let instances = state.ownership.view().instances.clone();
    let addresses = state.roster.addresses(&instances).await?;
    // An instance without an address cannot be scraped.
    let reached = instances.into_iter().zip(addresses).filter_map(|(name, at)| Some((name, at?)));
    let groups = reached.flat_map(|(name, address)| groups(&name, &address, shards)).collect();
    Ok(Json(groups))
}

fn groups(instance: &str, address: &str, shards: Option<u16>) -> Vec<TargetGroup> {
    let group = |labels: &[(&'static str, String)]| {
        let mut labels = BTreeMap::from_iter(labels.iter().cloned());
        labels.insert("rollcall_instance", instance.to_owned());
        TargetGroup { targets: [address.to_owned()], labels }
    };
    match shards {
        None => vec![group(&[("__metrics_path__", "/metrics".to_owned())])],
        // The shard is a label too: Prometheus identifies targets by the labels that it keeps.
        Some(of) => (0..of)
            .map(|shard| {
                group(&[
                    ("__metrics_path__", "/metrics/units".to_owned()),
                    ("__param_shard", shard.to_string()),
                    ("__param_shards", of.to_string()),
                    ("shard", shard.to_string()),
                ])
            })
            .collect(),
    }
}

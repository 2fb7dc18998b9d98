//! `/api/v1/prometheus/targets`: what Prometheus has to ask, for its `http_sd_configs`.
//!
//! Every instance shows its own part of the fleet, so all have to be asked; which there are, each of
//! them knows. Without more, the targets are their `/metrics`; with `shards=N`, N shards of the
//! `/metrics/units` of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::problem::{Problem, query};
use crate::fleet::Ownership;
use crate::store::Engine;

#[derive(Clone)]
struct Known {
    engine: Arc<dyn Engine>,
    ownership: Ownership,
}

/// The page.
pub(super) fn page(engine: Arc<dyn Engine>, ownership: Ownership) -> Router {
    Router::new().route("/api/v1/prometheus/targets", get(targets)).with_state(Known { engine, ownership })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    shards: Option<u16>,
}

/// Targets that share their labels, as Prometheus wants them.
#[derive(Serialize)]
struct Group {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

async fn targets(State(known): State<Known>, uri: Uri) -> Result<Json<Vec<Group>>, Problem> {
    let Asked { shards } = query(&uri)?;
    let partitions = known.engine.partitions();
    if shards.is_some_and(|shards| !(1..=partitions).contains(&shards)) {
        let text = format!("shards is 1 to {partitions}, the number of partitions (engine.partitions)");
        return Err(Problem::bad_request(text));
    }
    let instances = known.ownership.view().instances.clone();
    let addresses = known.engine.addresses(&instances).await?;
    // One that does not say where it is cannot be asked.
    let reached = instances.into_iter().zip(addresses).filter_map(|(name, at)| Some((name, at?)));
    let groups = reached.flat_map(|(name, address)| groups(&name, &address, shards)).collect();
    Ok(Json(groups))
}

fn groups(instance: &str, address: &str, shards: Option<u16>) -> Vec<Group> {
    let group = |labels: &[(&'static str, String)]| {
        let mut labels = BTreeMap::from_iter(labels.iter().cloned());
        labels.insert("rollcall_instance", instance.to_owned());
        Group { targets: [address.to_owned()], labels }
    };
    match shards {
        None => vec![group(&[("__metrics_path__", "/metrics".to_owned())])],
        // The shard has to be seen: Prometheus tells targets apart by labels that it keeps.
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

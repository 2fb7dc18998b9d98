//! What an operator sees of several servers.

use std::sync::Arc;

use rollcall::clock::{Clock, Timestamp};
use rollcall::store::redis::{Config, RedisEngine, servers};
use rollcall::store::{Examine, ServerCondition};
use rollcall::telemetry::{EngineWarning, Telemetry};

use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::node::until;
use crate::support::sentinel::{Sentinel, SentinelPlan};

fn config(url: String) -> Config {
    Config { url, ..Config::default() }
}

fn now() -> Timestamp {
    Clock::system().now()
}

fn telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new(&Clock::system()))
}

async fn seen(config: &Config) -> Vec<ServerCondition> {
    servers(config, now(), telemetry()).await.unwrap()
}

fn count(all: &[ServerCondition], role: &str) -> usize {
    all.iter().filter(|one| one.state.as_ref().is_ok_and(|state| state.starts_with(role))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_of_a_cluster_is_examined_and_one_without_a_replica_is_named() {
    let mut cluster = Cluster::start(ClusterPlan::new(1)).await;
    let config = config(cluster.url());
    let engine = RedisEngine::connect(&config, telemetry()).await.unwrap();
    let all = seen(&config).await;
    assert_eq!((count(&all, "primary, "), count(&all, "replica of ")), (3, 3), "{all:?}");
    assert!(all.iter().all(|one| one.warnings.is_empty()), "{all:?}");
    assert_eq!(engine.examine(now()).await.unwrap(), []);

    cluster.nodes[3].kill();
    let address = cluster.nodes[0].address();
    let missing = async || {
        let warnings = engine.examine(now()).await.unwrap();
        let missing = warnings.into_iter().find(|one| one.name == EngineWarning::ReplicaMissing);
        missing.is_some_and(|warning| warning.text.contains(&address))
    };
    until("the loss of the replica is named", missing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_does_not_answer_hides_no_other_server() {
    let mut cluster = Cluster::start(ClusterPlan::new(0)).await;
    let config = config(cluster.url());
    let telemetry = telemetry();
    let engine = RedisEngine::connect(&config, telemetry.clone()).await.unwrap();
    let address = cluster.nodes[1].address();
    cluster.nodes[1].kill();
    let all = seen(&config).await;
    let failed: Vec<&str> =
        all.iter().filter(|one| one.state.is_err()).map(|one| one.address.as_str()).collect();
    assert_eq!((failed, count(&all, "primary, ")), (vec![address.as_str()], 2), "{all:?}");
    let warnings = engine.examine(now()).await.unwrap();
    let down = warnings.iter().find(|one| one.name == EngineWarning::ServerDown).expect("a warning");
    assert!(down.text.contains(&address), "{down:?}");
    assert!(warnings.iter().any(|one| one.name == EngineWarning::ReplicaMissing), "{warnings:?}");
    let up = |server: &str| crate::support::metrics::sum(&telemetry, "rollcall_engine_up", &[server]);
    assert_eq!(up(&address), Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_examined_beside_the_primary_and_its_replicas() {
    let sentinel = Sentinel::start(SentinelPlan::new(2)).await;
    let all = seen(&config(sentinel.url())).await;
    assert_eq!(count(&all, "primary, "), 1, "{all:?}");
    assert_eq!(count(&all, "replica of "), 2, "{all:?}");
    assert_eq!(count(&all, "sentinel, "), 3, "{all:?}");
    assert!(all.iter().all(|one| one.warnings.is_empty()), "{all:?}");
}

//! The addresses under which the nodes of a cluster are used, and the nodes that belong to it.

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use rollcall::clock::{Clock, Timestamp};
use rollcall::store::redis::{RedisConfig, servers};
use rollcall::store::{Advance, Gap, HearingStore, Subscription};
use rollcall::telemetry::Telemetry;
use rollcall::trust::Pem;

use crate::support::certificates::Authority;
use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::connect::connected;

fn telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new(&Clock::system()))
}

fn plan(settings: &str) -> ClusterPlan {
    ClusterPlan { settings: settings.to_owned(), ..ClusterPlan::new(0) }
}

/// A fleet is served, also while a key has moved to a node that has no slot yet (ASK).
pub async fn is_served(mut cluster: Cluster, config: RedisConfig) {
    let engine = connected(&config, telemetry()).await;
    let gap = Gap { blind: Duration::from_secs(10), tell_after: Duration::from_secs(10) };
    let hear = async |second: u64| {
        let at = Timestamp::from_millis(1_700_000_000_000) + Duration::from_secs(second);
        engine.advance(&Subscription::Plain, at, gap).await.unwrap()
    };
    hear(0).await;
    let watermarks: Vec<String> = cluster.nodes[2].ask(cmd("KEYS").arg("rollcall:{p*}:heard")).await;
    let added = cluster.add().await;
    cluster.begin_move(&watermarks[0], added).await;
    cluster.move_key(&watermarks[0], added).await;
    assert_eq!(hear(1).await, Advance::Heard(None));
    let raised: i64 = cluster.nodes[2].ask(cmd("GET").arg(&watermarks[1])).await;
    cluster.end_move(&watermarks[0], added).await;
    assert_eq!(cluster.nodes[added].ask::<i64>(cmd("GET").arg(&watermarks[0])).await, raised);
    assert_eq!(hear(2).await, Advance::Heard(None));
}

async fn is_served_with(settings: &str) {
    let cluster = Cluster::start(plan(settings)).await;
    let config = RedisConfig { url: cluster.url(), ..RedisConfig::default() };
    is_served(cluster, config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_used_under_their_addresses_where_the_cluster_prefers_these_to_the_names_that_it_announces()
{
    is_served_with("cluster-announce-hostname node.invalid\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_name_is_unknown_here_is_used_under_its_address() {
    is_served_with("cluster-announce-hostname node.invalid\ncluster-preferred-endpoint-type hostname\n")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_refers_without_a_host_means_its_own() {
    is_served_with("cluster-preferred-endpoint-type unknown-endpoint\n").await;
}

/// The answers of such a node have a `?` instead of a name.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_refers_to_one_without_a_name_means_its_own_host() {
    is_served_with("cluster-preferred-endpoint-type hostname\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_certificates_for_names_are_used_under_these_also_where_one_refers_to_another() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::of_host(dir.path(), "localhost"));
    let mut plan = plan("cluster-announce-hostname localhost\n").with_tls(&authority);
    // Add a server.
    plan.places.push(plan.places[0].clone());
    let cluster = Cluster::start(plan).await;
    let [cert, key, ca] = authority.files_of_a_client();
    let tls = Pem { ca: Some(ca), client: Some((cert, key)) };
    let url = cluster.url().replace("127.0.0.1", "localhost");
    is_served(cluster, RedisConfig { url, tls, ..RedisConfig::default() }).await;
}

/// The situation after a mistake in `engine.url`. The other cluster has a higher epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_given_node_of_another_cluster_is_named_and_gets_no_part_of_the_fleet() {
    let cluster = Cluster::start(ClusterPlan { primaries: 2, ..ClusterPlan::new(0) }).await;
    let other = Cluster::start(ClusterPlan::new(0)).await;
    let address = other.nodes[2].address();
    let config = RedisConfig { url: format!("{},{address}", cluster.url()), ..RedisConfig::default() };
    let engine = connected(&config, telemetry()).await;
    let gap = Gap { blind: Duration::from_secs(10), tell_after: Duration::from_secs(10) };
    engine.advance(&Subscription::Plain, Clock::system().now(), gap).await.unwrap();
    for node in &other.nodes {
        assert_eq!(node.ask::<usize>(&cmd("DBSIZE")).await, 0);
    }
    let found = servers(&config, Clock::system().now(), telemetry()).await.unwrap();
    let (failed, used): (Vec<_>, Vec<_>) = found.into_iter().partition(|one| one.state.is_err());
    let mut used: Vec<&str> = used.iter().map(|one| one.address.as_str()).collect();
    used.sort_unstable();
    let mut own: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    own.sort_unstable();
    assert_eq!(used, own);
    let [one] = &failed[..] else { panic!("{failed:?}") };
    let why = one.state.as_ref().unwrap_err();
    assert!(one.address == address && why.contains("another cluster") && why.contains("engine.url"), "{why}");
}

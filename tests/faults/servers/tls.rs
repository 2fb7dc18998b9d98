//! Servers that speak only TLS, also to one another, and only to clients with a certificate.

use std::sync::Arc;

use super::Survivor;
use super::failover::killed;
use crate::world::certificates::Authority;
use crate::world::cluster::ClusterPlan;
use crate::world::primaries::Primary;
use crate::world::redis::Topology;
use crate::world::sentinel::SentinelPlan;
use crate::world::{Plan, World};

/// A world on servers with certificates. The directory of the authority has to outlive it.
async fn secured(topology: impl FnOnce(&Arc<Authority>) -> Topology) -> (Survivor, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new(dir.path()));
    let world = Survivor::new(Plan { topology: topology(&authority), ..Plan::new(2) }).await;
    (world, dir)
}

fn cluster(authority: &Arc<Authority>) -> Topology {
    Topology::Cluster(ClusterPlan::new(1).with_tls(authority))
}

fn sentinel(authority: &Arc<Authority>) -> Topology {
    Topology::Sentinel(SentinelPlan::new(2).with_tls(authority))
}

/// Waits until the problems of every instance name a server and its certificate.
async fn until_named(world: &World, address: &str) {
    let is_named = |text: &str| text.contains(address) && text.contains("its certificate has expired");
    for instance in &world.instances {
        let what = format!("{} names {address}", instance.name);
        let named = async |_: &World| instance.page("/readyz").await.is_some_and(|(_, text)| is_named(&text));
        world.eventually(&what, named).await;
        assert!(is_named(&instance.logged()), "the log of {}", instance.name);
    }
    let is_found =
        |line: &str| line.starts_with("FAIL") && is_named(line) && line.contains("renew it on the server");
    // On a busy machine another server may not answer in time.
    let named = async |world: &World| world.instances[0].check().lines().any(is_found);
    world.eventually("the check names it", named).await;
}

/// Waits until `/readyz` answers with this status and has this problem. Calls that fail name a server at once, the
/// examination when it is away for longer.
async fn until_reported(world: &World, status: u16, problem: &str) {
    let is_reported = async |world: &World| {
        let page = world.instances[0].page("/readyz").await;
        page.is_some_and(|(answered, text)| answered == status && text.contains(problem))
    };
    world.eventually(&format!("readyz answers {status} with {problem}"), is_reported).await;
}

/// Waits until no instance has a problem with a server.
async fn until_forgotten(world: &World, address: &str) {
    for instance in &world.instances {
        let what = format!("{} has no problem with {address}", instance.name);
        let is_gone = async |_: &World| {
            instance
                .page("/readyz")
                .await
                .is_some_and(|(status, text)| status == 200 && !text.contains(address))
        };
        world.eventually(&what, is_gone).await;
    }
}

/// A primary comes back with a certificate that has expired, and is replaced. Detection goes on without it.
async fn certificate_expires(world: &mut World) {
    let victim: Primary = world.some_primary().await;
    world.node(victim.number).restart_with_certificate(true);
    world.until_replaced(victim).await;
    world.probe().await;
    let address = world.node(victim.number).address();
    until_named(world, &address).await;
    until_reported(world, 200, "server_missing").await;
    world.node(victim.number).restart_with_certificate(false);
    world.are_whole().await;
    until_forgotten(world, &address).await;
}

/// Rollcall is blind until the certificate is renewed.
async fn certificate_expires_where_no_replica_is_left(world: &mut World) {
    let victim = world.some_primary().await;
    let replicas = world.replicas_of(victim).await;
    replicas.iter().for_each(|replica| world.node(*replica).kill());
    world.node(victim.number).restart_with_certificate(true);
    let address = world.node(victim.number).address();
    until_named(world, &address).await;
    until_reported(world, 503, "server_down").await;
    world.node(victim.number).restart_with_certificate(false);
    world.are_whole().await;
    assert_eq!(world.records_of_the_living().await, []);
    replicas.iter().for_each(|replica| world.node(*replica).restart());
    until_forgotten(world, &address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_cluster_with_tls_that_die_or_whose_certificates_expire_mark_no_unit_offline() {
    let (world, _dir) = secured(cluster).await;
    let world = world.of("a primary dies", killed).await;
    let world = world.of("a certificate expires", certificate_expires).await;
    let alone = certificate_expires_where_no_replica_is_left;
    world.of("one expires where no replica is left", alone).await.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_tls_and_sentinel_that_die_or_whose_certificates_expire_mark_no_unit_offline() {
    let (world, _dir) = secured(sentinel).await;
    let world = world.of("the primary dies", killed).await;
    world.of("its certificate expires", certificate_expires).await.rests().await;
}

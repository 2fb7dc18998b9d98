//! Servers that lose their data or all die.

use redis::cmd;

use super::{SECOND, cluster, in_a_wave};
use crate::world::cluster::ClusterPlan;
use crate::world::redis::Topology;
use crate::world::sentinel::SentinelPlan;
use crate::world::{Plan, TIMEOUT, World};

on_both_topologies! {
    a_primary_that_comes_back_without_its_disk_as_a_replica_marks_no_unit_offline
    a_primary_that_is_emptied_is_reported_and_marks_no_unit_offline
}

async fn a_primary_that_comes_back_without_its_disk_as_a_replica_marks_no_unit_offline(plan: Plan) {
    let mut world = in_a_wave(plan).await;
    let mark = world.disturb();
    let (victim, heir) = world.kill_a_primary().await;
    world.come_back_empty(victim.number, heir).await;
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}

async fn a_primary_that_is_emptied_is_reported_and_marks_no_unit_offline(plan: Plan) {
    let mut world = in_a_wave(plan).await;
    let mark = world.disturb();
    world.empty_a_primary().await;
    world.lost_since(mark, true);
    world.eventually("the loss is notified", async |world| world.blindness_notified() > 0).await;
    world.resumes_and_rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_a_cluster_that_is_reset_marks_no_unit_offline() {
    let mut world = in_a_wave(cluster()).await;
    let mark = world.disturb();
    let primary = world.some_primary().await;
    let replica = world.replicas_of(primary).await[0];
    world.node(replica).ask::<()>(cmd("CLUSTER").arg("RESET").arg("HARD")).await;
    world.pass(SECOND).await;
    world.come_back_empty(replica, primary.number).await;
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}

/// All servers are killed and started again, with every answered write on disk.
async fn all_start_again(topology: Topology) {
    let mut world: World = in_a_wave(Plan { topology, ..Plan::new(2) }).await;
    let mark = world.disturb();
    world.redis.kill();
    world.pass_some(TIMEOUT).await;
    world.redis.restart();
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_cluster_that_all_start_again_mark_no_unit_offline() {
    all_start_again(Topology::Cluster(ClusterPlan::new(1).durable())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_sentinel_that_all_start_again_mark_no_unit_offline() {
    all_start_again(Topology::Sentinel(SentinelPlan::new(2).durable())).await;
}

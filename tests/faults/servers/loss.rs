//! Servers that lose their data or all die.

use std::time::Duration;

use redis::cmd;
use rollcall::clock::Timestamp;
use rollcall::presence::Heartbeat;
use rollcall::store::Queries;

use super::clocks::unit_apart;
use super::{SECOND, Survivor};
use crate::clocks::renew;
use crate::world::cluster::{Cluster, ClusterPlan};
use crate::world::node::{Node, leave_behind, until};
use crate::world::redis::Topology;
use crate::world::sentinel::SentinelPlan;
use crate::world::{Plan, TIMEOUT, World, crowd};

async fn comes_back_without_its_disk(world: &mut World) {
    let (victim, heir) = world.kill_a_primary().await;
    world.come_back_empty(victim.number, heir).await;
}

async fn is_emptied(world: &mut World) {
    let notified = world.blindness_notified();
    let mark = world.disturb();
    world.empty_a_primary().await;
    world.lost_since(mark, true);
    world.eventually("the loss is notified", async |world| world.blindness_notified() > notified).await;
}

async fn replica_is_reset(world: &mut World) {
    let primary = world.some_primary().await;
    let replica = world.replicas_of(primary).await[0];
    world.node(replica).ask::<()>(cmd("CLUSTER").arg("RESET").arg("HARD")).await;
    world.pass(SECOND).await;
    world.come_back_empty(replica, primary.number).await;
}

/// All servers are killed and started again, with every answered write on disk.
async fn all_start_again(world: &mut World) {
    world.redis.kill();
    world.pass_some(TIMEOUT).await;
    world.redis.restart();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_cluster_that_lose_data_or_all_die_mark_no_unit_offline() {
    let topology = Topology::Cluster(ClusterPlan::new(1).durable());
    let world = Survivor::new(Plan { topology, ..Plan::new(2) }).await;
    let world = world.of("a primary comes back as an empty replica", comes_back_without_its_disk).await;
    let world = world.of("a replica is reset", replica_is_reset).await;
    let world = world.of("all start again", all_start_again).await;
    world.of("a primary is emptied", is_emptied).await.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_sentinel_that_lose_data_or_all_die_mark_no_unit_offline() {
    let topology = Topology::Sentinel(SentinelPlan::new(2).durable());
    let world = Survivor::new(Plan { topology, ..Plan::new(2) }).await;
    let world = world.of("a primary comes back as an empty replica", comes_back_without_its_disk).await;
    let world = world.of("all start again", all_start_again).await;
    world.of("the primary is emptied", is_emptied).await.rests().await;
}

/// How far the stream of writes has come at a server.
async fn offset(node: &Node) -> u64 {
    let info = node.info("replication").await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
    line.and_then(|offset| offset.trim().parse().ok()).expect("every server has one")
}

/// The replica lacks the last writes, and hearing, which another server keeps, does not know that.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_a_promoted_replica_never_had_are_not_missed_before_the_next_canary() {
    let mut cluster = Cluster::start(ClusterPlan::new(1)).await;
    let (engine, roll) = crowd::roll(cluster.url()).await;
    let (unit, primary) = unit_apart(&cluster, &engine).await;
    let replica = cluster.replicas_of(primary).await[0];
    let slot = cluster.slot_at(primary).await;
    let begin = renew(&*engine).await;
    let at = |part: f64| begin + TIMEOUT.mul_f64(part);
    let beat = |at: Timestamp| [Heartbeat::of(unit.clone(), at)];
    let hear_until = async |tenths: std::ops::Range<u32>| {
        for tenths in tenths {
            roll.canary_returned(at(f64::from(tenths) / 10.0)).await.unwrap();
        }
    };
    let is_offline_at = async |at: Timestamp| {
        // A call to a server that is not a primary any more is repeated.
        while roll.check_deadlines(std::slice::from_ref(&unit), at).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        !engine.records(true, None, 1).await.unwrap().is_empty()
    };
    hear_until(0..1).await;
    roll.hear(&beat(begin), begin).await.unwrap();
    hear_until(1..2).await;
    let written = offset(&cluster.nodes[primary]).await;
    until("the replica has it", async || offset(&cluster.nodes[replica]).await >= written).await;
    leave_behind(&mut cluster.nodes, primary, &[replica]).await;
    roll.hear(&beat(at(0.9)), at(0.9)).await.unwrap();
    hear_until(2..13).await;
    cluster.nodes[primary].kill();
    cluster.nodes[replica].thaw();
    cluster.until_moved(slot, primary).await;
    cluster.until_whole().await;
    assert!(!is_offline_at(at(1.2)).await, "before a canary found what is lost");
    hear_until(13..14).await;
    assert!(!is_offline_at(at(1.3)).await, "when it is known to be blind time");
    hear_until(14..60).await;
    assert!(is_offline_at(at(5.7)).await, "it is silent");
}

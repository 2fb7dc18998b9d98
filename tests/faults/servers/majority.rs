//! Servers that can promote no replica, because most of the servers that decide about it are away: Rollcall is blind,
//! and marks no unit offline.

use super::{in_a_wave, sentinel};
use crate::world::cluster::ClusterPlan;
use crate::world::redis::Topology;
use crate::world::{Plan, TIMEOUT, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_dies_while_most_sentinels_are_away_makes_blind_until_they_are_back() {
    let mut world = in_a_wave(sentinel()).await;
    [0, 1].into_iter().for_each(|number| world.redis.sentinel().sentinels[number].kill());
    // The primary still answers.
    world.probe().await;
    let mark = world.disturb();
    let victim = world.some_primary().await;
    world.node(victim.number).kill();
    world.pass(2 * TIMEOUT).await;
    let sentinel = world.redis.sentinel();
    assert_eq!(sentinel.primary_now().await, None, "one of three Sentinels promotes nothing");
    let away = [0, 1].map(|number| sentinel.sentinels[number].address());
    are_named(&world, &away).await;
    let sentinel = world.redis.sentinel();
    [0, 1].into_iter().for_each(|number| sentinel.sentinels[number].restart());
    world.until_replaced(victim).await;
    world.node(victim.number).restart();
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}

/// An operator can read which sentinels have to be started, although no primary answers.
async fn are_named(world: &World, sentinels: &[String]) {
    let names = |text: &str| sentinels.iter().all(|address| text.contains(address));
    for instance in &world.instances {
        let what = format!("{} names the sentinels", instance.name);
        let named = async |_: &World| {
            let (status, text) = instance.page("/readyz").await.unwrap_or_default();
            status == 503 && names(&text) && text.contains("without them nothing takes the place")
        };
        world.eventually(&what, named).await;
    }
    let check = world.instances[0].check();
    let failed: Vec<&str> = check.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert!(names(&failed.join("\n")), "{check}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_a_quorum_makes_blind_until_it_is_back() {
    let topology = Topology::Cluster(ClusterPlan::new(1).durable());
    let mut world = in_a_wave(Plan { topology, ..Plan::new(2) }).await;
    let mark = world.disturb();
    let stays = world.some_primary().await.number;
    let cluster = world.redis.cluster();
    let mut stopped = Vec::new();
    for primary in cluster.primaries().await.into_iter().filter(|number| *number != stays) {
        stopped.extend(cluster.replicas_of(primary).await);
        stopped.push(primary);
    }
    stopped.iter().for_each(|number| cluster.nodes[*number].kill());
    world.pass(2 * TIMEOUT).await;
    let cluster = world.redis.cluster();
    stopped.iter().for_each(|number| cluster.nodes[*number].restart());
    cluster.until_whole().await;
    world.disturbed_since(mark);
    assert_eq!(world.records_of_the_living().await, []);
    world.resumes_and_rests().await;
}

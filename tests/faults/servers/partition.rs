//! A primary that the network cuts off together with an instance of Rollcall, while the rest promotes a replica.

use super::SECOND;
use crate::namespaces::{Own, is_done_elsewhere, this_test};
use crate::network::{Namespace, add_remote};
use crate::world::cluster::ClusterPlan;
use crate::world::node::Place;
use crate::world::redis::Topology;
use crate::world::{Plan, TIMEOUT, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_of_a_cluster_that_is_cut_off_with_an_instance_marks_no_unit_offline() {
    if is_done_elsewhere(this_test!(), Own::Network) {
        return;
    }
    let network = Namespace::new();
    let here = Place { host: network.ours.clone(), ..Place::default() };
    let there = Place { host: network.theirs.clone(), before: network.before(), ..Place::default() };
    let mut servers = ClusterPlan::new(1);
    servers.settings += "protected-mode no\n";
    servers.places = vec![here; 6];
    servers.places[0] = there;
    let mut world = World::new(Plan { topology: Topology::Cluster(servers), ..Plan::new(2) }).await;
    let url = world.redis.url();
    let _proxies = add_remote(&mut world, &network, &url).await;

    world.live(4 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    let cluster = world.redis.cluster();
    let slot = cluster.slot_at(0).await;
    network.unplug();
    cluster.nodes[0].cut_off(true);
    cluster.until_moved(slot, 0).await;
    // Meanwhile the other instances record and notify silences.
    let remote = world.instances.pop().expect("it was added");
    world.probe().await;
    world.instances.push(remote);
    network.plug();
    let cluster = world.redis.cluster();
    cluster.nodes[0].cut_off(false);
    cluster.until_whole().await;
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}

//! A replica takes over that lacks silences of which a receiver has the notification.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::cluster::ClusterPlan;
use crate::world::redis::Topology;
use crate::world::sentinel::SentinelPlan;
use crate::world::{Plan, TIMEOUT, World};

/// How many units fall silent; every other one is heard again at once.
const SILENT: usize = 12;

/// The notifications of units, by unit: the records and the ids of notifications of its silences, and of its returns.
type Notified = BTreeMap<String, [BTreeSet<(String, String)>; 2]>;

fn notified(world: &World) -> Notified {
    let mut notified = Notified::new();
    for one in world.notified_records() {
        let of_unit = notified.entry(one.record.unit.to_string()).or_default();
        let which = usize::from(one.record.closed_by.is_some());
        of_unit[which].insert((one.record.id.to_string(), one.notification));
    }
    notified
}

/// Replicas are left behind, units fall silent, the receiver has it, the primary dies, and half of the units are heard
/// again before their silence can be found a second time.
async fn a_return_is_notified_once_though_its_silence_was_lost(plan: Plan) {
    let mut world = World::new(plan).await;
    let units: Vec<String> = (0..SILENT).map(|number| format!("unit-{number:03}")).collect();
    units.iter().for_each(|unit| world.fleet.silence(unit));
    // The replicas have their last heartbeats.
    world.pass(TIMEOUT / 2).await;
    let mark = world.disturb();
    let victim = world.some_primary().await;
    let replicas = world.leave_replicas_behind(victim).await;
    let all_are_notified = async |world: &World| {
        let notified = notified(world);
        units.iter().all(|unit| notified.get(unit).is_some_and(|[offline, _]| !offline.is_empty()))
    };
    world.eventually("the silences are notified", all_are_notified).await;
    let before = notified(&world);
    world.node(victim.number).kill();
    units.iter().step_by(2).for_each(|unit| world.fleet.wake(unit));
    replicas.iter().for_each(|number| world.node(*number).thaw());
    world.until_replaced(victim).await;
    world.node(victim.number).restart();
    let returns_are_notified = async |world: &World| {
        let notified = notified(world);
        units.iter().step_by(2).all(|unit| !notified[unit][1].is_empty())
    };
    world.eventually("the returns are notified", returns_are_notified).await;
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
    let after = notified(&world);
    for unit in &units {
        let [offline, online] = &after[unit];
        assert_eq!(offline, &before[unit][0], "the silence of {unit} is notified once");
        assert!(online.len() <= 1, "the return of {unit} is notified once: {online:?}");
        let ids = |notified: &BTreeSet<(String, String)>| -> BTreeSet<String> {
            notified.iter().map(|(record, _)| record.clone()).collect()
        };
        assert!(ids(online).is_subset(&ids(offline)), "{offline:?} {online:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_is_notified_once_though_its_silence_was_lost_in_a_cluster() {
    let topology = Topology::Cluster(ClusterPlan::new(1));
    a_return_is_notified_once_though_its_silence_was_lost(Plan { topology, units: 40, ..Plan::new(2) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_is_notified_once_though_its_silence_was_lost_with_sentinel() {
    // With two replicas, the primary would refuse to write without them.
    let topology = Topology::Sentinel(SentinelPlan::new(1));
    a_return_is_notified_once_though_its_silence_was_lost(Plan { topology, units: 40, ..Plan::new(2) }).await;
}

//! Redis on several servers, with Sentinel and as a cluster, while units fall silent and return.
//!
//! After each fault the oracle is as strict as with one server, and detection resumes by itself.

use std::time::Duration;

use crate::world::cluster::ClusterPlan;
use crate::world::redis::Topology;
use crate::world::sentinel::SentinelPlan;
use crate::world::{Plan, TIMEOUT, World};

mod clocks;
mod failover;
mod loss;
mod majority;
mod partition;
mod slots;
mod tls;

const SECOND: Duration = Duration::from_secs(1);

/// Two instances on three primaries with a replica each.
fn cluster() -> Plan {
    Plan { topology: Topology::Cluster(ClusterPlan::new(1)), ..Plan::new(2) }
}

/// Two instances on a primary with two replicas and three Sentinels.
fn sentinel() -> Plan {
    Plan { topology: Topology::Sentinel(SentinelPlan::new(2)), ..Plan::new(2) }
}

/// A world that lives through one fault after the other, each in a wave of silences and returns. After each fault
/// detection resumes, and every silence has its record.
struct Survivor(World);

impl Survivor {
    async fn new(plan: Plan) -> Survivor {
        Survivor(World::new(plan).await)
    }

    /// Runs a fault; nothing may be lost except what `fault` names itself.
    async fn of(mut self, name: &str, fault: impl AsyncFnOnce(&mut World)) -> Survivor {
        let Survivor(world) = &mut self;
        println!("--- {name}");
        world.live(3 * TIMEOUT);
        world.pass_some(2 * SECOND).await;
        let mark = world.disturb();
        fault(world).await;
        world.are_whole().await;
        world.disturbed_since(mark);
        world.resumes().await;
        world.agrees().await;
        self
    }

    async fn rests(mut self) {
        self.0.rests().await;
    }
}

/// A world within a wave of silences and returns.
async fn in_a_wave(plan: Plan) -> World {
    let mut world = World::new(plan).await;
    world.live(4 * TIMEOUT);
    world.pass_some(2 * SECOND).await;
    world
}

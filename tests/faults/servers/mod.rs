//! Redis on several servers, with Sentinel and as a cluster, while units fall silent and return.
//!
//! After each fault the oracle is as strict as with one server, and detection resumes by itself.

use std::time::Duration;

use crate::world::cluster::ClusterPlan;
use crate::world::redis::Topology;
use crate::world::sentinel::SentinelPlan;
use crate::world::{Plan, TIMEOUT, World};

/// Cases on each topology.
macro_rules! on_both_topologies {
    ($($case:ident)*) => { $(
        mod $case {
            use crate::servers::{cluster, sentinel};

            #[tokio::test(flavor = "multi_thread")]
            async fn in_a_cluster() {
                super::$case(cluster()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn with_sentinel() {
                super::$case(sentinel()).await;
            }
        }
    )* };
}

mod failover;
mod loss;
mod majority;
mod partition;
mod slots;

const SECOND: Duration = Duration::from_secs(1);

/// Two instances on three primaries with a replica each.
fn cluster() -> Plan {
    Plan { topology: Topology::Cluster(ClusterPlan::new(1)), ..Plan::new(2) }
}

/// Two instances on a primary with two replicas and three Sentinels.
fn sentinel() -> Plan {
    Plan { topology: Topology::Sentinel(SentinelPlan::new(2)), ..Plan::new(2) }
}

/// A world within a wave of silences and returns.
async fn in_a_wave(plan: Plan) -> World {
    let mut world = World::new(plan).await;
    world.live(4 * TIMEOUT);
    world.pass_some(2 * SECOND).await;
    world
}

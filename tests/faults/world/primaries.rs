//! Primaries of a world on several servers: they die, freeze, lose their data and are replaced, whatever the topology.

use std::time::Duration;

use rand::Rng;
use redis::cmd;

use super::World;
use super::node::Node;
use super::redis::Servers;

/// A primary, by the number of its server.
#[derive(Clone, Copy, Debug)]
pub struct Primary {
    pub number: usize,
    /// A slot of the primary; 0 with Sentinel.
    slot: u16,
}

impl World {
    /// A server with data.
    pub fn node(&mut self, number: usize) -> &mut Node {
        &mut self.redis.nodes_mut()[number]
    }

    /// A primary that has a replica.
    pub async fn some_primary(&mut self) -> Primary {
        match &self.redis.0 {
            Servers::Cluster(cluster) => {
                let mut primaries = Vec::new();
                for number in cluster.primaries().await {
                    let has_replica = !cluster.replicas_of(number).await.is_empty();
                    primaries.extend(has_replica.then_some(number));
                }
                let number = primaries[self.chance.random_range(0..primaries.len())];
                Primary { number, slot: cluster.slot_at(number).await }
            }
            Servers::Sentinel(sentinel) => Primary { number: sentinel.primary().await, slot: 0 },
            _ => panic!("this world has one server"),
        }
    }

    /// Waits until every running server is in its place.
    pub async fn are_whole(&self) {
        match &self.redis.0 {
            Servers::Cluster(cluster) => cluster.until_whole().await,
            Servers::Sentinel(sentinel) => sentinel.until_whole().await,
            _ => {}
        }
    }

    /// The replicas of a primary that run.
    pub async fn replicas_of(&self, primary: Primary) -> Vec<usize> {
        match &self.redis.0 {
            Servers::Cluster(cluster) => cluster.replicas_of(primary.number).await,
            Servers::Sentinel(sentinel) => {
                (0..sentinel.servers.len()).filter(|number| *number != primary.number).collect()
            }
            _ => panic!("this world has one server"),
        }
    }

    /// Waits until a replica is promoted in the place of a primary, and every server that runs knows it.
    pub async fn until_replaced(&self, primary: Primary) -> usize {
        match &self.redis.0 {
            Servers::Cluster(cluster) => {
                let heir = cluster.until_moved(primary.slot, primary.number).await;
                cluster.until_whole().await;
                heir
            }
            Servers::Sentinel(sentinel) => sentinel.until_promoted(primary.number).await,
            _ => panic!("this world has one server"),
        }
    }

    /// Kills a primary, and waits until it is replaced. Returns it and the new one.
    pub async fn kill_a_primary(&mut self) -> (Primary, usize) {
        let victim = self.some_primary().await;
        self.node(victim.number).kill();
        (victim, self.until_replaced(victim).await)
    }

    /// Freezes a primary for at least the time `span`, until it is replaced.
    pub async fn freeze_a_primary(&mut self, span: Duration) {
        let victim = self.some_primary().await;
        self.node(victim.number).freeze();
        tokio::join!(self.until_replaced(victim), self.pass(span));
        self.node(victim.number).thaw();
    }

    /// Restarts a killed server without its data, as a replica of this primary.
    pub async fn come_back_empty(&mut self, number: usize, primary: usize) {
        match &mut self.redis.0 {
            Servers::Cluster(cluster) => cluster.replace_behind(number, primary).await,
            Servers::Sentinel(sentinel) => {
                sentinel.servers[number].wipe();
                sentinel.servers[number].restart();
            }
            _ => panic!("this world has one server"),
        }
    }

    /// Empties a primary while it runs.
    pub async fn empty_a_primary(&mut self) {
        let victim = self.some_primary().await;
        self.node(victim.number).ask::<()>(cmd("FLUSHALL").arg("SYNC")).await;
    }

    /// Promotes a replica, as an operator does.
    pub async fn promote_by_hand(&mut self) {
        let primary = self.some_primary().await;
        match &self.redis.0 {
            Servers::Cluster(cluster) => {
                cluster.failover(cluster.replicas_of(primary.number).await[0]).await;
                cluster.until_whole().await;
            }
            Servers::Sentinel(sentinel) => {
                sentinel.failover().await;
            }
            _ => panic!("this world has one server"),
        }
    }

    /// Makes a replica lag by the time `span`, and promotes it by killing its primary.
    pub async fn promote_one_that_lags(&mut self, span: Duration) {
        let victim = self.some_primary().await;
        let replicas = self.replicas_of(victim).await;
        replicas.iter().for_each(|number| self.node(*number).freeze());
        self.pass(span).await;
        self.node(victim.number).kill();
        replicas.iter().for_each(|number| self.node(*number).thaw());
        self.until_replaced(victim).await;
        self.node(victim.number).restart();
    }

    /// Moves slots of the cluster from one primary to another and back, as an operator does.
    pub async fn move_slots(&mut self) {
        let from = self.some_primary().await.number;
        let cluster = self.redis.cluster();
        let to = cluster.primaries().await.into_iter().find(|number| *number != from);
        cluster.reshard(from, to.expect("there are three"), 2000).await;
        cluster.rebalance().await;
    }
}

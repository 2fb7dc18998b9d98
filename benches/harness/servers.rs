//! The servers of Redis that keep a fleet: one, or a cluster, for benchmarks that compare them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use redis::pipe;

use rollcall::clock::Clock;
use rollcall::store::redis::{HashTags, RedisConfig, RedisEngine};
use rollcall::telemetry::Telemetry;

use super::World;
use super::process::{cpu_of, usage};
use super::records::{PARTITIONS, Watch};
use super::world::connect;
use crate::support::cluster::{Cluster, ClusterPlan};

/// The number of partitions of a new fleet in a cluster.
pub const CLUSTER_PARTITIONS: u16 = 48;

/// The servers of one side of a comparison.
pub struct Servers {
    /// The name of the side in titles.
    pub name: &'static str,
    pub url: String,
    pids: Vec<u32>,
    shares: Vec<Share>,
}

/// The part of the fleet on one server.
struct Share {
    port: u16,
    client: MultiplexedConnection,
    /// The prefixes of the keys of the share's partitions.
    begins: Vec<String>,
}

/// Three primaries without replicas and without persistence, like the single server of [`World::new`].
pub fn plan() -> ClusterPlan {
    let settings = "appendonly no\n".to_owned();
    ClusterPlan { settings, ..ClusterPlan::new(0) }
}

impl Servers {
    /// The one server of a world.
    pub async fn one(world: &World) -> anyhow::Result<Servers> {
        let port = world.redis.port();
        let begins = (0..PARTITIONS).map(|partition| begin(HashTags::Plain, partition, PARTITIONS)).collect();
        Ok(Servers {
            name: "one server",
            url: format!("redis://127.0.0.1:{port}/0"),
            pids: vec![world.redis.pid()],
            shares: vec![Share { port, client: connect(port).await?, begins }],
        })
    }

    /// The primaries of a cluster now, with the partitions of a fleet that is created there.
    pub async fn of(cluster: &Cluster) -> anyhow::Result<Servers> {
        let server_of = cluster.server_of_each_slot().await;
        let mut shares = Vec::new();
        for node in &cluster.nodes {
            let (port, client) = (node.port(), connect(node.port()).await?);
            shares.push(Share { port, client, begins: Vec::new() });
        }
        for partition in 0..CLUSTER_PARTITIONS {
            let begin = begin(HashTags::Spread, partition, CLUSTER_PARTITIONS);
            let server = server_of[usize::from(cluster.slot_of(&begin).await)];
            shares[server.context("a slot without a server")?].begins.push(begin);
        }
        shares.retain(|share| !share.begins.is_empty());
        Ok(Servers {
            name: "three primaries",
            url: cluster.url(),
            pids: cluster.nodes.iter().map(|node| node.pid()).collect(),
            shares,
        })
    }

    /// Rollcall's engine within this process.
    pub async fn engine(&self) -> anyhow::Result<Arc<RedisEngine>> {
        engine_on(&self.url).await
    }

    /// The engine of a configuration.
    pub fn setting(&self) -> String {
        format!("url = \"{}\"", self.url)
    }

    /// The CPU time of all servers.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        cpu_of(&self.pids)
    }

    /// The resident memory of all servers, in bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        self.pids.iter().map(|pid| Ok(usage(*pid)?.rss)).sum()
    }

    /// The number of units on each server.
    pub async fn units(&self) -> anyhow::Result<Vec<u64>> {
        let mut all = Vec::new();
        for share in &self.shares {
            all.push(share.sizes(&["deadlines"]).await?);
        }
        Ok(all)
    }

    /// Counts all records.
    pub async fn records(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for share in &self.shares {
            sum += share.sizes(&["offline", "past"]).await?;
        }
        Ok(sum)
    }

    /// Watches records as they are written, for the time `span`.
    pub async fn watch(&self, span: Duration) -> anyhow::Result<Watch> {
        let mut outboxes = Vec::new();
        for share in &self.shares {
            let keys: Vec<String> = share.begins.iter().map(|begin| format!("{begin}outbox")).collect();
            // The keys of one command must be in one slot.
            let each = if self.shares.len() == 1 { keys.len() } else { 1 };
            for keys in keys.chunks(each) {
                outboxes.push((connect(share.port).await?, keys.to_vec()));
            }
        }
        Ok(Watch::on(outboxes, span))
    }
}

impl Share {
    /// The sizes of these sorted sets of all partitions together.
    async fn sizes(&self, names: &[&str]) -> anyhow::Result<u64> {
        let mut pipe = pipe();
        for (begin, name) in self.begins.iter().flat_map(|begin| names.iter().map(move |name| (begin, name)))
        {
            pipe.zcard(format!("{begin}{name}"));
        }
        let sizes: Vec<u64> = pipe.query_async(&mut self.client.clone()).await?;
        Ok(sizes.into_iter().sum())
    }
}

/// Rollcall's engine within this process, on the servers at this address.
pub async fn engine_on(url: &str) -> anyhow::Result<Arc<RedisEngine>> {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let config = RedisConfig { url: url.to_owned(), ..RedisConfig::default() };
    Ok(Arc::new(RedisEngine::connect(&config, telemetry).await?))
}

/// The prefix of the keys of a partition.
pub fn begin(tags: HashTags, partition: u16, partitions: u16) -> String {
    format!("rollcall:{{{}}}:", tags.tag(partition, partitions))
}

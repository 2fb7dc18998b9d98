//! Several Redis servers as grounds: a cluster of three primaries, and a primary that Sentinels name.

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::Unit;
use rollcall::store::redis::{HashTags, RedisConfig};
use rollcall::store::{Engine, partition_of};
use rollcall::telemetry::Telemetry;

use super::ground::Ground;
use super::shared::Shared;
use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::connect::connected;
use crate::support::sentinel::{Sentinel, SentinelPlan};

/// Three primaries, and the prefix of a fleet on them.
pub struct ThreePrimaries(Arc<Cluster>, String);

/// A primary and three Sentinels, and the prefix of a fleet on it.
pub struct Watched(Arc<Sentinel>, String);

/// The prefix of a case that shares its servers.
pub fn a_prefix() -> String {
    format!("fleet-{:x}", rand::random::<u64>())
}

async fn engine(url: String, prefix: &str) -> Arc<dyn Engine> {
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)));
    let config = RedisConfig { url, prefix: prefix.to_owned(), ..RedisConfig::default() };
    Arc::new(connected(&config, telemetry).await)
}

/// The public name of an expiry key.
fn alive(prefix: &str, unit: &Unit, tags: HashTags, partitions: u16) -> String {
    let tag = tags.tag(partition_of(unit, partitions), partitions);
    format!("{prefix}:{{{tag}}}:alive:{unit}")
}

/// The servers of a case that crashes them.
pub fn own<T>(servers: &mut Arc<T>) -> &mut T {
    Arc::get_mut(servers).expect("a case that crashes its servers shares them with no other")
}

impl Ground for ThreePrimaries {
    const IS_WITHIN: bool = false;

    async fn new() -> ThreePrimaries {
        // No server takes over from another one here; a server that is slow for seconds must not count as failed.
        let plan = ClusterPlan { node_timeout: Duration::from_secs(30), ..ClusterPlan::new(0).durable() };
        ThreePrimaries(Arc::new(Cluster::start(plan).await), a_prefix())
    }
    async fn engine(&self) -> Arc<dyn Engine> {
        engine(self.0.url(), &self.1).await
    }
    /// Redis writes to disk before it answers.
    async fn settle(&self) {}
    /// Crashes all servers at once.
    async fn crash(&mut self) {
        let nodes = &mut own(&mut self.0).nodes;
        nodes.iter_mut().for_each(|node| node.kill());
        nodes.iter_mut().for_each(|node| node.restart());
        self.0.until_whole().await;
    }
    async fn lapse(&self, unit: &Unit) {
        let key = alive(&self.1, unit, HashTags::Spread, 48);
        let gone: u8 = self.0.ask(&key, cmd("DEL").arg(&key)).await;
        assert_eq!(gone, 1, "there was no key of {unit}");
    }
    async fn leave_key(&self, unit: &Unit, ms: i64) {
        let key = alive(&self.1, unit, HashTags::Spread, 48);
        self.0.ask::<()>(&key, cmd("SET").arg(&key).arg(ms)).await;
    }
}

impl Ground for Watched {
    const IS_WITHIN: bool = false;

    async fn new() -> Watched {
        Watched(Arc::new(Sentinel::start(SentinelPlan::new(0).durable()).await), a_prefix())
    }
    async fn engine(&self) -> Arc<dyn Engine> {
        engine(self.0.url(), &self.1).await
    }
    /// Redis writes to disk before it answers.
    async fn settle(&self) {}
    /// Crashes the primary; the Sentinels have no other server to promote.
    async fn crash(&mut self) {
        let servers = &mut own(&mut self.0).servers;
        servers.iter_mut().for_each(|server| server.kill());
        servers.iter_mut().for_each(|server| server.restart());
        self.0.until_whole().await;
    }
    async fn lapse(&self, unit: &Unit) {
        let gone: u8 = self.0.ask(cmd("DEL").arg(alive(&self.1, unit, HashTags::Plain, 16))).await;
        assert_eq!(gone, 1, "there was no key of {unit}");
    }
    async fn leave_key(&self, unit: &Unit, ms: i64) {
        self.0.ask::<()>(cmd("SET").arg(alive(&self.1, unit, HashTags::Plain, 16)).arg(ms)).await;
    }
}

impl Shared for ThreePrimaries {
    fn apart(&self) -> ThreePrimaries {
        ThreePrimaries(self.0.clone(), a_prefix())
    }
}

impl Shared for Watched {
    fn apart(&self) -> Watched {
        Watched(self.0.clone(), a_prefix())
    }
}

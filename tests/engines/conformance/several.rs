//! Several Redis servers as grounds: a cluster of three primaries, and a primary that Sentinels name.

use std::sync::Arc;

use redis::cmd;
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::Unit;
use rollcall::store::redis::{Config, RedisEngine, Tags};
use rollcall::store::{Engine, partition_of};
use rollcall::telemetry::Telemetry;

use super::ground::Ground;
use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::sentinel::{Sentinel, SentinelPlan};

/// Three primaries.
pub struct ThreePrimaries(Cluster);

/// A primary and three Sentinels.
pub struct Watched(Sentinel);

async fn engine(url: String) -> Arc<dyn Engine> {
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)));
    Arc::new(RedisEngine::connect(&Config { url, ..Config::default() }, telemetry).await.unwrap())
}

/// The public name of an expiry key.
fn alive(unit: &Unit, tags: Tags, partitions: u16) -> String {
    let tag = tags.tag(partition_of(unit, partitions), partitions);
    format!("rollcall:{{{tag}}}:alive:{unit}")
}

impl Ground for ThreePrimaries {
    const IS_WITHIN: bool = false;

    async fn new() -> ThreePrimaries {
        ThreePrimaries(Cluster::start(ClusterPlan::new(0).durable()).await)
    }
    async fn engine(&self) -> Arc<dyn Engine> {
        engine(self.0.url()).await
    }
    /// It writes before it answers.
    async fn settle(&self) {}
    /// All servers at once.
    async fn crash(&mut self) {
        self.0.nodes.iter_mut().for_each(|node| node.kill());
        self.0.nodes.iter_mut().for_each(|node| node.restart());
        self.0.until_whole().await;
    }
    async fn lapse(&self, unit: &Unit) {
        let key = alive(unit, Tags::Spread, 48);
        let gone: u8 = self.0.ask(&key, cmd("DEL").arg(&key)).await;
        assert_eq!(gone, 1, "there was no key of {unit}");
    }
    async fn leave_key(&self, unit: &Unit, ms: i64) {
        let key = alive(unit, Tags::Spread, 48);
        self.0.ask::<()>(&key, cmd("SET").arg(&key).arg(ms)).await;
    }
}

impl Ground for Watched {
    const IS_WITHIN: bool = false;

    async fn new() -> Watched {
        Watched(Sentinel::start(SentinelPlan::new(0).durable()).await)
    }
    async fn engine(&self) -> Arc<dyn Engine> {
        engine(self.0.url()).await
    }
    /// It writes before it answers.
    async fn settle(&self) {}
    /// The primary; the Sentinels have no other one to name.
    async fn crash(&mut self) {
        self.0.servers.iter_mut().for_each(|server| server.kill());
        self.0.servers.iter_mut().for_each(|server| server.restart());
        self.0.until_whole().await;
    }
    async fn lapse(&self, unit: &Unit) {
        let gone: u8 = self.0.ask(cmd("DEL").arg(alive(unit, Tags::Plain, 16))).await;
        assert_eq!(gone, 1, "there was no key of {unit}");
    }
    async fn leave_key(&self, unit: &Unit, ms: i64) {
        self.0.ask::<()>(cmd("SET").arg(alive(unit, Tags::Plain, 16)).arg(ms)).await;
    }
}

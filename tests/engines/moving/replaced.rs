//! A target whose servers fail while a fleet is moved to them: no part of it may be lost.

use super::*;
use crate::support::node::{leave_behind, until};

/// Units that are written to a target.
async fn units(here: &EmbeddedEngine, numbers: std::ops::Range<usize>) -> Vec<MigrationItem> {
    let facts = here.read(&[unit(0)]).await.unwrap().remove(0).stored.unwrap().to_string();
    let of = |number| MigrationItem::Unit {
        unit: unit(number),
        facts: facts.clone(),
        alive: Some(BEGIN),
        next_check: Some(BEGIN),
    };
    numbers.map(of).collect()
}

/// The move goes on after its servers have changed.
async fn goes_on(importer: &RedisImporter, items: Vec<MigrationItem>) {
    until("the move goes on", async || importer.import(items.clone()).await.is_ok()).await;
}

async fn begins_anew(here: &EmbeddedEngine, importer: RedisImporter, config: &on_redis::RedisConfig) {
    let why = importer.complete(here.hearing().await.unwrap()).await.unwrap_err();
    assert!(matches!(why, EngineError::Refused(_)) && why.to_string().contains("move again"), "{why}");
    drop(importer);
    let why = RedisEngine::connect(config, telemetry()).await.err().unwrap().to_string();
    assert!(why.contains("has begun and is not complete"), "{why}");
    carry(here, &RedisImporter::prepare(config, telemetry()).await.unwrap()).await;
    let there = RedisEngine::connect(config, telemetry()).await.unwrap();
    similar(&contents(&there).await, &contents(here).await);
}

/// The units of one server were written before, so no command meets its failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_a_cluster_of_which_a_primary_is_replaced_meanwhile_fails_and_begins_anew() {
    let places = Places::new();
    let mut cluster = Cluster::start(ClusterPlan::new(1)).await;
    let config = on_redis::RedisConfig { url: cluster.url(), partitions: Some(16), ..Default::default() };
    let here = places.open("here").await;
    fill(here.clone()).await;
    let importer = RedisImporter::prepare(&config, telemetry()).await.unwrap();
    importer.import(units(&here, 300..400).await).await.unwrap();
    let replica = cluster.replicas_of(0).await[0];
    let slot = cluster.slot_at(0).await;
    leave_behind(&mut cluster.nodes, 0, &[replica]).await;
    importer.import(units(&here, 400..700).await).await.unwrap();
    cluster.nodes[0].kill();
    cluster.nodes[replica].thaw();
    cluster.until_moved(slot, 0).await;
    cluster.until_whole().await;
    goes_on(&importer, units(&here, 700..800).await).await;
    cluster.nodes[0].restart();
    cluster.until_whole().await;
    begins_anew(&here, importer, &config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_a_primary_with_sentinel_that_is_replaced_meanwhile_fails_and_begins_anew() {
    let places = Places::new();
    let sentinel = Sentinel::start(SentinelPlan::new(1)).await;
    let config = on_redis::RedisConfig { url: sentinel.url(), partitions: Some(16), ..Default::default() };
    let here = places.open("here").await;
    fill(here.clone()).await;
    let importer = RedisImporter::prepare(&config, telemetry()).await.unwrap();
    importer.import(units(&here, 300..400).await).await.unwrap();
    sentinel.failover().await;
    sentinel.until_whole().await;
    goes_on(&importer, units(&here, 400..500).await).await;
    begins_anew(&here, importer, &config).await;
}

/// The server has lost its last writes, and its connection is opened again.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_a_server_that_starts_again_meanwhile_fails_and_begins_anew() {
    let mut places = Places::new();
    let here = places.open("here").await;
    fill(here.clone()).await;
    let config = on_redis::RedisConfig { partitions: Some(16), ..places.on_redis() };
    let importer = RedisImporter::prepare(&config, telemetry()).await.unwrap();
    importer.import(units(&here, 300..400).await).await.unwrap();
    let port = places.redis.port();
    places.redis.kill();
    places.redis = Server::redis(&places.dir.path().join("redis"), port, &[]).unwrap();
    goes_on(&importer, units(&here, 400..500).await).await;
    let why = importer.complete(here.hearing().await.unwrap()).await.unwrap_err();
    assert!(why.to_string().contains("move again"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_complete_when_replicas_have_the_fleet() {
    let places = Places::new();
    // A replica that hangs stays one of the cluster.
    let plan = ClusterPlan { node_timeout: Duration::from_secs(120), ..ClusterPlan::new(1) };
    let mut cluster = Cluster::start(plan).await;
    let config = on_redis::RedisConfig { url: cluster.url(), partitions: Some(16), ..Default::default() };
    let here = places.open("here").await;
    let importer = RedisImporter::prepare(&config, telemetry()).await.unwrap();
    let replica = cluster.replicas_of(0).await[0];
    leave_behind(&mut cluster.nodes, 0, &[replica]).await;
    let heard = here.hearing().await.unwrap();
    let cluster = &mut cluster;
    let follows = async {
        let waits = async || cluster.nodes[0].info("commandstats").await.unwrap().contains("cmdstat_wait:");
        until("the move waits for the replica", waits).await;
        let fleet: Option<String> =
            cluster.ask("rollcall:meta", cmd("HGET").arg("rollcall:meta").arg("fleet")).await;
        assert_eq!(fleet, None);
        cluster.nodes[replica].thaw();
    };
    let (complete, ()) = tokio::join!(importer.complete(heard), follows);
    complete.unwrap();
    RedisEngine::connect(&config, telemetry()).await.unwrap();
}

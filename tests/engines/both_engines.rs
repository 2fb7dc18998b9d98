//! Both engines, empty, for cases that run on each of them.

use std::sync::Arc;

use rollcall::clock::Clock;
use rollcall::store::{Engine, embedded, embedded::EmbeddedEngine, redis as on_redis, redis::RedisEngine};
use rollcall::telemetry::Telemetry;

use crate::support::redis::Redis;

pub const PARTITIONS: u16 = 2;

/// The engine on Redis, with keys of this case, and the embedded engine.
pub async fn engines(redis: &Redis, case: usize, dir: &tempfile::TempDir) -> [Arc<dyn Engine>; 2] {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let config = on_redis::RedisConfig {
        url: redis.url(),
        prefix: format!("case-{case}"),
        partitions: Some(PARTITIONS),
        ..Default::default()
    };
    let directory = embedded::EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(PARTITIONS) };
    [
        Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap()),
        Arc::new(EmbeddedEngine::open(&directory, telemetry).await.unwrap()),
    ]
}

//! The engine on a Redis server of its own.

use std::path::Path;
use std::sync::Arc;

use rollcall::clock::Clock;
use rollcall::engine::redis::{Config, RedisEngine};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::telemetry::Telemetry;

/// A new server in `dir` and the engine on it, with few partitions so that a walk is short.
pub async fn engine(dir: &Path) -> (Server, Arc<RedisEngine>) {
    let server = Server::redis(dir, free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let config = Config { url, partitions: 2, ..Config::default() };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine = RedisEngine::connect(&config, telemetry).await.unwrap();
    (server, Arc::new(engine))
}

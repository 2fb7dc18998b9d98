//! An engine on several servers.

use std::sync::Arc;
use std::time::Duration;

use rollcall::store::EngineError;
use rollcall::store::redis::{RedisConfig, RedisEngine};
use rollcall::telemetry::Telemetry;

/// How often an engine is opened at most.
const ATTEMPTS: u32 = 30;

/// The engine of a fleet. On a busy machine its servers may be late with their first answers.
pub async fn connected(config: &RedisConfig, telemetry: Arc<Telemetry>) -> RedisEngine {
    let mut attempts = 1;
    loop {
        match RedisEngine::connect(config, telemetry.clone()).await {
            Err(EngineError::Passing(_) | EngineError::Unavailable(_)) if attempts < ATTEMPTS => {}
            answer => return answer.unwrap(),
        }
        attempts += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

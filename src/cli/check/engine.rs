//! The findings about the engine: the same as the service has when it examines the engine, under the same names as
//! in its log and metrics.

use std::path::Path;
use std::sync::Arc;

use super::{Finding, with_timeout};
use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::store::Condition;
use crate::store::{EngineError, embedded, redis};
use crate::telemetry::Telemetry;

pub(super) async fn examine(config: &EngineConfig) -> Vec<Finding> {
    match with_timeout(survey(config)).await {
        Err(why) => vec![Finding::fail("engine", why)],
        Ok(condition) => {
            let text = format!("{config} is {}, and grants the rights that Rollcall needs", condition.server);
            let warnings = condition.warnings.iter();
            let warnings = warnings.map(|warning| Finding::warn(warning.name.as_str(), &warning.text));
            std::iter::once(Finding::ok("engine", text)).chain(warnings).collect()
        }
    }
}

async fn survey(config: &EngineConfig) -> Result<Condition, EngineError> {
    match config {
        EngineConfig::Redis(config) => {
            let clock = Clock::system();
            redis::survey(config, clock.now(), Arc::new(Telemetry::new(&clock))).await
        }
        EngineConfig::Embedded(config) => embedded::survey(config).await,
    }
}

/// Reads from the configured engine, beside an instance that may be running.
pub(super) async fn look_into<T: Send + 'static>(
    config: &EngineConfig,
    redis: impl AsyncFnOnce(&redis::Config, Arc<Telemetry>) -> Result<T, EngineError>,
    embedded: fn(&Path) -> Result<T, EngineError>,
) -> Result<T, String> {
    let look = async {
        match config {
            EngineConfig::Redis(config) => redis(config, Arc::new(Telemetry::new(&Clock::system()))).await,
            EngineConfig::Embedded(config) => {
                let path = config.path.clone();
                let ended = |_| EngineError::Unavailable("the check of the fleet was broken off".into());
                tokio::task::spawn_blocking(move || embedded(&path)).await.map_err(ended)?
            }
        }
    };
    with_timeout(look).await
}

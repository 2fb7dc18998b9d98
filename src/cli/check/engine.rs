//! What `rollcall check` finds out about the engine: the same as the service finds when it examines
//! it, under the same names as in its log and metrics.

use std::sync::Arc;

use super::{Finding, patiently};
use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::engine::examination::Condition;
use crate::engine::{EngineError, embedded, redis};
use crate::telemetry::Telemetry;

pub(super) async fn examine(config: &EngineConfig) -> Vec<Finding> {
    match patiently(survey(config)).await {
        Err(why) => vec![Finding::fail("engine", why)],
        Ok(condition) => {
            let text = format!("{config} is {}, and permits what is needed", condition.server);
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

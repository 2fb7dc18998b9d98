//! What `rollcall check` finds out about the engine: the same as the service finds when it examines
//! it, under the same names as in its log and metrics.

use std::sync::Arc;

use super::{Finding, patiently};
use crate::clock::Clock;
use crate::engine::redis::{Config, survey};
use crate::telemetry::Telemetry;

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let clock = Clock::system();
    let telemetry = Arc::new(Telemetry::new(&clock));
    match patiently(survey(config, clock.now(), telemetry)).await {
        Err(why) => vec![Finding::fail("engine", why)],
        Ok(condition) => {
            let text = format!("{config} is {} and permits what is needed", condition.server);
            let warnings = condition.warnings.iter();
            let warnings = warnings.map(|warning| Finding::warn(warning.name.as_str(), &warning.text));
            std::iter::once(Finding::ok("engine", text)).chain(warnings).collect()
        }
    }
}

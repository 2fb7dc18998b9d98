//! The findings about the engine: the same findings as the service has when it examines the engine, with the names of
//! its log and metrics.

use std::path::Path;
use std::sync::Arc;

use super::{Finding, with_timeout};
use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::store::{Condition, EngineError, ServerCondition, Warning, embedded, redis};
use crate::telemetry::{EngineWarning, Telemetry};

pub(super) async fn examine(config: &EngineConfig) -> Vec<Finding> {
    let (condition, servers) = tokio::join!(with_timeout(survey(config)), with_timeout(servers(config)));
    let mut findings = match condition {
        Err(why) => vec![Finding::fail("engine", why)],
        Ok(condition) => {
            let server = &condition.server;
            let text = match config {
                EngineConfig::Embedded(embedded) if !embedded.path.exists() => {
                    format!("{config} does not exist yet; it is created at the start ({server})")
                }
                _ => format!("{config} is {server}, and grants the rights that Rollcall needs"),
            };
            let warnings = condition.warnings.iter();
            let warnings = warnings.map(|warning| finding(warning, warning.text.clone()));
            std::iter::once(Finding::ok("engine", text)).chain(warnings).collect()
        }
    };
    // Without a server that knows the others, the finding about the engine gives the reason.
    findings.extend(servers.unwrap_or_default().iter().flat_map(findings_of));
    findings
}

/// The finding that `rollcall serve` would refuse the fleet in the directory of the embedded engine. No server is asked for its
/// fleet.
pub(super) fn stored(config: &EngineConfig) -> Option<Finding> {
    let EngineConfig::Embedded(config) = config else { return None };
    let why = embedded::check_stored(config).err()?;
    Some(Finding::fail("engine", why.to_string()))
}

fn findings_of(server: &ServerCondition) -> Vec<Finding> {
    let name = format!("server {}", server.address);
    let state = match &server.state {
        Ok(state) => Finding::ok(&name, state),
        Err(why) => Finding::fail(&name, why),
    };
    let warnings = server.warnings.iter();
    let warnings = warnings.map(|one| finding(one, format!("at {}: {}", server.address, one.text)));
    std::iter::once(state).chain(warnings).collect()
}

/// The finding of a warning. The service runs in spite of every warning except the one that stops its start.
fn finding(warning: &Warning, text: String) -> Finding {
    match warning.name {
        EngineWarning::EvictionPossible => Finding::fail(warning.name.as_str(), text),
        name => Finding::warn(name.as_str(), text),
    }
}

/// The condition of each server, if the engine has several.
async fn servers(config: &EngineConfig) -> Result<Vec<ServerCondition>, EngineError> {
    match config {
        EngineConfig::Redis(config) => {
            let clock = Clock::system();
            redis::servers(config, clock.now(), Arc::new(Telemetry::new(&clock))).await
        }
        EngineConfig::Embedded(_) => Ok(Vec::new()),
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

/// Reads from the configured engine, also while an instance runs.
pub(super) async fn look_into<T: Send + 'static>(
    config: &EngineConfig,
    redis: impl AsyncFnOnce(&redis::RedisConfig, Arc<Telemetry>) -> Result<T, EngineError>,
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

//! What `rollcall check` finds out about receivers that were renamed or removed: whether they left notifications
//! behind.

use std::sync::Arc;

use super::{Finding, patiently};
use crate::alerting;
use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::engine::{Backlog, EngineError, embedded, redis};
use crate::telemetry::{Telemetry, orphans_in_words};

/// A warning, if so. An engine that does not answer has a finding of its own.
pub(super) async fn examine(engine: &EngineConfig, alerting: &alerting::Config) -> Option<Finding> {
    let mut orphans = patiently(kept(engine)).await.unwrap_or_default();
    orphans.retain(|(name, _)| alerting.receivers.iter().all(|receiver| receiver.name != *name));
    let are_there = !orphans.is_empty();
    are_there.then(|| Finding::warn("orphaned_notifications", orphans_in_words(&orphans)))
}

async fn kept(engine: &EngineConfig) -> Result<Vec<(String, Backlog)>, EngineError> {
    match engine {
        EngineConfig::Redis(config) => {
            redis::kept_in(config, Arc::new(Telemetry::new(&Clock::system()))).await
        }
        EngineConfig::Embedded(config) => {
            let path = config.path.clone();
            let ended = |_| EngineError::Unavailable("the look at the fleet was broken off".into());
            tokio::task::spawn_blocking(move || embedded::kept_in(&path)).await.map_err(ended)?
        }
    }
}

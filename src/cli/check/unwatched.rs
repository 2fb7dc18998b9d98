//! What `rollcall check` finds out about kinds that are configured no more: whether records of their units are open.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Finding, patiently};
use crate::clock::Clock;
use crate::config::{Config, EngineConfig};
use crate::engine::{EngineError, embedded, redis};
use crate::presence::Kind;
use crate::telemetry::{Telemetry, removed_kinds_in_words};

/// A warning, if so. An engine that does not answer has a finding of its own.
pub(super) async fn examine(config: &Config) -> Option<Finding> {
    let mut open = patiently(open(&config.engine)).await.unwrap_or_default();
    open.retain(|kind, _| !config.rules.contains_key(kind));
    let text = || removed_kinds_in_words(&open, config.close_unwatched);
    (!open.is_empty()).then(|| Finding::warn("kinds_not_configured", text()))
}

async fn open(engine: &EngineConfig) -> Result<BTreeMap<Kind, u64>, EngineError> {
    match engine {
        EngineConfig::Redis(config) => {
            redis::open_by_kind(config, Arc::new(Telemetry::new(&Clock::system()))).await
        }
        EngineConfig::Embedded(config) => {
            let path = config.path.clone();
            let ended = |_| EngineError::Unavailable("the look at the fleet was broken off".into());
            tokio::task::spawn_blocking(move || embedded::open_by_kind(&path)).await.map_err(ended)?
        }
    }
}

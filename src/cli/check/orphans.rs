//! The finding about notifications of receivers that were renamed or removed.

use super::Finding;
use super::engine::look_into;
use crate::alerting;
use crate::config::EngineConfig;
use crate::store::{embedded, redis};
use crate::telemetry::orphans_text;

/// No finding if the engine does not answer: another finding says that.
pub(super) async fn examine(engine: &EngineConfig, alerting: &alerting::AlertingConfig) -> Option<Finding> {
    let mut orphans = look_into(engine, redis::kept_in, embedded::backlogs_in).await.unwrap_or_default();
    orphans.retain(|(name, _)| alerting.receivers.iter().all(|receiver| receiver.name != *name));
    let are_there = !orphans.is_empty();
    are_there.then(|| Finding::warn("orphaned_notifications", orphans_text(&orphans)))
}

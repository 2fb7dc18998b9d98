//! The finding about notifications of receivers that were renamed or removed.

use super::{Finding, with_timeout};
use crate::alerting;
use crate::config::EngineConfig;
use crate::engines;
use crate::telemetry::orphans_text;

/// No finding if the engine does not answer: another finding says that.
pub(super) async fn examine(engine: &EngineConfig, alerting: &alerting::AlertingConfig) -> Option<Finding> {
    let mut orphans = with_timeout(engines::backlogs(engine)).await.unwrap_or_default();
    orphans.retain(|(name, _)| alerting.receivers.iter().all(|receiver| receiver.name != *name));
    let are_there = !orphans.is_empty();
    are_there.then(|| Finding::warn("orphaned_notifications", orphans_text(&orphans)))
}

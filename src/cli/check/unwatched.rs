//! The finding about open records of kinds that are no longer configured.

use super::{Finding, with_timeout};
use crate::config::Config;
use crate::engines;
use crate::telemetry::removed_kinds_text;

/// No finding if the engine does not answer: another finding says that.
pub(super) async fn examine(config: &Config) -> Option<Finding> {
    let mut open = with_timeout(engines::open_by_kind(&config.engine)).await.unwrap_or_default();
    open.retain(|kind, _| !config.rules.contains_key(kind));
    let text = || removed_kinds_text(&open, config.close_unwatched);
    (!open.is_empty()).then(|| Finding::warn("kinds_not_configured", text()))
}

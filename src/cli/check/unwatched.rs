//! The finding about open records of kinds that are no longer configured.

use super::Finding;
use super::engine::look_into;
use crate::config::Config;
use crate::store::{embedded, redis};
use crate::telemetry::removed_kinds_text;

/// No finding if the engine does not answer: another finding says that.
pub(super) async fn examine(config: &Config) -> Option<Finding> {
    let mut open =
        look_into(&config.engine, redis::open_by_kind, embedded::open_by_kind).await.unwrap_or_default();
    open.retain(|kind, _| !config.rules.contains_key(kind));
    let text = || removed_kinds_text(&open, config.close_unwatched);
    (!open.is_empty()).then(|| Finding::warn("kinds_not_configured", text()))
}

//! The finding about values that could not be read and were quarantined.

use super::{Finding, with_timeout};
use crate::cli::repair;
use crate::config::EngineConfig;
use crate::store::EngineError;

/// The most locations that the finding names.
const MAX_NAMED: usize = 5;

/// No finding if the engine does not answer: another finding says that.
pub(super) async fn examine(engine: &EngineConfig) -> Option<Finding> {
    let quarantined = async {
        repair::quarantined(engine).await.map_err(|why| EngineError::Unavailable(format!("{why:#}")))
    };
    let quarantined = with_timeout(quarantined).await.unwrap_or_default();
    let named = quarantined.iter().take(MAX_NAMED);
    let named: Vec<String> = named.map(|one| format!("{} {}", one.what.as_str(), one.location)).collect();
    let count = quarantined.len();
    let text = || {
        format!(
            "{count} stored values could not be read and were quarantined, such as {}; look at them: rollcall repair",
            named.join(", ")
        )
    };
    (count > 0).then(|| Finding::warn("unreadable_values", text()))
}

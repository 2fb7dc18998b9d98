//! The examination: at the start and every minute, is something wrong with the engine though it
//! answers? Each problem is told when it comes and when it goes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::telemetry::Telemetry;

const EVERY: Duration = Duration::from_secs(60);

/// Examines until `stop`.
pub async fn run(
    engine: Arc<dyn Engine>,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut known: BTreeSet<&'static str> = BTreeSet::new();
    let mut every = tokio::time::interval(EVERY);
    while stop.run_until_cancelled(every.tick()).await.is_some() {
        let warnings = match engine.examine().await {
            Ok(warnings) => warnings,
            Err(error) => {
                telemetry.engine_up(Some(&error));
                continue;
            }
        };
        for warning in &warnings {
            telemetry.engine_warning(warning.name, Some(&warning.text));
        }
        let present: BTreeSet<&'static str> = warnings.iter().map(|warning| warning.name).collect();
        for gone in known.difference(&present) {
            telemetry.engine_warning(gone, None);
        }
        known = present;
    }
    Ok(())
}

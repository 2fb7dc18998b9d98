//! The examination: at the start and every minute, is something wrong with the engine though it
//! answers? Each problem is told when it comes and when it goes.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::store::Examine;
use crate::telemetry::{EngineWarning, Loop, Telemetry};

const EVERY: Duration = Duration::from_secs(60);

/// The wait before one that was asked for: what else is met meanwhile is put right with it.
const PAUSE: Duration = Duration::from_millis(50);

/// What an examination without an error shows to be possible again: what is asked for so rarely that the
/// next success may be hours away. Everything else tells by itself when it succeeds.
const EXAMINED: [Loop; 3] = [Loop::Examination, Loop::Records, Loop::Notes];

/// Examines until `stop`.
pub async fn run(
    engine: Arc<dyn Examine>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut every = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = every.tick() => {}
            () = engine.wants_examination() => tokio::time::sleep(PAUSE).await,
        }
        let warnings = match engine.examine(clock.now()).await {
            Ok(warnings) => warnings,
            Err(error) => {
                telemetry.engine_failed(Loop::Examination, "", &error);
                continue;
            }
        };
        for what in EXAMINED {
            telemetry.engine_answered(what, "");
        }
        // Clocks are compared whenever the lease is renewed.
        for ailment in EngineWarning::ALL.iter().filter(|ailment| **ailment != EngineWarning::ClockOff) {
            let warning = warnings.iter().find(|warning| warning.name == *ailment);
            telemetry.engine_warning(*ailment, warning.map(|warning| warning.text.as_str()));
        }
    }
}

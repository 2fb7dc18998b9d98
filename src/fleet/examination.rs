//! The examination: at the start and every minute, the engine is asked for problems that it has though it answers.
//! Each problem is logged when it comes and when it goes.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::store::Examine;
use crate::telemetry::{EngineWarning, Loop, Telemetry};

const EVERY: Duration = Duration::from_secs(60);

/// The wait before an examination on request: it also repairs errors that are found during the wait.
const PAUSE: Duration = Duration::from_millis(50);

/// Loops that an examination without an error shows to work again: their own calls are so rare that the next success
/// may be hours away.
const EXAMINED: [Loop; 2] = [Loop::Records, Loop::Notes];

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
        let examined = tokio::select! {
            // What it repairs is repaired in steps, each of them whole.
            () = stop.cancelled() => return Ok(()),
            examined = engine.examine(clock.now()) => examined,
        };
        let warnings = match examined {
            Ok(warnings) => warnings,
            Err(error) => {
                telemetry.engine_failed(Loop::Examination, "", &error);
                continue;
            }
        };
        telemetry.engine_answered(Loop::Examination, "");
        if warnings.iter().all(|warning| warning.name != EngineWarning::ServerDown) {
            EXAMINED.iter().for_each(|examined| telemetry.engine_answered(*examined, ""));
        }
        // Clocks are compared with each renewal of the lease.
        for name in EngineWarning::ALL.iter().filter(|name| **name != EngineWarning::ClockOff) {
            let warning = warnings.iter().find(|warning| warning.name == *name);
            telemetry.engine_warning(*name, warning.map(|warning| warning.text.as_str()));
        }
    }
}

//! The examination checks the engine at the start and every minute for problems that it has although it answers. Each
//! problem is logged when it comes and when it goes. While a server is away, the examination is repeated soon: an
//! operator reads in `/readyz` which server it is, and sees that it is back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, monotonic};
use crate::store::Examine;
use crate::telemetry::{EngineWarning, Loop, Telemetry};

const INTERVAL: Duration = Duration::from_secs(60);

/// The wait while a server is away, and after an examination that failed. Also the shortest time between two
/// examinations that failing calls request.
const REQUEST_INTERVAL: Duration = Duration::from_secs(5);

/// The wait before an examination on request: it also repairs errors that are found during the wait.
const REQUEST_DELAY: Duration = Duration::from_millis(50);

/// The warnings about a server that is away.
const AWAY: [EngineWarning; 3] =
    [EngineWarning::ServerDown, EngineWarning::ServerMissing, EngineWarning::SlotsMissing];

/// Loops that count as working again after an examination without an error: their own calls are so rare that the next
/// success may be hours away.
const EXAMINED: [Loop; 2] = [Loop::Records, Loop::Notes];

/// Examines until `stop`.
pub async fn run(
    engine: Arc<dyn Examine>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut last = monotonic();
    let mut next = last;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = sleep_until(next.into()) => {}
            () = engine.wants_examination() => sleep(REQUEST_DELAY).await,
            () = engine.suspects_its_servers() => {
                next = next.min(last + REQUEST_INTERVAL);
                continue;
            }
        }
        let examined = tokio::select! {
            // The examination repairs in steps, each of them whole.
            () = stop.cancelled() => return Ok(()),
            examined = engine.examine(clock.now()) => examined,
        };
        last = monotonic();
        let warnings = match examined {
            Ok(warnings) => warnings,
            Err(error) => {
                telemetry.engine_failed(Loop::Examination, "", &error);
                next = last + REQUEST_INTERVAL;
                continue;
            }
        };
        let is_away = warnings.iter().any(|warning| AWAY.contains(&warning.name));
        next = last + if is_away { REQUEST_INTERVAL } else { INTERVAL };
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

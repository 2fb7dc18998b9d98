//! Failures of the engine, as the loops of alerting meet them: reported, and waited out.

use std::time::Duration;

use super::ENGINE_BACKOFF;
use crate::store::Result;
use crate::telemetry::{Loop, Telemetry};

/// The failures in a row of one loop.
pub(super) struct EngineFailures<'a> {
    of: Loop,
    name: &'a str,
    telemetry: &'a Telemetry,
    count: u32,
}

impl<'a> EngineFailures<'a> {
    /// No failures so far. `name`: the loop, among other loops of its kind.
    pub fn new(of: Loop, name: &'a str, telemetry: &'a Telemetry) -> EngineFailures<'a> {
        EngineFailures { of, name, telemetry, count: 0 }
    }

    /// Whether the last step failed.
    pub fn are_going_on(&self) -> bool {
        self.count > 0
    }

    /// Reports whether the engine answered, and waits for the next step, see [`EngineFailures::wait_after`].
    pub async fn pause_after(&mut self, step: Result<Duration>) {
        tokio::time::sleep(self.wait_after(step)).await;
    }

    /// Reports whether the engine answered. Answers how long to wait for the next step: as the last step says or,
    /// after a failure, longer each time.
    pub fn wait_after(&mut self, step: Result<Duration>) -> Duration {
        match step {
            Ok(wait) => {
                self.count = 0;
                self.telemetry.engine_answered(self.of, self.name);
                wait
            }
            Err(error) => {
                self.count += 1;
                self.telemetry.engine_failed(self.of, self.name, &error);
                ENGINE_BACKOFF.wait(self.count, rand::random())
            }
        }
    }
}

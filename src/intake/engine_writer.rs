//! Repeats calls until the engine answers.
//!
//! # Why it keeps trying
//! A heartbeat that is not recorded is not lost as long as it is not acknowledged; if it were skipped, later canaries
//! would prove that it was heard. So a batch is tried until the engine takes it. The one exception is a unit with an
//! unreadable stored state: it is found by halving the batch and left out, with an error, because it would delay all
//! others for ever.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::fleet::{Roll, Timers};
use crate::presence::{Announcement, Heartbeat};
use crate::store::EngineError;
use crate::telemetry::{Loop, Telemetry};

/// The time between two attempts at the engine. After a failover the fleet stays blind until the next attempt.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_millis(200) };

/// The name of this work, for readiness.
const BEATS: &str = "heartbeats";

#[derive(Clone)]
pub(super) struct EngineWriter {
    pub roll: Arc<Roll>,
    pub timers: Arc<Timers>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    pub stop: CancellationToken,
}

impl EngineWriter {
    /// Records heartbeats; returns `false` if Rollcall is stopping and the engine is away.
    pub async fn hear(&self, heartbeats: &[Heartbeat]) -> bool {
        let mut open: Vec<Range<usize>> =
            Vec::from_iter((!heartbeats.is_empty()).then_some(0..heartbeats.len()));
        let mut failures = 0;
        while let Some(range) = open.pop() {
            match self.roll.hear(&heartbeats[range.clone()], self.clock.now()).await {
                Ok(_) => self.answered(BEATS, &mut failures),
                Err(EngineError::Damaged(why)) if range.len() == 1 => {
                    let unit = &heartbeats[range.start].unit;
                    tracing::error!(%unit, "heartbeat left out, the stored state of its unit cannot be read: {why}");
                }
                Err(EngineError::Damaged(_)) => {
                    let middle = range.start + range.len() / 2;
                    open.push(middle..range.end);
                    open.push(range.start..middle);
                }
                Err(error) => {
                    failures += 1;
                    open.push(range);
                    if !self.wait(BEATS, failures, &error).await {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Applies announcements; returns `false` if Rollcall is stopping and the engine is away.
    pub async fn announce(&self, announcements: &[Announcement]) -> bool {
        let announce = async || match self.roll.announce(announcements, || self.clock.now()).await {
            Err(EngineError::Damaged(why)) => {
                let units = announcements.len();
                tracing::error!(
                    units,
                    "announcements left out, the stored state of a unit cannot be read: {why}"
                );
                Ok(())
            }
            answer => answer,
        };
        self.ask_until_answered("announcements", announce).await.is_some()
    }

    /// Calls `ask` until the engine answers; `None` if Rollcall is stopping and the engine is away. `what` names the
    /// work, for readiness.
    pub async fn ask_until_answered<T, F>(&self, what: &'static str, ask: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = crate::store::Result<T>>,
    {
        let mut failures = 0;
        loop {
            match ask().await {
                Ok(answer) => {
                    self.answered(what, &mut failures);
                    return Some(answer);
                }
                Err(error) => {
                    failures += 1;
                    if !self.wait(what, failures, &error).await {
                        return None;
                    }
                }
            }
        }
    }

    fn answered(&self, what: &'static str, failures: &mut u32) {
        *failures = 0;
        self.telemetry.engine_answered(Loop::Intake, what);
    }

    /// Waits before the next attempt; returns `false` if Rollcall is stopping.
    async fn wait(&self, what: &'static str, failures: u32, error: &EngineError) -> bool {
        self.telemetry.engine_failed(Loop::Intake, what, error);
        let wait = BACKOFF.wait(failures, rand::random());
        self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some()
    }
}

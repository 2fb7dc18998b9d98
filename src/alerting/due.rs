//! Work that is due from time to time, such as ending silences or firing timers, and the loop that does it.
//!
//! Each kind of work has a step: a bounded share of what is due, and the wait until there is more. The loop does the
//! rest: it waits, is woken by hints and by other owners of partitions, waits longer after each failure of the engine,
//! reports failures, and ends at the stop.
//!
//! # Why each kind has a loop of its own
//! With one order by time a storm of one kind would delay the others: a hundred thousand members that are forgotten, or
//! as many reminders, would hold back seals for seconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::ENGINE_BACKOFF;
use crate::fleet::Ownership;
use crate::store::Result;
use crate::telemetry::{Loop, Telemetry};

/// The loop, and its name among loops of its kind.
pub(super) type LoopName = (Loop, &'static str);

/// A kind of work. Its state is in the engine; its progress only saves calls of the engine.
pub(super) trait DueWork: Send + Sync {
    type Progress: Send + Sync;

    /// The name of the loop in the reports of failures. `None`: the loops without which no receiver is notified report
    /// that the engine is away.
    const REPORTED_AS: Option<LoopName> = None;
    /// Whether a step that is under way at the stop may finish: it holds deliveries that would wait for the ends of
    /// their leases.
    const FINISHES_STEPS: bool = false;

    fn begin(&self) -> Self::Progress;

    /// Does a bounded share of what is due. Answers how long to wait for the next step. May be dropped at any await,
    /// unless it finishes.
    fn step(&self, progress: &mut Self::Progress) -> impl Future<Output = Result<Duration>> + Send;

    /// Completes when something may be due earlier than the last step returned.
    fn hint(&self, _progress: &Self::Progress) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// The work after the last step.
    fn stopped(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Does the work until it is stopped.
pub(super) async fn run<W: DueWork>(
    work: W,
    mut ownership: Ownership,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) {
    let (mut progress, mut failures) = (work.begin(), 0);
    loop {
        let step = work.step(&mut progress);
        let stepped = if W::FINISHES_STEPS { Some(step.await) } else { stop.run_until_cancelled(step).await };
        let Some(stepped) = stepped else { break };
        let wait = match stepped {
            Ok(wait) => {
                failures = 0;
                if let Some((of, name)) = W::REPORTED_AS {
                    telemetry.engine_answered(of, name);
                }
                wait
            }
            Err(error) => {
                failures += 1;
                if let Some((of, name)) = W::REPORTED_AS {
                    telemetry.engine_failed(of, name, &error);
                }
                ENGINE_BACKOFF.wait(failures, rand::random())
            }
        };
        // A hint does not cut the wait for an engine that fails: there are many hints then.
        let is_answered = failures == 0;
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = work.hint(&progress), if is_answered => {}
            () = ownership.changed(), if is_answered => {}
            () = sleep(wait) => {}
        }
    }
    work.stopped().await;
}

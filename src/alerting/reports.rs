//! Builds reports that are due, and registers each as a timer: see `reports/plan.rs`.
//!
//! One instance does it, the owner of the first partition; two owners at once register the same timer, once. A report
//! waits until all of its days are summed, but not for ever. While history cannot be read, it is tried again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::FIRST_PARTITION;
use super::due::DueWork;
use crate::clock::{Clock, Timestamp};
use crate::fleet::{AvailabilityHistory, Ownership, Timers};
use crate::presence::NewTimer;
use crate::reports::{Days, ReportPlan, as_data};
use crate::store::Result;

/// How often due reports are checked for.
const PERIOD: Duration = Duration::from_secs(10);
/// How long a report waits for days that are not summed yet.
const PATIENCE: Duration = Duration::from_secs(12 * 3600);

pub(super) struct ReportMaking {
    pub timers: Arc<Timers>,
    pub history: Arc<dyn AvailabilityHistory>,
    pub ownership: Ownership,
    pub clock: Clock,
}

/// For each plan, when its last registered report was due, when the one was due that waits, and what the log says of it.
#[derive(Default)]
pub(super) struct ReportProgress {
    registered: BTreeMap<String, Timestamp>,
    waiting: BTreeMap<String, Timestamp>,
    failed: BTreeMap<String, String>,
}

impl ReportProgress {
    fn is_registered(&self, name: &str, due: Timestamp) -> bool {
        self.registered.get(name) == Some(&due)
    }

    /// Notes that a report waits. Answers the moment of the earlier report of that name that waited in vain, if there is one.
    fn wait(&mut self, name: &str, due: Timestamp) -> Option<Timestamp> {
        self.waiting.insert(name.to_owned(), due).filter(|before| *before != due)
    }

    fn register(&mut self, name: &str, due: Timestamp) {
        self.waiting.remove(name);
        self.registered.insert(name.to_owned(), due);
    }
}

impl DueWork for ReportMaking {
    type Progress = ReportProgress;

    fn begin(&self) -> ReportProgress {
        ReportProgress::default()
    }

    async fn step(&self, progress: &mut ReportProgress) -> Result<Duration> {
        if !self.ownership.owns(FIRST_PARTITION) {
            // The owner says what it did not send.
            progress.waiting.clear();
            return Ok(PERIOD);
        }
        for plan in &self.timers.rules().reports {
            let due = plan.schedule.last(self.clock.now());
            if progress.is_registered(plan.name(), due) {
                continue;
            }
            if let Some(missed) = progress.wait(plan.name(), due) {
                let Days { from, until } = plan.days(missed);
                tracing::warn!(report = plan.name(), %from, %until, "a report was not sent, because it could not be made \
                     until the next one was due");
            }
            if self.register(plan, due, progress).await? {
                progress.register(plan.name(), due);
            }
        }
        Ok(PERIOD)
    }
}

impl ReportMaking {
    /// Registers the report that is due since `due`. Answers whether it is registered.
    async fn register(
        &self,
        plan: &ReportPlan,
        due: Timestamp,
        progress: &mut ReportProgress,
    ) -> Result<bool> {
        let Some(id) = plan.timer_id(due) else { return Ok(true) };
        if self.timers.read(std::slice::from_ref(&id)).await?.iter().any(Option::is_some) {
            return Ok(true);
        }
        let days = plan.days(due);
        let made = match self.history.report(days, &plan.group).await {
            Ok(made) => made.with_target(plan.target),
            Err(why) => {
                let why = why.to_string();
                if progress.failed.get(plan.name()) != Some(&why) {
                    tracing::warn!(report = plan.name(), %why, "a report that is due cannot be made yet");
                    progress.failed.insert(plan.name().to_owned(), why);
                }
                return Ok(false);
            }
        };
        if made.until < days.until && self.clock.now() < due + PATIENCE {
            return Ok(false);
        }
        let Some(data) = as_data(&made) else { return Ok(true) };
        let timer = NewTimer { id, timer_type: plan.timer_type.clone(), due, is_span: false, data };
        self.timers.store().register(&[timer], true).await?;
        self.timers.registered().notify_one();
        progress.failed.remove(plan.name());
        tracing::info!(report = plan.name(), from = %days.from, until = %days.until, "a report is sent");
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_waits_until_the_next_one_is_due_is_said_once() {
        let mut progress = ReportProgress::default();
        let at = Timestamp::from_millis;
        // When the report is due, which earlier one is said, and whether it is registered then.
        for (due, missed, is_registered) in [
            (1, None, true),
            (2, None, false),
            (2, None, false),
            (3, Some(2), false),
            (3, None, true),
            (4, None, true),
        ] {
            assert!(!progress.is_registered("sites", at(due)));
            assert_eq!(progress.wait("sites", at(due)), missed.map(at), "{due}");
            assert_eq!(progress.wait("other", at(9)), None);
            if is_registered {
                progress.register("sites", at(due));
                assert!(progress.is_registered("sites", at(due)));
            }
        }
    }
}

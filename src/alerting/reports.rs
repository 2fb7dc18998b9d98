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
use crate::reports::{ReportPlan, as_data};
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

/// For each plan, when its last registered report was due, and what the log says of others.
#[derive(Default)]
pub(super) struct ReportProgress {
    registered: BTreeMap<String, Timestamp>,
    failed: BTreeMap<String, String>,
}

impl DueWork for ReportMaking {
    type Progress = ReportProgress;

    fn begin(&self) -> ReportProgress {
        ReportProgress::default()
    }

    async fn step(&self, progress: &mut ReportProgress) -> Result<Duration> {
        if self.ownership.owns(FIRST_PARTITION) {
            for plan in &self.timers.rules().reports {
                let due = plan.schedule.last(self.clock.now());
                if progress.registered.get(plan.name()) != Some(&due)
                    && self.register(plan, due, progress).await?
                {
                    progress.registered.insert(plan.name().to_owned(), due);
                }
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

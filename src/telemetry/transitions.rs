//! Checks of deadlines, and the units that went offline or came back.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::MutexGuard;
use tokio_util::sync::CancellationToken;

use super::labels::{CheckOutcome, CheckSource};
use super::problems::{KINDS_REMOVED, Severity};
use super::{LogLimit, Telemetry, removed_kinds_text};
use crate::clock::monotonic;
use crate::presence::{Closing, Kind, OfflineRecord, Transition, Unit};

impl Telemetry {
    /// Deadline checks of units had this result.
    pub fn deadlines_checked(&self, source: CheckSource, result: CheckOutcome, count: u64) {
        self.series.checks.with_label_values(&[source.as_str(), result.as_str()]).inc_by(count);
    }

    /// Sweeping is on: lets the series start at zero.
    pub fn sweep_configured(&self) {
        self.series.sweeps.with_label_values::<&str>(&[]);
    }

    /// A sweep read the deadline index.
    pub fn swept(&self) {
        self.series.sweeps.with_label_values::<&str>(&[]).inc();
    }

    /// The replicas of a server confirmed all writes, or did not in time.
    pub fn waited_for_replicas(&self, in_time: bool) {
        let result = if in_time { "ok" } else { "timeout" };
        self.series.replica_waits.with_label_values(&[result]).inc();
    }

    /// An expiry notification found the queue full.
    pub fn expiry_notification_dropped(&self) {
        self.series.notifications_dropped.inc();
    }

    /// A record was opened.
    pub fn went_offline(&self, record: &OfflineRecord) {
        self.series.transitions.with_label_values(&["offline", record.cause.as_str()]).inc();
        self.series.detection_delay.observe(record.detected_at.since(record.deadline).as_secs_f64());
        if self.log_limit(Transition::Offline).admit() {
            let (unit, cause) = (&record.id.unit, record.cause.as_str());
            tracing::warn!(%unit, cause, last_seen = %record.last_seen, deadline = %record.deadline, "unit offline");
        }
    }

    /// The first heartbeat of a unit was applied.
    pub fn unit_is_new(&self, unit: &Unit) {
        if self.new_log.lock().admit() {
            tracing::info!(%unit, "new unit");
        }
    }

    /// A record was closed.
    pub fn came_back(&self, record: &OfflineRecord) {
        let cause = record.closed_by.map_or("return", Closing::as_str);
        self.series.transitions.with_label_values(&["online", cause]).inc();
        if self.log_limit(Transition::Online).admit() {
            let (unit, closed_at) = (&record.id.unit, record.back_at.map(tracing::field::display));
            let offline_since = record.deadline;
            match record.closed_by {
                Some(Closing::KindRemoved) => {
                    tracing::info!(%unit, cause, %offline_since, closed_at, "unit is no longer watched")
                }
                _ => tracing::info!(%unit, cause, %offline_since, back_at = closed_at, "unit back"),
            }
        }
    }

    /// Logs once a second, until `stop`, how many lines the limits suppressed.
    pub async fn log_suppressed_transitions(&self, stop: &CancellationToken) {
        let mut every = tokio::time::interval(Duration::from_secs(1));
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let now = monotonic();
            if let Some(more) = self.log_limit(Transition::Offline).end_span(now) {
                tracing::warn!(more, "more units went offline than are named; /api/v1/records lists all");
            }
            if let Some(more) = self.log_limit(Transition::Online).end_span(now) {
                tracing::info!(more, "further returns are not named");
            }
            let more = self.new_log.lock().end_span(now);
            if let Some(more) = more {
                tracing::info!(more, "further new units are not named");
            }
        }
    }

    fn log_limit(&self, of: Transition) -> MutexGuard<'_, LogLimit> {
        let limit = match of {
            Transition::Offline => &self.offline_log,
            Transition::Online => &self.online_log,
        };
        limit.lock()
    }

    /// Open records of kinds that are not configured, and for how long they stay open. Logs the change.
    pub fn removed_kinds(&self, open: &BTreeMap<Kind, u64>, stay: Duration) {
        if open.is_empty() {
            self.problems.clear(KINDS_REMOVED, "");
        } else {
            let text = removed_kinds_text(open, stay);
            if self.problems.set(KINDS_REMOVED, "", text.clone(), Severity::Warning) {
                tracing::warn!("{text}");
            }
        }
    }
}

//! Timers that clients register and cancel.

use super::Telemetry;
use super::labels::TimerOutcome;

impl Telemetry {
    /// So many timers came to this end.
    pub fn timers_requested(&self, outcome: TimerOutcome, count: u64) {
        self.series.timer_requests.with_label_values(&[outcome.as_str()]).inc_by(count);
    }
}

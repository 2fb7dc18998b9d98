//! Timers that clients register and cancel.

use super::labels::TimerOutcome;
use super::{MAX_SHOWN, Telemetry, truncate};

impl Telemetry {
    /// `count` requests for timers had this outcome.
    pub fn timers_requested(&self, outcome: TimerOutcome, count: u64) {
        self.series.timer_requests.with_label_values(&[outcome.as_str()]).inc_by(count);
    }

    /// A request over MQTT was applied without an answer, because Rollcall does not answer on its response topic.
    pub fn timer_answer_left_out(&self, topic: &str) {
        if let Some(suppressed) = self.samples.admit("timer_answer") {
            let topic = truncate(topic, MAX_SHOWN);
            tracing::warn!(
                topic,
                suppressed,
                "request about a timer is not answered: its response topic is not permitted: it is a topic of the \
                 fleet, below rollcall/, or not valid"
            );
        }
    }
}

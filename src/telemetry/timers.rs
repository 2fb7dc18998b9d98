//! Timers that wait and fire.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Telemetry;
use super::labels::TimerOutcome;
use crate::presence::TimerType;

/// The sampled line about timers of a type that is not configured.
pub(super) const WITHOUT_CLASS: &str = "timers_without_class";

const NO_LABELS: [&str; 0] = [];

impl Telemetry {
    /// The number of waiting timers of each type in the partitions of this instance, and the configured types. This
    /// starts all series of timers at zero: a service without classes has none.
    pub fn timers_waiting<'a>(
        &self,
        configured: impl Iterator<Item = &'a TimerType>,
        waiting: &BTreeMap<TimerType, u64>,
    ) {
        let timers = &self.series.timers;
        timers.reset();
        self.series.timer_lateness.with_label_values(&NO_LABELS);
        for outcome in TimerOutcome::ALL {
            self.series.timer_requests.with_label_values(&[outcome.as_str()]);
        }
        for of in configured {
            timers.with_label_values(&[of.as_str(), "waiting"]);
            self.series.timers_fired.with_label_values(&[of.as_str()]);
            self.series.timers_unknown.with_label_values(&[of.as_str()]);
        }
        for (of, count) in waiting {
            timers.with_label_values(&[of.as_str(), "waiting"]).set(*count as i64);
        }
    }

    /// A timer fired. `late`: how long after its moment.
    pub fn timer_fired(&self, of: &TimerType, late: Duration) {
        self.series.timers_fired.with_label_values(&[of.as_str()]).inc();
        self.series.timer_lateness.with_label_values(&NO_LABELS).observe(late.as_secs_f64());
    }

    /// The only attempt to deliver a timer has no known outcome, because its instance died.
    pub fn timer_outcome_unknown(&self, of: &TimerType) {
        self.series.timers_unknown.with_label_values(&[of.as_str()]).inc();
        tracing::warn!(
            class = of.as_str(),
            "the only attempt to deliver a timer has no outcome: the instance that made it ended before it recorded \
             one; whether the receiver got the timer is unknown, and it is not tried again"
        );
    }

    /// Due timers whose types are not configured here; they wait.
    pub fn timers_without_class<'a>(&self, types: impl Iterator<Item = &'a TimerType>) {
        if let Some(suppressed) = self.samples.admit(WITHOUT_CLASS) {
            let mut types: Vec<&str> = types.map(TimerType::as_str).collect();
            types.sort_unstable();
            types.dedup();
            let types = types.join(", ");
            tracing::warn!(
                types,
                suppressed,
                "due timers have a type that is not configured and do not fire; configure a [[timer]] of that type, or \
                 cancel the timers"
            );
        }
    }
}

//! Timers that wait and fire.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Telemetry;
use crate::presence::TimerType;

/// The sampled line about timers of a type that is not configured.
pub(super) const WITHOUT_CLASS: &str = "timers_without_class";

impl Telemetry {
    /// How many timers of each type wait in the partitions of this instance, and which types are configured: their series
    /// start at zero.
    pub fn timers_waiting<'a>(
        &self,
        configured: impl Iterator<Item = &'a TimerType>,
        waiting: &BTreeMap<TimerType, u64>,
    ) {
        let timers = &self.series.timers;
        timers.reset();
        // Where timers are used, the series starts at zero, too.
        self.lateness();
        for of in configured {
            timers.with_label_values(&[of.as_str(), "waiting"]);
            self.series.timers_fired.with_label_values(&[of.as_str()]);
            self.series.timers_unknown.with_label_values(&[of.as_str()]);
        }
        for (of, count) in waiting {
            timers.with_label_values(&[of.as_str(), "waiting"]).set(*count as i64);
        }
    }

    fn lateness(&self) -> prometheus::Histogram {
        let no_labels: [&str; 0] = [];
        self.series.timer_lateness.with_label_values(&no_labels)
    }

    /// A timer fired, so long after its moment.
    pub fn timer_fired(&self, of: &TimerType, late: Duration) {
        self.series.timers_fired.with_label_values(&[of.as_str()]).inc();
        self.lateness().observe(late.as_secs_f64());
    }

    /// The only attempt to deliver a timer has no outcome: the instance that made it died.
    pub fn timer_outcome_unknown(&self, of: &TimerType) {
        self.series.timers_unknown.with_label_values(&[of.as_str()]).inc();
        tracing::warn!(
            class = of.as_str(),
            "the only attempt to deliver a timer has no outcome: the instance that made it ended before it recorded one; \
             whether the receiver got the timer is unknown, and it is not tried again"
        );
    }

    /// Timers are due whose types are not configured here; they wait.
    pub fn timers_without_class<'a>(&self, types: impl Iterator<Item = &'a TimerType>) {
        if let Some(suppressed) = self.samples.admit(WITHOUT_CLASS) {
            let mut types: Vec<&str> = types.map(TimerType::as_str).collect();
            types.sort_unstable();
            types.dedup();
            let types = types.join(", ");
            tracing::warn!(
                types,
                suppressed,
                "timers are due and do not fire, because no [[timer]] has their type; configure it, or cancel them"
            );
        }
    }
}

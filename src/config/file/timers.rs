//! Timers: their classes, and the limits of all; and reports, which are sent at times.

use serde::{Deserialize, Serialize};

use crate::config::Span;
use crate::presence::{DEFAULT_MOST_OF_CLASS, DEFAULT_MOST_TIMERS, DEFAULT_TIMER_KEEP};

section! {
    /// A class of timers.
    Timer {
        #[serde(rename = "type")]
        timer_type: String = String::new(),
        receivers: Vec<String> = Vec::new(),
        guarantee: GuaranteeOption = GuaranteeOption::AtLeastOnce,
        keep: Span = Span(DEFAULT_TIMER_KEEP),
        max: u64 = DEFAULT_MOST_OF_CLASS,
    }
}

section! {
    /// The limits of all timers.
    Timers {
        max: u64 = DEFAULT_MOST_TIMERS,
        rate: u32 = 100_000,
    }
}

section! {
    /// A report of availability that is sent regularly.
    Report {
        name: String = String::new(),
        receivers: Vec<String> = Vec::new(),
        every: ReportPeriod = ReportPeriod::Month,
        at: String = "06:00".into(),
        range: String = String::new(),
        group_by: String = "kind".into(),
        target: f64 = 0.0,
    }
}

choice! {
    /// A report is sent on the first day of each.
    ReportPeriod { Day, Week, Month, Quarter, Year }
}

/// How often a receiver is sent a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "options are explained in config/reference.toml, their one home")]
pub enum GuaranteeOption {
    AtLeastOnce,
    AtMostOnce,
}

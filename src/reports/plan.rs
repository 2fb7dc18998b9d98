//! Reports that are sent regularly: each is a timer of a class of its own, whose data are the report.
//!
//! # Why a timer
//! A timer fires once, whatever instances do, and is delivered until its receivers have it. The id of the timer
//! contains the name of the report and its due day, and a known id is not registered again: so each report is sent
//! once.

use crate::clock::Timestamp;
use crate::presence::{FiredTimer, TimerData, TimerId, TimerType};

use super::{AvailabilityReport, Days, GroupBy, ReportRange, ReportSchedule, day_of};

/// The prefix of the types of these timers; the name of the report follows.
pub const REPORT_TYPE: &str = "report_";

/// The numbers of rows to try, until a report is small enough for the data of a timer.
const MOST_ROWS: [usize; 6] = [1000, 500, 250, 120, 60, 0];

/// A report that is sent regularly.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportPlan {
    pub timer_type: TimerType,
    pub schedule: ReportSchedule,
    pub range: ReportRange,
    pub group: GroupBy,
    /// The share of time online that was agreed, below 1.
    pub target: Option<f64>,
}

impl ReportPlan {
    /// The name of the report.
    pub fn name(&self) -> &str {
        let name = self.timer_type.as_str();
        name.strip_prefix(REPORT_TYPE).unwrap_or(name)
    }

    /// The days of the report that is due at `due`.
    pub fn days(&self, due: Timestamp) -> Days {
        self.range.before(due)
    }

    /// The id of its timer; `None` if the name is too long.
    pub fn timer_id(&self, due: Timestamp) -> Option<TimerId> {
        format!("{}:{}", self.timer_type, day_of(due)).parse().ok()
    }
}

/// A report as the data of a timer, with as many of its worst rows as fit.
pub fn as_data(report: &AvailabilityReport) -> Option<TimerData> {
    MOST_ROWS.into_iter().find_map(|most| {
        let fitting = report.clone().with_worst(most);
        serde_json::to_string(&fitting).ok()?.parse().ok()
    })
}

/// The report in a timer; `None` for a timer without a report.
pub fn of_timer(timer: &FiredTimer) -> Option<AvailabilityReport> {
    timer
        .timer_type
        .as_str()
        .starts_with(REPORT_TYPE)
        .then(|| serde_json::from_str(timer.data.as_str()).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::MAX_TIMER_BYTES;
    use crate::reports::ReportRow;
    use crate::reports::schedule::CalendarPeriod;
    use crate::reports::tests::october;

    #[test]
    fn each_report_has_its_name() {
        for name in ["sites", "report_sites", "report_report_"] {
            let plan = ReportPlan {
                timer_type: format!("{REPORT_TYPE}{name}").parse().unwrap(),
                schedule: ReportSchedule { every: CalendarPeriod::Day, at: jiff::civil::Time::midnight() },
                range: ReportRange::Last(CalendarPeriod::Day),
                group: GroupBy::Fleet,
                target: None,
            };
            assert_eq!(plan.name(), name);
        }
    }

    #[test]
    fn a_report_reads_back_from_its_timer_and_keeps_the_worst_rows() {
        let small = october();
        let timer = |report: &AvailabilityReport, of: &str| FiredTimer {
            id: "any".parse().unwrap(),
            timer_type: of.parse().unwrap(),
            due: Timestamp::ZERO,
            fired_at: Timestamp::ZERO,
            data: as_data(report).unwrap(),
            guarantee: Default::default(),
        };
        assert_eq!(of_timer(&timer(&small, "report_sites")), Some(small.clone()));
        assert_eq!(of_timer(&timer(&small, "report-due")), None);
        let good = |number: usize| ReportRow { name: format!("site {number}"), ..small.rows[1].clone() };
        let rows = small.rows.iter().cloned().chain((0..2000).map(good)).collect();
        let large = timer(&AvailabilityReport { rows, ..small }, "report_sites");
        let read = of_timer(&large).unwrap();
        assert!(
            large.data.as_str().len() <= MAX_TIMER_BYTES && read.rows.len() >= 120,
            "{}",
            read.rows.len()
        );
        assert_eq!(read.rows.len() + read.omitted, 2002);
        assert!(read.rows.iter().any(|row| row.name == "north"), "the worst one");
    }
}

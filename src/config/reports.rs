//! Checks `[[report]]`: reports of availability that are sent regularly. Each is a class of timers.

use std::time::Duration;

use jiff::civil::Time;

use super::file::{File, Report, ReportPeriod};
use super::problem::Problems;
use super::timer_receivers::named_receivers;
use crate::presence::{Guarantee, TimerClass};
use crate::reports::{CalendarPeriod, GroupBy, REPORT_TYPE, ReportPlan, ReportRange, ReportSchedule};

/// How long a sent report is remembered: longer than any period, so that none is sent twice.
const KEEP: Duration = Duration::from_secs(400 * 86_400);
const MAX_DAYS: u32 = 3660;

/// The reports, and the class of each.
pub(super) fn reports(file: &File, problems: &mut Problems) -> Vec<(ReportPlan, TimerClass)> {
    let mut all: Vec<(ReportPlan, TimerClass)> = Vec::new();
    for (at, one) in file.report.iter().enumerate() {
        let path = format!("report[{at}]");
        let Some(report) = report(&path, one, file, problems) else { continue };
        if all.iter().any(|(known, _)| known.timer_type == report.0.timer_type) {
            problems.error(format!("{path}.name"), format!("{:?} is used twice; rename one", one.name));
        }
        all.push(report);
    }
    if !all.is_empty() && file.history.url.is_empty() {
        problems.error("report", "is made from history; set history.url to the address of a PostgreSQL");
    }
    all
}

fn report(
    path: &str,
    one: &Report,
    file: &File,
    problems: &mut Problems,
) -> Option<(ReportPlan, TimerClass)> {
    named_receivers(&format!("{path}.receivers"), &one.receivers, &file.receiver, problems);
    let at = Time::strptime("%H:%M", &one.at);
    let at = at.map_err(|_| format!("{:?} is no time of a day; write 06:00", one.at));
    let at = problems.keep(&format!("{path}.at"), at);
    let range = problems.keep(&format!("{path}.range"), range(&one.range, one.every));
    let target = problems.keep(&format!("{path}.target"), target(one.target));
    if one.group_by.is_empty() {
        problems
            .error(format!("{path}.group_by"), "is empty; write fleet, kind, unit or the name of a label");
    }
    let timer_type = format!("{REPORT_TYPE}{}", one.name).parse();
    let named = timer_type.ok().filter(|_| !one.name.is_empty());
    let named = named.ok_or("a report's name is 1 to 25 of the characters a-z, 0-9, _ and -");
    let timer_type = problems.keep(&format!("{path}.name"), named)?;
    let schedule = ReportSchedule { every: one.every.period(), at: at? };
    let (group, target) = (GroupBy::from(one.group_by.clone()), target?);
    let plan = ReportPlan { timer_type, schedule, range: range?, group, target };
    let class = TimerClass {
        timer_type: plan.timer_type.clone(),
        receivers: one.receivers.clone(),
        guarantee: Guarantee::AtLeastOnce,
        keep: KEEP,
        most: 1,
    };
    Some((plan, class))
}

/// The range of a report: a period, or a number of days as a span; an empty text is the last period of `every`.
fn range(text: &str, every: ReportPeriod) -> Result<ReportRange, String> {
    Ok(ReportRange::Last(match text {
        "" => every.period(),
        "day" => CalendarPeriod::Day,
        "week" => CalendarPeriod::Week,
        "month" => CalendarPeriod::Month,
        "quarter" => CalendarPeriod::Quarter,
        "year" => CalendarPeriod::Year,
        days => {
            let days = days.strip_suffix('d').and_then(|days| days.parse().ok());
            let days = days.filter(|days| (1..=MAX_DAYS).contains(days));
            let wrong = || {
                format!("{text:?} is no range; write day, week, month, quarter, year or days, such as 90d")
            };
            return days.map(ReportRange::Days).ok_or_else(wrong);
        }
    }))
}

/// The share of a percentage; zero means that no target is set.
fn target(percent: f64) -> Result<Option<f64>, String> {
    match percent {
        0.0 => Ok(None),
        _ if percent > 0.0 && percent < 100.0 => Ok(Some(percent / 100.0)),
        _ => Err(format!("{percent} is no target; write a percentage below 100, such as 99.5")),
    }
}

impl ReportPeriod {
    fn period(self) -> CalendarPeriod {
        match self {
            ReportPeriod::Day => CalendarPeriod::Day,
            ReportPeriod::Week => CalendarPeriod::Week,
            ReportPeriod::Month => CalendarPeriod::Month,
            ReportPeriod::Quarter => CalendarPeriod::Quarter,
            ReportPeriod::Year => CalendarPeriod::Year,
        }
    }
}

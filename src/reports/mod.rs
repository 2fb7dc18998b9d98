//! Reports: how much of some days units were online, by group, and the words for it.
//!
//! [`crate::history`] computes a report; the command line, the pages and mails show it in the words and columns of this
//! module. Nothing here reads a clock or a database.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::clock::{Timestamp, shown_span};
use crate::presence::{Interval, Kind, Shown, TimeSpent, Unit, seconds};

mod html;
mod plan;
mod schedule;
mod table;

pub use html::{body, page};
pub use plan::{REPORT_TYPE, ReportPlan, as_data, of_timer};
pub use schedule::{CalendarPeriod, ReportRange, ReportSchedule};
pub use table::{cells, csv, heads, text};

/// The units of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AvailabilityScope {
    Fleet,
    Kind(Kind),
    Label { name: String, value: String },
    Unit(Unit),
}

/// The most values of a label that have sums; a label with more, such as a serial number, has none.
pub const MAX_VALUES: usize = 2000;

/// What a report has a row for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum GroupBy {
    Fleet,
    Kind,
    Unit,
    Label(String),
}

impl From<String> for GroupBy {
    /// The name of a label, or one of `fleet`, `kind` and `unit`.
    fn from(name: String) -> GroupBy {
        match name.as_str() {
            "fleet" => GroupBy::Fleet,
            "kind" => GroupBy::Kind,
            "unit" => GroupBy::Unit,
            _ => GroupBy::Label(name),
        }
    }
}

impl From<GroupBy> for String {
    fn from(group: GroupBy) -> String {
        group.to_string()
    }
}

impl fmt::Display for GroupBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupBy::Fleet => "fleet",
            GroupBy::Kind => "kind",
            GroupBy::Unit => "unit",
            GroupBy::Label(label) => label,
        })
    }
}

/// Days (UTC), the last one not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Days {
    pub from: Date,
    pub until: Date,
}

impl Days {
    pub fn of_month(day: Date) -> Days {
        CalendarPeriod::Month.around(day)
    }

    /// From midnight to midnight.
    pub fn interval(self) -> Interval {
        Interval { from: midnight(self.from), to: midnight(self.until) }
    }

    /// The whole days in a range; none if `until` is not after `from`.
    pub fn within(range: Interval) -> Days {
        let from = day_of(range.from);
        let from = if midnight(from) < range.from { from.tomorrow().unwrap_or(from) } else { from };
        Days { from, until: day_of(range.to).max(from) }
    }
}

/// The day of a moment (UTC).
pub fn day_of(at: Timestamp) -> Date {
    let moment = jiff::Timestamp::from_millisecond(at.as_millis()).unwrap_or(jiff::Timestamp::MAX);
    moment.to_zoned(TimeZone::UTC).date()
}

/// The first moment of a day (UTC).
pub fn midnight(day: Date) -> Timestamp {
    let moment = day.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp().as_millisecond());
    Timestamp::from_millis(moment.unwrap_or_default())
}

/// How units spent days.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AvailabilityReport {
    pub asked: Days,
    /// The first day that is summed: the report begins with it.
    pub from: Date,
    /// The first day that is not summed yet: the report ends before it.
    pub until: Date,
    pub group: GroupBy,
    /// The agreed share of time online, below 1.
    pub target: Option<f64>,
    /// The row for the whole fleet or selection.
    pub total: ReportRow,
    /// By name.
    pub rows: Vec<ReportRow>,
    /// How many rows are left out.
    pub omitted: usize,
    /// The time of the whole that belongs to no row.
    #[serde(with = "seconds", default, skip_serializing_if = "Duration::is_zero")]
    pub nameless: Duration,
    /// Since when units can be told apart, if that is later than the begin of a report of units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units_since: Option<Timestamp>,
    /// Times of the report for which history may lack rows.
    pub losses: Vec<Interval>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportRow {
    /// A unit as `kind/unit`, a kind or a value; empty for the fleet.
    pub name: String,
    /// The most units on one day.
    pub units: u64,
    pub spent: TimeSpent,
}

/// A row for programs.
#[derive(Debug, Serialize)]
pub struct ReportLine<'a> {
    pub name: &'a str,
    pub units: u64,
    #[serde(flatten)]
    pub figures: AvailabilityFigures,
    /// The used part of the time offline that the target allows.
    pub budget_spent: Option<f64>,
}

/// How all units together spent the time, for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AvailabilityFigures {
    /// 0 to 1; `null` if none of the time is known to be online or offline.
    pub online_share: Option<f64>,
    pub online_seconds: f64,
    /// The outages that began in the time.
    pub outages: u64,
    pub offline_seconds: f64,
    pub longest_outage_seconds: f64,
    /// The time online for each outage; `null` without outages.
    pub mean_seconds_between_outages: Option<f64>,
    /// The time offline for each outage; `null` without outages.
    pub mean_seconds_to_return: Option<f64>,
    pub blind_seconds: f64,
    pub paused_seconds: f64,
    pub unknown_seconds: f64,
}

impl From<&TimeSpent> for AvailabilityFigures {
    fn from(spent: &TimeSpent) -> AvailabilityFigures {
        let seconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64());
        AvailabilityFigures {
            online_share: spent.online_share(),
            online_seconds: spent.online.as_secs_f64(),
            outages: spent.outages,
            offline_seconds: spent.offline.as_secs_f64(),
            longest_outage_seconds: spent.longest.as_secs_f64(),
            mean_seconds_between_outages: seconds(spent.mean_between_outages()),
            mean_seconds_to_return: seconds(spent.mean_to_return()),
            blind_seconds: spent.blind.as_secs_f64(),
            paused_seconds: spent.paused.as_secs_f64(),
            unknown_seconds: spent.unknown.as_secs_f64(),
        }
    }
}

impl AvailabilityReport {
    /// Sets the agreed share of time online.
    #[must_use]
    pub fn with_target(self, target: Option<f64>) -> AvailabilityReport {
        AvailabilityReport { target, ..self }
    }

    /// Keeps up to `most` rows: those with the lowest shares of time online, sorted by name.
    #[must_use]
    pub fn with_worst(mut self, most: usize) -> AvailabilityReport {
        if self.rows.len() > most {
            let share = |row: &ReportRow| row.spent.online_share().unwrap_or(f64::INFINITY);
            self.rows.sort_by(|a, b| share(a).total_cmp(&share(b)));
            self.omitted += self.rows.len() - most;
            self.rows.truncate(most);
            self.rows.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self
    }

    /// Returns whether a row meets the target; `None` without a target, or without known time.
    pub fn is_met(&self, row: &ReportRow) -> Option<bool> {
        Some(row.spent.online_share()? >= self.target?)
    }

    pub fn line<'a>(&self, row: &'a ReportRow) -> ReportLine<'a> {
        let budget_spent = self.target.and_then(|target| row.spent.budget_spent(target));
        ReportLine { name: &row.name, units: row.units, figures: (&row.spent).into(), budget_spent }
    }

    /// `Availability, 2026-10-01 to 2026-10-31`.
    pub fn title(&self) -> String {
        let Days { from, until } = self.asked;
        format!("Availability, {from} to {}", last(until))
    }

    /// The title, and how many rows miss the target.
    pub fn subject(&self) -> String {
        let missed = self.target.and_then(|_| self.missed()).map(|missed| format!(": {missed}"));
        self.title() + &missed.unwrap_or_default()
    }

    /// Facts that a reader of the numbers needs, one for each line.
    pub fn notes(&self) -> Vec<String> {
        let Days { from, until } = self.asked;
        let mut notes = vec![format!("{from} to {} (UTC)", last(until))];
        if self.until <= self.from {
            notes.push("none of these days is summed".to_owned());
        } else {
            let (is_begun, is_ended) = (self.from > from, self.until < until);
            notes.extend(is_begun.then(|| format!("days before {} have no sums", self.from)));
            notes.extend(is_ended.then(|| format!("days after {} are not summed yet", last(self.until))));
        }
        notes.extend(self.target.map(|target| format!("target: {} %", percent(target))));
        notes.extend(self.target.and_then(|_| self.missed()));
        let TimeSpent { blind, paused, unknown, .. } = self.total.spent;
        let [blind, paused, unknown] = [blind, paused, unknown].map(shown_span);
        notes.push(format!(
            "left out, of all units together: {blind} blind, {paused} paused, {unknown} unknown"
        ));
        notes.extend(self.units_since.map(|since| {
            format!("rows of units are kept since {since}: how each of them spent the time before is unknown")
        }));
        notes.extend(self.rest());
        if self.omitted > 0 {
            let (shown, omitted) = (self.rows.len(), self.omitted);
            notes.push(format!("the {shown} rows with the least time online; {omitted} others are left out"));
        }
        let lost = self.losses.iter();
        notes.extend(lost.map(|time| format!("records may be missing from {} until {}", time.from, time.to)));
        notes
    }

    /// Which time has no row of a value of the label. Sums are rounded.
    fn rest(&self) -> Option<String> {
        let GroupBy::Label(label) = &self.group else { return None };
        if self.nameless < Duration::from_secs(1) {
            return None;
        }
        let (label, rest) = (Shown(label), shown_span(self.nameless));
        Some(match self.rows.is_empty() && self.omitted == 0 {
            true => format!(
                "no unit has the label \"{label}\" in these days, or it has more than {MAX_VALUES} values"
            ),
            false => format!(
                "without a row, of all units together: {rest} of units without the label \"{label}\", or of days on \
                 which it has more than {MAX_VALUES} values"
            ),
        })
    }

    /// How many rows miss the target.
    fn missed(&self) -> Option<String> {
        let mut judged: BTreeMap<bool, usize> = BTreeMap::new();
        self.rows
            .iter()
            .filter_map(|row| self.is_met(row))
            .for_each(|met| *judged.entry(met).or_default() += 1);
        let missed = judged.get(&false).copied().unwrap_or_default();
        let all = missed + judged.get(&true).copied().unwrap_or_default();
        (all > 0).then(|| format!("{missed} of {all} miss the target"))
    }
}

/// A share in percent, without the sign, rounded down: only a share of 1 is 100 %.
fn percent(share: f64) -> String {
    format!("{:.3}", (share * 100_000.0 + 1e-6).floor() / 1000.0)
}

fn last(end: Date) -> Date {
    end.yesterday().unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// October 2026: the north misses a target of 99.5 %, the south meets it.
    pub fn october() -> AvailabilityReport {
        let row = |name: &str, units, offline, outages| ReportRow {
            name: name.to_owned(),
            units,
            spent: TimeSpent {
                online: Duration::from_secs(units * 31 * 86_400 - offline),
                offline: Duration::from_secs(offline),
                outages,
                longest: Duration::from_secs(offline),
                ..TimeSpent::default()
            },
        };
        let asked = Days::of_month("2026-10-17".parse().unwrap());
        AvailabilityReport {
            asked,
            from: asked.from,
            until: asked.until,
            group: GroupBy::from("site".to_owned()),
            target: Some(0.995),
            total: row("", 30, 300_000, 3),
            rows: vec![row("north", 10, 299_000, 2), row("south", 20, 1000, 1)],
            omitted: 0,
            nameless: Duration::ZERO,
            units_since: None,
            losses: Vec::new(),
        }
    }

    #[test]
    fn notes_say_what_is_missing_and_what_misses_the_target() {
        let whole = october();
        assert_eq!(whole.title(), "Availability, 2026-10-01 to 2026-10-31");
        let notes = whole.notes();
        assert_eq!(
            notes[..3],
            ["2026-10-01 to 2026-10-31 (UTC)", "target: 99.500 %", "1 of 2 miss the target"]
        );
        let part = AvailabilityReport { until: "2026-10-03".parse().unwrap(), ..whole.clone() };
        assert!(part.notes().contains(&"days after 2026-10-02 are not summed yet".to_owned()));
        let none = AvailabilityReport { until: "2026-10-01".parse().unwrap(), target: None, ..whole.clone() };
        assert_eq!(none.notes()[1], "none of these days is summed");
        let late = AvailabilityReport { from: "2026-10-03".parse().unwrap(), ..whole.clone() };
        assert!(late.notes().contains(&"days before 2026-10-03 have no sums".to_owned()));
        assert!(!none.notes().iter().any(|note| note.contains("miss the")));
        let worst = whole.with_worst(1);
        assert_eq!((worst.rows.len(), worst.rows[0].name.as_str(), worst.omitted), (1, "north", 1));
        assert!(worst.notes().iter().any(|note| note.ends_with("1 others are left out")));
    }

    #[test]
    fn time_that_belongs_to_no_row_is_said() {
        let of = |group: &str, hours: u64, rows: usize| {
            let nameless = Duration::from_secs(hours * 3600);
            let mut report =
                AvailabilityReport { group: GroupBy::from(group.to_owned()), nameless, ..october() };
            report.rows.truncate(rows);
            report.notes().into_iter().find(|note| note.contains("label"))
        };
        let none = "no unit has the label \"site\" in these days, or it has more than 2000 values";
        let some = "without a row, of all units together: 3h of units without the label \"site\", or of days on which \
                    it has more than 2000 values";
        for (group, hours, rows, note) in [
            ("site", 0, 2, None),
            ("site", 3, 2, Some(some)),
            ("site", 3, 0, Some(none)),
            ("unit", 3, 2, None),
            ("kind", 3, 0, None),
        ] {
            assert_eq!(of(group, hours, rows).as_deref(), note, "{group} {hours} {rows}");
        }
        let since = crate::clock::parse_moment("2026-10-07T00:00:00Z");
        let notes = AvailabilityReport { units_since: since, ..october() }.notes();
        assert!(
            notes.iter().any(|note| note.starts_with("rows of units are kept since 2026-10-07T")),
            "{notes:?}"
        );
    }

    #[test]
    fn whole_days_of_a_range_are_those_from_midnight_to_midnight() {
        let at = |text: &str| crate::clock::parse_moment(text).unwrap();
        for (from, to, first, end) in [
            ("2026-10-01T00:00:00Z", "2026-10-02T00:00:00Z", "2026-10-01", "2026-10-02"),
            ("2026-10-01T00:00:00.001Z", "2026-10-03T12:00:00Z", "2026-10-02", "2026-10-03"),
            ("2026-10-01T06:00:00Z", "2026-10-01T07:00:00Z", "2026-10-02", "2026-10-02"),
        ] {
            let days = Days::within(Interval { from: at(from), to: at(to) });
            assert_eq!((days.from.to_string(), days.until.to_string()), (first.to_owned(), end.to_owned()));
        }
    }

    #[test]
    fn a_share_is_rounded_down() {
        for (share, shown) in [(1.0, "100.000"), (0.999_999_9, "99.999"), (0.995, "99.500"), (0.0, "0.000")] {
            assert_eq!(percent(share), shown);
        }
    }
}

//! The schedule of reports: when one is due, and its days.

use jiff::civil::{Date, Time};
use jiff::{Span, ToSpan};

use super::{Days, day_of, midnight};
use crate::clock::Timestamp;

/// A period of the calendar (UTC); a week begins on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarPeriod {
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

impl CalendarPeriod {
    /// The period that contains a day.
    pub fn around(self, day: Date) -> Days {
        let first = day.first_of_month();
        let months_back = |months: i64| first.saturating_sub(months.months());
        let from = match self {
            CalendarPeriod::Day => day,
            CalendarPeriod::Week => {
                day.saturating_sub(i64::from(day.weekday().to_monday_zero_offset()).days())
            }
            CalendarPeriod::Month => first,
            CalendarPeriod::Quarter => months_back(i64::from((day.month() - 1) % 3)),
            CalendarPeriod::Year => day.first_of_year(),
        };
        Days { from, until: from.saturating_add(self.span()) }
    }

    fn span(self) -> Span {
        match self {
            CalendarPeriod::Day => 1.day(),
            CalendarPeriod::Week => 7.days(),
            CalendarPeriod::Month => 1.month(),
            CalendarPeriod::Quarter => 3.months(),
            CalendarPeriod::Year => 1.year(),
        }
    }
}

/// The days of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportRange {
    /// The last complete period.
    Last(CalendarPeriod),
    /// This many days, up to the day before.
    Days(u32),
}

impl ReportRange {
    /// The days of a report that is due at `due`.
    pub fn before(self, due: Timestamp) -> Days {
        let today = day_of(due);
        match self {
            ReportRange::Last(period) => {
                let until = period.around(today).from;
                period.around(until.yesterday().unwrap_or(until))
            }
            ReportRange::Days(count) => {
                Days { from: today.saturating_sub(i64::from(count).days()), until: today }
            }
        }
    }
}

/// A report is due on the first day of each period, at a time of the day (UTC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportSchedule {
    pub every: CalendarPeriod,
    pub at: Time,
}

impl ReportSchedule {
    /// The first due moment after `after`.
    pub fn next(self, after: Timestamp) -> Timestamp {
        let period = self.every.around(day_of(after));
        let due = [period.from, period.until].map(|day| self.on(day));
        due.into_iter().find(|due| *due > after).unwrap_or(Timestamp::NEVER)
    }

    /// The last due moment up to `now`.
    pub fn last(self, now: Timestamp) -> Timestamp {
        let period = self.every.around(day_of(now));
        let before = self.every.around(period.from.yesterday().unwrap_or(period.from));
        let due = [period.from, before.from].map(|day| self.on(day));
        due.into_iter().find(|due| *due <= now).unwrap_or(Timestamp::ZERO)
    }

    fn on(self, day: Date) -> Timestamp {
        let since_midnight = self.at.duration_since(Time::midnight());
        midnight(day) + std::time::Duration::try_from(since_midnight).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_due_on_the_first_day_of_each_period_about_the_days_before() {
        use CalendarPeriod::{Day, Month, Quarter, Week, Year};
        let at = |text: &str| crate::clock::parse_moment(text).unwrap();
        for (every, range, now, last, next, from, until) in [
            (Month, None, "2026-11-17T10:00:00Z", "2026-11-01", "2026-12-01", "2026-10-01", "2026-11-01"),
            (Month, None, "2026-11-01T05:59:59Z", "2026-10-01", "2026-11-01", "2026-09-01", "2026-10-01"),
            (Month, None, "2026-11-01T06:00:00Z", "2026-11-01", "2026-12-01", "2026-10-01", "2026-11-01"),
            (Month, None, "2027-01-31T10:00:00Z", "2027-01-01", "2027-02-01", "2026-12-01", "2027-01-01"),
            // A Sunday: its week began on Monday the 23rd.
            (Week, None, "2026-11-29T10:00:00Z", "2026-11-23", "2026-11-30", "2026-11-16", "2026-11-23"),
            (Week, None, "2026-11-23T05:00:00Z", "2026-11-16", "2026-11-23", "2026-11-09", "2026-11-16"),
            (Day, None, "2028-03-01T07:00:00Z", "2028-03-01", "2028-03-02", "2028-02-29", "2028-03-01"),
            (Day, None, "2028-03-01T05:00:00Z", "2028-02-29", "2028-03-01", "2028-02-28", "2028-02-29"),
            (Quarter, None, "2026-11-29T10:00:00Z", "2026-10-01", "2027-01-01", "2026-07-01", "2026-10-01"),
            (Year, None, "2026-11-29T10:00:00Z", "2026-01-01", "2027-01-01", "2025-01-01", "2026-01-01"),
            (
                Month,
                Some(ReportRange::Last(Quarter)),
                "2026-11-29T10:00:00Z",
                "2026-11-01",
                "2026-12-01",
                "2026-07-01",
                "2026-10-01",
            ),
            (
                Week,
                Some(ReportRange::Days(90)),
                "2026-11-29T10:00:00Z",
                "2026-11-23",
                "2026-11-30",
                "2026-08-25",
                "2026-11-23",
            ),
        ] {
            let schedule = ReportSchedule { every, at: jiff::civil::time(6, 0, 0, 0) };
            let six = |day: &str| at(&format!("{day}T06:00:00Z"));
            assert_eq!(
                (schedule.last(at(now)), schedule.next(at(now))),
                (six(last), six(next)),
                "{every:?} {now}"
            );
            let days = range.unwrap_or(ReportRange::Last(every)).before(schedule.last(at(now)));
            assert_eq!((days.from.to_string(), days.until.to_string()), (from.to_owned(), until.to_owned()));
        }
    }
}

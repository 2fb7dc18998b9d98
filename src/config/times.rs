//! Checks the times, `[[time]]`.

use std::sync::Arc;

use super::file::{File, Time, TimeRange};
use super::problem::{Problems, suggest};
use crate::routing::{Minutes, Range, RouteTimes, TimeInterval, zone};

const WEEKDAYS: [&str; 7] = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// The times of the file.
pub(super) struct TimeIntervals(Vec<Arc<TimeInterval>>);

impl TimeIntervals {
    pub fn new(file: &File, problems: &mut Problems) -> TimeIntervals {
        let mut all: Vec<Arc<TimeInterval>> = Vec::new();
        for (at, one) in file.time.iter().enumerate() {
            let path = format!("time[{at}]");
            if one.name.is_empty() {
                problems.error(
                    format!("{path}.name"),
                    "is missing; routes name it in mute_times or active_times",
                );
            } else if all.iter().any(|other| other.name == one.name) {
                problems.error(format!("{path}.name"), format!("{:?} is used twice; rename one", one.name));
            }
            all.push(Arc::new(interval(&path, one, problems)));
        }
        TimeIntervals(all)
    }

    /// The times that a route names.
    pub fn of_route(
        &self,
        path: &str,
        mute: &[String],
        active: &[String],
        problems: &mut Problems,
    ) -> RouteTimes {
        let mut named = |option: &str, names: &[String]| {
            let mut found = Vec::new();
            for (at, name) in names.iter().enumerate() {
                match self.0.iter().find(|time| time.name == *name) {
                    Some(time) => found.push(time.clone()),
                    None => {
                        let meant = suggest(name, self.0.iter().map(|time| time.name.as_str()));
                        let hint = meant
                            .map_or("add a [[time]]".to_owned(), |meant| format!("did you mean {meant:?}?"));
                        problems.error(
                            format!("{path}.{option}[{at}]"),
                            format!("there is no time {name:?}; {hint}"),
                        );
                    }
                }
            }
            found
        };
        RouteTimes { mute: named("mute_times", mute), active: named("active_times", active) }
    }
}

fn interval(path: &str, one: &Time, problems: &mut Problems) -> TimeInterval {
    let mut ranges = |option: &str, texts: &[String], read: fn(&str) -> Result<Vec<Range>, String>| {
        let mut all = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let path = format!("{path}.{option}[{at}]");
            all.extend(problems.keep(&path, read(text)).into_iter().flatten());
        }
        all
    };
    let weekdays = ranges("weekdays", &one.weekdays, weekdays);
    let days_of_month = ranges("days_of_month", &one.days_of_month, days_of_month);
    let months = ranges("months", &one.months, months);
    let years = ranges("years", &one.years, years);
    let mut times = Vec::new();
    for (at, range) in one.times.iter().enumerate() {
        times.extend(problems.keep(&format!("{path}.times[{at}]"), minutes(range)));
    }
    let found = zone(&one.zone);
    if found.is_none() {
        let text =
            format!("there is no zone {:?}; write one of the IANA database, such as Europe/Berlin", one.zone);
        problems.error(format!("{path}.zone"), text);
    }
    let zone = found.unwrap_or(jiff::tz::TimeZone::UTC);
    TimeInterval { name: one.name.clone(), times, weekdays, days_of_month, months, years, zone }
}

/// `monday`, or `monday:friday`; the end may be before the begin, as in `saturday:sunday`.
fn weekdays(text: &str) -> Result<Vec<Range>, String> {
    let day = |text: &str| {
        let found = WEEKDAYS.iter().position(|day| day.eq_ignore_ascii_case(text));
        found
            .map(|day| day as i16)
            .ok_or_else(|| format!("{text:?} is not a weekday; write monday, or monday:friday"))
    };
    let (from, to) = both(text, day)?;
    Ok(around(from, to, 0, 6))
}

/// `december`, `12`, or `october:march`.
fn months(text: &str) -> Result<Vec<Range>, String> {
    let month = |text: &str| {
        let named =
            MONTHS.iter().position(|month| month.eq_ignore_ascii_case(text)).map(|month| month as i16 + 1);
        let numbered = || text.parse::<i16>().ok().filter(|number| (1..=12).contains(number));
        named
            .or_else(numbered)
            .ok_or_else(|| format!("{text:?} is not a month; write january, 1, or january:march"))
    };
    let (from, to) = both(text, month)?;
    Ok(around(from, to, 1, 12))
}

/// `1:7`, `-1`, `-3:-1`.
fn days_of_month(text: &str) -> Result<Vec<Range>, String> {
    let day = |text: &str| {
        let number = text
            .parse::<i16>()
            .ok()
            .filter(|number| (1..=31).contains(number) || (-31..=-1).contains(number));
        number
            .ok_or_else(|| format!("{text:?} is no day; write 1 to 31, or -1 for the last day of the month"))
    };
    let (from, to) = both(text, day)?;
    if from < 0 && to > 0 {
        return Err(format!("{text:?} begins at the end of the month and ends at its begin; write two"));
    }
    // A range from the beginning of the month to its end is right in every month.
    if (from < 0) == (to < 0) && from > to {
        return Err(format!("{text:?} ends before it begins"));
    }
    Ok(vec![Range { from, to }])
}

/// `2026`, or `2026:2028`.
fn years(text: &str) -> Result<Vec<Range>, String> {
    let year = |text: &str| {
        let number = text.parse::<i16>().ok().filter(|number| (1970..=9999).contains(number));
        number.ok_or_else(|| format!("{text:?} is not a year; write 2026, or 2026:2028"))
    };
    let (from, to) = both(text, year)?;
    if from > to { Err(format!("{text:?} ends before it begins")) } else { Ok(vec![Range { from, to }]) }
}

/// The begin and the end of a range; one value is both.
fn both(text: &str, read: impl Fn(&str) -> Result<i16, String>) -> Result<(i16, i16), String> {
    let (from, to) = text.split_once(':').unwrap_or((text, text));
    Ok((read(from.trim())?, read(to.trim())?))
}

/// A range that may go over the end of the week or the year.
fn around(from: i16, to: i16, first: i16, last: i16) -> Vec<Range> {
    if from <= to {
        return vec![Range { from, to }];
    }
    vec![Range { from, to: last }, Range { from: first, to }]
}

fn minutes(range: &TimeRange) -> Result<Minutes, String> {
    let minute = |text: &str| {
        let wrong =
            || format!("{text:?} is not a time of day; write 08:00, and 24:00 for the end of the day");
        let (hours, minutes) = text.split_once(':').ok_or_else(wrong)?;
        let is_number = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(hours) || !is_number(minutes) {
            return Err(wrong());
        }
        let (hours, minutes): (i16, i16) =
            (hours.parse().map_err(|_| wrong())?, minutes.parse().map_err(|_| wrong())?);
        let minute = hours * 60 + minutes;
        if minutes < 60 && minute <= 24 * 60 { Ok(minute) } else { Err(wrong()) }
    };
    let (from, to) = (minute(&range.start_time)?, minute(&range.end_time)?);
    if from >= to {
        return Err(format!(
            "{} is not before {}; for a night write two ranges, one up to 24:00 and one from 00:00",
            range.start_time, range.end_time
        ));
    }
    Ok(Minutes { from, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: i16, to: i16) -> Range {
        Range { from, to }
    }

    #[test]
    fn ranges_are_read_as_in_alertmanager_and_may_go_over_the_end_of_the_week() {
        assert_eq!(weekdays("monday:friday"), Ok(vec![range(1, 5)]));
        assert_eq!(weekdays("Sunday"), Ok(vec![range(0, 0)]));
        assert_eq!(weekdays("saturday:sunday"), Ok(vec![range(6, 6), range(0, 0)]));
        assert_eq!(months("january:3"), Ok(vec![range(1, 3)]));
        assert_eq!(months("october:march"), Ok(vec![range(10, 12), range(1, 3)]));
        assert_eq!(days_of_month("1:7"), Ok(vec![range(1, 7)]));
        assert_eq!(days_of_month("-3:-1"), Ok(vec![range(-3, -1)]));
        assert_eq!(days_of_month("25:-1"), Ok(vec![range(25, -1)]));
        assert_eq!(years("2026"), Ok(vec![range(2026, 2026)]));
        let refused = [
            weekdays("someday"),
            weekdays("monday:"),
            months("0"),
            months("13"),
            days_of_month("0"),
            days_of_month("32"),
            days_of_month("7:1"),
            days_of_month("-1:7"),
            years("26"),
            years("2027:2026"),
        ];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
    }

    #[test]
    fn a_range_of_a_day_ends_after_it_begins() {
        let read = |from: &str, to: &str| {
            minutes(&TimeRange { start_time: from.to_owned(), end_time: to.to_owned() })
        };
        assert_eq!(read("08:30", "24:00"), Ok(Minutes { from: 510, to: 1440 }));
        for (from, to) in
            [("22:00", "06:00"), ("8:00", "09:00"), ("08:60", "09:00"), ("", "24:01"), ("08", "09")]
        {
            assert!(read(from, to).is_err(), "{from} {to}");
        }
    }
}

//! Times of the week and the year in a zone, in which a route is muted or active: `[[time]]`, as Alertmanager's
//! `time_interval`.
//!
//! A time has ranges of minutes of the day, weekdays, days of the month, months and years; a list without entries holds
//! all of them, and a moment is within the time if each list has it. The zone says which day and minute a moment is.

use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Zoned, civil};

use crate::clock::Timestamp;

/// From one value to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub from: i16,
    pub to: i16,
}

impl Range {
    fn has(&self, value: i16) -> bool {
        (self.from..=self.to).contains(&value)
    }
}

/// A range of minutes of the day; the end is not included and may be 24:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minutes {
    pub from: i16,
    pub to: i16,
}

/// A named time.
#[derive(Clone, Debug)]
pub struct TimeInterval {
    pub name: String,
    pub times: Vec<Minutes>,
    /// Sunday is 0.
    pub weekdays: Vec<Range>,
    /// From 1 to 31, or from the end of the month: -1 is its last day.
    pub days_of_month: Vec<Range>,
    /// January is 1.
    pub months: Vec<Range>,
    pub years: Vec<Range>,
    pub zone: TimeZone,
}

/// The minutes of a day.
const DAY: i16 = 24 * 60;

/// How many changes are checked for the end of a time: more than there are in a year of days with four ranges each.
const MAX_CHANGES: usize = 4000;

impl TimeInterval {
    /// Whether a moment is within this time.
    pub fn has(&self, at: Timestamp) -> bool {
        let local = self.local(at);
        let minute = i16::from(local.hour()) * 60 + i16::from(local.minute());
        self.has_day(local.date())
            && (self.times.is_empty() || self.times.iter().any(|range| range.has(minute)))
    }

    fn has_day(&self, date: Date) -> bool {
        let has =
            |ranges: &[Range], value: i16| ranges.is_empty() || ranges.iter().any(|range| range.has(value));
        let last = i16::from(date.days_in_month());
        // A day counted from the end of the month.
        let day = |day: i16| if day < 0 { last + 1 + day } else { day };
        let day_of_month = i16::from(date.day());
        let is_day = |range: &Range| {
            let (from, to) = (day(range.from).max(1), day(range.to).min(last));
            (from..=to).contains(&day_of_month)
        };
        has(&self.years, date.year())
            && has(&self.months, i16::from(date.month()))
            && (self.days_of_month.is_empty() || self.days_of_month.iter().any(is_day))
            && has(&self.weekdays, i16::from(date.weekday().to_sunday_zero_offset()))
    }

    fn local(&self, at: Timestamp) -> Zoned {
        let moment = jiff::Timestamp::from_millisecond(at.as_millis()).unwrap_or(jiff::Timestamp::MAX);
        moment.to_zoned(self.zone.clone())
    }

    /// The next moment after `at` at which a moment may enter or leave it: the begin or end of a range of minutes,
    /// midnight, or a change of the clocks, which may repeat an hour.
    fn next_change(&self, at: Timestamp) -> Timestamp {
        let local = self.local(at);
        let minute = i16::from(local.hour()) * 60 + i16::from(local.minute());
        let of_today = self.times.iter().flat_map(|range| [range.from, range.to]).filter(|one| *one > minute);
        let next = of_today.chain([DAY]).min().unwrap_or(DAY);
        let twice = at_minute(local.date(), next).map(|civil| self.zone.to_ambiguous_zoned(civil));
        let twice = twice.into_iter().flat_map(|found| [found.clone().earlier(), found.later()]);
        let found = twice.flatten().map(|zoned| zoned.timestamp());
        let clocks = self.zone.following(local.timestamp()).next().map(|change| change.timestamp());
        let found = found.chain(clocks).map(|next| Timestamp::from_millis(next.as_millisecond()));
        // At the end of the calendar.
        found.filter(|next| *next > at).min().unwrap_or(at + Duration::from_secs(3600))
    }
}

impl Minutes {
    fn has(&self, minute: i16) -> bool {
        (self.from..self.to).contains(&minute)
    }
}

fn at_minute(date: Date, minute: i16) -> Option<civil::DateTime> {
    if minute >= DAY {
        return Some(date.tomorrow().ok()?.at(0, 0, 0, 0));
    }
    Some(date.at((minute / 60) as i8, (minute % 60) as i8, 0, 0))
}

/// When a route notifies: not within `mute`, and only within `active` if that has any.
#[derive(Clone, Debug, Default)]
pub struct RouteTimes {
    pub mute: Vec<Arc<TimeInterval>>,
    pub active: Vec<Arc<TimeInterval>>,
}

impl RouteTimes {
    /// Why the route is muted at a moment: the time that has it, or that no active time has it.
    pub fn muted_by(&self, at: Timestamp) -> Option<MuteReason<'_>> {
        if let Some(mute) = self.mute.iter().find(|time| time.has(at)) {
            return Some(MuteReason::In(&mute.name));
        }
        let is_active = self.active.is_empty() || self.active.iter().any(|time| time.has(at));
        (!is_active).then_some(MuteReason::OutsideActive)
    }

    pub fn is_empty(&self) -> bool {
        self.mute.is_empty() && self.active.is_empty()
    }

    /// Until when the route is muted; `None`: it is not muted. For a mute without an end, or with an end far away, the
    /// answer is some moment at which it still lasts.
    pub fn muted_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.muted_by(now)?;
        let mut at = now;
        for _ in 0..MAX_CHANGES {
            at = self.next_change(at);
            if self.muted_by(at).is_none() {
                break;
            }
        }
        Some(at)
    }

    /// The next moment after `at` at which a mute may begin or end.
    pub(super) fn next_change(&self, at: Timestamp) -> Timestamp {
        let all = self.mute.iter().chain(&self.active);
        all.map(|time| time.next_change(at)).min().unwrap_or(Timestamp::NEVER)
    }
}

/// Why a route is muted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuteReason<'a> {
    /// The moment is within this time.
    In(&'a str),
    /// The moment is in no active time.
    OutsideActive,
}

/// The zone of that name in the IANA database; `None`: there is none.
pub fn zone(name: &str) -> Option<TimeZone> {
    TimeZone::get(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(name: &str, zone_name: &str) -> TimeInterval {
        TimeInterval {
            name: name.to_owned(),
            times: Vec::new(),
            weekdays: Vec::new(),
            days_of_month: Vec::new(),
            months: Vec::new(),
            years: Vec::new(),
            zone: zone(zone_name).unwrap(),
        }
    }

    fn at(text: &str) -> Timestamp {
        Timestamp::from_millis(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
    }

    fn range(from: i16, to: i16) -> Range {
        Range { from, to }
    }

    #[test]
    fn a_moment_is_within_a_time_if_each_of_its_lists_has_it() {
        let work = TimeInterval {
            times: vec![Minutes { from: 9 * 60, to: 17 * 60 }],
            weekdays: vec![range(1, 5)],
            ..interval("work", "Europe/Berlin")
        };
        let last_days = TimeInterval { days_of_month: vec![range(-3, -1)], ..interval("end", "UTC") };
        let winter = TimeInterval {
            months: vec![range(12, 12), range(1, 2)],
            years: vec![range(2026, 2027)],
            ..interval("winter", "UTC")
        };
        let cases = [
            // Summer time: two hours ahead of UTC.
            (&work, "2026-07-20T07:00:00Z", true),
            (&work, "2026-07-20T06:59:59Z", false),
            (&work, "2026-07-20T14:59:59.999Z", true),
            (&work, "2026-07-20T15:00:00Z", false),
            (&work, "2026-07-19T10:00:00Z", false), // Sunday
            (&work, "2026-01-19T08:00:00Z", true),  // winter time
            (&last_days, "2026-02-26T00:00:00Z", true),
            (&last_days, "2026-02-25T23:59:59Z", false),
            (&last_days, "2028-02-26T00:00:00Z", false), // a leap year
            (&winter, "2026-12-31T12:00:00Z", true),
            (&winter, "2027-02-01T00:00:00Z", true),
            (&winter, "2027-03-01T00:00:00Z", false),
            (&winter, "2028-01-01T00:00:00Z", false),
        ];
        for (time, moment, is_within) in cases {
            assert_eq!(time.has(at(moment)), is_within, "{} {moment}", time.name);
        }
    }

    #[test]
    fn a_mute_ends_when_no_time_has_the_moment() {
        let evening =
            TimeInterval { times: vec![Minutes { from: 22 * 60, to: DAY }], ..interval("evening", "UTC") };
        let morning =
            TimeInterval { times: vec![Minutes { from: 0, to: 6 * 60 }], ..interval("morning", "UTC") };
        let weekend = TimeInterval { weekdays: vec![range(6, 6), range(0, 0)], ..interval("weekend", "UTC") };
        let [evening, morning, weekend] = [evening, morning, weekend].map(Arc::new);
        let nights = RouteTimes { mute: vec![evening, morning, weekend.clone()], active: vec![] };
        let cases = [
            ("2026-07-22T21:59:59Z", None), // Wednesday
            ("2026-07-22T22:00:00Z", Some("2026-07-23T06:00:00Z")),
            ("2026-07-23T05:59:59Z", Some("2026-07-23T06:00:00Z")),
            ("2026-07-24T23:00:00Z", Some("2026-07-27T06:00:00Z")), // over the weekend
        ];
        for (now, until) in cases {
            assert_eq!(nights.muted_until(at(now)), until.map(at), "{now}");
        }
        assert_eq!(nights.muted_by(at("2026-07-25T12:00:00Z")), Some(MuteReason::In("weekend")));
        let only = RouteTimes { mute: vec![], active: vec![weekend] };
        assert_eq!(only.muted_by(at("2026-07-24T12:00:00Z")), Some(MuteReason::OutsideActive));
        assert_eq!(only.muted_until(at("2026-07-24T12:00:00Z")), Some(at("2026-07-25T00:00:00Z")));
        assert_eq!(only.muted_until(at("2026-07-25T12:00:00Z")), None);
        assert_eq!(RouteTimes::default().muted_until(at("2026-07-25T12:00:00Z")), None);
        // A mute without an end is answered with a moment far ahead.
        let always = RouteTimes { mute: vec![Arc::new(interval("always", "UTC"))], active: vec![] };
        let until = always.muted_until(at("2026-07-25T12:00:00Z")).unwrap();
        assert!(until > at("2026-07-25T12:00:00Z") + Duration::from_secs(300 * 86_400), "{until}");
    }

    #[test]
    fn a_mute_follows_the_clock_of_its_zone_when_it_skips_or_repeats_an_hour() {
        let night =
            TimeInterval { times: vec![Minutes { from: 60, to: 150 }], ..interval("night", "Europe/Berlin") };
        let night = RouteTimes { mute: vec![Arc::new(night)], active: vec![] };
        // 02:30 does not exist on the first day, and comes twice on the other.
        for (now, until) in [
            ("2026-03-29T00:30:00Z", Some("2026-03-29T01:00:00Z")),
            ("2026-10-24T23:30:00Z", Some("2026-10-25T00:30:00Z")),
            ("2026-10-25T00:45:00Z", None),
            ("2026-10-25T01:00:00Z", Some("2026-10-25T01:30:00Z")),
        ] {
            assert_eq!(night.muted_until(at(now)), until.map(at), "{now}");
        }
        assert_eq!(night.next_change(at("2026-10-25T00:45:00Z")), at("2026-10-25T01:00:00Z"));
    }

    #[test]
    fn the_zones_are_those_of_the_database() {
        assert!(zone("Europe/Berlin").is_some() && zone("UTC").is_some() && zone("Europe/Nowhere").is_none());
    }
}

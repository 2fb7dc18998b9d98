//! How a unit spent a time: online or offline, where that is known.
//!
//! Every moment at which a unit was known counts once; time before it was known, and after it was removed, counts for
//! nothing. Time of which records are missing is unknown. Blind time and planned pauses say nothing of a unit, so they
//! are neither online nor offline. An outage counts where it begins, so that the sums of days are the sum of their
//! month.

use std::iter::Sum;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Interval, Ledger};

/// The parts of a time, of one unit or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeSpent {
    #[serde(with = "seconds", skip_serializing_if = "Duration::is_zero")]
    pub online: Duration,
    #[serde(with = "seconds", skip_serializing_if = "Duration::is_zero")]
    pub offline: Duration,
    #[serde(with = "seconds", skip_serializing_if = "Duration::is_zero")]
    pub blind: Duration,
    #[serde(with = "seconds", skip_serializing_if = "Duration::is_zero")]
    pub paused: Duration,
    #[serde(with = "seconds", skip_serializing_if = "Duration::is_zero")]
    pub unknown: Duration,
    /// The outages that began in the time.
    pub outages: u64,
    /// The longest outage that lasted in it: how long it had lasted at the end of the time, without blind time and
    /// pauses.
    #[serde(with = "seconds", skip_serializing_if = "Duration::is_zero")]
    pub longest: Duration,
}

/// A time as a number of seconds.
pub mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(span.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// The times of a unit, as intervals that may overlap one another.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitTimes<'a> {
    pub outages: &'a [Interval],
    pub pauses: &'a [Interval],
    pub blind: &'a [Interval],
    /// Time of which records may be missing.
    pub unknown: &'a [Interval],
}

impl TimeSpent {
    /// How a unit that is known for the time `known` spent a range.
    pub fn of(range: Interval, known: Interval, times: UnitTimes<'_>) -> TimeSpent {
        let UnitTimes { outages, pauses, blind, unknown } = times;
        let from = known.from.max(range.from);
        let lived = Interval { from, to: known.to.min(range.to).max(from) };
        let lost = measure(lived, &[unknown]);
        let unheard = measure(lived, &[unknown, blind]);
        let absent = measure(lived, &[unknown, blind, pauses]);
        let online = lived.length() - measure(lived, &[unknown, blind, pauses, outages]);
        let lasting = outages.iter().filter(|one| one.from < lived.to && one.to > lived.from);
        let length = |one: &Interval| {
            let lasted = Interval { from: one.from, to: one.to.min(lived.to) };
            lasted.length() - measure(lasted, &[unknown, blind, pauses])
        };
        TimeSpent {
            online,
            offline: lived.length() - online - absent,
            blind: unheard - lost,
            paused: absent - unheard,
            unknown: lost,
            outages: outages.iter().filter(|one| lived.contains(one.from)).count() as u64,
            longest: lasting.map(length).max().unwrap_or_default(),
        }
    }

    /// All of the time.
    pub fn total(&self) -> Duration {
        self.online + self.offline + self.blind + self.paused + self.unknown
    }

    /// The share of time online, where that is known; `None`: no time is known.
    pub fn online_share(&self) -> Option<f64> {
        let known = self.online + self.offline;
        (!known.is_zero()).then(|| self.online.as_secs_f64() / known.as_secs_f64())
    }

    /// The time online for each outage that began in the time; `None` without one.
    pub fn mean_between_outages(&self) -> Option<Duration> {
        self.for_each_outage(self.online)
    }

    /// The time offline, also of outages that began before, for each outage that began in the time; `None` without one.
    pub fn mean_to_return(&self) -> Option<Duration> {
        self.for_each_outage(self.offline)
    }

    /// How much of the time offline that a target allows was spent: 1 is all of it. `target`: the share of time
    /// online, below 1. `None`: no time is known.
    pub fn budget_spent(&self, target: f64) -> Option<f64> {
        self.online_share().map(|share| (1.0 - share) / (1.0 - target))
    }

    fn for_each_outage(&self, time: Duration) -> Option<Duration> {
        (self.outages > 0).then(|| time.div_f64(self.outages as f64))
    }
}

impl Add for TimeSpent {
    type Output = TimeSpent;
    fn add(self, more: TimeSpent) -> TimeSpent {
        TimeSpent {
            online: self.online + more.online,
            offline: self.offline + more.offline,
            blind: self.blind + more.blind,
            paused: self.paused + more.paused,
            unknown: self.unknown + more.unknown,
            outages: self.outages + more.outages,
            longest: self.longest.max(more.longest),
        }
    }
}

impl Sum for TimeSpent {
    fn sum<I: Iterator<Item = TimeSpent>>(all: I) -> TimeSpent {
        all.fold(TimeSpent::default(), Add::add)
    }
}

/// How much of a range these intervals cover together.
fn measure(range: Interval, parts: &[&[Interval]]) -> Duration {
    let within = parts.iter().copied().flatten().filter(|one| one.from < range.to && one.to > range.from);
    let within = within.map(|one| Interval { from: one.from.max(range.from), to: one.to.min(range.to) });
    Ledger::new(within).intervals().iter().map(Interval::length).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Timestamp;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn time((from, to): (i64, i64)) -> Interval {
        Interval { from: at(from), to: at(to) }
    }

    fn times(all: &[(i64, i64)]) -> Vec<Interval> {
        all.iter().copied().map(time).collect()
    }

    fn spent(
        known: (i64, i64),
        outages: &[(i64, i64)],
        pauses: &[(i64, i64)],
        blind: &[(i64, i64)],
    ) -> TimeSpent {
        with_losses(known, outages, pauses, blind, &[])
    }

    fn with_losses(
        known: (i64, i64),
        outages: &[(i64, i64)],
        pauses: &[(i64, i64)],
        blind: &[(i64, i64)],
        unknown: &[(i64, i64)],
    ) -> TimeSpent {
        let [outages, pauses, blind, unknown] = [outages, pauses, blind, unknown].map(times);
        let times = UnitTimes { outages: &outages, pauses: &pauses, blind: &blind, unknown: &unknown };
        TimeSpent::of(time((100, 200)), time(known), times)
    }

    #[test]
    fn every_moment_at_which_a_unit_was_known_counts_once() {
        let always = (0, 999);
        // Online, offline, blind, paused, unknown, outages, longest.
        for (name, spent, expected) in [
            ("online", spent(always, &[], &[], &[]), [100, 0, 0, 0, 0, 0, 0]),
            ("known for the last 20 s", spent((180, 999), &[], &[], &[]), [20, 0, 0, 0, 0, 0, 0]),
            ("known later", spent((300, 999), &[], &[], &[]), [0, 0, 0, 0, 0, 0, 0]),
            ("removed", spent((0, 130), &[(120, 999)], &[], &[]), [20, 10, 0, 0, 0, 1, 10]),
            ("an outage within", spent(always, &[(110, 130)], &[], &[]), [80, 20, 0, 0, 0, 1, 20]),
            ("it began before", spent(always, &[(50, 130)], &[], &[]), [70, 30, 0, 0, 0, 0, 80]),
            ("it lasts", spent(always, &[(150, 999)], &[], &[]), [50, 50, 0, 0, 0, 1, 50]),
            ("two", spent(always, &[(110, 120), (150, 155)], &[], &[]), [85, 15, 0, 0, 0, 2, 10]),
            ("blind", spent(always, &[], &[], &[(90, 110)]), [90, 0, 10, 0, 0, 0, 0]),
            (
                "blind in an outage",
                spent(always, &[(110, 150)], &[], &[(120, 130)]),
                [60, 30, 10, 0, 0, 1, 30],
            ),
            (
                "paused in an outage",
                spent(always, &[(110, 150)], &[(140, 170)], &[]),
                [40, 30, 0, 30, 0, 1, 30],
            ),
            ("blind and paused", spent(always, &[], &[(110, 130)], &[(120, 140)]), [70, 0, 20, 10, 0, 0, 0]),
            ("all paused", spent(always, &[(110, 120)], &[(0, 999)], &[]), [0, 0, 0, 100, 0, 1, 0]),
            ("lost", with_losses(always, &[], &[], &[], &[(0, 130)]), [70, 0, 0, 0, 30, 0, 0]),
            (
                "lost before it was known",
                with_losses((120, 999), &[], &[], &[], &[(0, 130)]),
                [70, 0, 0, 0, 10, 0, 0],
            ),
            (
                "lost within all else",
                with_losses(always, &[(110, 150)], &[(160, 180)], &[(140, 165)], &[(130, 170)]),
                [30, 20, 0, 10, 40, 1, 20],
            ),
        ] {
            let TimeSpent { online, offline, blind, paused, unknown, outages, longest } = spent;
            let [online, offline, blind, paused, unknown, longest] =
                [online, offline, blind, paused, unknown, longest].map(|part| part.as_secs());
            assert_eq!([online, offline, blind, paused, unknown, outages, longest], expected, "{name}");
        }
    }

    #[test]
    fn shares_means_and_the_budget_are_of_known_time() {
        let half = spent((0, 999), &[(110, 130)], &[(150, 160)], &[(160, 200)]);
        assert_eq!(half.online_share(), Some(0.6));
        assert_eq!(half.mean_between_outages(), Some(Duration::from_secs(30)));
        assert_eq!(half.mean_to_return(), Some(Duration::from_secs(20)));
        assert!((half.budget_spent(0.9).unwrap() - 4.0).abs() < 1e-9, "{half:?}");
        let unknown = spent((300, 999), &[], &[], &[]);
        assert_eq!(
            (unknown.online_share(), unknown.mean_to_return(), unknown.budget_spent(0.9)),
            (None, None, None)
        );
    }

    proptest! {
        #[test]
        fn days_add_up_to_their_range(
            outages in proptest::collection::vec((0i64..300, 0i64..300), 0..5),
            pauses in proptest::collection::vec((0i64..300, 0i64..300), 0..3),
            blind in proptest::collection::vec((0i64..300, 0i64..300), 0..3),
            unknown in proptest::collection::vec((0i64..300, 0i64..300), 0..3),
            known in (0i64..300, 0i64..300), middle in 100i64..200,
        ) {
            let [outages, pauses, blind, unknown] = [outages, pauses, blind, unknown].map(|all| times(&all));
            let outages = Ledger::new(outages);
            let times = UnitTimes { outages: outages.intervals(), pauses: &pauses, blind: &blind, unknown: &unknown };
            let of = |from, to| TimeSpent::of(time((from, to)), time(known), times);
            let (all, parts) = (of(100, 200), of(100, middle) + of(middle, 200));
            prop_assert_eq!(TimeSpent { longest: Duration::ZERO, ..all }, TimeSpent { longest: Duration::ZERO, ..parts });
            let lived = known.1.min(200) - known.0.max(100);
            prop_assert_eq!(all.total(), Duration::from_secs(lived.max(0) as u64));
        }
    }
}

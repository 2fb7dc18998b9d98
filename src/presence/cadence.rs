//! Suggests timeouts of a kind by the rhythms that its units have shown.
//!
//! Units are counted by their usual interval, their spread and their longest interval, each rounded. So a pass over
//! millions of units needs some hundreds of counts, and the counts of several instances add up.
//!
//! # How many false alarms a timeout brings
//! The larger of two estimates counts. By a fit, distances from the usual interval fall off by e for each mean
//! distance. And each unit that was silent for longer than the timeout, and came back, counts once in thirty days,
//! whatever the fit says.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};

use super::Rhythm;
use super::rhythm::{LEAST_SPREAD, STEPS, span, steps};

/// The steps of a count of usual and longest intervals: a quarter of a doubling.
const WIDTH: u16 = 450;
/// The steps of a count of spreads.
const SPREAD_WIDTH: u16 = 54;
const MAX_SPREADS: u16 = 255;

/// A class of cadence has at least one in this many units.
const LEAST_SHARE: u64 = 20;
/// Two classes are a doubling apart at least, and between them are at most a quarter as many units as in the smaller.
const APART: usize = 4;
const VALLEY: u64 = 4;

const MONTH: f64 = 30.0 * 86_400.0;
/// A suggested timeout brings at most one false alarm for each unit in this many months of thirty days.
const ALARM_FREE_MONTHS: f64 = 365.0 / 30.0;
/// At most one in this many units was ever silent for longer than a suggested timeout, or would be with one lost
/// message.
const EXCEEDED: u64 = 1000;
/// In steps: how much longer than usual a unit may be silent with one lost message, two and a quarter times.
const LOST: f32 = 2106.0;

/// The timeouts that are suggested, in seconds.
const TIMEOUTS: [u64; 60] = [
    1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 360, 480, 600, 720, 900, 1200, 1800, 2700,
    3600, 5400, 7200, 10_800, 14_400, 18_000, 21_600, 28_800, 36_000, 43_200, 57_600, 64_800, 86_400,
    108_000, 129_600, 172_800, 216_000, 259_200, 345_600, 432_000, 518_400, 604_800, 864_000, 1_036_800,
    1_209_600, 1_814_400, 2_592_000, 3_456_000, 3_888_000, 5_184_000, 7_776_000, 10_368_000, 12_960_000,
    15_552_000, 23_328_000, 31_536_000, 34_560_000,
];

/// The rhythms of the units of a kind, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cadences {
    /// Units that have not shown a rhythm yet.
    pub learning: u64,
    /// Units by their usual interval, spread and longest interval.
    counts: HashMap<u32, Tally, FixedState>,
}

/// Units that count alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Tally {
    #[serde(rename = "n")]
    units: u64,
    /// The sum of their usual intervals, in steps.
    #[serde(rename = "u")]
    usual: u64,
    /// The longest of their longest intervals, in steps.
    #[serde(rename = "l")]
    longest: u16,
}

/// Units of a kind that are heard about as often as each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CadenceClass {
    pub units: u64,
    /// The usual interval of the unit in the middle, and of the first and the last.
    pub usual_seconds: f64,
    pub usual_from_seconds: f64,
    pub usual_to_seconds: f64,
    /// The longest interval that a unit remembers.
    pub longest_seconds: f64,
    /// The forecast for the current timeout.
    pub present: Forecast,
    /// `null`: no timeout that is allowed is long enough.
    pub suggested: Option<Forecast>,
}

/// The false alarms and the delay that a timeout brings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Forecast {
    pub timeout_seconds: f64,
    /// How many units would be marked offline in thirty days though they live.
    pub false_alarms: f64,
    /// From the moment at which a unit dies to its record, on average.
    pub detection_seconds: f64,
}

/// The units of one usual interval, spread and longest interval, in steps.
#[derive(Clone, Copy)]
struct ByUsual {
    usual: u32,
    spread: u32,
    longest: u32,
    units: u64,
}

impl Cadences {
    /// Counts a unit.
    pub fn add(&mut self, rhythm: &Rhythm) {
        if !rhythm.is_known() {
            self.learning += 1;
            return;
        }
        let [usual_steps, spread, longest_steps] = rhythm.in_steps();
        let spread = spread.max(LEAST_SPREAD).div_ceil(SPREAD_WIDTH).min(MAX_SPREADS);
        let key = [usual_steps / WIDTH, spread, longest_steps / WIDTH];
        let key = key.iter().fold(0, |key, part| key << 8 | u32::from(*part));
        self.tally(key, Tally { units: 1, usual: usual_steps.into(), longest: longest_steps });
    }

    fn tally(&mut self, key: u32, more: Tally) {
        let tally = self.counts.entry(key).or_default();
        tally.units += more.units;
        tally.usual += more.usual;
        tally.longest = tally.longest.max(more.longest);
    }

    /// Adds the counts of other units.
    pub fn merge(&mut self, other: Cadences) {
        self.learning += other.learning;
        other.counts.into_iter().for_each(|(key, tally)| self.tally(key, tally));
    }

    /// The units that have shown a rhythm.
    pub fn units(&self) -> u64 {
        self.counts.values().map(|tally| tally.units).sum()
    }

    /// The classes of cadence, shortest intervals first, each with what `timeout` and `grace` bring, and the timeout
    /// that is suggested.
    pub fn classes(&self, timeout: Duration, grace: Duration) -> Vec<CadenceClass> {
        let mut by_usual: BTreeMap<u32, Vec<ByUsual>> = BTreeMap::new();
        // Counts of another instance may hold anything.
        for (key, tally) in self.counts.iter().filter(|(_, tally)| tally.units > 0) {
            let count = ByUsual {
                usual: (tally.usual / tally.units).min(u64::from(u16::MAX)) as u32,
                spread: (key >> 8 & 0xff) * u32::from(SPREAD_WIDTH),
                longest: tally.longest.into(),
                units: tally.units,
            };
            by_usual.entry(key >> 16 & 0xff).or_default().push(count);
        }
        let Some((first, last)) = by_usual.keys().next().zip(by_usual.keys().last()) else {
            return Vec::new();
        };
        let units_at =
            |at: u32| by_usual.get(&at).map_or(0, |counts| counts.iter().map(|one| one.units).sum());
        let histogram: Vec<u64> = (*first..=*last).map(units_at).collect();
        let mut classes = Vec::new();
        let mut from = *first;
        for end in cuts(&histogram).into_iter().chain([histogram.len()]) {
            let until = first + end as u32;
            let counts: Vec<ByUsual> =
                by_usual.range(from..until).flat_map(|(_, counts)| counts.clone()).collect();
            classes.push(class(&counts, timeout, grace));
            from = until;
        }
        classes
    }
}

/// Where a histogram falls apart into classes: the first index of each but the first.
fn cuts(histogram: &[u64]) -> Vec<usize> {
    let total: u64 = histogram.iter().sum();
    // A cadence whose units lie on both sides of an edge is one cadence.
    let smooth = |at: usize| {
        let beside = |other: Option<usize>| other.and_then(|at| histogram.get(at)).copied().unwrap_or(0);
        beside(at.checked_sub(1)) + 2 * histogram[at] + beside(Some(at + 1))
    };
    let smoothed: Vec<u64> = (0..histogram.len()).map(smooth).collect();
    let (mut cuts, mut from) = (Vec::new(), 0);
    for at in 1..histogram.len() {
        let peak = |range: std::ops::Range<usize>| range.max_by_key(|at| smoothed[*at]).expect("not empty");
        let (left, right) = (peak(from..at), peak(at..histogram.len()));
        let units = |range: std::ops::Range<usize>| histogram[range].iter().sum::<u64>();
        let smaller = smoothed[left].min(smoothed[right]);
        let is_large = |units: u64| units * LEAST_SHARE >= total;
        let is_lowest = (left..=right).all(|other| smoothed[other] >= smoothed[at]);
        if is_lowest
            && right - left >= APART
            && smoothed[at] * VALLEY <= smaller
            && is_large(units(from..at))
            && is_large(units(at..histogram.len()))
        {
            cuts.push(at);
            from = at;
        }
    }
    cuts
}

fn class(counts: &[ByUsual], timeout: Duration, grace: Duration) -> CadenceClass {
    let units: u64 = counts.iter().map(|one| one.units).sum();
    let mut so_far = 0;
    let middle = counts.iter().find(|one| {
        so_far += one.units;
        2 * so_far >= units
    });
    let seconds = |steps: Option<u32>| span(steps.unwrap_or_default()).as_secs_f64();
    let usual = seconds(middle.map(|one| one.usual));
    let forecast = |timeout: Duration| {
        let allowed = (timeout + grace).as_secs_f64();
        Forecast {
            timeout_seconds: timeout.as_secs_f64(),
            false_alarms: counts.iter().map(|one| one.false_alarms(timeout + grace)).sum(),
            detection_seconds: (allowed - usual / 2.0).max(allowed / 2.0),
        }
    };
    let is_enough = |timeout: &Duration| {
        let allowed = steps(*timeout + grace);
        let exceeds = |one: &&ByUsual| (one.usual as f32 + LOST).max(one.longest as f32) > allowed;
        let exceeded: u64 = counts.iter().filter(exceeds).map(|one| one.units).sum();
        exceeded <= units / EXCEEDED && forecast(*timeout).false_alarms * ALARM_FREE_MONTHS <= units as f64
    };
    let suggested = TIMEOUTS.into_iter().map(Duration::from_secs).find(is_enough);
    CadenceClass {
        units,
        usual_seconds: usual,
        usual_from_seconds: seconds(counts.iter().map(|one| one.usual).min()),
        usual_to_seconds: seconds(counts.iter().map(|one| one.usual).max()),
        longest_seconds: seconds(counts.iter().map(|one| one.longest).max()),
        present: forecast(timeout),
        suggested: suggested.map(forecast),
    }
}

impl ByUsual {
    /// How often living units of the class are silent for longer in thirty days, all together.
    fn false_alarms(&self, allowed: Duration) -> f64 {
        let allowed = f64::from(steps(allowed));
        let intervals = MONTH / span(self.usual).as_secs_f64().max(1e-3);
        let distances = (allowed - f64::from(self.usual)).max(0.0) / f64::from(self.spread.max(1));
        let fitted = intervals * 0.5 * (-distances).exp();
        let seen = if f64::from(self.longest) > allowed { 1.0 } else { 0.0 };
        self.units as f64 * f64::max(fitted, seen)
    }
}

const _: () = assert!(STEPS as u16 == 4 * WIDTH);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    const MINUTE: u64 = 60_000;

    /// A unit that is heard every `usual` milliseconds, off by a share in turn, after one interval of `longest`.
    fn rhythm(usual: u64, share: f64, longest: u64) -> Rhythm {
        let intervals = (0..100).map(|at| (usual as f64 * (1.0 + share * [1.0, -1.0][at % 2])) as u64);
        let mut at = Timestamp::from_millis(0);
        let mut rhythm = Rhythm::default();
        for ms in intervals.take(20).chain([longest]).chain([usual; 100]) {
            let next = at + Duration::from_millis(ms);
            (rhythm, at) = (rhythm.learn(at, next), next);
        }
        rhythm
    }

    fn cadences(units: &[(u64, Rhythm)]) -> Cadences {
        let mut all = Cadences::default();
        for (count, rhythm) in units {
            (0..*count).for_each(|_| all.add(rhythm));
        }
        all
    }

    fn timeout() -> Duration {
        Duration::from_secs(48 * 3600)
    }

    #[test]
    fn a_kind_of_one_rhythm_gets_a_timeout_beyond_a_lost_message_and_its_longest_interval() {
        // The interval, the longest one, and the suggestion in seconds.
        let cases = [
            (5 * MINUTE, 6 * MINUTE, 720..=900),
            (5 * MINUTE, 40 * MINUTE, 2700..=3600),
            (10_000, 11_000, 30..=45),
            (24 * 60 * MINUTE, 25 * 60 * MINUTE, 172_800..=259_200),
        ];
        for (usual, longest, expected) in cases {
            let one = cadences(&[(100, rhythm(usual, 0.02, longest))]);
            let [class] = &one.classes(timeout(), Duration::ZERO)[..] else { panic!("one class") };
            let suggested = class.suggested.unwrap();
            assert!(expected.contains(&(suggested.timeout_seconds as u64)), "{usual}: {suggested:?}");
            assert!(suggested.false_alarms <= 100.0 / 12.0, "{suggested:?}");
            assert!(suggested.detection_seconds < suggested.timeout_seconds, "{suggested:?}");
            assert_eq!((class.units, class.present.timeout_seconds), (100, 172_800.0));
        }
    }

    #[test]
    fn a_short_timeout_brings_false_alarms_and_one_is_counted_for_each_unit_that_was_silent_for_longer() {
        let one = cadences(&[(100, rhythm(5 * MINUTE, 0.02, 40 * MINUTE))]);
        let alarms = |seconds: u64| {
            let timeout = Duration::from_secs(seconds);
            one.classes(timeout, Duration::ZERO)[0].present.false_alarms
        };
        assert!(alarms(240) > 100.0 * 4000.0, "half of all intervals");
        assert!((alarms(1800) - 100.0).abs() < 1.0, "{}", alarms(1800));
        assert!(alarms(3600) < 1.0);
        let with_grace = one.classes(Duration::from_secs(1800), Duration::from_secs(1800));
        assert!(with_grace[0].present.false_alarms < 1.0);
    }

    #[test]
    fn units_that_beat_in_two_rhythms_are_two_classes_and_a_few_others_are_not() {
        let (fast, slow) = (rhythm(10_000, 0.05, 11_000), rhythm(60 * MINUTE, 0.05, 61 * MINUTE));
        let sizes = |units: &[(u64, Rhythm)]| {
            let classes = cadences(units).classes(timeout(), Duration::ZERO);
            classes.iter().map(|class| class.units).collect::<Vec<u64>>()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[(90, fast), (10, slow)]), [90, 10]);
        assert_eq!(sizes(&[(98, fast), (2, slow)]), [100]);
        let day = rhythm(24 * 60 * MINUTE, 0.05, 25 * 60 * MINUTE);
        assert_eq!(sizes(&[(50, fast), (25, slow), (25, day)]), [50, 25, 25]);
        // Intervals from one to two minutes are one rhythm that is wide.
        let wide: Vec<(u64, Rhythm)> =
            (0..20).map(|at| (5, rhythm(MINUTE + at * 3000, 0.05, 3 * MINUTE))).collect();
        assert_eq!(sizes(&wide), [100]);
    }

    #[test]
    fn units_without_a_rhythm_are_counted_apart_and_counts_of_instances_add_up() {
        let (fast, young) = (rhythm(10_000, 0.05, 11_000), Rhythm::default());
        let mut sum = cadences(&[(3, fast), (2, young)]);
        sum.merge(cadences(&[(4, fast), (5, young)]));
        assert_eq!((sum.units(), sum.learning), (7, 7));
        let written = serde_json::to_string(&sum).unwrap();
        assert_eq!(serde_json::from_str::<Cadences>(&written).unwrap(), sum);
        assert_eq!(Cadences::default().classes(timeout(), Duration::ZERO), []);
    }
}

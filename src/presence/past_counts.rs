//! The counts of the fleet over time: by the minute for a day, by the hour for ninety days.
//!
//! Each instance counts the units of its own partitions every few seconds, and keeps the worst count of each minute. A
//! minute of the fleet is the sum of these parts, if they have every partition once, and each instance had the same ones
//! for all of it: while a partition changes its owner, or an instance does not count, the minute is unknown, and is shown
//! as unknown instead of a number that is too small. An hour has the counts of its worst minute, because an outage of ten
//! minutes would vanish in a mean.
//!
//! Units that are offline are counted by the values of labels, too: the worst values of each minute. A missing value
//! has no offline units, unless the minute says that values were left out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Incident, Interval, Ledger, State};
use crate::clock::Timestamp;

/// The number of units in each of [`State::ALL`].
pub type StateCounts = [u64; State::ALL.len()];

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The most marks of a cell; further incidents have none.
const MAX_MARKS: usize = 20;

/// The number of partitions in the part of an instance that had different ones within the minute: more than a fleet has.
const CHANGED: u16 = u16::MAX;

/// The counts of one instance: its number of partitions, their units by state, the units that are offline by
/// `label=value`, whether values were left out, the units whose silence is unusual, and a digest of the partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedPart(
    pub u16,
    pub StateCounts,
    pub BTreeMap<String, u64>,
    pub bool,
    #[serde(default)] pub u64,
    #[serde(default)] pub u32,
);

/// Units that fell silent together, as a mark in a chart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncidentMark {
    pub at: Timestamp,
    /// The value of a label that they share, `label=value`; empty: they are a part of the whole fleet.
    pub place: String,
    /// How many units fell silent, of how many.
    pub offline: u64,
    pub units: u64,
}

/// The minutes of an hour: the parts of the instances, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MinuteCounts {
    /// The labels by which every part is counted; `None`: nothing is counted yet.
    #[serde(default)]
    labels: Option<BTreeSet<String>>,
    minutes: BTreeMap<u8, BTreeMap<String, CountedPart>>,
    #[serde(default)]
    pub marks: Vec<IncidentMark>,
}

/// The hours of a day (UTC).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HourCounts {
    pub hours: BTreeMap<u8, FleetMoment>,
    #[serde(default)]
    pub marks: Vec<IncidentMark>,
}

/// The fleet in a minute, or in the worst minute of a longer time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetMoment {
    #[serde(rename = "s")]
    pub states: StateCounts,
    /// The most units that were offline at once, by `label=value`.
    #[serde(rename = "o")]
    pub offline: BTreeMap<String, u64>,
    /// The units that are not offline and whose silence is unusual.
    #[serde(default, rename = "u")]
    pub unusual: u64,
    /// The labels that are counted.
    #[serde(rename = "l")]
    labels: BTreeSet<String>,
    /// Whether values were left out.
    #[serde(rename = "c")]
    pub is_cut: bool,
}

/// A range of time that is shown, in buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CountRange {
    #[serde(rename = "1h")]
    Hour,
    #[default]
    #[serde(rename = "24h")]
    Day,
    #[serde(rename = "7d")]
    Week,
    #[serde(rename = "90d")]
    Quarter,
}

/// The counts of a part of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountBucket {
    pub from: Timestamp,
    /// The worst minute in it; `None`: no minute in it is known.
    pub worst: Option<FleetMoment>,
    /// How much of it was blind.
    pub blind: Duration,
}

impl IncidentMark {
    pub fn of(incident: &Incident) -> IncidentMark {
        IncidentMark {
            at: incident.since,
            place: format!("{}={}", incident.label, incident.value),
            offline: incident.offline,
            units: incident.units,
        }
    }
}

/// Adds a mark, or replaces the mark of the same incident.
pub fn add_mark(marks: &mut Vec<IncidentMark>, mark: IncidentMark) {
    let place = marks.iter().position(|known| (known.at, &known.place) == (mark.at, &mark.place));
    match place {
        Some(place) => marks[place] = mark,
        None if marks.len() < MAX_MARKS => marks.push(mark),
        None => {}
    }
}

/// A digest of partitions, in order: FNV-1a.
pub fn partitions_digest(partitions: &[u16]) -> u32 {
    let bytes = partitions.iter().flat_map(|one| one.to_be_bytes());
    bytes.fold(0x811c_9dc5, |digest: u32, byte| (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl CountedPart {
    /// Whether both are of the same partitions.
    pub fn has_partitions_of(&self, other: &CountedPart) -> bool {
        (self.0, self.5) == (other.0, other.5)
    }

    /// How bad it is: units that are offline, then those of which nothing is known, then late ones.
    pub fn gravity(&self) -> [u64; 3] {
        gravity(&self.1)
    }

    /// The worse of two counts of the same partitions within a minute, with the most units offline at each place; of
    /// equal ones `newer`, because the fleet may have grown.
    #[must_use]
    pub fn worse(self, newer: CountedPart) -> CountedPart {
        let is_worse = newer.gravity() >= self.gravity();
        let (mut worse, better) = if is_worse { (newer, self) } else { (self, newer) };
        keep_most(&mut worse.2, better.2);
        worse.3 |= better.3;
        worse.4 = most_unusual(&worse.1, worse.4, better.4);
        worse
    }
}

fn gravity(states: &StateCounts) -> [u64; 3] {
    [State::Offline, State::Unknown, State::Late].map(|state| states[state as usize])
}

/// The greater number of unusual units, at most the number of units that were present in the worse moment.
fn most_unusual(states: &StateCounts, worse: u64, better: u64) -> u64 {
    let present: u64 = [State::Online, State::Late].map(|state| states[state as usize]).iter().sum();
    worse.max(better).min(present)
}

/// Keeps the greater of the two counts of each label value.
fn keep_most(offline: &mut BTreeMap<String, u64>, other: BTreeMap<String, u64>) {
    for (place, count) in other {
        let most = offline.entry(place).or_default();
        *most = count.max(*most);
    }
}

impl MinuteCounts {
    /// Adds the counts of an instance, by these labels, in a minute of the hour. Keeps the worse counts of the same
    /// partitions: an instance that starts again within a minute does not know what it wrote before. Keeps no counts of
    /// other partitions: together with the parts of other instances they would be of a moment that never was.
    pub fn add(&mut self, minute: u8, instance: &str, part: CountedPart, labels: &[String]) {
        let own: BTreeSet<String> = labels.iter().cloned().collect();
        self.labels = Some(match self.labels.take() {
            Some(known) => known.intersection(&own).cloned().collect(),
            None => own,
        });
        let parts = self.minutes.entry(minute).or_default();
        let part = match parts.remove(instance) {
            Some(known) if known.has_partitions_of(&part) => known.worse(part),
            Some(_) => CountedPart { 0: CHANGED, ..CountedPart::default() },
            None => part,
        };
        parts.insert(instance.to_owned(), part);
    }

    /// Leaves out the places of the counts of an instance in a minute.
    pub fn remove_places(&mut self, minute: u8, instance: &str) {
        if let Some(part) = self.minutes.get_mut(&minute).and_then(|parts| parts.get_mut(instance)) {
            (part.2, part.3) = (BTreeMap::new(), true);
        }
    }

    /// Removes the counts of an instance in a minute.
    pub fn remove(&mut self, minute: u8, instance: &str) {
        if let Some(parts) = self.minutes.get_mut(&minute) {
            parts.remove(instance);
        }
    }

    /// The fleet of `partitions` partitions in a minute of the hour; `None`: some of them are missing, counted twice, or
    /// changed their owner.
    pub fn at(&self, minute: u8, partitions: u16) -> Option<FleetMoment> {
        let parts = self.minutes.get(&minute)?;
        let counted: u32 = parts.values().map(|part| u32::from(part.0)).sum();
        if counted != u32::from(partitions) {
            return None;
        }
        let labels = self.labels.clone().unwrap_or_default();
        let mut fleet = FleetMoment { labels, ..FleetMoment::default() };
        for CountedPart(_, states, offline, is_cut, unusual, _) in parts.values() {
            fleet.states.iter_mut().zip(states).for_each(|(sum, count)| *sum += count);
            for (place, count) in offline {
                *fleet.offline.entry(place.clone()).or_default() += count;
            }
            fleet.is_cut |= is_cut;
            fleet.unusual += unusual;
        }
        Some(fleet)
    }

    /// The minutes that are known, with the moments at which they begin. `hour`: when the hour begins.
    pub fn known(&self, hour: Timestamp, partitions: u16) -> Vec<(Timestamp, FleetMoment)> {
        let minutes = self.minutes.keys();
        minutes.filter_map(|at| Some((hour + MINUTE * u32::from(*at), self.at(*at, partitions)?))).collect()
    }

    /// The worst minute.
    pub fn worst(&self, partitions: u16) -> Option<FleetMoment> {
        let known = self.known(Timestamp::ZERO, partitions).into_iter();
        known.map(|(_, moment)| moment).reduce(FleetMoment::worse)
    }
}

impl FleetMoment {
    /// The worse of two moments, of equal ones the newer one, with the most units offline at each place, and the most
    /// that are unusual.
    pub fn worse(self, newer: FleetMoment) -> FleetMoment {
        let is_worse = gravity(&newer.states) >= gravity(&self.states);
        let (worse, better) = if is_worse { (newer, self) } else { (self, newer) };
        let mut offline = worse.offline;
        keep_most(&mut offline, better.offline);
        let labels = worse.labels.intersection(&better.labels).cloned().collect();
        FleetMoment {
            states: worse.states,
            offline,
            unusual: most_unusual(&worse.states, worse.unusual, better.unusual),
            labels,
            is_cut: worse.is_cut || better.is_cut,
        }
    }

    /// How many units with a value of a label are offline; `None`: that is not known.
    pub fn offline_at(&self, label: &str, value: &str) -> Option<u64> {
        let count = self.offline.get(&format!("{label}={value}")).copied();
        count.or((self.labels.contains(label) && !self.is_cut).then_some(0))
    }
}

impl CountRange {
    pub const ALL: [CountRange; 4] =
        [CountRange::Hour, CountRange::Day, CountRange::Week, CountRange::Quarter];

    pub fn as_str(self) -> &'static str {
        match self {
            CountRange::Hour => "1h",
            CountRange::Day => "24h",
            CountRange::Week => "7d",
            CountRange::Quarter => "90d",
        }
    }

    /// The length of a bucket, and how many there are.
    pub fn buckets(self) -> (Duration, u32) {
        match self {
            CountRange::Hour => (MINUTE, 60),
            CountRange::Day => (15 * MINUTE, 96),
            CountRange::Week => (HOUR, 168),
            CountRange::Quarter => (DAY, 90),
        }
    }

    /// Whether it is made of minutes; the others are made of hours.
    pub fn has_minutes(self) -> bool {
        matches!(self, CountRange::Hour | CountRange::Day)
    }

    /// The range that ends with the current bucket.
    pub fn at(self, now: Timestamp) -> Interval {
        let (step, count) = self.buckets();
        let to = floor(now, step) + step;
        Interval { from: to - step * count, to }
    }

    /// The buckets of the range that ends now, oldest first.
    pub fn fill(
        self,
        now: Timestamp,
        moments: impl IntoIterator<Item = (Timestamp, FleetMoment)>,
        blind: &Ledger,
    ) -> Vec<CountBucket> {
        let (step, count) = self.buckets();
        let range = self.at(now);
        let bucket = |at: u32| {
            let part = Interval { from: range.from + step * at, to: range.from + step * (at + 1) };
            let blind = part.length().saturating_sub(part.length_outside(blind));
            CountBucket { from: part.from, worst: None, blind }
        };
        let mut buckets: Vec<CountBucket> = (0..count).map(bucket).collect();
        for (at, moment) in moments.into_iter().filter(|(at, _)| range.contains(*at)) {
            let place = at.since(range.from).as_millis() / step.as_millis();
            let bucket = &mut buckets[place as usize];
            bucket.worst = Some(match bucket.worst.take() {
                Some(worst) => worst.worse(moment),
                None => moment,
            });
        }
        buckets
    }
}

/// The last moment up to `at` that is a multiple of a length.
pub fn floor(at: Timestamp, length: Duration) -> Timestamp {
    let length = length.as_millis() as i64;
    Timestamp::from_millis(at.as_millis().div_euclid(length) * length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_count_of_a_minute_has_the_most_offline_units_of_each_place() {
        let before = part(4, 100, &[("site=a", 5)]);
        let during = part(4, 60, &[("site=a", 3), ("site=b", 40)]);
        let worst = part(4, 60, &[("site=a", 5), ("site=b", 40)]);
        assert_eq!((worst.1[0], worst.1[2]), (60, 45));
        let merged = before.clone().worse(during.clone());
        assert_eq!(merged.2, worst.2);
        assert_eq!(merged.1, during.1, "the states are of one moment");
        assert_eq!(during.worse(before), merged, "in either order");
    }

    const NOON: Timestamp = Timestamp::from_millis(1_772_366_400_000);

    fn part(partitions: u16, online: u64, offline: &[(&str, u64)]) -> CountedPart {
        let places: BTreeMap<String, u64> =
            offline.iter().map(|(place, count)| ((*place).to_owned(), *count)).collect();
        CountedPart(partitions, [online, 0, places.values().sum(), 0, 0, 0], places, false, online / 10, 0)
    }

    fn labels() -> Vec<String> {
        vec!["site".to_owned()]
    }

    #[test]
    fn a_restart_within_a_minute_keeps_the_worse_count_of_the_instance() {
        let [calm, outage] = [part(4, 100, &[]), part(4, 60, &[("site=a", 40)])];
        for (name, first, second, offline) in
            [("an outage before the restart", &outage, &calm, 40), ("an outage after it", &calm, &outage, 40)]
        {
            let mut hour = MinuteCounts::default();
            hour.add(0, "a", first.clone(), &labels());
            hour.add(0, "a", second.clone(), &labels());
            let moment = hour.at(0, second.0).unwrap();
            assert_eq!(moment.states[State::Offline as usize], offline, "{name}");
            hour.remove_places(0, "a");
            assert!(hour.at(0, second.0).unwrap().is_cut && hour.minutes[&0]["a"].2.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_minute_in_which_an_instance_had_different_partitions_stays_unknown() {
        let of = |partitions: &[u16]| {
            let CountedPart(_, states, offline, is_cut, unusual, _) = part(0, 10, &[]);
            let (count, digest) = (partitions.len() as u16, partitions_digest(partitions));
            CountedPart(count, states, offline, is_cut, unusual, digest)
        };
        let other = of(&[2, 3]);
        for (name, parts, is_known) in [
            ("the same", &[&[0_u16, 1][..], &[0, 1]][..], true),
            ("it takes others over", &[&[0, 1], &[0, 1, 2, 3]], false),
            ("and gives them back", &[&[0, 1], &[0, 1, 2, 3], &[0, 1], &[0, 1]], false),
            ("it exchanges one", &[&[0, 2], &[0, 1]], false),
        ] {
            let mut hour = MinuteCounts::default();
            hour.add(0, "b", other.clone(), &labels());
            for partitions in parts {
                hour.add(0, "a", of(partitions), &labels());
            }
            assert_eq!(hour.at(0, 4).is_some(), is_known, "{name}");
        }
    }

    /// A fleet that grows: its units, of which some are offline, and how many of the others are unusual.
    #[test]
    fn a_worst_count_has_no_more_unusual_units_than_units() {
        let count = |online: u64, offline: u64, unusual: u64| {
            CountedPart(1, [online, 0, offline, 0, 0, 0], BTreeMap::new(), false, unusual, 0)
        };
        for (name, before, after, online, unusual) in [
            ("of equal ones the newer one", count(1, 0, 0), count(10, 0, 5), 10, 5),
            ("the worse one is small", count(1, 1, 1), count(10, 0, 5), 1, 1),
            ("fewer are unusual later", count(10, 0, 5), count(10, 0, 2), 10, 5),
        ] {
            let worst = before.clone().worse(after.clone());
            assert_eq!((worst.1[State::Online as usize], worst.4), (online, unusual), "{name}");
            let mut hour = MinuteCounts::default();
            hour.add(0, "a", before, &[]);
            hour.add(1, "a", after, &[]);
            let worst = hour.worst(1).unwrap();
            assert_eq!((worst.states[State::Online as usize], worst.unusual), (online, unusual), "{name}");
        }
    }

    #[test]
    fn a_minute_is_the_sum_of_its_parts_if_they_have_every_partition_once() {
        let mut hour = MinuteCounts::default();
        hour.add(0, "a", part(10, 100, &[("site=north", 1)]), &labels());
        assert_eq!(hour.at(0, 16), None, "six partitions are missing");
        hour.add(0, "b", part(6, 50, &[("site=north", 2), ("site=south", 1)]), &labels());
        let sum = hour.at(0, 16).unwrap();
        assert_eq!((sum.states, sum.unusual), ([150, 0, 4, 0, 0, 0], 15));
        assert_eq!((sum.offline_at("site", "north"), sum.offline_at("site", "west")), (Some(3), Some(0)));
        assert_eq!(sum.offline_at("floor", "1"), None, "nobody counts by it");
        hour.add(0, "c", part(6, 50, &[]), &labels());
        assert_eq!(hour.at(0, 16), None, "six partitions had two owners");
        hour.remove(0, "c");
        hour.add(0, "c", part(0, 0, &[]), &labels());
        assert!(hour.at(0, 16).is_some());
        assert_eq!(hour.at(1, 16), None);
        // An instance that was reloaded counts by another label from now on.
        hour.add(1, "a", part(16, 1, &[]), &["floor".to_owned()]);
        let moment = hour.at(1, 16).unwrap();
        assert_eq!((moment.offline_at("site", "north"), moment.offline_at("floor", "1")), (None, None));
    }

    #[test]
    fn an_hour_has_the_counts_of_its_worst_minute_and_the_most_of_each_place() {
        let mut hour = MinuteCounts::default();
        assert_eq!(hour.worst(1), None);
        hour.add(3, "a", part(1, 20, &[("site=north", 1)]), &labels());
        hour.add(4, "a", part(1, 7, &[("site=south", 3)]), &labels());
        hour.add(5, "a", part(2, 0, &[("site=north", 10)]), &labels());
        let worst = hour.worst(1).unwrap();
        assert_eq!(
            (worst.states, worst.unusual),
            ([7, 0, 3, 0, 0, 0], 2),
            "the most unusual of another minute"
        );
        assert_eq!(
            (worst.offline_at("site", "north"), worst.offline_at("site", "south")),
            (Some(1), Some(3))
        );
        let cut = CountedPart(1, [9, 0, 1, 0, 0, 0], BTreeMap::from([("site=x".to_owned(), 1)]), true, 0, 0);
        hour.add(6, "a", cut, &labels());
        let worst = hour.worst(1).unwrap();
        assert_eq!((worst.offline_at("site", "x"), worst.offline_at("site", "y")), (Some(1), None));
    }

    #[test]
    fn buckets_end_now_and_have_their_worst_moments_and_their_blind_time() {
        let now = NOON + Duration::from_secs(100);
        let moment =
            |offline: u64| FleetMoment { states: [9, 0, offline, 0, 0, 0], ..FleetMoment::default() };
        let ago = |minutes: u32| NOON - MINUTE * minutes;
        let blind = Ledger::new([Interval { from: ago(2), to: ago(1) + Duration::from_secs(30) }]);
        let moments = || {
            [(NOON + MINUTE, moment(1)), (ago(14), moment(5)), (ago(10), moment(2)), (ago(90_000), moment(9))]
        };
        for (range, last, before, blind_seconds) in [
            (CountRange::Hour, Some(1), None, 60),
            (CountRange::Day, Some(1), Some(5), 90),
            (CountRange::Week, Some(1), Some(5), 90),
            (CountRange::Quarter, Some(5), None, 90),
        ] {
            let buckets = range.fill(now, moments(), &blind);
            let (step, count) = range.buckets();
            assert_eq!(buckets.len(), count as usize);
            assert_eq!(buckets[0].from, range.at(now).from);
            let of =
                |at: usize| buckets[at].worst.as_ref().map(|worst| worst.states[State::Offline as usize]);
            assert_eq!((of(buckets.len() - 1), of(buckets.len() - 2)), (last, before), "{range:?}");
            assert_eq!(buckets.iter().map(|one| one.blind).max(), Some(Duration::from_secs(blind_seconds)));
            assert!(range.at(now).contains(now) && range.at(now).to.since(now) <= step);
        }
    }

    #[test]
    fn a_mark_is_of_one_incident_and_the_most_are_bounded() {
        let mark = |at: i64, offline: u64| IncidentMark {
            at: Timestamp::from_millis(at),
            place: "site=north".to_owned(),
            offline,
            units: 100,
        };
        let mut marks = Vec::new();
        add_mark(&mut marks, mark(1, 50));
        add_mark(&mut marks, mark(1, 70));
        assert_eq!(marks, [mark(1, 70)], "it grew");
        (0..100).for_each(|at| add_mark(&mut marks, mark(at, 9)));
        assert_eq!(marks.len(), MAX_MARKS);
    }
}

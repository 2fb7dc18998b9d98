//! One incident for one cause: most units that share the value of a label fall silent together.
//!
//! An incident belongs to a group, and is judged notification by notification, in their order. It begins with the
//! notification by which more than half of all units with that value are silent, of which at least [`LEAST`] fell
//! silent within [`TOGETHER`]; silences of earlier notifications count if they last. It is over with the notification
//! in which the last of its units is back.
//!
//! # Why a new storm ends an incident that lasts
//! One unit that stays broken for weeks keeps its incident. A second storm at that site would join it, under an alert
//! that an operator has perhaps acknowledged, and so call no operator. It is an incident of its own, and ends the
//! first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::OfflineRecord;
use crate::clock::Timestamp;

/// The fewest units that make an incident.
pub const LEAST: u64 = 5;
/// The deadlines of units that fall silent together are within this time.
pub const TOGETHER: Duration = Duration::from_secs(300);

/// Most units that share the value of a label fell silent together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    pub label: String,
    pub value: String,
    /// How many units fell silent.
    pub offline: u64,
    /// How many units have the value.
    pub units: u64,
    /// The first deadline.
    pub since: Timestamp,
    /// The unit with that deadline.
    pub first: FirstUnit,
    /// How many of the units are still silent.
    pub still_offline: u64,
    /// The last return, when it is over.
    pub until: Option<Timestamp>,
    /// Silences of the incident that were detected before this were notified before there was an incident.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notified_from: Option<Timestamp>,
    /// When an operator took care of all of its units. Silences that were detected after this have alerts of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<Timestamp>,
}

/// The unit that fell silent first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstUnit {
    pub kind: String,
    pub unit: String,
}

/// The incidents of a notification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// The incident that receivers are notified of.
    pub told: Option<Incident>,
    /// The incident that ends because another one begins.
    pub replaced: Option<Incident>,
}

/// The members of a notification.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    pub offline: &'a [OfflineRecord],
    pub online: &'a [OfflineRecord],
    /// How many silences of the group last and were notified, including those of the notification.
    pub lasting: u64,
}

impl Incident {
    /// Whether a record belongs to it. An incident that is over has no silence that lasts.
    pub fn covers(&self, record: &OfflineRecord) -> bool {
        let may_be = self.until.is_none() || record.closed_by.is_some();
        may_be && record.labels.get(&self.label) == Some(&self.value) && record.deadline >= self.since
    }

    /// Whether receivers were notified of a record as a part of the incident, and not by itself before.
    pub fn has_notified(&self, record: &OfflineRecord) -> bool {
        self.covers(record)
            && self.notified_from.is_none_or(|from| record.detected_at >= from)
            && self.acknowledged_at.is_none_or(|until| record.detected_at <= until)
    }

    /// Whether a notification may say more of it, or its end.
    pub fn is_concerned(&self, members: Members<'_>) -> bool {
        !members.online.is_empty() || members.offline.iter().any(|record| self.covers(record))
    }

    /// The incident after units were removed of which receivers were notified: they count neither as offline nor as
    /// back.
    pub fn without<'a>(mut self, removed: impl IntoIterator<Item = &'a OfflineRecord>) -> Incident {
        let count = removed.into_iter().filter(|record| self.covers(record)).count() as u64;
        self.still_offline = self.still_offline.saturating_sub(count);
        self.offline = self.offline.saturating_sub(count);
        self
    }

    /// The last of these returns. A unit may have another value of the label by then.
    pub fn last_return(&self, online: &[OfflineRecord]) -> Option<Timestamp> {
        let covered = online.iter().filter(|record| self.covers(record)).filter_map(|record| record.back_at);
        covered.max().or_else(|| online.iter().filter_map(|record| record.back_at).max())
    }

    /// The incident at its end.
    pub fn over(self, last_return: Option<Timestamp>) -> Incident {
        let until = last_return.unwrap_or(self.since).max(self.since);
        Incident { until: Some(until), ..self }
    }
}

/// The moment from which earlier silences matter to judge a notification without an incident before it; `None`: they
/// do not matter. `units`: how many units have that value of that label, if that is known.
pub fn earlier_from(
    members: Members<'_>,
    labels: &[String],
    units: impl Fn(&str, &str) -> Option<u64>,
) -> Option<Timestamp> {
    if members.lasting < LEAST || most(members.offline, &[], labels, &units).is_some() {
        return None;
    }
    let may_be_most = |label: &String| {
        let values: BTreeSet<&String> =
            members.offline.iter().filter_map(|one| one.labels.get(label)).collect();
        values.into_iter().any(|value| units(label, value).is_some_and(|units| 2 * members.lasting > units))
    };
    let first = members.offline.iter().map(|record| record.deadline).min()?;
    labels.iter().any(may_be_most).then(|| first - TOGETHER)
}

/// Judges the next notification of a group. `before`: the incident that lasts. `earlier`: silences of the group that
/// last and of which receivers were notified before, as far as they matter: one that the incident covers, if there is
/// one, or those from [`earlier_from`] on. `units`: see there.
pub fn judge_incident(
    before: Option<&Incident>,
    members: Members<'_>,
    earlier: &[OfflineRecord],
    labels: &[String],
    units: impl Fn(&str, &str) -> Option<u64>,
) -> Judgement {
    let Some(before) = before else {
        return Judgement { told: most(members.offline, earlier, labels, &units), replaced: None };
    };
    let lasts = earlier.iter().any(|record| before.covers(record));
    // Its last units ended without a notification: they were removed, or receivers are notified of no returns.
    let has_ended = !lasts && members.online.is_empty() && before.is_concerned(members);
    let ended = || {
        let first = members.offline.iter().map(|record| record.deadline).min();
        let still_offline = if lasts { before.still_offline } else { 0 };
        Incident { still_offline, ..before.clone() }.over(before.last_return(members.online).or(first))
    };
    let next = most(members.offline, &[], labels, &units);
    if let Some(next) = next.filter(|next| has_ended || next.since > before.since + TOGETHER) {
        return Judgement { told: Some(next), replaced: Some(ended()) };
    }
    let told = if has_ended { Some(ended()) } else { follow(before, members, lasts, units) };
    Judgement { told, replaced: None }
}

/// Judges a notification after the one that began the incident. `lasts`: whether an earlier silence of it lasts.
fn follow(
    before: &Incident,
    members: Members<'_>,
    lasts: bool,
    units: impl Fn(&str, &str) -> Option<u64>,
) -> Option<Incident> {
    let covered = |records: &[OfflineRecord]| records.iter().filter(|one| before.covers(one)).count() as u64;
    let (more, back) = (covered(members.offline), covered(members.online));
    let mut incident = before.clone();
    incident.units = units(&incident.label, &incident.value).unwrap_or(incident.units).max(incident.offline);
    incident.offline = (incident.offline + more).min(incident.units);
    let is_over = !lasts && more == 0 && !members.online.is_empty();
    if is_over {
        incident.still_offline = 0;
        return Some(incident.over(before.last_return(members.online)));
    }
    let still = (incident.still_offline + more).saturating_sub(back).min(members.lasting);
    incident.still_offline = still.min(incident.offline).max(more.max(1));
    (more + back > 0).then_some(incident)
}

/// The largest incident that these silences form with earlier ones that last.
fn most(
    offline: &[OfflineRecord],
    earlier: &[OfflineRecord],
    labels: &[String],
    units: &impl Fn(&str, &str) -> Option<u64>,
) -> Option<Incident> {
    let found = labels.iter().flat_map(|label| together(label, offline, earlier));
    let found = found.filter_map(|mut found| {
        found.units = units(&found.label, &found.value)?;
        (found.offline >= LEAST && 2 * found.offline > found.units).then_some(found)
    });
    // Of two incidents with as many units the first one counts: labels are in the order of the configuration.
    let mut found = found.reduce(|best, next| if next.offline > best.offline { next } else { best })?;
    found.units = found.units.max(found.offline);
    let covered = offline.iter().filter(|record| found.covers(record));
    found.notified_from = covered.map(|record| record.detected_at).min();
    Some(found)
}

/// For each value of a label the most silences that began together, at least one of which is new.
fn together(label: &str, offline: &[OfflineRecord], earlier: &[OfflineRecord]) -> Vec<Incident> {
    let mut by_value: BTreeMap<&str, Vec<(&OfflineRecord, bool)>> = BTreeMap::new();
    let of_both = offline.iter().map(|one| (one, true)).chain(earlier.iter().map(|one| (one, false)));
    for (record, is_new) in of_both {
        if let Some(value) = record.labels.get(label) {
            by_value.entry(value).or_default().push((record, is_new));
        }
    }
    let of_value = |(value, mut records): (&str, Vec<(&OfflineRecord, bool)>)| {
        records.sort_by_key(|(record, _)| (record.deadline, record.last_seen));
        // How many of the records before each are new.
        let new: Vec<usize> = std::iter::once(0)
            .chain(records.iter().scan(0, |count, (_, is_new)| {
                *count += usize::from(*is_new);
                Some(*count)
            }))
            .collect();
        let mut best = (0, 0);
        for (at, (first, _)) in records.iter().enumerate() {
            let end = records.partition_point(|(record, _)| record.deadline <= first.deadline + TOGETHER);
            // Of windows with as many silences the first one counts.
            if new[end] > new[at] && end - at > best.1 {
                best = (at, end - at);
            }
        }
        let (first, count) = (records[best.0].0, best.1 as u64);
        Incident {
            label: label.to_owned(),
            value: value.to_owned(),
            offline: count,
            units: 0,
            since: first.deadline,
            first: FirstUnit { kind: first.kind.to_string(), unit: first.unit.to_string() },
            still_offline: count,
            until: None,
            notified_from: None,
            acknowledged_at: None,
        }
    };
    by_value.into_iter().map(of_value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{Closing, Labels};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_732_147_200_000) + Duration::from_secs(seconds)
    }

    /// Units of a site by the seconds of their deadlines.
    fn silent(site: &str, deadlines: impl IntoIterator<Item = u64>) -> Vec<OfflineRecord> {
        let record = |(number, deadline): (usize, u64)| {
            let unit = format!("detector:{site}-{number}").parse().unwrap();
            let labels: Labels = [("site".to_owned(), site.to_owned())].into();
            OfflineRecord { labels, ..OfflineRecord::open(unit, at(0), at(deadline), at(deadline)) }
        };
        deadlines.into_iter().enumerate().map(record).collect()
    }

    fn back(records: &[OfflineRecord], seconds: u64) -> Vec<OfflineRecord> {
        let (back_at, closed_by) = (Some(at(seconds)), Some(Closing::Return));
        records.iter().map(|one| OfflineRecord { back_at, closed_by, ..one.clone() }).collect()
    }

    /// The judgement of a notification at sites of 320 units, of which `earlier` silences last.
    fn judged(
        before: Option<&Incident>,
        (offline, online): (&[OfflineRecord], &[OfflineRecord]),
        earlier: &[OfflineRecord],
    ) -> Judgement {
        let members = Members { offline, online, lasting: (offline.len() + earlier.len()) as u64 };
        judge_incident(before, members, earlier, &["site".to_owned()], |_, _| Some(320))
    }

    fn counts(judgement: &Judgement) -> Option<(u64, u64, Option<Timestamp>)> {
        judgement.told.as_ref().map(|told| (told.offline, told.still_offline, told.until))
    }

    #[test]
    fn most_units_of_a_value_that_fall_silent_together_are_an_incident() {
        let many = |count: usize| silent("north", vec![400; count]);
        let mixed = [silent("north", vec![400; 6]), silent("south", vec![400; 9])].concat();
        // The silences, how many units have the value, and how many units the incident has that receivers are
        // notified of.
        type Case = (&'static str, Vec<OfflineRecord>, Option<u64>, Option<u64>);
        let cases: [Case; 9] = [
            ("six of ten", many(6), Some(10), Some(6)),
            ("half is not most", many(5), Some(10), None),
            ("four are few", many(4), Some(4), None),
            ("five are all", many(5), Some(5), Some(5)),
            ("of an unknown number", many(50), None, None),
            ("not together", silent("north", (0..10).map(|n| n * 301)), Some(10), None),
            ("together at the edge", silent("north", (0..6).map(|n| 400 + n * 60)), Some(10), Some(6)),
            (
                "the later of two windows",
                silent("north", [0, 0, 900, 900, 950, 1000, 1100]),
                Some(8),
                Some(5),
            ),
            ("the larger of two", mixed, Some(10), Some(9)),
        ];
        let labels = ["site".to_owned()];
        for (what, offline, units, expected) in cases {
            let members = Members { offline: &offline, online: &[], lasting: offline.len() as u64 };
            let judgement = judge_incident(None, members, &[], &labels, |_, _| units);
            assert_eq!(judgement.told.map(|told| told.offline), expected, "{what}");
        }
        let offline = silent("north", [430, 401, 402, 405, 404]);
        let members = Members { offline: &offline, online: &[], lasting: 5 };
        let told = judge_incident(None, members, &[], &labels, |_, _| Some(6)).told.unwrap();
        assert_eq!((told.since, told.first.unit.as_str(), told.units), (at(401), "north-1", 6));
    }

    #[test]
    fn earlier_silences_matter_if_they_may_make_most_units() {
        let north = |count: usize| silent("north", vec![400; count]);
        // The silences, how many of the group last, how many units have the value, and whether earlier ones matter.
        let cases = [
            ("more may last", north(1), 6, Some(10), true),
            ("too few last", north(4), 4, Some(4), false),
            ("not most even if all were of it", north(3), 5, Some(10), false),
            ("most without them", north(6), 9, Some(10), false),
            ("an unknown number", north(3), 300, None, false),
            ("no silence", Vec::new(), 300, Some(10), false),
        ];
        for (what, offline, lasting, units, expected) in cases {
            let members = Members { offline: &offline, online: &[], lasting };
            let from = earlier_from(members, &["site".to_owned()], |_, _| units);
            assert_eq!(from, expected.then(|| at(100)), "{what}");
        }
    }

    #[test]
    fn an_incident_of_two_notifications_is_told_with_the_second_and_lasts_until_the_last_unit_is_back() {
        let storm = silent("north", vec![400; 320]);
        let (first, second, late) = (&storm[..100], &storm[100..310], &storm[310..312]);
        assert_eq!(judged(None, (first, &[]), &[]), Judgement::default(), "100 of 320");
        let second: Vec<OfflineRecord> =
            second.iter().map(|one| OfflineRecord { detected_at: at(402), ..one.clone() }).collect();
        let two = judged(None, (&second, &[]), first).told.unwrap();
        assert!(
            second.iter().all(|one| two.has_notified(one)) && !first.iter().any(|one| two.has_notified(one))
        );
        assert_eq!((two.offline, two.units), (310, 320));
        let three = judged(Some(&two), (late, &back(&storm[..3], 600)), &storm[3..310]);
        assert_eq!(counts(&three), Some((312, 309, None)));
        let three = three.told.unwrap();
        let other = judged(Some(&three), (&silent("south", [500]), &[]), &[]);
        assert_eq!(other, Judgement::default(), "another site is no news of this one");
        let four = judged(Some(&three), (&[], &back(&storm[3..311], 820)), &storm[311..312]);
        assert_eq!(counts(&four), Some((312, 1, None)), "one unit is silent");
        let five = judged(four.told.as_ref(), (&[], &back(&storm[311..312], 900)), &[]);
        assert_eq!(counts(&five), Some((312, 0, Some(at(900)))));
    }

    #[test]
    fn a_notification_after_an_incident_goes_on_with_it_ends_it_or_begins_the_next() {
        let storm = silent("north", vec![400; 300]);
        let begun = judged(None, (&storm, &[]), &[]).told.unwrap();
        let returned = back(&storm, 700);
        let moved: Vec<OfflineRecord> = returned
            .iter()
            .map(|one| OfflineRecord {
                labels: [("site".to_owned(), "south".to_owned())].into(),
                ..one.clone()
            })
            .collect();
        let (one, next, at_once) =
            (silent("north", [900]), silent("north", vec![900; 200]), silent("north", vec![500; 200]));
        let none: &[OfflineRecord] = &[];
        // The notification, the silences of the incident that last, the incident or the next one as receivers are
        // notified of it, and how many silences of an incident that is replaced last.
        type Told = Option<(u64, u64, Option<Timestamp>)>;
        type Case<'a> =
            (&'a str, &'a [OfflineRecord], &'a [OfflineRecord], &'a [OfflineRecord], Told, Option<u64>);
        let cases: [Case<'_>; 9] = [
            ("some are back", none, &returned[..299], &storm[299..], Some((300, 1, None)), None),
            ("all are back", none, &returned, none, Some((300, 0, Some(at(700)))), None),
            ("all are back at another site", none, &moved, none, Some((300, 0, Some(at(700)))), None),
            (
                "some are, and counted twice",
                none,
                &[&returned[..], &returned[..]].concat(),
                &storm[..1],
                Some((300, 1, None)),
                None,
            ),
            ("the rest was removed", none, &returned[..2], none, Some((300, 0, Some(at(700)))), None),
            ("one is silent again", &one, &returned, none, Some((301, 1, None)), None),
            ("all were removed before", &one, none, none, Some((300, 0, Some(at(900)))), None),
            ("a storm while one unit is silent", &next, none, &storm[..1], Some((200, 200, None)), Some(300)),
            ("the rest of the storm", &at_once[..20], none, &storm, Some((320, 320, None)), None),
        ];
        for (what, offline, online, earlier, told, replaced) in cases {
            let judgement = judged(Some(&begun), (offline, online), earlier);
            assert_eq!(counts(&judgement), told, "{what}");
            assert_eq!(
                judgement.replaced.map(|one| (one.still_offline, one.until.is_some())),
                replaced.map(|still| (still, true)),
                "{what}"
            );
        }
        let after_all = judged(Some(&begun), (&at_once, none), none);
        assert_eq!(counts(&after_all), Some((200, 200, None)), "the units of the first storm were removed");
        assert_eq!(after_all.replaced.map(|one| (one.still_offline, one.until)), Some((0, Some(at(500)))));
    }

    #[test]
    fn a_label_of_which_most_units_are_silent_counts_before_one_with_as_many_silences() {
        let silent: Vec<OfflineRecord> = silent("r1", vec![400; 6])
            .into_iter()
            .map(|mut record| {
                record.labels.insert("room".to_owned(), "A".to_owned());
                record
            })
            .collect();
        let labels = ["site".to_owned(), "room".to_owned()];
        let units = |label: &str, _: &str| Some(if label == "site" { 12 } else { 6 });
        let members = Members { offline: &silent, online: &[], lasting: 6 };
        let told = judge_incident(None, members, &[], &labels, units).told.unwrap();
        assert_eq!((told.label.as_str(), told.offline, told.units), ("room", 6, 6));
    }

    #[test]
    fn removed_units_are_neither_offline_nor_back_and_an_end_has_no_silence_that_lasts() {
        let storm = silent("north", vec![400; 300]);
        let begun = judged(None, (&storm, &[]), &[]).told.unwrap();
        let left = begun.clone().without(&back(&storm[..299], 500));
        assert_eq!((left.offline, left.still_offline, left.until), (1, 1, None));
        let over = begun.clone().over(Some(at(500)));
        let returned = back(&storm[..1], 500);
        assert!(begun.covers(&storm[0]) && begun.covers(&returned[0]));
        assert!(!over.covers(&storm[0]) && over.covers(&returned[0]));
    }
}

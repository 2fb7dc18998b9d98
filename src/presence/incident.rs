//! One incident for one cause: most units that share the value of a label fall silent together.
//!
//! An incident belongs to a group, and is judged notification by notification, in their order. It begins with the
//! notification by which more than half of all units with that value are silent, of which at least [`LEAST`] fell
//! silent within [`TOGETHER`]. It is over when no more than a tenth of them are silent; then receivers are notified
//! once more.
//!
//! A storm may need two notifications. So a candidate that is not an incident yet is kept, and the next notification
//! adds to it.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::OfflineRecord;
use crate::clock::Timestamp;

/// The fewest units that make an incident.
pub const LEAST: u64 = 5;
/// The deadlines of units that fall silent together are within this time.
pub const TOGETHER: Duration = Duration::from_secs(300);
/// An incident is over when no more than one in so many of its units is silent.
const SILENT_ONE_IN: u64 = 10;

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

/// The incident of a group from one notification to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupIncident {
    pub incident: Incident,
    /// Receivers know of it. Otherwise it may become an incident.
    pub is_notified: bool,
}

/// The incident of a notification, and the one that is kept for the next notification of its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JudgedIncident {
    /// The incident that receivers are notified of.
    pub notified: Option<Incident>,
    pub kept: Option<GroupIncident>,
}

/// The members of a notification.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    pub offline: &'a [OfflineRecord],
    pub online: &'a [OfflineRecord],
    /// How many silences of the group last of which receivers were notified.
    pub lasting: u64,
}

impl Incident {
    /// Whether a record belongs to it.
    pub fn covers(&self, record: &OfflineRecord) -> bool {
        record.labels.get(&self.label) == Some(&self.value) && record.deadline >= self.since
    }

    fn is_over(&self) -> bool {
        self.still_offline * SILENT_ONE_IN <= self.offline
    }

    /// Whether receivers were notified of a record as a part of the incident, and not by itself before.
    pub fn has_notified(&self, record: &OfflineRecord) -> bool {
        self.covers(record)
            && self.notified_from.is_none_or(|from| record.detected_at >= from)
            && self.acknowledged_at.is_none_or(|until| record.detected_at <= until)
    }
}

impl GroupIncident {
    /// The incident after units were removed, of which the group was notified: they count neither as offline nor as
    /// back. If it is over by that, it has an end.
    pub fn without(mut self, removed: &[&OfflineRecord]) -> GroupIncident {
        let incident = &mut self.incident;
        let gone: Vec<_> = removed.iter().filter(|record| incident.covers(record)).collect();
        let count = gone.len() as u64;
        incident.still_offline = incident.still_offline.saturating_sub(count);
        incident.offline = incident.offline.saturating_sub(count);
        if count > 0 && incident.is_over() {
            let last = gone.iter().filter_map(|record| record.back_at).max();
            incident.until = Some(last.unwrap_or(incident.since).max(incident.since));
        }
        self
    }
}

/// Judges the next notification of a group. `units`: how many units have that value of that label, if that is known.
pub fn judge_incident(
    before: Option<GroupIncident>,
    members: Members<'_>,
    labels: &[String],
    units: impl Fn(&str, &str) -> Option<u64>,
) -> JudgedIncident {
    // One that is over by removals is kept until pagers have it.
    match before.filter(|before| before.incident.until.is_none()) {
        Some(GroupIncident { incident, is_notified: true }) => follow(incident, members, units),
        before => begin(before.map(|before| before.incident), members, labels, units),
    }
}

/// A notification after that of an incident.
fn follow(
    mut incident: Incident,
    members: Members<'_>,
    units: impl Fn(&str, &str) -> Option<u64>,
) -> JudgedIncident {
    let covered =
        |records: &[OfflineRecord]| records.iter().filter(|one| incident.covers(one)).count() as u64;
    let (more, back) = (covered(members.offline), covered(members.online));
    // The last return; a unit may have another value of the label by then.
    let last = |is_one: &dyn Fn(&&OfflineRecord) -> bool| {
        members.online.iter().filter(is_one).filter_map(|one| one.back_at).max()
    };
    let returned = last(&|one| incident.covers(one)).or_else(|| last(&|_| true));
    incident.units = units(&incident.label, &incident.value).unwrap_or(incident.units);
    incident.units = incident.units.max(incident.offline);
    incident.offline = (incident.offline + more).min(incident.units);
    incident.still_offline =
        (incident.still_offline + more).saturating_sub(back).min(members.lasting).min(incident.offline);
    if incident.is_over() {
        incident.until = Some(returned.unwrap_or(incident.since).max(incident.since));
        return JudgedIncident { notified: Some(incident), kept: None };
    }
    let notified = (more + back > 0).then(|| incident.clone());
    JudgedIncident { notified, kept: Some(GroupIncident { incident, is_notified: true }) }
}

/// A notification before there is an incident. `before`: a candidate.
fn begin(
    before: Option<Incident>,
    members: Members<'_>,
    labels: &[String],
    units: impl Fn(&str, &str) -> Option<u64>,
) -> JudgedIncident {
    let newest = members.offline.iter().map(|record| record.deadline).max();
    let before = before.filter(|before| newest.is_none_or(|newest| newest <= before.since + TOGETHER));
    let before = before.map(|mut before| {
        let back = members.online.iter().filter(|record| before.covers(record)).count() as u64;
        before.still_offline = before.still_offline.saturating_sub(back);
        before
    });
    let found = labels.iter().flat_map(|label| together(label, members.offline, before.as_ref()));
    let is_most = |found: &Incident| {
        let total = units(&found.label, &found.value);
        found.still_offline >= LEAST && total.is_some_and(|total| 2 * found.still_offline > total)
    };
    let rank = |found: &Incident| (is_most(found), found.still_offline);
    // Of two with as many units the first one counts: labels are in the order of the configuration.
    let found = found.reduce(|best, next| if rank(&next) > rank(&best) { next } else { best });
    let Some(mut found) = found.or(before).filter(|found| found.still_offline >= LEAST) else {
        return JudgedIncident::default();
    };
    let is_notified = is_most(&found) && !members.offline.is_empty();
    found.offline = found.still_offline;
    found.units = units(&found.label, &found.value).unwrap_or_default().max(found.offline);
    if is_notified {
        let covered = members.offline.iter().filter(|record| found.covers(record));
        found.notified_from = covered.map(|record| record.detected_at).min();
    }
    JudgedIncident {
        notified: is_notified.then(|| found.clone()),
        kept: Some(GroupIncident { incident: found, is_notified }),
    }
}

/// For each value of a label, the silences that began together; with those of `before`, if it is of that value.
fn together(label: &str, offline: &[OfflineRecord], before: Option<&Incident>) -> Vec<Incident> {
    let mut by_value: HashMap<&str, Vec<&OfflineRecord>> = HashMap::new();
    for record in offline {
        if let Some(value) = record.labels.get(label) {
            by_value.entry(value).or_default().push(record);
        }
    }
    let of_value = |(value, mut records): (&str, Vec<&OfflineRecord>)| {
        if let Some(before) = before.filter(|before| before.label == label && before.value == value) {
            let more = records.iter().filter(|record| record.deadline >= before.since).count() as u64;
            return Incident { still_offline: before.still_offline + more, ..before.clone() };
        }
        records.sort_unstable_by_key(|record| (record.deadline, record.last_seen));
        let within = |at: usize| {
            let end = records[at].deadline + TOGETHER;
            records.partition_point(|record| record.deadline <= end) - at
        };
        // Of windows with as many silences the first one.
        let (at, count) = (0..records.len())
            .map(|at| (at, within(at)))
            .fold((0, 0), |best, next| if next.1 > best.1 { next } else { best });
        let first = records[at];
        Incident {
            label: label.to_owned(),
            value: value.to_owned(),
            offline: 0,
            units: 0,
            since: first.deadline,
            first: FirstUnit { kind: first.kind.to_string(), unit: first.unit.to_string() },
            still_offline: count as u64,
            until: None,
            notified_from: None,
            acknowledged_at: None,
        }
    };
    let mut found: Vec<Incident> = by_value.into_iter().map(of_value).collect();
    found.sort_unstable_by(|a, b| a.value.cmp(&b.value));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::Labels;

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
        records.iter().map(|one| OfflineRecord { back_at: Some(at(seconds)), ..one.clone() }).collect()
    }

    fn judged(
        before: Option<GroupIncident>,
        (offline, online): (&[OfflineRecord], &[OfflineRecord]),
        lasting: u64,
        units: Option<u64>,
    ) -> JudgedIncident {
        let members = Members { offline, online, lasting };
        judge_incident(before, members, &["site".to_owned()], |_, _| units)
    }

    #[test]
    fn most_units_of_a_value_that_fall_silent_together_are_an_incident() {
        let many = |count: usize| silent("north", vec![400; count]);
        let mixed = [silent("north", vec![400; 6]), silent("south", vec![400; 9])].concat();
        // The silences, how many units have the value, and how many are told of.
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
        for (what, offline, units, expected) in cases {
            let JudgedIncident { notified, kept } =
                judged(None, (&offline, &[]), offline.len() as u64, units);
            assert_eq!(notified.as_ref().map(|notified| notified.offline), expected, "{what}");
            assert!(notified.is_none() || kept.is_some_and(|kept| kept.is_notified), "{what}");
        }
        let notified =
            judged(None, (&silent("north", [430, 401, 402, 405, 404]), &[]), 5, Some(6)).notified.unwrap();
        assert_eq!((notified.since, notified.first.unit.as_str(), notified.units), (at(401), "north-1", 6));
    }

    #[test]
    fn an_incident_of_two_notifications_is_told_with_the_second_and_is_over_once() {
        let storm = silent("north", vec![400; 320]);
        let (first, second, late) = (&storm[..100], &storm[100..310], &storm[310..312]);
        let judge = |before, offline: &[OfflineRecord], online: &[OfflineRecord], lasting| {
            judged(before, (offline, online), lasting, Some(320))
        };
        let one = judge(None, first, &[], 100);
        assert_eq!(one.notified, None, "100 of 320");
        let second: Vec<OfflineRecord> =
            second.iter().map(|one| OfflineRecord { detected_at: at(402), ..one.clone() }).collect();
        let two = judge(one.kept, &second, &[], 310);
        let has_notified = |record: &OfflineRecord| two.notified.as_ref().unwrap().has_notified(record);
        assert!(second.iter().all(has_notified) && !first.iter().any(has_notified));
        assert_eq!(
            two.notified.as_ref().map(|notified| (notified.offline, notified.units)),
            Some((310, 320))
        );
        let three = judge(two.kept, late, &back(&storm[..3], 600), 309);
        let notified = three.notified.as_ref().unwrap();
        assert_eq!((notified.offline, notified.still_offline, notified.until), (312, 309, None));
        let other = judge(three.kept.clone(), &silent("south", [500]), &[], 310);
        assert_eq!((other.notified, &other.kept), (None, &three.kept), "another site is no news of this one");
        let four = judge(other.kept, &[], &back(&storm[3..310], 820), 2);
        let notified = four.notified.unwrap();
        assert_eq!((notified.offline, notified.still_offline, notified.until), (312, 2, Some(at(820))));
        assert_eq!(four.kept, None);
        assert_eq!(judge(None, &[], &back(late, 900), 0), JudgedIncident::default(), "it is over once");
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
        let notified = judge_incident(None, members, &labels, units).notified.unwrap();
        assert_eq!((notified.label.as_str(), notified.offline, notified.units), ("room", 6, 6));
    }

    #[test]
    fn an_incident_ends_with_the_last_return_also_if_units_have_another_value_by_then() {
        let storm = silent("north", vec![400; 8]);
        let one = judged(None, (&storm, &[]), 8, Some(8));
        let moved: Vec<OfflineRecord> = back(&storm, 600)
            .into_iter()
            .map(|one| OfflineRecord { labels: [("site".to_owned(), "south".to_owned())].into(), ..one })
            .collect();
        let over = judged(one.kept, (&[], &moved), 0, Some(8)).notified.unwrap();
        assert_eq!((over.still_offline, over.until), (0, Some(at(600))));
    }

    #[test]
    fn removed_units_are_neither_offline_nor_back() {
        let storm = silent("north", vec![400; 8]);
        let kept = judged(None, (&storm, &[]), 8, Some(8)).kept.unwrap();
        let removed = back(&storm, 500);
        let gone = |count: usize| kept.clone().without(&removed[..count].iter().collect::<Vec<_>>()).incident;
        assert_eq!((gone(7).offline, gone(7).still_offline, gone(7).until), (1, 1, None));
        assert_eq!((gone(8).still_offline, gone(8).until), (0, Some(at(500))));
        // The next storm is an incident of its own.
        let over = Some(GroupIncident { incident: gone(8), is_notified: true });
        let next = judged(over, (&silent("north", vec![900; 6]), &[]), 6, Some(6)).notified.unwrap();
        assert_eq!((next.offline, next.units, next.since), (6, 6, at(900)));
    }
}

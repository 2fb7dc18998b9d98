//! All alert silences of one version, found by the labels of a record.
//!
//! There may be thousands of alert silences, and every record is compared with them. So each one lies under one of
//! its `=` matchers, the one that the fewest others have; only alert silences without such a matcher are compared
//! with every record. For a record only the places of its own labels are searched. A scan of all gives the same
//! answers: a generated test compares them.

use std::collections::HashMap;
use std::ops::Deref;

use super::alert::{ALERT_NAME, alert_label, is_match};
use super::{AlertSilence, Matcher, Operator};
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;

/// The names of labels that every record has, whatever its unit says.
const OF_EVERY_RECORD: [&str; 5] = ["kind", "unit", "cause", "state", ALERT_NAME];

/// Places in a list of alert silences.
type SilencePlaces = Vec<usize>;

/// Alert silences, also expired ones.
#[derive(Clone, Debug, Default)]
pub struct AlertSilences {
    all: Vec<AlertSilence>,
    /// Alert silences by the name and the value of an `=` matcher.
    by_label: HashMap<String, HashMap<String, SilencePlaces>>,
    /// The alert silences without an `=` matcher.
    rest: SilencePlaces,
}

impl Deref for AlertSilences {
    type Target = [AlertSilence];
    fn deref(&self) -> &[AlertSilence] {
        &self.all
    }
}

impl From<Vec<AlertSilence>> for AlertSilences {
    fn from(all: Vec<AlertSilence>) -> AlertSilences {
        let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
        for (name, value) in all.iter().flat_map(equalities) {
            *counts.entry((name, value)).or_default() += 1;
        }
        let (mut by_label, mut rest) =
            (HashMap::<String, HashMap<String, SilencePlaces>>::new(), SilencePlaces::new());
        for (place, silence) in all.iter().enumerate() {
            match equalities(silence).min_by_key(|label| counts[label]) {
                None => rest.push(place),
                Some((name, value)) => {
                    let of_name = by_label.entry(name.to_owned()).or_default();
                    of_name.entry(value.to_owned()).or_default().push(place);
                }
            }
        }
        drop(counts);
        AlertSilences { all, by_label, rest }
    }
}

/// The labels that a record has to have. An empty value is left out, because a record may lack that label.
fn equalities(silence: &AlertSilence) -> impl Iterator<Item = (&str, &str)> {
    let is_equality =
        |matcher: &&Matcher| matcher.operator() == Operator::Equal && !matcher.value().is_empty();
    silence.matchers.iter().filter(is_equality).map(|matcher| (matcher.name(), matcher.value()))
}

impl AlertSilences {
    /// The alert silences whose matchers match the record, also expired and future ones; in no order.
    pub fn matching<'a>(&'a self, record: &'a OfflineRecord) -> impl Iterator<Item = &'a AlertSilence> {
        let own = record.labels.keys().map(String::as_str).filter(|name| !OF_EVERY_RECORD.contains(name));
        let found = OF_EVERY_RECORD
            .into_iter()
            .chain(own)
            .filter_map(move |name| self.by_label.get(name)?.get(alert_label(record, name)));
        let places = found.flatten().chain(&self.rest);
        places
            .map(move |place| &self.all[*place])
            .filter(move |silence| silence.matchers.iter().all(|matcher| is_match(matcher, record)))
    }

    /// The alert silences that hold back notifications of the record now.
    pub fn covering<'a>(
        &'a self,
        record: &'a OfflineRecord,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a AlertSilence> {
        self.matching(record).filter(move |silence| silence.is_active(now))
    }

    /// Until when alert silences that are active now cover the record; `None`: no alert silence covers it. Another one
    /// may cover it from then on.
    pub fn covered_until(&self, record: &OfflineRecord, now: Timestamp) -> Option<Timestamp> {
        self.covering(record, now).map(|silence| silence.ends_at).max()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::presence::Labels;
    use crate::routing::SilenceId;

    fn matcher() -> impl Strategy<Value = Matcher> {
        let names = ["kind", "unit", "cause", "state", ALERT_NAME, "site", "rack"];
        let values = ["", "pump", "1", "2", "north", "offline", "silence", "UnitOffline", "online"];
        (
            prop::sample::select(names.to_vec()),
            prop::sample::select(&Operator::ALL[..]),
            prop::sample::select(values.to_vec()),
        )
            .prop_map(|(name, operator, value)| {
                Matcher::new(name.to_owned(), operator, value.to_owned()).unwrap()
            })
    }

    fn silence() -> impl Strategy<Value = AlertSilence> {
        (prop::collection::vec(matcher(), 1..4), any::<u128>(), 0..20_i64, 0..20_i64).prop_map(
            |(matchers, bits, starts, length)| AlertSilence {
                id: SilenceId::of_random(bits),
                matchers,
                starts_at: Timestamp::from_millis(starts),
                ends_at: Timestamp::from_millis(starts + length),
                updated_at: Timestamp::ZERO,
                author: "ana".to_owned(),
                comment: String::new(),
            },
        )
    }

    fn record() -> impl Strategy<Value = OfflineRecord> {
        let names = ["site", "rack", "cause", "state", ALERT_NAME, "kind", "unit"];
        let labels = prop::collection::btree_map(
            prop::sample::select(names.to_vec()).prop_map(str::to_owned),
            prop::sample::select(&["north", "1", "2", "", "pump"][..]).prop_map(str::to_owned),
            0..4,
        );
        (prop::sample::select(&["pump:1", "pump:2", "gate:1"][..]), labels, 0..20_i64).prop_map(
            |(unit, labels, at): (&str, Labels, i64)| {
                let at = Timestamp::from_millis(at);
                OfflineRecord { labels, ..OfflineRecord::open(unit.parse().unwrap(), at, at, at) }
            },
        )
    }

    proptest! {
        #[test]
        fn the_answers_are_those_of_a_scan_of_all(
            all in prop::collection::vec(silence(), 0..12), record in record(), now in 0..40_i64,
        ) {
            let now = Timestamp::from_millis(now);
            let silences = AlertSilences::from(all.clone());
            let ids = |mut found: Vec<SilenceId>| { found.sort(); found };
            let scanned = all.iter().filter(|one| one.matches(&record)).map(|one| one.id).collect();
            let matching = silences.matching(&record).map(|one| one.id).collect();
            prop_assert_eq!(ids(matching), ids(scanned));
            let scanned = all.iter().filter(|one| one.covers(&record, now)).map(|one| one.ends_at).max();
            prop_assert_eq!(silences.covered_until(&record, now), scanned);
        }
    }

    #[test]
    fn a_record_is_compared_only_with_silences_of_its_labels_and_with_those_without_a_label() {
        let of = |matchers: &[(&str, Operator, &str)]| AlertSilence {
            id: SilenceId::of_random(1),
            matchers: matchers
                .iter()
                .map(|(name, operator, value)| {
                    Matcher::new((*name).to_owned(), *operator, (*value).to_owned()).unwrap()
                })
                .collect(),
            starts_at: Timestamp::ZERO,
            ends_at: Timestamp::NEVER,
            updated_at: Timestamp::ZERO,
            author: "ana".to_owned(),
            comment: String::new(),
        };
        let mut all: Vec<AlertSilence> = (0..10_000)
            .map(|n| of(&[("kind", Operator::Equal, "pump"), ("unit", Operator::Equal, &n.to_string())]))
            .collect();
        all.push(of(&[("unit", Operator::Matches, "1.*")]));
        let silences = AlertSilences::from(all);
        assert_eq!(silences.by_label.keys().collect::<Vec<_>>(), ["unit"], "the label that few others have");
        assert!(silences.by_label["unit"].values().all(|places| places.len() == 1));
        assert_eq!(silences.rest, [10_000]);
    }
}

//! The records of a message counted by the values of their labels: which sites are offline?
//!
//! Labels and values come from devices and may be many, so only those with most records are named.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::alerting::text::word;
use crate::presence::OfflineRecord;
use crate::store::Delivery;

/// The most labels that are counted by, and the most values of each.
const MAX_LABELS: usize = 5;
const MAX_VALUES: usize = 5;
/// Fewer records than this are listed one by one.
const MIN_COUNTED: usize = 10;
/// A label counts if one record in this many has the same value of it.
const SHARE: usize = 50;

/// How many records of a message have one value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LabelCount {
    /// `kind`, or the name of a label.
    pub label: String,
    /// `None`: all values of the label that are not named.
    pub value: Option<String>,
    pub offline: u64,
    pub online: u64,
}

/// The counts of a message, label by label, the values with most records first. A label that few records share says
/// nothing and is left out, and so is a label whose value all records share.
pub fn counts(delivery: &Delivery) -> Vec<LabelCount> {
    let total = delivery.offline.len() + delivery.online.len();
    if total <= MIN_COUNTED {
        return Vec::new();
    }
    let mut by_label: BTreeMap<&str, HashMap<&str, [u64; 2]>> = BTreeMap::new();
    for (records, column) in [(&delivery.offline, 0), (&delivery.online, 1)] {
        for (label, value) in records.iter().flat_map(pairs) {
            by_label.entry(label).or_default().entry(value).or_default()[column] += 1;
        }
    }
    let labels = by_label.into_iter().filter_map(|(label, values)| {
        let mut values: Vec<(&str, [u64; 2])> = values.into_iter().collect();
        values.sort_unstable_by(|a, b| (sum(&b.1), a.0).cmp(&(sum(&a.1), b.0)));
        let most = sum(&values[0].1);
        let says_something = most > 1 && most as usize >= total / SHARE && (most as usize) < total;
        says_something.then_some((most, label, values))
    });
    let mut labels: Vec<_> = labels.collect();
    labels.sort_by_key(|(most, ..)| std::cmp::Reverse(*most));
    labels.truncate(MAX_LABELS);
    labels.into_iter().flat_map(|(_, label, values)| of_label(label, &values)).collect()
}

fn of_label(label: &str, values: &[(&str, [u64; 2])]) -> Vec<LabelCount> {
    let count = |value: Option<&str>, [offline, online]: [u64; 2]| LabelCount {
        label: label.to_owned(),
        value: value.map(str::to_owned),
        offline,
        online,
    };
    let (named, rest) = values.split_at(MAX_VALUES.min(values.len()));
    let rest_sum = rest.iter().fold([0; 2], |sum, (_, one)| [sum[0] + one[0], sum[1] + one[1]]);
    let named = named.iter().map(|(value, counts)| count(Some(value), *counts));
    named.chain((!rest.is_empty()).then(|| count(None, rest_sum))).collect()
}

fn pairs(record: &OfflineRecord) -> impl Iterator<Item = (&str, &str)> {
    let labels = record.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    labels.chain([("kind", record.kind.as_str())])
}

fn sum(counts: &[u64; 2]) -> u64 {
    counts.iter().sum()
}

/// A line for each label: `site=north 9 800, site=south 200`.
pub fn lines(counts: &[LabelCount]) -> Vec<String> {
    let said = |one: &LabelCount| {
        let value = one.value.as_deref().map_or("other values".to_owned(), word);
        format!("{}={value} {}", word(&one.label), number(one.offline + one.online))
    };
    counts
        .chunk_by(|one, next| one.label == next.label)
        .map(|of_label| of_label.iter().map(said).collect::<Vec<_>>().join(", "))
        .collect()
}

/// `9 800`: three digits at a time.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// The last line of a shortened list: `and 1 948 more`.
pub fn line_of_rest(count: usize) -> String {
    format!("and {} more", number(count as u64))
}

/// The number of a [`line_of_rest`].
pub fn of_rest(line: &str) -> Option<u64> {
    line.strip_prefix("and ")?.strip_suffix(" more")?.replace(' ', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerting::message::test_delivery;
    use crate::clock::Timestamp;
    use crate::presence::Labels;

    fn record(number: usize, site: &str) -> OfflineRecord {
        let unit = format!("detector:{number}").parse().unwrap();
        let labels = [("site", site.to_owned()), ("serial", number.to_string()), ("fleet", "one".to_owned())];
        let labels: Labels = labels.map(|(name, value)| (name.to_owned(), value)).into();
        let at = Timestamp::ZERO;
        OfflineRecord { labels, ..OfflineRecord::open(unit, at, at, at) }
    }

    #[test]
    fn the_values_with_most_records_are_named_and_those_that_say_nothing_are_not() {
        let mut delivery = test_delivery("hook", Timestamp::ZERO);
        delivery.offline = (0..9800).map(|number| record(number, "north")).collect();
        delivery.offline.extend((9800..10_000).map(|number| record(number, "south")));
        delivery.online = (0..7).map(|number| record(number, &format!("s{number}"))).collect();
        let counted = counts(&delivery);
        let said = "site=north 9 800, site=south 200, site=s0 1, site=s1 1, site=s2 1, site=other values 4";
        assert_eq!(lines(&counted), [said]);
        assert_eq!((counted[5].offline, counted[5].online), (0, 4));
        delivery.offline.truncate(3);
        assert_eq!(counts(&delivery), [], "few records are listed");
        let numbers = [0, 999, 1000, 9997, 1_234_567].map(number);
        assert_eq!(numbers, ["0", "999", "1 000", "9 997", "1 234 567"]);
        assert_eq!([1, 1948].map(|count| of_rest(&line_of_rest(count))), [Some(1), Some(1948)]);
    }
}

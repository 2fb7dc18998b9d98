//! The group of an event: events share a group if they share the values that the route groups by.
//!
//! The key of a group is made from values that devices may choose, and becomes part of names in
//! the engine. So it is the same for the same values, different for different ones, printable, and
//! short.

use std::fmt::Write;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use crate::presence::{Kind, Labels, OfflineRecord};
use crate::store::{Delivery, Group, OutboxEvent};

/// The name of the label with the topic filters of a kind that is not heard.
pub const TOPICS: &str = "topics";

/// The longest key, in bytes.
const LONGEST_KEY: usize = 512;

/// The group that the event joins.
pub fn group_of(event: &OutboxEvent, group_by: &[String]) -> Group {
    match event {
        OutboxEvent::Record(record) => {
            let labels = shared(record, group_by);
            Group { key: key(&labels), labels }
        }
        // A group of its own, whatever the route groups by: it concerns no unit.
        OutboxEvent::Blind(_) => Group { key: "blind".to_owned(), labels: Labels::new() },
    }
}

/// The group of blindness of one kind, which is heard by these filters.
pub fn group_of_kind(kind: &Kind, filters: &[String]) -> Group {
    let mut topics = filters.join(", ");
    if topics.len() > LONGEST_KEY {
        let end = (0..=LONGEST_KEY).rev().find(|&at| topics.is_char_boundary(at)).unwrap_or(0);
        topics.truncate(end);
        topics += "…";
    }
    // No label has such a name, so no record has this key.
    let key = format!("blind,kind={kind}");
    Group { key, labels: [("kind".to_owned(), kind.to_string()), (TOPICS.to_owned(), topics)].into() }
}

/// The kind that a notification of blindness concerns, and its topics; `None`: the fleet.
pub fn of_kind(delivery: &Delivery) -> Option<(&String, &String)> {
    let labels = &delivery.group.labels;
    labels.get("kind").zip(labels.get(TOPICS))
}

/// The values that the members of the record's group share. A label that the unit lacks is left
/// out: units without it are together.
fn shared(record: &OfflineRecord, group_by: &[String]) -> Labels {
    let value = |name: &String| match name.as_str() {
        "kind" => Some(record.kind.as_str().to_owned()),
        "unit" => Some(record.unit.as_str().to_owned()),
        label => record.labels.get(label).cloned(),
    };
    group_by.iter().filter_map(|name| Some((name.clone(), value(name)?))).collect()
}

/// `kind=detector,site=north`; a key that would be too long ends with a hash of all of it.
fn key(labels: &Labels) -> String {
    if labels.is_empty() {
        return "all".to_owned();
    }
    let pairs: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    let mut key = pairs.join(",");
    if key.len() > LONGEST_KEY {
        let hash = digest(&SHA256, key.as_bytes());
        let suffix = format!("~{}", HEXLOWER.encode(&hash.as_ref()[..16]));
        let end = (0..=LONGEST_KEY - suffix.len()).rev().find(|&at| key.is_char_boundary(at)).unwrap_or(0);
        key.truncate(end);
        key += &suffix;
    }
    key
}

/// Letters and digits of any script stay; other characters could be taken for separators and are
/// percent-encoded.
fn escape(value: &str) -> String {
    let mut plain = String::with_capacity(value.len());
    for c in value.chars() {
        if c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':') {
            plain.push(c);
        } else {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                write!(plain, "%{byte:02X}").expect("a string takes all");
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::presence::Interval;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn a_key_is_plain_whatever_the_values_hold() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[], "all"),
            (&[("site", "north"), ("kind", "detector")], "kind=detector,site=north"),
            (&[("site", "a,kind=b")], "site=a%2Ckind%3Db"),
            (&[("site", "{x} %\r\n~")], "site=%7Bx%7D%20%25%0D%0A%7E"),
            (&[("unit", "ünit:7")], "unit=ünit:7"),
        ];
        for (pairs, expected) in cases {
            assert_eq!(key(&labels(pairs)), expected);
        }
    }

    #[test]
    fn long_keys_are_cut_and_still_differ() {
        let long = |last: &str| {
            let value = "é{".repeat(42);
            key(&labels(&[("a", &value), ("b", &value), ("c", &value), ("d", last)]))
        };
        let (one, other) = (long("1"), long("2"));
        assert!(one.len() <= LONGEST_KEY && other.len() <= LONGEST_KEY);
        assert_ne!(one, other);
        assert_eq!(one, long("1"));
    }

    #[test]
    fn blindness_is_never_in_a_group_with_units() {
        let interval = Interval { from: Timestamp::ZERO, to: Timestamp::NEVER };
        assert_eq!(group_of(&OutboxEvent::Blind(interval), &["kind".to_owned()]).key, "blind");
        assert_ne!(key(&labels(&[])), "blind");
        assert_ne!(key(&labels(&[("blind", "blind")])), "blind");
    }
}

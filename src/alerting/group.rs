//! The groups of an event: events share a group if they take the same route and share the values that it groups by.
//!
//! The key of a group is built from values that devices may choose, and becomes part of names in the engine. So equal
//! values give equal keys, different values different keys, and every key is printable and short.

use std::fmt::Write;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use crate::presence::{BrokerName, Kind, Labels, OfflineRecord, is_of_share};
use crate::routing::{DATA_LOST, FLAPPING, MatchedRoute, Routes, UNUSUAL_GROUP};
use crate::store::{DataLoss, Delivery, Group, OutboxEvent};

/// The name of the label with the topic filters of a kind that is not heard.
pub const TOPICS: &str = "topics";

/// The name of the label that says what an engine lost.
const LOST: &str = "lost";

/// The longest key, in bytes.
const MAX_KEY: usize = 512;

/// The groups that the event joins, one for each route that it takes.
pub fn groups_of(event: &OutboxEvent, routes: &Routes) -> Vec<Group> {
    let record = match event {
        OutboxEvent::Record(record) => record,
        OutboxEvent::Blind(_) => return vec![blind_group()],
        OutboxEvent::DataLost(loss) => return vec![group_of_loss(loss)],
    };
    if record.is_flapping() {
        return flapping_groups_of(record, routes);
    }
    groups_of_record(record, routes)
}

/// The groups that an episode of flapping joins at its begin and its end, one for each route that it takes. Silences
/// have other groups: the notifications of an episode say how the units behave, and not how many are offline.
pub fn flapping_groups_of(record: &OfflineRecord, routes: &Routes) -> Vec<Group> {
    routes.of(record).into_iter().map(|taken| apart(FLAPPING, taken, record)).collect()
}

/// The groups that a silence joins, or the notice of an unusual one; none for a notice that no route asks for.
pub fn groups_of_record(record: &OfflineRecord, routes: &Routes) -> Vec<Group> {
    routes.of(record).into_iter().map(|taken| group_in(taken, record)).collect()
}

/// A group whose key begins with a word of its own.
fn apart(word: &str, taken: MatchedRoute<'_>, record: &OfflineRecord) -> Group {
    let labels = taken.route.shared(record);
    Group { key: cut(with_route(taken.id, &format!("{word}{}", values(&labels)))), labels }
}

/// The group that a silence joins in a route, or the notice of an unusual one.
pub fn group_in(taken: MatchedRoute<'_>, record: &OfflineRecord) -> Group {
    if record.is_unusual() {
        return apart(UNUSUAL_GROUP, taken, record);
    }
    let labels = taken.route.shared(record);
    Group { key: key(taken.id, &labels), labels }
}

/// The group of blindness of the fleet: a group of its own, because it concerns no unit.
pub fn blind_group() -> Group {
    Group { key: "blind".to_owned(), labels: Labels::new() }
}

/// The group of blindness of one kind, which is heard by these filters, at one broker if there are several.
pub fn group_of_kind(kind: &Kind, broker: Option<&BrokerName>, filters: &[String]) -> Group {
    let topics: Vec<&str> = filters.iter().map(String::as_str).filter(|proof| !is_of_share(proof)).collect();
    let mut topics = topics.join(", ");
    if topics.len() > MAX_KEY {
        let end = (0..=MAX_KEY).rev().find(|&at| topics.is_char_boundary(at)).unwrap_or(0);
        topics.truncate(end);
        topics += "…";
    }
    // No label has such a name, so no record has this key.
    let mut key = format!("blind,kind={kind}");
    let mut labels: Labels = [("kind".to_owned(), kind.to_string()), (TOPICS.to_owned(), topics)].into();
    if let Some(broker) = broker {
        key += &format!(",broker={broker}");
        labels.insert("broker".to_owned(), broker.to_string());
    }
    Group { key, labels }
}

/// The kind that a notification of blindness concerns, and where it is not heard.
pub struct UnheardKind<'a> {
    pub kind: &'a String,
    /// The broker at which it is not heard, if the fleet has several.
    pub broker: Option<&'a String>,
    pub topics: &'a String,
}

impl UnheardKind<'_> {
    /// `detector`, or `detector at broker eu`.
    pub fn name(&self) -> String {
        let at = self.broker.map(|broker| format!(" at broker {broker}"));
        format!("{}{}", self.kind, at.unwrap_or_default())
    }

    /// `detector`, or `detector@eu`.
    pub fn id(&self) -> String {
        self.kind.to_owned() + &self.broker.map(|broker| format!("@{broker}")).unwrap_or_default()
    }
}

/// The kind that a notification of blindness concerns; `None`: the fleet.
pub fn of_kind(delivery: &Delivery) -> Option<UnheardKind<'_>> {
    let labels = &delivery.group.labels;
    let (kind, topics) = labels.get("kind").zip(labels.get(TOPICS))?;
    Some(UnheardKind { kind, broker: labels.get("broker"), topics })
}

/// The group of a loss of data. The lost part is a label, so that an engine seals it like any other message without
/// units.
pub fn group_of_loss(loss: &DataLoss) -> Group {
    let lost = match loss.partitions {
        None => "the whole fleet".to_owned(),
        Some(1) => "one partition of the fleet".to_owned(),
        Some(count) => format!("{count} partitions of the fleet"),
    };
    Group { key: DATA_LOST.to_owned(), labels: Labels::from([(LOST.to_owned(), lost)]) }
}

/// The lost part, if the delivery reports a loss of data.
pub fn lost(delivery: &Delivery) -> Option<&str> {
    let label = delivery.group.labels.get(LOST).filter(|_| delivery.group_key() == DATA_LOST);
    label.map(String::as_str)
}

/// `kind=detector,site=north`, after the id of a route other than the root and a `/`; a key that would be too long ends
/// with a hash of all of it.
fn key(route: &str, labels: &Labels) -> String {
    cut(with_route(route, &values(labels)))
}

fn values(labels: &Labels) -> String {
    let pairs: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    if pairs.is_empty() { "all".to_owned() } else { pairs.join(",") }
}

fn with_route(route: &str, values: &str) -> String {
    if route.is_empty() { values.to_owned() } else { format!("{route}/{values}") }
}

fn cut(mut key: String) -> String {
    if key.len() > MAX_KEY {
        let hash = digest(&SHA256, key.as_bytes());
        let suffix = format!("~{}", HEXLOWER.encode(&hash.as_ref()[..16]));
        let end = (0..=MAX_KEY - suffix.len()).rev().find(|&at| key.is_char_boundary(at)).unwrap_or(0);
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
    use crate::routing::{Route, is_blind, is_flapping};

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
            assert_eq!(key("", &labels(pairs)), expected);
            assert_eq!(key("hook.0123", &labels(pairs)), format!("hook.0123/{expected}"));
        }
    }

    #[test]
    fn long_keys_are_cut_and_still_differ() {
        let long = |last: &str| {
            let value = "é{".repeat(42);
            key("", &labels(&[("a", &value), ("b", &value), ("c", &value), ("d", last)]))
        };
        let (one, other) = (long("1"), long("2"));
        assert!(one.len() <= MAX_KEY && other.len() <= MAX_KEY);
        assert_ne!(one, other);
        assert_eq!(one, long("1"));
    }

    #[test]
    fn blindness_is_never_in_a_group_with_units() {
        let interval = Interval { from: Timestamp::ZERO, to: Timestamp::NEVER };
        let route = Route { group_by: vec!["kind".to_owned()], ..Route::default() };
        let groups = groups_of(&OutboxEvent::Blind(interval), &Routes::new(route));
        assert_eq!(groups.iter().map(|group| group.key.as_str()).collect::<Vec<_>>(), ["blind"]);
        assert!(
            is_blind(&groups[0].key) && is_blind(&group_of_kind(&"gate".parse().unwrap(), None, &[]).key)
        );
        let pairs: [&[(&str, &str)]; 3] = [&[], &[("blind", "blind")], &[("flapping", "flapping")]];
        for units in pairs.map(labels) {
            let key = key("", &units);
            assert!(!is_blind(&key) && !is_flapping(&key), "{units:?}");
        }
    }
}

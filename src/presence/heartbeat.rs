//! A parsed heartbeat: the unit, the time, and what the unit declares.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{BrokerName, Unit};
use crate::clock::Timestamp;

/// Labels of a unit by name, such as `site`. They come from topics and payloads.
pub type Labels = BTreeMap<String, String>;

/// The most labels that a unit may declare, and that an operator may set at once. A unit that has as many takes no new
/// one from payloads; labels of its topics are always taken.
pub const MAX_LABELS: usize = 16;
/// The most labels that a unit has once an operator sets some: a device cannot use up the room of operators.
pub const MAX_LABELS_IN_ALL: usize = 2 * MAX_LABELS;
/// The longest value of a label, in bytes.
pub const MAX_LABEL: usize = 128;

/// Names that matchers, alerts and metrics give a meaning of their own, so no label of a unit may have them.
const OWN_NAMES: [&str; 6] = ["kind", "unit", "state", "cause", "transition", "unusual"];

/// Whether `name` may name a label: `[a-zA-Z_][a-zA-Z0-9_]{0,31}`, as Prometheus allows it, and
/// no label name of Rollcall's own.
pub fn is_label_name(name: &str) -> bool {
    let mut chars = name.bytes();
    let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_');
    starts
        && name.len() <= 32
        && chars.all(|c| c.is_ascii_alphanumeric() || c == b'_')
        && !name.starts_with("__")
        && !OWN_NAMES.contains(&name)
}

/// Whether `value` may be the value of a label: 1–128 bytes, no control characters.
pub fn is_label_value(value: &str) -> bool {
    (1..=MAX_LABEL).contains(&value.len()) && !value.chars().any(char::is_control)
}

/// The declarations of a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Declared {
    /// The silence that the unit wants to be allowed.
    pub timeout: Option<Duration>,
    /// Labels of the payload; labels of the unit that are not named stay.
    pub labels: Labels,
    /// Labels of the topic or of the unit's name. They win, because a broker can protect topics.
    pub topic_labels: Labels,
    /// The length of a planned silence.
    pub sleep: Option<Duration>,
}

impl Declared {
    /// Whether nothing is declared, as in most heartbeats.
    pub fn is_empty(&self) -> bool {
        !self.is_in_payload() && self.topic_labels.is_empty()
    }

    /// Whether the payload declares anything.
    pub fn is_in_payload(&self) -> bool {
        self.timeout.is_some() || !self.labels.is_empty() || self.sleep.is_some()
    }

    /// A label that a unit with these labels has no room for.
    pub fn left_out(&self, labels: &Labels) -> Option<&str> {
        self.labels.keys().find(|name| !labels.contains_key(*name)).map(String::as_str)
    }
}

/// The topic of a heartbeat, and the captures that are no part of the unit's name: each label with its level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub topic: Box<str>,
    pub labels: Arc<[(Box<str>, usize)]>,
}

/// A message that proves that a unit lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub unit: Unit,
    /// The arrival, or the device's own time where the kind trusts it.
    pub at: Timestamp,
    /// When it came, as far as is known: `at` may be the time of a clock that is wrong.
    pub arrived: Timestamp,
    /// The earliest moment at which the heartbeat was sent, if that is known: its arrival may have been delayed.
    pub not_before: Option<Timestamp>,
    /// The place where it was heard, if the name of its unit leaves a part of that out.
    pub place: Option<Place>,
    /// The broker that delivered it, if its kind is heard at several; or HTTP.
    pub broker: Option<BrokerName>,
    pub declared: Declared,
}

impl Heartbeat {
    /// A heartbeat of which nothing else is known: it arrived at `at`.
    pub fn of(unit: Unit, at: Timestamp) -> Heartbeat {
        let (not_before, place, broker, declared) = Default::default();
        Heartbeat { unit, at, arrived: at, not_before, place, broker, declared }
    }

    /// Whether its arrival says when it was sent: no longer than `gap` ago, as far as is known.
    pub fn is_fresh(&self, gap: Duration, now: Timestamp) -> bool {
        self.not_before.is_none_or(|sent| now.since(sent) <= gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_name_that_prometheus_takes_and_a_value_without_line_breaks() {
        for name in ["site", "_x", "Site2"] {
            assert!(is_label_name(name), "{name}");
        }
        for name in
            ["", "2x", "a-b", "__name__", "kind", "unit", "state", "cause", "unusual", &"x".repeat(33)]
        {
            assert!(!is_label_name(name), "{name}");
        }
        assert!(is_label_value("Hall 3, north"));
        for value in ["", "a\nb", &"x".repeat(129)] {
            assert!(!is_label_value(value), "{value:?}");
        }
    }
}

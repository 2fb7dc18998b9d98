//! Takes the values of metrics out of a JSON object.
//!
//! Pointers become a tree, and the payload is walked along its branches alone: whatever else there is
//! is skipped, at a constant depth of stack. Of a field that comes twice the last one counts; `null`
//! says nothing.
//!
//! | type | what a field may hold |
//! |---|---|
//! | gauge | a number; `true` and `false` are 1 and 0 |
//! | counter | a number that is not negative |
//! | info | text of 1–128 bytes without control characters; a number, `true` or `false` as its text |

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::PayloadIssues;
use crate::presence::is_label_value;
use crate::store::{Metric, MetricType};
use crate::telemetry::PayloadIssue;

/// Where metrics stand in a payload.
pub(super) struct Tree {
    nodes: Vec<Node>,
    metrics: usize,
}

#[derive(Default)]
struct Node {
    /// By the name of a member, or the place in an array.
    children: Vec<(String, usize)>,
    /// The metrics that stand here.
    metrics: Vec<u8>,
}

/// Something found where a metric should stand.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// An array or an object.
    Other,
}

impl Tree {
    /// The tree of these pointers; the metric of each is its place in the list.
    pub fn new<'a>(pointers: impl Iterator<Item = &'a [String]>) -> Tree {
        let mut tree = Tree { nodes: vec![Node::default()], metrics: 0 };
        for (metric, pointer) in pointers.enumerate() {
            let mut at = 0;
            for token in pointer {
                let known = tree.nodes[at].children.iter().find(|(name, _)| name == token);
                at = match known {
                    Some((_, child)) => *child,
                    None => {
                        let child = tree.nodes.len();
                        tree.nodes.push(Node::default());
                        tree.nodes[at].children.push((token.clone(), child));
                        child
                    }
                };
            }
            tree.nodes[at].metrics.push(metric as u8); // There are few, see the configuration.
            tree.metrics += 1;
        }
        tree
    }

    /// The values of metrics in a payload, each with its place in the list, as text. Those of a wrong
    /// type are noted and passed over. What is no JSON object has none.
    pub fn read(&self, payload: &[u8], metrics: &[Metric], odd: &mut PayloadIssues) -> Vec<(u8, Box<str>)> {
        if payload.trim_ascii_start().first() != Some(&b'{') {
            return Vec::new();
        }
        let mut found = vec![None; self.metrics];
        let mut deserializer = serde_json::Deserializer::from_slice(payload);
        let read = Branch { tree: self, node: 0, found: &mut found }.deserialize(&mut deserializer);
        // Whoever looked for words for Rollcall has noted that it is broken.
        if read.and_then(|()| deserializer.end()).is_err() {
            return Vec::new();
        }
        let mut values = Vec::new();
        for (place, (metric, found)) in metrics.iter().zip(found).enumerate() {
            let Some(found) = found else { continue };
            match text(&found, metric.metric_type) {
                Some(text) => values.push((place as u8, text.into())),
                None => odd.note(PayloadIssue::BadValue, || {
                    let shown = format!("{found:?}");
                    format!("{} is no {}: {shown:.60}", metric.name, metric.metric_type.as_str())
                }),
            }
        }
        values
    }
}

/// A value as Prometheus is given it; `None` if it is none of that type.
fn text(found: &Found, metric_type: MetricType) -> Option<String> {
    let is_info = metric_type == MetricType::Info;
    match (found, metric_type) {
        (Found::Text(text), MetricType::Info) => is_label_value(text).then(|| text.clone()),
        (Found::Bool(value), _) if is_info => Some(value.to_string()),
        (Found::Bool(value), MetricType::Gauge) => Some(u8::from(*value).to_string()),
        (Found::Int(value), _) if is_info || metric_type == MetricType::Gauge || *value >= 0 => {
            Some(value.to_string())
        }
        (Found::Float(value), _) if is_info || metric_type == MetricType::Gauge || *value >= 0.0 => {
            // A very large or very small number would be hundreds of digits long.
            let plain = value.to_string();
            Some(if plain.len() <= 24 { plain } else { format!("{value:e}") })
        }
        _ => None,
    }
}

/// A place in the payload and in the tree.
struct Branch<'a> {
    tree: &'a Tree,
    node: usize,
    found: &'a mut [Option<Found>],
}

impl Branch<'_> {
    fn here(self, found: Option<Found>) {
        for metric in &self.tree.nodes[self.node].metrics {
            self.found[usize::from(*metric)] = found.clone();
        }
    }

    /// What is an array or an object is no value.
    fn begin(&mut self) {
        if !self.tree.nodes[self.node].metrics.is_empty() {
            Branch { tree: self.tree, node: self.node, found: self.found }.here(Some(Found::Other));
        }
    }

    fn child(&mut self, name: &str) -> Option<Branch<'_>> {
        let children = &self.tree.nodes[self.node].children;
        let (_, node) = children.iter().find(|(known, _)| known == name)?;
        Some(Branch { tree: self.tree, node: *node, found: self.found })
    }
}

impl<'de> DeserializeSeed<'de> for Branch<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Branch<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.here(None);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.here(Some(Found::Bool(value)));
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.here(Some(Found::Int(value)));
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.here(Some(i64::try_from(value).map_or(Found::Float(value as f64), Found::Int)));
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.here(Some(Found::Float(value)));
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        if !self.tree.nodes[self.node].metrics.is_empty() {
            self.here(Some(Found::Text(value.to_owned())));
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        self.begin();
        for place in 0_usize.. {
            let more = match self.child(&place.to_string()) {
                Some(child) => seq.next_element_seed(child)?.is_some(),
                None => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.begin();
        while let Some(name) = map.next_key::<std::borrow::Cow<'_, str>>()? {
            match self.child(&name) {
                Some(child) => map.next_value_seed(child)?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(pointer: &str, metric_type: MetricType) -> Metric {
        Metric {
            name: pointer.to_owned(),
            pointer: pointer.split('/').skip(1).map(str::to_owned).collect(),
            metric_type,
            help: String::new(),
            unit: String::new(),
            label: String::new(),
        }
    }

    fn read(metrics: &[Metric], payload: &str) -> (Vec<(u8, String)>, usize) {
        let tree = Tree::new(metrics.iter().map(|metric| metric.pointer.as_slice()));
        let mut odd = PayloadIssues::default();
        let values = tree.read(payload.as_bytes(), metrics, &mut odd);
        (values.into_iter().map(|(place, text)| (place, text.into())).collect(), odd.kinds().len())
    }

    #[test]
    fn values_are_found_wherever_they_stand_between_anything() {
        let metrics = [
            metric("/battery/volts", MetricType::Gauge),
            metric("/list/2/x", MetricType::Gauge),
            metric("/battery", MetricType::Info),
            metric("/starts", MetricType::Counter),
        ];
        let deep = format!("{{\"x\":{}{},\"starts\":5}}", "[".repeat(100_000), "]".repeat(100_000));
        let of =
            |values: &[(u8, &str)]| values.iter().map(|(n, v)| (*n, (*v).to_owned())).collect::<Vec<_>>();
        let cases = [
            ("{}", of(&[]), 0),
            ("{\"volts\":1,\"y\":{\"battery\":{\"volts\":2}}}", of(&[]), 0),
            ("{\"list\":[0,{},{\"y\":1,\"x\":-2.5},9],\"starts\":7}", of(&[(1, "-2.5"), (3, "7")]), 0),
            ("{\"list\":{\"2\":{\"x\":1}}}", of(&[(1, "1")]), 0),
            // An object is no text, and what stands in it is found all the same.
            ("{\"battery\":{\"volts\":3.5}}", of(&[(0, "3.5")]), 1),
            ("{\"battery\":\"full\"}", of(&[(2, "full")]), 0),
            ("{\"starts\":1,\"starts\":2}", of(&[(3, "2")]), 0),
            ("{\"starts\":1,\"starts\":null}", of(&[]), 0),
            (deep.as_str(), of(&[(3, "5")]), 0),
            ("{\"starts\":5} x", of(&[]), 0),
            ("{\"starts\":5", of(&[]), 0),
            ("[5]", of(&[]), 0),
        ];
        for (payload, values, odd) in cases {
            assert_eq!(read(&metrics, payload), (values, odd), "{payload:.60}");
        }
    }

    #[test]
    fn a_value_of_a_wrong_type_is_passed_over_alone_and_noted() {
        let [gauge, counter, info] = [MetricType::Gauge, MetricType::Counter, MetricType::Info];
        let cases = [
            ("1", gauge, Some("1")),
            ("-1.25", gauge, Some("-1.25")),
            ("1e300", gauge, Some("1e300")),
            ("18446744073709551615", gauge, Some("18446744073709552000")),
            ("true", gauge, Some("1")),
            ("\"1\"", gauge, None),
            ("[1]", gauge, None),
            ("{}", gauge, None),
            ("0", counter, Some("0")),
            ("-1", counter, None),
            ("-0.5", counter, None),
            ("true", counter, None),
            ("\"v1.2\"", info, Some("v1.2")),
            ("7", info, Some("7")),
            ("false", info, Some("false")),
            ("\"\"", info, None),
            ("\"a\\nb\"", info, None),
        ];
        for (value, metric_type, expected) in cases {
            let metrics = [metric("/a", metric_type), metric("/b", gauge)];
            let (values, odd) = read(&metrics, &format!("{{\"a\":{value},\"b\":1}}"));
            let a = values.iter().find(|(place, _)| *place == 0).map(|(_, text)| text.as_str());
            assert_eq!((a, odd), (expected, usize::from(expected.is_none())), "{value} as {metric_type:?}");
            assert!(values.contains(&(1, "1".to_owned())), "{value}");
        }
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(129));
        assert_eq!(read(&[metric("/a", info)], &long), (vec![], 1));
    }
}

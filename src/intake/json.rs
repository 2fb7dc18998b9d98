//! Takes fields and values of metrics out of a JSON object, in one pass and without building the rest of it.
//!
//! A payload may be large and deeply nested, and Rollcall uses few of its fields. So all other fields are skipped,
//! without recursion and without a copy. If a field appears twice, the last value counts; `null` means that it is
//! absent.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Fields;
use super::metric_tree::{MetricTree, NodeIndex, ROOT};
use crate::presence::Shown;
use crate::telemetry::truncate;

/// The most characters of a text in a log line.
const MAX_SHOWN: usize = 60;

/// A value that Rollcall may use.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// The scalar members of an object, in order.
    Object(Vec<(String, Value)>),
    /// An array or object in place of a value.
    Other,
}

/// The value as a log line shows it: short, and on one line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => value.fmt(f),
            Value::Int(value) => value.fmt(f),
            Value::Float(value) => value.fmt(f),
            Value::Text(text) => write!(f, "\"{}\"", Shown(truncate(text, MAX_SHOWN))),
            Value::Object(_) => f.write_str("an object"),
            Value::Other => f.write_str("a list or an object"),
        }
    }
}

/// The fields of a heartbeat, as in the payload.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PayloadFields {
    pub ts: Option<Value>,
    pub timeout: Option<Value>,
    pub labels: Option<Value>,
    pub sleep: Option<Value>,
}

/// The fields to read from a payload.
#[derive(Clone, Copy)]
pub(super) struct FieldSelection<'a> {
    pub fields: Option<&'a Fields>,
    pub metrics: Option<&'a MetricTree>,
}

/// The fields that were read from a payload.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Scanned {
    pub fields: PayloadFields,
    /// The value of each metric, by its index.
    pub values: Vec<Option<Value>>,
}

/// Reads a payload that is one JSON object.
pub(super) fn scan(payload: &[u8], wanted: FieldSelection) -> serde_json::Result<Scanned> {
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    let scanned = deserializer.deserialize_map(PayloadVisitor(wanted))?;
    deserializer.end()?;
    Ok(scanned)
}

struct PayloadVisitor<'a>(FieldSelection<'a>);

impl<'de> Visitor<'de> for PayloadVisitor<'_> {
    type Value = Scanned;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scanned, A::Error> {
        let FieldSelection { fields, metrics } = self.0;
        let values = vec![None; metrics.map_or(0, MetricTree::metrics)];
        let mut scanned = Scanned { fields: PayloadFields::default(), values };
        if let Some(tree) = metrics {
            Branch { tree, node: ROOT, values: &mut scanned.values }.begin();
        }
        let key = KeySeed { fields, at: metrics.map(|tree| (tree, ROOT)) };
        while let Some(KnownKey { field, child }) = map.next_key_seed(key)? {
            let values = &mut scanned.values;
            let branch = child.map(|(tree, node)| Branch { tree, node, values });
            let keep = match field {
                None => Keep::Nothing,
                Some(Field::Labels) => Keep::Members,
                Some(_) => Keep::Scalar,
            };
            let value = next_value(&mut map, branch, keep)?;
            match field {
                Some(Field::Ts) => scanned.fields.ts = value,
                Some(Field::Timeout) => scanned.fields.timeout = value,
                Some(Field::Labels) => scanned.fields.labels = value,
                Some(Field::Sleep) => scanned.fields.sleep = value,
                None => {}
            }
        }
        Ok(scanned)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Field {
    Ts,
    Timeout,
    Labels,
    Sleep,
}

/// The meaning of the name of a member.
struct KnownKey<'a> {
    field: Option<Field>,
    /// The node of the member, if the tree of metrics has one.
    child: Option<(&'a MetricTree, NodeIndex)>,
}

#[derive(Clone, Copy)]
struct KeySeed<'a> {
    fields: Option<&'a Fields>,
    /// The node of the object that contains the name.
    at: Option<(&'a MetricTree, NodeIndex)>,
}

impl<'de, 'a> DeserializeSeed<'de> for KeySeed<'a> {
    type Value = KnownKey<'a>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<KnownKey<'a>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for KeySeed<'a> {
    type Value = KnownKey<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<KnownKey<'a>, E> {
        let known = self.fields.and_then(|fields| {
            let known = [
                (&fields.ts, Field::Ts),
                (&fields.timeout, Field::Timeout),
                (&fields.labels, Field::Labels),
                (&fields.sleep, Field::Sleep),
            ];
            known.into_iter().find(|(wanted, _)| *wanted == name)
        });
        let child = self.at.and_then(|(tree, node)| Some((tree, tree.child(node, name)?)));
        Ok(KnownKey { field: known.map(|(_, field)| field), child })
    }
}

/// Which part of a value a field keeps.
#[derive(Clone, Copy, PartialEq)]
enum Keep {
    Nothing,
    Scalar,
    /// Keeps a scalar, or the scalar members of an object.
    Members,
}

/// A node of the tree of metrics, and the values found so far.
struct Branch<'a> {
    tree: &'a MetricTree,
    node: NodeIndex,
    values: &'a mut [Option<Value>],
}

impl Branch<'_> {
    fn set(&mut self, value: Option<Value>) {
        for metric in self.tree.metrics_at(self.node) {
            self.values[usize::from(*metric)] = value.clone();
        }
    }

    /// Handles an array or object in place of a metric's value: no value.
    fn begin(&mut self) {
        self.set(Some(Value::Other));
    }

    fn child(&mut self, name: &str) -> Option<Branch<'_>> {
        let node = self.tree.child(self.node, name)?;
        Some(Branch { tree: self.tree, node, values: self.values })
    }
}

/// Reads the next value of an object, or skips it if no field and no metric needs it.
fn next_value<'de, A: MapAccess<'de>>(
    map: &mut A,
    branch: Option<Branch>,
    keep: Keep,
) -> Result<Option<Value>, A::Error> {
    if branch.is_none() && keep == Keep::Nothing {
        return map.next_value::<IgnoredAny>().map(|_| None);
    }
    map.next_value_seed(ValueSeed { branch, keep })
}

/// Reads one value for a field, for metrics, or for both; `None` for `null`.
struct ValueSeed<'a> {
    branch: Option<Branch<'a>>,
    keep: Keep,
}

impl ValueSeed<'_> {
    fn scalar(mut self, value: Value) -> Option<Value> {
        let Some(branch) = &mut self.branch else { return Some(value) };
        if self.keep == Keep::Nothing {
            branch.set(Some(value));
            return None;
        }
        branch.set(Some(value.clone()));
        Some(value)
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Option<Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Option<Value>, E> {
        self.branch.into_iter().for_each(|mut branch| branch.set(None));
        Ok(None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Option<Value>, E> {
        Ok(self.scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Option<Value>, E> {
        Ok(self.scalar(Value::Int(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Option<Value>, E> {
        Ok(self.scalar(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Option<Value>, E> {
        Ok(self.scalar(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Option<Value>, E> {
        Ok(self.scalar(Value::Text(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<Value>, A::Error> {
        let Some(mut branch) = self.branch else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Some(Value::Other));
        };
        branch.begin();
        for index in 0_usize.. {
            let more = match branch.child(&index.to_string()) {
                Some(child) => {
                    let seed = ValueSeed { branch: Some(child), keep: Keep::Nothing };
                    seq.next_element_seed(seed)?.is_some()
                }
                None => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(Some(Value::Other))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Option<Value>, A::Error> {
        self.branch.iter_mut().for_each(Branch::begin);
        if self.keep == Keep::Members {
            return members(&mut map, self.branch).map(Some);
        }
        let Some(Branch { tree, node, values }) = self.branch else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Some(Value::Other));
        };
        let key = KeySeed { fields: None, at: Some((tree, node)) };
        while let Some(KnownKey { child, .. }) = map.next_key_seed(key)? {
            let branch = child.map(|(tree, node)| Branch { tree, node, values: &mut *values });
            next_value(&mut map, branch, Keep::Nothing)?;
        }
        Ok(Some(Value::Other))
    }
}

fn members<'de, A: MapAccess<'de>>(map: &mut A, mut branch: Option<Branch>) -> Result<Value, A::Error> {
    let mut members = Vec::new();
    while let Some(name) = map.next_key::<String>()? {
        let child = branch.as_mut().and_then(|branch| branch.child(&name));
        let value = map.next_value_seed(ValueSeed { branch: child, keep: Keep::Scalar })?;
        members.push((name, value.unwrap_or(Value::Other)));
    }
    Ok(Value::Object(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEEP: usize = 100_000;

    fn fields_of(payload: &str) -> serde_json::Result<PayloadFields> {
        let wanted = FieldSelection { fields: Some(&Fields::default()), metrics: None };
        scan(payload.as_bytes(), wanted).map(|scanned| scanned.fields)
    }

    #[test]
    fn a_value_is_shown_on_one_line_and_short() {
        let cases = [
            (Value::Bool(true), "true"),
            (Value::Int(-3), "-3"),
            (Value::Float(0.5), "0.5"),
            (Value::Text("a \u{1b}[31m\nb".to_owned()), "\"a \\u{1b}[31m\\nb\""),
            (Value::Object(Vec::new()), "an object"),
            (Value::Other, "a list or an object"),
        ];
        for (value, shown) in cases {
            assert_eq!(value.to_string(), shown);
        }
        assert_eq!(Value::Text("x".repeat(1000)).to_string().len(), MAX_SHOWN + 2);
    }

    #[test]
    fn fields_are_found_between_anything_and_the_last_of_two_counts() {
        let deep = format!("{{\"x\":{}{},\"ts\":5}}", "[".repeat(DEEP), "]".repeat(DEEP));
        let none = PayloadFields::default;
        let cases = [
            ("{}", none()),
            (" {\"a\":{\"ts\":1}} ", none()),
            (deep.as_str(), PayloadFields { ts: Some(Value::Int(5)), ..none() }),
            ("{\"ts\":1,\"ts\":2}", PayloadFields { ts: Some(Value::Int(2)), ..none() }),
            ("{\"timeout\":{\"a\":[1]}}", PayloadFields { timeout: Some(Value::Other), ..none() }),
            ("{\"timeout\":null}", none()),
            ("{\"\\u0074s\":1.5}", PayloadFields { ts: Some(Value::Float(1.5)), ..none() }),
            (
                "{\"labels\":{\"a\":1,\"b\":{\"c\":2}}}",
                PayloadFields {
                    labels: Some(Value::Object(vec![
                        ("a".into(), Value::Int(1)),
                        ("b".into(), Value::Other),
                    ])),
                    ..none()
                },
            ),
        ];
        for (payload, fields) in cases {
            assert_eq!(fields_of(payload).unwrap(), fields, "{payload:.60}");
        }
    }

    #[test]
    fn a_payload_that_is_not_one_object_is_an_error() {
        for payload in
            ["", "{", "{\"ts\":1} x", "{\"ts\":NaN}", "{\"ts\":1e999}", "{\"a\":\"\u{1}\"}", "[{}]"]
        {
            assert!(fields_of(payload).is_err(), "{payload}");
        }
    }

    #[test]
    fn one_pass_takes_fields_and_metrics_also_where_both_want_the_same() {
        let pointers = ["ts", "labels", "labels/site", "labels/room/volts", "sleep/0", "volts"]
            .map(|pointer| pointer.split('/').map(str::to_owned).collect::<Vec<_>>());
        let tree = MetricTree::new(pointers.iter().map(Vec::as_slice));
        let wanted = FieldSelection { fields: Some(&Fields::default()), metrics: Some(&tree) };
        let payload = "{\"volts\":1.5,\"ts\":7,\"sleep\":[3],\
                       \"labels\":{\"site\":\"north\",\"room\":{\"volts\":2}}}";
        let scanned = scan(payload.as_bytes(), wanted).unwrap();
        let text = |text: &str| Value::Text(text.to_owned());
        let members = vec![("site".to_owned(), text("north")), ("room".to_owned(), Value::Other)];
        let fields = PayloadFields {
            ts: Some(Value::Int(7)),
            timeout: None,
            labels: Some(Value::Object(members)),
            sleep: Some(Value::Other),
        };
        let values =
            [Value::Int(7), Value::Other, text("north"), Value::Int(2), Value::Int(3), Value::Float(1.5)];
        assert_eq!(scanned, Scanned { fields, values: values.map(Some).into() });
    }
}

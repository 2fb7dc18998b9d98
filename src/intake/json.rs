//! Takes four fields out of a JSON object without building the rest of it.
//!
//! A payload may be large and nested without end, and hardly ever says anything for Rollcall. So
//! everything but the fields asked for is skipped, at a constant depth of stack and without a copy.
//! Of a field that comes twice the last one counts.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Fields;

/// A value that Rollcall may understand.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// The scalar members of an object, in order.
    Object(Vec<(String, Value)>),
    /// Something that is none of these, where one of these was expected.
    Other,
}

/// What a payload says, as it says it. `null` says nothing.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    pub ts: Option<Value>,
    pub timeout: Option<Value>,
    pub labels: Option<Value>,
    pub sleep: Option<Value>,
}

/// Reads a payload that is one JSON object.
pub(super) fn scan(payload: &[u8], fields: &Fields) -> serde_json::Result<Said> {
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    let said = deserializer.deserialize_map(SaidVisitor(fields))?;
    deserializer.end()?;
    Ok(said)
}

struct SaidVisitor<'a>(&'a Fields);

impl<'de> Visitor<'de> for SaidVisitor<'_> {
    type Value = Said;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Said, A::Error> {
        let mut said = Said::default();
        while let Some(field) = map.next_key_seed(KeySeed(self.0))? {
            let place = match field {
                Field::Ts => &mut said.ts,
                Field::Timeout => &mut said.timeout,
                Field::Labels => &mut said.labels,
                Field::Sleep => &mut said.sleep,
                Field::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *place = map.next_value_seed(ValueSeed { nested: field == Field::Labels })?;
        }
        Ok(said)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Field {
    Ts,
    Timeout,
    Labels,
    Sleep,
    Unknown,
}

struct KeySeed<'a>(&'a Fields);

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Field;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Field, E> {
        let known = [
            (&self.0.ts, Field::Ts),
            (&self.0.timeout, Field::Timeout),
            (&self.0.labels, Field::Labels),
            (&self.0.sleep, Field::Sleep),
        ];
        let found = known.into_iter().find(|(wanted, _)| *wanted == name);
        Ok(found.map_or(Field::Unknown, |(_, field)| field))
    }
}

/// Reads one value; `None` for `null`. Members of an object are kept only where it is `nested`.
struct ValueSeed {
    nested: bool,
}

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = Option<Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Option<Value>, E> {
        Ok(Some(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Option<Value>, E> {
        Ok(Some(Value::Int(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Option<Value>, E> {
        Ok(Some(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Option<Value>, E> {
        Ok(Some(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Option<Value>, E> {
        Ok(Some(Value::Text(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<Value>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Some(Value::Other))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Value>, A::Error> {
        if !self.nested {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Some(Value::Other));
        }
        let mut members = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(ValueSeed { nested: false })?;
            members.push((name, value.unwrap_or(Value::Other)));
        }
        Ok(Some(Value::Object(members)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_between_anything_and_the_last_of_two_counts() {
        let fields = Fields::default();
        let deep = format!("{{\"x\":{}{},\"ts\":5}}", "[".repeat(100_000), "]".repeat(100_000));
        let cases = [
            ("{}", Said::default()),
            (" {\"a\":{\"ts\":1}} ", Said::default()),
            (deep.as_str(), Said { ts: Some(Value::Int(5)), ..Said::default() }),
            ("{\"ts\":1,\"ts\":2}", Said { ts: Some(Value::Int(2)), ..Said::default() }),
            ("{\"timeout\":{\"a\":[1]}}", Said { timeout: Some(Value::Other), ..Said::default() }),
            ("{\"timeout\":null}", Said::default()),
            ("{\"\\u0074s\":1.5}", Said { ts: Some(Value::Float(1.5)), ..Said::default() }),
            (
                "{\"labels\":{\"a\":1,\"b\":{\"c\":2}}}",
                Said {
                    labels: Some(Value::Object(vec![
                        ("a".into(), Value::Int(1)),
                        ("b".into(), Value::Other),
                    ])),
                    ..Said::default()
                },
            ),
        ];
        for (payload, said) in cases {
            assert_eq!(scan(payload.as_bytes(), &fields).unwrap(), said, "{payload:.60}");
        }
    }

    #[test]
    fn what_is_not_one_object_is_an_error() {
        for payload in
            ["", "{", "{\"ts\":1} x", "{\"ts\":NaN}", "{\"ts\":1e999}", "{\"a\":\"\u{1}\"}", "[{}]"]
        {
            assert!(scan(payload.as_bytes(), &Fields::default()).is_err(), "{payload}");
        }
    }
}

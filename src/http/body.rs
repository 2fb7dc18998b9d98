//! Bodies of requests: a JSON object with named fields. Without this module, a JSON array would be read as the fields
//! in their order.

use std::time::Duration;

use axum::body::Bytes;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::http_error::HttpError;
use crate::cause::json;
use crate::clock::{Timestamp, parse_span};

pub(super) fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, HttpError> {
    let fields = json::read::<Map<String, Value>>(body);
    let read = fields.and_then(|fields| json::from_value(Value::Object(fields)));
    read.map_err(|why| HttpError::bad_request(format!("the body: {why}")))
}

/// Reads an object within a body, for `deserialize_with`. An array in its place is refused, as for the body.
pub(super) fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let fields = Map::<String, Value>::deserialize(from)?;
    json::from_value(Value::Object(fields)).map_err(D::Error::custom)
}

/// A moment of a request, given as the field `name` or, from `begin` on, as the field `for`.
pub(super) fn end(
    (name, at): (&str, Option<Timestamp>),
    r#for: Option<&str>,
    begin: Timestamp,
) -> Result<Timestamp, HttpError> {
    match (at, r#for) {
        (Some(at), None) => Ok(at),
        (None, Some(text)) => {
            let span = parse_span(text).filter(|span| *span > Duration::ZERO);
            let wrong = || HttpError::bad_request(format!("for: {text:?} is not a span; write 30m or 2h"));
            Ok(begin + span.ok_or_else(wrong)?)
        }
        _ => Err(HttpError::bad_request(format!("write either {name} or for"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct InnerBody {
        one: Option<u8>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct OuterBody {
        #[serde(deserialize_with = "object")]
        inner: InnerBody,
    }

    #[test]
    fn a_body_is_an_object_and_so_is_one_within() {
        let of = |text: &'static str| read::<OuterBody>(&Bytes::from_static(text.as_bytes())).ok();
        assert_eq!(of(r#"{"inner": {"one": 1}}"#), Some(OuterBody { inner: InnerBody { one: Some(1) } }));
        for wrong in [r#"[{"one": 1}]"#, r#"{"inner": [1]}"#, r#"{"inner": null}"#, "null", "", "{} {}"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}

//! A period: a span of time, or `"auto"`.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use super::span::Span;

const AUTO: &str = "auto";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// The period follows from other options.
    Auto,
    Every(Span),
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Period::Auto => serializer.serialize_str(AUTO),
            Period::Every(span) => span.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Period;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("\"auto\" or a span of time in quotes, such as \"1s\" or \"200ms\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                if text.trim() == AUTO {
                    return Ok(Period::Auto);
                }
                let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
                Span::parse(text).map(Period::Every).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_span_or_auto_and_reads_back() {
        for (text, period) in [("auto", Period::Auto), ("200ms", Period::Every(Span::from_millis(200)))] {
            let json = format!("{text:?}");
            assert_eq!(serde_json::from_str::<Period>(&json).unwrap(), period);
            assert_eq!(serde_json::to_string(&period).unwrap(), json);
        }
        let error = serde_json::from_str::<Period>("\"often\"").unwrap_err().to_string();
        assert!(error.contains("\"auto\" or a span of time"), "{error}");
    }
}

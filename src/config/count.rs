//! A count: a whole number, or `"auto"`.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

const AUTO: &str = "auto";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The count follows from other options.
    Auto,
    Exactly(u16),
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Count::Auto => serializer.serialize_str(AUTO),
            Count::Exactly(number) => serializer.serialize_u16(*number),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("\"auto\" or a whole number without quotes, at most 65535")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Count, E> {
                let wrong = || E::invalid_value(Unexpected::Str(text), &self);
                (text.trim() == AUTO).then_some(Count::Auto).ok_or_else(wrong)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Count, E> {
                let wrong = |_| E::invalid_value(Unexpected::Signed(number), &self);
                u16::try_from(number).map(Count::Exactly).map_err(wrong)
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Count, E> {
                let wrong = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
                u16::try_from(number).map(Count::Exactly).map_err(wrong)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_number_or_auto_and_reads_back() {
        for (text, count) in [("\"auto\"", Count::Auto), ("48", Count::Exactly(48)), ("0", Count::Exactly(0))]
        {
            assert_eq!(serde_json::from_str::<Count>(text).unwrap(), count);
            assert_eq!(serde_json::to_string(&count).unwrap(), text);
            let table: toml::Table = toml::from_str(&format!("n = {text}")).unwrap();
            assert_eq!(table["n"].clone().try_into::<Count>().unwrap(), count);
        }
        for text in ["\"8\"", "-1", "65536", "1.5", "\"many\"", "true"] {
            let error = serde_json::from_str::<Count>(text).unwrap_err().to_string();
            assert!(error.contains("\"auto\" or a whole number"), "{text}: {error}");
        }
    }
}

//! The returns that receivers are notified of: `true`, `false`, or `"for 1m"`.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

use super::span::Span;

const FOR: &str = "for ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveriesOption {
    All,
    None,
    /// Every return is notified, that long after the unit came back.
    For(Span),
}

impl fmt::Display for RecoveriesOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveriesOption::All => f.write_str("true"),
            RecoveriesOption::None => f.write_str("false"),
            RecoveriesOption::For(span) => write!(f, "{FOR}{span}"),
        }
    }
}

impl Serialize for RecoveriesOption {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            RecoveriesOption::All | RecoveriesOption::None => {
                serializer.serialize_bool(*self == RecoveriesOption::All)
            }
            RecoveriesOption::For(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for RecoveriesOption {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RecoveriesOption, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = RecoveriesOption;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("true, false or a wait in quotes, such as \"for 1m\"")
            }
            fn visit_bool<E: de::Error>(self, all: bool) -> Result<RecoveriesOption, E> {
                Ok(if all { RecoveriesOption::All } else { RecoveriesOption::None })
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RecoveriesOption, E> {
                let wrong = || E::invalid_value(Unexpected::Str(text), &self);
                let span = text.trim().strip_prefix(FOR).and_then(Span::parse);
                span.map(RecoveriesOption::For).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recoveries_are_a_choice_or_a_wait_and_read_back() {
        let minute = RecoveriesOption::For(Span::from_secs(60));
        for (text, recoveries) in
            [("true", RecoveriesOption::All), ("false", RecoveriesOption::None), ("\"for 1m\"", minute)]
        {
            assert_eq!(serde_json::from_str::<RecoveriesOption>(text).unwrap(), recoveries);
            assert_eq!(serde_json::to_string(&recoveries).unwrap(), text);
        }
        for text in ["\"1m\"", "\"for\"", "\"for ever\"", "1", "\"true\""] {
            let error = serde_json::from_str::<RecoveriesOption>(text).unwrap_err().to_string();
            assert!(error.contains("true, false or a wait in quotes"), "{text}: {error}");
        }
    }
}

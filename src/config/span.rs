//! Spans of time as people write them: `48h`, `1m 30s`, `90d`.
//!
//! A day is 24 hours and a week seven days, always: a deadline does not move with daylight saving.
//! Months and years have no fixed length and are refused.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use crate::clock::parse_span;

/// A span of time in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// That many milliseconds.
    pub const fn from_millis(ms: u64) -> Span {
        Span(Duration::from_millis(ms))
    }

    /// That many seconds.
    pub const fn from_secs(seconds: u64) -> Span {
        Span(Duration::from_secs(seconds))
    }

    /// That many hours.
    pub const fn from_hours(hours: u64) -> Span {
        Span::from_secs(hours * 3600)
    }

    /// That many days.
    pub const fn from_days(days: u64) -> Span {
        Span::from_hours(days * 24)
    }

    /// Reads a span; `None` if it is not one or is negative.
    pub fn parse(text: &str) -> Option<Span> {
        parse_span(text).map(Span)
    }
}

/// Writes the largest unit first, without units that are zero: `1m 30s`, `48h`, `90d`. Days begin at three, because
/// people say 48 hours and not 2 days.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_millis();
        let mut parts = Vec::new();
        for (unit, ms) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
            if unit == "d" && rest < 3 * ms {
                continue;
            }
            if rest >= ms {
                parts.push(format!("{}{unit}", rest / ms));
                rest %= ms;
            }
        }
        f.write_str(if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }.as_str())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a span of time in quotes, such as \"48h\" or \"1m 30s\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                Span::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_write_them() {
        let cases = [
            ("48h", 172_800_000),
            ("1m 30s", 90_000),
            ("1m30s", 90_000),
            ("2 hours", 7_200_000),
            ("90d", 7_776_000_000),
            ("1w", 604_800_000),
            ("250ms", 250),
            ("0s", 0),
            ("1.5s", 1500),
        ];
        for (text, ms) in cases {
            assert_eq!(Span::parse(text), Some(Span::from_millis(ms)), "{text}");
        }
        for text in ["", "48", "-1h", "1 month", "1y", "soon", "999999999999999d"] {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_span_is_written_so_that_it_reads_back() {
        let cases =
            [(0, "0s"), (172_800_000, "48h"), (90_000, "1m 30s"), (7_776_000_000, "90d"), (1250, "1s 250ms")];
        for (ms, text) in cases {
            assert_eq!(Span::from_millis(ms).to_string(), text);
            assert_eq!(Span::parse(text), Some(Span::from_millis(ms)));
        }
    }
}

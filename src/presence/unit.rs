//! A monitored device: a [`Unit`], named by its [`Kind`] and its [`UnitId`].
//!
//! Names come from topics and requests, so they are hostile until parsed; after that a bad name cannot exist. A unit
//! is written `<kind>:<id>`, which is unambiguous because a kind has no colon.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::name::{IdFault, MAX_ID, check_id, is_class_name, text_names};

/// Why a name is refused. The text says which names are allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not `[a-z0-9_-]{1,32}`.
    #[error("a kind is 1 to 32 of the characters a-z, 0-9, _ and -")]
    Kind,
    /// Not `[a-z0-9_-]{1,32}`.
    #[error("a broker is named by 1 to 32 of the characters a-z, 0-9, _ and -")]
    Broker,
    #[error("a unit id is at least one character long")]
    EmptyId,
    /// More than [`MAX_ID`] bytes.
    #[error("a unit id is at most {MAX_ID} bytes long")]
    LongId,
    /// `/`, or a character that no topic may have.
    #[error("a unit id has no /, +, #, control characters or noncharacters of Unicode")]
    BadId,
    #[error("a unit id is neither . nor .., which have another meaning in paths")]
    DotId,
    /// No `:` (or `/` where operators write it) between kind and id.
    #[error("a unit is written kind:id")]
    NoKind,
}

impl From<IdFault> for NameError {
    fn from(fault: IdFault) -> NameError {
        match fault {
            IdFault::Empty => NameError::EmptyId,
            IdFault::Long => NameError::LongId,
            IdFault::Bad => NameError::BadId,
            IdFault::Dots => NameError::DotId,
        }
    }
}

/// The name of a class of units, `[a-z0-9_-]{1,32}`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(Arc<str>);

impl Kind {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Kind {
    type Err = NameError;
    fn from_str(name: &str) -> Result<Kind, NameError> {
        if is_class_name(name) { Ok(Kind(name.into())) } else { Err(NameError::Kind) }
    }
}

/// The id of a unit within its kind: 1–128 bytes of UTF-8 without `/ + #`, control characters and noncharacters, neither
/// `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(Box<str>);

/// The reserved unit id of probes: Rollcall publishes them on topics of the fleet to learn whether it hears these
/// topics. It stands wherever a topic names a unit or a label.
pub const PROBE: &str = "rollcall-probe";

impl UnitId {
    /// Whether it is Rollcall's own id, which no unit may have.
    pub fn is_reserved(&self) -> bool {
        *self.0 == *PROBE
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for UnitId {
    type Err = NameError;
    fn from_str(id: &str) -> Result<UnitId, NameError> {
        check_id(id)?;
        Ok(UnitId(id.into()))
    }
}

/// A monitored device.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    pub kind: Kind,
    pub id: UnitId,
}

impl Unit {
    pub fn new(kind: Kind, id: UnitId) -> Unit {
        Unit { kind, id }
    }

    /// How many bytes `<kind>:<id>` has.
    pub fn text_len(&self) -> usize {
        self.kind.0.len() + 1 + self.id.0.len()
    }

    /// Appends `<kind>:<id>` without the cost of formatting.
    pub fn write_into(&self, text: &mut String) {
        text.push_str(&self.kind.0);
        text.push(':');
        text.push_str(&self.id.0);
    }
}

impl FromStr for Unit {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Unit, NameError> {
        let (kind, id) = text.split_once(':').ok_or(NameError::NoKind)?;
        Ok(Unit::new(kind.parse()?, id.parse()?))
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind.0)?;
        f.write_str(":")?;
        f.write_str(&self.id.0)
    }
}

text_names!(Kind, UnitId);

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_to_128_bytes_without_topic_signs_or_control_characters() {
        let longest = "x".repeat(128);
        let fine = ["a", "...", ".a", "a.", "%2e", "Unit 7", "ünit:7", "{p1}", longest.as_str()];
        for id in fine {
            assert_eq!(id.parse::<UnitId>().unwrap().as_str(), id);
        }
        let too_long = "x".repeat(129);
        let accented = "é".repeat(65);
        let bad = [
            ("", NameError::EmptyId),
            (too_long.as_str(), NameError::LongId),
            (accented.as_str(), NameError::LongId),
            ("a/b", NameError::BadId),
            ("a+", NameError::BadId),
            ("#", NameError::BadId),
            ("a\r\nBcc: x", NameError::BadId),
            ("a\u{0}", NameError::BadId),
            ("a\u{85}", NameError::BadId),
            (".", NameError::DotId),
            ("..", NameError::DotId),
        ];
        for (id, why) in bad {
            assert_eq!(id.parse::<UnitId>().unwrap_err(), why, "{id:?}");
        }
    }

    #[test]
    fn a_kind_is_short_and_plain() {
        for name in ["detector", "a", "0-9_x", &"k".repeat(32)] {
            assert!(name.parse::<Kind>().is_ok(), "{name}");
        }
        for name in ["", "Detector", "a:b", "é", "a b", &"k".repeat(33)] {
            assert_eq!(name.parse::<Kind>().unwrap_err(), NameError::Kind, "{name}");
        }
    }

    #[test]
    fn a_unit_reads_back_from_its_text_even_with_colons_in_the_id() {
        let unit: Unit = "detector:a:b:c".parse().unwrap();
        assert_eq!(unit.id.as_str(), "a:b:c");
        assert_eq!(unit.to_string().parse::<Unit>().unwrap(), unit);
        assert_eq!("detector".parse::<Unit>().unwrap_err(), NameError::NoKind);
    }
}

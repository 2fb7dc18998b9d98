//! Which names and ids are allowed, for everything that has one: units and timers, kinds and classes.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};

/// The longest id of a unit or a timer, in bytes of UTF-8.
pub const MAX_ID: usize = 128;

/// Why an id is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdFault {
    Empty,
    /// More than [`MAX_ID`] bytes.
    Long,
    /// `/`, `+`, `#` or a control character.
    Bad,
    /// `.` or `..`.
    Dots,
}

/// Checks an id. It may stand in a topic, where `/ + #` have a meaning, and in a path, where `.` and `..` have one: a
/// client shortens `/units/pump/./pause` to the path of another unit, however the dot is written.
pub(super) fn check_id(id: &str) -> Result<(), IdFault> {
    if id.is_empty() {
        Err(IdFault::Empty)
    } else if id.len() > MAX_ID {
        Err(IdFault::Long)
    } else if id.bytes().any(|b| b.is_ascii_control() || matches!(b, b'/' | b'+' | b'#'))
        || !id.is_ascii() && id.chars().any(char::is_control)
    {
        Err(IdFault::Bad)
    } else if matches!(id, "." | "..") {
        Err(IdFault::Dots)
    } else {
        Ok(())
    }
}

/// Whether a kind or a class of timers may have this name, `[a-z0-9_-]{1,32}`.
pub(super) fn is_class_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    (1..=32).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Reads a value that is written as its text. There is no copy of the text: a storm reads and writes several for each
/// unit.
pub(super) fn from_text<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    struct Text<T>(PhantomData<T>);
    impl<T: FromStr<Err: Display>> Visitor<'_> for Text<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Text(PhantomData))
}

/// Names that are shown and stored as their text, and parsed wherever a text becomes one.
macro_rules! text_names {
    ($($name:ty),*) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::presence::name::from_text(deserializer)
            }
        }
    )*};
}
pub(super) use text_names;

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
    /// `/`, or a character that no topic may have.
    Bad,
    /// `.` or `..`.
    Dots,
}

/// Whether a topic may have these characters: no wildcard, no control character and none that Unicode keeps for programs
/// themselves (such as U+FFFE). A broker may end the connection that publishes or brings such a topic (MQTT 5, 1.5.4),
/// and then nothing else arrives over it either.
pub fn may_stand_in_topic(text: &str) -> bool {
    let is_bad = |c: char| c.is_control() || matches!(c, '+' | '#') || is_noncharacter(c);
    match text.is_ascii() {
        true => !text.bytes().any(|b| b.is_ascii_control() || matches!(b, b'+' | b'#')),
        false => !text.contains(is_bad),
    }
}

fn is_noncharacter(c: char) -> bool {
    matches!(u32::from(c), 0xFDD0..=0xFDEF) || u32::from(c) & 0xFFFE == 0xFFFE
}

/// Checks an id. It may stand in a topic, where `/ + #` have a meaning, and in a path, where `.` and `..` have one: a
/// client shortens `/units/pump/./pause` to the path of another unit, however the dot is written.
pub(super) fn check_id(id: &str) -> Result<(), IdFault> {
    if id.is_empty() {
        Err(IdFault::Empty)
    } else if id.len() > MAX_ID {
        Err(IdFault::Long)
    } else if id.contains('/') || !may_stand_in_topic(id) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_no_character_for_which_a_broker_ends_a_connection() {
        for good in
            ["7", "pump-7", "Pumpe süd", "水泵", "a:b", "\u{fffd}", "\u{fdcf}", "\u{fdf0}", "\u{1f600}"]
        {
            assert_eq!(check_id(good), Ok(()), "{good:?}");
        }
        for bad in [
            "a/b",
            "a+",
            "#",
            "\0",
            "\n",
            "\u{7f}",
            "\u{80}",
            "ü\u{9f}",
            "ü+",
            "a\u{fdd0}",
            "\u{fdef}",
            "\u{fffe}",
            "\u{ffff}",
            "\u{1fffe}",
            "\u{10ffff}",
        ] {
            assert_eq!(check_id(bad), Err(IdFault::Bad), "{bad:?}");
            assert_eq!(may_stand_in_topic(bad), bad == "a/b", "{bad:?}");
        }
        for (id, fault) in [("", IdFault::Empty), ("..", IdFault::Dots), (&"x".repeat(129), IdFault::Long)] {
            assert_eq!(check_id(id), Err(fault), "{id}");
        }
    }
}

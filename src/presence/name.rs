//! Which names and ids are allowed, for everything that has one: units and timers, kinds and classes.

/// The longest id of a unit or a timer, in bytes of UTF-8.
pub const LONGEST_ID: usize = 128;

/// Why an id is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdFault {
    Empty,
    /// More than [`LONGEST_ID`] bytes.
    Long,
    /// `/`, `+`, `#` or a control character.
    Bad,
}

/// Checks an id. It may stand in a topic, where `/ + #` have a meaning.
pub(super) fn check_id(id: &str) -> Result<(), IdFault> {
    if id.is_empty() {
        Err(IdFault::Empty)
    } else if id.len() > LONGEST_ID {
        Err(IdFault::Long)
    } else if id.chars().any(|c| c.is_control() || matches!(c, '/' | '+' | '#')) {
        Err(IdFault::Bad)
    } else {
        Ok(())
    }
}

/// Whether a kind or a class of timers may have this name, `[a-z0-9_-]{1,32}`.
pub(super) fn is_class_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    (1..=32).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Names that are shown as their text, and parsed wherever a text becomes one.
macro_rules! text_names {
    ($error:ty: $($name:ty),*) => {$(
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
        impl TryFrom<String> for $name {
            type Error = $error;
            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.as_str().to_owned()
            }
        }
    )*};
}
pub(super) use text_names;

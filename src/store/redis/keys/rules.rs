//! The sorts of keys: their types and contents.

use crate::telemetry::Stored;

/// The keys of one name.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyRule {
    pub name: &'static str,
    pub redis_type: &'static str,
    pub what: Stored,
    /// The place of the keys; `None`: there are keys in both places.
    pub place: Option<KeyPlace>,
    /// Whether a unit, a page, a receiver or a group follows the name.
    pub has_owner: bool,
}

/// The place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// Hearing, and everything else of the fleet as a whole.
    Hearing,
    Partition,
}

impl KeyRule {
    pub fn is_at(&self, place: KeyPlace) -> bool {
        self.place.is_none_or(|own| own == place)
    }
}

const fn sort(belongs_to: &str, name: &'static str, redis_type: &'static str, what: Stored) -> KeyRule {
    let belongs_to = belongs_to.as_bytes();
    let place = match belongs_to[0] {
        b'h' => Some(KeyPlace::Hearing),
        b'p' => Some(KeyPlace::Partition),
        _ => None,
    };
    KeyRule { name, redis_type, what, place, has_owner: belongs_to.len() == 2 }
}

/// All sorts of keys: `h` belongs to hearing, `p` to a partition, `*` to both, `+` has an owner.
pub const KEY_RULES: &[KeyRule] = &[
    sort("p", "meta", "hash", Stored::Other),
    sort("h", "heard", "hash", Stored::Hearing),
    sort("h", "members", "hash", Stored::Hearing),
    sort("h", "floors", "hash", Stored::Hearing),
    sort("h", "plain", "hash", Stored::Hearing),
    sort("h+", "session", "string", Stored::Hearing),
    sort("h", "blind", "zset", Stored::Hearing),
    sort("h+", "blind", "zset", Stored::Hearing),
    sort("h", "filters", "hash", Stored::Hearing),
    sort("h", "roster", "zset", Stored::Roster),
    sort("h", "clock", "hash", Stored::Roster),
    sort("p", "heard", "string", Stored::Hearing),
    sort("p", "replicated", "string", Stored::Other),
    sort("p+", "alive", "string", Stored::ExpiryKey),
    sort("p", "deadlines", "zset", Stored::Deadlines),
    sort("p+", "facts", "hash", Stored::Facts),
    sort("p", "data", "set", Stored::Value),
    sort("p+", "data", "hash", Stored::Value),
    sort("p", "offline", "zset", Stored::Record),
    sort("p", "past", "zset", Stored::Record),
    sort("p", "closed", "zset", Stored::Record),
    sort("p", "archive", "hash", Stored::Record),
    sort("*", "outbox", "stream", Stored::Outbox),
    sort("*+", "cells", "hash", Stored::Other),
    sort("*+", "index", "zset", Stored::Other),
];

//! Quarantined values, for `rollcall repair`.

use async_trait::async_trait;

use super::Result;
use crate::telemetry::Stored;

/// The most characters of a value that are shown.
pub(super) const SHOWN: usize = 80;

/// A quarantined value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    pub what: Stored,
    /// Where the value was: a key, or a table, and its member or row there.
    pub location: String,
    /// The begin of the value.
    pub held: String,
    pub id: QuarantinedId,
}

/// Where an engine keeps a quarantined value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuarantinedId {
    /// The id of a row.
    Row(i64),
    /// A field of a hash of quarantined values.
    Field { hash: String, field: Vec<u8> },
    /// An entry of a stream of quarantined entries.
    Entry {
        stream: String,
        /// The id of the entry in that stream.
        id: String,
        /// The outbox from which the entry was moved.
        outbox: String,
    },
}

/// Lists, restores and deletes quarantined values. Instances may serve the fleet meanwhile.
#[async_trait]
pub trait Repair: Send + Sync {
    async fn quarantined(&self) -> Result<Vec<Quarantined>>;

    /// Restores a value if it is readable now and its place is free. Answers whether it was restored.
    async fn restore(&self, quarantined: &Quarantined) -> Result<bool>;

    async fn discard(&self, quarantined: &Quarantined) -> Result<()>;
}

/// A value for display: without control characters, and cut after [`SHOWN`] characters.
pub(super) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN)]);
    text.chars().take(SHOWN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

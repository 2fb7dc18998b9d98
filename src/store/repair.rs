//! What was put aside because it could not be read, for the command that looks at it.

use async_trait::async_trait;

use super::Result;
use crate::telemetry::Stored;

/// The most characters of a value that are shown.
pub(super) const SHOWN: usize = 80;

/// Something that was put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// What it was.
    pub what: Stored,
    /// Where it was: a key or a table, and what finds it there.
    pub place: String,
    /// The beginning of what it held.
    pub held: String,
    /// How the engine finds it again.
    pub id: AsideId,
}

/// How an engine finds what it put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AsideId {
    /// A row of a table.
    Row(i64),
    /// A field of a hash of what was put aside.
    Field {
        /// The hash.
        hash: String,
        /// The field.
        field: Vec<u8>,
    },
    /// An entry of an outbox.
    Entry {
        /// The stream of what was put aside.
        stream: String,
        /// The id of the entry there.
        id: String,
        /// The outbox that it was in.
        outbox: String,
    },
}

/// What can be done about what was put aside. The fleet may be served meanwhile.
#[async_trait]
pub trait Repair: Send + Sync {
    /// All of it.
    async fn aside(&self) -> Result<Vec<Aside>>;

    /// Puts it back, if it can be read now and nothing else took its place. Whether it did.
    async fn restore(&self, aside: &Aside) -> Result<bool>;

    /// Deletes it for good.
    async fn discard(&self, aside: &Aside) -> Result<()>;
}

/// Text as it is shown: without control characters, and not too long.
pub(super) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN)]);
    text.chars().take(SHOWN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

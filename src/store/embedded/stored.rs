//! Reads stored columns and rows.

use std::borrow::Cow;

use rusqlite::Row;
use rusqlite::types::ValueRef;

use super::row::ExpiryKey;
use crate::presence::{Snapshot, Unit};
use crate::store::encoding;

/// A stored text; a value of another type becomes a text that no parser accepts.
pub(super) fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<Cow<'a, str>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text),
        other => Cow::Owned(format!("{other:?}")),
    })
}

/// A unit from memory and disk. The two may be from different moments, which is harmless: a change holds only for a
/// unit in exactly this state. Unreadable facts stay in their stored form: see [`Snapshot::is_unreadable`].
pub(super) fn snapshot(unit: Unit, (alive, alive_at): ExpiryKey, stored: Option<&str>) -> Snapshot {
    let facts = stored.and_then(encoding::decode);
    Snapshot { unit, alive: alive.get(), alive_at, facts, stored: stored.map(Into::into) }
}

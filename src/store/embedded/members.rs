//! What a group knows of its silences: which wait for a notification, and which last.

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use crate::presence::{OfflineRecord, RecordId, Stage};
use crate::store::Result;
use crate::store::member_names::{names_of, of_member};

/// See [`AlertStore::waits`](crate::store::AlertStore::waits).
pub(super) async fn waits(engine: &EmbeddedEngine, group: &str, record: &OfflineRecord) -> Result<bool> {
    let (group, [name, again]) = (group.to_owned(), names_of(record));
    let waits = move |database: &Connection| {
        let mut select = database.prepare_cached(
            "SELECT 1 FROM members WHERE grp = (SELECT id FROM groups WHERE key = ?) AND member IN (?, ?) \
             AND letter = ?",
        )?;
        Ok(select.exists(params![group, name, again, Stage::Waits.letter().to_string()])?)
    };
    engine.readers.read(waits).await
}

/// See [`AlertStore::lasting`](crate::store::AlertStore::lasting).
pub(super) async fn lasting(engine: &EmbeddedEngine, group: &str) -> Result<Vec<RecordId>> {
    let group = group.to_owned();
    let lasting = move |database: &Connection| {
        let mut select = database.prepare_cached(
            "SELECT CAST(member AS TEXT) FROM lasting WHERE grp = (SELECT id FROM groups WHERE key = ?)",
        )?;
        let names = select.query_map([group], |row| row.get::<_, String>(0))?;
        let names = names.collect::<rusqlite::Result<Vec<String>>>()?;
        Ok(names.iter().filter_map(|name| Some(of_member(name)?.1)).collect())
    };
    engine.readers.read(lasting).await
}

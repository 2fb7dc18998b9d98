//! The lanes of receivers: the notifications of a group that wait for each, in order.

use rusqlite::{Connection, params};

use crate::clock::Timestamp;

/// Puts a notification at the end of the group's lane for each of these receivers.
pub(super) fn enqueue<'a>(
    database: &Connection,
    (partition, key): (u16, &str),
    (id, body): (&str, String),
    receivers: impl Iterator<Item = &'a String> + Clone,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let insert = "INSERT OR REPLACE INTO notifications VALUES(?, ?, ?)";
    database.prepare_cached(insert)?.execute(params![id, body, receivers.clone().count() as i64])?;
    for receiver in receivers {
        database
            .prepare_cached("INSERT INTO lanes(receiver, grp, notification) VALUES(?, ?, ?)")?
            .execute(params![receiver, key, id])?;
        database.prepare_cached("INSERT OR IGNORE INTO queue VALUES(?, ?, ?, ?)")?.execute(params![
            receiver,
            key,
            partition,
            now.as_millis()
        ])?;
    }
    Ok(())
}

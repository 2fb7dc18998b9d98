//! The backlogs of receivers, configured or not, and how they are discarded.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::database::{self, open_to_read};
use super::error::DatabaseResult;
use super::finish::Ending;
use crate::clock::Timestamp;
use crate::store::notification::{Notification, discarded};
use crate::store::{Backlog, Delivery, Discarded, Result};

/// The most notifications, or dead letters, that one step discards.
const STEP: i64 = 100;

pub(super) fn backlogs(database: &Connection) -> DatabaseResult<Vec<(String, Backlog)>> {
    let count = |table: &str| -> DatabaseResult<Vec<(String, i64)>> {
        let mut select =
            database.prepare(&format!("SELECT receiver, count(*) FROM {table} GROUP BY receiver"))?;
        let counts = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(counts.collect::<rusqlite::Result<_>>()?)
    };
    let mut kept: BTreeMap<String, Backlog> = BTreeMap::new();
    for (name, waiting) in count("queue")? {
        kept.entry(name).or_default().waiting = waiting as u64;
    }
    for (name, dead) in count("dead_letters")? {
        kept.entry(name).or_default().dead = dead as u64;
    }
    Ok(kept.into_iter().collect())
}

/// One step of discarding: some dead letters or, if there are none, some waiting deliveries, which become dead letters.
pub(super) async fn discard(engine: &EmbeddedEngine, receiver: &str, now: Timestamp) -> Result<Discarded> {
    let removed = discard_letters(engine, receiver).await?;
    if removed > 0 {
        return Ok(Discarded { ended: 0, removed });
    }
    let waiting = some_waiting(engine, receiver).await?;
    let ended = waiting.len();
    let endings = waiting.into_iter().map(|delivery| Ending::given_up(&discarded(delivery, now)));
    engine.finish(endings.collect::<Result<_>>()?, now).await?;
    Ok(Discarded { ended, removed: 0 })
}

/// The first waiting deliveries, in the order of delivery; an unreadable one has no transitions.
async fn some_waiting(engine: &EmbeddedEngine, receiver: &str) -> Result<Vec<Delivery>> {
    let name = receiver.to_owned();
    let read = move |database: &Connection| {
        let mut select = database.prepare_cached(
            "SELECT grp, notification, CAST(body AS BLOB) FROM lanes LEFT JOIN notifications ON notifications.id = \
             notification \
             WHERE receiver = ? ORDER BY lanes.id LIMIT ?",
        )?;
        let rows =
            select.query_map(params![name, STEP], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        Ok(rows.collect::<rusqlite::Result<Vec<(String, String, Option<Vec<u8>>)>>>()?)
    };
    let rows = engine.readers.read(read).await?;
    let deliveries = rows.into_iter().map(|(group, id, body)| {
        let notification = body.and_then(|body| Notification::read(&group, &body).notification);
        Delivery::of(notification, &group, &format!("{id}.{receiver}"), receiver)
    });
    Ok(deliveries.collect())
}

async fn discard_letters(engine: &EmbeddedEngine, receiver: &str) -> Result<usize> {
    let name = receiver.to_owned();
    let write = move |database: &Connection| {
        let mut delete = database.prepare_cached(
            "DELETE FROM dead_letters WHERE rowid IN (SELECT rowid FROM dead_letters WHERE receiver = ? LIMIT ?)",
        )?;
        Ok(delete.execute(params![name, STEP])?)
    };
    engine.writer.write("discard", write).await
}

/// The backlog of each receiver in the directory of a fleet, if there is one; a service may be using it.
///
/// # Errors
/// `Damaged` or `Refused` if the directory holds no readable fleet.
pub fn backlogs_in(path: &Path) -> Result<Vec<(String, Backlog)>> {
    if database::partitions(path)?.is_none() {
        return Ok(Vec::new());
    }
    open_to_read(path).and_then(|database| backlogs(&database)).map_err(|error| error.explain(path))
}

//! What is kept for receivers, configured or not, and how it is discarded.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::database::{self, open_to_read};
use super::error::DatabaseResult;
use super::finish::Ending;
use crate::clock::Timestamp;
use crate::store::{Backlog, Delivery, Discarded, Result};
use crate::store::{notification::Notification, notification::discarded};

/// How many notifications, and how many dead letters, one step discards.
const STEP: i64 = 100;

/// What is kept for each receiver.
pub(super) fn kept(database: &Connection) -> DatabaseResult<Vec<(String, Backlog)>> {
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
    for (name, dead) in count("letters")? {
        kept.entry(name).or_default().dead = dead as u64;
    }
    Ok(kept.into_iter().collect())
}

/// One step of discarding: some dead letters or, if there are none, some of what waits, which become dead letters.
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

/// The first of what waits, in the order in which it is told; one that cannot be read says nothing.
async fn some_waiting(engine: &EmbeddedEngine, receiver: &str) -> Result<Vec<Delivery>> {
    let name = receiver.to_owned();
    let look = move |database: &Connection| {
        let mut select = database.prepare_cached(
            "SELECT grp, notification, CAST(body AS BLOB) FROM lanes LEFT JOIN notifications ON notifications.id = notification \
             WHERE receiver = ? ORDER BY lanes.id LIMIT ?",
        )?;
        let rows =
            select.query_map(params![name, STEP], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        Ok(rows.collect::<rusqlite::Result<Vec<(String, String, Option<Vec<u8>>)>>>()?)
    };
    let rows = engine.readers.read(look).await?;
    let deliveries = rows.into_iter().map(|(group, id, body)| {
        let told = body.and_then(|body| Notification::read(&group, &body).told);
        Delivery::of(told, &group, &format!("{id}.{receiver}"), receiver)
    });
    Ok(deliveries.collect())
}

async fn discard_letters(engine: &EmbeddedEngine, receiver: &str) -> Result<usize> {
    let name = receiver.to_owned();
    let write = move |database: &Connection| {
        let mut delete = database.prepare_cached(
            "DELETE FROM letters WHERE rowid IN (SELECT rowid FROM letters WHERE receiver = ? LIMIT ?)",
        )?;
        Ok(delete.execute(params![name, STEP])?)
    };
    engine.writer.write("discard", write).await
}

/// What is kept for each receiver in the directory of a fleet, if there is one; it may be in use.
///
/// # Errors
/// `Damaged` or `Refused` if what is there is no fleet that can be read.
pub fn kept_in(path: &Path) -> Result<Vec<(String, Backlog)>> {
    if database::partitions(path)?.is_none() {
        return Ok(Vec::new());
    }
    open_to_read(path).and_then(|database| kept(&database)).map_err(|fault| fault.explain(path))
}

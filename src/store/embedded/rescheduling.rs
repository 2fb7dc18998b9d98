//! Groups that are looked at sooner than was planned, because their routes have changed: see the same file of Redis.

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::reminders::look_after;
use crate::clock::Timestamp;
use crate::routing::is_flapping;
use crate::store::json::to_json;
use crate::store::{Destinations, Result};

/// See [`GroupStore::reschedule`](crate::store::GroupStore::reschedule).
pub(super) async fn reschedule(
    engine: &EmbeddedEngine,
    partitions: &[u16],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<()> {
    let (partitions, destinations) = (to_json(&partitions)?, destinations.clone());
    let write = move |database: &Connection| {
        bring_forward(database, &partitions, &destinations, now)?;
        add_missing(database, &partitions, &destinations, now)
    };
    engine.writer.write("reschedule", write).await
}

/// Looks now at the groups whose next moment is later than the routes of now would have set it.
fn bring_forward(
    database: &Connection,
    partitions: &str,
    destinations: &Destinations,
    now: Timestamp,
) -> DatabaseResult<()> {
    let mut select = database.prepare_cached(
        "SELECT grp, key, reminders.due FROM reminders JOIN groups ON groups.id = grp \
         WHERE reminders.due > ? AND partition IN (SELECT value FROM json_each(?))",
    )?;
    let rows = select.query_map(params![now.as_millis(), partitions], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, Timestamp::from_millis(row.get(2)?)))
    })?;
    for row in rows.collect::<rusqlite::Result<Vec<_>>>()? {
        let (group, key, due) = row;
        if destinations.of(&key).again.first().is_some_and(|first| now + first < due) {
            look_after(database, group, now)?;
        }
    }
    Ok(())
}

/// Adds members that were kept without their records, because their routes neither reminded nor escalated.
fn add_missing(
    database: &Connection,
    partitions: &str,
    destinations: &Destinations,
    now: Timestamp,
) -> DatabaseResult<()> {
    let mut select = database.prepare_cached(
        "SELECT grp, key, CAST(members.member AS TEXT) FROM members JOIN groups ON groups.id = grp \
         WHERE letter >= 't' AND letter < 'u' AND members.body IS NULL \
         AND partition IN (SELECT value FROM json_each(?))",
    )?;
    let rows = select.query_map([partitions], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
    })?;
    for row in rows.collect::<rusqlite::Result<Vec<_>>>()? {
        let (group, key, member) = row;
        if !is_flapping(&key) && destinations.of(&key).again.first().is_some() {
            database.prepare_cached("INSERT OR IGNORE INTO lasting VALUES(?, ?, ?)")?.execute(params![
                group,
                member,
                now.as_millis()
            ])?;
            look_after(database, group, now)?;
        }
    }
    Ok(())
}

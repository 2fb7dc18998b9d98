//! Waiting notifications of a failing receiver also go to its fallback: see `store/redis/fallback.rs`.

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use crate::clock::Timestamp;
use crate::store::again::ToFallback;
use crate::store::json::to_json;
use crate::store::notification::{GroupMember, Notification};
use crate::store::{Delivery, Result, partition_of_group};

/// How many notifications one step copies.
const STEP: i64 = 100;

pub(super) async fn down_since(engine: &EmbeddedEngine, receiver: &str, now: Timestamp) -> Result<Timestamp> {
    let name = receiver.to_owned();
    let write = move |database: &Connection| {
        let insert = "INSERT OR IGNORE INTO down(receiver, since) VALUES(?, ?)";
        database.prepare_cached(insert)?.execute(params![name, now.as_millis()])?;
        let select = "SELECT since FROM down WHERE receiver = ?";
        let since: i64 = database.prepare_cached(select)?.query_row([&name], |row| row.get(0))?;
        Ok(Timestamp::from_millis(since))
    };
    engine.writer.write("down", write).await
}

pub(super) async fn is_up(engine: &EmbeddedEngine, receiver: &str) -> Result<()> {
    let name = receiver.to_owned();
    let write = move |database: &Connection| {
        database.prepare_cached("DELETE FROM down WHERE receiver = ?")?.execute([&name])?;
        Ok(())
    };
    engine.writer.write("down", write).await
}

pub(super) async fn fall_back(
    engine: &EmbeddedEngine,
    partitions: &[u16],
    fallback: &ToFallback<'_>,
    now: Timestamp,
) -> Result<usize> {
    let (mut queued, mut after) = (0, 0);
    engine.writer.write("fall_back", forget_marks).await?;
    loop {
        let (meant_for, to) = (fallback.meant_for.clone(), fallback.to.to_owned());
        let (destinations, wanted) = (fallback.destinations.clone(), partitions.to_vec());
        let all = engine.memory.partitions();
        let write = move |database: &Connection| {
            let fallback = ToFallback { meant_for: &meant_for, to: &to, destinations: &destinations };
            copy(database, &fallback, after, (&wanted, all), now)
        };
        let (last, copied) = engine.writer.write("fall_back", write).await?;
        queued += copied;
        match last {
            Some(last) => after = last,
            None => return Ok(queued),
        }
    }
}

/// Removes the marks of groups that wait no more.
fn forget_marks(database: &Connection) -> DatabaseResult<()> {
    database
        .prepare_cached("DELETE FROM fallback_done WHERE lane NOT IN (SELECT id FROM lanes)")?
        .execute([])?;
    Ok(())
}

/// One step, after that entry of a lane. Answers the last entry, if there may be more, and how many were queued.
fn copy(
    database: &Connection,
    fallback: &ToFallback<'_>,
    after: i64,
    (wanted, partitions): (&[u16], u16),
    now: Timestamp,
) -> DatabaseResult<(Option<i64>, usize)> {
    let ToFallback { meant_for, to, .. } = *fallback;
    let receiver = &meant_for.receiver;
    let mut select = database.prepare_cached(
        "SELECT lanes.id, grp, notification, CAST(body AS BLOB) FROM lanes \
         LEFT JOIN notifications ON notifications.id = notification \
         WHERE receiver = ? AND lanes.id > ? AND lanes.id NOT IN (SELECT lane FROM fallback_done) ORDER BY lanes.id LIMIT ?",
    )?;
    type Row = (i64, String, String, Option<Vec<u8>>);
    let rows = select.query_map(params![receiver, after, STEP], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let rows = rows.collect::<rusqlite::Result<Vec<Row>>>()?;
    let mut copied = 0;
    for (lane, group, id, body) in &rows {
        let partition = partition_of_group(group, partitions);
        if !wanted.contains(&partition) {
            continue;
        }
        database.prepare_cached("INSERT OR IGNORE INTO fallback_done(lane) VALUES(?)")?.execute([lane])?;
        // One that cannot be read is left out, as for its receiver.
        let notification = body.as_ref().and_then(|body| Notification::read(group, body).notification);
        let Some(notification) = notification.and_then(|one| one.part_of_fallback(fallback, group)) else {
            continue;
        };
        let delivery = Delivery::of(Some(notification), group, &format!("{id}.{receiver}"), receiver);
        // Also if the fallback has it already: a silence that joined again does not know that.
        for GroupMember { id, detected_at, .. } in delivery.offline.iter().map(GroupMember::of_record) {
            add_receiver(database, (group, &id), detected_at.as_millis(), to)?;
        }
        let copy = Notification::for_fallback(&delivery, to, meant_for.since);
        copied += usize::from(queue_copy(database, (to, group, partition), copy, now)?);
    }
    let last = rows.last().filter(|_| rows.len() as i64 == STEP).map(|row| row.0);
    Ok((last, copied))
}

/// Answers whether the copy is a new one.
fn queue_copy(
    database: &Connection,
    (to, group, partition): (&str, &str, u16),
    (id, notification): (String, Notification),
    now: Timestamp,
) -> DatabaseResult<bool> {
    let insert = "INSERT OR IGNORE INTO notifications(id, body, owed) VALUES(?, ?, 1)";
    if database.prepare_cached(insert)?.execute(params![id, to_json(&notification)?])? == 0 {
        return Ok(false);
    }
    database
        .prepare_cached("INSERT INTO lanes(receiver, grp, notification) VALUES(?, ?, ?)")?
        .execute(params![to, group, id])?;
    database
        .prepare_cached("INSERT OR IGNORE INTO queue(receiver, grp, partition, at) VALUES(?, ?, ?, ?)")?
        .execute(params![to, group, partition, now.as_millis()])?;
    Ok(true)
}

/// Adds the fallback to the receivers that were notified of a silence, unless its return was sealed already.
fn add_receiver(
    database: &Connection,
    (group, member): (&str, &str),
    detected: i64,
    to: &str,
) -> rusqlite::Result<()> {
    let update = "UPDATE members SET letter = letter || iif(substr(letter, -1) = ':', '', ',') || ?1 \
                  WHERE grp = (SELECT id FROM groups WHERE key = ?2) AND member IN (?3, ?3 || ' ' || ?4) \
                  AND detected = ?4 AND (letter GLOB 't:*' OR letter GLOB 'b:*') \
                  AND instr(',' || substr(letter, 3) || ',', ',' || ?1 || ',') = 0";
    database.prepare_cached(update)?.execute(params![to, group, member, detected])?;
    Ok(())
}

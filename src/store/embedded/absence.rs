//! Receivers that were not configured for a while, and the deliveries that wait for them from before: as in
//! `store/redis/absence.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use crate::clock::Timestamp;
use crate::presence::Hearing;
use crate::store::notification::Notification;
use crate::store::unnotified::{LeftOut, Unnotified, UnnotifiedSilence, blindness_in, left_out, silence_in};
use crate::store::{Delivery, HearingStore, Result};
use crate::store::{json::from_json, json::to_json};

/// How many notifications one step examines.
const STEP: i64 = 100;

/// Enters the configured receivers. Other receivers that were configured, or that have deliveries or dead letters, are
/// absent from now on.
pub(super) async fn register_receivers(
    engine: &EmbeddedEngine,
    names: &[String],
    now: Timestamp,
) -> Result<()> {
    let names = to_json(&names)?;
    let write = move |database: &Connection| {
        // An absent receiver stays so until its deliveries are brought up to date.
        database.execute(
            "INSERT OR IGNORE INTO receivers(name) SELECT value FROM json_each(?) \
             UNION SELECT receiver FROM queue UNION SELECT receiver FROM dead_letters",
            [&names],
        )?;
        database.execute(
            "UPDATE receivers SET absent = ? WHERE absent IS NULL AND name NOT IN (SELECT value FROM json_each(?))",
            params![now.as_millis(), names],
        )?;
        Ok(())
    };
    engine.writer.write("enlist", write).await
}

/// Examines the deliveries that wait for a receiver that was absent. Answers how many silences are left out.
pub(super) async fn bring_up_to_date(engine: &EmbeddedEngine, receiver: &str, _: Timestamp) -> Result<usize> {
    let name = receiver.to_owned();
    let is_absent = move |database: &Connection| {
        let mut select = database.prepare("SELECT 1 FROM receivers WHERE name = ? AND absent IS NOT NULL")?;
        Ok(select.exists([&name])?)
    };
    if !engine.readers.read(is_absent).await? {
        return Ok(0);
    }
    let hearing = Arc::new(engine.hearing().await?);
    let (mut past, mut after) = (0, 0);
    loop {
        let (name, hearing) = (receiver.to_owned(), hearing.clone());
        let step = move |database: &Connection| mark(database, &name, &hearing, after);
        let (marked, last) = engine.writer.write("absent", step).await?;
        past += marked;
        let Some(last) = last else { break };
        after = last;
    }
    let name = receiver.to_owned();
    let enter = move |database: &Connection| {
        database.execute("UPDATE receivers SET absent = NULL WHERE name = ?", [&name])?;
        Ok(())
    };
    engine.writer.write("absent", enter).await?;
    Ok(past)
}

/// Marks the silences that are over in some notifications, those after `after` in the order of lanes. Answers how many
/// silences those are, and the last lane id; `None`: there are no more.
fn mark(
    database: &Connection,
    receiver: &str,
    hearing: &Hearing,
    after: i64,
) -> DatabaseResult<(usize, Option<i64>)> {
    let waiting: Vec<(i64, Option<String>)> = database
        .prepare_cached(
            "SELECT lanes.id, body FROM lanes LEFT JOIN notifications ON notifications.id = notification \
             WHERE receiver = ? AND lanes.id > ? ORDER BY lanes.id LIMIT ?",
        )?
        .query_map(params![receiver, after, STEP], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut past = Vec::new();
    for body in waiting.iter().filter_map(|(_, body)| body.as_ref()) {
        // An unreadable notification is reported when it is leased.
        let Ok(notification) = from_json::<Notification>("a notification", body) else { continue };
        past.extend(notification.over(hearing).map(|interval| blindness_in(&notification.group, interval)));
        // The receiver may have been notified of the silences of a reminder before.
        let silences = notification.offline.iter().filter(|one| !notification.reminder && !one.is_flapping());
        for record in silences {
            let mut open = database
                .prepare_cached("SELECT 1 FROM records WHERE id = ? AND closed IS NULL AND detected = ?")?;
            if !open.exists(params![record.id.to_string(), record.detected_at.as_millis()])? {
                past.push(silence_in(&notification.group, record));
            }
        }
    }
    for name in &past {
        database.prepare_cached("INSERT OR REPLACE INTO unnotified VALUES(?, ?, ?)")?.execute([
            receiver,
            name,
            Unnotified::PAST,
        ])?;
    }
    Ok((past.len(), waiting.last().map(|(lane_id, _)| *lane_id)))
}

/// The silences of these deliveries of which the receiver was not notified before, by name.
async fn unnotified(
    engine: &EmbeddedEngine,
    receiver: &str,
    deliveries: &[Delivery],
) -> Result<HashMap<String, Unnotified>> {
    let names = |delivery: &Delivery| {
        let records = delivery.offline.iter().chain(&delivery.online);
        let records: Vec<String> = records.map(|record| silence_in(&delivery.group, record)).collect();
        let blind = delivery.blind.iter().map(|interval| blindness_in(&delivery.group, interval));
        records.into_iter().chain(blind).collect::<Vec<String>>()
    };
    let names: Vec<String> = deliveries.iter().flat_map(names).collect();
    if names.is_empty() {
        return Ok(HashMap::new());
    }
    let receiver = receiver.to_owned();
    let read = move |database: &Connection| {
        let mut any = database.prepare_cached("SELECT 1 FROM unnotified WHERE receiver = ? LIMIT 1")?;
        let mut select =
            database.prepare_cached("SELECT letter FROM unnotified WHERE receiver = ? AND silence = ?")?;
        let mut known = HashMap::new();
        if !any.exists([&receiver])? {
            return Ok(known);
        }
        for name in &names {
            let mark = select.query_row([&receiver, name], |row| row.get::<_, String>(0)).optional()?;
            known.extend(mark.map(|mark| (name.clone(), Unnotified::of(mark))));
        }
        Ok(known)
    };
    engine.readers.read(read).await
}

pub(super) async fn leave_out(
    engine: &EmbeddedEngine,
    receiver: &str,
    deliveries: Vec<Delivery>,
) -> Result<LeftOut> {
    let unnotified = unnotified(engine, receiver, &deliveries).await?;
    let left = left_out(deliveries, unnotified);
    forget(engine, receiver, &left.notified).await?;
    Ok(left)
}

/// Forgets that the receiver was not notified of these silences.
pub(super) async fn forget(
    engine: &EmbeddedEngine,
    receiver: &str,
    silences: &[UnnotifiedSilence],
) -> Result<()> {
    if silences.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = silences.iter().map(|silence| silence.name.clone()).collect();
    let receiver = receiver.to_owned();
    let write = move |database: &Connection| {
        let delete = "DELETE FROM unnotified WHERE receiver = ? AND silence = ?";
        for name in &names {
            database.prepare_cached(delete)?.execute([&receiver, name])?;
        }
        Ok(())
    };
    engine.writer.write("unnotified", write).await
}

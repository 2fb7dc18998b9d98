//! Deliveries as operators see them: waiting notifications and dead letters.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::stored::text;
use super::timer_rows::write_receipt;
use crate::clock::Timestamp;
use crate::presence::Receipt;
use crate::store::notification::Notification;
use crate::store::{
    DeadLetter, Delivery, ListOrder, Result, Waiting, WaitingPage, firing_of, partition_of_group,
};
use crate::store::{json::from_json, json::to_json};
use crate::telemetry::Stored;

/// How many waiting notifications a page has.
const PAGE: i64 = 200;

pub(super) async fn dead_letters_between(
    engine: &EmbeddedEngine,
    receiver: &str,
    (from, until): (Timestamp, Timestamp),
    limit: usize,
    order: ListOrder,
) -> Result<Vec<DeadLetter>> {
    let name = receiver.to_owned();
    let first = move |database: &Connection| {
        let order = match order {
            ListOrder::NewestFirst => "at DESC, id",
            ListOrder::OldestFirst => "at, id",
        };
        let mut select = database.prepare_cached(&format!(
            "SELECT id, letter FROM dead_letters WHERE receiver = ? AND at >= ? AND at <= ? ORDER BY {order} LIMIT ?"
        ))?;
        let with = params![name, from.as_millis(), until.as_millis(), limit as i64];
        let letters = select.query_map(with, id_and_letter)?;
        Ok(letters.collect::<rusqlite::Result<Vec<_>>>()?)
    };
    let letters = engine.readers.read(first).await?;
    Ok(letters.into_iter().filter_map(|(id, letter)| engine.read_letter(receiver, &id, &letter)).collect())
}

pub(super) async fn letter(
    engine: &EmbeddedEngine,
    receiver: &str,
    notification: &str,
) -> Result<Option<DeadLetter>> {
    let (name, id) = (receiver.to_owned(), notification.to_owned());
    let read = move |database: &Connection| {
        let mut select =
            database.prepare_cached("SELECT id, letter FROM dead_letters WHERE receiver = ? AND id = ?")?;
        Ok(select.query_row([name, id], id_and_letter).optional()?)
    };
    let letter = engine.readers.read(read).await?;
    Ok(letter.and_then(|(id, letter)| engine.read_letter(receiver, &id, &letter)))
}

fn id_and_letter(row: &Row<'_>) -> rusqlite::Result<(String, String)> {
    Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned()))
}

pub(super) async fn purge(engine: &EmbeddedEngine, letters: &[DeadLetter]) -> Result<usize> {
    let name = |delivery: &Delivery| (delivery.receiver.clone(), delivery.notification().to_owned());
    let names: Vec<(String, String)> = letters.iter().map(|letter| name(&letter.delivery)).collect();
    let write = move |database: &Connection| {
        let mut removed = 0;
        for (receiver, id) in &names {
            let delete = "DELETE FROM dead_letters WHERE receiver = ? AND id = ?";
            removed += database.prepare_cached(delete)?.execute([receiver, id])?;
        }
        Ok(removed)
    };
    engine.writer.write("purge", write).await
}

pub(super) async fn waiting(
    engine: &EmbeddedEngine,
    receiver: &str,
    after: Option<&str>,
) -> Result<WaitingPage> {
    type Read = (i64, String, String, u32, Option<i64>, Option<Vec<u8>>);
    let (name, after) = (receiver.to_owned(), after.and_then(|after| after.parse().ok()).unwrap_or(0_i64));
    let read = move |database: &Connection| {
        let mut select = database.prepare_cached(
            "SELECT lanes.id, grp, notification, attempts, \
             CASE WHEN EXISTS (SELECT 1 FROM lanes AS earlier WHERE earlier.receiver = lanes.receiver \
             AND earlier.grp = lanes.grp AND earlier.id < lanes.id) THEN NULL ELSE queue.at END, CAST(body AS BLOB) \
             FROM lanes LEFT JOIN notifications ON notifications.id = notification \
             LEFT JOIN queue USING (receiver, grp) WHERE receiver = ? AND lanes.id > ? ORDER BY lanes.id LIMIT ?",
        )?;
        let rows = select.query_map(params![name, after, PAGE], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        })?;
        Ok(rows.collect::<rusqlite::Result<Vec<Read>>>()?)
    };
    let rows = engine.readers.read(read).await?;
    let next = rows.last().filter(|_| rows.len() as i64 == PAGE).map(|row| row.0.to_string());
    let waiting = rows.into_iter().map(|(_, group, id, attempt, at, body)| {
        let notification = body.and_then(|body| Notification::read(&group, &body).notification);
        let delivery = Delivery::of(notification, &group, &format!("{id}.{receiver}"), receiver);
        let until = engine.delivery_leases.until(receiver, &group).unwrap_or(Timestamp::ZERO);
        let next = at.map(|at| Timestamp::from_millis(at).max(until));
        Waiting { delivery: Delivery { attempt, ..delivery }, next }
    });
    Ok(WaitingPage { waiting: waiting.collect(), next })
}

pub(super) async fn have_waiting(
    engine: &EmbeddedEngine,
    receiver: &str,
    groups: &[String],
) -> Result<Vec<bool>> {
    let (receiver, groups) = (receiver.to_owned(), groups.to_vec());
    let read = move |database: &Connection| {
        let select = "SELECT EXISTS (SELECT 1 FROM lanes WHERE receiver = ? AND grp = ?)";
        let mut select = database.prepare_cached(select)?;
        groups.iter().map(|group| Ok(select.query_row([&receiver, group], |row| row.get(0))?)).collect()
    };
    engine.readers.read(read).await
}

pub(super) async fn replay_all(
    engine: &EmbeddedEngine,
    deliveries: &[Delivery],
    now: Timestamp,
) -> Result<Vec<bool>> {
    let again = deliveries.iter().map(|delivery| {
        let partition = partition_of_group(&delivery.group.key, engine.memory.partitions());
        Ok((partition, to_json(&Notification::again(delivery))?, delivery.clone()))
    });
    let again = again.collect::<Result<Vec<_>>>()?;
    let write = move |database: &Connection| {
        let queued =
            again.iter().map(|(partition, body, one)| queue_again(database, *partition, one, body, now));
        queued.collect()
    };
    engine.writer.write("replay", write).await
}

/// Answers whether it is queued; if not, it waits already.
fn queue_again(
    database: &Connection,
    partition: u16,
    delivery: &Delivery,
    body: &str,
    now: Timestamp,
) -> DatabaseResult<bool> {
    let (receiver, group, id) = (&delivery.receiver, &delivery.group.key, delivery.notification());
    let select = "SELECT EXISTS (SELECT 1 FROM lanes WHERE receiver = ? AND grp = ? AND notification = ?)";
    if database.prepare_cached(select)?.query_row(params![receiver, group, id], |row| row.get(0))? {
        return Ok(false);
    }
    database
        .prepare_cached("INSERT INTO lanes(receiver, grp, notification) VALUES(?, ?, ?)")?
        .execute(params![receiver, group, id])?;
    database
        .prepare_cached("INSERT OR IGNORE INTO queue(receiver, grp, partition, at) VALUES(?, ?, ?, ?)")?
        .execute(params![receiver, group, partition, now.as_millis()])?;
    database
        .prepare_cached(
            "INSERT INTO notifications(id, body, owed) VALUES(?, ?, 1) ON CONFLICT(id) DO UPDATE SET owed = owed + 1",
        )?
        .execute([id, body])?;
    database
        .prepare_cached("DELETE FROM dead_letters WHERE receiver = ? AND id = ?")?
        .execute(params![receiver, id])?;
    if let Some((timer, due)) = firing_of(delivery) {
        write_receipt(database, &timer, due, receiver, Receipt::Pending)?;
    }
    Ok(true)
}

impl EmbeddedEngine {
    fn read_letter(&self, receiver: &str, id: &str, letter: &str) -> Option<DeadLetter> {
        let report = |why: &crate::store::EngineError| {
            let location = format!("table dead_letters receiver {receiver:?} id {id:?}");
            self.telemetry.unreadable(Stored::DeadLetter, &location, &why.to_string());
            self.full_scan.request();
        };
        from_json("a dead letter", letter).inspect_err(report).ok()
    }
}

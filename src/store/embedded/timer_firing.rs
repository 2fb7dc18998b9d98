//! Timers that are due, and their firing: in one transaction each of them waits no more, and its notification is queued
//! for each receiver of its class.

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::stored::text;
use super::timer_rows::{Counts, end, stored};
use crate::clock::Timestamp;
use crate::presence::{FiredTimer, Timer, TimerClass, TimerLifecycle};
use crate::store::json::to_json;
use crate::store::notification::Notification;
use crate::store::timer_text::encode;
use crate::store::timers::without_postponed;
use crate::store::{Fired, Result, TimerClasses, group_of_timer, partition_of_group};

pub(super) async fn due(
    engine: &EmbeddedEngine,
    partitions: &[u16],
    until: Timestamp,
    limit: usize,
) -> Result<Vec<Timer>> {
    let partitions = to_json(&partitions)?;
    let read = move |database: &Connection| {
        let mut select = database.prepare_cached(
            "SELECT id, body FROM timers WHERE next_check <= ? AND partition IN (SELECT value FROM json_each(?)) \
             ORDER BY next_check LIMIT ?",
        )?;
        let rows = select.query_map(params![until.as_millis(), partitions, limit as i64], |row| {
            Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned()))
        })?;
        Ok(rows.collect::<rusqlite::Result<Vec<(String, String)>>>()?)
    };
    let rows = engine.readers.read(read).await?;
    let timers = rows.iter().filter_map(|(id, text)| engine.timer(&id.parse().ok()?, text));
    let is_due = |timer: &Timer| timer.lifecycle == TimerLifecycle::Waiting && timer.due <= until;
    let (due, postponed) = without_postponed(timers.filter(is_due), engine.leases.stepped());
    postpone(engine, &postponed).await?;
    Ok(due)
}

/// Gives timers that are still as they were read another moment.
async fn postpone(engine: &EmbeddedEngine, timers: &[(Timer, Timer)]) -> Result<()> {
    if timers.is_empty() {
        return Ok(());
    }
    let row = |(before, after): &(Timer, Timer)| {
        (before.id.as_str().to_owned(), encode(before), after.due, encode(after))
    };
    let timers: Vec<_> = timers.iter().map(row).collect();
    let write = move |database: &Connection| {
        let mut update = database.prepare_cached(
            "UPDATE timers SET due = ?1, next_check = ?1, body = ?2 WHERE id = ?3 AND body = ?4",
        )?;
        for (id, before, due, after) in &timers {
            update.execute(params![due.as_millis(), after, id, before])?;
        }
        Ok(())
    };
    engine.writer.write("postpone_timers", write).await
}

pub(super) async fn fire(
    engine: &EmbeddedEngine,
    timers: &[Timer],
    classes: &TimerClasses,
    now: Timestamp,
) -> Result<Fired> {
    let known = timers.iter().filter(|timer| timer.due <= now);
    let known = known.filter_map(|timer| Some((timer.clone(), classes.get(&timer.timer_type)?.clone())));
    let known: Vec<(Timer, TimerClass)> = known.collect();
    if known.is_empty() {
        return Ok(Fired::default());
    }
    let partitions = engine.memory.partitions();
    let write = move |database: &Connection| {
        let mut counts = Counts::default();
        let mut fired = Vec::with_capacity(known.len());
        for (timer, class) in &known {
            let partition = partition_of_group(&group_of_timer(&timer.id), partitions);
            if let Some(timer) = fire_one(database, timer, class, partition, now)? {
                counts.add(partition, &timer.timer_type, -1);
                fired.push(timer);
            }
        }
        counts.write(database)?;
        Ok(fired)
    };
    let timers = engine.writer.write("fire_timers", write).await?;
    let has_queued = !timers.is_empty();
    Ok(Fired { timers, has_queued, deliveries: Vec::new() })
}

/// The timer as it is then; `None`: it is another one than the caller read.
fn fire_one(
    database: &Connection,
    timer: &Timer,
    class: &TimerClass,
    partition: u16,
    now: Timestamp,
) -> DatabaseResult<Option<Timer>> {
    if stored(database, &timer.id)?.as_deref() != Some(&encode(timer)) {
        return Ok(None);
    }
    let fired = timer.clone().fired(class, now);
    end(database, &fired, now + class.keep)?;
    if class.receivers.is_empty() {
        return Ok(Some(fired));
    }
    let notification = Notification::of_timer(FiredTimer::new(timer, class, now));
    let (id, group, body) = (timer.firing(), group_of_timer(&timer.id), to_json(&notification)?);
    let insert = "INSERT INTO notifications(id, body, owed) VALUES(?1, ?2, ?3) \
                  ON CONFLICT(id) DO UPDATE SET owed = owed + ?3";
    database.prepare_cached(insert)?.execute(params![id, body, class.receivers.len() as i64])?;
    for receiver in &class.receivers {
        database
            .prepare_cached("INSERT INTO lanes(receiver, grp, notification) VALUES(?, ?, ?)")?
            .execute([receiver, &group, &id])?;
        database
            .prepare_cached("INSERT OR IGNORE INTO queue(receiver, grp, partition, at) VALUES(?, ?, ?, ?)")?
            .execute(params![receiver, group, partition, now.as_millis()])?;
    }
    Ok(Some(fired))
}

pub(super) async fn put_off(engine: &EmbeddedEngine, timers: &[Timer], until: Timestamp) -> Result<()> {
    let timers: Vec<(String, String)> =
        timers.iter().map(|timer| (timer.id.as_str().to_owned(), encode(timer))).collect();
    let write = move |database: &Connection| {
        let mut update =
            database.prepare_cached("UPDATE timers SET next_check = ? WHERE id = ? AND body = ?")?;
        for (id, body) in &timers {
            update.execute(params![until.as_millis(), id, body])?;
        }
        Ok(())
    };
    engine.writer.write("put_off_timers", write).await
}

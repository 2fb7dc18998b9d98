//! Attempts to deliver timers at most once: each is marked, and its delivery ended, before it begins. An attempt that
//! has no outcome for long was cut off by the end of the process: whether the receiver got the timer is unknown.

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::deliveries::is_under_way;
use super::finish::end_lane;
use super::stored::text;
use super::timer_rows::{forget_attempt, write_receipt};
use crate::clock::Timestamp;
use crate::presence::{Receipt, TimerId, TimerType};
use crate::store::json::to_json;
use crate::store::{Delivery, Result, firing_of, group_of_timer, partition_of_group};

/// How many attempts one call gives up.
const GIVEN_UP: i64 = 1000;

pub(super) async fn begin(
    engine: &EmbeddedEngine,
    deliveries: &[&Delivery],
    now: Timestamp,
) -> Result<Vec<bool>> {
    let firings: Vec<Option<(TimerId, Timestamp)>> = deliveries.iter().map(|one| firing_of(one)).collect();
    let (partitions, deliveries): (u16, Vec<Delivery>) =
        (engine.memory.partitions(), deliveries.iter().map(|one| (*one).clone()).collect());
    let leases = engine.delivery_leases.clone();
    let write = move |database: &Connection| {
        let mut answers = Vec::with_capacity(deliveries.len());
        for (delivery, firing) in deliveries.iter().zip(&firings) {
            let Some((timer, due)) = firing else {
                answers.push(false);
                continue;
            };
            let Delivery { receiver, group, .. } = delivery;
            let is_ended = is_under_way(database, delivery)?
                && end_lane(database, receiver, &group.key, delivery.notification(), now)?;
            if is_ended {
                let partition = partition_of_group(&group_of_timer(timer), partitions);
                let insert = "INSERT OR REPLACE INTO timer_attempts(receiver, timer, due, partition, at) VALUES(?, ?, ?, ?, ?)";
                let values = params![receiver, timer.as_str(), due.as_millis(), partition, now.as_millis()];
                database.prepare_cached(insert)?.execute(values)?;
                write_receipt(database, timer, *due, receiver, Receipt::Begun)?;
            }
            answers.push(is_ended);
        }
        Ok((answers, deliveries.clone()))
    };
    let (answers, deliveries) = engine.writer.write("begin_only_attempts", write).await?;
    for delivery in deliveries.iter().zip(&answers).filter(|(_, is_ended)| **is_ended).map(|(one, _)| one) {
        leases.end(&delivery.receiver, &delivery.group.key, delivery.notification());
    }
    Ok(answers)
}

pub(super) async fn give_up(
    engine: &EmbeddedEngine,
    partitions: &[u16],
    before: Timestamp,
) -> Result<Vec<TimerType>> {
    let partitions = to_json(&partitions)?;
    let read = move |database: &Connection| {
        let mut select = database.prepare_cached(
            "SELECT receiver, timer, due FROM timer_attempts WHERE at < ? AND partition IN \
             (SELECT value FROM json_each(?)) ORDER BY at LIMIT ?",
        )?;
        let rows = select.query_map(params![before.as_millis(), partitions, GIVEN_UP], |row| {
            Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned(), row.get(2)?))
        })?;
        Ok(rows.collect::<rusqlite::Result<Vec<(String, String, i64)>>>()?)
    };
    let begun = engine.readers.read(read).await?;
    if begun.is_empty() {
        return Ok(Vec::new());
    }
    let write = move |database: &Connection| {
        let mut types = Vec::new();
        for (receiver, timer, due) in &begun {
            let Ok(timer) = timer.parse::<TimerId>() else { continue };
            let due = Timestamp::from_millis(*due);
            if forget_attempt(database, receiver, &timer, due)? {
                types.extend(write_receipt(database, &timer, due, receiver, Receipt::Unknown)?);
            }
        }
        Ok(types)
    };
    engine.writer.write("give_up_only_attempts", write).await
}

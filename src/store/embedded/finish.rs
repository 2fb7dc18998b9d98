//! How a delivery ends: it was delivered, or given up and becomes a dead letter.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::DatabaseResult;
use super::timer_rows::{forget_attempt, write_receipt};
use crate::clock::Timestamp;
use crate::presence::{Receipt, TimerId};
use crate::store::json::to_json;
use crate::store::{DeadLetter, Delivery, End, Ended, Result, firing_of, partition_of_group};

/// The end of one delivery, ready to be written.
pub(super) struct Ending {
    pub receiver: String,
    pub group: String,
    /// The id of the notification.
    pub id: String,
    /// The dead letter (JSON), if the delivery was given up, and the silences in it.
    letter: Option<(String, Vec<String>)>,
    /// The timer of the delivery, the moment at which it fired, and its receipt.
    timer: Option<(TimerId, Timestamp, Receipt)>,
    /// The only attempt at the timer was marked before it began: the delivery has ended, and its outcome is known now.
    was_marked: bool,
}

impl Ending {
    pub fn delivered(delivery: &Delivery) -> Ending {
        // The notification of a timer has it; one without could not be read.
        let receipt = if delivery.timers.is_empty() { Receipt::Dead } else { Receipt::Delivered };
        Ending {
            receiver: delivery.receiver.clone(),
            group: delivery.group.key.clone(),
            id: delivery.notification().to_owned(),
            letter: None,
            timer: firing_of(delivery).map(|(id, due)| (id, due, receipt)),
            was_marked: false,
        }
    }

    /// `None`: the delivery is attempted again.
    pub fn of(ended: &Ended, now: Timestamp) -> Result<Option<Ending>> {
        let delivery = &ended.delivery;
        let was_marked = ended.attempt.is_some() && delivery.is_at_most_once();
        match &ended.end {
            End::Delivered => Ok(Some(Ending { was_marked, ..Ending::delivered(delivery) })),
            End::RetryAt(_) => Ok(None),
            End::DeadLetter(reason) => {
                let (delivery, reason) = (delivery.as_ref().clone(), reason.clone());
                let ending = Ending::given_up(&DeadLetter { delivery, at: now, reason })?;
                Ok(Some(Ending { was_marked, ..ending }))
            }
        }
    }

    pub fn given_up(letter: &DeadLetter) -> Result<Ending> {
        let silences = letter.delivery.silences_lost();
        let letter_json = to_json(letter)?;
        let delivered = Ending::delivered(&letter.delivery);
        let timer = delivered.timer.clone().map(|(id, due, _)| (id, due, Receipt::Dead));
        Ok(Ending { letter: Some((letter_json, silences)), timer, ..delivered })
    }
}

/// Ends a delivery, if it is the first of its lane.
pub(super) fn finish_one(
    database: &Connection,
    ending: &Ending,
    partitions: u16,
    now: Timestamp,
) -> DatabaseResult<()> {
    let Ending { receiver, group, id, letter, timer, was_marked } = ending;
    if *was_marked && let Some((timer, due, _)) = timer {
        forget_attempt(database, receiver, timer, *due)?;
    }
    let is_ended = end_lane(database, receiver, group, id, now)?;
    if let Some((timer, due, receipt)) = timer.as_ref().filter(|_| is_ended || *was_marked) {
        write_receipt(database, timer, *due, receiver, *receipt)?;
    }
    let Some((letter, silences)) = letter.as_ref().filter(|_| is_ended) else { return Ok(()) };
    let partition = partition_of_group(group, partitions);
    let at = now.as_millis();
    database
        .prepare_cached("INSERT OR REPLACE INTO dead_letters VALUES(?, ?, ?, ?, ?)")?
        .execute(params![receiver, id, partition, at, letter])?;
    for silence in silences {
        database
            .prepare_cached("INSERT OR REPLACE INTO unnotified VALUES(?, ?, ?)")?
            .execute([receiver, silence, id])?;
    }
    Ok(())
}

/// Ends the first delivery of a lane; `false`: another one is the first.
pub(super) fn end_lane(
    database: &Connection,
    receiver: &str,
    group: &str,
    id: &str,
    now: Timestamp,
) -> DatabaseResult<bool> {
    let Some((lane_id, first)) = first_of_lane(database, receiver, group)? else { return Ok(false) };
    if first != *id {
        return Ok(false);
    }
    database.prepare_cached("DELETE FROM lanes WHERE id = ?")?.execute([lane_id])?;
    database.prepare_cached("UPDATE notifications SET owed = owed - 1 WHERE id = ?")?.execute([id])?;
    database.prepare_cached("DELETE FROM notifications WHERE id = ? AND owed <= 0")?.execute([id])?;
    if first_of_lane(database, receiver, group)?.is_some() {
        database
            .prepare_cached("UPDATE queue SET at = ? WHERE receiver = ? AND grp = ?")?
            .execute(params![now.as_millis(), receiver, group])?;
    } else {
        database
            .prepare_cached("DELETE FROM queue WHERE receiver = ? AND grp = ?")?
            .execute([receiver, group])?;
    }
    Ok(true)
}

fn first_of_lane(
    database: &Connection,
    receiver: &str,
    group: &str,
) -> rusqlite::Result<Option<(i64, String)>> {
    let select = "SELECT id, notification FROM lanes WHERE receiver = ? AND grp = ? ORDER BY id LIMIT 1";
    let mut select = database.prepare_cached(select)?;
    select.query_row([receiver, group], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

//! How a delivery ends: it was delivered, or given up and becomes a dead letter.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::DatabaseResult;
use crate::clock::Timestamp;
use crate::store::json::to_json;
use crate::store::{DeadLetter, Delivery, End, Ended, Result, partition_of_group};

/// The end of one delivery, ready to be written.
pub(super) struct Ending {
    pub receiver: String,
    pub group: String,
    /// The id of the notification.
    pub id: String,
    /// The dead letter (JSON), if the delivery was given up, and the silences in it.
    letter: Option<(String, Vec<String>)>,
}

impl Ending {
    pub fn delivered(delivery: &Delivery) -> Ending {
        Ending {
            receiver: delivery.receiver.clone(),
            group: delivery.group.key.clone(),
            id: delivery.notification().to_owned(),
            letter: None,
        }
    }

    /// `None`: the delivery is attempted again.
    pub fn of(ended: &Ended, now: Timestamp) -> Result<Option<Ending>> {
        let delivery = &ended.delivery;
        match &ended.end {
            End::Delivered => Ok(Some(Ending::delivered(delivery))),
            End::RetryAt(_) => Ok(None),
            End::DeadLetter(reason) => {
                let (delivery, reason) = (delivery.as_ref().clone(), reason.clone());
                Ending::given_up(&DeadLetter { delivery, at: now, reason }).map(Some)
            }
        }
    }

    pub fn given_up(letter: &DeadLetter) -> Result<Ending> {
        let silences = letter.delivery.silences_lost();
        let letter_json = to_json(letter)?;
        Ok(Ending { letter: Some((letter_json, silences)), ..Ending::delivered(&letter.delivery) })
    }
}

/// Ends a delivery, if it is the first of its lane.
pub(super) fn finish_one(
    database: &Connection,
    ending: &Ending,
    partitions: u16,
    now: Timestamp,
) -> DatabaseResult<()> {
    let Ending { receiver, group, id, letter } = ending;
    let Some((lane_id, first)) = first_of_lane(database, receiver, group)? else { return Ok(()) };
    if first != *id {
        return Ok(());
    }
    database.prepare_cached("DELETE FROM lanes WHERE id = ?")?.execute([lane_id])?;
    database.prepare_cached("UPDATE notifications SET owed = owed - 1 WHERE id = ?")?.execute([id])?;
    database.prepare_cached("DELETE FROM notifications WHERE id = ? AND owed <= 0")?.execute([id])?;
    if let Some((letter, silences)) = letter {
        let partition = partition_of_group(group, partitions);
        database.prepare_cached("INSERT OR REPLACE INTO letters VALUES(?, ?, ?, ?, ?)")?.execute(params![
            receiver,
            id,
            partition,
            now.as_millis(),
            letter
        ])?;
        for silence in silences {
            database
                .prepare_cached("INSERT OR REPLACE INTO untold VALUES(?, ?, ?)")?
                .execute([receiver, silence, id])?;
        }
    }
    if first_of_lane(database, receiver, group)?.is_some() {
        database
            .prepare_cached("UPDATE queue SET at = ? WHERE receiver = ? AND grp = ?")?
            .execute(params![now.as_millis(), receiver, group])?;
    } else {
        database
            .prepare_cached("DELETE FROM queue WHERE receiver = ? AND grp = ?")?
            .execute([receiver, group])?;
    }
    Ok(())
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

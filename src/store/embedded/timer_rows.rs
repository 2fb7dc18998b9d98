//! Rows of timers, as the steps that change them read and write them.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::error::DatabaseResult;
use super::stored::text;
use crate::clock::Timestamp;
use crate::presence::{Receipt, Timer, TimerId, TimerType};
use crate::store::timer_text::{decode, encode};

/// How many more timers of each type and partition wait after a job.
#[derive(Default)]
pub(super) struct Counts(BTreeMap<(u16, TimerType), i64>);

impl Counts {
    pub fn add(&mut self, partition: u16, of: &TimerType, change: i64) {
        *self.0.entry((partition, of.clone())).or_default() += change;
    }

    pub fn write(&self, database: &Connection) -> DatabaseResult<()> {
        let mut update = database.prepare_cached(
            "INSERT INTO timer_counts(partition, type, waiting) VALUES(?1, ?2, max(0, ?3)) \
             ON CONFLICT(partition, type) DO UPDATE SET waiting = max(0, waiting + ?3)",
        )?;
        for ((partition, of), change) in self.0.iter().filter(|(_, change)| **change != 0) {
            update.execute(params![partition, of.as_str(), change])?;
        }
        Ok(())
    }
}

/// The stored text of a timer.
pub(super) fn stored(database: &Connection, id: &TimerId) -> DatabaseResult<Option<String>> {
    let mut select = database.prepare_cached("SELECT body FROM timers WHERE id = ?")?;
    Ok(select.query_row([id.as_str()], |row| Ok(text(row, 0)?.into_owned())).optional()?)
}

/// Writes a timer that waits no more.
pub(super) fn end(database: &Connection, timer: &Timer, kept: Timestamp) -> DatabaseResult<()> {
    let update = "UPDATE timers SET next_check = NULL, kept = ?, body = ? WHERE id = ?";
    let values = params![kept.as_millis(), encode(timer), timer.id.as_str()];
    database.prepare_cached(update)?.execute(values)?;
    Ok(())
}

/// The outcome of an attempt is known. Answers whether it had none.
pub(super) fn forget_attempt(
    database: &Connection,
    receiver: &str,
    timer: &TimerId,
    due: Timestamp,
) -> DatabaseResult<bool> {
    let delete = "DELETE FROM timer_attempts WHERE receiver = ? AND timer = ? AND due = ?";
    let values = params![receiver, timer.as_str(), due.as_millis()];
    Ok(database.prepare_cached(delete)?.execute(values)? > 0)
}

/// Writes the receipt of a timer at a receiver, unless it is not known any more, or was registered again since. Answers
/// its type if that changed it.
pub(super) fn write_receipt(
    database: &Connection,
    timer: &TimerId,
    due: Timestamp,
    receiver: &str,
    receipt: Receipt,
) -> DatabaseResult<Option<TimerType>> {
    let known = stored(database, timer)?.and_then(|text| decode(timer, &text));
    let known = known.filter(|known| known.due == due);
    let Some(changed) = known.and_then(|known| known.with_receipt(receiver, receipt)) else {
        return Ok(None);
    };
    let update = "UPDATE timers SET body = ? WHERE id = ?";
    database.prepare_cached(update)?.execute(params![encode(&changed), timer.as_str()])?;
    Ok(Some(changed.timer_type))
}

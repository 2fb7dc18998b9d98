//! The queues of receivers, for steps that seal notifications.

use rusqlite::Connection;

use super::cells;
use super::error::DatabaseResult;
use crate::clock::Timestamp;
use crate::store::{Index, ReceiverName, Table};

/// Puts a notification at the end of the group's lane for each of these receivers.
pub(super) fn enqueue<'a>(
    database: &Connection,
    (partition, key): (u16, &str),
    (id, body): (&str, String),
    receivers: impl Iterator<Item = &'a String> + Clone,
    now: Timestamp,
) -> DatabaseResult<()> {
    cells::put(database, Table::Notifications, partition, id, body.as_bytes())?;
    let owed = receivers.clone().count();
    if owed > 1 {
        cells::put(database, Table::Owed, partition, id, owed.to_string().as_bytes())?;
    }
    for receiver in receivers.map(|name| ReceiverName::of(name)) {
        let before = cells::value(database, Table::Lanes(receiver), partition, key)?;
        if cells::at(database, Index::Queue(receiver), partition, key)?.is_none() {
            cells::enter(database, Index::Queue(receiver), partition, key, now.as_millis())?;
        }
        let lane = [&before.unwrap_or_else(|| b"0".to_vec())[..], b" ", id.as_bytes()].concat();
        cells::put(database, Table::Lanes(receiver), partition, key, &lane)?;
    }
    Ok(())
}

//! The members of a group that wait for a notification.
//!
//! They are found by when their waits began: members that are final come before zero, see
//! [`stored_since`], so each question is one step in the index.

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::Timestamp;
use crate::presence::{GroupTimes, Left, Pace, ReadySince, since_of, stored_since};
use crate::store::notification::MAX_MEMBERS;

/// A member that waits.
pub(super) struct WaitingMember {
    pub name: String,
    pub letter: String,
    /// The record or interval (JSON).
    pub body: Option<String>,
}

/// The members that may be notified, up to as many as a notification may have: those that are final first.
pub(super) fn ready(
    database: &Connection,
    group: i64,
    since: ReadySince,
) -> rusqlite::Result<Vec<WaitingMember>> {
    let mut select = database.prepare_cached(
        "SELECT member, letter, body FROM members WHERE grp = ? AND joined >= ? AND joined <= ? \
         ORDER BY joined, member LIMIT ?",
    )?;
    let mut ready: Vec<WaitingMember> = Vec::new();
    for (from, to) in [(i64::MIN, stored_since(true, since.other)), (0, stored_since(false, since.silence))] {
        let rows = select.query_map(params![group, from, to, (MAX_MEMBERS - ready.len()) as i64], |row| {
            Ok(WaitingMember { name: row.get(0)?, letter: row.get(1)?, body: row.get(2)? })
        })?;
        for row in rows {
            ready.push(row?);
        }
    }
    Ok(ready)
}

/// The first silences whose waits began by then, as many as a notification may have.
pub(super) fn ready_silences(
    database: &Connection,
    group: i64,
    until: Timestamp,
) -> rusqlite::Result<Vec<WaitingMember>> {
    let mut select = database.prepare_cached(
        "SELECT member, letter, body FROM members WHERE grp = ? AND joined >= 0 AND joined <= ? \
         ORDER BY joined, member LIMIT ?",
    )?;
    let rows = select.query_map(params![group, until.as_millis(), MAX_MEMBERS as i64], |row| {
        Ok(WaitingMember { name: row.get(0)?, letter: row.get(1)?, body: row.get(2)? })
    })?;
    rows.collect()
}

/// When the silences of a group have waited that are gathered with the first one; `None`: they have.
pub(super) fn gathered_at(
    database: &Connection,
    group: i64,
    times: GroupTimes,
    pace: Pace,
    now: Timestamp,
) -> rusqlite::Result<Option<Timestamp>> {
    if !pace.is_shared {
        return Ok(None);
    }
    let Some(first) = first(database, group)? else { return Ok(None) };
    let Some(until) = times.gathers_until(first, pace, now) else { return Ok(None) };
    let newest = newest(database, group, now - pace.wait + std::time::Duration::from_millis(1), until)?;
    Ok(times.gathered_at(until, newest, pace, now))
}

/// The members that wait after a sealing.
pub(super) fn left(database: &Connection, group: i64, pace: Pace, now: Timestamp) -> rusqlite::Result<Left> {
    let first_final =
        moment(database, "SELECT min(joined) FROM members WHERE grp = ? AND joined < 0", group)?;
    let first = first(database, group)?;
    let newest = if first.is_some() { newest(database, group, Timestamp::ZERO, now)? } else { None };
    Ok(Left { first, newest, first_final, is_last: is_last(database, group, pace)? })
}

/// Whether no silence of the group lasts that receivers were notified of.
pub(super) fn is_last(database: &Connection, group: i64, pace: Pace) -> rusqlite::Result<bool> {
    if !pace.has_lasting() {
        return Ok(true);
    }
    let mut select = database.prepare_cached("SELECT 1 FROM lasting WHERE grp = ? LIMIT 1")?;
    Ok(!select.exists([group])?)
}

/// When the wait of the first silence began.
fn first(database: &Connection, group: i64) -> rusqlite::Result<Option<Timestamp>> {
    moment(database, "SELECT min(joined) FROM members WHERE grp = ? AND joined >= 0", group)
}

fn moment(database: &Connection, select: &str, group: i64) -> rusqlite::Result<Option<Timestamp>> {
    let mut select = database.prepare_cached(select)?;
    let stored: Option<i64> = select.query_row([group], |row| row.get(0))?;
    Ok(stored.map(since_of))
}

/// When the wait of the newest silence between these moments began.
fn newest(
    database: &Connection,
    group: i64,
    from: Timestamp,
    to: Timestamp,
) -> rusqlite::Result<Option<Timestamp>> {
    let mut select = database.prepare_cached(
        "SELECT joined FROM members WHERE grp = ? AND joined >= ? AND joined <= ? ORDER BY joined DESC LIMIT 1",
    )?;
    let found = select.query_row(params![group, from.as_millis(), to.as_millis()], |row| row.get(0));
    Ok(found.optional()?.map(since_of))
}

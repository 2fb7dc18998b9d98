//! Sealing a group: fixes members, body and id of a notification, and puts it at the end of the group's
//! lane for each receiver.

use rusqlite::{Connection, params};

use super::error::DatabaseResult;
use crate::clock::Timestamp;
use crate::presence::{GroupTimes, Pace, Stage};
use crate::store::notification::{MOST_MEMBERS, OVER};
use crate::store::sealed_members::SealedMembers;

/// The most members that one call of [`tidy`] forgets.
const FORGOTTEN_AT_ONCE: i64 = 1000;

/// Seals one notification of a group, with its times. Answers how many members it has.
pub(super) fn seal_group(
    database: &Connection,
    group: i64,
    times: GroupTimes,
    receivers: &[String],
    pace: Pace,
    now: Timestamp,
) -> DatabaseResult<usize> {
    let mut members: Vec<(String, String, Option<String>)> = database
        .prepare_cached(
            "SELECT member, letter, body FROM members WHERE grp = ? AND joined <= ? \
             ORDER BY joined, member LIMIT ?",
        )?
        .query_map(params![group, (now - pace.wait).as_millis(), MOST_MEMBERS as i64], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    // The same events have the same notification id on every engine.
    members.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let sealing = Sealing { database, group, receivers, now };
    let mut sealed = SealedMembers::default();
    let count = members.len();
    for (member, letter, body) in members {
        sealing.seal_member(&member, &letter, body.unwrap_or_default(), &mut sealed)?;
    }
    // Without a receiver no notification is kept: no delivery would ever remove it.
    if count > 0 && !receivers.is_empty() {
        sealing.write(&sealed)?;
        database
            .prepare_cached("UPDATE groups SET sealed = ? WHERE id = ?")?
            .execute([times.sealed_now(pace, now).as_millis(), group])?;
    }
    clear_due_if_empty(database, group)?;
    let select = "SELECT min(joined), max(joined) FROM members WHERE grp = ? AND joined IS NOT NULL";
    let waiting: (Option<i64>, Option<i64>) =
        database.prepare_cached(select)?.query_row([group], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if let (Some(first), Some(newest)) = waiting {
        let waiting = (Timestamp::from_millis(first), Timestamp::from_millis(newest));
        let due = times.due_after(waiting, count > 0, pace, now).map(Timestamp::as_millis);
        database.prepare_cached("UPDATE groups SET due = ? WHERE id = ?")?.execute(params![due, group])?;
    }
    Ok(count)
}

/// When a group was sealed last, and when it is due.
pub(super) fn times(database: &Connection, group: i64) -> rusqlite::Result<GroupTimes> {
    let moment = |ms: Option<i64>| ms.map(Timestamp::from_millis);
    let mut select = database.prepare_cached("SELECT sealed, due FROM groups WHERE id = ?")?;
    select.query_row([group], |row| Ok(GroupTimes { sealed: moment(row.get(0)?), due: moment(row.get(1)?) }))
}

/// A group that is being sealed.
struct Sealing<'a> {
    database: &'a Connection,
    group: i64,
    receivers: &'a [String],
    now: Timestamp,
}

impl Sealing<'_> {
    /// Adds a member to the notification, and notes the receivers that are notified of it.
    fn seal_member(
        &self,
        member: &str,
        letter: &str,
        body: String,
        sealed: &mut SealedMembers,
    ) -> rusqlite::Result<()> {
        let stage = if letter.starts_with(Stage::IsBack.letter()) { Stage::IsBack } else { Stage::Waits };
        let is_blind = member.starts_with("blind ");
        let next = stage.once_notified(is_blind);
        sealed.add(member, stage, is_blind, letter.get(1..).unwrap_or_default(), body);
        let (letter, over) = match next {
            Stage::Over => (next.letter().to_string(), Some(self.now.as_millis())),
            _ => (format!("{}:{}", next.letter(), self.receivers.join(",")), None),
        };
        self.database
            .prepare_cached(
                "UPDATE members SET letter = ?, joined = NULL, over = ?, body = NULL WHERE grp = ? AND member = ?",
            )?
            .execute(params![letter, over, self.group, member])?;
        Ok(())
    }

    /// Puts the notification at the end of the group's lane for each receiver.
    fn write(&self, sealed: &SealedMembers) -> rusqlite::Result<()> {
        let Sealing { database, group, receivers, now } = self;
        let (partition, key, body): (u16, String, String) = database
            .prepare_cached("SELECT partition, key, body FROM groups WHERE id = ?")?
            .query_row([group], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let id = sealed.id(&key);
        database.prepare_cached("INSERT OR REPLACE INTO notifications VALUES(?, ?, ?)")?.execute(params![
            id,
            sealed.notification(&body, *now, receivers),
            receivers.len() as i64
        ])?;
        for receiver in *receivers {
            database
                .prepare_cached("INSERT INTO lanes(receiver, grp, notification) VALUES(?, ?, ?)")?
                .execute(params![receiver, key, id])?;
            database.prepare_cached("INSERT OR IGNORE INTO queue VALUES(?, ?, ?, ?)")?.execute(params![
                receiver,
                key,
                partition,
                now.as_millis()
            ])?;
        }
        Ok(())
    }
}

/// Forgets a bounded number of members that have been over for long, and groups without any.
pub(super) fn tidy(database: &Connection, now: Timestamp) -> DatabaseResult<()> {
    let before = (now - OVER).as_millis();
    let over: Vec<(i64, String)> = database
        .prepare_cached("SELECT grp, member FROM members WHERE over <= ? ORDER BY over LIMIT ?")?
        .query_map([before, FORGOTTEN_AT_ONCE], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (group, member) in over {
        database
            .prepare_cached("DELETE FROM members WHERE grp = ? AND member = ?")?
            .execute(params![group, member])?;
        database
            .prepare_cached(
                "DELETE FROM groups WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM members WHERE grp = ?1)",
            )?
            .execute([group])?;
    }
    Ok(())
}

/// A group in which no member waits is not due.
pub(super) fn clear_due_if_empty(database: &Connection, group: i64) -> DatabaseResult<()> {
    let update = "UPDATE groups SET due = NULL WHERE id = ?1 AND NOT EXISTS \
                  (SELECT 1 FROM members WHERE grp = ?1 AND joined IS NOT NULL)";
    database.prepare_cached(update)?.execute([group])?;
    Ok(())
}

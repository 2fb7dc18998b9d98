//! Sealing a group: fixes members, body and id of a notification, and puts it at the end of the group's
//! lane for each receiver.

use rusqlite::{Connection, params};

use super::error::DatabaseResult;
use super::queue::enqueue;
use super::reminders::{forget_if_empty, look_after};
use super::waiting::{WaitingMember, gathered_at, left, ready, ready_silences};
use crate::clock::Timestamp;
use crate::presence::{GroupTimes, Pace, Sealed, Stage, stored_since};
use crate::store::Destinations;
use crate::store::json::from_json;
use crate::store::notification::{KEPT_AFTER_END, MAX_MEMBERS};
use crate::store::receiver_list::is_told;
use crate::store::sealed_members::SealedMembers;

/// The most members that one call of [`tidy`] forgets.
const FORGOTTEN_AT_ONCE: i64 = 1000;

/// Seals one notification of a group, with its times. Answers how many members it has.
pub(super) fn seal_group(
    database: &Connection,
    group: i64,
    times: GroupTimes,
    destinations: &Destinations,
    now: Timestamp,
) -> DatabaseResult<usize> {
    let mut select = database.prepare_cached("SELECT key FROM groups WHERE id = ?")?;
    let key: String = select.query_row([group], |row| row.get(0))?;
    if let Some(until) = destinations.held_until(&key, now) {
        set_due(database, group, Some(until))?;
        return Ok(0);
    }
    let destination = destinations.of(&key);
    let (receivers, pace) = (&destination.receivers, destination.pace);
    hold_silences(database, group, pace, destinations, now)?;
    if let Some(at) = gathered_at(database, group, times, pace, now)? {
        set_due(database, group, Some(at))?;
        return Ok(0);
    }
    let mut members = ready(database, group, times.ready_since(pace, now))?;
    // The same events have the same notification id on every engine.
    members.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let others = destinations.others(&destination);
    let sealing = SealingGroup { database, group, receivers, others: &others, pace, now };
    let mut sealed = SealedMembers::default();
    let count = members.len();
    for member in members {
        sealing.seal_member(member, &mut sealed)?;
    }
    let told = sealed.receivers(receivers, &others);
    // Without a receiver no notification is kept, because no delivery would ever remove it, and no interval begins.
    if !told.is_empty() {
        sealing.write(&sealed, &told, times.sealed)?;
        database
            .prepare_cached("UPDATE groups SET sealed = ? WHERE id = ?")?
            .execute([times.sealed_now(pace, now).as_millis(), group])?;
    }
    let left = left(database, group, pace, now)?;
    let has_sealed = match count {
        0 => Sealed::None,
        MAX_MEMBERS => Sealed::Most,
        _ => Sealed::Some,
    };
    let waits = left.first.is_some() || left.first_final.is_some();
    set_due(database, group, if waits { times.due_after(left, has_sealed, pace, now) } else { None })?;
    Ok(count)
}

/// Prolongs the waits of held silences, so that no held silence is sealed now.
fn hold_silences(
    database: &Connection,
    group: i64,
    pace: Pace,
    destinations: &Destinations,
    now: Timestamp,
) -> rusqlite::Result<()> {
    if !destinations.may_hold_silences(now) {
        return Ok(());
    }
    loop {
        let mut has_held = false;
        for WaitingMember { name, body, .. } in ready_silences(database, group, now - pace.wait)? {
            let record = body.and_then(|body| from_json("a record", &body).ok());
            let until = record.and_then(|record| destinations.silence_held_until(&record, now));
            if let Some(until) = until {
                has_held = true;
                database
                    .prepare_cached("UPDATE members SET joined = ? WHERE grp = ? AND member = ?")?
                    .execute(params![stored_since(false, until - pace.wait), group, name])?;
            }
        }
        if !has_held {
            return Ok(());
        }
    }
}

fn set_due(database: &Connection, group: i64, due: Option<Timestamp>) -> rusqlite::Result<()> {
    let mut update = database.prepare_cached("UPDATE groups SET due = ? WHERE id = ?")?;
    update.execute(params![due.map(Timestamp::as_millis), group])?;
    Ok(())
}

/// When a group was sealed last, and when it is due.
pub(super) fn times(database: &Connection, group: i64) -> rusqlite::Result<GroupTimes> {
    let moment = |ms: Option<i64>| ms.map(Timestamp::from_millis);
    let mut select = database.prepare_cached("SELECT sealed, due FROM groups WHERE id = ?")?;
    select.query_row([group], |row| Ok(GroupTimes { sealed: moment(row.get(0)?), due: moment(row.get(1)?) }))
}

/// A group that is being sealed.
struct SealingGroup<'a> {
    database: &'a Connection,
    group: i64,
    receivers: &'a [String],
    /// The other receivers of all routes.
    others: &'a [&'a String],
    pace: Pace,
    now: Timestamp,
}

impl SealingGroup<'_> {
    /// Adds a member to the notification, and notes the receivers that are notified of it.
    fn seal_member(&self, member: WaitingMember, sealed: &mut SealedMembers) -> rusqlite::Result<()> {
        let WaitingMember { name: member, letter, body } = member;
        let stage = if letter.starts_with(Stage::IsBack.letter()) { Stage::IsBack } else { Stage::Waits };
        let is_blind = member.starts_with("blind ");
        let next = stage.once_notified(is_blind);
        sealed.add(&member, stage, is_blind, letter.get(1..).unwrap_or_default(), body.unwrap_or_default());
        let (letter, over) = match next {
            Stage::Over => (next.letter().to_string(), Some(self.now.as_millis())),
            _ => {
                let others = sealed.notified_of_return(&member, self.others).into_iter();
                let names: Vec<&str> =
                    self.receivers.iter().map(String::as_str).chain(others.map(String::as_str)).collect();
                (format!("{}:{}", next.letter(), names.join(",")), None)
            }
        };
        // Its record is notified again while its silence lasts.
        let is_kept = next == Stage::Notified && self.pace.looks_after.is_some();
        self.database
            .prepare_cached(
                "UPDATE members SET letter = ?, joined = NULL, over = ?, body = iif(?, body, NULL) \
                 WHERE grp = ? AND member = ?",
            )?
            .execute(params![letter, over, is_kept, self.group, member])?;
        // What no receiver is notified of does not last, unless it may be escalated.
        let lasts = next == Stage::Notified && (is_told(&letter[1..]) || self.pace.looks_after.is_some());
        if lasts && self.pace.has_lasting() {
            self.database
                .prepare_cached("INSERT OR REPLACE INTO lasting VALUES(?, ?, ?)")?
                .execute(params![self.group, member, self.now.as_millis()])?;
            if let Some(after) = self.pace.looks_after {
                look_after(self.database, self.group, self.now + after)?;
            }
        }
        Ok(())
    }

    /// Puts the notification at the end of the group's lane for each of these receivers.
    fn write(
        &self,
        sealed: &SealedMembers,
        told: &[&String],
        before: Option<Timestamp>,
    ) -> DatabaseResult<()> {
        let SealingGroup { database, group, receivers, pace, now, .. } = self;
        let (partition, key, body): (u16, String, String) = database
            .prepare_cached("SELECT partition, key, body FROM groups WHERE id = ?")?
            .query_row([group], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let id = sealed.id(&key);
        let mut count = database.prepare_cached("SELECT count(*) FROM lasting WHERE grp = ?")?;
        let lasting: Option<i64> =
            pace.is_shared.then(|| count.query_row([group], |row| row.get(0))).transpose()?;
        let body = sealed.notification(
            &body,
            *now,
            receivers,
            told,
            lasting.map(|lasting| (lasting as u64, before)),
        );
        enqueue(database, (partition, &key), (&id, body), told.iter().copied(), *now)
    }
}

/// Forgets a bounded number of members that have been over for long, and groups without any.
pub(super) fn tidy(database: &Connection, now: Timestamp) -> DatabaseResult<()> {
    let before = (now - KEPT_AFTER_END).as_millis();
    let over: Vec<(i64, String)> = database
        .prepare_cached("SELECT grp, member FROM members WHERE over <= ? ORDER BY over LIMIT ?")?
        .query_map([before, FORGOTTEN_AT_ONCE], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (group, member) in over {
        for delete in [
            "DELETE FROM members WHERE grp = ? AND member = ?",
            "DELETE FROM lasting WHERE grp = ? AND member = ?",
        ] {
            database.prepare_cached(delete)?.execute(params![group, member])?;
        }
        forget_if_empty(database, group)?;
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

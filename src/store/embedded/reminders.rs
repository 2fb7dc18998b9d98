//! Groups that are looked at again while their silences last: see `presence/reminding.rs`.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::DatabaseResult;
use super::queue::enqueue;
use super::{EmbeddedEngine, cells};
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::store::json::{from_json, to_json};
use crate::store::notification::MAX_REMINDED;
use crate::store::reminding::{OngoingMember, Reminding};
use crate::store::{Destinations, Group, ReceiverName, Result, Table};

/// How many groups one call looks at.
const GROUPS: i64 = 50;

/// A group that is looked at.
struct EvaluatedGroup {
    id: i64,
    partition: u16,
    group: Group,
    due: Timestamp,
}

/// See [`GroupStore::remind`](crate::store::GroupStore::remind).
pub(super) async fn remind(
    engine: &EmbeddedEngine,
    partitions: &[u16],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<usize> {
    let (partitions, destinations) = (to_json(&partitions)?, destinations.clone());
    let write = move |database: &Connection| {
        let mut notified = 0;
        for one in due(database, &partitions, now)? {
            notified += look(database, &one, &destinations, now)?;
        }
        Ok(notified)
    };
    engine.writer.write("remind", write).await
}

fn due(database: &Connection, partitions: &str, now: Timestamp) -> rusqlite::Result<Vec<EvaluatedGroup>> {
    let mut select = database.prepare_cached(
        "SELECT grp, partition, key, body, reminders.due FROM reminders JOIN groups ON groups.id = grp \
         WHERE reminders.due <= ? AND partition IN (SELECT value FROM json_each(?)) ORDER BY reminders.due LIMIT ?",
    )?;
    let rows = select.query_map(params![now.as_millis(), partitions, GROUPS], |row| {
        let (key, body): (String, String) = (row.get(2)?, row.get(3)?);
        let labels = from_json::<Group>("a group", &body).map(|group| group.labels).unwrap_or_default();
        let due = Timestamp::from_millis(row.get(4)?);
        Ok(EvaluatedGroup { id: row.get(0)?, partition: row.get(1)?, group: Group { key, labels }, due })
    })?;
    rows.collect()
}

/// Looks at one group. Answers how many notifications were sealed.
fn look(
    database: &Connection,
    one: &EvaluatedGroup,
    destinations: &Destinations,
    now: Timestamp,
) -> DatabaseResult<usize> {
    let destination = destinations.of(&one.group.key);
    if let Some(until) = destinations.held_until(&one.group.key, now) {
        set_next(database, one.id, Some(until))?;
        return Ok(0);
    }
    let members = if destination.again.first().is_some() { lasting(database, one.id)? } else { Vec::new() };
    let is_quiet = |record: &OfflineRecord| destinations.is_quiet(record, now);
    let idle = idle(database, one.partition, &one.group.key, &destination.notified_again())?;
    let (mut next, mut notified) = (None, 0);
    if let Some(first) = members.first().map(|member| member.notified_at) {
        for members in members.chunks(MAX_REMINDED) {
            let to = (&*destination, &idle[..]);
            let found = Reminding::new(&one.group, to, members, &is_quiet, (first, one.due), now)?;
            notified += found.notifications.len();
            next = next.into_iter().chain(found.next).min();
            write(database, one, members, found, now)?;
        }
    }
    set_next(database, one.id, next)?;
    Ok(notified)
}

/// Those of the receivers for which no notification of the group waits.
fn idle(
    database: &Connection,
    partition: u16,
    group: &str,
    receivers: &[&String],
) -> DatabaseResult<Vec<String>> {
    let mut idle = Vec::new();
    for receiver in receivers {
        let lanes = Table::Lanes(ReceiverName::of(receiver));
        if cells::value(database, lanes, partition, group)?.is_none() {
            idle.push((*receiver).clone());
        }
    }
    Ok(idle)
}

/// The members of a group whose silences last, by when receivers were notified.
fn lasting(database: &Connection, group: i64) -> DatabaseResult<Vec<OngoingMember>> {
    let mut select = database.prepare_cached(
        "SELECT lasting.member, at, letter, body FROM lasting JOIN members USING (grp, member) \
         WHERE lasting.grp = ? AND letter >= 't' AND letter < 'u' ORDER BY at, lasting.member",
    )?;
    let rows = select.query_map([group], |row| {
        let letter: String = row.get(2)?;
        Ok(OngoingMember::new(row.get(0)?, Timestamp::from_millis(row.get(1)?), &letter, row.get(3)?))
    })?;
    let mut members: Vec<OngoingMember> = rows.collect::<rusqlite::Result<_>>()?;
    let mut open = database.prepare_cached("SELECT record FROM records WHERE id = ? AND closed IS NULL")?;
    for member in &mut members {
        let Some(id) = member.id() else { continue };
        let json = open.query_row([id.to_string()], |row| row.get::<_, String>(0)).optional()?;
        member.complete(json.and_then(|json| from_json::<OfflineRecord>("a record", &json).ok()))?;
    }
    Ok(members)
}

fn write(
    database: &Connection,
    one: &EvaluatedGroup,
    members: &[OngoingMember],
    found: Reminding,
    now: Timestamp,
) -> DatabaseResult<()> {
    for (at, receivers) in &found.receivers {
        let member = &members[*at];
        database
            .prepare_cached("UPDATE members SET letter = ? WHERE grp = ? AND member = ?")?
            .execute(params![format!("{}{receivers}", member.head), one.id, member.name])?;
    }
    for again in found.notifications {
        let group = (one.partition, one.group.key.as_str());
        enqueue(database, group, (&again.id, again.body), again.receivers.iter(), now)?;
    }
    Ok(())
}

/// Forgets a group that has no members and is not looked at any more.
pub(super) fn forget_if_empty(database: &Connection, group: i64) -> rusqlite::Result<()> {
    let delete = "DELETE FROM groups WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM members WHERE grp = ?1) \
                  AND NOT EXISTS (SELECT 1 FROM reminders WHERE grp = ?1)";
    database.prepare_cached(delete)?.execute([group])?;
    Ok(())
}

fn set_next(database: &Connection, group: i64, next: Option<Timestamp>) -> rusqlite::Result<()> {
    match next {
        Some(next) => database
            .prepare_cached("UPDATE reminders SET due = ? WHERE grp = ?")?
            .execute(params![next.as_millis(), group])?,
        None => {
            database.prepare_cached("DELETE FROM reminders WHERE grp = ?")?.execute([group])?;
            return forget_if_empty(database, group);
        }
    };
    Ok(())
}

/// A group whose silences were notified is looked at again.
pub(super) fn look_after(database: &Connection, group: i64, at: Timestamp) -> rusqlite::Result<()> {
    let insert =
        "INSERT INTO reminders VALUES(?, ?) ON CONFLICT(grp) DO UPDATE SET due = min(due, excluded.due)";
    database.prepare_cached(insert)?.execute(params![group, at.as_millis()])?;
    Ok(())
}

/// When the next group of these partitions is looked at.
pub(super) async fn first(engine: &EmbeddedEngine, partitions: &[u16]) -> Result<Option<Timestamp>> {
    let select = "SELECT reminders.due FROM reminders JOIN groups ON groups.id = grp WHERE partition IN \
                  (SELECT value FROM json_each(?)) ORDER BY reminders.due LIMIT 1";
    let partitions = to_json(&partitions)?;
    let first = move |database: &Connection| {
        let mut select = database.prepare_cached(select)?;
        Ok(select.query_row([partitions], |row| row.get::<_, i64>(0)).optional()?)
    };
    Ok(engine.readers.read(first).await?.map(Timestamp::from_millis))
}

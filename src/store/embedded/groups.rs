//! Groups: transitions that are told together wait here until their group is sealed.
//!
//! A member is known by a letter:
//! - `o` waits to be told that it is offline
//! - `t` was told to be offline
//! - `b` was told to be offline and waits to be told that it is back
//! - `x` over: told both, or taken back before either was told
//!
//! After the letter of one that was told stand a colon and the receivers, with commas between them.
//!
//! A member stays in the group that it joined first, wherever later news of it would fall: the return is told
//! where its silence was, and after it, also if labels or the configuration have changed meanwhile.
//!
//! Everything that does not lead from one of these to the next changes nothing, so a transition may
//! join again at any time, and a return may come before its silence.

use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::seal::{seal_group, tidy};
use crate::clock::Timestamp;
use crate::store::json::to_json;
use crate::store::{Join, Joined, LARGEST_STEP, Pace, Result, partition_of_group};
use crate::store::{
    notification::MOST_MEMBERS, notification::Member, notification::alone, notification::told,
};

/// How many members are sealed in one transaction at the most, and those of the group that exceeds it.
const MOST_SEALED: usize = 10 * MOST_MEMBERS;

/// A transition on its way into its group, ready to be written.
struct Joining {
    partition: u16,
    key: String,
    /// The group (JSON).
    body: String,
    member: Member,
    /// What is told of it (JSON).
    told: String,
    /// Nothing else that joins with it is of its group.
    is_alone: bool,
}

pub(super) async fn join(
    engine: &EmbeddedEngine,
    joins: &[Join],
    pace: Pace,
    receivers: &[String],
    now: Timestamp,
) -> Result<Joined> {
    let partitions = engine.memory.partitions();
    let ready = joins.iter().zip(alone(joins)).map(|(join, is_alone)| {
        let key = join.group.key.clone();
        let partition = partition_of_group(&key, partitions);
        let (body, member, told) = (to_json(&join.group)?, Member::new(&join.news), told(&join.news)?);
        Ok(Joining { partition, key, body, member, told, is_alone })
    });
    let ready: Vec<Joining> = ready.collect::<Result<_>>()?;
    let receivers = receivers.to_vec();
    let write = move |database: &Connection| {
        let mut sealed = 0;
        for one in &ready {
            if let Some(due_at_once) = join_one(database, one, pace, now)? {
                sealed += seal_group(database, due_at_once, &receivers, pace, now)?;
            }
        }
        Ok(Joined { sealed, deliveries: Vec::new() })
    };
    engine.writer.write("join", write).await
}

/// Lets one transition join its group. Answers the group if it is to be sealed with that.
fn join_one(
    database: &Connection,
    joining: &Joining,
    pace: Pace,
    now: Timestamp,
) -> DatabaseResult<Option<i64>> {
    let Joining { partition, key, body, member, told, is_alone } = joining;
    let detected = member.detected_at.as_millis();
    let mut name = member.id.clone();
    // The fleet and kinds may be blind from the same moment on, each for itself.
    let of_group = (member.form == "blind").then_some(key.as_str());
    let mut known = known(database, &name, of_group)?;
    let first = known.as_ref().map(|known| known.group);
    // A silence that is over and was detected once more is news: it is a member of its own.
    if known.as_ref().is_some_and(|known| known.letter == 'x' && known.detected < detected) {
        name = format!("{name} {detected}");
        known = self::known(database, &name, of_group)?;
    }
    let Some(next) = next_letter(known.as_ref().map(|known| known.letter), member.form) else {
        return Ok(None);
    };
    // A group that is missing is made anew: its member joins the one that it would join now.
    let known_place = first.map(|group| place(database, group, key)).transpose()?.flatten();
    let Place { group, sealed, due: waits_until, is_own } = match known_place {
        Some(place) => place,
        None => make_place(database, *partition, key, body)?,
    };
    if let Some(lost) = first.filter(|first| *first != group) {
        database
            .prepare_cached("DELETE FROM members WHERE grp = ? AND member = ?")?
            .execute(params![lost, name])?;
    }
    let is_over = next == 'x';
    // Only a silence has a wait of its own: what else is known to be so goes with whatever is told next.
    let since = if member.form == "offline" { now } else { now - pace.wait };
    let (joined, over) =
        if is_over { (None, Some(now.as_millis())) } else { (Some(since.as_millis()), None) };
    let told = (!is_over).then_some(told);
    let letter = match known {
        Some(known) if next == 'b' => format!("b{}", known.told_to),
        _ => next.to_string(),
    };
    database
        .prepare_cached("INSERT OR REPLACE INTO members VALUES(?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![group, name, letter, detected, joined, over, told])?;
    if is_over {
        rest_if_nobody_waits(database, group)?;
        return Ok(None);
    }
    let due = match (member.form, sealed) {
        ("blind", _) => now,
        (_, None) => now + pace.wait,
        // A sealing that is yet to come is not believed: the group would wait for it.
        (_, Some(sealed)) if sealed > now.as_millis() => now + pace.wait,
        (_, Some(sealed)) => (now + pace.wait).max(Timestamp::from_millis(sealed) + pace.interval),
    };
    database
        .prepare_cached("UPDATE groups SET due = coalesce(due, ?), body = iif(?, ?, body) WHERE id = ?")?
        .execute(params![due.as_millis(), is_own, body, group])?;
    Ok((*is_alone && is_own && waits_until.is_none() && due <= now).then_some(group))
}

/// A group that something joins.
struct Place {
    group: i64,
    /// When it was sealed last.
    sealed: Option<i64>,
    due: Option<i64>,
    /// It is the one that what joins belongs to now.
    is_own: bool,
}

fn place(database: &Connection, group: i64, key: &str) -> rusqlite::Result<Option<Place>> {
    let mut select = database.prepare_cached("SELECT sealed, due, key = ? FROM groups WHERE id = ?")?;
    let place = select.query_row(params![key, group], |row| {
        Ok(Place { group, sealed: row.get(0)?, due: row.get(1)?, is_own: row.get(2)? })
    });
    place.optional()
}

fn make_place(database: &Connection, partition: u16, key: &str, body: &str) -> rusqlite::Result<Place> {
    let mut select = database.prepare_cached("SELECT id FROM groups WHERE key = ?")?;
    let known = select.query_row([key], |row| row.get(0)).optional()?;
    if let Some(place) = known.map(|group| place(database, group, key)).transpose()?.flatten() {
        return Ok(place);
    }
    let insert = "INSERT INTO groups(partition, key, body) VALUES(?, ?, ?)";
    let group = database.prepare_cached(insert)?.insert(params![partition, key, body])?;
    Ok(Place { group, sealed: None, due: None, is_own: true })
}

/// What is known of a member.
struct Known {
    group: i64,
    letter: char,
    /// Nothing, or a colon and the receivers that were told its silence.
    told_to: String,
    detected: i64,
}

/// In whichever group it is, or in the one with that key.
fn known(database: &Connection, member: &str, of_group: Option<&str>) -> rusqlite::Result<Option<Known>> {
    let mut select = database.prepare_cached(
        "SELECT grp, letter, detected FROM members \
         WHERE member = ?1 AND (?2 IS NULL OR grp = (SELECT id FROM groups WHERE key = ?2)) LIMIT 1",
    )?;
    let known = select.query_row(params![member, of_group], |row| {
        let text: String = row.get(1)?;
        let mut letters = text.chars();
        let letter = letters.next().unwrap_or('x');
        let told_to = letters.as_str().to_owned();
        Ok(Known { group: row.get(0)?, letter, told_to, detected: row.get(2)? })
    });
    known.optional()
}

/// What becomes of a member of that letter to which this happens; `None`: nothing.
fn next_letter(letter: Option<char>, form: &str) -> Option<char> {
    let is_end = matches!(form, "online" | "removed");
    match letter {
        None if !is_end => Some('o'),
        Some('t') if form == "online" => Some('b'),
        None | Some('o' | 't') if is_end => Some('x'),
        _ => None,
    }
}

/// A group in which nobody waits is not due.
pub(super) fn rest_if_nobody_waits(database: &Connection, group: i64) -> DatabaseResult<()> {
    let update = "UPDATE groups SET due = NULL WHERE id = ?1 AND NOT EXISTS \
                  (SELECT 1 FROM members WHERE grp = ?1 AND joined IS NOT NULL)";
    database.prepare_cached(update)?.execute([group])?;
    Ok(())
}

/// Seals what is due in these partitions, up to a step of groups.
pub(super) async fn seal(
    engine: &EmbeddedEngine,
    partitions: &[u16],
    receivers: &[String],
    pace: Pace,
    now: Timestamp,
) -> Result<usize> {
    let (partitions, receivers) = (to_json(&partitions)?, receivers.to_vec());
    let write = move |database: &Connection| {
        let due: Vec<i64> = database
            .prepare_cached(
                "SELECT id FROM groups WHERE due <= ? AND partition IN (SELECT value FROM json_each(?)) \
                 ORDER BY due LIMIT ?",
            )?
            .query_map(params![now.as_millis(), partitions, LARGEST_STEP as i64], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut sealed = 0;
        for group in due {
            if sealed >= MOST_SEALED {
                break;
            }
            sealed += seal_group(database, group, &receivers, pace, now)?;
        }
        tidy(database, now)?;
        Ok(sealed)
    };
    engine.writer.write("seal", write).await
}

/// When the next group of these partitions is due.
pub(super) async fn first_seal(engine: &EmbeddedEngine, partitions: &[u16]) -> Result<Option<Timestamp>> {
    let select = "SELECT due FROM groups WHERE due IS NOT NULL AND partition IN \
                  (SELECT value FROM json_each(?)) ORDER BY due LIMIT 1";
    let partitions = to_json(&partitions)?;
    let first = move |database: &Connection| {
        let mut select = database.prepare_cached(select)?;
        Ok(select.query_row([partitions], |row| row.get::<_, i64>(0)).optional()?)
    };
    Ok(engine.readers.read(first).await?.map(Timestamp::from_millis))
}

//! Groups: transitions that share a notification wait here until their group is sealed.
//!
//! A member is stored with the letter of its [`Stage`]. Once receivers were notified, a colon and the receivers follow,
//! separated by commas.
//!
//! A member stays in the group that it joined first, whatever group its later events would join: receivers are
//! notified of a return where they were notified of the silence, and after it, also if labels or the configuration
//! have changed meanwhile.
//!
//! The rules are those of `presence/grouping.rs`.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::seal::{clear_due_if_empty, seal_group, tidy, times};
use crate::clock::Timestamp;
use crate::presence::{Form, GroupTimes, Pace, Stage, is_detected_again, waits_since};
use crate::store::json::to_json;
use crate::store::notification::{GroupMember, MOST_MEMBERS, alone, event_json};
use crate::store::{Join, Joined, LARGEST_STEP, Result, partition_of_group};

/// One transaction seals no further group once it has sealed this many members.
const MOST_SEALED: usize = 10 * MOST_MEMBERS;

/// A transition on its way into its group, ready to be written.
struct Joining {
    partition: u16,
    key: String,
    /// The group (JSON).
    body: String,
    member: GroupMember,
    /// The record or interval (JSON).
    json: String,
}

impl Joining {
    /// The group in which the member is looked up; `None`: any group, because a record is in one alone. The fleet and
    /// kinds may be blind from the same moment on, each for itself.
    fn of_group(&self) -> Option<&str> {
        (self.member.form == Form::Blind).then_some(self.key.as_str())
    }
}

pub(super) async fn join(
    engine: &EmbeddedEngine,
    joins: &[Join],
    pace: Pace,
    receivers: &[String],
    now: Timestamp,
) -> Result<Joined> {
    let partitions = engine.memory.partitions();
    let ready = joins.iter().map(|join| {
        let key = join.group.key.clone();
        let partition = partition_of_group(&key, partitions);
        let (body, member, json) =
            (to_json(&join.group)?, GroupMember::new(&join.event), event_json(&join.event)?);
        Ok(Joining { partition, key, body, member, json })
    });
    let ready: Vec<Joining> = ready.collect::<Result<_>>()?;
    let receivers = receivers.to_vec();
    let write = move |database: &Connection| {
        let found = ready.iter().map(|one| FoundMember::of(database, one));
        let found: Vec<FoundMember> = found.collect::<rusqlite::Result<_>>()?;
        let is_alone = alone(&joined_keys(&ready, &found));
        let (mut sealed, mut changed) = (0, HashSet::new());
        for ((one, found), is_alone) in ready.iter().zip(found).zip(is_alone) {
            let is_changed = !changed.insert(&one.member.id);
            let found = if is_changed { FoundMember::of(database, one)? } else { found };
            if let Some((group, times)) = join_one(database, one, found, is_alone, pace, now)? {
                sealed += seal_group(database, group, times, &receivers, pace, now)?;
            }
        }
        Ok(Joined { sealed, deliveries: Vec::new() })
    };
    engine.writer.write("join", write).await
}

/// The keys of the groups that these transitions join: that of the member or, of several transitions of one member,
/// that of the first.
fn joined_keys<'a>(joining: &'a [Joining], found: &'a [FoundMember]) -> Vec<&'a str> {
    let mut of_member: HashMap<&str, &str> = HashMap::with_capacity(joining.len());
    let key = |(one, found): (&'a Joining, &'a FoundMember)| {
        let key = found.group.as_ref().and_then(|(_, key)| key.as_deref()).unwrap_or(&one.key);
        if one.member.form == Form::Blind { key } else { of_member.entry(&one.member.id).or_insert(key) }
    };
    joining.iter().zip(found).map(key).collect()
}

/// Lets one transition join its group. If the group is sealed with it, answers the group and its times before.
/// `is_alone`: no other transition of the same call joins that group.
fn join_one(
    database: &Connection,
    joining: &Joining,
    found: FoundMember,
    is_alone: bool,
    pace: Pace,
    now: Timestamp,
) -> DatabaseResult<Option<(i64, GroupTimes)>> {
    let member = &joining.member;
    let FoundMember { name, group: first, known } = found;
    let first = first.map(|(group, _)| group);
    // A member whose stage cannot be read stays as it is.
    let Some(stage) = known.as_ref().map(|known| known.stage).map_or(Some(None), |stage| stage.map(Some))
    else {
        return Ok(None);
    };
    let Some(next) = Stage::next(stage, member.form) else { return Ok(None) };
    let group = group_to_join(database, first, joining)?;
    if let Some(lost) = first.filter(|first| *first != group.id) {
        database
            .prepare_cached("DELETE FROM members WHERE grp = ? AND member = ?")?
            .execute(params![lost, name])?;
    }
    let notified = known.filter(|_| next == Stage::IsBack).map(|known| known.notified).unwrap_or_default();
    write_member(database, &group, joining, (&name, next, &notified), (pace, now))?;
    if next == Stage::Over {
        clear_due_if_empty(database, group.id)?;
        return Ok(None);
    }
    let due = group.times.due_with(member.form, pace, now);
    database
        .prepare_cached("UPDATE groups SET due = ?, body = iif(?, ?, body) WHERE id = ?")?
        .execute(params![due.as_millis(), group.is_own, joining.body, group.id])?;
    let is_sealed = is_alone && group.times.is_sealed_at_once(member.form, pace, now);
    Ok(is_sealed.then_some((group.id, group.times)))
}

/// A group that a transition joins.
struct JoinedGroup {
    id: i64,
    times: GroupTimes,
    /// Whether it is the group of the transition by current labels and configuration.
    is_own: bool,
}

/// The group of a member, or the one that it would join now: a missing group is created.
fn group_to_join(
    database: &Connection,
    first: Option<i64>,
    joining: &Joining,
) -> rusqlite::Result<JoinedGroup> {
    let Joining { partition, key, body, .. } = joining;
    if let Some(group) = first.map(|group| read_group(database, group, key)).transpose()?.flatten() {
        return Ok(group);
    }
    let mut select = database.prepare_cached("SELECT id FROM groups WHERE key = ?")?;
    let known = select.query_row([key], |row| row.get(0)).optional()?;
    if let Some(group) = known.map(|group| read_group(database, group, key)).transpose()?.flatten() {
        return Ok(group);
    }
    let insert = "INSERT INTO groups(partition, key, body) VALUES(?, ?, ?)";
    let id = database.prepare_cached(insert)?.insert(params![partition, key, body])?;
    Ok(JoinedGroup { id, times: GroupTimes::default(), is_own: true })
}

fn read_group(database: &Connection, id: i64, key: &str) -> rusqlite::Result<Option<JoinedGroup>> {
    let mut select = database.prepare_cached("SELECT sealed, due, key = ? FROM groups WHERE id = ?")?;
    let group = select.query_row(params![key, id], |row| {
        let [sealed, due] = [row.get(0)?, row.get(1)?].map(|ms: Option<i64>| ms.map(Timestamp::from_millis));
        Ok(JoinedGroup { id, times: GroupTimes { sealed, due }, is_own: row.get(2)? })
    });
    group.optional()
}

/// Stores a member with its next stage and the receivers that were notified of its silence.
fn write_member(
    database: &Connection,
    group: &JoinedGroup,
    joining: &Joining,
    (name, next, notified): (&str, Stage, &str),
    (pace, now): (Pace, Timestamp),
) -> rusqlite::Result<()> {
    let Joining { member, json, .. } = joining;
    let since = waits_since(member.form, pace, now).as_millis();
    let is_over = next == Stage::Over;
    let (joined, over) = if is_over { (None, Some(now.as_millis())) } else { (Some(since), None) };
    let letter = format!("{}{notified}", next.letter());
    let (detected, json) = (member.detected_at.as_millis(), (!is_over).then_some(json));
    database
        .prepare_cached("INSERT OR REPLACE INTO members VALUES(?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![group.id, name, letter, detected, joined, over, json])?;
    Ok(())
}

/// The member of a transition.
struct FoundMember {
    /// The id of the member or, for a silence that was detected again, the id and the time of that detection.
    name: String,
    /// The group that it joined first, and the key of that group, if it is readable.
    group: Option<(i64, Option<String>)>,
    known: Option<KnownMember>,
}

impl FoundMember {
    fn of(database: &Connection, joining: &Joining) -> rusqlite::Result<FoundMember> {
        let member = &joining.member;
        let (name, first) = (member.id.clone(), known_member(database, &member.id, joining.of_group())?);
        let is_other = |known: &KnownMember| {
            known.stage.is_some_and(|stage| is_detected_again(stage, known.detected_at, member.detected_at))
        };
        // A member that is over is forgotten some time, and its silence may have been detected again before.
        let is_end = matches!(member.form, Form::Online | Form::Removed);
        if !first.as_ref().map_or(is_end, is_other) {
            return Ok(FoundMember { name, group: first.as_ref().map(KnownMember::group), known: first });
        }
        let again = format!("{name} {}", member.detected_at.as_millis());
        let known = known_member(database, &again, joining.of_group())?;
        let group = first.as_ref().or(known.as_ref()).map(KnownMember::group);
        Ok(FoundMember { name: if group.is_some() { again } else { name }, group, known })
    }
}

/// A member as it is stored.
struct KnownMember {
    group: i64,
    /// The key of the group; `None`: it is lost or unreadable.
    key: Option<String>,
    /// `None`: its letter is that of no stage.
    stage: Option<Stage>,
    /// Empty, or a colon and the receivers that were notified of its silence.
    notified: String,
    detected_at: Timestamp,
}

impl KnownMember {
    fn group(&self) -> (i64, Option<String>) {
        (self.group, self.key.clone())
    }
}

/// Finds a member in any group or, with `of_group`, in the group of that key.
fn known_member(
    database: &Connection,
    member: &str,
    of_group: Option<&str>,
) -> rusqlite::Result<Option<KnownMember>> {
    let mut select = database.prepare_cached(
        "SELECT grp, letter, detected, key FROM members LEFT JOIN groups ON groups.id = grp \
         WHERE member = ?1 AND (?2 IS NULL OR grp = (SELECT id FROM groups WHERE key = ?2)) LIMIT 1",
    )?;
    let known = select.query_row(params![member, of_group], |row| {
        let text: String = row.get(1)?;
        let mut letters = text.chars();
        let stage = letters.next().map_or(Some(Stage::Over), Stage::of);
        let notified = letters.as_str().to_owned();
        let detected_at = Timestamp::from_millis(row.get(2)?);
        let key = row.get_ref(3)?.as_str().ok().map(str::to_owned);
        Ok(KnownMember { group: row.get(0)?, key, stage, notified, detected_at })
    });
    known.optional()
}

/// Seals the due groups of these partitions, up to one step.
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
            sealed += seal_group(database, group, times(database, group)?, &receivers, pace, now)?;
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

//! Groups: transitions that share a notification wait here until their group is sealed.
//!
//! A member is stored with the letter of its [`Stage`]. Once receivers were notified, a colon and the receivers follow,
//! separated by commas.
//!
//! A record has a member in each group that its first event joined, and its later events join the same groups, whatever
//! others they would join: receivers are notified of a return where they were notified of the silence, and after it,
//! also if labels or the configuration have changed meanwhile.
//!
//! The rules are those of `presence/grouping.rs`.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::seal::{clear_due_if_empty, seal_group, tidy, times};
use super::waiting::is_last;
use crate::clock::Timestamp;
use crate::presence::{
    GroupTimes, JoiningTransition, MemberTransition, Pace, Stage, is_detected_again, since_of, stored_since,
};
use crate::store::json::to_json;
use crate::store::member_names::of_member;
use crate::store::notification::{GroupMember, MAX_SEALED, event_json, only_of_group};
use crate::store::receiver_list::is_told;
use crate::store::{Destinations, Group, Join, JoinResult, MAX_STEP, Result, partition_of_group};

/// A transition on its way into its groups, ready to be written.
struct Joining {
    /// Those that the caller names.
    groups: Vec<NamedGroup>,
    member: GroupMember,
    /// The record or interval (JSON).
    json: String,
    /// Until when its silence is held.
    held_until: Option<Timestamp>,
}

struct NamedGroup {
    partition: u16,
    key: String,
    /// The group (JSON).
    body: String,
}

impl Joining {
    fn new(join: &Join, partitions: u16, destinations: &Destinations, now: Timestamp) -> Result<Joining> {
        let named = |group: &Group| {
            let (partition, key) = (partition_of_group(&group.key, partitions), group.key.clone());
            Ok(NamedGroup { partition, key, body: to_json(group)? })
        };
        let groups = join.groups.iter().map(named).collect::<Result<_>>()?;
        let held_until = join.event.record().and_then(|record| destinations.silence_held_until(record, now));
        let (member, json) = (GroupMember::new(&join.event), event_json(&join.event)?);
        Ok(Joining { groups, member, json, held_until })
    }
}

pub(super) async fn join(
    engine: &EmbeddedEngine,
    joins: &[Join],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<JoinResult> {
    let partitions = engine.memory.partitions();
    let ready = joins.iter().map(|join| Joining::new(join, partitions, destinations, now));
    let ready: Vec<Joining> = ready.collect::<Result<_>>()?;
    let destinations = destinations.clone();
    let write = move |database: &Connection| {
        let found = ready.iter().map(|one| targets(database, one));
        let found: Vec<Vec<JoinTarget>> = found.collect::<rusqlite::Result<_>>()?;
        let keys = joined_keys(&ready, &found);
        let all: Vec<&str> = keys.iter().flatten().copied().collect();
        let is_alone: HashSet<&str> = all
            .iter()
            .zip(only_of_group(&all))
            .filter(|(_, is_alone)| *is_alone)
            .map(|(key, _)| *key)
            .collect();
        let (mut sealed, mut changed) = (0, HashSet::new());
        for (one, found) in ready.iter().zip(&found) {
            let again = if changed.insert(&one.member.id) { None } else { Some(targets(database, one)?) };
            for target in again.as_ref().unwrap_or(found) {
                let key = target.key();
                let timing = (destinations.of(key).pace, destinations.held_until(key, now));
                let is_alone = is_alone.contains(key);
                if let Some((group, times)) = join_one(database, one, target, is_alone, timing, now)? {
                    sealed += seal_group(database, group, times, &destinations, now)?;
                }
            }
        }
        Ok(JoinResult { sealed, has_queued: sealed > 0, ..JoinResult::default() })
    };
    engine.writer.write("join", write).await
}

/// The keys of the groups that these transitions join: those of the member or, of several transitions of one member,
/// those of the first.
fn joined_keys<'a>(joining: &'a [Joining], found: &'a [Vec<JoinTarget>]) -> Vec<Vec<&'a str>> {
    let mut of_member: HashMap<&str, Vec<&str>> = HashMap::with_capacity(joining.len());
    let keys = |(one, found): (&'a Joining, &'a Vec<JoinTarget<'a>>)| {
        let keys: Vec<&str> = found.iter().map(JoinTarget::key).collect();
        match one.member.form {
            MemberTransition::Blind => keys,
            _ => of_member.entry(&one.member.id).or_insert(keys).clone(),
        }
    };
    joining.iter().zip(found).map(keys).collect()
}

/// One group that a transition joins, with its member there.
struct JoinTarget<'a> {
    /// The group of the caller with that key, or the first one.
    named: &'a NamedGroup,
    found: FoundMember,
}

impl JoinTarget<'_> {
    fn key(&self) -> &str {
        let key = self.found.group.as_ref().and_then(|(_, key)| key.as_deref());
        key.unwrap_or(&self.named.key)
    }
}

/// The groups that a transition joins: those that have members of its record or, if there are none, those that the
/// caller names. The fleet and kinds may be blind from the same moment on, each in its group.
fn targets<'a>(database: &Connection, joining: &'a Joining) -> rusqlite::Result<Vec<JoinTarget<'a>>> {
    let Joining { groups, member, .. } = joining;
    let mut known = Vec::new();
    if member.form == MemberTransition::Blind {
        let mut select = database.prepare_cached("SELECT id FROM groups WHERE key = ?")?;
        for named in groups {
            let group: Option<i64> = select.query_row([&named.key], |row| row.get(0)).optional()?;
            let found = match group {
                Some(group) => FoundMember::of(database, member, group)?,
                None => FoundMember::new(member),
            };
            known.push(JoinTarget { named, found });
        }
        return Ok(known);
    }
    let again = format!("{} {}", member.id, member.detected_at.as_millis());
    let mut select = database.prepare_cached(
        "SELECT DISTINCT grp, key FROM members LEFT JOIN groups ON groups.id = grp WHERE member IN (?, ?) \
         ORDER BY key",
    )?;
    let mut rows = select.query([&member.id, &again])?;
    while let Some(row) = rows.next()? {
        let key = row.get_ref(1)?.as_str().ok();
        let named = groups.iter().find(|named| Some(named.key.as_str()) == key).unwrap_or(&groups[0]);
        known.push(JoinTarget { named, found: FoundMember::of(database, member, row.get(0)?)? });
    }
    if known.is_empty() {
        known.extend(groups.iter().map(|named| JoinTarget { named, found: FoundMember::new(member) }));
    }
    Ok(known)
}

/// Lets one transition join its group. If the group is sealed with it, answers the group and its times before.
/// `is_alone`: no other transition of the same call joins that group.
fn join_one(
    database: &Connection,
    joining: &Joining,
    target: &JoinTarget<'_>,
    is_alone: bool,
    (pace, held_until): (Pace, Option<Timestamp>),
    now: Timestamp,
) -> DatabaseResult<Option<(i64, GroupTimes)>> {
    let member = &joining.member;
    let JoinTarget { named, found: FoundMember { name, group: first, known } } = target;
    let first = first.as_ref().map(|(group, _)| *group);
    // A member whose stage cannot be read stays as it is.
    let Some(stage) = known.as_ref().map(|known| known.stage).map_or(Some(None), |stage| stage.map(Some))
    else {
        return Ok(None);
    };
    let told_before = known.as_ref().map_or("", |known| known.notified.as_str());
    let form = Stage::form(stage, pace.form(member.form), is_told(told_before));
    let Some(next) = Stage::next(stage, form) else { return Ok(None) };
    let group = group_to_join(database, first, named)?;
    if let Some(lost) = first.filter(|first| *first != group.id) {
        database
            .prepare_cached("DELETE FROM members WHERE grp = ? AND member = ?")?
            .execute(params![lost, name])?;
    }
    let notified = if next == Stage::IsBack { told_before } else { "" };
    let held = joining.held_until.max(return_at(database, group.id, joining, pace, now)?);
    let since = pace.held_since(pace.waits_since(form, member.deadline, now), held);
    if stage == Some(Stage::Notified) && pace.has_lasting() {
        database
            .prepare_cached("DELETE FROM lasting WHERE grp = ? AND member = ?")?
            .execute(params![group.id, name])?;
    }
    let is_last =
        form == MemberTransition::Online && next != Stage::Over && is_last(database, group.id, pace)?;
    let deadline = pace.storm_deadline(form, member.deadline, held);
    let ready = JoiningTransition { form, since, is_last, held_until, deadline };
    let since = group.times.since_with(ready, pace, now);
    let stored = (next != Stage::Over).then_some(stored_since(form.is_final(), since));
    write_member(database, &group, joining, (name, next, notified), (stored, now))?;
    if next == Stage::Over {
        clear_due_if_empty(database, group.id)?;
        return Ok(None);
    }
    let due = group.times.due_with(ready, pace, now);
    database
        .prepare_cached("UPDATE groups SET due = ?, body = iif(?, ?, body) WHERE id = ?")?
        .execute(params![due.as_millis(), group.is_own, named.body, group.id])?;
    let is_sealed = is_alone && group.times.is_sealed_at_once(ready, pace, now);
    Ok(is_sealed.then_some((group.id, GroupTimes { due: Some(due), ..group.times })))
}

/// When an earlier return of the unit of a silence is notified, if one waits in the group: see [`Pace::returns_wait`].
fn return_at(
    database: &Connection,
    group: i64,
    Joining { member, .. }: &Joining,
    pace: Pace,
    now: Timestamp,
) -> rusqlite::Result<Option<Timestamp>> {
    let unit = |name: &str| of_member(name).map(|(_, id)| id.unit);
    let is_behind = member.form == MemberTransition::Offline && pace.returns_wait().is_some();
    let Some(own) = unit(&member.id).filter(|_| is_behind) else { return Ok(None) };
    // Members that are final, as returns are, sort before zero.
    let select = "SELECT member, joined FROM members WHERE grp = ? AND joined < 0";
    let mut select = database.prepare_cached(select)?;
    let (mut rows, mut last) = (select.query([group])?, None);
    while let Some(row) = rows.next()? {
        if row.get_ref(0)?.as_str().ok().and_then(unit).is_some_and(|other| other == own) {
            last = last.max(Some(since_of(row.get(1)?)));
        }
    }
    Ok(last.map(|since| since + pace.wait).filter(|at| *at > now))
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
    NamedGroup { partition, key, body }: &NamedGroup,
) -> rusqlite::Result<JoinedGroup> {
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

/// Stores a member with its next stage, the receivers that were notified of its silence and when its wait begins.
fn write_member(
    database: &Connection,
    group: &JoinedGroup,
    joining: &Joining,
    (name, next, notified): (&str, Stage, &str),
    (joined, now): (Option<i64>, Timestamp),
) -> rusqlite::Result<()> {
    let Joining { member, json, .. } = joining;
    let is_over = next == Stage::Over;
    let over = is_over.then_some(now.as_millis());
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
    fn new(member: &GroupMember) -> FoundMember {
        FoundMember { name: member.id.clone(), group: None, known: None }
    }

    /// In a group that has, or had, a member of the record.
    fn of(database: &Connection, member: &GroupMember, group: i64) -> rusqlite::Result<FoundMember> {
        let (name, first) = (member.id.clone(), known_member(database, &member.id, group)?);
        let is_other = |known: &KnownMember| {
            known.stage.is_some_and(|stage| is_detected_again(stage, known.detected_at, member.detected_at))
        };
        // A member that is over is forgotten some time, and its silence may have been detected again before.
        let is_end = matches!(member.form, MemberTransition::Online | MemberTransition::Removed);
        if !first.as_ref().map_or(is_end, is_other) {
            return Ok(FoundMember { name, group: first.as_ref().map(KnownMember::group), known: first });
        }
        let again = format!("{name} {}", member.detected_at.as_millis());
        let known = known_member(database, &again, group)?;
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

/// Finds a member in a group.
fn known_member(database: &Connection, member: &str, group: i64) -> rusqlite::Result<Option<KnownMember>> {
    let mut select = database.prepare_cached(
        "SELECT grp, letter, detected, key FROM members LEFT JOIN groups ON groups.id = grp \
         WHERE grp = ? AND member = ?",
    )?;
    let known = select.query_row(params![group, member], |row| {
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
    destinations: &Destinations,
    now: Timestamp,
) -> Result<usize> {
    let (partitions, destinations) = (to_json(&partitions)?, destinations.clone());
    let write = move |database: &Connection| {
        let due: Vec<i64> = database
            .prepare_cached(
                "SELECT id FROM groups WHERE due <= ? AND partition IN (SELECT value FROM json_each(?)) \
                 ORDER BY due LIMIT ?",
            )?
            .query_map(params![now.as_millis(), partitions, MAX_STEP as i64], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut sealed = 0;
        for group in due {
            if sealed >= 10 * MAX_SEALED {
                break;
            }
            sealed += seal_group(database, group, times(database, group)?, &destinations, now)?;
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

/// When these groups are due.
pub(super) async fn due(engine: &EmbeddedEngine, keys: &[String]) -> Result<Vec<Option<Timestamp>>> {
    let keys = keys.to_vec();
    let due = move |database: &Connection| {
        let mut select = database.prepare_cached("SELECT due FROM groups WHERE key = ?")?;
        let due = |key: &String| select.query_row([key], |row| row.get::<_, Option<i64>>(0)).optional();
        Ok(keys.iter().map(due).collect::<rusqlite::Result<Vec<_>>>()?)
    };
    let due = engine.readers.read(due).await?;
    Ok(due.into_iter().map(|due| due.flatten().map(Timestamp::from_millis)).collect())
}

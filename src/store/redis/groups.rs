//! Groups: transitions for one notification wait in a group until the group is sealed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redis::{ScriptInvocation, pipe};

use super::joining::JoiningEvent;
use super::reading::milliseconds;
use super::steps::KeySteps;
use super::{RedisEngine, group_of, hand_out, held_silences, waiting_returns};
use crate::clock::Timestamp;
use crate::presence::{MemberTransition, Stage};
use crate::store::json::to_json;
use crate::store::{
    Capacity, Destination, Destinations, Group, Index, Join, JoinResult, MAX_STEP, OutboxEvent, Pace,
    ReceiverName, Result, Table,
};
use crate::store::{
    notification::GroupMember, notification::KEPT_AFTER_END, notification::MAX_MEMBERS,
    notification::MAX_SEALED, notification::event_json, notification::only_of_group,
};
use crate::telemetry::Stored;

/// How many transitions join, and how many groups are sealed, in one script: within a millisecond, because Redis
/// serves no other command meanwhile.
pub(super) const JOIN_STEP: usize = 32;
const SEAL_STEP: usize = 100;

pub(super) async fn join(
    engine: &RedisEngine,
    joins: &[Join],
    destinations: &Destinations,
    capacity: &Capacity,
    now: Timestamp,
) -> Result<JoinResult> {
    let stored = group_of::stored(engine, joins).await?;
    let pairs = joins.iter().zip(&stored);
    let pairs = pairs.flat_map(|(join, groups)| groups.iter().map(move |group| (group, &join.event)));
    let pairs: Vec<(&Group, &OutboxEvent)> = pairs.collect();
    let held_until = |event: &OutboxEvent| destinations.silence_held_until(event.record()?, now);
    let keys: Vec<&str> = pairs.iter().map(|(group, _)| group.key.as_str()).collect();
    let groups = keys.iter().map(|key| engine.keys.partition_of_group(key)).collect();
    let mut joining: Vec<JoiningEvent> = pairs
        .iter()
        .zip(only_of_group(&keys))
        .map(|((group, event), is_alone)| {
            let (member, held_until) = (GroupMember::new(event), held_until(event));
            JoiningEvent { group, event, member, is_alone, held_until, return_at: None }
        })
        .collect();
    waiting_returns::note(engine, &mut joining, destinations, now).await?;
    let (mut joined, rest) = hand_out::hand_out(engine, joining, destinations, capacity, now).await?;
    let mut targets: BTreeMap<Target, Vec<JoiningEvent>> = BTreeMap::new();
    for joining in rest {
        let key = &joining.group.key;
        let target =
            (engine.keys.partition_of_group(key), destinations.of(key), destinations.held_until(key, now));
        targets.entry(target).or_default().push(joining);
    }
    let steps = targets.iter().flat_map(|((partition, destination, held_until), joining)| {
        let slot = engine.keys.slot(*partition);
        joining.chunks(JOIN_STEP).map(move |step| {
            let others = destinations.others(destination);
            (slot, join_step(engine, *partition, step, (destination, *held_until), others, now))
        })
    });
    // The steps of a partition run in the order in which they are sent: one connection, one server.
    let sealed: usize = engine.topology.run_limited(steps.collect()).await?.into_iter().sum();
    joined.sealed += sealed;
    joined.has_queued |= sealed > 0;
    joined.groups = groups;
    Ok(joined)
}

/// The groups that one script changes are of one partition, have the same receivers and pace, and are held until the
/// same moment.
type Target = (u16, Arc<Destination>, Option<Timestamp>);

pub(super) async fn join_step(
    engine: &RedisEngine,
    partition: u16,
    joining: &[JoiningEvent<'_>],
    (Destination { receivers, pace, .. }, held_until): (&Destination, Option<Timestamp>),
    others: Vec<&String>,
    now: Timestamp,
) -> Result<usize> {
    // Only a return may go to receivers that the group does not have.
    let has_return = joining.iter().any(|one| one.member.form == MemberTransition::Online);
    let others = if has_return { others } else { Vec::new() };
    let mut script = engine.scripts.join.prepare_invoke();
    sealing_keys(engine, &mut script, partition, receivers, &others);
    script.arg(now.as_millis()).arg(now.to_string());
    script.arg(pace.wait.as_millis() as u64).arg(pace.interval.as_millis() as u64);
    script.arg(pace.gathers().as_millis() as u64).arg(held_until.map_or(0, Timestamp::as_millis));
    script.arg(looks_after(*pace));
    script.arg(receivers.len() + others.len()).arg(receivers.len()).arg(joining.len());
    for JoiningEvent { group, .. } in joining {
        let key = &group.key;
        script.key(engine.keys.of(partition, "waiting", key)).arg(key);
    }
    lasting_keys(engine, &mut script, partition, *pace, joining.iter().map(|one| one.group.key.as_str()));
    for joining in joining {
        script.arg(joining.name());
    }
    for one in joining {
        let JoiningEvent { group, event, member, is_alone, .. } = one;
        script.arg(to_json(group)?).arg(if *is_alone { "alone" } else { "" });
        script.arg(&member.id).arg(pace.form(member.form).as_str()).arg(member.detected_at.as_millis());
        script.arg(one.since(*pace, now).as_millis()).arg(event_json(event)?);
        script.arg(one.storm_deadline(*pace).map_or(0, Timestamp::as_millis));
    }
    engine.topology.run_alerting("join", engine.keys.slot(partition), &script).await
}

/// Seals due groups in these partitions, up to a step of groups in each.
pub(super) async fn seal(
    engine: &RedisEngine,
    partitions: &[u16],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<usize> {
    let mut pipe = pipe();
    for partition in partitions {
        let groups = engine.keys.in_partition(*partition, "groups");
        pipe.zrangebyscore_limit(groups, "-inf", now.as_millis(), 0, MAX_STEP as isize);
    }
    let members: Vec<Vec<Vec<u8>>> = engine.topology.send("groups_due", &pipe).await?;
    let mut due: BTreeMap<(u16, Arc<Destination>), Vec<String>> = BTreeMap::new();
    let mut held = Vec::new();
    for (partition, members) in partitions.iter().zip(members) {
        let groups = engine.keys.in_partition(*partition, "groups");
        for group in engine.names(&groups, members, Stored::Group).await? {
            match destinations.held_until(&group, now) {
                Some(until) => held.push((groups.clone(), until, group)),
                None => due.entry((*partition, destinations.of(&group))).or_default().push(group),
            }
        }
    }
    hold(engine, &held).await?;
    if destinations.may_hold_silences(now) {
        for ((partition, destination), groups) in &due {
            held_silences::hold(engine, *partition, groups, destination.pace, destinations, now).await?;
        }
    }
    let steps = due.iter().flat_map(|((partition, destination), groups)| {
        let slot = engine.keys.slot(*partition);
        groups.chunks(SEAL_STEP).map(move |groups| {
            let others = destinations.others(destination);
            (slot, seal_step(engine, *partition, groups, destination, others, now))
        })
    });
    let sealed = engine.topology.run_limited(steps.collect()).await?;
    tidy(engine, partitions, now).await?;
    Ok(sealed.into_iter().sum())
}

/// Groups are due when they are held no longer, each with the key of the groups of its partition. One that is empty by
/// now is not entered again.
async fn hold(engine: &RedisEngine, groups: &[(String, Timestamp, String)]) -> Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let mut pipe = pipe();
    for (key, until, group) in groups {
        pipe.cmd("ZADD").arg(key).arg("XX").arg(until.as_millis()).arg(group).ignore();
    }
    engine.topology.send("hold", &pipe).await
}

async fn seal_step(
    engine: &RedisEngine,
    partition: u16,
    groups: &[String],
    Destination { receivers, pace, .. }: &Destination,
    others: Vec<&String>,
    now: Timestamp,
) -> Result<usize> {
    let mut script = engine.scripts.seal.prepare_invoke();
    sealing_keys(engine, &mut script, partition, receivers, &others);
    script.arg(now.as_millis()).arg(now.to_string()).arg(receivers.len() + others.len()).arg(MAX_MEMBERS);
    script.arg(pace.wait.as_millis() as u64).arg(pace.interval.as_millis() as u64).arg(receivers.len());
    script.arg(pace.gathers().as_millis() as u64).arg(looks_after(*pace)).arg(MAX_SEALED);
    for group in groups {
        script.key(engine.keys.of(partition, "waiting", group)).arg(group);
    }
    lasting_keys(engine, &mut script, partition, *pace, groups.iter().map(String::as_str));
    engine.topology.run_alerting("seal", engine.keys.slot(partition), &script).await
}

/// The first keys of `join.lua` and `seal.lua`.
fn sealing_keys(
    engine: &RedisEngine,
    script: &mut ScriptInvocation<'_>,
    partition: u16,
    receivers: &[String],
    others: &[&String],
) {
    for name in ["groups", "over", "members", "sealed", "labels"] {
        script.key(engine.keys.in_partition(partition, name));
    }
    for table in [Table::Notifications, Table::Owed] {
        script.key(engine.keys.cells(partition, table));
    }
    let receivers = receivers.iter().chain(others.iter().copied()).map(|name| ReceiverName::of(name));
    for receiver in receivers.clone() {
        script.key(engine.keys.index(partition, Index::Queue(receiver)));
    }
    for receiver in receivers {
        script.key(engine.keys.cells(partition, Table::Lanes(receiver)));
    }
}

/// When groups are looked at again after a notification (ms); zero: never.
fn looks_after(pace: Pace) -> u64 {
    pace.looks_after.map_or(0, |after| after.as_millis() as u64)
}

/// The last keys of `join.lua` and `seal.lua`: the notified members of these groups, and when these are looked at
/// again.
fn lasting_keys<'a>(
    engine: &RedisEngine,
    script: &mut ScriptInvocation<'_>,
    partition: u16,
    pace: Pace,
    groups: impl Iterator<Item = &'a str>,
) {
    if pace.has_lasting() {
        groups.for_each(|group| {
            script.key(engine.keys.of(partition, "lasting", group));
        });
    }
    if pace.looks_after.is_some() {
        script.key(engine.keys.in_partition(partition, "reminders"));
    }
}

/// Removes a bounded number of members that have been over for longer than [`KEPT_AFTER_END`].
async fn tidy(engine: &RedisEngine, partitions: &[u16], now: Timestamp) -> Result<()> {
    let before = (now - KEPT_AFTER_END).as_millis();
    let mut due = pipe();
    for partition in partitions {
        due.zrangebyscore_limit(engine.keys.in_partition(*partition, "over"), "-inf", before, 0, 100);
    }
    let over: Vec<Vec<Vec<u8>>> = engine.topology.send("over", &due).await?;
    for (&partition, entries) in partitions.iter().zip(over) {
        let entries =
            engine.names(&engine.keys.in_partition(partition, "over"), entries, Stored::Group).await?;
        if entries.is_empty() {
            continue;
        }
        let [over, members, sealed] =
            ["over", "members", "sealed"].map(|name| engine.keys.in_partition(partition, name));
        let groups: BTreeSet<&str> = entries.iter().map(|entry| parts(entry).0).collect();
        let mut read = pipe();
        read.cmd("HMGET").arg(&members).arg(&entries).cmd("HMGET").arg(&sealed).arg(&groups);
        type Texts = Vec<Option<Vec<u8>>>;
        let (stages, times): (Texts, Texts) = engine.topology.send("tidy", &read).await?;
        let mut steps = KeySteps::default();
        for (entry, stage) in entries.iter().zip(&stages) {
            steps.begin().expect_field(&members, entry.as_bytes(), stage.as_deref());
            if is_over(stage) {
                steps.write("HDEL", &members, &[entry.as_bytes()]);
            }
            steps.write("ZREM", &over, &[entry.as_bytes()]);
        }
        for (group, time) in groups.iter().zip(&times) {
            let sealed_at = time.as_deref().map(|time| milliseconds(time).unwrap_or_default());
            if sealed_at.is_some_and(|at| at < before) {
                steps.begin().expect_field(&sealed, group.as_bytes(), time.as_deref());
                steps.write("HDEL", &sealed, &[group.as_bytes()]);
            }
        }
        // Those that have changed are read again the next time.
        let written = engine.write_alerting_steps("tidy", partition, steps).await?;
        let removed = entries.iter().zip(&stages).zip(written);
        let removed = removed.filter(|((_, stage), is_written)| *is_written && is_over(stage));
        group_of::forget(engine, removed.map(|((entry, _), _)| parts(entry).1)).await?;
    }
    Ok(())
}

/// Whether a member is over, or gone.
fn is_over(member: &Option<Vec<u8>>) -> bool {
    member.as_ref().is_none_or(|text| text.first() == Some(&(Stage::Over.letter() as u8)))
}

/// The parts of `<group>\n<member>`; neither contains a line break.
fn parts(entry: &str) -> (&str, &str) {
    entry.split_once('\n').unwrap_or((entry, ""))
}

pub(super) async fn first_seal(engine: &RedisEngine, partitions: &[u16]) -> Result<Option<Timestamp>> {
    let keys = partitions.iter().map(|p| engine.keys.in_partition(*p, "groups"));
    super::units::first_score(engine, "first_seal", keys).await
}

pub(super) async fn due(engine: &RedisEngine, keys: &[String]) -> Result<Vec<Option<Timestamp>>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipe = pipe();
    for key in keys {
        let partition = engine.keys.partition_of_group(key);
        pipe.zscore(engine.keys.in_partition(partition, "groups"), key);
    }
    let due: Vec<Option<f64>> = engine.topology.send("group_due", &pipe).await?;
    Ok(due.into_iter().map(|due| due.map(|ms| Timestamp::from_millis(ms as i64))).collect())
}

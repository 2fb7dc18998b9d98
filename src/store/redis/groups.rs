//! Groups: transitions for one notification wait in a group until the group is sealed.

use std::collections::BTreeMap;

use redis::{ScriptInvocation, pipe};

use super::joining::Joining;
use super::{RedisEngine, group_of, hand_out};
use crate::clock::Timestamp;
use crate::store::json::to_json;
use crate::store::{Capacity, Join, Joined, LARGEST_STEP, Pace, Result};
use crate::store::{
    notification::GroupMember, notification::MOST_MEMBERS, notification::OVER, notification::alone,
    notification::event_json,
};
use crate::telemetry::Stored;

/// How many transitions join, and how many groups are sealed, in one script: within a millisecond, because Redis
/// serves no other command meanwhile.
const JOIN_STEP: usize = 32;
const SEAL_STEP: usize = 100;

pub(super) async fn join(
    engine: &RedisEngine,
    joins: &[Join],
    pace: Pace,
    receivers: &[String],
    capacity: &Capacity,
    now: Timestamp,
) -> Result<Joined> {
    let joins = group_of::in_stored_groups(engine, joins, now).await?;
    let keys: Vec<&str> = joins.iter().map(|join| join.group.key.as_str()).collect();
    let joining: Vec<Joining> = joins
        .iter()
        .zip(alone(&keys))
        .map(|(join, is_alone)| Joining { join, member: GroupMember::new(&join.event), is_alone })
        .collect();
    let (mut joined, rest) = hand_out::hand_out(engine, joining, pace, receivers, capacity, now).await?;
    let mut partitions: BTreeMap<u16, Vec<Joining>> = BTreeMap::new();
    for joining in rest {
        let partition = engine.keys.partition_of_group(&joining.join.group.key);
        partitions.entry(partition).or_default().push(joining);
    }
    let steps = partitions.iter().flat_map(|(partition, joining)| {
        let slot = engine.keys.slot(*partition);
        joining
            .chunks(JOIN_STEP)
            .map(move |step| (slot, join_step(engine, *partition, step, pace, receivers, now)))
    });
    // The steps of a partition run in the order in which they are sent: one connection, one server.
    joined.sealed += engine.topology.few_at_once(steps.collect()).await?.into_iter().sum::<usize>();
    Ok(joined)
}

async fn join_step(
    engine: &RedisEngine,
    partition: u16,
    joining: &[Joining<'_>],
    pace: Pace,
    receivers: &[String],
    now: Timestamp,
) -> Result<usize> {
    let mut script = engine.scripts.join.prepare_invoke();
    sealing_keys(engine, &mut script, partition, receivers);
    script.arg(now.as_millis()).arg(now.to_string());
    script.arg(pace.wait.as_millis() as u64).arg(pace.interval.as_millis() as u64);
    script.arg(receivers.len()).arg(joining.len());
    for Joining { join, .. } in joining {
        let key = &join.group.key;
        script.key(engine.keys.of(partition, "waiting", key)).arg(key);
    }
    for joining in joining {
        script.arg(joining.name());
    }
    for Joining { join, member, is_alone } in joining {
        script.arg(to_json(&join.group)?).arg(if *is_alone { "alone" } else { "" });
        script.arg(&member.id).arg(member.form.as_str());
        script.arg(member.detected_at.as_millis()).arg(event_json(&join.event)?);
    }
    engine.topology.run_alerting("join", engine.keys.slot(partition), &script).await
}

/// Seals due groups in these partitions, up to a step of groups in each.
pub(super) async fn seal(
    engine: &RedisEngine,
    partitions: &[u16],
    receivers: &[String],
    pace: Pace,
    now: Timestamp,
) -> Result<usize> {
    let mut pipe = pipe();
    for partition in partitions {
        let groups = engine.keys.in_partition(*partition, "groups");
        pipe.zrangebyscore_limit(groups, "-inf", now.as_millis(), 0, LARGEST_STEP as isize);
    }
    let members: Vec<Vec<Vec<u8>>> = engine.topology.send("groups_due", &pipe).await?;
    let mut due = Vec::new();
    for (partition, members) in partitions.iter().zip(members) {
        let groups = engine.keys.in_partition(*partition, "groups");
        due.push(engine.names(&groups, members, Stored::Group).await?);
    }
    let steps = partitions.iter().zip(&due).filter(|(_, groups)| !groups.is_empty());
    let steps = steps.flat_map(|(partition, groups)| {
        let slot = engine.keys.slot(*partition);
        groups
            .chunks(SEAL_STEP)
            .map(move |groups| (slot, seal_step(engine, *partition, groups, receivers, pace, now)))
    });
    let sealed = engine.topology.few_at_once(steps.collect()).await?;
    tidy(engine, partitions, now).await?;
    Ok(sealed.into_iter().sum())
}

async fn seal_step(
    engine: &RedisEngine,
    partition: u16,
    groups: &[String],
    receivers: &[String],
    pace: Pace,
    now: Timestamp,
) -> Result<usize> {
    let mut script = engine.scripts.seal.prepare_invoke();
    sealing_keys(engine, &mut script, partition, receivers);
    script.arg(now.as_millis()).arg(now.to_string()).arg(receivers.len()).arg(MOST_MEMBERS);
    script.arg(pace.wait.as_millis() as u64).arg(pace.interval.as_millis() as u64);
    for group in groups {
        script.key(engine.keys.of(partition, "waiting", group)).arg(group);
    }
    engine.topology.run_alerting("seal", engine.keys.slot(partition), &script).await
}

/// The first keys of `join.lua` and `seal.lua`.
fn sealing_keys(
    engine: &RedisEngine,
    script: &mut ScriptInvocation<'_>,
    partition: u16,
    receivers: &[String],
) {
    for name in ["groups", "over", "members", "sealed", "labels", "notifications", "owed"] {
        script.key(engine.keys.in_partition(partition, name));
    }
    for name in ["queue", "lanes"] {
        for receiver in receivers {
            script.key(engine.keys.of(partition, name, receiver));
        }
    }
}

/// Removes a bounded number of members that have been over for longer than [`OVER`].
async fn tidy(engine: &RedisEngine, partitions: &[u16], now: Timestamp) -> Result<()> {
    let before = (now - OVER).as_millis();
    let mut pipe = pipe();
    for partition in partitions {
        pipe.zrangebyscore_limit(engine.keys.in_partition(*partition, "over"), "-inf", before, 0, 100);
    }
    let over: Vec<Vec<Vec<u8>>> = engine.topology.send("over", &pipe).await?;
    for (&partition, entries) in partitions.iter().zip(over) {
        let entries =
            engine.names(&engine.keys.in_partition(partition, "over"), entries, Stored::Group).await?;
        if entries.is_empty() {
            continue;
        }
        let mut script = engine.scripts.tidy.prepare_invoke();
        for name in ["over", "members", "sealed"] {
            script.key(engine.keys.in_partition(partition, name));
        }
        script.arg(before).arg(entries.len()).arg(&entries);
        for entry in &entries {
            script.arg(parts(entry).0);
        }
        engine.topology.run::<()>("tidy", &script).await?;
        group_of::forget(engine, entries.iter().map(|entry| parts(entry).1)).await?;
    }
    Ok(())
}

/// The parts of `<group>\n<member>`; neither contains a line break.
fn parts(entry: &str) -> (&str, &str) {
    entry.split_once('\n').unwrap_or((entry, ""))
}

pub(super) async fn first_seal(engine: &RedisEngine, partitions: &[u16]) -> Result<Option<Timestamp>> {
    let keys = partitions.iter().map(|p| engine.keys.in_partition(*p, "groups"));
    super::units::first_score(engine, "first_seal", keys).await
}

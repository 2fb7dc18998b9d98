//! Groups: transitions that are told together wait here until their group is sealed.

use std::collections::BTreeMap;

use redis::{ScriptInvocation, pipe};

use super::joining::Joining;
use super::{RedisEngine, group_of, hand_out};
use crate::clock::Timestamp;
use crate::store::json::to_json;
use crate::store::{Capacity, Join, Joined, LARGEST_STEP, Pace, Result};
use crate::store::{
    notification::MOST_MEMBERS, notification::Member, notification::OVER, notification::alone,
    notification::told,
};
use crate::telemetry::Stored;

/// How many transitions join, and how many groups are sealed, in one script: within a millisecond, for
/// no other command is served meanwhile.
const JOIN_STEP: usize = 32;
const SEAL_STEP: usize = 100;

pub(super) async fn join(
    engine: &RedisEngine,
    joins: &[Join],
    pace: Pace,
    receivers: &[String],
    room: &Capacity,
    now: Timestamp,
) -> Result<Joined> {
    let joins = group_of::settled(engine, joins, now).await?;
    let joining: Vec<Joining> = joins
        .iter()
        .zip(alone(&joins))
        .map(|(join, is_alone)| Joining { join, member: Member::new(&join.news), is_alone })
        .collect();
    let (mut joined, rest) = hand_out::hand_out(engine, joining, pace, receivers, room, now).await?;
    let mut partitions: BTreeMap<u16, Vec<Joining>> = BTreeMap::new();
    for joining in rest {
        let partition = engine.keys.partition_of_group(&joining.join.group.key);
        partitions.entry(partition).or_default().push(joining);
    }
    let steps = partitions.iter().flat_map(|(partition, joining)| {
        joining.chunks(JOIN_STEP).map(|step| join_step(engine, *partition, step, pace, receivers, now))
    });
    // Steps of one partition run in the order in which they were sent: one connection, one server.
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
        script.arg(member.detected_at.as_millis()).arg(told(&join.news)?);
    }
    engine.topology.tell("join", &script).await
}

/// Seals what is due in these partitions, up to a step of groups in each.
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
        groups.chunks(SEAL_STEP).map(|groups| seal_step(engine, *partition, groups, receivers, pace, now))
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
    engine.topology.tell("seal", &script).await
}

/// The keys that `join.lua` and `seal.lua` begin with.
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

/// Forgets a bounded number of members that have been over for long.
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

/// Of `<group>\n<member>`: neither holds a line break.
fn parts(entry: &str) -> (&str, &str) {
    entry.split_once('\n').unwrap_or((entry, ""))
}

pub(super) async fn first_seal(engine: &RedisEngine, partitions: &[u16]) -> Result<Option<Timestamp>> {
    let keys = partitions.iter().map(|p| engine.keys.in_partition(*p, "groups"));
    super::units::first_score(engine, "first_seal", keys).await
}

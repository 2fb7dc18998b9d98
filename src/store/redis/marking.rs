//! Marks silences as notified that receivers know of and a failover may have lost: see `acknowledged.rs`.

use std::collections::BTreeMap;

use super::joining::Joining;
use super::{RedisEngine, group_of, groups};
use crate::clock::Timestamp;
use crate::store::json::to_json;
use crate::store::notification::GroupMember;
use crate::store::{Destination, Destinations, Group, Join, Marking, OutboxEvent, Pace, Result};

/// A member of a group that is marked.
struct Member<'a> {
    group: &'a Group,
    event: &'a OutboxEvent,
    marking: &'a Marking,
}

/// See [`NotifiedSilences::mark_notified`](crate::store::NotifiedSilences::mark_notified).
pub(super) async fn mark(
    engine: &RedisEngine,
    markings: &[Marking],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<usize> {
    let join = |one: &Marking| Join {
        groups: one.groups.clone(),
        event: OutboxEvent::Record(one.silence.record.clone()),
    };
    let joins: Vec<Join> = markings.iter().map(join).collect();
    let stored = group_of::stored(engine, &joins, now).await?;
    let mut partitions: BTreeMap<u16, Vec<Member>> = BTreeMap::new();
    for ((marking, join), groups) in markings.iter().zip(&joins).zip(&stored) {
        let own = groups.iter().position(|group| group.key == marking.silence.group.key);
        // The record that is stored may have been found again, and have other groups: its return joins those.
        for group in own.map_or(&groups[..], |own| &groups[own..=own]) {
            let partition = engine.keys.partition_of_group(&group.key);
            let member = Member { group, event: &join.event, marking };
            partitions.entry(partition).or_default().push(member);
        }
    }
    let all =
        partitions.iter().flat_map(|(partition, members)| members.iter().map(move |one| (*partition, one)));
    let rest = all.filter(|(_, one)| !one.marking.rest.is_empty());
    let rest =
        rest.map(|(partition, one)| (engine.keys.slot(partition), notify_rest(engine, partition, one, now)));
    engine.topology.few_at_once(rest.collect()).await?;
    let steps = partitions.iter().flat_map(|(partition, members)| {
        let slot = engine.keys.slot(*partition);
        members
            .chunks(groups::JOIN_STEP)
            .map(move |step| (slot, mark_step(engine, *partition, step, (destinations, now))))
    });
    Ok(engine.topology.few_at_once(steps.collect()).await?.into_iter().sum())
}

/// Lets a silence join its group for the receivers that have not acknowledged it, if the group does not know it.
async fn notify_rest(
    engine: &RedisEngine,
    partition: u16,
    one: &Member<'_>,
    now: Timestamp,
) -> Result<usize> {
    let (group, event) = (one.group, one.event);
    let joining = Joining {
        group,
        event,
        member: GroupMember::new(event),
        is_alone: true,
        held_until: None,
        return_at: None,
    };
    // A silence of which the rest of its receivers are notified does not wait.
    let rest = Destination::new(one.marking.rest.clone(), Pace::AT_ONCE);
    groups::join_step(engine, partition, &[joining], (&rest, None), Vec::new(), now).await
}

async fn mark_step(
    engine: &RedisEngine,
    partition: u16,
    members: &[Member<'_>],
    (destinations, now): (&Destinations, Timestamp),
) -> Result<usize> {
    let mut script = engine.scripts.mark_notified.prepare_invoke();
    for name in ["groups", "members", "labels", "reminders"] {
        script.key(engine.keys.in_partition(partition, name));
    }
    script.arg(now.as_millis()).arg(members.len());
    for Member { group, event, marking } in members {
        let member = GroupMember::new(event);
        let pace = destinations.of(&group.key).pace;
        for name in ["waiting", "lasting"] {
            script.key(engine.keys.of(partition, name, &group.key));
        }
        script.arg(&group.key).arg(&member.id).arg(member.detected_at.as_millis());
        script.arg(marking.silence.receivers.join(","));
        script.arg(if marking.rest.is_empty() { "1" } else { "" });
        script.arg(if pace.has_lasting() { "1" } else { "" });
        script.arg(pace.looks_after.unwrap_or_default().as_millis() as i64);
        script
            .arg(pace.looks_after.map(|_| to_json(&marking.silence.record)).transpose()?.unwrap_or_default());
    }
    engine.topology.run_alerting("mark_notified", engine.keys.slot(partition), &script).await
}

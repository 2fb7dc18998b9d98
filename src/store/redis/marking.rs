//! Marks silences as notified that receivers know of and a failover may have lost: see `acknowledged.rs`.

use std::collections::BTreeMap;

use redis::pipe;

use super::joining::Joining;
use super::member_text::MemberText;
use super::steps::{MAX_ATTEMPTS, Steps};
use super::{RedisEngine, group_of, groups};
use crate::clock::Timestamp;
use crate::presence::Stage;
use crate::store::json::to_json;
use crate::store::notification::GroupMember;
use crate::store::receiver_list::with;
use crate::store::{
    Destination, Destinations, EngineError, Group, Join, NotifiedMark, OutboxEvent, Pace, Result,
};

/// A member of a group that is marked.
struct Member<'a> {
    group: &'a Group,
    event: &'a OutboxEvent,
    marking: &'a NotifiedMark,
}

/// See [`NotifiedSilences::mark_notified`](crate::store::NotifiedSilences::mark_notified).
pub(super) async fn mark(
    engine: &RedisEngine,
    markings: &[NotifiedMark],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<usize> {
    let join = |one: &NotifiedMark| Join {
        groups: one.groups.clone(),
        event: OutboxEvent::Record(one.silence.record.clone()),
    };
    let joins: Vec<Join> = markings.iter().map(join).collect();
    let stored = group_of::stored(engine, &joins).await?;
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
    engine.topology.run_limited(rest.collect()).await?;
    let steps = partitions.iter().flat_map(|(partition, members)| {
        let slot = engine.keys.slot(*partition);
        members
            .chunks(groups::JOIN_STEP)
            .map(move |step| (slot, mark_step(engine, *partition, step, (destinations, now))))
    });
    Ok(engine.topology.run_limited(steps.collect()).await?.into_iter().sum())
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

/// Answers how many members were changed.
async fn mark_step(
    engine: &RedisEngine,
    partition: u16,
    members: &[Member<'_>],
    (destinations, now): (&Destinations, Timestamp),
) -> Result<usize> {
    let hash = engine.keys.in_partition(partition, "members");
    let name = |of: &Member| format!("{}\n{}", of.group.key, GroupMember::new(of.event).id);
    let names: Vec<String> = members.iter().map(name).collect();
    let pace = |of: &Member| destinations.of(&of.group.key).pace;
    let mut changed = 0;
    for _ in 0..MAX_ATTEMPTS {
        let mut read = pipe();
        read.cmd("HMGET").arg(&hash).arg(&names);
        let (known,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("mark_notified", &read).await?;
        let mut steps = Steps::default();
        for ((member, name), known) in members.iter().zip(&names).zip(&known) {
            if let Some(text) = member.marked(known.as_deref(), pace(member))? {
                steps.begin().expect_field(&hash, name.as_bytes(), known.as_deref());
                steps.write("HSET", &hash, &[name.as_bytes(), text.as_bytes()]);
                member.add_to_group(engine, partition, &mut steps, (pace(member), now));
            }
        }
        let written = engine.write_alerting_steps("mark_notified", partition, steps).await?;
        changed += written.iter().filter(|is_written| **is_written).count();
        if written.iter().all(|is_written| *is_written) {
            return Ok(changed);
        }
    }
    Err(EngineError::Unavailable("others change the silences that are marked all the time".to_owned()))
}

impl Member<'_> {
    /// The member as it is stored from now on; `None`: it stays as it is. Its return is notified then. A return that
    /// was faster has cancelled the silence, and joins once more.
    fn marked(&self, known: Option<&[u8]>, pace: Pace) -> Result<Option<String>> {
        let silence = &self.marking.silence;
        let detected = GroupMember::new(self.event).detected_at.as_millis().to_string();
        let receivers = silence.receivers.join(",");
        let text = known.and_then(MemberText::read);
        // A colon without receivers: see `join.lua`.
        let is_cancelled = |text: &MemberText| {
            text.stage == Stage::Over
                && text.detected == detected
                && known.is_some_and(|text| text.ends_with(b":"))
        };
        // One that waits is notified to all receivers of its group, unless they know of it.
        let waits = |text: &MemberText| text.stage == Stage::Waits && self.marking.rest.is_empty();
        let marked = match &text {
            Some(text) if text.stage == Stage::Notified && !text.receivers.is_empty() => {
                let all = silence
                    .receivers
                    .iter()
                    .fold(text.receivers.to_owned(), |all, name| with(&all, name).unwrap_or(all));
                if all == text.receivers {
                    return Ok(None);
                }
                (text.detected, all, text.body)
            }
            Some(text) if !is_cancelled(text) && !waits(text) => return Ok(None),
            _ => (detected.as_str(), receivers, ""),
        };
        let (detected, receivers, body) = marked;
        let record = format!(" {}", to_json(&silence.record)?);
        let body = if body.is_empty() && pace.looks_after.is_some() { &record } else { body };
        Ok(Some(MemberText { stage: Stage::Notified, detected, receivers: &receivers, body }.to_string()))
    }

    /// Adds the writes of its group: it waits no more, and lasts.
    fn add_to_group(
        &self,
        engine: &RedisEngine,
        partition: u16,
        steps: &mut Steps,
        (pace, now): (Pace, Timestamp),
    ) {
        let (group, member) = (&self.group.key, GroupMember::new(self.event).id);
        let (waiting, lasting) =
            (engine.keys.of(partition, "waiting", group), engine.keys.of(partition, "lasting", group));
        // A group without members is forgotten when it is due.
        steps.write("ZREM", &waiting, &[member.as_bytes()]);
        if pace.has_lasting() {
            let now = now.as_millis().to_string();
            steps.write("ZADD", &lasting, &[b"NX", now.as_bytes(), member.as_bytes()]);
        }
        if let Some(after) = pace.looks_after {
            let at = (now + after).as_millis().to_string();
            let reminders = engine.keys.in_partition(partition, "reminders");
            steps.write("ZADD", &reminders, &[b"LT", at.as_bytes(), group.as_bytes()]);
        }
    }
}

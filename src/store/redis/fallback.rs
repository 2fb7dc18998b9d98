//! Waiting notifications of a failing receiver also go to its fallback.
//!
//! The copies have ids of their own, made from those of the deliveries, and are notifications like others: they are
//! delivered by the loop of the fallback. The fallback is notified of the returns of these silences itself, also when
//! the receiver is back: an alert that it opened must not stay open. Marks name the copied part; those of groups that
//! wait no more leave with the next pass.

use std::collections::HashMap;

use redis::pipe;

use super::RedisEngine;
use super::fields::Fields;
use super::lanes::{has_notification, in_lane, with_notification};
use super::member_text::MemberText;
use super::steps::{MAX_ATTEMPTS, Steps};
use crate::clock::Timestamp;
use crate::presence::Stage;
use crate::store::again::ToFallback;
use crate::store::notification::{GroupMember, Notification};
use crate::store::receiver_list::with;
use crate::store::{Delivery, EngineError, MeantFor, Result, json::to_json};

/// How many lanes one step reads.
const LANES: usize = 100;
/// The most copies of one script.
const COPIES: usize = 50;
/// How many members of groups one script changes.
const MEMBERS: usize = 500;

pub(super) async fn down_since(engine: &RedisEngine, receiver: &str, now: Timestamp) -> Result<Timestamp> {
    let key = engine.keys.down();
    let mut mark = pipe();
    mark.hset_nx(&key, receiver, now.as_millis()).ignore().hget(&key, receiver);
    let (since,): (Option<i64>,) = engine.topology.send("down", &mark).await?;
    Ok(since.map_or(now, Timestamp::from_millis))
}

pub(super) async fn is_up(engine: &RedisEngine, receiver: &str) -> Result<()> {
    let mut forget = pipe();
    forget.hdel(engine.keys.down(), receiver).ignore();
    engine.topology.send("down", &forget).await
}

pub(super) async fn fall_back(
    engine: &RedisEngine,
    partitions: &[u16],
    fallback: &ToFallback<'_>,
    now: Timestamp,
) -> Result<usize> {
    let mut queued = 0;
    for &partition in partitions {
        forget_marks(engine, partition, fallback.meant_for).await?;
        let key = engine.keys.of(partition, "lanes", &fallback.meant_for.receiver);
        let mut all = Fields::of(&engine.topology, "fall_back", key, LANES);
        while let Some(page) = all.next().await? {
            let text = |bytes| String::from_utf8(bytes).ok();
            let lanes = page.into_iter().filter_map(|(group, lane)| Some((text(group)?, text(lane)?)));
            let lanes: Vec<(String, String)> = lanes.collect();
            queued += copy(engine, partition, fallback, &lanes, now).await?;
        }
    }
    Ok(queued)
}

/// Copies the rest of some lanes.
async fn copy(
    engine: &RedisEngine,
    partition: u16,
    fallback: &ToFallback<'_>,
    lanes: &[(String, String)],
    now: Timestamp,
) -> Result<usize> {
    if lanes.is_empty() {
        return Ok(0);
    }
    let fallback_done = engine.keys.of(partition, "fallback_done", &fallback.meant_for.receiver);
    let mut read = pipe();
    read.cmd("HMGET").arg(&fallback_done).arg(lanes.iter().map(|(group, _)| group).collect::<Vec<_>>());
    let (marks,): (Vec<Option<String>>,) = engine.topology.send("fall_back", &read).await?;
    let mut left = Vec::new();
    for ((group, lane), mark) in lanes.iter().zip(marks) {
        let (ids, own) = in_lane(lane);
        let ids: Vec<&str> = ids.collect();
        let behind =
            mark.as_ref().and_then(|mark| ids.iter().position(|id| id == mark)).map_or(0, |at| at + 1);
        // Only the first one is stored in the lane itself.
        let own = own.filter(|_| behind == 0);
        let ids: Vec<&str> = ids.into_iter().skip(behind).take(COPIES).collect();
        if !ids.is_empty() {
            left.push(Left { group, mark, ids, own });
        }
    }
    let mut queued = 0;
    let mut rest = left.as_slice();
    while !rest.is_empty() {
        let mut count = 0;
        let fits = rest.iter().take_while(|left| {
            count += left.ids.len();
            count <= COPIES
        });
        let (step, others) = rest.split_at(fits.count().max(1));
        rest = others;
        queued += copy_step(engine, partition, fallback, step, now).await?;
    }
    Ok(queued)
}

async fn copy_step(
    engine: &RedisEngine,
    partition: u16,
    fallback: &ToFallback<'_>,
    step: &[Left<'_>],
    now: Timestamp,
) -> Result<usize> {
    let notifications = engine.keys.in_partition(partition, "notifications");
    let mut bodies = pipe();
    for id in step.iter().flat_map(|left| &left.ids) {
        bodies.hget(&notifications, id);
    }
    let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("fall_back", &bodies).await?;
    let mut bodies = bodies.into_iter();
    let copied: Vec<CopiedLane> =
        step.iter().map(|left| left.copied(fallback, bodies.by_ref().take(left.ids.len()))).collect();
    // First: a copy of which the fallback is not notified of the return would be an alert that stays open.
    add_receiver(engine, partition, fallback.to, &copied).await?;
    let lanes = engine.keys.of(partition, "lanes", fallback.to);
    let mut read = pipe();
    read.cmd("HMGET").arg(&lanes).arg(copied.iter().map(|one| one.group).collect::<Vec<_>>());
    let (stored,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("fall_back", &read).await?;
    let mut steps = Steps::default();
    let fallback_done = engine.keys.of(partition, "fallback_done", &fallback.meant_for.receiver);
    let keys = [fallback_done, lanes, engine.keys.of(partition, "queue", fallback.to)];
    let notifications = engine.keys.in_partition(partition, "notifications");
    let mut counts = Vec::new();
    for (copied, lane) in copied.iter().zip(stored) {
        counts.push(copied.add_to(&mut steps, &keys, &notifications, lane, now)?);
    }
    let written = engine.write_alerting_steps("fall_back", partition, steps).await?;
    // What has changed meanwhile is copied by the next pass.
    Ok(counts.iter().zip(written).map(|(count, is_written)| if is_written { *count } else { 0 }).sum())
}

/// The copies of a lane that are to be queued.
struct CopiedLane<'a> {
    group: &'a str,
    /// The last notification that was copied before.
    mark: Option<&'a str>,
    /// The last one from now on.
    last: Option<&'a str>,
    /// With their ids.
    copies: Vec<(String, Notification)>,
    silences: Vec<GroupMember>,
}

impl CopiedLane<'_> {
    /// Adds the step that queues them in the lane of the fallback. Answers their number.
    fn add_to(
        &self,
        steps: &mut Steps,
        [fallback_done, lanes, queue]: &[String; 3],
        notifications: &str,
        stored: Option<Vec<u8>>,
        now: Timestamp,
    ) -> Result<usize> {
        let (group, last) = (self.group.as_bytes(), self.last.unwrap_or_default());
        steps.begin().expect_field(fallback_done, group, self.mark.map(str::as_bytes));
        steps.write("HSET", fallback_done, &[group, last.as_bytes()]);
        let (mut lane, mut count) = (stored.clone(), 0);
        for (id, notification) in &self.copies {
            if !lane.as_deref().is_some_and(|lane| has_notification(lane, id)) {
                lane = Some(with_notification(lane.as_deref(), id));
                steps.write("HSET", notifications, &[id.as_bytes(), to_json(notification)?.as_bytes()]);
                count += 1;
            }
        }
        if let Some(lane) = lane.filter(|_| count > 0) {
            steps.expect_field(lanes, group, stored.as_deref()).write("HSET", lanes, &[group, &lane]);
            if stored.is_none() {
                steps.write("ZADD", queue, &[now.as_millis().to_string().as_bytes(), group]);
            }
        }
        Ok(count)
    }
}

/// Adds the fallback to the receivers that were notified of the silences, unless their returns were sealed already.
async fn add_receiver(
    engine: &RedisEngine,
    partition: u16,
    to: &str,
    copied: &[CopiedLane<'_>],
) -> Result<()> {
    // A silence that was detected again is a member of its own.
    let names = |group: &str, GroupMember { id, detected_at, .. }: &GroupMember| {
        let (name, detected) = (format!("{group}\n{id}"), detected_at.as_millis());
        [(format!("{name} {detected}"), *detected_at), (name, *detected_at)]
    };
    let all = copied.iter().flat_map(|one| one.silences.iter().flat_map(move |of| names(one.group, of)));
    let all: Vec<(String, Timestamp)> = all.collect();
    let members = engine.keys.in_partition(partition, "members");
    for names in all.chunks(MEMBERS) {
        let mut attempts = 0;
        while !try_to_add(engine, partition, to, &members, names).await? {
            attempts += 1;
            if attempts == MAX_ATTEMPTS {
                let why = format!("others change the silences that {to} is to know of all the time");
                return Err(EngineError::Unavailable(why));
            }
        }
    }
    Ok(())
}

/// The same for some members: their names, and when their silences were detected. Answers whether none has changed
/// meanwhile.
async fn try_to_add(
    engine: &RedisEngine,
    partition: u16,
    to: &str,
    members: &str,
    names: &[(String, Timestamp)],
) -> Result<bool> {
    let mut read = pipe();
    read.cmd("HMGET").arg(members).arg(names.iter().map(|(name, _)| name).collect::<Vec<_>>());
    let (known,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("fall_back", &read).await?;
    let mut steps = Steps::default();
    for ((name, detected), known) in names.iter().zip(&known) {
        if let Some(text) = known.as_ref().and_then(|known| with_receiver(known, *detected, to)) {
            steps.begin().expect_field(members, name.as_bytes(), known.as_deref());
            steps.write("HSET", members, &[name.as_bytes(), text.as_bytes()]);
        }
    }
    engine.write_alerting_step("fall_back", partition, steps).await
}

/// A stored member with one receiver more, unless it knows the receiver, is another silence, or waits for no return.
fn with_receiver(member: &[u8], detected: Timestamp, receiver: &str) -> Option<String> {
    let known = MemberText::read(member)?;
    let is_open = matches!(known.stage, Stage::Notified | Stage::IsBack);
    let is_same = known.detected == detected.as_millis().to_string();
    let receivers = with(known.receivers, receiver).filter(|_| is_open && is_same)?;
    Some(MemberText { receivers: &receivers, ..known }.to_string())
}

/// The notifications of a lane beyond its mark.
struct Left<'a> {
    group: &'a str,
    mark: Option<String>,
    ids: Vec<&'a str>,
    own: Option<&'a str>,
}

impl Left<'_> {
    /// `bodies`: of its notifications.
    fn copied(
        &self,
        fallback: &ToFallback<'_>,
        bodies: impl Iterator<Item = Option<Vec<u8>>>,
    ) -> CopiedLane<'_> {
        let Left { group, mark, ids, own } = self;
        let (mut copies, mut silences) = (Vec::new(), Vec::new());
        for (at, (id, body)) in ids.iter().zip(bodies).enumerate() {
            let body = own.filter(|_| at == 0).map(|own| own.as_bytes().to_vec()).or(body);
            // One that cannot be read is left out, as for its receiver.
            let notification = body.and_then(|body| Notification::read(group, &body).notification);
            let Some(notification) = notification.and_then(|one| one.part_of_fallback(fallback, group))
            else {
                continue;
            };
            let receiver = &fallback.meant_for.receiver;
            let id = format!("{id}.{receiver}");
            let delivery = Delivery::of(Some(notification), group, &id, receiver);
            silences.extend(delivery.offline.iter().map(GroupMember::of_record));
            copies.push(Notification::for_fallback(&delivery, fallback.to, fallback.meant_for.since));
        }
        CopiedLane { group, mark: mark.as_deref(), last: ids.last().copied(), copies, silences }
    }
}

/// Removes the marks of groups without waiting notifications.
async fn forget_marks(engine: &RedisEngine, partition: u16, meant_for: &MeantFor) -> Result<()> {
    let key = engine.keys.of(partition, "fallback_done", &meant_for.receiver);
    let lanes = engine.keys.of(partition, "lanes", &meant_for.receiver);
    let mut all = Fields::of(&engine.topology, "fall_back", key.clone(), LANES);
    while let Some(page) = all.next().await? {
        let marks: HashMap<Vec<u8>, Vec<u8>> = page.into_iter().collect();
        if marks.is_empty() {
            continue;
        }
        let groups: Vec<&Vec<u8>> = marks.keys().collect();
        let mut read = pipe();
        read.cmd("HMGET").arg(&lanes).arg(&groups);
        let (waiting,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("fall_back", &read).await?;
        let gone: Vec<&Vec<u8>> = groups
            .into_iter()
            .zip(waiting)
            .filter(|(_, lane)| lane.is_none())
            .map(|(group, _)| group)
            .collect();
        if !gone.is_empty() {
            let mut forget = pipe();
            forget.hdel(&key, &gone).ignore();
            engine.topology.send::<()>("fall_back", &forget).await?;
        }
    }
    Ok(())
}

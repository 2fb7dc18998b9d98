//! Waiting notifications of a failing receiver also go to its fallback.
//!
//! The copies have ids of their own, made from those of the deliveries, and are notifications like others: they are
//! delivered by the loop of the fallback. The fallback is notified of the returns of these silences itself, also when the
//! receiver is back: an alert that it opened must not stay open. Marks name the copied part; those of groups that wait
//! no more leave with the next pass.

use std::collections::HashMap;

use redis::pipe;

use super::RedisEngine;
use super::fields::Fields;
use super::lanes::in_lane;
use crate::clock::Timestamp;
use crate::store::notification::{GroupMember, Notification};
use crate::store::{Delivery, MeantFor, Result, json::to_json};

/// How many lanes one step reads.
const LANES: usize = 100;
/// The most copies of one script.
const COPIES: usize = 50;

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
    meant_for: &MeantFor,
    to: &str,
    now: Timestamp,
) -> Result<usize> {
    let mut queued = 0;
    for &partition in partitions {
        forget_marks(engine, partition, meant_for).await?;
        let key = engine.keys.of(partition, "lanes", &meant_for.receiver);
        let mut all = Fields::of(&engine.topology, "fall_back", key, LANES);
        while let Some(page) = all.next().await? {
            let text = |bytes| String::from_utf8(bytes).ok();
            let lanes = page.into_iter().filter_map(|(group, lane)| Some((text(group)?, text(lane)?)));
            let lanes: Vec<(String, String)> = lanes.collect();
            queued += copy(engine, partition, meant_for, to, &lanes, now).await?;
        }
    }
    Ok(queued)
}

/// Copies the rest of some lanes.
async fn copy(
    engine: &RedisEngine,
    partition: u16,
    meant_for: &MeantFor,
    to: &str,
    lanes: &[(String, String)],
    now: Timestamp,
) -> Result<usize> {
    if lanes.is_empty() {
        return Ok(0);
    }
    let fallen = engine.keys.of(partition, "fallen", &meant_for.receiver);
    let mut read = pipe();
    read.cmd("HMGET").arg(&fallen).arg(lanes.iter().map(|(group, _)| group).collect::<Vec<_>>());
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
            left.push(Left { group, mark: mark.unwrap_or_default(), ids, own });
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
        queued += copy_step(engine, partition, meant_for, to, step, now).await?;
    }
    Ok(queued)
}

async fn copy_step(
    engine: &RedisEngine,
    partition: u16,
    meant_for: &MeantFor,
    to: &str,
    step: &[Left<'_>],
    now: Timestamp,
) -> Result<usize> {
    let key = |name: &str, owner: &str| engine.keys.of(partition, name, owner);
    let notifications = engine.keys.in_partition(partition, "notifications");
    let mut bodies = pipe();
    for id in step.iter().flat_map(|left| &left.ids) {
        bodies.hget(&notifications, id);
    }
    let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("fall_back", &bodies).await?;
    let mut bodies = bodies.into_iter();
    let mut script = engine.scripts.fall_back.prepare_invoke();
    script.key(key("fallen", &meant_for.receiver)).key(&notifications);
    script.key(key("queue", to)).key(key("lanes", to)).key(engine.keys.in_partition(partition, "members"));
    script.arg(now.as_millis()).arg(to);
    for Left { group, mark, ids, own } in step {
        let (mut copies, mut silences) = (Vec::new(), Vec::new());
        for (at, id) in ids.iter().enumerate() {
            let body = bodies.next().flatten();
            let body = own.filter(|_| at == 0).map(|own| own.as_bytes().to_vec()).or(body);
            // One that cannot be read is left out, as for its receiver.
            let notification = body.and_then(|body| Notification::read(group, &body).notification);
            let Some(notification) = notification.and_then(|one| one.part_of_fallback(to)) else {
                continue;
            };
            let (receiver, id) = (&meant_for.receiver, format!("{id}.{}", meant_for.receiver));
            let delivery = Delivery::of(Some(notification), group, &id, receiver);
            silences.extend(delivery.offline.iter().map(GroupMember::of_record));
            copies.push(Notification::for_fallback(&delivery, to, meant_for.since));
        }
        script.arg(*group).arg(mark).arg(ids.last()).arg(copies.len());
        for (id, notification) in &copies {
            script.arg(id).arg(to_json(notification)?);
        }
        script.arg(silences.len());
        for GroupMember { id, detected_at, .. } in &silences {
            script.arg(id).arg(detected_at.as_millis());
        }
    }
    engine.topology.run("fall_back", &script).await
}

/// The notifications of a lane beyond its mark.
struct Left<'a> {
    group: &'a str,
    mark: String,
    ids: Vec<&'a str>,
    own: Option<&'a str>,
}

/// Removes the marks of groups without waiting notifications.
async fn forget_marks(engine: &RedisEngine, partition: u16, meant_for: &MeantFor) -> Result<()> {
    let key = engine.keys.of(partition, "fallen", &meant_for.receiver);
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

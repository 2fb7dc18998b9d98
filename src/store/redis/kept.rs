//! Deliveries as operators see them: waiting notifications and dead letters.
//!
//! Everything is read in bounded steps, for a command or a page; the delivery of notifications waits for none of it.

use std::ops::Range;

use redis::{Cmd, pipe};

use super::RedisEngine;
use super::lanes::in_lane;
use crate::clock::Timestamp;
use crate::store::notification::Notification;
use crate::store::{DeadLetter, Delivery, ListOrder, Result, Waiting, WaitingPage, json::from_json};
use crate::telemetry::Stored;

/// How many lanes a page of waiting notifications has, about.
const LANES: usize = 200;
/// The most notifications of one lane on a page; a lane with more is one of a receiver that is down for days.
const OF_LANE: usize = 100;

pub(super) async fn dead_letters_between(
    engine: &RedisEngine,
    receiver: &str,
    (from, until): (Timestamp, Timestamp),
    limit: usize,
    order: ListOrder,
) -> Result<Vec<DeadLetter>> {
    let (from, until, most) = (from.as_millis(), until.as_millis(), limit as isize);
    let mut ids = pipe();
    for partition in 0..engine.keys.partitions() {
        let dead = engine.keys.of(partition, "dead", receiver);
        match order {
            ListOrder::NewestFirst => ids.zrevrangebyscore_limit_withscores(dead, until, from, 0, most),
            ListOrder::OldestFirst => ids.zrangebyscore_limit_withscores(dead, from, until, 0, most),
        };
    }
    let ids: Vec<Vec<(String, f64)>> = engine.topology.send("dead", &ids).await?;
    let of_partitions = ids.into_iter().zip(0..).flat_map(|(ids, partition)| {
        ids.into_iter().map(move |(id, at)| (at, engine.keys.of(partition, "dead_letters", receiver), id))
    });
    let mut first: Vec<(f64, String, String)> = of_partitions.collect();
    first.sort_by(|a, b| match order {
        ListOrder::NewestFirst => b.0.total_cmp(&a.0),
        ListOrder::OldestFirst => a.0.total_cmp(&b.0),
    });
    let mut letters: Vec<DeadLetter> = Vec::new();
    // Another step only if some cannot be read.
    for step in first.chunks(limit.max(1)) {
        let mut bodies = pipe();
        step.iter().for_each(|(_, key, id)| {
            bodies.hget(key, id);
        });
        let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("dead_letters", &bodies).await?;
        let bodies = step.iter().zip(bodies).filter_map(|((_, key, id), body)| Some((key, id, body?)));
        letters.extend(bodies.filter_map(|(key, id, body)| engine.read_letter(key, id, &body)));
        if letters.len() >= limit {
            break;
        }
    }
    letters.truncate(limit);
    Ok(letters)
}

pub(super) async fn letter(
    engine: &RedisEngine,
    receiver: &str,
    notification: &str,
) -> Result<Option<DeadLetter>> {
    let keys: Vec<String> =
        (0..engine.keys.partitions()).map(|p| engine.keys.of(p, "dead_letters", receiver)).collect();
    let mut read = pipe();
    keys.iter().for_each(|key| {
        read.hget(key, notification);
    });
    let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("dead_letters", &read).await?;
    let mut found = keys.iter().zip(bodies).filter_map(|(key, body)| Some((key, body?)));
    Ok(found.find_map(|(key, body)| engine.read_letter(key, notification, &body)))
}

pub(super) async fn purge(engine: &RedisEngine, letters: &[DeadLetter]) -> Result<usize> {
    let mut remove = pipe();
    for DeadLetter { delivery, .. } in letters {
        let partition = engine.keys.partition_of_group(&delivery.group.key);
        let key = |name: &str| engine.keys.of(partition, name, &delivery.receiver);
        remove.zrem(key("dead"), delivery.notification()).ignore();
        remove.hdel(key("dead_letters"), delivery.notification());
    }
    if letters.is_empty() {
        return Ok(0);
    }
    let removed: Vec<usize> = engine.topology.send("purge", &remove).await?;
    Ok(removed.iter().sum())
}

/// The cursor of a page: the partition, and where the scan of its lanes goes on.
fn position(after: Option<&str>) -> (u16, u64) {
    let parsed = after.and_then(|after| after.split_once(' '));
    parsed
        .and_then(|(partition, cursor)| Some((partition.parse().ok()?, cursor.parse().ok()?)))
        .unwrap_or_default()
}

pub(super) async fn waiting(
    engine: &RedisEngine,
    receiver: &str,
    after: Option<&str>,
) -> Result<WaitingPage> {
    let (mut partition, mut cursor) = position(after);
    let mut page = WaitingPage::default();
    let lanes = |partition| Cmd::hlen(engine.keys.of(partition, "lanes", receiver));
    let with_lanes =
        occupied_partitions(engine, "waiting", partition..engine.keys.partitions(), lanes).await?;
    while page.waiting.len() < LANES && partition < engine.keys.partitions() {
        if cursor == 0 && !with_lanes.contains(&partition) {
            partition += 1;
            continue;
        }
        let mut read = pipe();
        read.cmd("HSCAN")
            .arg(engine.keys.of(partition, "lanes", receiver))
            .arg(cursor)
            .arg("COUNT")
            .arg(LANES);
        type Answer = ((u64, Vec<(Vec<u8>, Vec<u8>)>),);
        let ((next, lanes),): Answer = engine.topology.send("waiting", &read).await?;
        let text = |bytes| String::from_utf8(bytes).ok();
        let lanes = lanes.into_iter().filter_map(|(group, lane)| Some((text(group)?, text(lane)?)));
        page.waiting.extend(read_lanes(engine, partition, receiver, lanes.collect()).await?);
        (partition, cursor) = if next == 0 { (partition + 1, 0) } else { (partition, next) };
    }
    page.next = (partition < engine.keys.partitions()).then(|| format!("{partition} {cursor}"));
    Ok(page)
}

/// The partitions of a range of which a command counts anything. `name` names the commands in metrics and errors.
async fn occupied_partitions(
    engine: &RedisEngine,
    name: &'static str,
    partitions: Range<u16>,
    count: impl Fn(u16) -> Cmd,
) -> Result<Vec<u16>> {
    let mut counts = pipe();
    for partition in partitions.clone() {
        counts.add_command(count(partition));
    }
    let counts: Vec<usize> = engine.topology.send(name, &counts).await?;
    Ok(partitions.zip(counts).filter(|(_, count)| *count > 0).map(|(partition, _)| partition).collect())
}

/// The notifications in some lanes.
async fn read_lanes(
    engine: &RedisEngine,
    partition: u16,
    receiver: &str,
    lanes: Vec<(String, String)>,
) -> Result<Vec<Waiting>> {
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    let (queue, notifications) =
        (engine.keys.of(partition, "queue", receiver), engine.keys.in_partition(partition, "notifications"));
    let mut due = pipe();
    due.cmd("ZMSCORE").arg(queue).arg(lanes.iter().map(|(group, _)| group).collect::<Vec<_>>());
    let (due,): (Vec<Option<f64>>,) = engine.topology.send("waiting", &due).await?;
    let mut ids = Vec::new();
    let mut bodies = pipe();
    for ((group, lane), due) in lanes.iter().zip(due) {
        let attempts = lane.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let (in_order, mut own) = in_lane(lane);
        for (at, id) in in_order.take(OF_LANE).enumerate() {
            bodies.hget(&notifications, id);
            // A group in a list of groups has no entry of its own in the queue.
            let next = (at == 0).then(|| Timestamp::from_millis(due.unwrap_or(0.0) as i64));
            ids.push((group, id.to_owned(), own.take(), if at == 0 { attempts } else { 0 }, next));
        }
    }
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("waiting", &bodies).await?;
    let waiting = ids.into_iter().zip(bodies).map(|((group, id, own, attempt, next), body)| {
        let text = own.map(|own| own.as_bytes().to_vec()).or(body);
        let notification = text.and_then(|text| Notification::read(group, &text).notification);
        let delivery = Delivery::of(notification, group, &format!("{id}.{receiver}"), receiver);
        Waiting { delivery: Delivery { attempt, ..delivery }, next }
    });
    Ok(waiting.collect())
}

pub(super) async fn have_waiting(
    engine: &RedisEngine,
    receiver: &str,
    groups: &[String],
) -> Result<Vec<bool>> {
    let mut read = pipe();
    for group in groups {
        read.hexists(engine.keys.of(engine.keys.partition_of_group(group), "lanes", receiver), group);
    }
    engine.topology.send("lanes", &read).await
}

impl RedisEngine {
    fn read_letter(&self, key: &str, id: &str, body: &[u8]) -> Option<DeadLetter> {
        let letter = from_json("a dead letter", &String::from_utf8_lossy(body));
        let report = |why: &_| self.unreadable_letter(&format!("{key} {id}"), why);
        letter.inspect_err(report).ok()
    }

    fn unreadable_letter(&self, location: &str, why: &crate::store::EngineError) {
        self.telemetry.unreadable(Stored::DeadLetter, location, &why.to_string());
    }
}

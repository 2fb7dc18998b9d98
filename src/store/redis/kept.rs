//! Deliveries as operators see them: what waits, dead letters, and the record of attempts.
//!
//! Everything is read in bounded steps, for a command or a page; the delivery of notifications waits for none of it.

use redis::pipe;

use super::RedisEngine;
use super::lanes::in_lane;
use crate::clock::Timestamp;
use crate::store::notification::Notification;
use crate::store::timer_text::moment;
use crate::store::{
    DeadLetter, Delivery, FindAttempts, Result, StoredAttempts, Waiting, WaitingPage, firing_of,
    json::from_json, json::to_json,
};
use crate::telemetry::Stored;

/// How many lanes a page of waiting notifications has, about.
const LANES: usize = 200;
/// The most notifications of one lane on a page; a lane with more is one of a receiver that is down for days.
const OF_LANE: usize = 100;
/// How many entries of the record one script looks at: less than a millisecond.
const LOOKED_AT: usize = 64;

pub(super) async fn letters(
    engine: &RedisEngine,
    receiver: &str,
    (from, until): (Timestamp, Timestamp),
    limit: usize,
) -> Result<Vec<DeadLetter>> {
    let mut letters: Vec<DeadLetter> = Vec::new();
    for partition in 0..engine.keys.partitions() {
        let mut ids = pipe();
        let dead = engine.keys.of(partition, "dead", receiver);
        let (from, until, limit) = (from.as_millis(), until.as_millis(), limit as isize);
        ids.zrevrangebyscore_limit(dead, until, from, 0, limit);
        let (ids,): (Vec<String>,) = engine.topology.send("dead", &ids).await?;
        if ids.is_empty() {
            continue;
        }
        let key = engine.keys.of(partition, "letters", receiver);
        let mut bodies = pipe();
        for id in &ids {
            bodies.hget(&key, id);
        }
        let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("letters", &bodies).await?;
        let bodies = ids.iter().zip(bodies).filter_map(|(id, body)| Some((id, body?)));
        letters.extend(bodies.filter_map(|(id, body)| engine.read_letter(&key, id, &body)));
    }
    letters.sort_by_key(|letter| std::cmp::Reverse(letter.at));
    letters.truncate(limit);
    Ok(letters)
}

pub(super) async fn letter(
    engine: &RedisEngine,
    receiver: &str,
    notification: &str,
) -> Result<Option<DeadLetter>> {
    let keys: Vec<String> =
        (0..engine.keys.partitions()).map(|p| engine.keys.of(p, "letters", receiver)).collect();
    let mut read = pipe();
    keys.iter().for_each(|key| {
        read.hget(key, notification);
    });
    let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("letters", &read).await?;
    let mut found = keys.iter().zip(bodies).filter_map(|(key, body)| Some((key, body?)));
    Ok(found.find_map(|(key, body)| engine.read_letter(key, notification, &body)))
}

pub(super) async fn purge(engine: &RedisEngine, letters: &[DeadLetter]) -> Result<usize> {
    let mut remove = pipe();
    for DeadLetter { delivery, .. } in letters {
        let partition = engine.keys.partition_of_group(&delivery.group.key);
        let key = |name: &str| engine.keys.of(partition, name, &delivery.receiver);
        remove.zrem(key("dead"), delivery.notification()).ignore();
        remove.hdel(key("letters"), delivery.notification());
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
    while page.waiting.len() < LANES && partition < engine.keys.partitions() {
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

pub(super) async fn replay(engine: &RedisEngine, delivery: &Delivery, now: Timestamp) -> Result<bool> {
    let partition = engine.keys.partition_of_group(&delivery.group.key);
    let mut script = engine.scripts.replay.prepare_invoke();
    for name in ["queue", "lanes"] {
        script.key(engine.keys.of(partition, name, &delivery.receiver));
    }
    for name in ["notifications", "owed"] {
        script.key(engine.keys.in_partition(partition, name));
    }
    for name in ["dead", "letters", "untold"] {
        script.key(engine.keys.of(partition, name, &delivery.receiver));
    }
    script.arg(now.as_millis()).arg(&delivery.group.key).arg(delivery.notification());
    script.arg(to_json(&Notification::again(delivery))?);
    let firing = firing_of(delivery);
    if let Some((id, due)) = &firing {
        script.key(engine.timer_key(engine.timer_page(id))).arg(id.as_str()).arg(moment(*due));
    } else {
        script.arg("").arg("");
    }
    script.arg(delivery.silences());
    engine.topology.run("replay", &script).await
}

pub(super) async fn attempts(engine: &RedisEngine, find: &FindAttempts) -> Result<Vec<StoredAttempts>> {
    let mut found: Vec<StoredAttempts> = Vec::new();
    for partition in 0..engine.keys.partitions() {
        let (mut of_partition, mut skip) = (0, 0);
        while of_partition < find.limit {
            let mut script = engine.scripts.find_attempts.prepare_invoke();
            script.key(engine.keys.in_partition(partition, "attempts"));
            let looked_at = if find.with.is_empty() { find.limit.min(LOOKED_AT) } else { LOOKED_AT };
            script.arg(find.until.as_millis()).arg(find.from.as_millis()).arg(skip).arg(looked_at);
            let answer: Vec<Vec<u8>> = engine.topology.run("attempts", script.arg(&find.with)).await?;
            let Some((count, entries)) = answer.split_first() else { break };
            let entries = entries.chunks_exact(2).filter_map(|entry| {
                let at = std::str::from_utf8(&entry[0]).ok()?.parse::<f64>().ok()?;
                let text = String::from_utf8_lossy(&entry[1]);
                let text = text.split_once(' ')?.1.to_owned();
                Some(StoredAttempts { at: Timestamp::from_millis(at as i64), text })
            });
            let before = found.len();
            found.extend(entries);
            of_partition += found.len() - before;
            let count = std::str::from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
            skip += count;
            if count < looked_at {
                break;
            }
        }
        // Only the newest are answered, so memory stays bounded.
        found.sort_by_key(|entry| std::cmp::Reverse(entry.at));
        found.truncate(find.limit);
    }
    Ok(found)
}

pub(super) async fn forget_attempts(
    engine: &RedisEngine,
    partitions: &[u16],
    before: Timestamp,
) -> Result<()> {
    let mut forget = pipe();
    for partition in partitions {
        let key = engine.keys.in_partition(*partition, "attempts");
        forget.zrembyscore(key, "-inf", format!("({}", before.as_millis())).ignore();
    }
    if partitions.is_empty() { Ok(()) } else { engine.topology.send("forget_attempts", &forget).await }
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

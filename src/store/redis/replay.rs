//! Queues a notification once more for one receiver.

use redis::pipe;

use super::RedisEngine;
use super::absence::MARKED;
use super::lanes::{has_notification, with_notification};
use super::reading::milliseconds;
use super::steps::{MAX_ATTEMPTS, Steps};
use crate::clock::Timestamp;
use crate::presence::Receipt;
use crate::store::json::to_json;
use crate::store::notification::Notification;
use crate::store::timer_text::{decode, encode};
use crate::store::timers::firing_of;
use crate::store::{Delivery, EngineError, Result};

/// Stored values that the decision depends on.
struct Stored {
    lane: Option<Vec<u8>>,
    notification: Option<Vec<u8>>,
    owed: Option<Vec<u8>>,
    fallback_done: Option<Vec<u8>>,
    /// Its timer.
    timer: Option<Vec<u8>>,
}

/// Answers whether it is queued; if not, it waits already.
pub(super) async fn replay(engine: &RedisEngine, delivery: &Delivery, now: Timestamp) -> Result<bool> {
    let partition = engine.keys.partition_of_group(&delivery.group.key);
    for _ in 0..MAX_ATTEMPTS {
        let stored = read(engine, partition, delivery).await?;
        if stored.lane.as_deref().is_some_and(|lane| has_notification(lane, delivery.notification())) {
            return Ok(false);
        }
        let steps = steps(engine, partition, delivery, &stored, now)?;
        if engine.write_alerting_step("replay", partition, steps).await? {
            return Ok(true);
        }
    }
    Err(EngineError::Unavailable("others change its lane all the time".to_owned()))
}

async fn read(engine: &RedisEngine, partition: u16, delivery: &Delivery) -> Result<Stored> {
    let keys = &engine.keys;
    let of_receiver = |name| keys.of(partition, name, &delivery.receiver);
    let (group, id) = (&delivery.group.key, delivery.notification());
    let mut read = pipe();
    read.hget(of_receiver("lanes"), group);
    read.hget(keys.in_partition(partition, "notifications"), id);
    read.hget(keys.in_partition(partition, "owed"), id);
    read.hget(of_receiver("fallback_done"), group);
    let timer = firing_of(delivery).map(|(timer, _)| timer.to_string()).unwrap_or_default();
    read.hget(engine.past_timers(partition), timer);
    let values: Vec<Option<Vec<u8>>> = engine.topology.send("replay", &read).await?;
    let mut values = values.into_iter();
    let mut value = || values.next().flatten();
    Ok(Stored { lane: value(), notification: value(), owed: value(), fallback_done: value(), timer: value() })
}

/// The step that queues it.
fn steps(
    engine: &RedisEngine,
    partition: u16,
    delivery: &Delivery,
    stored: &Stored,
    now: Timestamp,
) -> Result<Steps> {
    let keys = &engine.keys;
    let of_receiver = |name| keys.of(partition, name, &delivery.receiver);
    let [lanes, fallback_done, unnotified] = ["lanes", "fallback_done", "unnotified"].map(of_receiver);
    let [notifications, owed] = ["notifications", "owed"].map(|name| keys.in_partition(partition, name));
    let (group, id) = (delivery.group.key.as_bytes(), delivery.notification());
    let mut steps = Steps::default();
    steps.begin().expect_field(&lanes, group, stored.lane.as_deref());
    let lane = with_notification(stored.lane.as_deref(), id);
    steps.write("HSET", &lanes, &[group, &lane]);
    if stored.lane.is_none() {
        steps.write("ZADD", &of_receiver("queue"), &[now.as_millis().to_string().as_bytes(), group]);
    }
    // It comes after the notifications of the lane, of which the mark says nothing any more.
    if stored.fallback_done.as_deref() == Some(id.as_bytes()) {
        steps.expect_field(&fallback_done, group, stored.fallback_done.as_deref()).write(
            "HDEL",
            &fallback_done,
            &[group],
        );
    }
    steps.expect_field(&notifications, id.as_bytes(), stored.notification.as_deref());
    if stored.notification.is_some() {
        let before = stored.owed.as_deref().and_then(milliseconds).unwrap_or(1);
        steps.expect_field(&owed, id.as_bytes(), stored.owed.as_deref());
        steps.write("HSET", &owed, &[id.as_bytes(), (before + 1).to_string().as_bytes()]);
    } else {
        let json = to_json(&Notification::again(delivery))?;
        steps.write("HSET", &notifications, &[id.as_bytes(), json.as_bytes()]);
    }
    steps.write("ZREM", &of_receiver("dead"), &[id.as_bytes()]);
    steps.write("HDEL", &of_receiver("dead_letters"), &[id.as_bytes()]);
    add_receipt(engine, partition, delivery, stored.timer.as_deref(), &mut steps);
    steps.write("HSET", &unnotified, &[MARKED.as_bytes(), MARKED.as_bytes()]);
    Ok(steps)
}

/// Notes that its timer waits for the receiver again, if it is the notification of one.
fn add_receipt(
    engine: &RedisEngine,
    partition: u16,
    delivery: &Delivery,
    text: Option<&[u8]>,
    steps: &mut Steps,
) {
    let Some(((timer, due), text)) = firing_of(delivery).zip(text) else { return };
    let known = decode(&timer, &String::from_utf8_lossy(text)).filter(|known| known.due == due);
    if let Some(changed) = known.and_then(|known| known.with_receipt(&delivery.receiver, Receipt::Pending)) {
        let (past, id) = (engine.past_timers(partition), timer.as_str().as_bytes());
        steps.expect_field(&past, id, Some(text)).write("HSET", &past, &[id, encode(&changed).as_bytes()]);
    }
}

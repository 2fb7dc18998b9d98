//! Queues notifications once more for their receivers: those of a lane in one step, those of a partition in one call.

use std::collections::{BTreeMap, HashMap};

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

/// The most notifications of one call.
const STEP: usize = 100;

/// Stored values that the decision on one delivery depends on.
struct Stored {
    lane: Option<Vec<u8>>,
    notification: Option<Vec<u8>>,
    owed: Option<Vec<u8>>,
    fallback_done: Option<Vec<u8>>,
    /// Its timer.
    timer: Option<Vec<u8>>,
}

/// The notifications that steps of a call before have written, each with its number of receivers by then.
type Written = HashMap<String, (Vec<u8>, Option<Vec<u8>>)>;

/// Answers in order whether they are queued; those that are not wait already.
pub(super) async fn replay_all(
    engine: &RedisEngine,
    deliveries: &[Delivery],
    now: Timestamp,
) -> Result<Vec<bool>> {
    let mut partitions: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (at, delivery) in deliveries.iter().enumerate() {
        partitions.entry(engine.keys.partition_of_group(&delivery.group.key)).or_default().push(at);
    }
    let parts = partitions.iter().map(|(partition, places)| {
        (engine.keys.slot(*partition), queue_all(engine, *partition, deliveries, places, now))
    });
    let mut queued = vec![false; deliveries.len()];
    for at in engine.topology.run_limited(parts.collect()).await?.into_iter().flatten() {
        queued[at] = true;
    }
    Ok(queued)
}

/// Queues the deliveries at these places, which are of one partition. Answers the places of those that did not wait.
async fn queue_all(
    engine: &RedisEngine,
    partition: u16,
    deliveries: &[Delivery],
    places: &[usize],
    now: Timestamp,
) -> Result<Vec<usize>> {
    let mut queued = Vec::with_capacity(places.len());
    for places in places.chunks(STEP) {
        let mut left = places.to_vec();
        for attempt in 0.. {
            if left.is_empty() {
                break;
            }
            if attempt == MAX_ATTEMPTS {
                return Err(EngineError::Unavailable("others change its lane all the time".to_owned()));
            }
            queue_some(engine, partition, deliveries, &mut left, &mut queued, now).await?;
        }
    }
    Ok(queued)
}

/// One call. Keeps those in `left` whose lanes others have changed meanwhile.
async fn queue_some(
    engine: &RedisEngine,
    partition: u16,
    deliveries: &[Delivery],
    left: &mut Vec<usize>,
    queued: &mut Vec<usize>,
    now: Timestamp,
) -> Result<()> {
    let stored = read(engine, partition, left.iter().map(|at| &deliveries[*at])).await?;
    let mut lanes: BTreeMap<(&str, &str), Vec<(usize, Stored)>> = BTreeMap::new();
    for (at, stored) in left.drain(..).zip(stored) {
        let Delivery { receiver, group, .. } = &deliveries[at];
        lanes.entry((receiver.as_str(), group.key.as_str())).or_default().push((at, stored));
    }
    let (mut steps, mut written, mut of_steps) = (Steps::default(), Written::new(), Vec::new());
    for of_lane in lanes.into_values() {
        let mut places = Vec::new();
        let mut lane = of_lane[0].1.lane.clone();
        let before = lane.clone();
        for (at, stored) in of_lane {
            let id = deliveries[at].notification();
            if lane.as_deref().is_some_and(|lane| has_notification(lane, id)) {
                continue;
            }
            if places.is_empty() {
                steps.begin();
            }
            lane = Some(with_notification(lane.as_deref(), id));
            add_delivery(engine, partition, &deliveries[at], stored, &mut written, &mut steps)?;
            places.push(at);
        }
        if let (Some(at), Some(lane)) = (places.first(), &lane) {
            add_lane(engine, partition, &deliveries[*at], before.as_deref(), lane, &mut steps, now);
            of_steps.push(places);
        }
    }
    let answers = engine.write_alerting_steps("replay", partition, steps).await?;
    for (places, is_written) in of_steps.into_iter().zip(answers) {
        if is_written { queued.extend(places) } else { left.extend(places) }
    }
    left.sort_unstable();
    Ok(())
}

async fn read(
    engine: &RedisEngine,
    partition: u16,
    deliveries: impl Iterator<Item = &Delivery>,
) -> Result<Vec<Stored>> {
    let keys = &engine.keys;
    let mut read = pipe();
    for delivery in deliveries {
        let of_receiver = |name| keys.of(partition, name, &delivery.receiver);
        let (group, id) = (&delivery.group.key, delivery.notification());
        read.hget(of_receiver("lanes"), group);
        read.hget(keys.in_partition(partition, "notifications"), id);
        read.hget(keys.in_partition(partition, "owed"), id);
        read.hget(of_receiver("fallback_done"), group);
        let timer = firing_of(delivery).map(|(timer, _)| timer.to_string()).unwrap_or_default();
        read.hget(engine.past_timers(partition), timer);
    }
    let values: Vec<Option<Vec<u8>>> = engine.topology.send("replay", &read).await?;
    let mut values = values.into_iter();
    let mut stored = Vec::new();
    while let (Some(lane), Some(notification), Some(owed), Some(fallback_done), Some(timer)) =
        (values.next(), values.next(), values.next(), values.next(), values.next())
    {
        stored.push(Stored { lane, notification, owed, fallback_done, timer });
    }
    Ok(stored)
}

/// Adds to a step that the lane of this delivery is replaced.
fn add_lane(
    engine: &RedisEngine,
    partition: u16,
    delivery: &Delivery,
    before: Option<&[u8]>,
    lane: &[u8],
    steps: &mut Steps,
    now: Timestamp,
) {
    let of_receiver = |name| engine.keys.of(partition, name, &delivery.receiver);
    let (lanes, group) = (of_receiver("lanes"), delivery.group.key.as_bytes());
    steps.expect_field(&lanes, group, before).write("HSET", &lanes, &[group, lane]);
    if before.is_none() {
        steps.write("ZADD", &of_receiver("queue"), &[now.as_millis().to_string().as_bytes(), group]);
    }
    steps.write("HSET", &of_receiver("unnotified"), &[MARKED.as_bytes(), MARKED.as_bytes()]);
}

/// Adds to a step that a delivery is kept, apart from its lane.
fn add_delivery(
    engine: &RedisEngine,
    partition: u16,
    delivery: &Delivery,
    stored: Stored,
    written: &mut Written,
    steps: &mut Steps,
) -> Result<()> {
    let keys = &engine.keys;
    let of_receiver = |name| keys.of(partition, name, &delivery.receiver);
    let [notifications, owed] = ["notifications", "owed"].map(|name| keys.in_partition(partition, name));
    let (group, id) = (delivery.group.key.as_bytes(), delivery.notification());
    // It comes after the notifications of the lane, of which the mark says nothing any more.
    if stored.fallback_done.as_deref() == Some(id.as_bytes()) {
        let fallback_done = of_receiver("fallback_done");
        steps.expect_field(&fallback_done, group, stored.fallback_done.as_deref()).write(
            "HDEL",
            &fallback_done,
            &[group],
        );
    }
    // Another receiver may have got it in this call.
    let (notification, count) = match written.remove(id) {
        Some((notification, count)) => (Some(notification), count),
        None => (stored.notification, stored.owed),
    };
    steps.expect_field(&notifications, id.as_bytes(), notification.as_deref());
    let after = if let Some(notification) = notification {
        let before = count.as_deref().and_then(milliseconds).unwrap_or(1);
        let more = (before + 1).to_string().into_bytes();
        steps.expect_field(&owed, id.as_bytes(), count.as_deref());
        steps.write("HSET", &owed, &[id.as_bytes(), &more]);
        (notification, Some(more))
    } else {
        let json = to_json(&Notification::again(delivery))?;
        steps.write("HSET", &notifications, &[id.as_bytes(), json.as_bytes()]);
        (json.into_bytes(), count)
    };
    written.insert(id.to_owned(), after);
    steps.write("ZREM", &of_receiver("dead"), &[id.as_bytes()]);
    steps.write("HDEL", &of_receiver("dead_letters"), &[id.as_bytes()]);
    add_receipt(engine, partition, delivery, stored.timer.as_deref(), steps);
    Ok(())
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

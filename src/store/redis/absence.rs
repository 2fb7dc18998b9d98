//! Receivers that were not configured for a while, and the notifications that wait for them from before.
//!
//! Instances mark receivers that are not in their configuration as absent, see
//! [`super::receivers::register_receivers`]. When a receiver is configured again, its lanes are read once before any
//! notification is leased. A silence that is over by then is marked as unnotified: the silence and its return are left
//! out when their notifications are leased. A silence that lasts is delivered as it was sealed.
//!
//! # Why the mark of absence stays until all lanes are read
//! After a crash halfway the lanes are read again, and a second mark of a silence changes nothing.

use std::collections::{BTreeSet, HashMap};

use redis::pipe;

use super::RedisEngine;
use super::fields::{Field, Fields};
use super::lanes::in_lane;
use super::reading::snapshot;
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::store::notification::Notification;
use crate::store::unnotified::{
    LeftOut, Unnotified, UnnotifiedSilence, blindness_in, left_out, silence, silence_in,
};
use crate::store::{Delivery, Group, HearingStore, MAX_STEP, Result};

/// How many lanes are read in one step.
const LANES: usize = 100;

/// The field, and its value, that says that marks of silences in notifications that wait may be among the others. Without
/// it, a lease reads those of returns only.
pub(super) const MARKED: &str = "-";

/// The begin of the entry of an absent receiver.
const ABSENT: &str = "absent ";

/// The entry of a receiver that is absent from `now` on.
pub(super) fn since(now: Timestamp) -> String {
    format!("{ABSENT}{}", now.as_millis())
}

pub(super) fn is_absent(entry: &str) -> bool {
    entry.starts_with(ABSENT)
}

/// Reads the lanes of a receiver that was absent. Answers how many silences are left out.
pub(super) async fn bring_up_to_date(engine: &RedisEngine, receiver: &str, now: Timestamp) -> Result<usize> {
    let key = engine.keys.receivers();
    let mut read = pipe();
    read.hget(&key, receiver);
    let (entry,): (Option<Vec<u8>>,) = engine.topology.send("receivers", &read).await?;
    if !entry.is_some_and(|entry| is_absent(&String::from_utf8_lossy(&entry))) {
        return Ok(0);
    }
    let mut past = 0;
    for partition in 0..engine.keys.partitions() {
        let lanes = engine.keys.of(partition, "lanes", receiver);
        let mut lanes = Fields::of(&engine.topology, "absent", lanes, LANES);
        while let Some(page) = lanes.next().await? {
            for lanes in page.chunks(LANES) {
                past += mark(engine, partition, receiver, lanes).await?;
            }
        }
    }
    let mut enter = pipe();
    enter.hset(&key, receiver, now.as_millis()).ignore();
    engine.topology.send::<()>("receivers", &enter).await?;
    Ok(past)
}

/// Marks the silences in these lanes that are over. Answers how many.
async fn mark(engine: &RedisEngine, partition: u16, receiver: &str, lanes: &[Field]) -> Result<usize> {
    let mut bodies = pipe();
    let (mut notifications, mut groups) = (Vec::new(), Vec::new());
    for (group, lane) in lanes {
        // Leasing reports an unreadable lane.
        let (Ok(group), Ok(lane)) = (str::from_utf8(group), str::from_utf8(lane)) else { continue };
        let (ids, own) = in_lane(lane);
        notifications.extend(own.and_then(|own| Notification::read(group, own.as_bytes()).notification));
        // The lane of a notification that was leased when it was sealed has its only copy.
        for id in ids.skip(usize::from(own.is_some())) {
            bodies.hget(engine.keys.in_partition(partition, "notifications"), id);
            groups.push(group);
        }
    }
    if !groups.is_empty() {
        let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("absent", &bodies).await?;
        for (group, body) in groups.into_iter().zip(bodies) {
            notifications.extend(body.and_then(|body| Notification::read(group, &body).notification));
        }
    }
    let past = past(engine, &notifications).await?;
    for names in past.chunks(MAX_STEP) {
        let unnotified = engine.keys.of(partition, "unnotified", receiver);
        let mut mark = pipe();
        mark.hset(&unnotified, MARKED, MARKED).ignore();
        let marks: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), Unnotified::PAST)).collect();
        mark.hset_multiple(&unnotified, &marks).ignore();
        engine.topology.send::<()>("absent", &mark).await?;
    }
    Ok(past.len())
}

/// The names of the silences and blind intervals of these notifications that are over by now.
async fn past<'a>(engine: &RedisEngine, notifications: &'a [Notification]) -> Result<Vec<String>> {
    let mut past = Vec::new();
    let lasts = |one: &Notification| one.blind.iter().any(|interval| !interval.is_over());
    if notifications.iter().any(lasts) {
        let hearing = engine.hearing().await?;
        for one in notifications {
            past.extend(one.over(&hearing).map(|interval| blindness_in(&one.group, interval)));
        }
    }
    let of = |one: &'a Notification| one.offline.iter().map(move |record| (&one.group, record));
    // The receiver may have been notified of the silences of a reminder before.
    let notified_first = notifications.iter().filter(|one| !one.reminder);
    let silences = notified_first.flat_map(of).filter(|(_, record)| !record.is_flapping());
    let silences: Vec<(&Group, &OfflineRecord)> = silences.collect();
    for records in silences.chunks(MAX_STEP) {
        let mut facts = pipe();
        for (_, record) in records {
            let (partition, page) = engine.keys.page_id(&record.id.unit);
            facts.hget(engine.keys.facts_page(partition, page), record.id.unit.to_string());
        }
        let facts: Vec<Option<Vec<u8>>> = engine.topology.send("absent", &facts).await?;
        let over = records.iter().zip(facts).filter(|((_, record), facts)| is_over(record, facts.clone()));
        past.extend(over.map(|((group, record), _)| silence_in(group, record)));
    }
    Ok(past)
}

/// Whether the record is not open any more. A unit with unreadable facts may still be offline.
fn is_over(record: &OfflineRecord, facts: Option<Vec<u8>>) -> bool {
    let (seen, _) = snapshot(record.id.unit.clone(), None, facts);
    let open = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
    !seen.is_unreadable() && open.is_none_or(|open| silence(&open) != silence(record))
}

/// The silences and blind intervals of these deliveries that the receiver was not notified of, by their names.
async fn unnotified(
    engine: &RedisEngine,
    receiver: &str,
    deliveries: &[Delivery],
) -> Result<HashMap<String, Unnotified>> {
    let partition = |delivery: &Delivery| engine.keys.partition_of_group(&delivery.group.key);
    let key = |partition| engine.keys.of(partition, "unnotified", receiver);
    let partitions: BTreeSet<u16> = deliveries.iter().map(partition).collect();
    let mut read = pipe();
    for partition in &partitions {
        read.hget(key(*partition), MARKED);
    }
    let mut names = Vec::new();
    for delivery in deliveries {
        for record in delivery.notified_before() {
            let name = silence_in(&delivery.group, record);
            read.hget(key(partition(delivery)), &name);
            names.push(name);
        }
    }
    type StoredMarks = Vec<Option<String>>;
    let mut marks: StoredMarks = engine.topology.send("unnotified", &read).await?;
    let mut of_names = marks.split_off(partitions.len());
    let marked: BTreeSet<u16> =
        partitions.into_iter().zip(marks).filter_map(|(partition, mark)| mark.map(|_| partition)).collect();
    let mut read = pipe();
    for delivery in deliveries.iter().filter(|delivery| marked.contains(&partition(delivery))) {
        let blind = delivery.blind.iter().map(|interval| blindness_in(&delivery.group, interval));
        for name in delivery.silences().into_iter().chain(blind) {
            read.hget(key(partition(delivery)), &name);
            names.push(name);
        }
    }
    if of_names.len() < names.len() {
        let more: StoredMarks = engine.topology.send("unnotified", &read).await?;
        of_names.extend(more);
    }
    let known = names.into_iter().zip(of_names);
    Ok(known.filter_map(|(name, mark)| Some((name, Unnotified::of(mark?)))).collect())
}

pub(super) async fn leave_out(
    engine: &RedisEngine,
    receiver: &str,
    deliveries: Vec<Delivery>,
) -> Result<LeftOut> {
    let unnotified = unnotified(engine, receiver, &deliveries).await?;
    let left = left_out(deliveries, unnotified);
    forget(engine, receiver, &left.notified).await?;
    Ok(left)
}

/// Forgets that the receiver was not notified of these silences.
pub(super) async fn forget(
    engine: &RedisEngine,
    receiver: &str,
    silences: &[UnnotifiedSilence],
) -> Result<()> {
    let mut forget = pipe();
    for UnnotifiedSilence { group, name } in silences {
        let partition = engine.keys.partition_of_group(group);
        forget.hdel(engine.keys.of(partition, "unnotified", receiver), name).ignore();
    }
    if forget.is_empty() { Ok(()) } else { engine.topology.send("unnotified", &forget).await }
}

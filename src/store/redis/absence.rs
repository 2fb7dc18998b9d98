//! Receivers that were not configured for a while, and what waits for them from before.
//!
//! Instances mark receivers that they are not configured with, see [`super::receivers::enlist`]. When one of them is
//! configured again, what waits for it is gone through once, before any of it is handed out: a silence that is over by
//! then is marked among what the receiver was not told, and is left out when its notification is handed out. So is
//! its return. What is still so is told as it was sealed.
//!
//! # Why the mark of absence stays until all is gone through
//! A crash halfway is the same as a pause: it is gone through again, and marked twice is marked once.

use std::collections::{BTreeSet, HashMap};

use redis::pipe;

use super::RedisEngine;
use super::fields::{Field, Fields};
use super::lanes::in_lane;
use super::reading::snapshot;
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::store::notification::Notification;
use crate::store::untold::{Untold, blindness_in, silence};
use crate::store::{Delivery, HearingStore, LARGEST_STEP, Result};

/// How many lanes are read in one step.
const LANES: usize = 100;

/// Begins the entry of a receiver that is absent.
const ABSENT: &str = "absent ";

/// The entry of a receiver that is absent from `now` on.
pub(super) fn since(now: Timestamp) -> String {
    format!("{ABSENT}{}", now.as_millis())
}

/// Whether that is the entry of one that is absent. Of one that cannot be read nothing else is known, either.
pub(super) fn is_absent(entry: &str) -> bool {
    entry.starts_with(ABSENT)
}

/// Goes through what waits for a receiver that was absent. Answers how many silences are left out.
pub(super) async fn bring_up_to_date(engine: &RedisEngine, receiver: &str, now: Timestamp) -> Result<usize> {
    let key = engine.keys.receivers();
    let mut look = pipe();
    look.hget(&key, receiver);
    let (entry,): (Option<Vec<u8>>,) = engine.topology.send("receivers", &look).await?;
    if !entry.is_some_and(|entry| is_absent(&String::from_utf8_lossy(&entry))) {
        return Ok(0);
    }
    let mut past = 0;
    for partition in 0..engine.keys.partitions() {
        let lanes = engine.keys.of(partition, "lanes", receiver);
        let mut lanes = Fields::of(&engine.topology, "absent", lanes, LANES);
        while let Some(found) = lanes.next().await? {
            for lanes in found.chunks(LANES) {
                past += mark(engine, partition, receiver, lanes).await?;
            }
        }
    }
    let mut enter = pipe();
    enter.hset(&key, receiver, now.as_millis()).ignore();
    engine.topology.send::<()>("receivers", &enter).await?;
    Ok(past)
}

/// Marks what is over of the silences in these lanes. Answers how many those are.
async fn mark(engine: &RedisEngine, partition: u16, receiver: &str, lanes: &[Field]) -> Result<usize> {
    let mut bodies = pipe();
    let (mut told, mut groups) = (Vec::new(), Vec::new());
    for (group, lane) in lanes {
        // What cannot be read says nothing, and is met again when it is handed out.
        let (Ok(group), Ok(lane)) = (str::from_utf8(group), str::from_utf8(lane)) else { continue };
        let (ids, own) = in_lane(lane);
        told.extend(own.and_then(|own| Notification::read(group, own.as_bytes()).told));
        // What is told of the first stands there or nowhere else.
        for id in ids.skip(usize::from(own.is_some())) {
            bodies.hget(engine.keys.in_partition(partition, "notifications"), id);
            groups.push(group);
        }
    }
    if !groups.is_empty() {
        let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("absent", &bodies).await?;
        for (group, body) in groups.into_iter().zip(bodies) {
            told.extend(body.and_then(|body| Notification::read(group, &body).told));
        }
    }
    let past = past(engine, &told).await?;
    for names in past.chunks(LARGEST_STEP) {
        let untold = engine.keys.of(partition, "untold", receiver);
        let mut mark = pipe();
        mark.hset(&untold, Untold::PAST, Untold::PAST).ignore();
        let marks: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), Untold::PAST)).collect();
        mark.hset_multiple(&untold, &marks).ignore();
        engine.topology.send::<()>("absent", &mark).await?;
    }
    Ok(past.len())
}

/// What is over by now of silences, and of blindness, that these tell.
async fn past(engine: &RedisEngine, told: &[Notification]) -> Result<Vec<String>> {
    let mut past = Vec::new();
    let lasting = |told: &Notification| told.blind.iter().any(|interval| !interval.is_over());
    if told.iter().any(lasting) {
        let hearing = engine.hearing().await?;
        for told in told {
            past.extend(told.over(&hearing).map(|interval| blindness_in(&told.group, interval)));
        }
    }
    let silences: Vec<&OfflineRecord> = told.iter().flat_map(|told| &told.offline).collect();
    for records in silences.chunks(LARGEST_STEP) {
        let mut facts = pipe();
        for record in records {
            let (partition, page) = engine.keys.page_id(record.whose());
            facts.hget(engine.keys.facts_page(partition, page), record.whose().to_string());
        }
        let facts: Vec<Option<Vec<u8>>> = engine.topology.send("absent", &facts).await?;
        let over = records.iter().zip(facts).filter(|(record, facts)| is_over(record, facts.clone()));
        past.extend(over.map(|(record, _)| silence(record)));
    }
    Ok(past)
}

/// Whether the record is not open, as far as is known: a unit of which nothing can be read may be offline.
fn is_over(record: &OfflineRecord, facts: Option<Vec<u8>>) -> bool {
    let (seen, _) = snapshot(record.whose().clone(), None, facts);
    let open = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
    !seen.is_unreadable() && open.is_none_or(|open| silence(&open) != silence(record))
}

/// What of these deliveries the receiver was not told before, by the names of the silences.
pub(super) async fn untold(
    engine: &RedisEngine,
    receiver: &str,
    deliveries: &[Delivery],
) -> Result<HashMap<String, Untold>> {
    let partition = |delivery: &Delivery| engine.keys.partition_of_group(&delivery.group.key);
    let key = |partition| engine.keys.of(partition, "untold", receiver);
    let partitions: BTreeSet<u16> = deliveries.iter().map(partition).collect();
    let mut look = pipe();
    for partition in &partitions {
        look.hget(key(*partition), Untold::PAST);
    }
    let mut names = Vec::new();
    for delivery in deliveries {
        for record in &delivery.online {
            let name = silence(record);
            look.hget(key(partition(delivery)), &name);
            names.push(name);
        }
    }
    type Marks = Vec<Option<String>>;
    let mut marks: Marks = engine.topology.send("untold", &look).await?;
    let mut of_names = marks.split_off(partitions.len());
    let with_past: BTreeSet<u16> =
        partitions.into_iter().zip(marks).filter_map(|(partition, mark)| mark.map(|_| partition)).collect();
    let mut look = pipe();
    for delivery in deliveries.iter().filter(|delivery| with_past.contains(&partition(delivery))) {
        let silences = delivery.offline.iter().map(silence);
        for name in
            silences.chain(delivery.blind.iter().map(|interval| blindness_in(&delivery.group, interval)))
        {
            look.hget(key(partition(delivery)), &name);
            names.push(name);
        }
    }
    if of_names.len() < names.len() {
        let more: Marks = engine.topology.send("untold", &look).await?;
        of_names.extend(more);
    }
    let known = names.into_iter().zip(of_names);
    Ok(known.filter_map(|(name, mark)| Some((name, Untold::of(&mark?)))).collect())
}

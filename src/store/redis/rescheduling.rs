//! Groups that are looked at sooner than was planned, because their routes have changed: a `repeat_interval` or an
//! escalation that is new or shorter reaches silences that receivers were notified of before.
//!
//! A member that was notified while its route had neither is kept without its record, and its group may have no moment at
//! which it is looked at. Such members are found by a scan of all members: once for each partition, after a start or a
//! reload.

use std::collections::BTreeSet;

use redis::pipe;

use super::RedisEngine;
use super::fields::FieldScan;
use super::member_text::MemberText;
use crate::clock::Timestamp;
use crate::presence::Stage;
use crate::routing::is_flapping;
use crate::store::{Destinations, Result};

/// How many groups or members one step reads.
const STEP: usize = 1000;

/// See [`GroupStore::reschedule`](crate::store::GroupStore::reschedule).
pub(super) async fn reschedule(
    engine: &RedisEngine,
    partitions: &[u16],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<()> {
    for partition in partitions {
        bring_forward(engine, *partition, destinations, now).await?;
        add_missing(engine, *partition, destinations, now).await?;
    }
    Ok(())
}

/// Looks now at the groups whose next moment is later than the routes of now would have set it.
async fn bring_forward(
    engine: &RedisEngine,
    partition: u16,
    destinations: &Destinations,
    now: Timestamp,
) -> Result<()> {
    let key = engine.keys.in_partition(partition, "reminders");
    let is_late = |group: &[u8], due: f64| {
        let first = destinations.of(&String::from_utf8_lossy(group)).again.first();
        first.is_some_and(|first| (now + first).as_millis() < due as i64)
    };
    // Those that are looked at now leave the range.
    let mut kept = 0;
    loop {
        let mut read = pipe();
        let after = format!("({}", now.as_millis());
        read.zrangebyscore_limit_withscores(&key, after, "+inf", kept, STEP as isize);
        let (found,): (Vec<(Vec<u8>, f64)>,) = engine.topology.send("reschedule", &read).await?;
        let late: Vec<&[u8]> =
            found.iter().filter(|(group, due)| is_late(group, *due)).map(|(group, _)| &**group).collect();
        kept += (found.len() - late.len()) as isize;
        if !late.is_empty() {
            let mut write = pipe();
            let command = write.cmd("ZADD").arg(&key).arg("XX").arg("LT");
            late.iter().fold(command, |command, group| command.arg(now.as_millis()).arg(*group)).ignore();
            engine.topology.send::<()>("reschedule", &write).await?;
        }
        if found.len() < STEP {
            return Ok(());
        }
    }
}

/// Adds members that were kept without their records, because their routes neither reminded nor escalated.
async fn add_missing(
    engine: &RedisEngine,
    partition: u16,
    destinations: &Destinations,
    now: Timestamp,
) -> Result<()> {
    let members = engine.keys.in_partition(partition, "members");
    let mut members = FieldScan::of(&engine.topology, "reschedule", members, STEP);
    while let Some(fields) = members.next().await? {
        let (mut write, mut groups) = (pipe(), BTreeSet::new());
        for (field, text) in &fields {
            let Some((group, member)) = str::from_utf8(field).ok().and_then(|field| field.split_once('\n'))
            else {
                continue;
            };
            let is_without_record = MemberText::read(text)
                .is_some_and(|text| text.stage == Stage::Notified && text.body.is_empty());
            if is_without_record && !is_flapping(group) && destinations.of(group).again.first().is_some() {
                let lasting = engine.keys.of(partition, "lasting", group);
                write.cmd("ZADD").arg(lasting).arg("NX").arg(now.as_millis()).arg(member).ignore();
                groups.insert(group);
            }
        }
        if groups.is_empty() {
            continue;
        }
        let reminders = engine.keys.in_partition(partition, "reminders");
        let command = write.cmd("ZADD").arg(reminders).arg("LT");
        groups.iter().fold(command, |command, group| command.arg(now.as_millis()).arg(*group)).ignore();
        engine.topology.send::<()>("reschedule", &write).await?;
    }
    Ok(())
}

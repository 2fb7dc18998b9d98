//! Silences whose waits are prolonged before their group is sealed, because they are held.
//!
//! Nothing is read while nothing may be held. A silence that another instance seals or ends meanwhile is left as it is.

use redis::pipe;

use super::RedisEngine;
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::store::notification::MOST_MEMBERS;
use crate::store::{Destinations, Pace, Result};

/// How many groups are read in one step.
const GROUPS: usize = 50;

/// Prolongs the waits of silences in these groups of a partition that are held, so that none of those that may be sealed
/// now is.
pub(super) async fn hold(
    engine: &RedisEngine,
    partition: u16,
    groups: &[String],
    pace: Pace,
    destinations: &Destinations,
    now: Timestamp,
) -> Result<()> {
    for groups in groups.chunks(GROUPS) {
        let mut groups: Vec<&String> = groups.iter().collect();
        while !groups.is_empty() {
            groups = hold_some(engine, partition, &groups, pace, destinations, now).await?;
        }
    }
    Ok(())
}

/// Looks at the first silences of each group. Answers the groups of which some are held: others are the first now.
async fn hold_some<'a>(
    engine: &RedisEngine,
    partition: u16,
    groups: &[&'a String],
    pace: Pace,
    destinations: &Destinations,
    now: Timestamp,
) -> Result<Vec<&'a String>> {
    let waiting = |group: &str| engine.keys.of(partition, "waiting", group);
    let mut read = pipe();
    for group in groups {
        let ready = (now - pace.wait).as_millis();
        read.zrangebyscore_limit(waiting(group), 0, ready, 0, MOST_MEMBERS as isize);
    }
    let ready: Vec<Vec<Vec<u8>>> = engine.topology.send("waiting", &read).await?;
    let in_order = groups.iter().zip(ready);
    let ready: Vec<(&'a String, Vec<u8>)> =
        in_order.flat_map(|(group, members)| members.into_iter().map(|member| (*group, member))).collect();
    let mut again: Vec<&String> = Vec::new();
    for members in ready.chunks(MOST_MEMBERS) {
        let mut read = pipe();
        read.cmd("HMGET").arg(engine.keys.in_partition(partition, "members"));
        for (group, member) in members {
            read.arg([group.as_bytes(), b"\n", &member[..]].concat());
        }
        let (values,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("members", &read).await?;
        let mut change = pipe();
        for ((group, member), value) in members.iter().zip(values) {
            let record = value.as_deref().and_then(record_of);
            let until = record.and_then(|record| destinations.silence_held_until(&record, now));
            if let Some(until) = until {
                change.cmd("ZADD").arg(waiting(group)).arg("XX").arg((until - pace.wait).as_millis());
                change.arg(member).ignore();
                if again.last() != Some(group) {
                    again.push(group);
                }
            }
        }
        engine.topology.send::<()>("hold", &change).await?;
    }
    Ok(again)
}

/// The record of a member that waits: after the first space, see `join.lua`.
fn record_of(value: &[u8]) -> Option<OfflineRecord> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    serde_json::from_slice(&value[space + 1..]).ok()
}

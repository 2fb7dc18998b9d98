//! Silences whose waits are prolonged before their group is sealed, because they are held.
//!
//! Nothing is read while nothing may be held.
//!
//! # Why a wait is prolonged by a script
//! Whether a silence is held is decided from its record, after a read. Before the write, another instance may seal
//! the silence, and its return may wait under the same name: the write would hold the return back. So a wait is
//! prolonged only if the member still waits as it was read.

use redis::pipe;

use super::RedisEngine;
use super::steps::KeySteps;
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::store::notification::MAX_MEMBERS;
use crate::store::{Destinations, Pace, Result};

/// How many groups are read in one step.
const GROUPS: usize = 50;

/// How many waits one script prolongs: within a millisecond.
const STEP: usize = 100;

/// A silence that waits, as it was read.
struct WaitingSilence<'a> {
    group: &'a String,
    member: Vec<u8>,
    /// When its wait began (ms), as another program may have written it.
    since: f64,
}

/// A silence that is held, as it was read.
struct HeldSilence<'a, 'b> {
    silence: &'b WaitingSilence<'a>,
    value: Vec<u8>,
    until: Timestamp,
}

/// Prolongs the waits of held silences in these groups of a partition, so that no held silence is sealed now.
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
    let ready = ready(engine, partition, groups, now - pace.wait).await?;
    let mut again: Vec<&String> = Vec::new();
    for silences in ready.chunks(MAX_MEMBERS) {
        let mut read = pipe();
        read.cmd("HMGET").arg(engine.keys.in_partition(partition, "members"));
        for WaitingSilence { group, member, .. } in silences {
            read.arg([group.as_bytes(), b"\n", member].concat());
        }
        let (values,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("members", &read).await?;
        let held = silences.iter().zip(values).filter_map(|(silence, value)| {
            let value = value?;
            let until = destinations.silence_held_until(&record_of(&value)?, now)?;
            Some(HeldSilence { silence, value, until })
        });
        let held: Vec<HeldSilence<'a, '_>> = held.collect();
        again.extend(held.iter().map(|held| held.silence.group));
        let slot = engine.keys.slot(partition);
        let steps = held.chunks(STEP).map(|step| (slot, prolong(engine, partition, step, pace)));
        engine.topology.run_limited(steps.collect()).await?;
    }
    again.dedup();
    Ok(again)
}

/// The first silences of each group whose waits began by then.
async fn ready<'a>(
    engine: &RedisEngine,
    partition: u16,
    groups: &[&'a String],
    until: Timestamp,
) -> Result<Vec<WaitingSilence<'a>>> {
    let mut read = pipe();
    for group in groups {
        let waiting = engine.keys.of(partition, "waiting", group);
        let (until, most) = (until.as_millis(), MAX_MEMBERS as isize);
        read.zrangebyscore_limit_withscores(waiting, 0, until, 0, most);
    }
    let ready: Vec<Vec<(Vec<u8>, f64)>> = engine.topology.send("waiting", &read).await?;
    let silences = groups.iter().zip(ready).flat_map(|(group, members)| {
        members.into_iter().map(|(member, since)| WaitingSilence { group, member, since })
    });
    Ok(silences.collect())
}

/// Prolongs the waits of held silences that are as they were read. The others are read again, if they wait.
async fn prolong(
    engine: &RedisEngine,
    partition: u16,
    held: &[HeldSilence<'_, '_>],
    pace: Pace,
) -> Result<()> {
    let (members, mut steps) = (engine.keys.in_partition(partition, "members"), KeySteps::default());
    for HeldSilence { silence: WaitingSilence { group, member, since }, value, until } in held {
        let waiting = engine.keys.of(partition, "waiting", group);
        let field = [group.as_bytes(), b"\n", member].concat();
        let begins = (*until - pace.wait).as_millis().to_string();
        steps.begin().expect_score(&waiting, member, *since).expect_field(&members, &field, Some(value));
        steps.write("ZADD", &waiting, &[begins.as_bytes(), member]);
    }
    engine.write_alerting_steps("hold", partition, steps).await.map(|_prolonged| ())
}

/// The record of a member that waits: after the first space, see `join.lua`.
fn record_of(value: &[u8]) -> Option<OfflineRecord> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    serde_json::from_slice(&value[space + 1..]).ok()
}

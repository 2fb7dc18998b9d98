//! Silences that follow a return of their unit which still waits in the group: see [`Pace::returns_wait`].
//!
//! Only groups of routes whose returns wait are read.
//!
//! [`Pace::returns_wait`]: crate::presence::Pace::returns_wait

use redis::pipe;

use super::RedisEngine;
use super::joining::JoiningEvent;
use crate::clock::Timestamp;
use crate::presence::{MemberTransition, Stage, Unit, since_of};
use crate::store::member_names::{names_of, of_member};
use crate::store::{Destinations, Result};

/// Notes for such silences, among transitions that join in this order, when the return is notified.
pub(super) async fn note(
    engine: &RedisEngine,
    joining: &mut [JoiningEvent<'_>],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<()> {
    let pace = |one: &JoiningEvent<'_>| destinations.of(&one.group.key).pace;
    let is_behind = |one: &JoiningEvent<'_>| {
        one.member.form == MemberTransition::Offline && pace(one).returns_wait().is_some()
    };
    let indexes: Vec<usize> = (0..joining.len()).filter(|index| is_behind(&joining[*index])).collect();
    if indexes.is_empty() {
        return Ok(());
    }
    let mut read = pipe();
    for index in &indexes {
        let key = &joining[*index].group.key;
        let waiting = engine.keys.of(engine.keys.partition_of_group(key), "waiting", key);
        // Members that are final, as returns are, sort before zero.
        read.zrangebyscore_withscores(waiting, "-inf", "(0");
    }
    let waiting: Vec<Vec<(Vec<u8>, f64)>> = engine.topology.send("waiting", &read).await?;
    let joining_too = joining_too(engine, joining, &indexes).await?;
    for ((index, waiting), joins_too) in indexes.into_iter().zip(waiting).zip(joining_too) {
        let one = &mut joining[index];
        let (pace, Some(unit)) = (pace(one), unit_of(&one.member.id)) else { continue };
        let of_unit = waiting.iter().filter(|(name, _)| {
            str::from_utf8(name).ok().and_then(unit_of).is_some_and(|other| other == unit)
        });
        let stored = of_unit.map(|(_, since)| since_of(*since as i64) + pace.wait);
        let joining_too = pace.returns_wait().filter(|_| joins_too).map(|wait| now + wait);
        one.return_at = stored.chain(joining_too).max().filter(|at| *at > now);
    }
    Ok(())
}

/// For each of these silences whether a return of its unit joins before it in the same call, and will wait: receivers
/// were notified of its silence.
async fn joining_too(
    engine: &RedisEngine,
    joining: &[JoiningEvent<'_>],
    indexes: &[usize],
) -> Result<Vec<bool>> {
    let mut joins_too = vec![false; indexes.len()];
    let (mut read, mut asked) = (pipe(), Vec::new());
    for (at, index) in indexes.iter().enumerate() {
        let (earlier, one) = (&joining[..*index], &joining[*index]);
        let unit = unit_of(&one.member.id);
        let returns = earlier.iter().filter(|other| {
            other.member.form == MemberTransition::Online
                && other.group.key == one.group.key
                && unit_of(&other.member.id) == unit
        });
        for record in returns.filter_map(|other| other.event.record()) {
            let names = names_of(record).map(|name| format!("{}\n{name}", one.group.key));
            let partition = engine.keys.partition_of_group(&one.group.key);
            read.cmd("HMGET").arg(engine.keys.in_partition(partition, "members")).arg(&names);
            asked.push(at);
        }
    }
    if asked.is_empty() {
        return Ok(joins_too);
    }
    let found: Vec<Vec<Option<Vec<u8>>>> = engine.topology.send("members", &read).await?;
    let is_notified = |member: &Vec<u8>| {
        member.first().and_then(|byte| Stage::of(char::from(*byte))) == Some(Stage::Notified)
    };
    for (at, members) in asked.into_iter().zip(found) {
        joins_too[at] |= members.iter().flatten().any(is_notified);
    }
    Ok(joins_too)
}

fn unit_of(member: &str) -> Option<Unit> {
    of_member(member).map(|(_, id)| id.unit)
}

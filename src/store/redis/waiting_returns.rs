//! Silences that follow a return of their unit which still waits in the group: see [`Pace::returns_wait`].
//!
//! Only groups of routes whose returns wait are read.
//!
//! [`Pace::returns_wait`]: crate::presence::Pace::returns_wait

use redis::pipe;

use super::RedisEngine;
use super::joining::Joining;
use crate::clock::Timestamp;
use crate::presence::{MemberTransition, Unit, since_of};
use crate::store::member_names::of_member;
use crate::store::{Destinations, Result};

/// Notes for such silences, among transitions that join in this order, when the return is notified.
pub(super) async fn note(
    engine: &RedisEngine,
    joining: &mut [Joining<'_>],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<()> {
    let pace = |one: &Joining<'_>| destinations.of(&one.group.key).pace;
    let is_behind = |one: &Joining<'_>| {
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
    for (index, waiting) in indexes.into_iter().zip(waiting) {
        let (earlier, rest) = joining.split_at_mut(index);
        let one = &mut rest[0];
        let (pace, Some(unit)) = (pace(one), unit_of(&one.member.id)) else { continue };
        let of_unit = waiting.iter().filter(|(name, _)| {
            str::from_utf8(name).ok().and_then(unit_of).is_some_and(|other| other == unit)
        });
        let stored = of_unit.map(|(_, since)| since_of(*since as i64) + pace.wait);
        let joins_too = earlier.iter().any(|other| {
            other.member.form == MemberTransition::Online
                && other.group.key == one.group.key
                && unit_of(&other.member.id).is_some_and(|other| other == unit)
        });
        let joining_too = pace.returns_wait().filter(|_| joins_too).map(|wait| now + wait);
        one.return_at = stored.chain(joining_too).max().filter(|at| *at > now);
    }
    Ok(())
}

fn unit_of(member: &str) -> Option<Unit> {
    of_member(member).map(|(_, id)| id.unit)
}

//! Silences that follow a return of their unit which still waits in the group: see [`Pace::held_by_return`].
//!
//! Only groups whose returns wait, of units that are silent again sooner, are read.
//!
//! [`Pace::held_by_return`]: crate::presence::Pace::held_by_return

use redis::pipe;

use super::RedisEngine;
use super::joining::Joining;
use crate::clock::Timestamp;
use crate::presence::{Form, Unit};

use crate::store::member_names::of_member;
use crate::store::{Destinations, Result};

/// Marks such silences among transitions that join, which are in order.
pub(super) async fn mark(
    engine: &RedisEngine,
    joining: &mut [Joining<'_>],
    destinations: &Destinations,
    now: Timestamp,
) -> Result<()> {
    let follows = |one: &Joining<'_>| {
        let pace = destinations.of(&one.group.key).pace;
        pace.held_by_return(one.member.form, one.member.last_seen, now).is_some()
    };
    let indexes: Vec<usize> = (0..joining.len()).filter(|index| follows(&joining[*index])).collect();
    if indexes.is_empty() {
        return Ok(());
    }
    let mut read = pipe();
    for index in &indexes {
        let key = &joining[*index].group.key;
        let waiting = engine.keys.of(engine.keys.partition_of_group(key), "waiting", key);
        // Members that are final, as returns are, sort before zero.
        read.zrangebyscore(waiting, "-inf", "(0");
    }
    let waiting: Vec<Vec<Vec<u8>>> = engine.topology.send("waiting", &read).await?;
    for (index, names) in indexes.into_iter().zip(waiting) {
        let (earlier, rest) = joining.split_at_mut(index);
        let one = &mut rest[0];
        let Some(unit) = unit_of(&one.member.id) else { continue };
        let is_of_unit = |name: &Vec<u8>| str::from_utf8(name).ok().and_then(unit_of).as_ref() == Some(&unit);
        let joins_too = |other: &Joining<'_>| {
            other.member.form == Form::Online
                && other.group.key == one.group.key
                && unit_of(&other.member.id).as_ref() == Some(&unit)
        };
        one.follows_return = names.iter().any(is_of_unit) || earlier.iter().any(joins_too);
    }
    Ok(())
}

fn unit_of(member: &str) -> Option<Unit> {
    of_member(member).map(|(_, id)| id.unit)
}

//! The group in which the news of a record is told: the one that its first news joined.
//!
//! # Why that is kept
//! Groups are made from the configuration and from labels, and either may change while a unit is offline. Its
//! return would fall into another group, which was never told of the silence. So the record keeps its group, and
//! what was told stays where it is looked for. OutboxEvent of one record is told in order with that, too: the return
//! stands behind its silence in the same lane.
//!
//! # What was told before groups were kept
//! An earlier version kept none, and the configuration may change in the same restart. So members of groups are gone
//! through once, before anything joins. Each start within a day after that does so again, for an instance of the
//! earlier version may have gone on meanwhile.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use redis::pipe;

use super::RedisEngine;
use super::fields::{Field, Fields};
use crate::clock::Timestamp;
use crate::presence::Labels;
use crate::store::notification::{Member, of_member};
use crate::store::{EngineError, Group, Join, OutboxEvent, Result};
use crate::store::{json::from_json, json::to_json};

/// How many records are asked for in one script: within a quarter of a millisecond or so.
const STEP: usize = 64;

/// How many members are gone through at a time.
const MEMBERS: usize = 500;

/// For so long an instance of an earlier version may go on after the first of this one has started.
const UPGRADE: Duration = Duration::from_secs(86_400);

/// The field of `meta` that says when members were gone through first (ms).
const SINCE: &str = "group_of";

/// Keeps the groups of what was told before groups were kept.
async fn recall(engine: &RedisEngine, now: Timestamp) -> Result<()> {
    let meta = engine.keys.meta();
    let mut look = pipe();
    look.hget(&meta, SINCE);
    let (since,): (Option<String>,) = engine.topology.send("meta", &look).await?;
    let since = since.and_then(|ms| ms.parse().ok()).map(Timestamp::from_millis);
    if since.is_some_and(|since| now.since(since) > UPGRADE) {
        return Ok(());
    }
    for partition in 0..engine.keys.partitions() {
        let members = engine.keys.in_partition(partition, "members");
        let mut members = Fields::of(&engine.topology, "members", members, MEMBERS);
        loop {
            let found = match members.next().await {
                // It is put aside, and holds no member: the others join meanwhile.
                Err(EngineError::WrongType(_)) => break,
                answer => answer?,
            };
            let Some(found) = found else { break };
            for found in found.chunks(MEMBERS) {
                keep(engine, found).await?;
            }
        }
    }
    let mut note = pipe();
    note.hset_nx(&meta, SINCE, now.as_millis()).ignore();
    engine.topology.send("meta", &note).await
}

/// Keeps the groups of members that are not over, where none is kept.
async fn keep(engine: &RedisEngine, members: &[Field]) -> Result<()> {
    let mut keep = pipe();
    for (name, known) in members {
        let Some((group, member)) = str::from_utf8(name).ok().and_then(|name| name.split_once('\n')) else {
            continue;
        };
        let Some((member, id)) = of_member(member).filter(|_| !known.starts_with(b"x")) else { continue };
        let group = Group { key: group.to_owned(), labels: labels_in(group) };
        let key = engine.keys.in_partition(engine.keys.partition(&id.unit), "group_of");
        keep.hset_nx(key, member, to_json(&group)?).ignore();
    }
    engine.topology.send("members", &keep).await
}

/// The labels that the key of a group was made from, as far as it tells them.
fn labels_in(key: &str) -> Labels {
    let label = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        Some((name.to_owned(), unescaped(value)?))
    };
    key.split(',').filter_map(label).collect()
}

/// Undoes percent signs; `None` for a value that was cut.
fn unescaped(value: &str) -> Option<String> {
    // A key that was cut ends with `~` and a hash; values have none.
    if value.contains('~') {
        return None;
    }
    let plain = percent_decode_str(value).decode_utf8().ok()?;
    // What is left of an escape is no value either.
    (value.len() == plain.len() + 2 * value.matches('%').count()).then(|| plain.into_owned())
}

/// The same transitions, each in the group of its record.
pub(super) async fn settled<'a>(
    engine: &RedisEngine,
    joins: &'a [Join],
    now: Timestamp,
) -> Result<Cow<'a, [Join]>> {
    engine.groups_are_kept.get_or_try_init(|| recall(engine, now)).await?;
    // Of several transitions of one record the first decides.
    let mut first: HashMap<String, usize> = HashMap::with_capacity(joins.len());
    let mut partitions: BTreeMap<u16, Vec<(String, usize)>> = BTreeMap::new();
    let mut later = Vec::new();
    for (index, join) in joins.iter().enumerate() {
        let OutboxEvent::Record(record) = &join.news else { continue };
        let member = Member::new(&join.news).id;
        match first.get(&member) {
            Some(first) => later.push((index, *first)),
            None => {
                first.insert(member.clone(), index);
                let partition = engine.keys.partition(record.whose());
                partitions.entry(partition).or_default().push((member, index));
            }
        }
    }
    let steps = partitions.iter().flat_map(|(partition, members)| {
        members.chunks(STEP).map(|step| ask(engine, *partition, step, joins))
    });
    let others: HashMap<usize, Group> =
        engine.topology.few_at_once(steps.collect()).await?.into_iter().flatten().collect();
    if others.is_empty() && later.iter().all(|(index, first)| joins[*index].group == joins[*first].group) {
        return Ok(Cow::Borrowed(joins));
    }
    let mut settled = joins.to_vec();
    others.into_iter().for_each(|(index, group)| settled[index].group = group);
    later.into_iter().for_each(|(index, first)| settled[index].group = settled[first].group.clone());
    Ok(Cow::Owned(settled))
}

/// Answers the groups of those that have joined another than they would now.
async fn ask(
    engine: &RedisEngine,
    partition: u16,
    members: &[(String, usize)],
    joins: &[Join],
) -> Result<Vec<(usize, Group)>> {
    let mut script = engine.scripts.group_of.prepare_invoke();
    script.key(engine.keys.in_partition(partition, "group_of")).arg(members.len());
    for (member, _) in members {
        script.arg(member);
    }
    for (_, index) in members {
        script.arg(to_json(&joins[*index].group)?);
    }
    let answers: Vec<Vec<u8>> = engine.topology.tell("group_of", &script).await?;
    let others = members.iter().zip(answers).filter(|(_, answer)| !answer.is_empty());
    // One that cannot be read was written by another program: the group that it would join now serves as well.
    let group = |json: Vec<u8>| from_json("a group", &String::from_utf8_lossy(&json)).ok();
    Ok(others.filter_map(|((_, index), json)| Some((*index, group(json)?))).collect())
}

/// Forgets the groups of members of groups that are over for good.
pub(super) async fn forget(engine: &RedisEngine, members: impl Iterator<Item = &str>) -> Result<()> {
    let mut pipe = pipe();
    for (member, id) in members.filter_map(of_member) {
        let partition = engine.keys.partition(&id.unit);
        pipe.hdel(engine.keys.in_partition(partition, "group_of"), member).ignore();
    }
    engine.topology.send("forget_groups", &pipe).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_from_a_key_as_far_as_it_tells_them() {
        let cases: [(&str, &[(&str, &str)]); 5] = [
            ("all", &[]),
            ("kind=detector,site=north", &[("kind", "detector"), ("site", "north")]),
            ("site=a%2Ckind%3Db", &[("site", "a,kind=b")]),
            ("a=%7Bx%7D%20%25%0D%0A%7E,b=x~0f0f", &[("a", "{x} %\r\n~")]),
            ("unit=\u{fc}nit:7,b=%F", &[("unit", "\u{fc}nit:7")]),
        ];
        for (key, expected) in cases {
            let labels = labels_in(key);
            let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (&**name, &**value)).collect();
            assert_eq!(labels, expected, "{key}");
        }
    }
}

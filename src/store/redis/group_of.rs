//! The groups of a record, one for each of its routes: all its events join the groups that its first event joined.
//!
//! # Why the groups are stored
//! Groups follow from the configuration and from labels, and both may change while a unit is offline. Its return
//! would join another group, which was never notified of the silence. So the record keeps its groups. This also
//! keeps the events of one record in order: the return waits behind its silence in the same lane.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use percent_encoding::percent_decode_str;
use redis::pipe;

use super::RedisEngine;
use crate::presence::{Labels, OfflineRecord};
use crate::store::member_names::{names_of, of_member};
use crate::store::notification::GroupMember;
use crate::store::{Group, Join, OutboxEvent, Result};
use crate::store::{json::from_json, json::to_json};

/// How many groups of records one batch stores and reads: about a quarter of a millisecond.
const STEP: usize = 64;

/// The labels from which the key of a group was made, as far as the key holds them.
fn labels_in(key: &str) -> Labels {
    // The id of a route may come first.
    let labels = key.split_once('/').map_or(key, |(_, labels)| labels);
    let label = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        Some((name.to_owned(), unescaped(value)?))
    };
    labels.split(',').filter_map(label).collect()
}

/// Decodes a percent-encoded value; `None` for a value that was cut.
fn unescaped(value: &str) -> Option<String> {
    // A key that was cut ends with `~` and a hash; values have none.
    if value.contains('~') {
        return None;
    }
    let plain = percent_decode_str(value).decode_utf8().ok()?;
    // A value that ends within an escape was cut.
    (value.len() == plain.len() + 2 * value.matches('%').count()).then(|| plain.into_owned())
}

/// The groups of each of these transitions: those of its record.
pub(super) async fn stored<'a>(engine: &RedisEngine, joins: &'a [Join]) -> Result<Vec<Cow<'a, [Group]>>> {
    // Of several transitions of one record the first decides.
    let mut first: HashMap<String, usize> = HashMap::with_capacity(joins.len());
    let mut partitions: BTreeMap<u16, Vec<(String, usize)>> = BTreeMap::new();
    let mut later = Vec::new();
    for (index, join) in joins.iter().enumerate() {
        let OutboxEvent::Record(record) = &join.event else { continue };
        let member = GroupMember::new(&join.event).id;
        match first.get(&member) {
            Some(first) => later.push((index, *first)),
            None => {
                first.insert(member.clone(), index);
                let partition = engine.keys.partition(&record.id.unit);
                partitions.entry(partition).or_default().push((member, index));
            }
        }
    }
    let steps = partitions.iter().flat_map(|(partition, members)| {
        let slot = engine.keys.slot(*partition);
        members.chunks(STEP).map(move |step| (slot, stored_groups(engine, *partition, step, joins)))
    });
    let mut groups: Vec<Cow<'a, [Group]>> =
        joins.iter().map(|join| Cow::Borrowed(&join.groups[..])).collect();
    for (index, others) in engine.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
        groups[index] = Cow::Owned(others);
    }
    later.into_iter().for_each(|(index, first)| groups[index] = groups[first].clone());
    Ok(groups)
}

/// The stored groups that differ from the groups of these transitions; stores the groups of each record that has none.
async fn stored_groups(
    engine: &RedisEngine,
    partition: u16,
    members: &[(String, usize)],
    joins: &[Join],
) -> Result<Vec<(usize, Vec<Group>)>> {
    let key = engine.keys.in_partition(partition, "group_of");
    let own = members.iter().map(|(_, index)| groups_json(&joins[*index].groups));
    let own: Vec<String> = own.collect::<Result<_>>()?;
    let mut pipe = pipe();
    for ((member, _), own) in members.iter().zip(&own) {
        pipe.hset_nx(&key, member, own).ignore();
    }
    pipe.cmd("HMGET").arg(&key).arg(members.iter().map(|(member, _)| member).collect::<Vec<_>>());
    let slot = engine.keys.slot(partition);
    let (stored,): (Vec<Option<Vec<u8>>>,) = engine.topology.send_alerting("group_of", slot, &pipe).await?;
    let stored = members.iter().zip(&own).zip(stored);
    let others = stored.filter_map(|((member, own), stored)| {
        Some((member, stored.filter(|stored| stored != own.as_bytes())?))
    });
    // Another program wrote an unreadable group: the transition joins the groups of the configuration.
    let groups =
        |json: Vec<u8>| groups_in(&String::from_utf8_lossy(&json)).ok().filter(|all| !all.is_empty());
    Ok(others.filter_map(|((_, index), json)| Some((*index, groups(json)?))).collect())
}

/// The stored groups of these records.
pub(super) async fn of_records(engine: &RedisEngine, records: &[&OfflineRecord]) -> Result<Vec<Vec<Group>>> {
    let mut read = pipe();
    for record in records {
        let partition = engine.keys.partition(&record.id.unit);
        let [member, _] = names_of(record);
        read.hget(engine.keys.in_partition(partition, "group_of"), member);
    }
    let stored: Vec<Option<Vec<u8>>> = engine.topology.send("group_of", &read).await?;
    let groups = |json: Vec<u8>| groups_in(&String::from_utf8_lossy(&json)).unwrap_or_default();
    Ok(stored.into_iter().map(|json| json.map(groups).unwrap_or_default()).collect())
}

/// The group with that key, with its labels, by one of its members.
pub(super) async fn of_member_in(engine: &RedisEngine, key: &str, member: &str) -> Result<Group> {
    let mut stored = Vec::new();
    if let Some((member, id)) = of_member(member) {
        let mut read = pipe();
        read.hget(engine.keys.in_partition(engine.keys.partition(&id.unit), "group_of"), member);
        let (json,): (Option<Vec<u8>>,) = engine.topology.send("group_of", &read).await?;
        let json = json.map(|json| String::from_utf8_lossy(&json).into_owned());
        stored = json.and_then(|json| groups_in(&json).ok()).unwrap_or_default();
    }
    let found = stored.into_iter().find(|group| group.key == key);
    Ok(found.unwrap_or_else(|| Group { key: key.to_owned(), labels: labels_in(key) }))
}

/// One group is stored as an object, several as a list.
pub(super) fn groups_json(groups: &[Group]) -> Result<String> {
    match groups {
        [group] => to_json(group),
        groups => to_json(&groups),
    }
}

pub(super) fn groups_in(json: &str) -> Result<Vec<Group>> {
    match json.starts_with('[') {
        true => from_json("groups", json),
        false => from_json("a group", json).map(|group| vec![group]),
    }
}

/// Removes the stored groups of members that are over permanently.
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
    fn labels_are_read_from_a_key_as_far_as_it_holds_them() {
        let cases: [(&str, &[(&str, &str)]); 6] = [
            ("all", &[]),
            ("hook+mail.0123456789ab/kind=detector", &[("kind", "detector")]),
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

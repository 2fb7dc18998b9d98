//! The members of groups: which silences wait for a notification, which receivers were notified of them, and which
//! silences last.

use redis::pipe;

use super::{RedisEngine, group_of};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::store::member_names::{names_of, of_member};
use crate::store::{Group, Membership, Result};

/// See [`GroupStore::memberships`](crate::store::GroupStore::memberships).
pub(super) async fn memberships(
    engine: &RedisEngine,
    records: &[&OfflineRecord],
) -> Result<Vec<Vec<Membership>>> {
    let groups = group_of::of_records(engine, records).await?;
    let mut read = pipe();
    for (record, groups) in records.iter().zip(&groups) {
        for group in groups {
            let partition = engine.keys.partition_of_group(&group.key);
            let fields = names_of(record).map(|name| format!("{}\n{name}", group.key));
            read.cmd("HMGET").arg(engine.keys.in_partition(partition, "members")).arg(&fields);
        }
    }
    let values: Vec<Vec<Option<Vec<u8>>>> = engine.topology.send("members", &read).await?;
    let mut values = values.into_iter();
    let memberships = groups.into_iter().map(|groups| {
        let members = groups.into_iter().zip(&mut values).flat_map(|(group, values)| {
            let values = values.into_iter().flatten();
            values.filter_map(move |value| read_member(&group, &value)).collect::<Vec<_>>()
        });
        members.collect()
    });
    Ok(memberships.collect())
}

/// A stored member: its record follows after a space, see `join.lua`.
fn read_member(group: &Group, stored: &[u8]) -> Option<Membership> {
    let head = stored.split(|byte| *byte == b' ').next()?;
    Membership::read(group.clone(), str::from_utf8(head).ok()?)
}

/// See [`GroupStore::lasting`](crate::store::GroupStore::lasting).
pub(super) async fn lasting(
    engine: &RedisEngine,
    group: &str,
    from: Timestamp,
    before: Option<Timestamp>,
) -> Result<Vec<RecordId>> {
    let partition = engine.keys.partition_of_group(group);
    let mut read = pipe();
    let until = before.map_or("+inf".to_owned(), |before| format!("({}", before.as_millis()));
    read.zrangebyscore(engine.keys.of(partition, "lasting", group), from.as_millis(), until);
    let (names,): (Vec<Vec<u8>>,) = engine.topology.send("lasting", &read).await?;
    let names = names.iter().filter_map(|name| str::from_utf8(name).ok());
    Ok(names.filter_map(|name| Some(of_member(name)?.1)).collect())
}

//! What a group knows of its silences: which wait for a notification, and which last.

use redis::pipe;

use super::RedisEngine;
use crate::presence::{OfflineRecord, RecordId, Stage};
use crate::store::Result;
use crate::store::member_names::{names_of, of_member};

/// See [`AlertStore::waits`](crate::store::AlertStore::waits).
pub(super) async fn waits(engine: &RedisEngine, group: &str, record: &OfflineRecord) -> Result<bool> {
    let partition = engine.keys.partition_of_group(group);
    let fields = names_of(record).map(|name| format!("{group}\n{name}"));
    let mut read = pipe();
    read.cmd("HMGET").arg(engine.keys.in_partition(partition, "members")).arg(&fields);
    let (values,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("members", &read).await?;
    let letter = Stage::Waits.letter() as u8;
    Ok(values.iter().flatten().any(|value| value.first() == Some(&letter)))
}

/// See [`AlertStore::lasting`](crate::store::AlertStore::lasting).
pub(super) async fn lasting(engine: &RedisEngine, group: &str) -> Result<Vec<RecordId>> {
    let partition = engine.keys.partition_of_group(group);
    let mut read = pipe();
    read.zrange(engine.keys.of(partition, "lasting", group), 0, -1);
    let (names,): (Vec<Vec<u8>>,) = engine.topology.send("lasting", &read).await?;
    let names = names.iter().filter_map(|name| str::from_utf8(name).ok());
    Ok(names.filter_map(|name| Some(of_member(name)?.1)).collect())
}

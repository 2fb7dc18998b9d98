//! Open records of units whose facts are lost. The index of offline units has the time of detection; the id of the
//! record is among the cells of `groups_of`, or in the outbox.
//!
//! The roll needs these records only when a unit becomes known again while the index lists it as offline. The table
//! `groups_of` of the partition is then scanned once for all such units, in small steps.

use std::collections::HashMap;

use redis::pipe;

use super::fields::FieldScan;
use super::{RedisEngine, outbox};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId, Unit};
use crate::store::member_names::of_member;
use crate::store::{OutboxEvent, Result, Table};

/// How many fields one command scans.
const STEP: usize = 1000;

/// The most events of the outbox that are read.
const EVENTS: usize = 1000;

/// The open records of these units, in order.
pub(super) async fn open_records(engine: &RedisEngine, units: &[Unit]) -> Result<Vec<Option<OfflineRecord>>> {
    let mut detected = pipe();
    for unit in units {
        let offline = engine.keys.in_partition(engine.keys.partition(unit), "offline");
        detected.cmd("ZMSCORE").arg(offline).arg(unit.to_string());
    }
    if units.is_empty() {
        return Ok(Vec::new());
    }
    let detected: Vec<(Option<f64>,)> = engine.topology.send("open_records", &detected).await?;
    let mut silences: HashMap<u16, Vec<OfflineRecord>> = HashMap::new();
    let mut records = Vec::with_capacity(units.len());
    for (unit, (detected,)) in units.iter().zip(detected) {
        let Some(detected) = detected.map(|ms| Timestamp::from_millis(ms as i64)) else {
            records.push(None);
            continue;
        };
        let partition = engine.keys.partition(unit);
        if let std::collections::hash_map::Entry::Vacant(entry) = silences.entry(partition) {
            entry.insert(silences_in(engine, partition).await?);
        }
        let of_unit = silences[&partition].iter().filter(|record| record.id.unit == *unit);
        let newest =
            of_unit.filter(|record| record.deadline <= detected).max_by_key(|record| record.deadline);
        let record = newest
            .cloned()
            .unwrap_or_else(|| OfflineRecord::open(unit.clone(), detected, detected, detected));
        records.push(Some(OfflineRecord { detected_at: detected, ..record }));
    }
    Ok(records)
}

/// The silences of a partition that joined a group within the last days, or are in the outbox.
async fn silences_in(engine: &RedisEngine, partition: u16) -> Result<Vec<OfflineRecord>> {
    let key = engine.keys.cells(partition, Table::GroupsOf);
    let mut members = FieldScan::of(&engine.topology, "open_records", key, STEP).in_background();
    let mut silences = Vec::new();
    while let Some(fields) = members.next().await? {
        for (member, _) in fields {
            silences.extend(std::str::from_utf8(&member).ok().and_then(of_name));
        }
    }
    for entry in outbox::oldest(engine, &[partition], EVENTS).await? {
        if let OutboxEvent::Record(record) = entry.event
            && record.back_at.is_none()
        {
            silences.push(record);
        }
    }
    Ok(silences)
}

/// The silence in the name of a member.
fn of_name(member: &str) -> Option<OfflineRecord> {
    let (name, RecordId { unit, last_seen }) = of_member(member)?;
    let deadline = Timestamp::from_millis(name.split(' ').next()?.parse().ok()?);
    Some(OfflineRecord::open(unit, last_seen, deadline, deadline))
}

//! The outbox: events that have joined no group yet, in one stream for each partition and one for hearing.
//!
//! An entry of a stream holds the events of one step, each as a field and a value: one entry with a hundred records
//! costs the server a third of a hundred entries. An opened record is the name of its unit and the facts, a closed
//! record is `record` and its JSON, a blind interval is `blind` and its two ends.
//!
//! An unreadable entry comes from another program or a later version of Rollcall. It would stop all entries behind
//! it, so it is quarantined, with an error in the log.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use async_trait::async_trait;
use redis::pipe;

use super::RedisEngine;
use super::ledger::parse_interval;
use super::replication::Waited;
use crate::presence::OfflineRecord;
use crate::store::json::from_json;
use crate::store::{EngineError, OutboxEntry, OutboxEvent, OutboxStore, Position, Result, encoding};

/// The assumed number of events in an entry when entries are requested. In a storm an entry holds a hundred events,
/// otherwise one; but entries with a hundred events may follow entries with one.
const EVENTS_PER_ENTRY: RangeInclusive<usize> = 10..=100;

/// An entry of a stream: its id, then fields and values in turn.
pub(super) type StreamEntry = (String, Vec<Vec<u8>>);

#[async_trait]
impl OutboxStore for RedisEngine {
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<OutboxEntry>> {
        let entries = oldest(self, outboxes, limit).await?;
        // The outbox after the last partition belongs to hearing.
        let outboxes = entries.iter().map(|entry| entry.position.outbox);
        let partitions: BTreeSet<u16> = outboxes.filter(|outbox| *outbox < self.keys.partitions()).collect();
        self.wait_for_replicas(partitions).await;
        Ok(entries)
    }

    async fn newest_entries(&self, outboxes: &[u16]) -> Result<Vec<Position>> {
        newest(self, outboxes).await
    }

    async fn oldest_up_to(&self, entries: &[Position]) -> Result<Vec<Position>> {
        oldest_up_to(self, entries).await
    }

    async fn remove_entries(&self, entries: &[Position], groups: &BTreeSet<u16>) -> Result<()> {
        // On a single server the outbox and the groups are lost together.
        if self.topology.has_parts() && self.wait_for_replicas(groups.clone()).await == Waited::PrimaryIsAway
        {
            let why = "a server died that has groups which events joined; they join again on the one that takes over";
            return Err(EngineError::Passing(why.to_owned()));
        }
        remove(self, entries).await
    }
}

/// The oldest events of these outboxes, whole entries.
///
/// The first request assumes large entries; later requests use the sizes seen so far. So in a storm a request for a
/// thousand events gets about a thousand, and other commands wait half a millisecond.
pub(super) async fn oldest(engine: &RedisEngine, outboxes: &[u16], limit: usize) -> Result<Vec<OutboxEntry>> {
    let mut events = Vec::new();
    let (mut entries, mut per_entry) = (0, *EVENTS_PER_ENTRY.end());
    let mut left: Vec<(u16, String)> = outboxes.iter().map(|outbox| (*outbox, "-".to_owned())).collect();
    while !left.is_empty() && events.len() < limit {
        let each = (limit - events.len()).div_ceil(per_entry * left.len());
        let mut pipe = pipe();
        for (outbox, from) in &left {
            pipe.xrange_count(engine.keys.outbox(*outbox), from, "+", each);
        }
        let replies: Vec<Vec<StreamEntry>> = engine.topology.send("outbox", &pipe).await?;
        let requested = std::mem::take(&mut left);
        for ((outbox, _), reply) in requested.into_iter().zip(replies) {
            entries += reply.len();
            if let Some((last, _)) = reply.last().filter(|_| reply.len() == each) {
                left.push((outbox, format!("({last}")));
            }
            for (id, fields) in reply {
                let position = Position { outbox, id };
                match events_in(&fields) {
                    Ok(read) => events.extend(
                        read.into_iter().map(|event| OutboxEntry { position: position.clone(), event }),
                    ),
                    Err(why) => quarantine_entry(engine, &position, &fields, &why).await?,
                }
            }
        }
        per_entry = (events.len() / entries.max(1)).clamp(*EVENTS_PER_ENTRY.start(), *EVENTS_PER_ENTRY.end());
    }
    Ok(events)
}

/// The newest entries of these outboxes.
async fn newest(engine: &RedisEngine, outboxes: &[u16]) -> Result<Vec<Position>> {
    let mut read = pipe();
    for outbox in outboxes {
        read.xrevrange_count(engine.keys.outbox(*outbox), "+", "-", 1);
    }
    let replies: Vec<Vec<StreamEntry>> = engine.topology.send("newest_entries", &read).await?;
    Ok(first_of_each(outboxes.iter().copied(), replies))
}

/// The oldest entries that are not newer than these.
async fn oldest_up_to(engine: &RedisEngine, entries: &[Position]) -> Result<Vec<Position>> {
    let mut read = pipe();
    for Position { outbox, id } in entries {
        read.xrange_count(engine.keys.outbox(*outbox), "-", id, 1);
    }
    let replies: Vec<Vec<StreamEntry>> = engine.topology.send("oldest_entries", &read).await?;
    Ok(first_of_each(entries.iter().map(|entry| entry.outbox), replies))
}

fn first_of_each(outboxes: impl Iterator<Item = u16>, replies: Vec<Vec<StreamEntry>>) -> Vec<Position> {
    let of_each = outboxes.zip(replies);
    of_each.filter_map(|(outbox, reply)| Some(Position { outbox, id: reply.into_iter().next()?.0 })).collect()
}

/// Moves an entry into quarantine, unchanged.
async fn quarantine_entry(
    engine: &RedisEngine,
    Position { outbox, id }: &Position,
    fields: &[Vec<u8>],
    why: &EngineError,
) -> Result<()> {
    let (from, to) = (engine.keys.outbox(*outbox), engine.keys.unreadable(*outbox));
    tracing::error!(
        "entry {id} of the outbox {from} cannot be read and joins no group, it is kept in {to}: {why}"
    );
    let mut pipe = pipe();
    pipe.atomic().cmd("XADD").arg(to).arg("*").arg(fields).ignore();
    pipe.xdel(from, &[id]).ignore();
    engine.topology.send("quarantine", &pipe).await
}

/// The events in the fields of an entry.
pub(super) fn events_in(fields: &[Vec<u8>]) -> Result<Vec<OutboxEvent>> {
    let events = fields.chunks(2).map(|pair| {
        let texts = pair.iter().map(|text| std::str::from_utf8(text).unwrap_or_default());
        match *texts.collect::<Vec<&str>>() {
            ["record", json] => from_json("a record in the outbox", json).map(OutboxEvent::Record),
            ["blind", interval] => parse_interval(interval).map(OutboxEvent::Blind),
            ["lost", json] => from_json("a loss of data in the outbox", json).map(OutboxEvent::DataLost),
            [unit, facts] => opened(unit, facts)
                .map(OutboxEvent::Record)
                .ok_or_else(|| EngineError::Damaged("it is no known event".to_owned())),
            _ => Err(EngineError::Damaged("a field has no value".to_owned())),
        }
    });
    events.collect()
}

fn opened(unit: &str, facts: &str) -> Option<OfflineRecord> {
    encoding::decode(facts)?.open_record(&unit.parse().ok()?)
}

/// Removes entries whose events have joined their groups.
async fn remove(engine: &RedisEngine, entries: &[Position]) -> Result<()> {
    let mut pipe = pipe();
    for outbox in 0..engine.keys.outboxes() {
        let of_it = entries.iter().filter(|entry| entry.outbox == outbox);
        let mut ids: Vec<&str> = of_it.map(|entry| entry.id.as_str()).collect();
        ids.dedup();
        if !ids.is_empty() {
            pipe.xdel(engine.keys.outbox(outbox), &ids).ignore();
        }
    }
    if pipe.is_empty() { Ok(()) } else { engine.topology.send("remove_entries", &pipe).await }
}

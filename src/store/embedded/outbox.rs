//! The outbox: events that have joined no group yet, in the order of writing.
//!
//! An unreadable entry comes from a later version of Rollcall or another program. It would block all others
//! permanently, so it is quarantined.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::stored::text;
use crate::store::{OutboxEntry, OutboxStore, Position, Result};
use crate::store::{json::from_json, json::to_json};
use crate::telemetry::Stored;

#[async_trait]
impl OutboxStore for EmbeddedEngine {
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<OutboxEntry>> {
        oldest(self, outboxes, limit).await
    }

    async fn newest_entries(&self, outboxes: &[u16]) -> Result<Vec<Position>> {
        newest(self, outboxes).await
    }

    async fn oldest_up_to(&self, entries: &[Position]) -> Result<Vec<Position>> {
        oldest_up_to(self, entries).await
    }

    async fn remove_entries(&self, entries: &[Position], _groups: &BTreeSet<u16>) -> Result<()> {
        remove(self, entries).await
    }
}

/// The oldest entries of these outboxes.
async fn oldest(engine: &EmbeddedEngine, outboxes: &[u16], limit: usize) -> Result<Vec<OutboxEntry>> {
    let select = "SELECT id, partition, event FROM outbox WHERE partition IN \
                  (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?";
    let outboxes = to_json(&outboxes)?;
    let read = move |database: &Connection| {
        let mut select = database.prepare_cached(select)?;
        let rows = select.query_map(params![outboxes, limit as i64], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, u16>(1)?, text(row, 2)?.into_owned()))
        })?;
        Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
    };
    let (mut entries, mut is_unreadable) = (Vec::new(), false);
    for (id, outbox, event) in engine.readers.read(read).await? {
        match from_json("an event in the outbox", &event) {
            Ok(event) => {
                entries.push(OutboxEntry { position: Position { outbox, id: id.to_string() }, event })
            }
            Err(why) => {
                let location = format!("table outbox id \"{id}\"");
                let why = format!("{why}; no receiver is notified of it");
                engine.telemetry.unreadable(Stored::Outbox, &location, &why);
                is_unreadable = true;
            }
        }
    }
    if is_unreadable {
        engine.full_scan.request();
        // On a full disk the entry stays in place; the other entries go on.
        if engine.quarantine().await.is_err() {
            engine.full_scan.retry_later();
        }
    }
    Ok(entries)
}

/// The newest entries of these outboxes.
async fn newest(engine: &EmbeddedEngine, outboxes: &[u16]) -> Result<Vec<Position>> {
    let select = "SELECT partition, max(id) FROM outbox WHERE partition IN (SELECT value FROM json_each(?)) \
                  GROUP BY partition";
    let outboxes = to_json(&outboxes)?;
    let read = move |database: &Connection| {
        let mut select = database.prepare_cached(select)?;
        let rows = select.query_map([&outboxes], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<rusqlite::Result<Vec<(u16, i64)>>>()?)
    };
    let newest = engine.readers.read(read).await?.into_iter();
    Ok(newest.map(|(outbox, id)| Position { outbox, id: id.to_string() }).collect())
}

/// The oldest entries that are not newer than these.
async fn oldest_up_to(engine: &EmbeddedEngine, entries: &[Position]) -> Result<Vec<Position>> {
    let entries = entries.to_vec();
    let read = move |database: &Connection| {
        let mut select =
            database.prepare_cached("SELECT min(id) FROM outbox WHERE partition = ? AND id <= ?")?;
        let mut oldest = Vec::new();
        for Position { outbox, id } in &entries {
            let up_to: i64 = id.parse().unwrap_or(i64::MAX);
            let id: Option<i64> = select.query_row(params![outbox, up_to], |row| row.get(0))?;
            oldest.extend(id.map(|id| Position { outbox: *outbox, id: id.to_string() }));
        }
        Ok(oldest)
    };
    engine.readers.read(read).await
}

async fn remove(engine: &EmbeddedEngine, entries: &[Position]) -> Result<()> {
    let ids: Vec<i64> = entries.iter().filter_map(|entry| entry.id.parse().ok()).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let write = move |database: &Connection| {
        let mut delete = database.prepare_cached("DELETE FROM outbox WHERE id = ?")?;
        for id in &ids {
            delete.execute([id])?;
        }
        Ok(())
    };
    engine.writer.write("remove_entries", write).await
}

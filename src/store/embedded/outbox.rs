//! The outbox: events that have joined no group yet, in the order of writing.
//!
//! An unreadable entry would block all others permanently, so it is quarantined: a later version of Rollcall or another
//! program wrote it.

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::stored::text;
use crate::store::{Entry, Position, Result};
use crate::store::{json::from_json, json::to_json};
use crate::telemetry::Stored;

/// The oldest entries of these outboxes.
pub(super) async fn oldest(engine: &EmbeddedEngine, outboxes: &[u16], limit: usize) -> Result<Vec<Entry>> {
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
            Ok(event) => entries.push(Entry { position: Position { outbox, id: id.to_string() }, event }),
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
        // On a full disk it stays in place; the other entries go on.
        if engine.quarantine().await.is_err() {
            engine.full_scan.retry_later();
        }
    }
    Ok(entries)
}

pub(super) async fn remove(engine: &EmbeddedEngine, entries: &[Position]) -> Result<()> {
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

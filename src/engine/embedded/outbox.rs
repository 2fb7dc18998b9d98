//! The outbox: what happened and has joined no group yet, in the order in which it was written.
//!
//! An entry that cannot be read would hold up all others for good. It stays and is passed over,
//! loudly.

use super::EmbeddedEngine;
use crate::engine::json::from_json;
use crate::engine::{Entry, Position, Result};

/// The oldest entries.
pub(super) async fn oldest(engine: &EmbeddedEngine, limit: usize) -> Result<Vec<Entry>> {
    let rows: Vec<(i64, u16, String)> = engine
        .readers
        .read(move |database| {
            let mut select =
                database.prepare_cached("SELECT id, partition, news FROM outbox ORDER BY id LIMIT ?")?;
            let rows = select
                .query_map([limit as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect::<rusqlite::Result<_>>()?;
            Ok(rows)
        })
        .await?;
    let mut entries = Vec::with_capacity(rows.len());
    for (id, outbox, news) in rows {
        match from_json("news in the outbox", &news) {
            Ok(news) => entries.push(Entry { position: Position { outbox, id: id.to_string() }, news }),
            Err(why) => tracing::error!(entry = id, "nobody can be told: {why}"),
        }
    }
    Ok(entries)
}

/// Removes entries that were dealt with.
pub(super) async fn settle(engine: &EmbeddedEngine, entries: &[Position]) -> Result<()> {
    let ids: Vec<i64> = entries.iter().filter_map(|entry| entry.id.parse().ok()).collect();
    if ids.is_empty() {
        return Ok(());
    }
    engine
        .writer
        .write("settle", move |database| {
            let mut delete = database.prepare_cached("DELETE FROM outbox WHERE id = ?")?;
            for id in &ids {
                delete.execute([id])?;
            }
            Ok(())
        })
        .await
}

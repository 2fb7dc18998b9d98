//! Exports a fleet: units from memory, everything else from disk.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::last_seen::unit_id;
use super::queries::PAGE;
use crate::clock::Timestamp;
use crate::store::json::from_json;
use crate::store::{Queries, ReceiverName, Result};
use crate::store::{migration::Exporter, migration::MigrationItem};

#[async_trait]
impl Exporter for EmbeddedEngine {
    /// This process has locked the directory, so no other process can write.
    async fn check_not_served(&self) -> Result<()> {
        Ok(())
    }

    async fn export_units(&self, partition: u16, page: u32) -> Result<Vec<MigrationItem>> {
        let units = self.walk(partition, page).await?.into_iter().filter_map(|seen| {
            let table = self.memory.table(partition);
            let (slot, ..) = table.get(&seen.unit)?;
            let next_check = table.next_check(slot);
            let facts = seen.stored.as_deref()?.to_owned();
            Some(MigrationItem::Unit { unit: seen.unit, facts, alive: seen.alive, next_check })
        });
        let mut items: Vec<MigrationItem> = units.collect();
        let bound = |page: u32| unit_id(partition, page.saturating_mul(PAGE));
        let (from, to) = (bound(page), bound(page + 1));
        let values = move |database: &Connection| {
            let select =
                "SELECT name, metric, at, value FROM data JOIN units USING (id) WHERE id >= ? AND id < ?";
            all(database, select, params![from, to], |row| {
                Ok((row.get::<_, String>(0)?, row.get(1)?, moment(row.get(2)?), row.get(3)?))
            })
        };
        for (name, metric, at, value) in self.readers.read(values).await? {
            let Ok(unit) = name.parse() else { continue };
            items.push(MigrationItem::Value { unit, metric, at, value });
        }
        Ok(items)
    }

    async fn export_rest(&self, partition: u16, receivers: &[ReceiverName]) -> Result<Vec<MigrationItem>> {
        let export = move |database: &Connection| {
            let mut items = Vec::new();
            records(database, partition, &mut items)?;
            Ok(items)
        };
        let mut items = self.readers.read(export).await?;
        items.extend(MigrationItem::cells(self, partition, receivers).await?);
        Ok(items)
    }
}

fn records(database: &Connection, partition: u16, items: &mut Vec<MigrationItem>) -> DatabaseResult<()> {
    let select = "SELECT record FROM records WHERE partition = ?";
    for json in all(database, select, [partition], |row| row.get::<_, String>(0))? {
        items.push(MigrationItem::Record(from_json("a record", &json)?));
    }
    let select = "SELECT event FROM outbox WHERE partition = ? ORDER BY id";
    for json in all(database, select, [partition], |row| row.get::<_, String>(0))? {
        items.push(MigrationItem::OutboxEvent(from_json("an event in the outbox", &json)?));
    }
    Ok(())
}

fn all<T>(
    database: &Connection,
    select: &str,
    with: impl rusqlite::Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> DatabaseResult<Vec<T>> {
    let mut select = database.prepare_cached(select)?;
    let rows = select.query_map(with, read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn moment(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

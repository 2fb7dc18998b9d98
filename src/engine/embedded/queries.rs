//! Facts and records, to look at.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};

use super::EmbeddedEngine;
use super::beats::id;
use super::units::snapshot;
use crate::clock::Timestamp;
use crate::engine::json::from_json;
use crate::engine::{Queries, Result};
use crate::presence::{OfflineRecord, RecordId, Snapshot};

/// The most records that are removed in one step.
const MOST_REMOVED: usize = 5000;

/// How many places there are on a page.
const PAGE: u32 = 256;

#[async_trait]
impl Queries for EmbeddedEngine {
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>> {
        let id = id.to_string();
        let select = "SELECT record FROM records WHERE id = ?";
        let found = self
            .readers
            .read(move |database| {
                let mut select = database.prepare_cached(select)?;
                Ok(select.query_row([id], |row| row.get::<_, String>(0)).optional()?)
            })
            .await?;
        found.map(|json| from_json("a record", &json)).transpose()
    }

    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>> {
        let (at, id) = before.map_or((i64::MAX, String::new()), |(at, id)| (at.as_millis(), id.to_string()));
        let only = if open { "AND closed IS NULL " } else { "" };
        let select = format!(
            "SELECT record FROM records WHERE (detected, id) < (?, ?) {only}ORDER BY detected DESC, id DESC LIMIT ?"
        );
        let found: Vec<String> = self
            .readers
            .read(move |database| {
                let mut select = database.prepare_cached(&select)?;
                let rows = select.query_map(params![at, id, limit as i64], |row| row.get(0))?;
                Ok(rows.collect::<rusqlite::Result<_>>()?)
            })
            .await?;
        found.iter().map(|json| from_json("a record", json)).collect()
    }

    fn pages(&self) -> u32 {
        let places = (0..self.memory.partitions()).map(|partition| self.memory.shard(partition).rows.len());
        (places.max().unwrap_or(0) as u32).div_ceil(PAGE).max(1)
    }

    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>> {
        let from = page.saturating_mul(PAGE);
        let units = {
            let shard = self.memory.shard(partition);
            let rows = (from..).zip(shard.rows.iter().skip(from as usize).take(PAGE as usize));
            let stored = rows.filter(|(_, row)| row.marks.has(super::row::Marks::STORED));
            stored
                .map(|(place, row)| Ok((id(partition, place), shard.unit(row)?, row.alive)))
                .collect::<Result<Vec<_>>>()?
        };
        if units.is_empty() {
            return Ok(Vec::new());
        }
        self.readers
            .read(move |database| {
                let mut select = database.prepare_cached("SELECT facts FROM units WHERE id = ?")?;
                let mut found = Vec::with_capacity(units.len());
                for (id, unit, alive) in units {
                    let stored = select.query_row([id], |row| row.get::<_, String>(0)).optional()?;
                    found.push(snapshot(unit, alive, stored)?);
                }
                Ok(found)
            })
            .await
    }

    async fn forget_records(&self, before: Timestamp) -> Result<usize> {
        let delete = "DELETE FROM records WHERE rowid IN \
                      (SELECT rowid FROM records WHERE closed < ? ORDER BY closed LIMIT ?)";
        self.writer
            .write("forget_records", move |database| {
                let mut delete = database.prepare_cached(delete)?;
                Ok(delete.execute(params![before.as_millis(), MOST_REMOVED as i64])?)
            })
            .await
    }
}

//! The newest values of units, on disk beside their facts, by the unit's id.

use std::ops::Range;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::last_seen::unit_id;
use super::queries::PAGE;
use super::stored::text;
use crate::clock::Timestamp;
use crate::presence::{Lifecycle, Unit};
use crate::store::{DataStore, MetricValue, Reading, Result, encoding};

/// A value on its way to disk.
struct ValueRow {
    name: String,
    metric: String,
    at: i64,
    value: String,
}

#[async_trait]
impl DataStore for EmbeddedEngine {
    async fn keep_values(&self, readings: &[Reading<'_>]) -> Result<Vec<bool>> {
        let rows = readings.iter().map(|reading| {
            let Reading { unit, metric, at, value } = *reading;
            let row = ValueRow {
                name: unit.to_string(),
                metric: metric.to_owned(),
                at: at.as_millis(),
                value: value.to_owned(),
            };
            (self.id_of(unit), row)
        });
        let rows: Vec<(Option<i64>, ValueRow)> = rows.collect();
        let write = move |database: &Connection| {
            let keep = |(id, row): &(Option<i64>, ValueRow)| match id {
                Some(id) => keep(database, *id, row),
                None => Ok(false),
            };
            rows.iter().map(keep).collect::<DatabaseResult<Vec<bool>>>()
        };
        self.writer.write("keep_values", write).await
    }

    async fn values(&self, unit: &Unit, metrics: &[&str]) -> Result<Vec<Option<MetricValue>>> {
        let Some(id) = self.id_of(unit) else { return Ok(vec![None; metrics.len()]) };
        let metrics: Vec<String> = metrics.iter().map(|metric| (*metric).to_owned()).collect();
        let read = move |database: &Connection| {
            let mut select =
                database.prepare_cached("SELECT at, value FROM data WHERE id = ? AND metric = ?")?;
            let value = |metric: &String| {
                let value = |row: &rusqlite::Row| {
                    Ok(MetricValue { at: Timestamp::from_millis(row.get(0)?), text: row.get(1)? })
                };
                // An unreadable value is not shown; the next one replaces it.
                Ok(select.query_row(params![id, metric], value).optional().unwrap_or_default())
            };
            metrics.iter().map(value).collect::<DatabaseResult<Vec<_>>>()
        };
        self.readers.read(read).await
    }

    async fn walk_values(
        &self,
        partition: u16,
        metric: &str,
        pages: Range<u32>,
    ) -> Result<Vec<(String, String)>> {
        let bound = |page: u32| unit_id(partition, page.saturating_mul(PAGE));
        let (from, to, metric) = (bound(pages.start), bound(pages.end), metric.to_owned());
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached(
                "SELECT name, value FROM data JOIN units USING (id) WHERE id >= ? AND id < ? AND metric = ?",
            )?;
            let values = select.query_map(params![from, to, metric], |row| Ok((row.get(0)?, row.get(1)?)))?;
            // Unreadable values are not shown.
            Ok(values.filter_map(rusqlite::Result::ok).collect::<Vec<_>>())
        };
        self.readers.read(read).await
    }

    async fn forget_values(&self, units: &[Unit]) -> Result<()> {
        // Values of a forgotten unit are deleted with its row, by the trigger of the table.
        let units: Vec<(i64, String)> =
            units.iter().filter_map(|unit| Some((self.id_of(unit)?, unit.to_string()))).collect();
        let write = move |database: &Connection| {
            for (id, name) in &units {
                if !is_known(database, *id, name)? {
                    database.prepare_cached("DELETE FROM data WHERE id = ?")?.execute([id])?;
                }
            }
            Ok(())
        };
        self.writer.write("forget_values", write).await
    }
}

impl EmbeddedEngine {
    fn id_of(&self, unit: &Unit) -> Option<i64> {
        let partition = self.memory.partition(unit);
        let found = self.memory.table(partition).get(unit);
        found.map(|(slot, ..)| unit_id(partition, slot))
    }
}

/// Answers whether the unit is known.
fn keep(database: &Connection, id: i64, row: &ValueRow) -> DatabaseResult<bool> {
    let is_known = is_known(database, id, &row.name)?;
    if is_known {
        let insert = "INSERT INTO data(id, metric, at, value) VALUES(?, ?, ?, ?) ON CONFLICT DO UPDATE \
                      SET at = excluded.at, value = excluded.value WHERE excluded.at >= at OR typeof(at) <> 'integer'";
        database.prepare_cached(insert)?.execute(params![id, row.metric, row.at, row.value])?;
    }
    Ok(is_known)
}

/// Whether the unit with this id has this name, and was not removed.
fn is_known(database: &Connection, id: i64, name: &str) -> DatabaseResult<bool> {
    let mut select = database.prepare_cached("SELECT facts FROM units WHERE id = ? AND name = ?")?;
    let facts = select.query_row(params![id, name], |row| Ok(text(row, 0)?.into_owned())).optional()?;
    let facts = facts.and_then(|facts| encoding::decode(&facts));
    Ok(facts.is_some_and(|facts| !matches!(facts.lifecycle, Lifecycle::Retired(_))))
}

//! The last transitions of units whose kinds have flap detection: a row for each unit.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::stored::text;
use crate::clock::Timestamp;
use crate::presence::Unit;
use crate::store::json::to_json;
use crate::store::{FlapChange, FlapStore, Result, partition_of};

#[async_trait]
impl FlapStore for EmbeddedEngine {
    async fn flaps(&self, units: &[Unit]) -> Result<Vec<Option<String>>> {
        let names: Vec<String> = units.iter().map(Unit::to_string).collect();
        let read = move |database: &Connection| names.iter().map(|name| of_unit(database, name)).collect();
        self.readers.read(read).await
    }

    async fn change_flaps(&self, changes: &[FlapChange]) -> Result<Vec<bool>> {
        let (changes, partitions) = (changes.to_vec(), self.memory.partitions());
        let write = move |database: &Connection| {
            changes.iter().map(|change| write_if_same(database, change, partitions)).collect()
        };
        self.writer.write("change_flaps", write).await
    }

    async fn due_flaps(
        &self,
        partitions: &[u16],
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Unit, Option<String>)>> {
        let partitions = to_json(&partitions)?;
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached(
                "SELECT unit, body FROM flaps WHERE next_check <= ? AND partition IN (SELECT value FROM json_each(?)) \
                 ORDER BY next_check LIMIT ?",
            )?;
            let rows = select.query_map(params![now.as_millis(), partitions, limit as i64], |row| {
                Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned()))
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<(String, String)>>>()?)
        };
        let due = self.readers.read(read).await?.into_iter();
        Ok(due.filter_map(|(name, body)| Some((name.parse().ok()?, Some(body)))).collect())
    }

    async fn first_flaps(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        let partitions = to_json(&partitions)?;
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached(
                "SELECT next_check FROM flaps WHERE partition IN (SELECT value FROM json_each(?)) ORDER BY next_check LIMIT 1",
            )?;
            let first: Option<i64> = select.query_row([&partitions], |row| row.get(0)).optional()?;
            Ok(first.map(Timestamp::from_millis))
        };
        self.readers.read(read).await
    }

    async fn flaps_in(&self, partition: u16) -> Result<Vec<(Unit, String)>> {
        let read = move |database: &Connection| in_partition(database, partition);
        let rows = self.readers.read(read).await?.into_iter();
        Ok(rows.filter_map(|(name, body)| Some((name.parse().ok()?, body))).collect())
    }
}

/// The names of the units of a partition and their texts.
pub(super) fn in_partition(database: &Connection, partition: u16) -> DatabaseResult<Vec<(String, String)>> {
    let mut select = database.prepare_cached("SELECT unit, body FROM flaps WHERE partition = ?")?;
    let rows =
        select.query_map([partition], |row| Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned())))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn of_unit(database: &Connection, name: &str) -> DatabaseResult<Option<String>> {
    let mut select = database.prepare_cached("SELECT body FROM flaps WHERE unit = ?")?;
    Ok(select.query_row([name], |row| Ok(text(row, 0)?.into_owned())).optional()?)
}

fn write_if_same(database: &Connection, change: &FlapChange, partitions: u16) -> DatabaseResult<bool> {
    let FlapChange { unit, before, after } = change;
    let name = unit.to_string();
    if of_unit(database, &name)? != *before {
        return Ok(false);
    }
    match after {
        Some((body, next_check)) => database
            .prepare_cached(
                "INSERT OR REPLACE INTO flaps(unit, partition, next_check, body) VALUES(?, ?, ?, ?)",
            )?
            .execute(params![name, partition_of(unit, partitions), next_check.as_millis(), body])?,
        None => database.prepare_cached("DELETE FROM flaps WHERE unit = ?")?.execute([name])?,
    };
    Ok(true)
}

//! Imports a fleet into a directory, in one transaction: a failed import leaves the directory empty.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, params};

use super::cells;
use super::directory::Directory;
use super::error::DatabaseResult;
use super::in_memory_hearing::InMemoryHearing;
use super::last_seen::unit_id;
use super::{EmbeddedConfig, database};
use crate::clock::Timestamp;
use crate::presence::Hearing;
use crate::store::json::to_json;
use crate::store::{EngineError, Result, Table, partition_of};
use crate::store::{migration::Importer, migration::MigrationItem};

/// Tables that must be empty before an import.
const MUST_BE_EMPTY: [&str; 3] = ["units", "records", "outbox"];
/// Tables in which an emptied fleet may have rows; an import clears them. Old last seen times would otherwise count
/// for the units that get their slots.
const CLEARED: [&str; 6] = ["heartbeats", "pages", "data", "blind", "cells", "entries"];

/// A directory into which a fleet is imported. If it is dropped before [`Importer::complete`], the import is rolled
/// back.
pub struct EmbeddedImporter {
    target: Arc<Mutex<TargetDatabase>>,
    path: PathBuf,
}

struct TargetDatabase {
    database: Connection,
    partitions: u16,
    /// The next free slot of each partition.
    next_slots: Vec<u32>,
    /// Holds the lock during the import.
    _directory: Directory,
}

impl EmbeddedImporter {
    /// Opens a directory, or creates it.
    ///
    /// # Errors
    /// `Refused` if there are units, records or timers already, or another process has locked it.
    pub async fn prepare(config: &EmbeddedConfig) -> Result<EmbeddedImporter> {
        let (config, path) = (config.clone(), config.path.clone());
        let prepare = move || {
            let mut directory = Directory::lock(&config.path)?;
            let (database, partitions) = database::open(&mut directory, config.partitions)?;
            begin(&database, &config).map_err(|error| error.explain(&config.path))?;
            let next_slots = vec![0; partitions.into()];
            Ok(TargetDatabase { database, partitions, next_slots, _directory: directory })
        };
        let target = tokio::task::spawn_blocking(prepare).await.map_err(broken_off)??;
        Ok(EmbeddedImporter { target: Arc::new(Mutex::new(target)), path })
    }

    async fn write(
        &self,
        step: impl FnOnce(&mut TargetDatabase) -> DatabaseResult<()> + Send + 'static,
    ) -> Result<()> {
        let target = self.target.clone();
        let write = move || step(&mut target.lock());
        let written = tokio::task::spawn_blocking(write).await.map_err(broken_off)?;
        written.map_err(|error| error.explain(&self.path))
    }
}

fn broken_off(_: tokio::task::JoinError) -> EngineError {
    EngineError::Unavailable("the move was broken off; it can be repeated".to_owned())
}

fn begin(database: &Connection, config: &EmbeddedConfig) -> DatabaseResult<()> {
    let of_table = |table: &str| (table.to_owned(), format!("SELECT EXISTS (SELECT 1 FROM {table})"));
    let of_cells = |table: Table| {
        let select = format!("SELECT EXISTS (SELECT 1 FROM cells WHERE tbl = '{}')", table.as_str());
        (table.as_str().to_owned(), select)
    };
    let cells = [Table::Timers, Table::PastTimers, Table::Notifications, Table::Groups].map(of_cells);
    for (table, select) in MUST_BE_EMPTY.into_iter().map(of_table).chain(cells) {
        if database.query_row(&select, [], |row| row.get(0))? {
            let path = config.path.display();
            let why = format!("there is a fleet in {path} already ({table}); name an empty directory");
            return Err(EngineError::Refused(why).into());
        }
    }
    // Committed before the import, which is rolled back if it is interrupted: the mark keeps instances from serving
    // an empty fleet.
    database::set_moving(database, true)?;
    database.execute_batch("BEGIN IMMEDIATE")?;
    for table in CLEARED {
        database.execute(&format!("DELETE FROM {table}"), [])?;
    }
    // `kept` counts rows of `heartbeats` and `pages`, which are empty now.
    database.execute("DELETE FROM meta WHERE name = 'kept'", [])?;
    Ok(())
}

#[async_trait]
impl Importer for EmbeddedImporter {
    async fn import(&self, items: Vec<MigrationItem>) -> Result<()> {
        self.write(move |target| items.iter().try_for_each(|item| target.insert(item))).await
    }

    async fn complete(&self, hearing: Hearing) -> Result<()> {
        self.write(move |target| target.complete(&hearing)).await
    }
}

impl TargetDatabase {
    fn insert(&mut self, item: &MigrationItem) -> DatabaseResult<()> {
        match item {
            MigrationItem::Unit { .. } | MigrationItem::Value { .. } => self.insert_unit(item),
            MigrationItem::Record(_) | MigrationItem::OutboxEvent(_) => self.insert_record(item),
            MigrationItem::Cell { table, partition, name, value } => {
                cells::put(&self.database, *table, *partition, name, value)
            }
            MigrationItem::Entry { index, partition, name, at } => {
                cells::enter(&self.database, *index, *partition, name, *at)
            }
        }
    }

    fn insert_unit(&mut self, item: &MigrationItem) -> DatabaseResult<()> {
        match item {
            MigrationItem::Unit { unit, facts, alive, next_check } => {
                let partition = partition_of(unit, self.partitions);
                let slot = &mut self.next_slots[usize::from(partition)];
                let (id, name) = (unit_id(partition, *slot), unit.to_string());
                *slot += 1;
                self.execute(
                    "INSERT INTO units(id, name, facts, alive, next_check, after) VALUES(?, ?, ?, ?, ?, 0)",
                    params![id, name, facts, ms(alive), ms(next_check)],
                )
            }
            MigrationItem::Value { unit, metric, at, value } => {
                // Search by the unit's name: the unit was on the previous page.
                let partition = partition_of(unit, self.partitions);
                let (first, last) = (unit_id(partition, 0), unit_id(partition, u32::MAX));
                self.execute(
                    "INSERT OR REPLACE INTO data(id, metric, at, value) SELECT id, ?, ?, ? FROM units \
                     WHERE id BETWEEN ? AND ? AND name = ? ORDER BY id DESC LIMIT 1",
                    params![metric, at.as_millis(), value, first, last, unit.to_string()],
                )
            }
            _ => Ok(()),
        }
    }

    fn insert_record(&self, item: &MigrationItem) -> DatabaseResult<()> {
        match item {
            MigrationItem::Record(record) => {
                let (partition, json) = (partition_of(&record.id.unit, self.partitions), to_json(record)?);
                let (detected, closed) = (record.detected_at.as_millis(), ms(&record.back_at));
                self.execute(
                    "INSERT INTO records(id, partition, detected, closed, record) VALUES(?, ?, ?, ?, ?)",
                    params![record.id.to_string(), partition, detected, closed, json],
                )
            }
            MigrationItem::OutboxEvent(event) => {
                let of_unit = event.record().map(|record| partition_of(&record.id.unit, self.partitions));
                let partition = of_unit.unwrap_or(self.partitions);
                let insert = "INSERT INTO outbox(partition, event) VALUES(?, ?)";
                self.execute(insert, params![partition, to_json(event)?])
            }
            _ => Ok(()),
        }
    }

    fn complete(&mut self, hearing: &Hearing) -> DatabaseResult<()> {
        let heard = InMemoryHearing::restore(hearing).stored();
        self.execute("INSERT OR REPLACE INTO meta VALUES('hearing', ?)", [to_json(&heard)?])?;
        for interval in hearing.ledger.intervals() {
            let (start, until) = (interval.from.as_millis(), interval.to.as_millis());
            self.execute("INSERT INTO blind(start, until) VALUES(?, ?)", [start, until])?;
        }
        database::set_moving(&self.database, false)?;
        Ok(self.database.execute_batch("COMMIT")?)
    }

    fn execute(&self, insert: &str, params: impl rusqlite::Params) -> DatabaseResult<()> {
        self.database.prepare_cached(insert)?.execute(params)?;
        Ok(())
    }
}

fn ms(moment: &Option<Timestamp>) -> Option<i64> {
    moment.map(Timestamp::as_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_knows_what_to_do_with_the_rows_of_each_table() {
        let path = tempfile::tempdir().unwrap();
        let (database, _) = database::open(&mut Directory::lock(path.path()).unwrap(), None).unwrap();
        let select = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
        let mut tables: Vec<String> =
            database.prepare(select).unwrap().query_map([], |row| row.get(0)).unwrap().flatten().collect();
        // Quarantined values are for operators, whatever fleet they are from.
        let mut known = [&MUST_BE_EMPTY[..], &CLEARED[..], &["meta", "unreadable"]].concat();
        tables.sort();
        known.sort();
        assert_eq!(tables, known);
    }
}

//! Lists quarantined rows, restores rows that this version can read, and deletes others. A service may be using the
//! fleet: each row is one short transaction.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::directory::{DATABASE, Directory};
use super::error::DatabaseResult;
use super::quarantine::QuarantinedRow;
use super::table_rules::TABLE_RULES;
use super::{database, quarantine};
use crate::store::{EngineError, Result};
use crate::store::{repair::Quarantined, repair::QuarantinedId, repair::Repair, repair::shown};

/// How long to wait for the writer's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Tables that a running service also keeps in memory.
const IN_MEMORY: [&str; 3] = ["units", "heartbeats", "pages"];

/// The fleet of a directory, for repairs.
pub struct EmbeddedRepair {
    path: PathBuf,
}

impl EmbeddedRepair {
    /// Opens the fleet of a directory, if there is one.
    ///
    /// # Errors
    /// `Damaged` or `Refused` if the directory holds no readable fleet.
    pub fn new(path: &Path) -> Result<Option<EmbeddedRepair>> {
        Ok(database::partitions(path)?.map(|_| EmbeddedRepair { path: path.to_owned() }))
    }

    async fn with<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Connection, &Path) -> DatabaseResult<T> + Send + 'static,
    ) -> Result<T> {
        let path = self.path.clone();
        let work = move || {
            let open = || -> DatabaseResult<Connection> {
                let database = Connection::open(path.join(DATABASE))?;
                database.busy_timeout(BUSY_TIMEOUT)?;
                quarantine::register_fits(&database)?;
                Ok(database)
            };
            open().and_then(|database| step(&database, &path)).map_err(|error| error.explain(&path))
        };
        let ended = |_| EngineError::Unavailable("the repair was broken off".into());
        tokio::task::spawn_blocking(work).await.map_err(ended)?
    }
}

#[async_trait]
impl Repair for EmbeddedRepair {
    async fn quarantined(&self) -> Result<Vec<Quarantined>> {
        let rows = self.with(|database, _| quarantine::quarantined_rows(database, usize::MAX >> 1)).await?;
        let quarantined = |row: QuarantinedRow| Quarantined {
            what: row.what(),
            held: shown(format!("{}: {}", row.why, row.row).as_bytes()),
            location: row.location,
            id: QuarantinedId::Row(row.id),
        };
        Ok(rows.into_iter().map(quarantined).collect())
    }

    async fn restore(&self, quarantined: &Quarantined) -> Result<bool> {
        let QuarantinedId::Row(id) = quarantined.id else { return Ok(false) };
        self.with(move |database, path| restore(database, path, id)).await
    }

    async fn discard(&self, quarantined: &Quarantined) -> Result<()> {
        let QuarantinedId::Row(id) = quarantined.id else { return Ok(()) };
        self.with(move |database, _| forget(database, id)).await
    }
}

fn forget(database: &Connection, id: i64) -> DatabaseResult<()> {
    database.execute("DELETE FROM unreadable WHERE id = ?", [id])?;
    Ok(())
}

/// Restores a row if its columns fit and its key is free.
fn restore(database: &Connection, path: &Path, id: i64) -> DatabaseResult<bool> {
    let select = "SELECT source, row FROM unreadable WHERE id = ?";
    let row = database.query_row(select, [id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((table, row)): Option<(String, String)> = row else { return Ok(false) };
    let rule = TABLE_RULES.iter().find(|rule| rule.table == table);
    let cells: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&row).ok();
    let Some((rule, cells)) = rule.zip(cells) else { return Ok(false) };
    if IN_MEMORY.contains(&rule.table) && Directory::is_locked(path) {
        return Ok(false);
    }
    let partitions: i64 =
        database.query_row("SELECT value FROM meta WHERE name = 'partitions'", [], |row| row.get(0))?;
    let mut values = Vec::new();
    for column in rule.columns {
        let value = match cells.get(column.name) {
            Some(serde_json::Value::Null) => Value::Null,
            Some(serde_json::Value::String(text)) => Value::Text(text.clone()),
            Some(serde_json::Value::Number(number)) => number.as_i64().map_or(Value::Null, Value::Integer),
            _ => return Ok(false),
        };
        if !column.holds.fits(ValueRef::from(&value), partitions + 1) {
            return Ok(false);
        }
        values.push(value);
    }
    let names: Vec<String> = rule.columns.iter().map(|column| format!("\"{}\"", column.name)).collect();
    let marks = vec!["?"; names.len()].join(", ");
    let insert = format!("INSERT OR IGNORE INTO {}({}) VALUES({marks})", rule.table, names.join(", "));
    let transaction = database.unchecked_transaction()?;
    let is_back = transaction.execute(&insert, params_from_iter(values))? > 0;
    if is_back {
        forget(&transaction, id)?;
    }
    transaction.commit()?;
    Ok(is_back)
}

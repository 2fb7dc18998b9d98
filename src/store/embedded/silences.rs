//! Alert silences and the audit. The version of the alert silences is a row of `meta`.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::stored::text;
use crate::store::json::{from_json, to_json};
use crate::store::silences::read_silences;
use crate::store::{AuditEntry, MAX_AUDITED, Result, SilenceChange, SilenceStore, StoredSilences};
use crate::telemetry::Stored;

#[async_trait]
impl SilenceStore for EmbeddedEngine {
    async fn silences_version(&self) -> Result<Option<String>> {
        self.readers.read(version).await
    }

    async fn silences(&self) -> Result<StoredSilences> {
        let read = |database: &Connection| {
            // One transaction reads both, so that the version belongs to the rows.
            let database = database.unchecked_transaction()?;
            let mut select = database.prepare_cached("SELECT id, body FROM silences")?;
            let rows =
                select.query_map([], |row| Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned())))?;
            let rows = rows.collect::<rusqlite::Result<Vec<(String, String)>>>()?;
            Ok((version(&database)?, rows))
        };
        let (version, rows) = self.readers.read(read).await?;
        let mut silences = Vec::new();
        for (id, read) in read_silences(rows).await? {
            match read {
                Ok(silence) => silences.push(silence),
                Err(why) => {
                    let location = format!("table silences id {id:?}");
                    let why = format!("{why}; it covers nothing: add it again");
                    self.telemetry.unreadable(Stored::AlertSilence, &location, &why);
                    self.full_scan.request();
                }
            }
        }
        Ok(StoredSilences { version, silences })
    }

    async fn change_silences(&self, change: &SilenceChange) -> Result<bool> {
        let written: Vec<(String, String)> = change
            .write
            .iter()
            .map(|silence| Ok((silence.id.to_string(), to_json(silence)?)))
            .collect::<Result<_>>()?;
        let forget: Vec<String> = change.forget.iter().map(ToString::to_string).collect();
        let audit: Vec<String> = change.audit.iter().map(to_json).collect::<Result<_>>()?;
        let (before, after) = (change.version.clone(), format!("{:016x}", rand::random::<u64>()));
        let write = move |database: &Connection| {
            if version(database)? != before {
                return Ok(false);
            }
            for (id, json) in &written {
                database
                    .prepare_cached("INSERT OR REPLACE INTO silences(id, body) VALUES(?, ?)")?
                    .execute([id, json])?;
            }
            for id in &forget {
                database.prepare_cached("DELETE FROM silences WHERE id = ?")?.execute([id])?;
            }
            for entry in &audit {
                insert_audit(database, entry)?;
            }
            database.execute("INSERT OR REPLACE INTO meta VALUES('silences', ?)", [&after])?;
            Ok(true)
        };
        self.writer.write("change_silences", write).await
    }

    async fn add_audit(&self, entry: &AuditEntry) -> Result<()> {
        let entry = to_json(entry)?;
        self.writer.write("audit", move |database: &Connection| insert_audit(database, &entry)).await
    }

    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>> {
        let read = move |database: &Connection| {
            let mut select =
                database.prepare_cached("SELECT id, entry FROM audit ORDER BY id DESC LIMIT ?")?;
            let rows = select
                .query_map([limit as i64], |row| Ok((row.get::<_, i64>(0)?, text(row, 1)?.into_owned())))?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        };
        let mut audit = Vec::new();
        for (id, json) in self.readers.read(read).await? {
            match from_json("an entry of the audit", &json) {
                Ok(entry) => audit.push(entry),
                Err(why) => {
                    let location = format!("table audit id \"{id}\"");
                    self.telemetry.unreadable(Stored::Audit, &location, &format!("{why}; it is left out"));
                    self.full_scan.request();
                }
            }
        }
        Ok(audit)
    }
}

/// The version of the alert silences. A value that is not a text is another version than any.
fn version(database: &Connection) -> DatabaseResult<Option<String>> {
    let mut select = database.prepare_cached("SELECT value FROM meta WHERE name = 'silences'")?;
    Ok(select.query_row([], |row| Ok(text(row, 0)?.into_owned())).optional()?)
}

/// Adds an entry to the audit, and removes the oldest beyond the bound.
pub(super) fn insert_audit(database: &Connection, entry: &str) -> DatabaseResult<()> {
    database.prepare_cached("INSERT INTO audit(entry) VALUES(?)")?.execute([entry])?;
    let delete = "DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?";
    database.prepare_cached(delete)?.execute(params![MAX_AUDITED as i64])?;
    Ok(())
}

//! States that instances on other engines share. The version is an entry.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::stored::text;
use crate::store::shared::VERSION;
use crate::store::{Result, Shared, SharedChange, SharedEntries, SharedStore};

#[async_trait]
impl SharedStore for EmbeddedEngine {
    async fn shared_version(&self, of: Shared) -> Result<Option<String>> {
        self.readers.read(move |database: &Connection| version(database, of)).await
    }

    async fn shared(&self, of: Shared) -> Result<SharedEntries> {
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached("SELECT name, body FROM shared WHERE state = ?")?;
            let rows = select.query_map([of.as_str()], |row| {
                Ok((text(row, 0)?.into_owned(), text(row, 1)?.into_owned()))
            })?;
            let mut shared = SharedEntries::default();
            for row in rows {
                match row? {
                    (name, body) if name == VERSION => shared.version = Some(body),
                    entry => shared.entries.push(entry),
                }
            }
            Ok(shared)
        };
        self.readers.read(read).await
    }

    async fn change_shared(&self, of: Shared, change: &SharedChange) -> Result<bool> {
        let SharedChange { version: before, mut write, forget } = change.clone();
        write.push((VERSION.to_owned(), format!("{:016x}", rand::random::<u64>())));
        let change = move |database: &Connection| {
            if version(database, of)? != before {
                return Ok(false);
            }
            for (name, body) in &write {
                database
                    .prepare_cached("INSERT OR REPLACE INTO shared(state, name, body) VALUES(?, ?, ?)")?
                    .execute([of.as_str(), name, body])?;
            }
            for name in &forget {
                database
                    .prepare_cached("DELETE FROM shared WHERE state = ? AND name = ?")?
                    .execute([of.as_str(), name])?;
            }
            Ok(true)
        };
        self.writer.write("change_shared", change).await
    }
}

fn version(database: &Connection, of: Shared) -> DatabaseResult<Option<String>> {
    let mut select = database.prepare_cached("SELECT body FROM shared WHERE state = ? AND name = ?")?;
    Ok(select.query_row([of.as_str(), VERSION], |row| Ok(text(row, 0)?.into_owned())).optional()?)
}

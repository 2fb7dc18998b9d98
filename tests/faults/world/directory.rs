//! The directory of a fleet on the embedded engine, read from disk while an instance may use it.

use std::path::{Path, PathBuf};

use rollcall::presence::OfflineRecord;
use rusqlite::{Connection, OpenFlags, params};

pub struct Directory(PathBuf);

impl Directory {
    pub fn new(path: PathBuf) -> Directory {
        Directory(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Every record of a unit with a diary; `None` while it cannot be read.
    pub fn records(&self) -> Option<Vec<OfflineRecord>> {
        let select = "SELECT record FROM records WHERE id NOT LIKE ?";
        let texts = self.query(|database| {
            let mut select = database.prepare(select)?;
            let rows = select.query_map([format!("%:{}%", super::CROWD)], |row| row.get::<_, String>(0))?;
            rows.collect::<rusqlite::Result<Vec<String>>>()
        })?;
        let read = |text: &String| serde_json::from_str(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        Some(texts.iter().map(read).collect())
    }

    /// The backlog: entries of the outbox, due groups, deliveries.
    pub fn waiting(&self) -> Option<usize> {
        self.count(
            "SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM entries WHERE idx = 'groups_due') \
             + (SELECT count(*) FROM cells WHERE tbl = 'notifications')",
        )
    }

    /// How many units are watched.
    pub fn known(&self) -> Option<usize> {
        self.count("SELECT count(*) FROM units WHERE next_check IS NOT NULL")
    }

    pub fn knows(&self, name: &str) -> Option<bool> {
        let select = "SELECT 1 FROM units WHERE name = ? AND next_check IS NOT NULL";
        self.query(|database| database.prepare(select)?.exists(params![name]))
    }

    /// How many records are open.
    pub fn open(&self) -> Option<usize> {
        self.count("SELECT count(*) FROM records WHERE closed IS NULL")
    }

    /// How many records there are.
    pub fn recorded(&self) -> Option<usize> {
        self.count("SELECT count(*) FROM records")
    }

    fn count(&self, select: &str) -> Option<usize> {
        self.query(|database| database.query_row(select, [], |row| row.get::<_, i64>(0)))
            .map(|count| count as usize)
    }

    fn query<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Option<T> {
        let database =
            Connection::open_with_flags(self.0.join("rollcall.db"), OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
        query(&database).ok()
    }
}

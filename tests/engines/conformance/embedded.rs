//! A directory as the ground. A crash is a copy of the files at that moment: the engine that wrote them continues in a
//! directory that the test no longer reads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{Change, IndexChange, KeyChange, Unit};
use rollcall::store::{Engine, HearingStore, UnitStore};
use rollcall::store::{embedded::EmbeddedConfig, embedded::EmbeddedEngine};
use rollcall::telemetry::Telemetry;
use rusqlite::Connection;
use tempfile::TempDir;

use super::ground::Ground;

/// A directory of a fleet.
pub struct Directory {
    engine: Arc<EmbeddedEngine>,
    /// The directories so far; the engine uses the last one.
    directories: Vec<TempDir>,
}

impl Directory {
    fn path(&self) -> &Path {
        self.directories.last().unwrap().path()
    }

    /// Changes a key and nothing else.
    async fn set_key(&self, unit: &Unit, key: KeyChange) {
        let seen = self.engine.read(std::slice::from_ref(unit)).await.unwrap().remove(0);
        let change = Change { key, index: IndexChange::Keep, facts: seen.facts.clone(), record: None };
        assert_eq!(self.engine.apply(&[(seen, change)]).await.unwrap(), [true]);
    }
}

impl Ground for Directory {
    const IS_WITHIN: bool = true;

    async fn new() -> Directory {
        let directory = TempDir::new().unwrap();
        Directory { engine: open(directory.path()).await, directories: vec![directory] }
    }

    /// A single process has the fleet, so all instances share one engine.
    async fn engine(&self) -> Arc<dyn Engine> {
        self.engine.clone()
    }

    /// The flush that writes `heard` writes the heartbeats before it, too.
    async fn settle(&self) {
        let heard = self.engine.hearing().await.unwrap().heard.unwrap().to_string();
        let database = Connection::open(self.path().join("rollcall.db")).unwrap();
        let mut every = tokio::time::interval(Duration::from_millis(20));
        for _ in 0..1000 {
            let written: rusqlite::Result<String> =
                database.query_row("SELECT value ->> 'heard' FROM meta WHERE name = 'hearing'", [], |row| {
                    row.get(0)
                });
            if written.is_ok_and(|written| written >= heard) {
                return;
            }
            every.tick().await;
        }
        panic!("what was heard until {heard} is not written behind");
    }

    async fn crash(&mut self) {
        let after = TempDir::new().unwrap();
        copy(self.path(), after.path());
        self.engine = open(after.path()).await;
        self.directories.push(after);
    }

    async fn lapse(&self, unit: &Unit) {
        self.set_key(unit, KeyChange::Delete).await;
    }

    async fn leave_key(&self, unit: &Unit, ms: i64) {
        let last_seen = Timestamp::from_millis(ms);
        self.set_key(unit, KeyChange::Set { last_seen, ttl: Duration::ZERO }).await;
    }
}

async fn open(path: &Path) -> Arc<EmbeddedEngine> {
    let config = EmbeddedConfig { path: path.to_owned(), partitions: Some(16) };
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)));
    Arc::new(EmbeddedEngine::open(&config, telemetry).await.unwrap())
}

/// The files at one moment: an open read transaction prevents a checkpoint of the log
/// into the database, and later pages of the log are copied or not, as in a crash.
fn copy(from: &Path, to: &Path) {
    let reader = Connection::open(from.join("rollcall.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM meta").unwrap();
    for file in ["rollcall.db", "rollcall.db-wal", "lock"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

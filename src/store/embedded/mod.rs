//! The embedded engine: a fleet in a directory, for a site with one machine and no Redis.
//!
//! Memory holds the table of units ([`crate::store::table`]), with expiry keys, and the deadline index; heartbeats
//! change both. SQLite holds facts, records, outbox, groups and dead letters; each change is one transaction. Last
//! seen times are written with a delay, together with how far Rollcall has heard, so that a crash turns lost times
//! into blind time. One process has a directory to itself.
//!
//! # Why expiry keys do not expire
//! No decision depends on the expiry of a key, and the engine reads no clock. A key stays until
//! a change deletes it; a late heartbeat finds it, and the next deadline check finds the heartbeat.
//!
//! # Unreadable rows
//! Every value is checked against the type of its column: see `table_rules.rs`. An unreadable row is quarantined,
//! and other units are unaffected.
//!
//! # Memory of a million units
//! 49 MB are rows and the engine's own values beside them, 12 MB ids, 10 MB the hash index, 6 MB one label and the
//! second since which each unit is known. The mirror is a view of the same table. The program and its libraries take
//! 17 MB; the rest, 40 to 60 MB, is SQLite and memory that the allocators keep. During a storm and its notifications
//! the writer's cache adds up to 32 MB.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::{EngineError, Examine, Result, Warning};
use crate::clock::Timestamp;
use crate::telemetry::{EngineWarning, ServerAnswers, Telemetry};

mod apply;
mod broker_numbers;
mod cells;
mod config;
mod data;
mod database;
mod deadline_index;
mod directory;
mod error;
mod examine;
mod exporter;
mod full_scan;
mod hearing;
mod importer;
mod in_memory_hearing;
mod last_seen;
mod load;
mod memory;
mod open_records;
mod outbox;
mod partition_table;
mod quarantine;
mod queries;
mod readers;
mod repair;
mod roster;
mod row;
mod stored;
mod table_rules;
mod units;
mod write_job;
mod writer;

pub use config::EmbeddedConfig;
pub use database::{fleet_key, partitions};
use directory::Directory;
use examine::DatabaseFile;
pub use examine::{check_stored, survey};
use full_scan::FullScan;
pub use importer::EmbeddedImporter;
use load::LoadedFleet;
use memory::InMemoryFleet;
use quarantine::{QuarantineReport, RepairContext, ScanCursor};
pub use queries::{backlogs_in, open_by_kind};
use readers::Readers;
pub use repair::EmbeddedRepair;
use roster::Leases;
pub use table_rules::columns;
use units::{MAX_CHECK_READS, MAX_CHECKS};
use writer::Writer;

/// The most reads at once; deadline checks have readers of their own.
const MAX_READS: usize = 4;

/// The most quarantined rows that an examination logs.
const MAX_LOGGED: usize = 100;

pub struct EmbeddedEngine {
    memory: Arc<InMemoryFleet>,
    /// Dropped before the writer: the last connection to close removes the log, which only the writer may do.
    readers: Readers,
    /// Readers for deadline checks, so that in a storm no page waits for a check.
    check_readers: Readers,
    writer: Writer,
    /// Held by deadline checks under way.
    checks: Semaphore,
    leases: Leases,
    database_file: DatabaseFile,
    fleet: String,
    telemetry: Arc<Telemetry>,
    full_scan: Arc<FullScan>,
    scan_cursor: Arc<Mutex<ScanCursor>>,
}

impl EmbeddedEngine {
    /// Opens the fleet of a directory, or creates it.
    ///
    /// # Errors
    /// `Refused` if another process has locked it or it cannot be written; `Damaged` if its fleet is unreadable;
    /// `Unavailable` while its disk is full.
    pub async fn open(config: &EmbeddedConfig, telemetry: Arc<Telemetry>) -> Result<EmbeddedEngine> {
        EmbeddedEngine::open_with_labels(config, &[], telemetry).await
    }

    /// Opens a fleet whose units are counted by some labels: the table in memory also holds their values.
    ///
    /// # Errors
    /// The errors of [`EmbeddedEngine::open`].
    pub async fn open_with_labels(
        config: &EmbeddedConfig,
        labels: &[String],
        telemetry: Arc<Telemetry>,
    ) -> Result<EmbeddedEngine> {
        let (config, labels) = (config.clone(), labels.to_vec());
        let ended = |_| EngineError::Unavailable("opening the fleet was broken off".into());
        tokio::task::spawn_blocking(move || open(&config, &labels, telemetry)).await.map_err(ended)?
    }
}

fn open(config: &EmbeddedConfig, labels: &[String], telemetry: Arc<Telemetry>) -> Result<EmbeddedEngine> {
    let mut directory = Directory::lock(&config.path)?;
    let (database, partitions) = database::open(&mut directory, config.partitions)?;
    database::check_whole(&database, &config.path).map_err(|error| error.explain(&config.path))?;
    cells::release_leases(&database).map_err(|error| error.explain(&config.path))?;
    let steps = database::steps(&database);
    let fleet = directory.fleet().unwrap_or_default().to_owned();
    let database_file = DatabaseFile::new(&config.path)?;
    let load = || load::load_fleet(&database, &config.path, partitions, labels);
    let loaded = database::read_through(&database, load).map_err(|error| error.explain(&config.path))?;
    let LoadedFleet { memory, last_seen, unreadable } = loaded;
    log_unreadable(&telemetry, &unreadable);
    let full_scan = Arc::new(FullScan::default());
    let readers = |most| {
        Readers::open(&config.path, most, full_scan.clone()).map_err(|error| error.explain(&config.path))
    };
    let (readers, check_readers) = (readers(MAX_READS)?, readers(MAX_CHECK_READS)?);
    let writer = Writer::start(database, directory, last_seen, telemetry.clone(), full_scan.clone())
        .map_err(|error| EngineError::Unavailable(format!("no thread to write with: {error}")))?;
    telemetry.engine_servers(vec![("embedded".to_owned(), ServerAnswers::default())]);
    let scan_cursor = Default::default();
    let leases = Leases::begin(steps);
    Ok(EmbeddedEngine {
        memory,
        writer,
        readers,
        check_readers,
        checks: Semaphore::new(MAX_CHECKS),
        leases,
        database_file,
        fleet,
        telemetry,
        full_scan,
        scan_cursor,
    })
}

/// Logs each row once; the row stays counted and shown until it is gone.
fn log_unreadable(telemetry: &Telemetry, rows: &[QuarantineReport]) {
    rows.iter().for_each(|one| telemetry.unreadable(one.what, &one.location, &one.why));
}

impl EmbeddedEngine {
    /// Scans all rows if an unreadable value was read, otherwise some. Quarantines unreadable rows, and logs the rows
    /// in quarantine.
    async fn quarantine(&self) -> Result<()> {
        let (partitions, scan_cursor) = (self.memory.partitions(), self.scan_cursor.clone());
        let scan = move |database: &Connection| {
            let mut scan_cursor = scan_cursor.lock();
            scan_cursor.finds_unreadable(database, partitions)
        };
        if self.full_scan.take() || self.readers.read(scan).await? {
            let (memory, last_seen) = (self.memory.clone(), self.writer.last_seen());
            let write = move |database: &Connection| {
                let (heard, flush_number) = (memory.hearing().state.heard, last_seen.flush_number());
                let context = RepairContext { partitions, heard, flush_number, memory: Some(&memory) };
                quarantine::quarantine_all(database, &context)
            };
            log_unreadable(&self.telemetry, &self.writer.write("quarantine", write).await?);
        }
        let read = |database: &Connection| quarantine::quarantined_rows(database, MAX_LOGGED);
        for row in self.readers.read(read).await? {
            self.telemetry.unreadable(row.what(), &row.location, &quarantine::kept(&row.why));
        }
        Ok(())
    }
}

#[async_trait]
impl Examine for EmbeddedEngine {
    async fn examine(&self, _now: Timestamp) -> Result<Vec<Warning>> {
        let warnings = self.database_file.warnings()?;
        let is_lost = warnings.iter().any(|warning| warning.name == EngineWarning::LostItsData);
        // The next examination tries again, for example after a full disk.
        if !is_lost && let Err(why) = self.quarantine().await {
            tracing::warn!("unreadable rows of the fleet cannot be quarantined: {why}");
            self.full_scan.retry_later();
        }
        Ok(warnings)
    }

    async fn wants_examination(&self) {
        tokio::select! {
            () = self.database_file.removed() => {}
            () = self.full_scan.requested() => {}
        }
    }
}

//! The embedded engine: a fleet in a directory, for a site with one machine and no Redis.
//!
//! Memory holds what a heartbeat needs (expiry keys, the deadline index); SQLite holds what must not
//! be lost (facts, records, outbox, groups, dead letters), each change in one transaction. Last seen
//! times are written behind, together with how far was heard, so that what a crash loses of them is
//! blind time. One process has a directory to itself.
//!
//! # Why expiry keys do not expire
//! No decision depends on a key's going by itself, and there is no clock in here. A key stands until
//! a change deletes it; a heartbeat that comes late finds it, and the next look finds the heartbeat.
//!
//! # What cannot be read
//! Neither the type of a column nor its text is believed: see `table_rules.rs`. A row that cannot be read is put aside
//! and everything else goes on.
//!
//! # Where the memory of a million units goes
//! 32 MB are rows, 12 MB ids, 10 MB the table that finds them; the mirror, which is the same with every
//! engine, takes 47 MB, the program and its libraries 17 MB. The rest, 40 to 60 MB, is SQLite and what the
//! allocators keep at hand. While a storm is written, and told, the writer's cache adds up to 32 MB.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rusqlite::Connection;

use super::{Engine, EngineError, Result, Warning};
use crate::clock::Timestamp;
use crate::telemetry::{EngineWarning, Telemetry};

mod absence;
mod apply;
mod config;
mod data;
mod database;
mod deadline_index;
mod deliveries;
mod delivery_leases;
mod directory;
mod ears;
mod error;
mod examine;
mod exporter;
mod filters;
mod finish;
mod full_scan;
mod groups;
mod hearing;
mod importer;
mod last_seen;
mod load;
mod memory;
mod open_records;
mod outbox;
mod quarantine;
mod queries;
mod readers;
mod receivers;
mod repair;
mod roster;
mod row;
mod seal;
mod shard;
mod table_rules;
mod units;
mod writer;

pub use config::Config;
pub use database::partitions;
use delivery_leases::DeliveryLeases;
use directory::Directory;
use examine::DatabaseFile;
pub use examine::survey;
use full_scan::FullScan;
pub use importer::EmbeddedImporter;
use load::LoadedFleet;
use memory::InMemoryFleet;
use quarantine::{Aside, RepairContext, ScanCursor};
pub use queries::open_by_kind;
use readers::Readers;
pub use receivers::kept_in;
pub use repair::EmbeddedRepair;
use roster::Leases;
pub use table_rules::columns;
use writer::Writer;

/// How many of the rows that were put aside are told with each examination.
const MOST_TOLD: usize = 100;

/// The embedded engine.
pub struct EmbeddedEngine {
    memory: Arc<InMemoryFleet>,
    /// Before the writer: whoever closes the database last tidies its log away, which only the writer may.
    readers: Readers,
    writer: Writer,
    leases: Leases,
    /// Deliveries that are leased.
    holds: Arc<DeliveryLeases>,
    database_file: DatabaseFile,
    fleet: String,
    telemetry: Arc<Telemetry>,
    full_scan: Arc<FullScan>,
    /// Which rows the next examination goes over.
    rounds: Arc<Mutex<ScanCursor>>,
}

impl EmbeddedEngine {
    /// Opens the fleet of a directory, or creates it.
    ///
    /// # Errors
    /// `Refused` if another process works there or it cannot be written; `Damaged` if what is there
    /// cannot be read; `Unavailable` while its disk is full.
    pub async fn open(config: &Config, telemetry: Arc<Telemetry>) -> Result<EmbeddedEngine> {
        let config = config.clone();
        let ended = |_| EngineError::Unavailable("opening the fleet was broken off".into());
        tokio::task::spawn_blocking(move || open(&config, telemetry)).await.map_err(ended)?
    }
}

fn open(config: &Config, telemetry: Arc<Telemetry>) -> Result<EmbeddedEngine> {
    let mut directory = Directory::enter(&config.path)?;
    let database = database::open(&mut directory, config.partitions)?;
    let fleet = directory.fleet().unwrap_or_default().to_owned();
    let database_file = DatabaseFile::new(&config.path)?;
    let load = || load::fill(&database, &config.path, config.partitions);
    let loaded = database::read_through(&database, load).map_err(|fault| fault.explain(&config.path))?;
    let LoadedFleet { memory, beats, odd } = loaded;
    tell(&telemetry, &odd);
    let full_scan = Arc::new(FullScan::default());
    let readers = Readers::new(&config.path, full_scan.clone());
    let writer = Writer::start(database, directory, beats, telemetry.clone(), full_scan.clone())
        .map_err(|error| EngineError::Unavailable(format!("no thread to write with: {error}")))?;
    let (leases, holds, rounds) = Default::default();
    Ok(EmbeddedEngine {
        memory,
        writer,
        readers,
        leases,
        holds,
        database_file,
        fleet,
        telemetry,
        full_scan,
        rounds,
    })
}

/// Each is logged once, counted and shown until it is gone.
fn tell(telemetry: &Telemetry, odd: &[Aside]) {
    odd.iter().for_each(|one| telemetry.unreadable(one.what, &one.place, &one.why));
}

impl EmbeddedEngine {
    /// Goes over all rows if something was met that does not fit, else over some; puts aside what does not,
    /// and tells what is aside.
    async fn put_aside(&self) -> Result<()> {
        let (partitions, rounds) = (self.memory.partitions(), self.rounds.clone());
        let look = move |database: &Connection| {
            rounds.lock().expect("nothing panics under this lock").is_anything_odd(database, partitions)
        };
        if self.full_scan.take() || self.readers.read(look).await? {
            let (memory, beats) = (self.memory.clone(), self.writer.beats());
            let write = move |database: &Connection| {
                let (heard, number) = (memory.ears().heard, beats.number());
                let known = RepairContext { partitions, heard, number, memory: Some(&memory) };
                quarantine::put_aside(database, &known)
            };
            tell(&self.telemetry, &self.writer.write("put_aside", write).await?);
        }
        let kept = self.readers.read(|database| quarantine::kept(database, MOST_TOLD)).await?;
        for one in kept {
            let why = format!("{} cannot be read; the table unreadable keeps it: rollcall repair", one.why);
            self.telemetry.unreadable(one.what(), &one.place, &why);
        }
        Ok(())
    }
}

#[async_trait]
impl Engine for EmbeddedEngine {
    async fn examine(&self, _now: Timestamp) -> Result<Vec<Warning>> {
        let warnings = self.database_file.warnings()?;
        let is_lost = warnings.iter().any(|warning| warning.name == EngineWarning::LostItsData);
        // What cannot be put aside now, as on a full disk, is tried with the next examination.
        if !is_lost && let Err(why) = self.put_aside().await {
            tracing::warn!("what cannot be read in the fleet cannot be put aside: {why}");
            self.full_scan.retry_later();
        }
        Ok(warnings)
    }

    async fn wants_examination(&self) {
        tokio::select! {
            () = self.database_file.missed() => {}
            () = self.full_scan.wait() => {}
        }
    }

    /// There are no hints: sweeps read the index in memory, which costs nothing.
    async fn listen(&self, hints: tokio::sync::mpsc::Sender<super::Hint>) -> Result<()> {
        hints.closed().await;
        Ok(())
    }

    fn storm(&self, _is_on: bool) {}
}

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
//! # Where the memory of a million units goes
//! 32 MB are rows, 12 MB ids, 10 MB the table that finds them; the mirror, which is the same with every
//! engine, takes 47 MB, the program and its libraries 17 MB. The rest, 40 to 60 MB, is SQLite and what the
//! allocators keep at hand. While a storm is written, and told, the writer's cache adds up to 32 MB.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Engine, EngineError, Result, Warning};
use crate::clock::Timestamp;
use crate::telemetry::Telemetry;

mod absence;
mod apply;
mod arrival;
mod beats;
mod config;
mod data;
mod database;
mod deliveries;
mod directory;
mod ears;
mod examine;
mod fault;
mod filters;
mod finish;
mod groups;
mod hearing;
mod holds;
mod load;
mod looks;
mod memory;
mod outbox;
mod parcels;
mod queries;
mod readers;
mod receivers;
mod roster;
mod row;
mod seal;
mod shard;
mod units;
mod writer;

pub use arrival::EmbeddedArrival;
use beats::Beats;
pub use config::Config;
pub use database::partitions;
use directory::Directory;
use examine::Premises;
pub use examine::survey;
use holds::Holds;
use memory::Memory;
pub use queries::open_by_kind;
use readers::Readers;
pub use receivers::kept_in;
use roster::Leases;
use writer::Writer;

/// The embedded engine.
pub struct EmbeddedEngine {
    memory: Arc<Memory>,
    /// Before the writer: whoever closes the database last tidies its log away, which only the writer may.
    readers: Readers,
    writer: Writer,
    leases: Leases,
    /// Deliveries that are leased.
    holds: Arc<Holds>,
    premises: Premises,
    telemetry: Arc<Telemetry>,
    fleet: String,
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
    let premises = Premises::new(&config.path)?;
    let memory = Arc::new(Memory::new(config.partitions));
    let beats = Arc::new(Beats::new(memory.clone()));
    let load = || load::load(&database, &config.path, &memory, &beats);
    database::read_through(&database, load).map_err(|fault| fault.explain(&config.path))?;
    let readers = Readers::new(&config.path);
    let writer = Writer::start(database, directory, beats, telemetry.clone())
        .map_err(|error| EngineError::Unavailable(format!("no thread to write with: {error}")))?;
    let (leases, holds) = (Leases::default(), Arc::default());
    Ok(EmbeddedEngine { memory, writer, readers, leases, holds, premises, telemetry, fleet })
}

#[async_trait]
impl Engine for EmbeddedEngine {
    async fn examine(&self, _now: Timestamp) -> Result<Vec<Warning>> {
        self.premises.warnings()
    }

    async fn wants_examination(&self) {
        self.premises.missed().await;
    }

    /// There are no hints: sweeps read the index in memory, which costs nothing.
    async fn listen(&self, hints: tokio::sync::mpsc::Sender<super::Hint>) -> Result<()> {
        hints.closed().await;
        Ok(())
    }

    fn storm(&self, _is_on: bool) {}
}

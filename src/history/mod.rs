//! History: years of records in PostgreSQL, which operators own and dashboards read.
//!
//! The engine keeps records for a while. A loop ([`HistoryWriter`]) copies them into tables that are public
//! (`schema.sql`, `docs/history.md`): transitions, blind time, changes by operators, notifications. It only reads the
//! engine, so detection and notifications never wait for it.
//!
//! # Why the cursors are in the database
//! A cursor in the engine and rows in the database cannot change in one step. A cursor beside the rows can: after a
//! crash of either side, history continues there.

use std::time::Duration;

mod backfill;
mod blind;
mod cursors;
mod daily;
mod database;
mod kept;
mod late;
mod losses;
mod past;
mod past_silences;
mod policies;
mod reader;
mod reading;
mod reconciling;
mod refused;
mod report;
mod rows;
mod schema;
mod sources;
mod status;
mod tls;
mod transition_rows;
mod units;
mod writer;

pub use backfill::{Backfilled, backfill};
pub use database::{Database, DatabaseAccess, DatabaseAddress, HistoryError, Result};
pub use past::past_fleet;
pub use reader::HistoryReader;
pub use report::report;
pub use schema::{
    HistoryRetention, StoredHistory, VERSION, check, fleet_digest, hand_over, prepare, prune, require,
    stored, try_writing,
};
pub use sources::HistorySource;
pub use status::{HistoryStatus, TableStatus, rewind, status};
pub use writer::HistoryWriter;

/// The names of the cursors of units, of the audit, of blind time and of days.
const UNITS: &str = "units";
const OPERATIONS: &str = "operations";
const BLIND: &str = "blind";
const DAILY: &str = "daily";
/// Until when the open records of both sides were compared, in the cursors.
const OPEN: &str = "open";

/// The options of history.
#[derive(Clone, Debug)]
pub struct HistoryConfig {
    pub access: DatabaseAccess,
    /// The most entries of a statement.
    pub batch: usize,
    /// How long each table is kept.
    pub keep: HistoryRetention,
    /// How long the engine keeps closed records, and attempts to deliver.
    pub keep_records: Duration,
    pub keep_deliveries: Duration,
}

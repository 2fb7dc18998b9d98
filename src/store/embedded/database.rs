//! The database of a fleet: SQLite in one file, beside it a write-ahead log.
//!
//! # Why every commit waits for the disk
//! A committed write must survive a power cut: a transition that was notified and then lost would be notified again
//! under another id. Callers that wait at the same time share one commit, so the disk syncs at most a few hundred
//! times a second, whatever the fleet's size.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, params};

use super::config::PARTITIONS;
use super::directory::{DATABASE, Directory, refuse_links};
use super::error::{DatabaseResult, damaged};
use super::quarantine;
use crate::clock::{HeldStep, Skip, Steps, Timestamp};
use crate::store::migration::{LAYOUT, check_layout, incomplete};
use crate::store::{EngineError, Result};

/// Marks a file as a fleet of Rollcall.
const APPLICATION: i32 = 0x526f_6c6c;

/// The writer's cache: during a storm the indexes of the records change all the time. Pages that do not fit are
/// written to the log early, and again later: with a quarter of this, a storm of 100 000 units wrote three times as
/// much.
const CACHE_KIB: i64 = 32 * 1024;
const READER_CACHE_KIB: i64 = 256;
/// A checkpoint copies the log into the database after this many pages: many, because in a storm the same pages are
/// written repeatedly, and all jobs wait during a checkpoint.
const CHECKPOINT_PAGES: i64 = 64_000;
/// While few rows are written, a checkpoint comes after this many pages: no job waits for it then.
const CALM_CHECKPOINT_PAGES: i64 = 16_000;
/// The log is truncated to this after a checkpoint.
const LOG_BYTES: i64 = 64 * 1024 * 1024;

/// The id of a unit is `partition << 32 | slot`. Times are ms. NULL stands for none.
///
/// | table | content |
/// |---|---|
/// | `meta` | `fleet` id, `partitions`; `hearing`: the state of hearing (JSON), see `in_memory_hearing.rs`; `number` of the last flush; `kept`: that number, and how many rows `heartbeats` and `pages` have after it; `stepped`: the sum of the accepted steps of the clock (ms); `skipped_from`, `skipped_to`: the last of them (ms); `ahead`, `since`: a step that is not accepted yet (ms) |
/// | `units` | name, facts (see `store/encoding.rs`), expiry key and next check as of the last change; `after`: heartbeats of this number and before are older |
/// | `heartbeats` | last seen times since then, by flush number: 2 bytes partition, 4 slot, 6 time, 1 broker, little endian; `brokers`: the names of brokers by number from 1 on (JSON) |
/// | `pages` | last seen times of `heartbeats` up to this number, 512 units to a page, 6 bytes each and 1 for the broker; `brokers` |
/// | `data` | the newest value of each unit and metric; deleted with its unit |
/// | `blind` | blind intervals |
/// | `records` | offline records by id (JSON) |
/// | `outbox` | events without a group yet (JSON), by partition; events of hearing have the number after the last |
/// | `cells` | the cells of all tables (JSON, or words for a timer that waits and for a lane): see `store/cells.rs` |
/// | `entries` | the entries of all indexes |
/// | `unreadable` | quarantined rows (JSON), see `quarantine.rs` |
const TABLES: &str = "
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE units(id INTEGER PRIMARY KEY, name TEXT NOT NULL, facts TEXT NOT NULL, alive INTEGER,
  next_check INTEGER, after INTEGER NOT NULL);
CREATE TABLE heartbeats(id INTEGER PRIMARY KEY, number INTEGER NOT NULL, entries BLOB NOT NULL,
  brokers TEXT NOT NULL);
CREATE TABLE pages(id INTEGER PRIMARY KEY, number INTEGER NOT NULL, times BLOB NOT NULL, brokers TEXT NOT NULL);
CREATE TABLE data(id INTEGER NOT NULL, metric TEXT NOT NULL, at INTEGER NOT NULL, value TEXT NOT NULL,
  PRIMARY KEY(id, metric)) WITHOUT ROWID;
CREATE TRIGGER data_leaves AFTER DELETE ON units BEGIN DELETE FROM data WHERE id = OLD.id; END;
CREATE TABLE blind(start INTEGER NOT NULL, until INTEGER NOT NULL);
CREATE TABLE records(id TEXT NOT NULL UNIQUE, partition INTEGER NOT NULL, detected INTEGER NOT NULL, closed INTEGER,
  record TEXT NOT NULL);
CREATE INDEX records_newest ON records(detected, id);
CREATE INDEX records_open ON records(detected, id) WHERE closed IS NULL;
CREATE INDEX records_closed ON records(closed) WHERE closed IS NOT NULL;
CREATE TABLE outbox(id INTEGER PRIMARY KEY AUTOINCREMENT, partition INTEGER NOT NULL, event TEXT NOT NULL);
CREATE TABLE cells(tbl TEXT NOT NULL, partition INTEGER NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY(tbl, partition, name)) WITHOUT ROWID;
CREATE TABLE entries(idx TEXT NOT NULL, partition INTEGER NOT NULL, name TEXT NOT NULL, at INTEGER NOT NULL,
  PRIMARY KEY(idx, partition, name)) WITHOUT ROWID;
CREATE INDEX entries_first ON entries(idx, at, name);
";

/// Opens the fleet of a directory, for writing, or creates it. Answers the number of its partitions, too.
pub(super) fn open(directory: &mut Directory, partitions: Option<u16>) -> Result<(Connection, u16)> {
    let path = directory.path().to_owned();
    let work = || -> DatabaseResult<(Connection, u16, String)> {
        // Opening creates a missing file.
        if !path.join(DATABASE).exists() {
            directory.check_new()?;
            directory.make_database()?;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut connection = connect(&path, flags)?;
        if identify(&connection, &path)? == DatabaseContents::Nothing {
            directory.check_new()?;
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
        connection.set_prepared_statement_cache_capacity(64);
        if identify(&connection, &path)? == DatabaseContents::Nothing {
            create(&mut connection, partitions.unwrap_or(PARTITIONS))?;
        }
        let found: u16 = meta(&connection, "partitions")?;
        check_partitions(found, partitions, &path)?;
        quarantine::register_fits(&connection)?;
        let fleet = meta(&connection, "fleet")?;
        Ok((connection, found, fleet))
    };
    let (connection, partitions, fleet) = work().map_err(|error| error.explain(directory.path()))?;
    directory.write_fleet_id(&fleet)?;
    Ok((connection, partitions))
}

/// Opens the fleet of a directory read-only; several connections may be open at the same time.
pub(super) fn open_to_read(path: &Path) -> DatabaseResult<Connection> {
    refuse_links(path)?;
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(32);
    quarantine::register_fits(&connection)?;
    Ok(connection)
}

/// Opens the database. The file must not be a link; the directory may be one.
fn connect(path: &Path, flags: OpenFlags) -> DatabaseResult<Connection> {
    let directory = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    Ok(Connection::open_with_flags(directory.join(DATABASE), flags)?)
}

/// Runs a full read with the small cache of a reader.
pub(super) fn read_through<T>(
    connection: &Connection,
    read: impl FnOnce() -> DatabaseResult<T>,
) -> DatabaseResult<T> {
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    let read = read()?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    Ok(read)
}

/// Lets the next write copy the log into the database, while few rows are written.
pub(super) fn checkpoint_soon(connection: &Connection) {
    // Ignored: a failure shows again with the next write.
    let _ = connection.pragma_update(None, "wal_autocheckpoint", CALM_CHECKPOINT_PAGES);
}

/// Frees the cache after few rows were written; the next write may be large again.
pub(super) fn release_cache(connection: &Connection) {
    let _ = connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES);
    let _ = connection.pragma_update(None, "shrink_memory", true);
}

/// The number of partitions of the fleet in a directory; `None` if there is none.
///
/// # Errors
/// `Damaged` or `Refused` if the directory holds no readable fleet.
pub fn partitions(path: &Path) -> Result<Option<u16>> {
    let read = || -> DatabaseResult<Option<u16>> {
        let connection = open_to_read(path)?;
        let found = identify(&connection, path)? == DatabaseContents::Fleet;
        Ok(if found { Some(meta(&connection, "partitions")?) } else { None })
    };
    if !path.join(DATABASE).exists() {
        return Ok(None);
    }
    read().map_err(|error| error.explain(path))
}

/// The key of the fleet in a directory; `None` if there is none.
///
/// # Errors
/// `Damaged` or `Refused` if the directory holds no readable fleet.
pub fn fleet_key(path: &Path) -> Result<Option<String>> {
    if partitions(path)?.is_none() {
        return Ok(None);
    }
    let read = || -> DatabaseResult<String> { Ok(meta(&open_to_read(path)?, "fleet")?) };
    read().map(Some).map_err(|error| error.explain(path))
}

/// Refuses the fleet of a directory as opening it would, but reads only.
pub(super) fn check(path: &Path, partitions: Option<u16>) -> Result<()> {
    open_checked(path, partitions).map(drop).map_err(|error| error.explain(path))
}

/// Checks the fleet of a directory and all of its pages, read-only.
pub(super) fn survey(path: &Path, partitions: Option<u16>) -> Result<()> {
    let work = || -> DatabaseResult<()> {
        let connection = open_checked(path, partitions)?;
        let answer: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if answer != "ok" {
            return Err(EngineError::Damaged(damaged(path, &answer)).into());
        }
        Ok(())
    };
    work().map_err(|error| error.explain(path))
}

/// Opens a fleet read-only if it is whole, of this layout and of these partitions.
fn open_checked(path: &Path, partitions: Option<u16>) -> DatabaseResult<Connection> {
    let connection = open_to_read(path)?;
    if identify(&connection, path)? == DatabaseContents::Nothing {
        return Err(EngineError::Damaged(damaged(path, "its database is empty")).into());
    }
    check_partitions(meta(&connection, "partitions")?, partitions, path)?;
    check_whole(&connection, path)?;
    Ok(connection)
}

/// The steps of the clock: see `clock/steps.rs`. A value that is not a number, or beyond the calendar, counts as absent.
pub(super) fn steps(connection: &Connection) -> Steps {
    let moment = |name| {
        let ms = meta(connection, name).ok()?;
        Some(Timestamp::from_millis(ms)).filter(|at| at.as_millis() == ms && *at < Timestamp::NEVER)
    };
    let length = |name| moment(name).map(|span| span.since(Timestamp::ZERO));
    let held = length("ahead").zip(moment("since")).map(|(ahead, since)| HeldStep { ahead, since });
    let skipped = moment("skipped_from").zip(moment("skipped_to")).map(|(from, to)| Skip { from, to });
    Steps { held, accepted: length("stepped").unwrap_or_default(), skipped }
}

/// Stores the steps of the clock for the next run.
pub(super) fn write_steps(connection: &Connection, steps: Steps) -> DatabaseResult<()> {
    let Steps { held, accepted, skipped } = steps;
    connection.execute("DELETE FROM meta WHERE name IN ('ahead', 'since')", [])?;
    let write = |name: &str, ms: i64| {
        connection.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", params![name, ms])
    };
    write("stepped", accepted.as_millis() as i64)?;
    if let Some(HeldStep { ahead, since }) = held {
        write("ahead", ahead.as_millis() as i64)?;
        write("since", since.as_millis())?;
    }
    if let Some(Skip { from, to }) = skipped {
        write("skipped_from", from.as_millis())?;
        write("skipped_to", to.as_millis())?;
    }
    Ok(())
}

/// Marks a fleet as the incomplete target of a migration, or removes the mark.
pub(super) fn set_moving(connection: &Connection, is_moving: bool) -> DatabaseResult<()> {
    let statement = match is_moving {
        true => "INSERT OR REPLACE INTO meta VALUES('moving', 1)",
        false => "DELETE FROM meta WHERE name = 'moving'",
    };
    connection.execute(statement, [])?;
    Ok(())
}

/// Refuses a fleet whose migration is not complete.
pub(super) fn check_whole(connection: &Connection, path: &Path) -> DatabaseResult<()> {
    let select = "SELECT EXISTS (SELECT 1 FROM meta WHERE name = 'moving')";
    match connection.query_row(select, [], |row| row.get(0))? {
        false => Ok(()),
        true => Err(incomplete(&path.display().to_string()).into()),
    }
}

#[derive(PartialEq)]
enum DatabaseContents {
    Nothing,
    Fleet,
}

/// Refuses a file that is not a fleet of this layout.
fn identify(connection: &Connection, path: &Path) -> DatabaseResult<DatabaseContents> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let directory = path.display();
    match (number("application_id")?, number("user_version")?) {
        (0, 0) if tables == 0 => Ok(DatabaseContents::Nothing),
        (APPLICATION, layout) => {
            check_layout(layout.try_into().ok(), &directory.to_string(), "engine.path")?;
            Ok(DatabaseContents::Fleet)
        }
        _ => Err(EngineError::Refused(format!(
            "{DATABASE} in {directory} is another program's; choose another engine.path"
        ))
        .into()),
    }
}

fn create(connection: &mut Connection, partitions: u16) -> DatabaseResult<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.execute_batch(quarantine::TABLE)?;
    let fleet = format!("{:016x}", rand::random::<u64>());
    transaction.execute("INSERT INTO meta VALUES('fleet', ?)", [fleet])?;
    transaction.execute("INSERT INTO meta VALUES('partitions', ?)", [partitions])?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", LAYOUT)?;
    Ok(transaction.commit()?)
}

fn meta<T: rusqlite::types::FromSql>(connection: &Connection, name: &str) -> rusqlite::Result<T> {
    connection.query_row("SELECT value FROM meta WHERE name = ?", params![name], |row| row.get(0))
}

fn check_partitions(found: u16, partitions: Option<u16>, path: &Path) -> DatabaseResult<()> {
    let Some(partitions) = partitions.filter(|partitions| *partitions != found) else { return Ok(()) };
    Err(EngineError::Refused(format!(
        "the fleet in {} was created with {found} partitions, engine.partitions says {partitions}; write {found} \
         there, or choose another engine.path for a new fleet",
        path.display()
    ))
    .into())
}

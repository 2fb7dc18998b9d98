//! The schema of history: its version, its monthly partitions, and the removal of old rows.
//!
//! If the database has TimescaleDB when the tables are created, the large ones are hypertables, which split themselves
//! into months. Otherwise they are partitioned tables, whose months this module creates. The catalogue of the database
//! says later which form a table has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::civil::Date;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, GenericClient, Transaction};

use super::database::{Database, DatabaseAccess, HistoryError, Result};
use super::rows::moment;
use super::{cursors, kept};
use crate::clock::Timestamp;
use crate::reports::{day_of, midnight};

/// The version that this program writes.
pub const VERSION: i32 = 2;

/// The tables that are cut into months, and the column that says the month.
const BY_MONTH: [(&str, &str); 3] = [("transitions", "at"), ("notifications", "at"), ("daily", "day")];

/// The statements that create the tables, each large one as a partitioned table.
const TABLES: &str = include_str!("schema.sql");

/// The schema of the functions of TimescaleDB, quoted, if the database has it.
const TIMESCALE: &str = "SELECT quote_ident(n.nspname) FROM pg_extension e \
                         JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'timescaledb'";

/// The tables without months, and the column that gives the age of a row.
const WHOLE: [(&str, &str); 4] =
    [("blind", "until_at"), ("operations", "at"), ("pauses", "until_at"), ("losses", "until_at")];

/// Instances that change the schema do so one after the other. The schema may not be there yet.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtext(current_setting('search_path') || ' of rollcall'))";

/// Statements that succeed only for a user that may write history: a row, a table, and a change that takes the owner of a
/// table, as a month of it does.
const TRIAL: &str = "INSERT INTO cursors VALUES ('trial', 0, now()); CREATE TABLE trial (at timestamptz); \
                     COMMENT ON TABLE transitions IS NULL";

/// A digest of the key of a fleet, by which history knows the fleet: the key itself never leaves the engine and the
/// instances.
pub fn fleet_digest(key: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    data_encoding::BASE64URL_NOPAD.encode(&digest.as_ref()[..9])
}

/// What the tables say of themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredHistory {
    /// `None`: there are no tables.
    pub version: Option<i32>,
    /// See [`fleet_digest`]; `None`: no instance has written yet.
    pub fleet: Option<String>,
}

/// Makes the schema and its tables unless they are there, and takes them for this fleet ([`fleet_digest`], and the number
/// of its partitions) unless they have one.
///
/// # Errors
/// Also if a program of another version made the schema, or if it is the history of another fleet.
pub async fn prepare(
    database: &mut Database,
    access: &DatabaseAccess,
    fleet: Option<(&str, u16)>,
) -> Result<()> {
    let schema = access.quoted_schema();
    let made = database.in_transaction("make the schema of history", async |transaction| {
        let stored = make(transaction, &schema).await?;
        match fleet {
            Some((fleet, partitions)) if stored.version == Some(VERSION) && stored.fleet.is_none() => {
                transaction.execute("UPDATE meta SET fleet = $1", &[&fleet]).await?;
                cursors::lay_out(transaction, partitions).await?;
                Ok(StoredHistory { fleet: Some(fleet.to_owned()), ..stored })
            }
            _ => Ok(stored),
        }
    });
    let made = made.await?;
    check(database, access, &made, fleet.map(|(digest, _)| digest))
}

/// Makes the schema and its tables unless they are there, and answers what they say of themselves.
async fn make(transaction: &Transaction<'_>, schema: &str) -> Result<StoredHistory, Error> {
    // Before everything else: of two instances that find nothing, the second one looks again after the first.
    transaction.batch_execute(LOCK).await?;
    let is_there = "SELECT to_regnamespace($1) IS NOT NULL";
    if !transaction.query_one(is_there, &[&schema]).await?.get::<_, bool>(0) {
        transaction.batch_execute(&format!("CREATE SCHEMA {schema}")).await?;
    }
    if read(transaction, schema).await?.version.is_none() {
        let timescale: Option<String> = transaction.query_opt(TIMESCALE, &[]).await?.map(|row| row.get(0));
        transaction.batch_execute(&statements(timescale.as_deref())).await?;
    }
    read(transaction, schema).await
}

/// Tries to make the schema and to write, and leaves nothing of it.
///
/// # Errors
/// The database refuses one of both.
pub async fn try_writing(database: &mut Database, access: &DatabaseAccess) -> Result<()> {
    let schema = access.quoted_schema();
    let tried = database.in_transaction("write history", async |transaction| {
        transaction.batch_execute("SAVEPOINT untouched").await?;
        make(transaction, &schema).await?;
        transaction.batch_execute(TRIAL).await?;
        transaction.batch_execute("ROLLBACK TO SAVEPOINT untouched").await
    });
    tried.await
}

/// Checks that the tables are there, in the version of this program, and that they are not those of another fleet.
///
/// # Errors
/// They are not.
pub async fn require(database: &Database, access: &DatabaseAccess, fleet: Option<&str>) -> Result<()> {
    check(database, access, &stored(database, access).await?, fleet)
}

/// What the tables say of themselves.
pub async fn stored(database: &Database, access: &DatabaseAccess) -> Result<StoredHistory> {
    database.limited("read the version of history", read(database.client(), &access.quoted_schema())).await
}

/// Lets the next fleet that writes have the history, such as one that was moved to another engine.
pub async fn hand_over(database: &Database) -> Result<()> {
    let forget = database.client().execute("UPDATE meta SET fleet = NULL", &[]);
    database.limited("hand the history over", forget).await.map(drop)
}

/// Refuses tables that this program, or this fleet, must not write.
///
/// # Errors
/// What is wrong with them, and what to do.
pub fn check(
    database: &Database,
    access: &DatabaseAccess,
    stored: &StoredHistory,
    fleet: Option<&str>,
) -> Result<()> {
    let (schema, address) = (&access.schema, database.address());
    let is_of_another = || stored.fleet.as_deref().zip(fleet).is_some_and(|(stored, fleet)| stored != fleet);
    Err(HistoryError::Refused(match stored.version {
        Some(VERSION) if is_of_another() => format!(
            "the history in schema {schema} of {address} is that of another fleet; give this fleet a schema of its own \
             (history.schema), or, if it is the same fleet on another engine, let it have this one with rollcall \
             history hand-over"
        ),
        Some(VERSION) => return Ok(()),
        None => format!("{address} has no history in schema {schema}; make it with rollcall history init"),
        Some(version) => format!(
            "the history in schema {schema} of {address} has version {version}, and this program writes version \
             {VERSION}; use the program that made it, or another history.schema"
        ),
    }))
}

async fn read(client: &impl GenericClient, schema: &str) -> Result<StoredHistory, Error> {
    let is_there = "SELECT to_regclass($1) IS NOT NULL";
    if !client.query_one(is_there, &[&format!("{schema}.meta")]).await?.get::<_, bool>(0) {
        return Ok(StoredHistory::default());
    }
    let version = client.query_one("SELECT max(version) FROM meta", &[]).await?.get(0);
    // Other versions may have other columns.
    let fleet = match version {
        Some(VERSION) => client.query_one("SELECT max(fleet) FROM meta", &[]).await?.get(0),
        _ => None,
    };
    Ok(StoredHistory { version, fleet })
}

/// The statements that create the tables. `timescale`: the schema of the functions of TimescaleDB.
fn statements(timescale: Option<&str>) -> String {
    let Some(timescale) = timescale else { return TABLES.to_owned() };
    let make = BY_MONTH.map(|(table, column)| {
        format!(
            "SELECT {timescale}.create_hypertable('{table}', '{column}', chunk_time_interval => interval '1 month', \
             create_default_indexes => false);"
        )
    });
    let whole = BY_MONTH.iter().fold(TABLES.to_owned(), |text, (_, column)| {
        text.replace(&format!(" PARTITION BY RANGE ({column})"), "")
    });
    format!("{whole}\n{}", make.join("\n"))
}

/// Returns whether a table is a partitioned one, whose months this module creates.
async fn is_partitioned(database: &Database, table: &str) -> Result<bool> {
    let select = format!("SELECT relkind::text = 'p' FROM pg_class WHERE oid = '{table}'::regclass");
    let row = database.limited("read what a table is", database.client().query_one(&select, &[])).await?;
    Ok(row.get(0))
}

/// The months of tables that exist for certain.
#[derive(Default)]
pub(super) struct Months {
    made: BTreeSet<(&'static str, Date)>,
    /// Whether each table is a partitioned one.
    partitioned: BTreeMap<&'static str, bool>,
}

impl Months {
    /// Creates the months of a table that these moments need.
    pub async fn make(
        &mut self,
        database: &Database,
        table: &'static str,
        moments: impl Iterator<Item = Timestamp>,
    ) -> Result<()> {
        let needed: BTreeSet<Date> = moments.map(month_of).collect();
        if !self.partitioned.contains_key(table) {
            self.partitioned.insert(table, is_partitioned(database, table).await?);
        }
        if !self.partitioned[table] {
            return Ok(());
        }
        for month in needed {
            if self.made.contains(&(table, month)) {
                continue;
            }
            let next = month.saturating_add(jiff::Span::new().months(1));
            let name = partition_name(table, month);
            let make = format!(
                "BEGIN; {LOCK}; CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} \
                 FOR VALUES FROM ('{month}') TO ('{next}'); COMMIT"
            );
            let made =
                database.limited("make a month of history", database.client().batch_execute(&make)).await;
            if made.is_err() {
                let _ = database.limited("roll back", database.client().batch_execute("ROLLBACK")).await;
            }
            made?;
            self.made.insert((table, month));
        }
        Ok(())
    }
}

/// The first day of a month (UTC).
fn month_of(at: Timestamp) -> Date {
    day_of(at).first_of_month()
}

fn partition_name(table: &str, month: Date) -> String {
    format!("{table}_{:04}_{:02}", month.year(), month.month())
}

/// How long each table is kept; `None`: for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryRetention {
    pub transitions: Option<Duration>,
    pub blind: Option<Duration>,
    pub operations: Option<Duration>,
    pub notifications: Option<Duration>,
    pub daily: Option<Duration>,
}

impl HistoryRetention {
    fn of(&self, table: &str) -> Option<Duration> {
        match table {
            "transitions" => self.transitions,
            "notifications" => self.notifications,
            "daily" => self.daily,
            "operations" => self.operations,
            _ => self.blind,
        }
    }
}

/// Drops the months that are wholly older than their table is kept, and rows of tables without months; before that it
/// writes since when the table is kept. Units go when neither transitions nor sums of their time are kept. Answers what
/// was dropped, in words.
pub async fn prune(database: &Database, keep: &HistoryRetention, now: Timestamp) -> Result<Vec<String>> {
    let mut dropped = Vec::new();
    let mut whole = WHOLE.to_vec();
    for (table, column) in BY_MONTH {
        let Some(keep) = keep.of(table) else { continue };
        if !is_partitioned(database, table).await? {
            whole.push((table, column));
            continue;
        }
        let first = month_of(now - keep);
        kept::prune(database, table, midnight(first)).await?;
        let oldest = partition_name(table, first);
        // Names of one length sort by their months.
        let select = format!(
            "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
             WHERE i.inhparent = '{table}'::regclass AND c.relname::text < $1 ORDER BY 1"
        );
        let parameters: [&(dyn ToSql + Sync); 1] = [&oldest];
        let found = database.limited("list months", database.client().query(&select, &parameters));
        for row in found.await? {
            let name: String = row.get(0);
            let drop = format!("DROP TABLE {name}");
            database.limited("drop a month", database.client().batch_execute(&drop)).await?;
            dropped.push(name);
        }
    }
    for (table, column) in whole {
        let Some(keep) = keep.of(table) else { continue };
        kept::prune(database, table, now - keep).await?;
        let before = moment(now - keep);
        let delete = format!("DELETE FROM {table} WHERE {column} < $1::timestamptz");
        let parameters: [&(dyn ToSql + Sync); 1] = [&before];
        let rows =
            database.limited("delete old rows", database.client().execute(&delete, &parameters)).await?;
        if rows > 0 {
            dropped.push(format!("{rows} rows of {table}"));
        }
    }
    if let Some((transitions, daily)) = keep.transitions.zip(keep.daily) {
        let left = drop_units(database, midnight(month_of(now - transitions.max(daily)))).await?;
        dropped.extend((left > 0).then(|| format!("{left} rows of units")));
    }
    Ok(dropped)
}

/// Drops the units that left before a moment: nothing else is kept of their time.
async fn drop_units(database: &Database, before: Timestamp) -> Result<u64> {
    let (delete, before) = ("DELETE FROM units WHERE removed_at < $1", moment(before));
    let parameters: [&(dyn ToSql + Sync); 1] = [&before];
    database.limited("delete units that left", database.client().execute(delete, &parameters)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_timescale_the_large_tables_are_made_whole_and_then_cut() {
        assert_eq!((statements(None).as_str(), TABLES.matches("PARTITION BY RANGE").count()), (TABLES, 3));
        let made = statements(Some("\"Ext\""));
        assert_eq!(made.matches("PARTITION").count(), 0);
        assert_eq!(made.matches("CREATE TABLE").count(), TABLES.matches("CREATE TABLE").count());
        for (table, column) in BY_MONTH {
            let call =
                format!("\nSELECT \"Ext\".create_hypertable('{table}', '{column}', chunk_time_interval => ");
            assert_eq!(made.matches(&call).count(), 1, "{made}");
            // A key of a hypertable has to contain the column that splits it.
            let (_, table) = made.split_once(&format!("CREATE TABLE {table} (")).unwrap();
            let (_, key) = table.split_once("PRIMARY KEY (").unwrap();
            assert!(key.split_once(')').unwrap().0.split(", ").any(|one| one == column));
        }
    }

    #[test]
    fn a_month_is_named_by_its_year_and_number() {
        let at: Timestamp = serde_json::from_str("\"2026-02-28T23:59:59.999Z\"").unwrap();
        assert_eq!(partition_name("transitions", month_of(at)), "transitions_2026_02");
        assert_eq!(month_of(at + Duration::from_millis(1)).to_string(), "2026-03-01");
    }
}

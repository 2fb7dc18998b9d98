//! How far history is behind, and what it lost.

use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use super::rows::timestamp;
use super::{cursors, kept};
use crate::clock::Timestamp;

/// The most rows of a table that are counted.
const MAX_COUNTED: i64 = 1_000_000;

const DOING: &str = "read the state of history";

#[derive(Debug, Serialize)]
pub struct HistoryStatus {
    pub version: i32,
    /// From when on there are records; `None`: no instance has written yet.
    pub begins: Option<Timestamp>,
    pub tables: Vec<TableStatus>,
    /// How far each source of the engine is written for certain; newer rows may exist.
    pub cursors: Vec<SourceStatus>,
    pub losses: Vec<LossStatus>,
}

#[derive(Debug, Serialize)]
pub struct TableStatus {
    pub table: String,
    pub rows: i64,
    /// `true`: `rows` is an estimate, because there are more than are counted.
    pub is_estimated: bool,
    pub bytes: i64,
}

#[derive(Debug, Serialize)]
pub struct SourceStatus {
    pub source: String,
    /// The oldest cursor of all partitions.
    pub at: Timestamp,
    pub partitions: i64,
}

#[derive(Debug, Serialize)]
pub struct LossStatus {
    pub table: String,
    pub from: Timestamp,
    pub until: Timestamp,
    pub why: String,
}

/// The tables, and how far they are written.
pub async fn status(database: &Database) -> Result<HistoryStatus> {
    let client = database.client();
    let tables = "SELECT p.relname::text, sum(greatest(c.reltuples, 0))::bigint, \
                  sum(pg_total_relation_size(c.oid))::bigint FROM pg_class p \
                  LEFT JOIN pg_inherits i ON i.inhparent = p.oid JOIN pg_class c ON c.oid = coalesce(i.inhrelid, p.oid) \
                  WHERE p.relnamespace = current_schema()::regnamespace AND p.relkind IN ('r', 'p') \
                  AND NOT p.relispartition GROUP BY 1 ORDER BY 1";
    let sources = "SELECT source, min(at), count(*) FROM cursors GROUP BY 1 ORDER BY 1";
    let losses = "SELECT table_name, from_at, until_at, why FROM losses ORDER BY noticed_at DESC LIMIT 100";
    let version = client.query_one("SELECT max(version) FROM meta", &[]);
    let version = database.limited(DOING, version).await?.get(0);
    let mut sizes = Vec::new();
    for row in database.limited(DOING, client.query(tables, &[])).await? {
        sizes.push(size(database, &row).await?);
    }
    let sources = database.limited(DOING, client.query(sources, &[])).await?;
    let losses = database.limited(DOING, client.query(losses, &[])).await?;
    let source =
        |row: &Row| SourceStatus { source: row.get(0), at: timestamp(row.get(1)), partitions: row.get(2) };
    let loss = |row: &Row| LossStatus {
        table: row.get(0),
        from: timestamp(row.get(1)),
        until: timestamp(row.get(2)),
        why: row.get(3),
    };
    Ok(HistoryStatus {
        version,
        begins: kept::begins(database).await?,
        tables: sizes,
        cursors: sources.iter().map(source).collect(),
        losses: losses.iter().map(loss).collect(),
    })
}

/// The size of a table. A planner's estimate is 0 for a table that it has not looked at, so rows are counted, as far as
/// that takes less than a second.
async fn size(database: &Database, row: &Row) -> Result<TableStatus> {
    let (table, estimated): (String, i64) = (row.get(0), row.get(1));
    let count = format!("SELECT count(*) FROM (SELECT FROM \"{table}\" LIMIT {}) counted", MAX_COUNTED + 1);
    let counted: i64 = database.limited(DOING, database.client().query_one(&count, &[])).await?.get(0);
    let is_estimated = counted > MAX_COUNTED;
    let rows = if is_estimated { estimated.max(counted) } else { counted };
    Ok(TableStatus { table, rows, is_estimated, bytes: row.get(2) })
}

/// Sets the cursors of the engine back: running instances read again what it keeps, and write what is missing. Days that
/// are summed stay summed: what history has dropped since then would be missing in them. So does blind time, which the
/// engine may have joined since. Instances notice it when they connect next, which this call makes them do, and name then
/// what left the engine before it was written.
pub async fn rewind(database: &mut Database) -> Result<()> {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
               AND application_name = 'rollcall' AND datname = current_database() AND usename = current_user";
    let parameters: [&(dyn ToSql + Sync); 0] = [];
    database.in_transaction("set the cursors back", cursors::set_back).await?;
    database.limited("end the sessions of instances", database.client().execute(end, &parameters)).await?;
    Ok(())
}

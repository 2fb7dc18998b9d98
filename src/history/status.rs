//! How far history is behind, and what it lost.

use serde::Serialize;
use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use super::rows::timestamp;
use crate::clock::Timestamp;

#[derive(Debug, Serialize)]
pub struct HistoryStatus {
    pub version: i32,
    pub tables: Vec<TableStatus>,
    /// How far each source of the engine is written for certain; newer rows may exist.
    pub cursors: Vec<SourceStatus>,
    pub losses: Vec<LossStatus>,
}

#[derive(Debug, Serialize)]
pub struct TableStatus {
    pub table: String,
    /// The approximate number of rows.
    pub rows: i64,
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
    let tables = "SELECT p.relname::text, greatest(sum(c.reltuples), 0)::bigint, \
                  sum(pg_total_relation_size(c.oid))::bigint FROM pg_class p \
                  LEFT JOIN pg_inherits i ON i.inhparent = p.oid JOIN pg_class c ON c.oid = coalesce(i.inhrelid, p.oid) \
                  WHERE p.relnamespace = current_schema()::regnamespace AND p.relkind IN ('r', 'p') \
                  AND NOT p.relispartition GROUP BY 1 ORDER BY 1";
    let sources = "SELECT source, min(at), count(*) FROM cursors GROUP BY 1 ORDER BY 1";
    let losses = "SELECT table_name, from_at, until_at, why FROM losses ORDER BY noticed_at DESC LIMIT 100";
    let read = database.limited("read the state of history", async {
        let version = client.query_one("SELECT max(version) FROM meta", &[]).await?.get(0);
        let tables = client.query(tables, &[]).await?;
        let sources = client.query(sources, &[]).await?;
        Ok((version, tables, sources, client.query(losses, &[]).await?))
    });
    let (version, tables, sources, losses) = read.await?;
    let table =
        |row: &tokio_postgres::Row| TableStatus { table: row.get(0), rows: row.get(1), bytes: row.get(2) };
    let source = |row: &tokio_postgres::Row| SourceStatus {
        source: row.get(0),
        at: timestamp(row.get(1)),
        partitions: row.get(2),
    };
    let loss = |row: &tokio_postgres::Row| LossStatus {
        table: row.get(0),
        from: timestamp(row.get(1)),
        until: timestamp(row.get(2)),
        why: row.get(3),
    };
    Ok(HistoryStatus {
        version,
        tables: tables.iter().map(table).collect(),
        cursors: sources.iter().map(source).collect(),
        losses: losses.iter().map(loss).collect(),
    })
}

/// Sets the cursors back: running instances read everything in the engine again, and write the missing rows. Instances
/// load cursors when they connect, so this call ends their connections.
pub async fn rewind(database: &mut Database) -> Result<()> {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
               AND application_name = 'rollcall' AND datname = current_database() AND usename = current_user";
    let parameters: [&(dyn ToSql + Sync); 0] = [];
    database
        .in_transaction("set the cursors back", async |transaction| {
            transaction.execute("DELETE FROM cursors", &parameters).await?;
            Ok(())
        })
        .await?;
    database.limited("end the sessions of instances", database.client().execute(end, &parameters)).await?;
    Ok(())
}

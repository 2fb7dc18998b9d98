//! Compares the open records of the engine and of history: what was written too late for its moment, as by a device
//! whose clock is far behind, is found here.
//!
//! # Why a record may end by `unknown`
//! A record that was closed while the database was away for longer than the engine keeps records is there no more. It
//! was open when both sides were compared last, so it ends there; how its unit spent the time since then is a loss.

use std::collections::BTreeMap;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Transaction};

use super::cursors;
use super::database::{Database, Result};
use super::rows::{moment, timestamp};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::store::{OpenPages, Queries, partition_of};

/// The most records that one comparison reads one by one.
const LOOKED_UP: usize = 1000;

/// What differs between the open records of the engine and of history.
#[derive(Default)]
pub(super) struct Differences {
    /// Records that history lacks, or has as open though they are closed.
    pub records: Vec<OfflineRecord>,
    /// Records that are open in history, and that the engine has no more: when they ended is not known.
    pub forgotten: Vec<String>,
    /// Whether there are others, which were not looked up.
    pub has_more: bool,
}

/// Compares the open records of these partitions.
pub(super) async fn differences(
    database: &Database,
    queries: &dyn Queries,
    partitions: &[u16],
) -> Result<Differences> {
    let numbers: Vec<i32> = partitions.iter().map(|one| i32::from(*one)).collect();
    let all = i32::from(queries.partitions());
    let parameters: [&(dyn ToSql + Sync); 2] = [&numbers, &all];
    // Rows of partitions that another engine had, and this one has not, belong to the first one.
    let select = "SELECT record FROM open WHERE partition = ANY ($1) OR (0 = ANY ($1) AND partition >= $2)";
    let rows = database.limited("list open records", database.client().query(select, &parameters)).await?;
    // Read the open records of the engine after those of history: a record that was opened in between is written once
    // more, which is harmless.
    let mut written: BTreeMap<String, bool> = rows.iter().map(|row| (row.get(0), false)).collect();
    let (mut found, mut pages) = (Differences::default(), OpenPages::new(queries));
    let all = queries.partitions();
    while let Some(page) = pages.next().await? {
        for record in page {
            if partitions.binary_search(&partition_of(&record.id.unit, all)).is_err() {
                continue;
            }
            match written.get_mut(&record.id.text()) {
                Some(is_open) => *is_open = true,
                None => found.records.push(record),
            }
        }
    }
    written.retain(|_, is_open| !*is_open);
    found.has_more = written.len() > LOOKED_UP;
    for name in written.into_keys().take(LOOKED_UP) {
        let Ok(id) = name.parse::<RecordId>() else { continue };
        match queries.record(&id).await? {
            Some(record) => found.records.extend(Some(record).filter(|one| one.back_at.is_some())),
            None => found.forgotten.push(name),
        }
    }
    Ok(found)
}

/// The last moments at which forgotten records are known to have been open. `compared`: when all records of history that
/// are open were open in the engine, too.
pub(super) async fn last_known(
    database: &Database,
    forgotten: &[String],
    compared: Option<Timestamp>,
) -> Result<Vec<Timestamp>> {
    let compared = moment(compared.unwrap_or(Timestamp::ZERO));
    let select = "SELECT greatest(detected_at, $2) FROM open WHERE record = ANY ($1)";
    let parameters: [&(dyn ToSql + Sync); 2] = [&forgotten, &compared];
    let rows = database.limited("read records", database.client().query(select, &parameters)).await?;
    Ok(rows.iter().map(|row| timestamp(row.get(0))).collect())
}

/// Closes forgotten records there, by `unknown`.
pub(super) async fn close(
    transaction: &Transaction<'_>,
    forgotten: &[String],
    compared: Option<Timestamp>,
) -> Result<u64, Error> {
    let compared = moment(compared.unwrap_or(Timestamp::ZERO));
    cursors::hold_days(transaction, false).await?;
    let close = "INSERT INTO transitions SELECT greatest(detected_at, $2), 'online', record, kind, unit, labels, cause, \
                 last_seen, offline_since, detected_at, 'unknown' FROM open WHERE record = ANY ($1) \
                 ON CONFLICT DO NOTHING";
    let closed = transaction.execute(close, &[&forgotten, &compared]).await?;
    transaction.execute("DELETE FROM open WHERE record = ANY ($1)", &[&forgotten]).await?;
    Ok(closed)
}

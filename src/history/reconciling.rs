//! Compares the open records of the engine and of history. This finds records that were written after the cursor had
//! passed their moment, as from a device whose clock is far behind.

use std::collections::BTreeMap;

use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use crate::clock::Timestamp;
use crate::presence::{Closing, OfflineRecord, RecordId};
use crate::store::{OpenPages, Queries, partition_of};

/// The most records that one comparison reads one by one.
const LOOKED_UP: usize = 1000;

/// The records of these partitions that history lacks, or has as open though they are closed. A record that the engine
/// no longer has counts as closed now.
pub(super) async fn differences(
    database: &Database,
    queries: &dyn Queries,
    partitions: &[u16],
    now: Timestamp,
) -> Result<Vec<OfflineRecord>> {
    let numbers: Vec<i32> = partitions.iter().map(|one| i32::from(*one)).collect();
    let parameters: [&(dyn ToSql + Sync); 1] = [&numbers];
    let select = "SELECT record FROM open WHERE partition = ANY ($1)";
    let rows = database.limited("list open records", database.client().query(select, &parameters)).await?;
    // Read the open records of the engine after those of history: a record that was opened in between is written once
    // more, which is harmless.
    let mut written: BTreeMap<String, bool> = rows.iter().map(|row| (row.get(0), false)).collect();
    let (mut found, mut pages, all) = (Vec::new(), OpenPages::new(queries), queries.partitions());
    while let Some(page) = pages.next().await? {
        for record in page {
            if partitions.binary_search(&partition_of(&record.id.unit, all)).is_err() {
                continue;
            }
            match written.get_mut(&record.id.text()) {
                Some(is_open) => *is_open = true,
                None => found.push(record),
            }
        }
    }
    for (name, _) in written.into_iter().filter(|(_, is_open)| !is_open).take(LOOKED_UP) {
        let Ok(id) = name.parse::<RecordId>() else { continue };
        match queries.record(&id).await? {
            Some(record) => found.extend(Some(record).filter(|one| one.back_at.is_some())),
            None => found.extend(forgotten(database, &id, now).await?),
        }
    }
    Ok(found)
}

/// A record from history that the engine no longer has, closed now.
async fn forgotten(database: &Database, id: &RecordId, now: Timestamp) -> Result<Option<OfflineRecord>> {
    let name = id.text();
    let parameters: [&(dyn ToSql + Sync); 1] = [&name];
    let select = "SELECT offline_since, detected_at, labels::text FROM transitions \
                  WHERE record = $1 AND transition = 'offline' ORDER BY at DESC LIMIT 1";
    let row = database.limited("read a record", database.client().query_opt(select, &parameters)).await?;
    Ok(row.map(|row| {
        let at = |column: usize| super::rows::timestamp(row.get(column));
        let labels = serde_json::from_str(row.get(2)).unwrap_or_default();
        let open = OfflineRecord::open(id.unit.clone(), id.last_seen, at(0), at(1));
        OfflineRecord { labels, back_at: Some(now), closed_by: Some(Closing::Removed), ..open }
    }))
}

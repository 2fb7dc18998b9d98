//! How far each source is written. The cursors are in the database and change in the transaction of the rows: every row
//! before a cursor exists exactly once, even after a crash.
//!
//! Each partition has its own cursor, so a new owner continues where the last one stopped. An instance reads all of its
//! partitions from the oldest of their cursors on. Two owners at once write the same rows, which is harmless, and a
//! cursor never goes back.

use tokio_postgres::{Client, Error, GenericClient, Transaction};

use super::rows::{moment, timestamp};
use crate::clock::Timestamp;

/// The oldest cursor of these partitions; `None` if one of them has no cursor, and so is read from the beginning.
pub(super) async fn load(
    client: &impl GenericClient,
    source: &str,
    partitions: &[u16],
) -> Result<Option<Timestamp>, Error> {
    let numbers: Vec<i32> = partitions.iter().map(|one| i32::from(*one)).collect();
    let select = "SELECT count(*), min(at) FROM cursors WHERE source = $1 AND partition = ANY ($2)";
    let row = client.query_one(select, &[&source, &numbers]).await?;
    let (count, oldest): (i64, Option<jiff::Timestamp>) = (row.get(0), row.get(1));
    Ok(oldest.filter(|_| count as usize == partitions.len()).map(timestamp))
}

/// The oldest cursor of these partitions; partitions without a cursor are left out.
pub(super) async fn oldest(
    client: &Client,
    source: &str,
    partitions: &[u16],
) -> Result<Option<Timestamp>, Error> {
    let numbers: Vec<i32> = partitions.iter().map(|one| i32::from(*one)).collect();
    let select = "SELECT min(at) FROM cursors WHERE source = $1 AND partition = ANY ($2)";
    let row = client.query_one(select, &[&source, &numbers]).await?;
    Ok(row.get::<_, Option<jiff::Timestamp>>(0).map(timestamp))
}

/// Moves the cursors of these partitions forward.
pub(super) async fn advance(
    transaction: &Transaction<'_>,
    source: &str,
    partitions: &[u16],
    at: Timestamp,
) -> Result<(), Error> {
    let numbers: Vec<i32> = partitions.iter().map(|one| i32::from(*one)).collect();
    let upsert = "INSERT INTO cursors (source, partition, at) SELECT $1::text, p, $3::timestamptz FROM unnest($2::int[]) p ORDER BY p \
                  ON CONFLICT (source, partition) DO UPDATE SET at = excluded.at WHERE cursors.at < excluded.at";
    transaction.execute(upsert, &[&source, &numbers, &moment(at)]).await?;
    Ok(())
}

//! How far each source is written. The cursors are in the database and change in the transaction of the rows: every row
//! before a cursor exists exactly once, even after a crash.
//!
//! Each partition has its own cursor, so a new owner continues where the last one stopped. An instance reads all of its
//! partitions from the oldest of their cursors on. Two owners at once write the same rows, which is harmless, and a
//! cursor never goes back, unless an operator sets it back. Then how far its source was written stays beside it, until
//! losses are named.

use tokio_postgres::{Client, Error, GenericClient, Transaction};

use super::rows::{moment, timestamp};
use super::sources::HistorySource;
use super::{OPEN, OPERATIONS, UNITS};
use crate::clock::Timestamp;

/// Precedes the name of a source that was set back, in the row that says how far it was written before.
const BEFORE: &str = "before ";

/// A transaction that writes transitions shares it, and one that sums a day holds it alone: a record is written before
/// its day is read, or it is late.
const DAYS: &str = "hashtext(current_schema() || ' of days')";

/// Waits for other transactions, and keeps summed days as they are until the end of this one. `alone`: to sum a day.
pub(super) async fn hold_days(transaction: &Transaction<'_>, alone: bool) -> Result<(), Error> {
    let shared = if alone { "" } else { "_shared" };
    transaction.execute(&format!("SELECT pg_advisory_xact_lock{shared}({DAYS})"), &[]).await.map(drop)
}

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

/// How far these partitions are written, also before they were set back: the oldest of their cursors. Partitions without
/// one are left out.
pub(super) async fn oldest(
    client: &Client,
    source: &str,
    partitions: &[u16],
) -> Result<Option<Timestamp>, Error> {
    let numbers: Vec<i32> = partitions.iter().map(|one| i32::from(*one)).collect();
    let select = "SELECT min(at) FROM cursors WHERE source IN ($1, $3::text || $1) AND partition = ANY ($2)";
    let row = client.query_one(select, &[&source, &numbers, &BEFORE]).await?;
    Ok(row.get::<_, Option<jiff::Timestamp>>(0).map(timestamp))
}

/// Sets the cursors of the engine back to its beginning. Sources of which entries may be lost meanwhile keep how far they
/// were written.
pub(super) async fn set_back(transaction: &Transaction<'_>) -> Result<(), Error> {
    let keep = "INSERT INTO cursors SELECT $1::text || source, partition, at FROM cursors WHERE source = ANY ($2) \
                ON CONFLICT (source, partition) DO UPDATE SET at = least(cursors.at, excluded.at)";
    let sources = HistorySource::ALL.map(HistorySource::as_str);
    let mut set_back = [sources.as_slice(), &[OPERATIONS]].concat();
    transaction.execute(keep, &[&BEFORE, &set_back]).await?;
    set_back.push(UNITS);
    transaction.execute("DELETE FROM cursors WHERE source = ANY ($1)", &[&set_back]).await?;
    Ok(())
}

/// Forgets how far a source was written before it was set back: its losses are named.
pub(super) async fn forget_before(client: &Client, source: &str, partitions: &[u16]) -> Result<(), Error> {
    let numbers: Vec<i32> = partitions.iter().map(|one| i32::from(*one)).collect();
    let delete = "DELETE FROM cursors WHERE source = $3::text || $1 AND partition = ANY ($2)";
    client.execute(delete, &[&source, &numbers, &BEFORE]).await?;
    Ok(())
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

/// Lays the cursors out for a fleet that takes the history over and has this number of partitions. A partition of it may
/// have units of any partition of the other fleet, so each continues from the oldest cursor of all of these.
pub(super) async fn lay_out(transaction: &Transaction<'_>, partitions: u16) -> Result<(), Error> {
    let select = "SELECT source, min(at), max(at) FROM cursors GROUP BY 1";
    let stored = transaction.query(select, &[]).await?;
    transaction.execute("DELETE FROM cursors", &[]).await?;
    let (all, fleet): (Vec<u16>, _) = ((0..partitions).collect(), [partitions]);
    for row in stored {
        let source: &str = row.get(0);
        let (oldest, newest): (jiff::Timestamp, jiff::Timestamp) = (row.get(1), row.get(2));
        let is_of_partitions = |one: &str| one == source.strip_prefix(BEFORE).unwrap_or(source);
        let sources = HistorySource::ALL.map(HistorySource::as_str);
        // What belongs to no partition has one cursor, of the number after the last one.
        let (numbers, at) = match sources.into_iter().chain([UNITS, OPEN]).any(is_of_partitions) {
            true => (all.as_slice(), oldest),
            false => (fleet.as_slice(), newest),
        };
        advance(transaction, source, numbers, timestamp(at)).await?;
    }
    Ok(())
}

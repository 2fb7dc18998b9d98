//! Losses: ranges of time whose rows may be missing, because entries left the engine before they were written, or
//! because the database refuses one. Each is a row, a line in the log, a metric and a problem of `/readyz`.

use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use super::rows::moment;
use crate::clock::Timestamp;
use crate::presence::Interval;
use crate::store::{ATTEMPT_BYTES, Cells, Index, MAX_ATTEMPT_BYTES, Table};

/// Writes a loss. Losses of one table that begin at the same moment are one row with all their reasons. Returns `true`
/// for a new loss, `false` for a loss that has grown.
pub(super) async fn write(
    database: &Database,
    table: &str,
    time: Interval,
    now: Timestamp,
    why: &str,
) -> Result<bool> {
    let write = "WITH before AS (SELECT why FROM losses WHERE table_name = $1::text AND from_at = $2::timestamptz) \
                 INSERT INTO losses (table_name, from_at, until_at, noticed_at, why) VALUES ($1, $2, $3, $4, $5::text) \
                 ON CONFLICT (table_name, from_at) DO UPDATE SET noticed_at = excluded.noticed_at, \
                 until_at = greatest(losses.until_at, excluded.until_at), why = CASE \
                 WHEN position(excluded.why IN losses.why) > 0 THEN losses.why \
                 ELSE losses.why || '; ' || excluded.why END \
                 RETURNING NOT EXISTS (SELECT FROM before WHERE position($5 IN before.why) > 0)";
    let (from, to, now) = (moment(time.from), moment(time.to), moment(now));
    let parameters: [&(dyn ToSql + Sync); 5] = [&table, &from, &to, &now, &why];
    let row = database.limited("write a loss", database.client().query_one(write, &parameters)).await?;
    Ok(row.get(0))
}

/// The oldest attempt of the partitions whose record of attempts is full: older attempts may have left it. `None` if no
/// record is full.
pub(super) async fn attempts_left_from(cells: &dyn Cells, partitions: &[u16]) -> Result<Option<Timestamp>> {
    let of = |partition: &u16| crate::store::Cell {
        table: Table::Counts,
        partition: *partition,
        name: ATTEMPT_BYTES.to_owned(),
    };
    let bytes = cells.read_cells(&partitions.iter().map(of).collect::<Vec<_>>()).await?;
    let number = |stored: &Option<Vec<u8>>| str::from_utf8(stored.as_ref()?).ok()?.parse::<usize>().ok();
    let is_full =
        |stored: &Option<Vec<u8>>| number(stored).is_some_and(|bytes| bytes > MAX_ATTEMPT_BYTES / 10 * 9);
    let full = partitions.iter().zip(&bytes).filter(|(_, bytes)| is_full(bytes));
    let mut newest = None;
    for (partition, _) in full {
        let oldest = cells.entries(Index::AttemptsWritten, &[*partition], i64::MAX, 1).await?.pop();
        newest = newest.max(oldest.map(|entry| Timestamp::from_millis(entry.at)));
    }
    Ok(newest)
}

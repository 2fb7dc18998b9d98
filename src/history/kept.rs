//! Since when history has everything that availability needs: older rows were dropped, or had left the engine when
//! history began. How units spent the time before is unknown, and so is the time of losses.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, GenericClient};

use super::cursors;
use super::database::{Database, Result};
use super::rows::{moment, timestamp};
use crate::clock::Timestamp;
use crate::presence::{Interval, Ledger};

/// The tables from which availability is computed.
const TABLES: [&str; 4] = ["transitions", "blind", "pauses", "losses"];

/// Up to when transitions were dropped: no file makes history begin earlier.
const PRUNED: &str = "pruned";

/// The unknown times in a range, `$1` to `$2`; `$3`: [`TABLES`].
const UNKNOWN: &str = "SELECT 'epoch'::timestamptz, since FROM kept WHERE table_name = ANY ($3) AND since > $1 \
                       UNION ALL SELECT from_at, until_at FROM losses \
                       WHERE table_name = 'transitions' AND until_at > $1 AND from_at < $2";

/// Writes that a table has all of its rows since a moment, and maybe not those before.
pub(super) async fn begin(database: &Database, table: &str, since: Timestamp) -> Result<()> {
    let upsert = "INSERT INTO kept (table_name, since) VALUES ($1, $2) \
                  ON CONFLICT (table_name) DO UPDATE SET since = greatest(kept.since, excluded.since)";
    let since = moment(since);
    let parameters: [&(dyn ToSql + Sync); 2] = [&table, &since];
    database.limited("write what is kept", database.client().execute(upsert, &parameters)).await?;
    Ok(())
}

/// Writes that rows of a table before a moment are dropped.
pub(super) async fn prune(database: &Database, table: &str, before: Timestamp) -> Result<()> {
    begin(database, table, before).await?;
    if table == "transitions" { begin(database, PRUNED, before).await } else { Ok(()) }
}

/// Writes since when a history that begins now has records, unless it has begun before: an instance wrote, or a file was
/// written whose records reach up to that moment.
pub(super) async fn begin_anew(database: &Database, since: Timestamp) -> Result<()> {
    let has_begun = "SELECT EXISTS (SELECT FROM cursors) OR EXISTS (SELECT FROM meta WHERE begins_at IS NOT NULL) \
                     AND EXISTS (SELECT FROM transitions WHERE transition = 'online' AND at >= $1)";
    let at = moment(since);
    let parameters: [&(dyn ToSql + Sync); 1] = [&at];
    let read = database.client().query_one(has_begun, &parameters);
    let read = database.limited("read when history begins", read).await?;
    if read.get(0) { Ok(()) } else { begin(database, "transitions", since).await }
}

/// The times of a range for which it is not known how units spent them.
pub(super) async fn unknown(client: &impl GenericClient, range: Interval) -> Result<Ledger, Error> {
    let (from, to) = (moment(range.from), moment(range.to));
    let rows = client.query(UNKNOWN, &[&from, &to, &TABLES.as_slice()]).await?;
    Ok(Ledger::new(
        rows.iter().map(|row| Interval { from: timestamp(row.get(0)), to: timestamp(row.get(1)) }),
    ))
}

/// Since when units can be asked for one by one; `None`: since ever.
pub(super) async fn units_since(database: &Database) -> Result<Option<Timestamp>> {
    let select = "SELECT max(since) FROM kept WHERE table_name = ANY ($1)";
    let tables = TABLES.as_slice();
    let parameters: [&(dyn ToSql + Sync); 1] = [&tables];
    let read = database.client().query_one(select, &parameters);
    let row = database.limited("read what is kept", read).await?;
    Ok(row.get::<_, Option<jiff::Timestamp>>(0).map(timestamp))
}

/// Notes from when on a fleet may have records, unless that is known.
pub(super) async fn begin_with(database: &Database, at: Timestamp) -> Result<()> {
    let (begin, at) = ("UPDATE meta SET begins_at = $1 WHERE begins_at IS NULL", moment(at));
    let parameters: [&(dyn ToSql + Sync); 1] = [&at];
    database.limited("begin history", database.client().execute(begin, &parameters)).await.map(drop)
}

/// From when on history has records: where the fleet, or the oldest records that are kept, begin. `None`: no instance has
/// written yet.
pub async fn begins(database: &Database) -> Result<Option<Timestamp>> {
    let select = "SELECT CASE WHEN begins_at IS NOT NULL THEN greatest(begins_at, \
                  (SELECT since FROM kept WHERE table_name = 'transitions')) END FROM meta ORDER BY version DESC LIMIT 1";
    let row = database.limited("read when history begins", database.client().query_one(select, &[])).await?;
    Ok(row.get::<_, Option<jiff::Timestamp>>(0).map(timestamp))
}

/// Lets history begin with the oldest closing of a file, whose records are all of their time: from its oldest to its
/// newest closing. The time between a file that ends earlier and the begin of history stays unknown, and so does what was
/// pruned. The day with which history began is summed again, because a part of it was unknown.
pub(super) async fn begin_with_file(database: &mut Database, closings: Interval) -> Result<()> {
    let (oldest, newest) = (moment(closings.from), moment(closings.to));
    let earlier = "WITH before AS (SELECT since FROM kept WHERE table_name = 'transitions'), \
                   earlier AS (INSERT INTO kept (table_name, since) \
                   SELECT 'transitions', greatest($1, (SELECT since FROM kept WHERE table_name = $3)) \
                   ON CONFLICT (table_name) DO UPDATE SET since = excluded.since \
                   WHERE kept.since > excluded.since AND kept.since <= $2 RETURNING since), \
                   noted AS (UPDATE meta SET begins_at = least(begins_at, since) FROM earlier) \
                   DELETE FROM daily USING before, earlier WHERE day = before.since::date";
    let parameters: [&(dyn ToSql + Sync); 3] = [&oldest, &newest, &PRUNED];
    let noted = database.in_transaction("note when history begins", async |transaction| {
        // Before the statement: a day that is summed now is read by the begin of now.
        cursors::hold_days(transaction, true).await?;
        transaction.execute(earlier, &parameters).await
    });
    noted.await.map(drop)
}

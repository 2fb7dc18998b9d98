//! The silences of a kind that are on record in a range, to try a policy on them.

use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use super::report::losses;
use super::rows::{moment, timestamp};
use crate::clock::Timestamp;
use crate::presence::{Interval, Kind, Ledger, OfflineRecord, RecordId};

/// What is on record of a kind.
pub struct RecordedSilences {
    /// By when they were detected.
    pub silences: Vec<OfflineRecord>,
    /// Blind time of the kind and of the fleet.
    pub ledger: Ledger,
    /// Times for which records may be missing.
    pub losses: Vec<Interval>,
}

/// Reads the silences of a kind that were detected in a range.
pub async fn recorded(database: &Database, kind: &Kind, range: Interval) -> Result<RecordedSilences> {
    let (from, to, kind) = (moment(range.from), moment(range.to), kind.as_str());
    let client = database.client();
    let select = "SELECT record, labels::text, cause, last_seen, offline_since, detected_at, back_at, closed_by \
                  FROM outages WHERE kind = $1 AND detected_at >= $2 AND detected_at < $3 ORDER BY detected_at, record";
    let parameters: [&(dyn ToSql + Sync); 3] = [&kind, &from, &to];
    let rows = database.limited("read silences", client.query(select, &parameters)).await?;
    let record = |row: &tokio_postgres::Row| -> Option<OfflineRecord> {
        let id: RecordId = row.get::<_, String>(0).parse().ok()?;
        let at = |column: usize| timestamp(row.get(column));
        let word = |text: &str| serde_json::Value::String(text.to_owned());
        let back_at: Option<jiff::Timestamp> = row.get(6);
        let closed_by: Option<String> = row.get(7);
        Some(OfflineRecord {
            labels: serde_json::from_str(row.get(1)).unwrap_or_default(),
            cause: serde_json::from_value(word(row.get(2))).ok()?,
            back_at: back_at.map(timestamp),
            closed_by: closed_by.and_then(|by| serde_json::from_value(word(&by)).ok()),
            ..OfflineRecord::open(id.unit, at(3), at(4), at(5))
        })
    };
    let silences = rows.iter().filter_map(record).collect();
    // A silence may have begun long before its deadline.
    let blind = "SELECT from_at, until_at FROM blind WHERE kind IN ('', $1) AND from_at < $2";
    let parameters: [&(dyn ToSql + Sync); 2] = [&kind, &to];
    let rows = database.limited("read blind time", client.query(blind, &parameters)).await?;
    let time =
        |row: &tokio_postgres::Row| Interval { from: timestamp(row.get(0)), to: timestamp(row.get(1)) };
    let ledger = Ledger::new(rows.iter().map(time));
    let losses = losses(database, range).await?;
    Ok(RecordedSilences { silences, ledger, losses })
}

/// Until when the openings of records are written for certain; `None`: nothing is written yet.
pub async fn written_until(database: &Database) -> Result<Option<Timestamp>> {
    let select = "SELECT min(at) FROM cursors WHERE source = 'opened'";
    let row = database.limited("read a cursor", database.client().query_one(select, &[])).await?;
    Ok(row.get::<_, Option<jiff::Timestamp>>(0).map(timestamp))
}

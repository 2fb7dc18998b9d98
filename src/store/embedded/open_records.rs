//! Finds the open records of units whose facts are lost.

use rusqlite::Connection;

use super::EmbeddedEngine;
use super::stored::text;
use crate::presence::{OfflineRecord, Unit};
use crate::store::Result;

/// The open records of these units, in order.
pub(super) async fn open_records(
    engine: &EmbeddedEngine,
    units: &[Unit],
) -> Result<Vec<Option<OfflineRecord>>> {
    let units = units.to_vec();
    let read = move |database: &Connection| {
        // While no unit is offline there are no records to search.
        if !database.prepare_cached("SELECT 1 FROM records WHERE closed IS NULL LIMIT 1")?.exists([])? {
            return Ok(vec![None; units.len()]);
        }
        let mut select = database.prepare_cached(
            "SELECT record FROM records WHERE id > ?1 || ':' AND id < ?1 || ';' AND closed IS NULL \
             ORDER BY detected DESC",
        )?;
        let mut records = Vec::with_capacity(units.len());
        for unit in &units {
            let mut rows = select.query([unit.to_string()])?;
            let mut found = None;
            while let (None, Some(row)) = (&found, rows.next()?) {
                let record: Option<OfflineRecord> = serde_json::from_str(&text(row, 0)?).ok();
                // The id of another unit may have the same prefix.
                found = record.filter(|record| record.id.unit == *unit);
            }
            records.push(found);
        }
        Ok(records)
    };
    engine.readers.read(read).await
}

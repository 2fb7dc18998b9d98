//! Records that receivers know and the engine has lost: a replica took over that never had them.

use futures_util::future::join_all;

use super::Roll;
use crate::clock::Timestamp;
use crate::presence::{self, Change, Lifecycle, OfflineRecord, Snapshot, Unit};
use crate::store::{EngineError, MAX_STEP, Result};

/// Records that are read at once.
const RECORDS_AT_ONCE: usize = 16;

/// The stored state of an open record that receivers know.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum StoredRecord {
    /// The record as it is stored, open or closed.
    Stored(OfflineRecord),
    /// Nothing: this change writes the record again.
    Lost(Snapshot, Change),
    /// Nothing, and the unit has another open record, which has to close first.
    AnotherIsOpen,
    /// Nothing, and the unit is unknown, unreadable, removed, or of a kind that is not configured.
    NotWatched,
}

impl Roll {
    /// Compares open records that receivers know with the stored ones. Answers in order.
    pub async fn find(&self, records: &[OfflineRecord]) -> Result<Vec<StoredRecord>> {
        let mut found = Vec::with_capacity(records.len());
        for records in records.chunks(MAX_STEP) {
            let units: Vec<Unit> = records.iter().map(|record| record.id.unit.clone()).collect();
            let seen = self.engine.read(&units).await?;
            let pairs: Vec<(&OfflineRecord, Snapshot)> = records.iter().zip(seen).collect();
            for pairs in pairs.chunks(RECORDS_AT_ONCE) {
                let each = join_all(pairs.iter().map(|(record, seen)| self.find_one(record, seen))).await;
                found.extend(each.into_iter().collect::<Result<Vec<StoredRecord>>>()?);
            }
        }
        Ok(found)
    }

    async fn find_one(&self, record: &OfflineRecord, seen: &Snapshot) -> Result<StoredRecord> {
        let open = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
        if let Some(open) = open.filter(|open| open.id == record.id) {
            return Ok(StoredRecord::Stored(open));
        }
        match self.engine.record(&record.id).await {
            Ok(Some(stored)) => return Ok(StoredRecord::Stored(stored)),
            // Another program overwrote it.
            Err(EngineError::Damaged(_)) => return Ok(StoredRecord::NotWatched),
            stored => drop(stored?),
        }
        let Some(rules) = self.rules.of(seen.unit.kind.as_str()) else { return Ok(StoredRecord::NotWatched) };
        Ok(match &seen.facts {
            Some(facts) if matches!(facts.lifecycle, Lifecycle::Offline(_)) => StoredRecord::AnotherIsOpen,
            _ => match presence::restore(seen, record, &rules) {
                Some(change) => StoredRecord::Lost(seen.clone(), change),
                None => StoredRecord::NotWatched,
            },
        })
    }

    /// Applies changes of [`StoredRecord::Lost`]. Answers, in order, which were applied.
    pub async fn write_again(&self, changes: &[(Snapshot, Change)], now: Timestamp) -> Result<Vec<bool>> {
        let mut applied = Vec::with_capacity(changes.len());
        for changes in changes.chunks(MAX_STEP) {
            applied.extend(self.apply(changes).await?);
        }
        self.add_to_index(changes, &applied, now).await?;
        Ok(applied)
    }
}

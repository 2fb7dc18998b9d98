//! The closed records of a message, by how they ended: a unit that is removed is not back.

use crate::presence::{Closing, OfflineRecord};

#[derive(Default)]
pub(super) struct EndedRecords<'a> {
    pub back: Vec<&'a OfflineRecord>,
    /// The episodes of units that flap no more.
    pub stable: Vec<&'a OfflineRecord>,
    /// Closed because their kind was removed.
    pub unwatched: Vec<&'a OfflineRecord>,
    /// Closed because their unit was removed.
    pub removed: Vec<&'a OfflineRecord>,
}

impl<'a> EndedRecords<'a> {
    pub fn of(records: impl IntoIterator<Item = &'a OfflineRecord>) -> EndedRecords<'a> {
        let mut ended = EndedRecords::default();
        for record in records {
            let list = match record.closed_by {
                Some(Closing::Removed) => &mut ended.removed,
                Some(Closing::KindRemoved) => &mut ended.unwatched,
                _ if record.is_flapping() => &mut ended.stable,
                _ => &mut ended.back,
            };
            list.push(record);
        }
        ended
    }

    /// The lists that are not empty, each with its word in a title.
    pub fn into_parts(self) -> impl Iterator<Item = (&'static str, Vec<&'a OfflineRecord>)> {
        let EndedRecords { back, stable, unwatched, removed } = self;
        let parts =
            [("BACK", back), ("STABLE", stable), ("NO LONGER WATCHED", unwatched), ("REMOVED", removed)];
        parts.into_iter().filter(|(_, records)| !records.is_empty())
    }
}

//! The sources of history in the engine: each is read in the order of time, from a cursor on.
//!
//! # Why time is read twice
//! The time of an entry is the moment at which an instance decided it. The entry may be written a little later, when
//! its reader has passed that moment. So each time is read at once, and again when it is [`SETTLE`] ago; only then the
//! cursor passes it. Existing rows are not changed.

use std::sync::Arc;
use std::time::Duration;

use super::database::Result;
use crate::clock::Timestamp;
use crate::presence::{Interval, OfflineRecord, Transition};
use crate::store::{Attempt, AttemptsEntry, Cells, Documents, EntryOrder, Index, IndexRange, Queries};

/// After this time all entries of a moment are written.
pub(super) const SETTLE: Duration = Duration::from_secs(60);
/// The time that a cursor passes at once, at least: each pass changes a row for each partition.
pub(super) const PASS: Duration = Duration::from_secs(10);

/// A source of rows with a cursor of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HistorySource {
    /// Records by when they were opened.
    Opened,
    /// Records by when they were closed.
    Closed,
    /// Attempts to notify receivers.
    Notifications,
}

impl HistorySource {
    pub const ALL: [HistorySource; 3] =
        [HistorySource::Opened, HistorySource::Closed, HistorySource::Notifications];

    pub fn as_str(self) -> &'static str {
        match self {
            HistorySource::Opened => "opened",
            HistorySource::Closed => "closed",
            HistorySource::Notifications => "notifications",
        }
    }

    /// The table of its rows.
    pub fn table(self) -> &'static str {
        match self {
            HistorySource::Opened | HistorySource::Closed => "transitions",
            HistorySource::Notifications => "notifications",
        }
    }
}

pub(super) enum SourcePart {
    Records(Vec<OfflineRecord>),
    Attempts(Vec<Attempt>),
}

impl SourcePart {
    pub fn len(&self) -> usize {
        match self {
            SourcePart::Records(records) => records.len(),
            SourcePart::Attempts(attempts) => attempts.len(),
        }
    }

    /// The moments of its rows.
    pub fn moments(&self) -> impl Iterator<Item = Timestamp> {
        let (records, attempts): (&[OfflineRecord], &[Attempt]) = match self {
            SourcePart::Records(records) => (records, &[]),
            SourcePart::Attempts(attempts) => (&[], attempts),
        };
        let of_record = |one: &OfflineRecord| [Some(one.detected_at), one.back_at].into_iter().flatten();
        records.iter().flat_map(of_record).chain(attempts.iter().map(|one| one.at))
    }

    /// The moment and the name of a row that was refused, with the reason.
    pub fn refused(&self, place: usize, why: &str) -> (Timestamp, String) {
        match self {
            SourcePart::Records(records) => {
                let OfflineRecord { id, detected_at, .. } = &records[place];
                (*detected_at, format!("record {}: {why}", id.text()))
            }
            SourcePart::Attempts(attempts) => {
                let Attempt { at, notification, receiver, number, .. } = &attempts[place];
                (*at, format!("attempt {number} to notify {receiver} of {notification}: {why}"))
            }
        }
    }
}

/// The parts of the engine that history reads.
#[derive(Clone)]
pub(super) struct HistorySources {
    pub queries: Arc<dyn Queries>,
    pub cells: Arc<dyn Cells>,
}

impl HistorySources {
    /// The first part of a source in this time, about `limit` entries, and the moment before which the part is
    /// complete.
    pub async fn read(
        &self,
        source: HistorySource,
        partitions: &[u16],
        time: Interval,
        limit: usize,
    ) -> Result<(SourcePart, Timestamp)> {
        let what = match source {
            HistorySource::Opened => Transition::Offline,
            HistorySource::Closed => Transition::Online,
            HistorySource::Notifications => return self.attempts(partitions, time, limit).await,
        };
        let (records, until) = self.queries.changed_records(what, partitions, time, limit).await?;
        Ok((SourcePart::Records(records), until))
    }

    async fn attempts(
        &self,
        partitions: &[u16],
        time: Interval,
        limit: usize,
    ) -> Result<(SourcePart, Timestamp)> {
        let (from, last) = (time.from.as_millis(), time.to.as_millis() - 1);
        // A cell holds up to about a hundred attempts.
        let mut step = (limit / 100).max(8);
        loop {
            let (index, order) = (Index::AttemptsWritten, EntryOrder::OldestFirst);
            let range = IndexRange { index, from, after: "", until: last, limit: step, order };
            let entries = self.cells.range(&range, partitions).await?;
            // More entries may have the last moment.
            let full = entries.last().filter(|_| entries.len() >= step);
            let until = full.map_or(time.to, |entry| Timestamp::from_millis(entry.at));
            if until == time.from && time.from < time.to {
                step *= 4;
                continue;
            }
            let known = entries.into_iter().filter(|entry| entry.at < until.as_millis());
            let names: Vec<String> = known.map(|entry| entry.name).collect();
            let cells = Documents::new(self.cells.clone()).read::<AttemptsEntry>(&names).await?;
            let attempts = cells.into_iter().flat_map(|cell| cell.value.unwrap_or_default().0);
            return Ok((SourcePart::Attempts(attempts.collect()), until));
        }
    }
}

//! Facts and records, read only, and the reads that keep the mirror true.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use super::table::UnitTables;
use super::{Cells, Result};
use crate::clock::Timestamp;
use crate::presence::{FleetCount, Interval, OfflineRecord, RecordId, Snapshot, Transition, Unit};

/// Facts and records, read only.
#[async_trait]
pub trait Queries: Cells {
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>>;

    /// Up to `limit` records, newest detection first, strictly before `before` (time of detection, id). `open`:
    /// only open records.
    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>>;

    /// The first records of these partitions that were opened, or closed, in this time: about `limit`, unordered, and
    /// the moment before which there are no others. Closed records are found by their end times,
    /// whichever clock gave them.
    async fn changed_records(
        &self,
        what: Transition,
        partitions: &[u16],
        time: Interval,
        limit: usize,
    ) -> Result<(Vec<OfflineRecord>, Timestamp)>;

    /// The records of one unit, newest first, up to `limit`.
    async fn history(&self, unit: &Unit, limit: usize) -> Result<History>;

    /// The number of units with an open record that was detected since then, and the number of watched units without
    /// one.
    async fn count_since(&self, since: Timestamp) -> Result<FleetCount>;

    /// The id of the fleet's data. It changes when the engine loses all or a part of the data; earlier reads are
    /// outdated then.
    fn fleet_id(&self) -> String;

    /// The units in the memory of this process, if the engine keeps them there.
    fn unit_tables(&self) -> Option<Arc<UnitTables>> {
        None
    }

    /// The units on one page of a partition; every unit of the fleet is on exactly one page.
    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>>;

    /// Cuts the pages of a partition into steps of `length`, and answers the steps that hold units, in order.
    async fn occupied(&self, partition: u16, length: u32) -> Result<Vec<Range<u32>>>;

    /// The values of the expiry keys of units (`<kind>:<unit>`) of a partition, in order.
    async fn alive(&self, partition: u16, names: &[&str]) -> Result<Vec<Option<Timestamp>>>;

    /// Removes a bounded number of records of these partitions that were closed before `before`. Answers how many.
    async fn forget_records(&self, partitions: &[u16], before: Timestamp) -> Result<usize>;
}

/// Records of one unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub records: Vec<OfflineRecord>,
    /// Whether there are no older records. An engine without an index by unit checks a bounded number of records.
    pub is_complete: bool,
}

/// The most records of a page of open records.
const OPEN_PAGE: usize = 1000;

/// All open records, newest detection first, a page at a time.
pub struct OpenPages<'a> {
    queries: &'a dyn Queries,
    before: Option<(Timestamp, RecordId)>,
    is_last: bool,
}

impl OpenPages<'_> {
    pub fn new(queries: &dyn Queries) -> OpenPages<'_> {
        OpenPages { queries, before: None, is_last: false }
    }

    pub async fn next(&mut self) -> Result<Option<Vec<OfflineRecord>>> {
        if self.is_last {
            return Ok(None);
        }
        let page = self.queries.records(true, self.before.clone(), OPEN_PAGE).await?;
        self.is_last = page.len() < OPEN_PAGE;
        self.before = page.last().map(|last| (last.detected_at, last.id.clone()));
        Ok(Some(page))
    }

    pub async fn has_more(&self) -> Result<bool> {
        Ok(!self.is_last && !self.queries.records(true, self.before.clone(), 1).await?.is_empty())
    }
}

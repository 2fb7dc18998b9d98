//! Facts and records, read only, and the reads that keep the mirror true.

use async_trait::async_trait;

use super::{Layout, Result};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId, Snapshot, Unit};

/// Facts and records, read only.
#[async_trait]
pub trait Queries: Layout {
    /// The record of one silence.
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>>;

    /// Up to `limit` records, newest detection first, strictly before `before` (time of detection, id). `open`:
    /// only open records.
    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>>;

    /// The id of the fleet. It changes when the engine loses its data, and earlier reads are then outdated.
    fn fleet_id(&self) -> String;

    /// The units on one page of a partition; every unit of the fleet is on exactly one page.
    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>>;

    /// The values of the expiry keys of units (`<kind>:<unit>`) of a partition, in order.
    async fn alive(&self, partition: u16, names: &[&str]) -> Result<Vec<Option<Timestamp>>>;

    /// Notes for the owners of their partitions that another instance changed these units.
    async fn note(&self, units: &[&Unit]) -> Result<()>;

    /// Removes a bounded number of notes from these partitions and answers them: pages that another instance changed.
    async fn noted(&self, partitions: &[u16]) -> Result<Vec<(u16, u32)>>;

    /// Removes a bounded number of records of these partitions that were closed before `before`. Answers how many.
    async fn forget_records(&self, partitions: &[u16], before: Timestamp) -> Result<usize>;
}

//! Facts and records to look at, and what the mirror is compared with.

use async_trait::async_trait;

use super::{Layout, Result};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId, Snapshot, Unit};

/// Facts and records, to look at.
#[async_trait]
pub trait Queries: Layout {
    /// The record of one silence.
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>>;

    /// Records by the time of detection, newest first, those strictly before `before` (time of
    /// detection, id); at most `limit`. `open`: only open ones.
    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>>;

    /// The id of the fleet: another one after the engine lost its data. What was read before that no longer holds.
    fn fleet_id(&self) -> String;

    /// The units on one page of a partition, as they are now; every unit of the fleet is on
    /// exactly one page.
    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>>;

    /// What the expiry keys of these units of a partition hold, in order; each is named
    /// `<kind>:<unit>`.
    async fn alive(&self, partition: u16, names: &[&str]) -> Result<Vec<Option<Timestamp>>>;

    /// Notes for the owners of their partitions that these units were changed by another instance.
    async fn note(&self, units: &[&Unit]) -> Result<()>;

    /// Takes what was noted for these partitions, a bounded number: pages on which another
    /// instance changed something.
    async fn noted(&self, partitions: &[u16]) -> Result<Vec<(u16, u32)>>;

    /// Removes records of these partitions that were closed before `before`, a bounded number; answers
    /// how many.
    async fn forget_records(&self, partitions: &[u16], before: Timestamp) -> Result<usize>;
}

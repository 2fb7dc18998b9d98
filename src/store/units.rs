//! The state of units: expiry keys, the deadline index, facts and records.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;

use super::{DeadlineCheck, Result};
use crate::clock::Timestamp;
use crate::presence::{Change, OfflineRecord, Snapshot, Unit};

/// A heartbeat of a unit that is expected to be present, ready to be written.
#[derive(Clone, Copy, Debug)]
pub struct Refresh<'a> {
    /// Who.
    pub unit: &'a Unit,
    /// When it was heard.
    pub at: Timestamp,
    /// How long its key stands from now.
    pub ttl: Duration,
    /// The look that it needs at the latest; an earlier one stays.
    pub look: Timestamp,
}

/// The state of units.
#[async_trait]
pub trait UnitStore: Send + Sync {
    /// Writes heartbeats of units that are present. Answers, in order, whether each was applied;
    /// one that was not (there is no key, or it holds a newer heartbeat) has to be decided upon.
    /// Safe to repeat.
    async fn refresh(&self, beats: &[Refresh<'_>]) -> Result<Vec<bool>>;

    /// Reads units as they are now, in order. Reading an expiry key that is overdue makes it
    /// expire.
    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>>;

    /// Applies each change in one step if its unit is still as in its snapshot and, for a change
    /// that takes the unit out of the index, if it was still in there. Answers, in order, which
    /// were applied. A record of a change goes into the outbox in the same step.
    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>>;

    /// Cuts units into those that are looked at together, as suits the engine.
    fn check_batches(&self, units: &[Unit]) -> Vec<Vec<Unit>>;

    /// Reads units that may be due, at least one and together one of [`UnitStore::check_batches`], so that they can be
    /// changed if they are still the same. Reading an expiry key that is overdue makes it expire.
    async fn check_deadlines(&self, units: &[Unit]) -> Result<DeadlineCheck<'_>>;

    /// The open records of units whose facts do not say, in order: for when these are lost. What cannot be said of
    /// a record is as its id says.
    async fn open_records(&self, units: &[Unit]) -> Result<Vec<Option<OfflineRecord>>>;

    /// Has the next look of units that are in the index be at `until`, whatever else is stored of them.
    async fn put_off(&self, units: &[Unit], until: Timestamp) -> Result<()>;

    /// Puts units into the index that are known and not in there, for a look at `at`.
    async fn put_in(&self, units: &[Unit], at: Timestamp) -> Result<()>;

    /// How many partitions the units are spread over.
    fn partitions(&self) -> u16;

    /// Units of a partition whose next look is after `after`, where that is given, and at or before `until`: up to
    /// `limit` of them after the first `skip`, unordered.
    async fn due(
        &self,
        partition: u16,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>>;

    /// The earliest next look of each partition, after the moment that `after` holds for it, and the name of the unit
    /// that it is for.
    async fn first_checks(&self, after: &HashMap<u16, Timestamp>)
    -> Result<Vec<Option<(Timestamp, String)>>>;
}

//! The state of units: expiry keys, the deadline index, facts and records.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;

use tokio::sync::mpsc;

use super::{Hint, Layout, PendingCheck, Result};
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
    /// The latest moment for its next check; an earlier check stays.
    pub check_by: Timestamp,
}

/// The state of units.
#[async_trait]
pub trait UnitStore: Layout {
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

    /// Reads units that may be due, so that they can be changed if they are still the same. The engine cuts them
    /// into batches as suits it and answers with one check for each; a check begins when it is polled. Reading an
    /// expiry key that is overdue makes it expire.
    fn check_deadlines<'a>(&'a self, units: &[Unit]) -> Vec<PendingCheck<'a>>;

    /// The open records of units whose facts do not say, in order: for when these are lost. What cannot be said of
    /// a record is as its id says.
    async fn open_records(&self, units: &[Unit]) -> Result<Vec<Option<OfflineRecord>>>;

    /// Moves the next check of units that are in the index to `until`, whatever else is stored of them.
    async fn put_off(&self, units: &[Unit], until: Timestamp) -> Result<()>;

    /// Puts known units that are not in the index there, with their next check at `at`.
    async fn put_in(&self, units: &[Unit], at: Timestamp) -> Result<()>;

    /// Units of a partition whose next check is after `after`, where that is given, and at or before `until`: up to
    /// `limit` of them after the first `skip`, unordered.
    async fn due(
        &self,
        partition: u16,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>>;

    /// The earliest next check of each partition, after the moment that `after` holds for it, and the name of its
    /// unit.
    async fn first_checks(&self, after: &HashMap<u16, Timestamp>)
    -> Result<Vec<Option<(Timestamp, String)>>>;

    /// Sends hints that units may be due, until the receiver is dropped. Hints may be lost, late or wrong. An error
    /// ends it; hints of the time after that are lost.
    async fn listen(&self, hints: mpsc::Sender<Hint>) -> Result<()>;

    /// Very many units are due while this is on. An engine that serves one request after the other puts their records
    /// before notifications, before reads for the mirror and before hints, which are of no use meanwhile.
    fn put_records_first(&self, _is_on: bool) {}

    /// The time of a request and its answer on the network, where that is long beside the work of the engine; else
    /// zero.
    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}

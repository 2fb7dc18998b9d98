//! The state of units: expiry keys, the deadline index, facts and records.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use tokio::sync::mpsc;

use super::{Hint, Layout, PendingCheck, Result};
use crate::clock::Timestamp;
use crate::presence::{BrokerName, Change, OfflineRecord, Snapshot, Unit};

/// A heartbeat of a unit that should be present, ready to be written.
#[derive(Clone, Copy, Debug)]
pub struct Refresh<'a> {
    pub unit: &'a Unit,
    pub at: Timestamp,
    /// When it came, for its [`Rhythm`](crate::presence::Rhythm).
    pub arrived: Timestamp,
    /// The broker that delivered it, if its kind is heard at several.
    pub broker: Option<&'a BrokerName>,
    /// The TTL of the unit's expiry key.
    pub ttl: Duration,
    /// The latest moment for the unit's next check; an earlier check stays.
    pub check_by: Timestamp,
    /// Since when its kind is heard without a break, for its [`Rhythm`](crate::presence::Rhythm); `None`: it is
    /// unknown whether the kind is heard now.
    pub unbroken: Option<Timestamp>,
    /// Written before this moment or not at all. It may overwrite a newer heartbeat until that is written again: a
    /// check that reads it in between must not find the unit overdue.
    pub until: Instant,
}

/// The heartbeat that an expiry key held before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub at: Timestamp,
    /// Whether it came by another broker than the heartbeat that replaces it.
    pub is_elsewhere: bool,
}

/// Whether the deadline index has a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexState {
    Present,
    Absent,
}

/// The number of heartbeats in one call of [`UnitStore::refresh`] on one server.
const REFRESH_STEP: usize = 200;

/// The state of units.
#[async_trait]
pub trait UnitStore: Layout {
    /// Writes heartbeats of present units. Answers, in order, the heartbeat that the key held before. A heartbeat
    /// without an answer was not applied, because there is no key: the rules decide it. Safe to repeat.
    async fn refresh(&self, heartbeats: &[Refresh<'_>]) -> Result<Vec<Option<Replaced>>>;

    /// The number of heartbeats in one call of [`UnitStore::refresh`], so that the engine works on them while the
    /// caller prepares the next.
    fn refresh_step(&self) -> usize {
        REFRESH_STEP
    }

    /// Reads units, in order. An overdue expiry key expires when it is read.
    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>>;

    /// Applies each change in one step if its unit is unchanged since its snapshot and, for a change that takes the
    /// unit out of the index, if the index still has it. The same step writes the record of a change into the outbox.
    /// Answers, in order, which changes were applied.
    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>>;

    /// Reads units that may be due, for changes that apply if the units are unchanged. The engine divides them into
    /// batches and answers with one check for each; a check begins when it is polled. An overdue expiry key expires
    /// when it is read.
    fn check_deadlines<'a>(&'a self, units: &[Unit]) -> Vec<PendingCheck<'a>>;

    /// Like [`UnitStore::check_deadlines`], for units that were announced as gone and still have expiry keys.
    fn check_present<'a>(&'a self, units: &[Unit]) -> Vec<PendingCheck<'a>> {
        self.check_deadlines(units)
    }

    /// The open records of units whose facts are lost, in order. The id of the record replaces the fields that no
    /// other stored value has.
    async fn open_records(&self, units: &[Unit]) -> Result<Vec<Option<OfflineRecord>>>;

    /// Sets the next check of the known units among these that are in the index (or are not, by `which`), also for
    /// units with unreadable facts.
    async fn set_next_check(&self, units: &[Unit], at: Timestamp, which: IndexState) -> Result<()>;

    /// Up to `limit` units of a partition after the first `skip`, unordered, whose next check is after `after`, if
    /// given, and not after `until`.
    async fn due(
        &self,
        partition: u16,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>>;

    /// The earliest next check of each partition after its moment in `after`, and the name of its unit.
    async fn first_checks(&self, after: &HashMap<u16, Timestamp>)
    -> Result<Vec<Option<(Timestamp, String)>>>;

    /// Sends hints that units may be due, until the receiver is dropped. Hints may be lost, late or wrong. Sends no
    /// hints after an error.
    async fn listen(&self, hints: mpsc::Sender<Hint>) -> Result<()>;

    /// Begins a storm of a partition: very many of its units are due. A server that serves one request after the
    /// other then writes their records before notifications and reads for the mirror. It sends no hints, which are
    /// useless meanwhile.
    fn put_records_first(&self, _partition: u16) {}

    /// Ends the storms of all servers without a partition for which `lasts` is true.
    fn end_storms(&self, _lasts: &(dyn Fn(u16) -> bool + Sync)) {}

    /// The time of a request and its answer on the network, if it is long compared with the work of the engine;
    /// otherwise zero.
    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}

//! The instances that are there, and the clock that they share.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Layout, Result};
use crate::clock::Timestamp;

/// What an instance says of its own, by the name of the kind.
pub type Counts = BTreeMap<String, Count>;

/// What an instance says of its own units of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// How many there are.
    pub units: u64,
    /// The shortest timeout that one of them declared or was given (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortest_ms: Option<u64>,
}

/// What a renewed lease comes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attendance {
    /// The time of the fleet: the engine's clock, unless that went back. It never does.
    pub now: Timestamp,
    /// What the engine's own clock told.
    pub engine_clock: Timestamp,
    /// The instances whose lease stands, in order, the caller included.
    pub instances: Vec<String>,
    /// When the first lease of another ends, unless it is renewed.
    pub first_end: Option<Timestamp>,
}

/// The instances that are there, and the clock that they share.
#[async_trait]
pub trait Roster: Layout {
    /// Takes or renews the lease of an instance. If it had none, the others are told.
    ///
    /// Leases are measured by the engine's clock, so that instances agree whose stand. Where that clock
    /// went back, the time of the fleet goes on from where it was; `heard`, how far Rollcall has heard,
    /// is never after it. Time in which no instance could renew, because the engine stood still, is no time of
    /// any lease.
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<Attendance>;

    /// Gives up the lease of an instance and tells the others.
    async fn resign(&self, instance: &str) -> Result<()>;

    /// Says where an instance is asked for metrics, for as long as a lease is; to be said again with
    /// each renewal.
    async fn announce(&self, instance: &str, address: &str, lease: Duration) -> Result<()>;

    /// Where instances are asked for metrics, in order; `None`: it did not say lately.
    async fn addresses(&self, instances: &[String]) -> Result<Vec<Option<String>>>;

    /// Says how many units an instance counts of its own, for as long as that holds.
    async fn tell_counts(&self, instance: &str, counts: &Counts, holds: Duration) -> Result<()>;

    /// What instances said lately that they count. What cannot be read was not said.
    async fn counts(&self, instances: &[String]) -> Result<Vec<Counts>>;

    /// Ends when an instance came or went, as far as that is told at all: a caller renews from time to time as
    /// well.
    async fn changed(&self);
}

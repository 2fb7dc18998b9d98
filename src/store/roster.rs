//! The live instances, and the clock that they share.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Layout, Result};
use crate::clock::Timestamp;

/// The counts of an instance's own units, by the name of the kind.
pub type KindCounts = BTreeMap<String, KindCount>;

/// The count of an instance's own units of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindCount {
    pub units: u64,
    /// The shortest timeout (ms) that any of the units declared or was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortest_ms: Option<u64>,
}

/// The answer to the renewal of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalReply {
    /// The time of the fleet: the engine's clock, unless that clock went back. The time of the fleet never goes back.
    pub now: Timestamp,
    pub engine_clock: Timestamp,
    /// How far the engine's clock is ahead of the time of the fleet, because the clock has stepped and the step is not
    /// accepted yet: see `clock/steps.rs`.
    pub ahead: Option<Duration>,
    /// The instances with a valid lease, in order, the caller included.
    pub instances: Vec<String>,
    /// The caller had no lease before, or its lease had ended: other instances may have taken its partitions meanwhile.
    pub is_new: bool,
    /// When the first lease of another instance ends.
    pub first_end: Option<Timestamp>,
}

/// The live instances, and the clock that they share.
#[async_trait]
pub trait Roster: Layout {
    /// Takes or renews the lease of an instance. The other instances are notified of a new lease.
    ///
    /// Leases end by the engine's clock, so that all instances agree on the valid ones. If that clock goes back,
    /// the time of the fleet goes on from its last value; it is never before `heard`, up to when Rollcall has
    /// heard. Time in which no instance could renew, because the engine stood still, does not count for any lease.
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<RenewalReply>;

    /// Gives up the lease of an instance, and notifies the other instances.
    async fn resign(&self, instance: &str) -> Result<()>;

    /// Announces the address of an instance for metrics, for the length of a lease; each renewal repeats it.
    async fn announce(&self, instance: &str, address: &str, lease: Duration) -> Result<()>;

    /// The addresses of instances for metrics, in order; `None` for an instance that did not announce its address
    /// lately.
    async fn addresses(&self, instances: &[String]) -> Result<Vec<Option<String>>>;

    /// Announces the counts of an instance's own units; they are valid for `ttl`.
    async fn announce_counts(&self, instance: &str, counts: &KindCounts, ttl: Duration) -> Result<()>;

    /// The valid counts of instances; unreadable counts are left out.
    async fn counts(&self, instances: &[String]) -> Result<Vec<KindCounts>>;

    /// The sum of the steps of the clock that were accepted, as of the last renewal: see `clock/steps.rs`.
    fn stepped(&self) -> Duration;

    /// Ends when an instance starts or stops. The notification may be lost, so a caller also renews from time to
    /// time.
    async fn changed(&self);
}

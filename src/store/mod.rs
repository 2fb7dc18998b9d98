//! The state of the fleet, behind small traits cut by reader.
//!
//! | trait | read by | what it holds |
//! |---|---|---|
//! | [`UnitStore`] | intake, expiry | expiry keys, the deadline index, facts, records |
//! | [`HearingStore`] | intake, expiry | how far Rollcall has heard; the ledger of blind intervals |
//! | [`AlertStore`] | alerting | the outbox, groups, deliveries, dead letters |
//! | [`DataStore`] | intake, http | the newest values of what units tell of themselves |
//! | [`Queries`] | http, the mirror | the same facts and records, read only |
//! | [`Roster`] | every loop, through [`Ownership`](crate::fleet::Ownership) | the live instances, and the clock that they share |
//! | [`Examine`] | the examination | the condition of the engine |
//!
//! [`Roll`](crate::fleet::Roll) stands above them: it reads snapshots, lets `presence` decide and applies the changes.
//!
//! # The promises
//! Each is the name of a case of the conformance suite, which every engine passes.
//!
//!  1. Recorded means applied; what a crash of the engine loses becomes blind time, and no
//!     transition is lost.
//!  2. Each silence is taken by exactly one caller.
//!  3. Taking writes record and outbox in one step.
//!  4. An older or repeated heartbeat never moves a deadline back.
//!  5. A return closes the record and is notified once, to the receivers that were notified of the silence.
//!  6. A dead holder's lease comes back.
//!  7. Joining a group is idempotent, also after it was sent, and order-free.
//!  8. Delivered is never leased again.
//!  9. With every hint lost, ticks alone suffice; with the sweep held off, hints alone suffice.
//! 10. Time is always an argument.
//! 11. Blind time is not silence.
//! 12. A removed unit is never reported.
//! 13. A changed timeout moves the deadline at once.
//! 14. A deadline at exactly now is not yet passed.
//! 15. A lost reply or a crash between any two commands leaves nothing that the next heartbeat,
//!     deadline check or walk does not repair.

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::presence::Unit;
pub use crate::telemetry::Backlog;
use crate::telemetry::EngineWarning;

mod alerts;
pub mod data;
mod deadline_check;
pub mod embedded;
pub mod encoding;
mod error;
pub mod hearing;
mod json;
pub mod migration;
mod notification;
pub mod partition;
mod queries;
pub mod redis;
pub mod repair;
pub mod roster;
pub mod table;
mod told_members;
mod units;
mod untold;

pub use crate::presence::{Gap, Member, Pace, Subscription};
pub use alerts::{
    AlertStore, Capacity, DeadLetter, Delivery, Discarded, Entry, Group, Join, Joined, OutboxEvent, Position,
};
pub use data::{Catalogue, DataStore, Metric, MetricType, Reading, Value};
pub use deadline_check::{CheckGuard, DeadlineCheck, PendingCheck};
pub use error::{EngineError, Result};
pub use hearing::{Advance, HearingStore};
pub use notification::{delivery_of_any, notification_of};
use partition::{crc16, name_bytes};
pub use partition::{partition_of, partition_of_group};
pub use queries::Queries;
pub use roster::{Attendance, Roster};
pub use units::{Refresh, UnitStore};

/// The most units of one partition that one step of an engine takes on.
pub const LARGEST_STEP: usize = 500;

/// What is wrong with an engine that works all the same, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its name, for logs and metrics.
    pub name: EngineWarning,
    /// What is wrong and what to do.
    pub text: String,
}

/// What a look at an engine found on which the service may run one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it is, such as `Redis 7.0.15`.
    pub server: String,
    /// What is wrong with it.
    pub warnings: Vec<Warning>,
}

/// A reason for deadline checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The unit's expiry key has expired.
    Expired(Unit),
    /// Hints may have been lost: every due unit needs a check.
    Doubt,
}

/// How the fleet is cut; fixed for the life of a fleet.
pub trait Layout: Send + Sync {
    /// How many partitions the units are spread over.
    fn partitions(&self) -> u16;

    /// Into how many pages a partition is cut for [`Queries::walk`] and [`DataStore::walk_values`].
    fn pages(&self) -> u32;
}

/// The condition of an engine.
#[async_trait]
pub trait Examine: Send + Sync {
    /// Checks the engine's settings and condition, and how far its clock is from `now`. An error means that the
    /// engine cannot work at all.
    async fn examine(&self, now: Timestamp) -> Result<Vec<Warning>>;

    /// Ends when the engine meets a fault that an examination repairs.
    async fn wants_examination(&self);
}

/// The traits that the roll needs of a store.
pub trait FleetStore: UnitStore + HearingStore + DataStore + Queries {}

impl<T: UnitStore + HearingStore + DataStore + Queries> FleetStore for T {}

/// A whole engine. Only the assembly holds one: each loop takes the traits that it reads.
pub trait Engine: FleetStore + AlertStore + Roster + Examine {}

impl<T: FleetStore + AlertStore + Roster + Examine> Engine for T {}

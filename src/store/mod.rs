//! The state of the fleet, behind small traits cut by reader.
//!
//! | trait | read by | content |
//! |---|---|---|
//! | [`UnitStore`] | the roll, expiry, http, alerting | expiry keys, the deadline index, facts, records |
//! | [`HearingStore`] | the roll, alerting | how far Rollcall has heard; the ledger of blind intervals |
//! | [`OutboxStore`] | alerting | the outbox: transitions that have not joined their groups yet |
//! | [`Cells`] | [`Documents`], [`StoredGroups`], [`StoredDeliveries`], [`StoredTimers`] | everything that is decided above the engines, such as groups, deliveries, timers and alert silences: cells, and indexes of their names |
//! | [`DataStore`] | the roll, http | the newest values of the units' metrics |
//! | [`Queries`] | http, the mirror, alerting | the same facts and records, in pages; marks of changes and the removal of old records |
//! | [`Roster`] | every loop, through [`Ownership`](crate::fleet::Ownership) | the live instances, and the clock that they share |
//! | [`Examine`] | the examination | the condition of the engine |
//!
//! [`Roll`](crate::fleet::Roll) uses them: it reads snapshots, lets `presence` decide and applies the
//! changes.
//!
//! # The promises
//! Every engine passes the conformance suite, which has cases `promise_NN_…` for all promises but 9 and 20; these
//! name their tests.
//!
//!  1. A recorded heartbeat is applied. Heartbeats that a crash of the engine loses become blind time, and no transition
//!     is lost.
//!  2. Exactly one caller opens the record of each silence.
//!  3. Opening writes the record and the outbox entry in one step.
//!  4. An older or repeated heartbeat never moves a deadline back.
//!  5. A return closes the record. The receivers of the silence are notified of it once.
//!  6. A delivery whose holder dies is leased again.
//!  7. Joining a group is idempotent, also after the notification was sent, and independent of order.
//!  8. A delivered notification is never leased again.
//!  9. Without hints the sweep finds every due unit; without the sweep the hints do (`tests/service/main.rs`).
//! 10. Time is always an argument.
//! 11. Blind time is not a silence.
//! 12. A removed unit is never reported.
//! 13. A changed timeout moves the deadline at once.
//! 14. A deadline at exactly now is not yet passed.
//! 15. A lost reply or a crash between any two commands leaves nothing that the next heartbeat,
//!     deadline check or walk does not repair.
//! 16. A timer fires once. A crash between any two commands leaves it waiting or fired, never both and never neither.
//! 17. A timer whose cancellation was answered with yes never fires.
//! 18. A change of a timer that was answered with yes moves it.
//! 19. A timer that is delivered at most once is never attempted twice.
//! 20. An unreadable value stops only what needs it (`tests/engines/broken/`).

use std::ops::Range;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::presence::Unit;
pub use crate::telemetry::Backlog;
use crate::telemetry::EngineWarning;

mod again;
mod attempts;
mod audit;
mod cell_tables;
mod cells;
mod change_set;
pub mod data;
mod deadline_check;
mod deliveries;
mod delivery;
mod documents;
pub mod embedded;
pub mod encoding;
mod error;
mod groups;
pub mod hearing;
mod json;
mod lane;
mod member_names;
mod membership;
pub mod migration;
mod notes;
mod notification;
mod outbox;
pub mod partition;
mod queries;
mod receiver_list;
mod receiver_name;
pub mod redis;
pub mod repair;
pub mod roster;
pub mod table;
mod timers;
mod units;
mod unnotified;

pub use crate::presence::{Gap, Pace, ShareMember, Subscription, TimerCancelled, TimerRegistered};
pub use crate::routing::{Destination, Destinations, Escalation, FollowUps};
pub use attempts::{
    ATTEMPT_BYTES, Attempt, AttemptEnd, AttemptMade, AttemptResult, AttemptsEntry, CellsOfWord, EndedLease,
    MAX_ATTEMPT_BYTES, on_record, word_of_notification, word_of_record,
};
pub use audit::{AuditEntry, Audited, MAX_AUDITED};
pub use cell_tables::{Index, Table};
pub use cells::{
    Cell, CellCursor, CellPage, Cells, EntryOrder, IndexEntry, IndexRange, NameRange, Unreadable,
};
pub use change_set::{ChangePart, ChangeSet, What};
pub use data::{Catalogue, DataStore, Metric, MetricType, MetricValue, Reading};
pub use deadline_check::{CheckGuard, DeadlineCheck, PendingCheck};
pub use deliveries::{DeliveryEngine, Discarded, StoredDeliveries};
pub use delivery::{
    ACKNOWLEDGEMENT, DIGEST, DeadLetter, Delivery, Group, GroupContext, MeantFor, WaitingDelivery,
    WaitingPage, is_digest,
};
pub use documents::{Document, Documents, TableValue};
pub use error::{EngineError, MAX_CHANGES, Result};
pub use groups::{Capacity, GroupEngine, Join, JoinResult, NotifiedSilence, StoredGroups};
pub use hearing::{Advance, HearingStore};
pub use membership::Membership;
pub use notes::{note, noted_pages, remove_notes};
pub use notification::{delivery_of_any, notification_id, notification_of};
pub use outbox::{DataLoss, OutboxEntry, OutboxEvent, OutboxStore, Position};
use partition::crc16;
pub use partition::{by_partition, partition_of, partition_of_group};
pub use queries::{History, OpenPages, Queries};
pub use receiver_name::ReceiverName;
pub use roster::{RenewalReply, Roster};
use timers::firing_of;
pub use timers::{
    FindTimers, Fired, StoredTimers, TimerCapacity, TimerClasses, TimerEngine, TimerPage, TimerPosition,
    group_of_timer, timer_and_due, timer_of_group,
};
pub use units::{IndexState, Refresh, Replaced, UnitStore};

/// The most items of one step of an engine.
pub const MAX_STEP: usize = 500;

/// A fault of an engine that still works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The name of the fault in logs and metrics.
    pub name: EngineWarning,
    /// The fault, and advice for the operator.
    pub text: String,
}

/// The condition of an engine that the service has not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The product and its version, such as `Redis 7.0.15`.
    pub server: String,
    /// The warnings of the engine as a whole, if it has several servers.
    pub warnings: Vec<Warning>,
}

/// The condition of one of several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCondition {
    pub address: String,
    /// Its role, version and settings, or why it cannot be used.
    pub state: std::result::Result<String, String>,
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

/// How the fleet is divided. The partitions are fixed for the life of a fleet.
pub trait Layout: Send + Sync {
    fn partitions(&self) -> u16;

    /// How many servers share the partitions.
    fn servers(&self) -> usize {
        1
    }

    /// The number of pages in a partition, for [`Queries::walk`] and [`DataStore::walk_values`].
    fn pages(&self) -> u32;

    /// The pages of a partition, cut into steps of `length`.
    fn steps(&self, length: u32) -> Vec<Range<u32>> {
        let pages = self.pages();
        (0..pages).step_by(length as usize).map(|from| from..pages.min(from + length)).collect()
    }
}

/// The condition of an engine.
#[async_trait]
pub trait Examine: Send + Sync {
    /// Checks the engine's settings and condition, and how far its clock is from `now`. An error means that the
    /// engine cannot work at all.
    async fn examine(&self, now: Timestamp) -> Result<Vec<Warning>>;

    /// Ends when the engine finds a fault that an examination repairs.
    async fn wants_examination(&self);

    /// Ends when a call failed for a reason that an examination of the servers reports.
    async fn suspects_its_servers(&self) {
        std::future::pending().await
    }
}

/// The traits that the roll needs of a store.
pub trait FleetStore: UnitStore + HearingStore + DataStore + Queries {}

impl<T: UnitStore + HearingStore + DataStore + Queries> FleetStore for T {}

/// A whole engine. Only the assembly holds one: each loop uses only the traits that it needs.
pub trait Engine:
    FleetStore + OutboxStore + GroupEngine + DeliveryEngine + TimerEngine + Examine + migration::Exporter
{
}

impl<T> Engine for T where
    T: FleetStore + OutboxStore + GroupEngine + DeliveryEngine + TimerEngine + Examine + migration::Exporter
{
}

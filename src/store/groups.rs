//! The outbox, and the groups that its transitions join.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Delivery, Group, Layout, Membership, Result};
use crate::clock::Timestamp;
use crate::presence::{Interval, OfflineRecord, RecordId};
use crate::routing::Destinations;

/// An event that alerting may notify operators of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxEvent {
    /// A record was opened or closed.
    Record(OfflineRecord),
    /// Rollcall was blind for long, or has been for long and still is.
    Blind(Interval),
    /// The engine lost the fleet, or a part of it.
    DataLost(DataLoss),
}

impl OutboxEvent {
    /// The record, if the event is about a unit.
    pub fn record(&self) -> Option<&OfflineRecord> {
        match self {
            OutboxEvent::Record(record) => Some(record),
            OutboxEvent::Blind(_) | OutboxEvent::DataLost(_) => None,
        }
    }
}

/// A loss of data, as an instance noticed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLoss {
    /// From the last moment that was heard before the loss up to the moment at which it was noticed.
    pub interval: Interval,
    /// The number of partitions that were lost, if others are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u16>,
}

/// An event in the outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxEntry {
    /// Passed to [`GroupStore::remove_entries`] after the event has joined its group. Events that were written in one
    /// step may share a position.
    pub position: Position,
    pub event: OutboxEvent,
}

/// The position of an entry in the outboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The outbox that holds the entry, as the engine numbers outboxes.
    pub outbox: u16,
    /// The id of the entry in its outbox.
    pub id: String,
}

/// A transition that joins its groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// One for each of its routes; at least one, and none twice.
    pub groups: Vec<Group>,
    pub event: OutboxEvent,
}

/// How many deliveries the caller of [`GroupStore::join`] takes, and until when they are leased to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The number for each receiver, in the order of [`Destinations::receivers`]; zero for receivers without an entry.
    pub most: Vec<usize>,
    pub until: Timestamp,
}

impl Capacity {
    /// The caller takes none: [`StoredDeliveries::lease`](super::StoredDeliveries::lease) hands them out.
    pub const NONE: Capacity = Capacity { most: Vec::new(), until: Timestamp::ZERO };
}

/// The result of joining.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JoinResult {
    /// How many members were sealed.
    pub sealed: usize,
    /// Whether some of their deliveries wait in the engine for [`StoredDeliveries::lease`](super::StoredDeliveries::lease).
    pub has_queued: bool,
    /// Deliveries that are leased to the caller.
    pub deliveries: Vec<Delivery>,
    /// The partitions of the groups, for [`GroupStore::remove_entries`].
    pub groups: BTreeSet<u16>,
}

/// A silence of which a receiver was notified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifiedSilence {
    /// The key of its group.
    pub group: String,
    /// The name of the member.
    pub member: String,
    pub detected_at: Timestamp,
}

/// The outbox and groups.
#[async_trait]
pub trait GroupStore: Layout {
    /// The oldest events of these outboxes: about `limit`, and all other events of the same positions. They stay
    /// until [`GroupStore::remove_entries`] removes them. Each partition has an outbox; the outbox of hearing has
    /// the number after the last partition.
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<OutboxEntry>>;

    /// The newest entry of each of these outboxes that has one.
    async fn newest_entries(&self, outboxes: &[u16]) -> Result<Vec<Position>>;

    /// For each of these entries, the oldest entry of its outbox that is not newer; none if those have all left it.
    async fn oldest_up_to(&self, entries: &[Position]) -> Result<Vec<Position>>;

    /// Lets transitions join their groups, each of which has its receivers and its pace. Joining is idempotent: a
    /// transition that has joined before, in this form or a later one, changes nothing, also after its notification was
    /// sent. A return that joins before its silence was sealed cancels the silence: receivers are notified of neither.
    /// All events of a record join the groups that its first event joined, whichever groups the caller names, because
    /// the notifications belong to the record. The notification of a return goes to the receivers that were notified of
    /// its silence, as far as they are configured, also to those that its group has no more.
    ///
    /// A group that is due at once, in which no member waits and that one member joins alone, is sealed in the same
    /// step, as by [`GroupStore::seal`]. An engine may hand out such silences in the same step, as by
    /// [`StoredDeliveries::lease`](super::StoredDeliveries::lease), up to the capacity of each receiver, where that saves a
    /// request.
    async fn join(
        &self,
        joins: &[Join],
        destinations: &Destinations,
        capacity: &Capacity,
        now: Timestamp,
    ) -> Result<JoinResult>;

    /// Removes entries from the outboxes, after all events of their positions have joined groups in these partitions.
    /// An engine of several servers may remove them later, and until then repeats them only if a group may have lost
    /// them.
    async fn remove_entries(&self, entries: &[Position], groups: &BTreeSet<u16>) -> Result<()>;

    /// Seals due groups of these partitions: fixes the members and the id of their notifications and queues a delivery
    /// for each receiver of the group. One notification has at most 10 000 members; a larger group is sealed as several
    /// notifications. A silence is sealed when its own wait is over. Silences that joined later are sealed when the
    /// waits of all of them are over, in one more notification; members that join after that are sealed when the
    /// interval has passed. Answers how many members were sealed; more may be due if any were.
    async fn seal(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp) -> Result<usize>;

    /// When the next group of these partitions is due.
    async fn first_seal(&self, partitions: &[u16]) -> Result<Option<Timestamp>>;

    /// When each of these groups, by their keys, is due; `None`: no member waits in it.
    async fn groups_due(&self, groups: &[String]) -> Result<Vec<Option<Timestamp>>>;

    /// Looks at groups of these partitions whose silences last and for which a reminder or an escalation is due: seals
    /// notifications of silences that receivers know of. A look that is repeated seals the same notifications under the
    /// same ids. Answers how many notifications were sealed.
    async fn remind(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp) -> Result<usize>;

    /// When the next group of these partitions is looked at.
    async fn first_reminder(&self, partitions: &[u16]) -> Result<Option<Timestamp>>;

    /// Looks at groups of these partitions as soon as the routes of now say: a `repeat_interval` or an escalation that is
    /// new or shorter reaches silences that receivers were notified of before. To be called once for each partition.
    async fn reschedule(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp)
    -> Result<()>;

    /// The groups that each of these open records joined, and the receivers that were notified of it there.
    async fn memberships(&self, records: &[&OfflineRecord]) -> Result<Vec<Vec<Membership>>>;

    /// The silences of a group that units share of which receivers were notified and whose units are not back: those
    /// that were notified at `from` or later, and before `before`.
    async fn lasting(&self, group: &str, from: Timestamp, before: Option<Timestamp>)
    -> Result<Vec<RecordId>>;

    /// Adds a receiver to those that were notified of silences of groups in this partition, unless
    /// their returns were sealed already.
    async fn add_receiver(&self, partition: u16, receiver: &str, silences: &[NotifiedSilence]) -> Result<()>;
}

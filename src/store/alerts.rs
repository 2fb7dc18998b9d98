//! The outbox, groups of transitions, and the deliveries to receivers.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Layout, Result};
use crate::clock::Timestamp;
use crate::presence::{Interval, Labels, OfflineRecord, Pace};
use crate::telemetry::Backlog;

/// Something that operators may have to be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxEvent {
    /// A record was opened or closed.
    Record(OfflineRecord),
    /// Rollcall was blind for long, or has been for long and still is.
    Blind(Interval),
}

/// OutboxEvent in the outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Where it stands; given back when it was dealt with. OutboxEvent that was written in one step may
    /// stand in one place.
    pub position: Position,
    /// What it says.
    pub news: OutboxEvent,
}

/// The place of an entry in the outbox: which part of it, and its id there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The outbox that holds it, as the engine numbers them.
    pub outbox: u16,
    /// Its id within that.
    pub id: String,
}

/// The identity of a group: the route and the values that its members share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Unique text made from the labels, at most 512 bytes.
    pub key: String,
    /// What the members share, e.g. `kind`.
    pub labels: Labels,
}

/// A transition on its way into a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// Which group.
    pub group: Group,
    /// What to tell.
    pub news: OutboxEvent,
}

/// How many deliveries the caller of [`AlertStore::join`] takes on, and until when they are leased to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// How many for each receiver, in the order of the receivers; none for those that are missing.
    pub most: Vec<usize>,
    pub until: Timestamp,
}

impl Capacity {
    /// Deliveries are left to [`AlertStore::lease`].
    pub const NONE: Capacity = Capacity { most: Vec::new(), until: Timestamp::ZERO };
}

/// What came of joining.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Joined {
    /// How many members were sealed.
    pub sealed: usize,
    /// What was handed out.
    pub deliveries: Vec<Delivery>,
}

/// One notification for one receiver; fixed when its group was sealed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// Stable over every attempt, restart and replay: `<notification>.<receiver>`.
    pub id: String,
    /// The receiver's name.
    pub receiver: String,
    /// What the members share.
    pub group: Group,
    /// When the group was sealed.
    pub sealed_at: Timestamp,
    /// Records that were opened.
    pub offline: Vec<OfflineRecord>,
    /// Records that were closed.
    pub online: Vec<OfflineRecord>,
    /// Blind intervals; such a notification holds nothing else.
    pub blind: Vec<Interval>,
    /// How many attempts were begun, this one included.
    pub attempt: u32,
}

impl Delivery {
    /// The id of the notification, which is the same for every receiver.
    pub fn notification(&self) -> &str {
        let id = self.id.strip_suffix(&self.receiver).and_then(|id| id.strip_suffix('.'));
        id.unwrap_or(&self.id)
    }
}

/// A delivery that was given up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// What could not be delivered.
    pub delivery: Delivery,
    /// When it was given up.
    pub at: Timestamp,
    /// Why.
    pub reason: String,
}

/// The outbox, groups and deliveries.
#[async_trait]
pub trait AlertStore: Layout {
    /// The oldest news of these outboxes, about `limit` of them, and all that stands in the same places.
    /// It stays until [`AlertStore::settle`] is called. Each partition has an outbox; that of hearing has the number
    /// after the last partition's.
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<Entry>>;

    /// Lets every member join its group, for a notification at the pace given. A member that has
    /// joined before, in this form or a later one, changes nothing, also after it was sent. A
    /// return that comes before its silence was told takes it back: neither is told. OutboxEvent of a record
    /// joins the group that its first news joined, whichever is named: what was told belongs to the
    /// record. A return is told to those receivers to which the silence was told, or will be.
    ///
    /// A group that is due at once, in which no member waits and that one member joins alone is sealed
    /// with that, as by [`AlertStore::seal`]. An engine may hand out silences among these at once, as by
    /// [`AlertStore::lease`], up to the capacity of each receiver, where that saves it a request.
    async fn join(
        &self,
        joins: &[Join],
        pace: Pace,
        receivers: &[String],
        capacity: &Capacity,
        now: Timestamp,
    ) -> Result<Joined>;

    /// Empties places of the outbox: everything that stood there was dealt with.
    async fn settle(&self, entries: &[Position]) -> Result<()>;

    /// Seals groups of these partitions that are due: fixes members and id of their notifications and queues a
    /// delivery for each receiver. One notification holds at most 1000 members; a larger group is
    /// sealed in several. A silence is sealed when its own wait is over; those that joined later follow
    /// when the waits of all of them are over, in one notification more, and members that join after that
    /// when the interval has passed. Answers how many members were sealed; more may be due if any were.
    async fn seal(
        &self,
        partitions: &[u16],
        receivers: &[String],
        pace: Pace,
        now: Timestamp,
    ) -> Result<usize>;

    /// When the next group of these partitions is due.
    async fn first_seal(&self, partitions: &[u16]) -> Result<Option<Timestamp>>;

    /// Hands out deliveries of a receiver that are due in these partitions, at most `limit`, those of
    /// the first partitions first, and keeps them from other callers until `until`. Deliveries of
    /// one group come one after the other, in order. A delivery of which nothing is to be told any more is ended instead,
    /// and counted as left out. An engine within the process frees what is leased when the process ends.
    async fn lease(
        &self,
        partitions: &[u16],
        receiver: &str,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Delivery>>;

    /// When the next delivery of a receiver is due in these partitions.
    async fn first_lease(&self, partitions: &[u16], receiver: &str) -> Result<Option<Timestamp>>;

    /// These were delivered and are never leased again. `now` lets the next of their groups follow
    /// at once. Safe to repeat.
    async fn delivered(&self, deliveries: &[Delivery], now: Timestamp) -> Result<()>;

    /// Keeps deliveries that were leased, and have not ended, from every other instance until `until`.
    /// Answers, in order, which the caller still holds: not those that were leased again since.
    async fn prolong(&self, deliveries: &[Arc<Delivery>], until: Timestamp) -> Result<Vec<bool>>;

    /// The attempt failed; the next is not before `at`. Changes nothing if the delivery was leased
    /// again since.
    async fn postpone(&self, delivery: &Delivery, at: Timestamp) -> Result<()>;

    /// Given up: kept as a dead letter. The return of a unit whose silence died here is not told
    /// to this receiver.
    async fn bury(&self, delivery: &Delivery, reason: &str, now: Timestamp) -> Result<()>;

    /// How many groups of a receiver wait for a delivery in these partitions, and how many dead letters
    /// it has there.
    async fn backlog(&self, partitions: &[u16], receiver: &str) -> Result<Backlog>;

    /// Enters the receivers that are configured, at the least once each start, in the list of those for which
    /// something may be kept. The others in the list are absent from now on. Safe to repeat.
    async fn enlist(&self, receivers: &[String], now: Timestamp) -> Result<()>;

    /// Brings what waits for a receiver that was absent up to date, before any of it is handed out: silences that
    /// are over by now, and their returns, are not told to it. From then on it is not absent. Answers how many are
    /// left out; none where it was not absent. Safe to repeat.
    async fn bring_up_to_date(&self, receiver: &str, now: Timestamp) -> Result<usize>;

    /// What is kept for each receiver that was ever entered, configured or not, by its name; without those for
    /// which nothing is kept.
    async fn kept(&self) -> Result<Vec<(String, Backlog)>>;

    /// One bounded step of discarding dead letters of a receiver and notifications that wait for it, which
    /// become dead letters first. The returns of silences that are discarded are not told to this receiver.
    async fn discard(&self, receiver: &str, now: Timestamp) -> Result<Discarded>;

    /// Dead letters of a receiver, newest first.
    async fn dead_letters(&self, receiver: &str, limit: usize) -> Result<Vec<DeadLetter>>;
}

/// What a step of discarding did; nothing, if nothing was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Notifications that became dead letters, to be removed by a later step.
    pub ended: usize,
    /// What was removed.
    pub removed: usize,
}

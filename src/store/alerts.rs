//! The outbox, groups of transitions, and the deliveries to receivers.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{KeptIncident, Layout, Result};
use crate::clock::Timestamp;
use crate::presence::{GroupIncident, Incident, Interval, Labels, OfflineRecord, RecordId};
use crate::routing::{AlertSilence, Destinations};
use crate::telemetry::Backlog;

/// An event that alerting may notify operators of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxEvent {
    /// A record was opened or closed.
    Record(OfflineRecord),
    /// Rollcall was blind for long, or has been for long and still is.
    Blind(Interval),
}

/// An event in the outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Passed to [`AlertStore::remove_entries`] after the event has joined its group. Events that were written in one
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

/// The identity of a group: the route and the values that its members share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Unique text made from the id of the route and the labels, at most 512 bytes.
    pub key: String,
    /// The labels that all members share, e.g. `kind`.
    pub labels: Labels,
}

/// A transition that joins its groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// One for each of its routes; at least one, and none twice.
    pub groups: Vec<Group>,
    pub event: OutboxEvent,
}

/// How many deliveries the caller of [`AlertStore::join`] takes, and until when they are leased to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The number for each receiver, in the order of [`Destinations::receivers`]; zero for receivers without an entry.
    pub most: Vec<usize>,
    pub until: Timestamp,
}

impl Capacity {
    /// The caller takes none: [`AlertStore::lease`] hands them out.
    pub const NONE: Capacity = Capacity { most: Vec::new(), until: Timestamp::ZERO };
}

/// The result of joining.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Joined {
    /// How many members were sealed.
    pub sealed: usize,
    /// Whether some of their deliveries wait in the engine for [`AlertStore::lease`].
    pub has_queued: bool,
    /// Deliveries that are leased to the caller.
    pub deliveries: Vec<Delivery>,
    /// The partitions of the groups, for [`AlertStore::remove_entries`].
    pub groups: BTreeSet<u16>,
}

/// One notification for one receiver; sealing fixes its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// The same in every attempt, restart and replay: `<notification>.<receiver>`.
    pub id: String,
    pub receiver: String,
    pub group: Group,
    pub sealed_at: Timestamp,
    /// Records that were opened.
    pub offline: Vec<OfflineRecord>,
    /// Records that were closed.
    pub online: Vec<OfflineRecord>,
    /// Blind intervals; a notification with blind intervals has no records.
    pub blind: Vec<Interval>,
    /// It reminds of silences that its receiver was notified of before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reminder: bool,
    #[serde(default, skip_serializing_if = "Situation::is_unknown")]
    pub situation: Situation,
    /// The number of this attempt, from 1.
    pub attempt: u32,
}

/// The group of a notification when it was sealed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Situation {
    /// How many silences of the group last that receivers were notified of, with those of this notification; `None`:
    /// no other unit shares the group.
    pub lasting: Option<u64>,
    /// When receivers were notified of the group before.
    pub since: Option<Timestamp>,
    /// Whether it was judged if most units that share a label fell silent together.
    pub is_judged: bool,
    pub incident: Option<Incident>,
}

impl Situation {
    fn is_unknown(&self) -> bool {
        *self == Situation::default()
    }
}

impl Delivery {
    /// The id of the notification, the same for every receiver.
    pub fn notification(&self) -> &str {
        let id = self.id.strip_suffix(&self.receiver).and_then(|id| id.strip_suffix('.'));
        id.unwrap_or(&self.id)
    }
}

/// A silence of which receivers acknowledged the notification.
#[derive(Clone, Debug, PartialEq)]
pub struct AcknowledgedSilence {
    /// As it was notified.
    pub record: OfflineRecord,
    /// The group of the notification.
    pub group: Group,
    pub receivers: Vec<String>,
}

/// A silence that is marked as notified in its group.
#[derive(Clone, Debug, PartialEq)]
pub struct Marking {
    pub silence: AcknowledgedSilence,
    /// The groups of the record, stored if none are.
    pub groups: Vec<Group>,
    /// Receivers of the group that have not acknowledged it and are notified of it.
    pub rest: Vec<String>,
}

/// A delivery that was given up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub delivery: Delivery,
    /// When it was given up.
    pub at: Timestamp,
    pub reason: String,
}

/// The outbox, groups and deliveries.
#[async_trait]
pub trait AlertStore: Layout {
    /// The oldest events of these outboxes: about `limit`, and all other events of the same positions. They stay
    /// until [`AlertStore::remove_entries`] removes them. Each partition has an outbox; the outbox of hearing has
    /// the number after the last partition.
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<Entry>>;

    /// Lets transitions join their groups, each of which has its receivers and its pace. Joining is idempotent: a transition
    /// that has joined before, in this form or a later one, changes nothing, also after its notification was sent. A
    /// return that joins before its silence was sealed cancels the silence: receivers are notified of neither. All
    /// events of a record join the groups that its first event joined, whichever groups the caller names, because the
    /// notifications belong to the record. The notification of a return goes to the receivers that were notified of its
    /// silence, as far as they are configured, also to those that its group has no more.
    ///
    /// A group that is due at once, in which no member waits and that one member joins alone, is sealed in the same
    /// step, as by [`AlertStore::seal`]. An engine may hand out such silences in the same step, as by
    /// [`AlertStore::lease`], up to the capacity of each receiver, where that saves a request.
    async fn join(
        &self,
        joins: &[Join],
        destinations: &Destinations,
        capacity: &Capacity,
        now: Timestamp,
    ) -> Result<Joined>;

    /// Removes entries from the outboxes, after all events of their positions have joined groups in these partitions.
    /// An engine of several servers may remove them later, and until then repeats them only if a group may have lost
    /// them.
    async fn remove_entries(&self, entries: &[Position], groups: &BTreeSet<u16>) -> Result<()>;

    /// Seals due groups of these partitions: fixes the members and the id of their notifications and queues a
    /// delivery for each receiver of the group. One notification has at most 10 000 members; a larger group is sealed as several
    /// notifications. A silence is sealed when its own wait is over. Silences that joined later are sealed when the
    /// waits of all of them are over, in one more notification; members that join after that are sealed when the
    /// interval has passed. Answers how many members were sealed; more may be due if any were.
    async fn seal(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp) -> Result<usize>;

    /// When the next group of these partitions is due.
    async fn first_seal(&self, partitions: &[u16]) -> Result<Option<Timestamp>>;

    /// Looks at groups of these partitions whose silences last and for which a reminder or an escalation is due: seals
    /// notifications of silences that receivers know of. A look that is repeated seals the same notifications under the
    /// same ids. Answers how many notifications were sealed.
    async fn remind(
        &self,
        partitions: &[u16],
        destinations: &Destinations,
        silences: &[AlertSilence],
        now: Timestamp,
    ) -> Result<usize>;

    /// When the next group of these partitions is looked at.
    async fn first_reminder(&self, partitions: &[u16]) -> Result<Option<Timestamp>>;

    /// Leases due deliveries of a receiver in these partitions to the caller until `until`: at most `limit`, and
    /// those of the first partitions first. Of each group only the first delivery is leased, so deliveries of a
    /// group stay in order. A delivery without content by now is ended instead, and counted as left out. The leases
    /// of an engine within the process end with the process.
    async fn lease(
        &self,
        partitions: &[u16],
        receiver: &str,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Delivery>>;

    /// The incident of a group that receivers were notified of, or may be, as it is kept: see [`super::incident_in`].
    async fn incident(&self, group: &str) -> Result<Option<String>>;

    /// Writes the incident that a notification tells of into it, once, so that every attempt and every receiver is told
    /// the same; and what is kept for the next notification of its group, in the same step. Changes nothing if the kept
    /// incident is not `before` any more.
    async fn keep_incident(
        &self,
        delivery: &Delivery,
        told: Option<&Incident>,
        before: Option<&str>,
        after: Option<&GroupIncident>,
        now: Timestamp,
    ) -> Result<KeptIncident>;

    /// When the next delivery of a receiver is due in these partitions.
    async fn first_lease(&self, partitions: &[u16], receiver: &str) -> Result<Option<Timestamp>>;

    /// Records that deliveries succeeded; they are never leased again. The next delivery of each of their groups is
    /// due at `now`. Safe to repeat.
    async fn delivered(&self, deliveries: &[Delivery], now: Timestamp) -> Result<()>;

    /// Silences of which receivers acknowledged the notification to this process lately, and which the engine may have
    /// lost since, because a replica took over; none where there are no replicas. They are answered again until
    /// [`AlertStore::settle_doubts`].
    async fn doubtful(&self) -> Result<Vec<AcknowledgedSilence>> {
        Ok(Vec::new())
    }

    /// Marks members of groups as notified, so that the return of each silence is notified to its receivers: members that
    /// are lost and, if no receiver is left to be notified, those that wait for a notification. To members that are
    /// marked it adds the receivers. Answers how many changed. Safe to repeat.
    async fn mark_notified(&self, _markings: &[Marking], _now: Timestamp) -> Result<usize> {
        Ok(0)
    }

    /// The engine has the silences of the last [`AlertStore::doubtful`] again, but for those in `later`.
    fn settle_doubts(&self, _later: &HashSet<RecordId>) {}

    /// Extends leases of deliveries that have not ended, until `until`. Answers, in order, which leases the caller
    /// still holds: not those that another instance has taken since.
    async fn extend_leases(&self, deliveries: &[Arc<Delivery>], until: Timestamp) -> Result<Vec<bool>>;

    /// Records that the attempt failed and that the next one is not before `at`. Changes nothing if another
    /// instance has leased the delivery since.
    async fn retry_later(&self, delivery: &Delivery, at: Timestamp) -> Result<()>;

    /// Gives a delivery up and keeps it as a dead letter. This receiver is not notified of the returns of its
    /// silences.
    async fn dead_letter(&self, delivery: &Delivery, reason: &str, now: Timestamp) -> Result<()>;

    /// How many groups of a receiver wait for a delivery in these partitions, and how many dead letters
    /// it has there.
    async fn backlog(&self, partitions: &[u16], receiver: &str) -> Result<Backlog>;

    /// Enters the configured receivers in the list of receivers; the service calls this at each start. The others
    /// in the list are absent from now on. Safe to repeat.
    async fn enlist(&self, receivers: &[String], now: Timestamp) -> Result<()>;

    /// Brings the deliveries of a receiver that was absent up to date, before any of them is leased: silences that
    /// are over by now, and their returns, are left out. From then on the receiver is not absent. Answers how many
    /// are left out; zero for a receiver that was not absent. Safe to repeat.
    async fn bring_up_to_date(&self, receiver: &str, now: Timestamp) -> Result<usize>;

    /// The backlog of each receiver that was ever entered, configured or not, by its name; receivers without a
    /// backlog are left out.
    async fn kept(&self) -> Result<Vec<(String, Backlog)>>;

    /// Discards a bounded number of dead letters of a receiver and of notifications that wait for it, which become
    /// dead letters first. This receiver is not notified of the returns of the discarded silences.
    async fn discard(&self, receiver: &str, now: Timestamp) -> Result<Discarded>;

    /// Dead letters of a receiver, newest first.
    async fn dead_letters(&self, receiver: &str, limit: usize) -> Result<Vec<DeadLetter>>;
}

/// The changes of one step of discarding; zeros if nothing was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// How many notifications became dead letters, which a later step removes.
    pub ended: usize,
    /// How many dead letters were removed.
    pub removed: usize,
}

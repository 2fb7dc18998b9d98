//! The outbox, groups of transitions, and the deliveries to receivers.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{
    DeadLetter, Delivery, End, Ended, FindAttempts, Group, KeptIncident, Layout, MeantFor, Membership,
    Result, StoredAttempts, WaitingPage,
};
use crate::clock::Timestamp;
use crate::presence::{GroupIncident, Incident, Interval, OfflineRecord, RecordId};
use crate::routing::Destinations;
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
    async fn remind(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp) -> Result<usize>;

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

    /// The groups that each of these open records joined, and the receivers that were notified of it there.
    async fn memberships(&self, records: &[&OfflineRecord]) -> Result<Vec<Vec<Membership>>>;

    /// The silences of a group that units share of which receivers were notified and whose units are not back.
    async fn lasting(&self, group: &str) -> Result<Vec<RecordId>>;

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

    /// Records how attempts ended, and puts each on record for `keep`, in the same step. Safe to repeat.
    ///
    /// A delivery that succeeded is never leased again; the next delivery of its group is due at `now`. One that
    /// failed is not attempted before the moment of its end; nothing changes if another instance has leased it since.
    /// One that is given up becomes a dead letter: its receiver is not notified of the returns of its silences.
    async fn end_attempts(&self, ended: &[Ended], keep: Duration, now: Timestamp) -> Result<()>;

    /// Records that deliveries succeeded, without their attempts.
    async fn delivered(&self, deliveries: &[Delivery], now: Timestamp) -> Result<()> {
        let ended: Vec<Ended> =
            deliveries.iter().map(|delivery| unattempted(delivery, End::Delivered)).collect();
        self.end_attempts(&ended, Duration::ZERO, now).await
    }

    /// Receivers acknowledged these deliveries just now. Their ends are recorded later: until then the engine may lose what
    /// it has of them, see [`AlertStore::doubtful`].
    fn keep_acknowledged(&self, _ended: &[Ended], _now: Timestamp) {}

    /// Silences of which receivers acknowledged the notification to this process lately, and which the engine may have
    /// lost since, because a replica took over; none where there are no replicas. They are answered again until
    /// [`AlertStore::settle_doubts`].
    async fn doubtful(&self) -> Result<Vec<AcknowledgedSilence>> {
        Ok(Vec::new())
    }

    /// Ends when silences may have become doubtful since the last [`AlertStore::doubtful`].
    async fn doubts_arise(&self) {
        std::future::pending().await
    }

    /// Marks members of groups as notified, so that the return of each silence is notified to its receivers: members that
    /// are lost and, if no receiver is left to be notified, those that wait for a notification. To members that are
    /// marked it adds the receivers. Answers how many changed. Safe to repeat.
    async fn mark_notified(
        &self,
        _markings: &[Marking],
        _destinations: &Destinations,
        _now: Timestamp,
    ) -> Result<usize> {
        Ok(0)
    }

    /// The engine has the silences of the last [`AlertStore::doubtful`] again, but for those in `later`.
    fn settle_doubts(&self, _later: &HashSet<RecordId>) {}

    /// Extends leases of deliveries that have not ended, until `until`. Answers, in order, which leases the caller
    /// still holds: not those that another instance has taken since.
    async fn extend_leases(&self, deliveries: &[Arc<Delivery>], until: Timestamp) -> Result<Vec<bool>>;

    /// Records that a delivery failed and that the next attempt is not before `at`, without the attempt.
    async fn retry_later(&self, delivery: &Delivery, at: Timestamp) -> Result<()> {
        self.end_attempts(&[unattempted(delivery, End::RetryAt(at))], Duration::ZERO, at).await
    }

    /// Gives a delivery up and keeps it as a dead letter, without an attempt.
    async fn dead_letter(&self, delivery: &Delivery, reason: &str, now: Timestamp) -> Result<()> {
        self.end_attempts(&[unattempted(delivery, End::DeadLetter(reason.to_owned()))], Duration::ZERO, now)
            .await
    }

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
    async fn dead_letters(&self, receiver: &str, limit: usize) -> Result<Vec<DeadLetter>> {
        let (from, until) = (Timestamp::ZERO, Timestamp::from_millis(i64::MAX));
        self.letters(receiver, from, until, limit).await
    }

    /// Dead letters of a receiver that were given up from one moment up to the other, newest first.
    async fn letters(
        &self,
        receiver: &str,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<DeadLetter>>;

    /// The dead letter of a notification, if there is one.
    async fn letter(&self, receiver: &str, notification: &str) -> Result<Option<DeadLetter>>;

    /// Removes dead letters. Answers how many there were.
    async fn purge(&self, letters: &[DeadLetter]) -> Result<usize>;

    /// A page of the notifications that wait for a receiver, in an order of the engine. Those that come or go meanwhile
    /// may be missing or there twice. `after`: [`WaitingPage::next`] of the page before.
    async fn waiting(&self, receiver: &str, after: Option<&str>) -> Result<WaitingPage>;

    /// Queues a notification once more for its receiver, under its id; its dead letter is removed, and the receiver is
    /// notified of the returns of its silences again. `false`: it waits already.
    async fn replay(&self, delivery: &Delivery, now: Timestamp) -> Result<bool>;

    /// Since when a receiver takes nothing: `now`, if that was not known.
    async fn down_since(&self, receiver: &str, now: Timestamp) -> Result<Timestamp>;

    /// A receiver takes notifications again.
    async fn is_up(&self, receiver: &str) -> Result<()>;

    /// Queues what waits for a receiver in these partitions for its fallback too: each notification once, under an id
    /// of its own, also if several instances call this or one calls it again. Answers how many were queued.
    async fn fall_back(
        &self,
        partitions: &[u16],
        meant_for: &MeantFor,
        to: &str,
        now: Timestamp,
    ) -> Result<usize>;

    /// Entries of the record of attempts, newest first.
    async fn attempts(&self, find: &FindAttempts) -> Result<Vec<StoredAttempts>>;
}

fn unattempted(delivery: &Delivery, end: End) -> Ended {
    Ended { delivery: Arc::new(delivery.clone()), end, attempt: None }
}

/// The changes of one step of discarding; zeros if nothing was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// How many notifications became dead letters, which a later step removes.
    pub ended: usize,
    /// How many dead letters were removed.
    pub removed: usize,
}

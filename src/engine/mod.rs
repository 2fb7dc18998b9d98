//! The state of the fleet, behind small traits cut by reader.
//!
//! | trait | who reads it | what it holds |
//! |---|---|---|
//! | [`UnitStore`] | intake, expiry | expiry keys, the deadline index, facts, records |
//! | [`HearingStore`] | intake, expiry | how far Rollcall has heard; the ledger of blind intervals |
//! | [`AlertStore`] | alerting | the outbox, groups, deliveries, dead letters |
//! | [`DataStore`] | intake, http | the newest values of what units tell of themselves |
//! | [`Queries`] | http, the mirror | the same facts and records, to look at |
//! | [`Roster`] | every loop, through [`Ownership`] | the instances that are there, and the clock that they share |
//!
//! [`Roll`] stands above them: it reads snapshots, lets `presence` decide and applies the changes.
//!
//! # The promises
//! Each is the name of a case of the conformance suite, which every engine passes.
//!
//!  1. Recorded means applied; what a crash of the engine loses becomes blind time, and no
//!     transition is lost.
//!  2. Each silence is taken by exactly one caller.
//!  3. Taking writes record and outbox in one step.
//!  4. An older or repeated heartbeat never moves a deadline back.
//!  5. A return closes the record and is told once, to those receivers that were told the silence.
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
//!     look or walk does not repair.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{Change, Hearing, Interval, Labels, OfflineRecord, Probed, RecordId, Snapshot, Unit};
use crate::telemetry::Ailment;

mod blocks;
mod canary_pace;
pub mod census;
pub mod data;
pub mod declared;
pub mod ear;
pub mod embedded;
pub mod encoding;
pub mod examination;
mod json;
pub mod lease;
mod look;
pub mod mirror;
mod notification;
pub mod parcels;
mod partition;
pub mod redis;
pub mod repair;
pub mod roll;
pub mod roster;
pub mod walk;

pub use canary_pace::CanaryPace;
pub use census::Census;
pub use data::{Catalogue, DataStore, Metric, MetricType, Reading, Value};
pub use ear::{Advance, Ear, Gap, Member};
pub use lease::Lease;
pub use look::{Hold, Looked};
pub use mirror::Mirror;
pub use notification::{delivery_of_any, notification_of};
use partition::{crc16, name_bytes};
pub use partition::{partition_of, partition_of_group};
pub use roll::Roll;
pub use roster::{Attendance, Ownership, Roster};
pub use walk::Walk;

/// The most units of one partition that one step of an engine takes on.
pub const LARGEST_STEP: usize = 500;

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It cannot be reached or did not answer; the same call may be made again.
    #[error("{0}")]
    Unavailable(String),
    /// It answered that it will not; somebody has to change something.
    #[error("{0}")]
    Refused(String),
    /// What is stored cannot be read.
    #[error("{0}")]
    Damaged(String),
}

/// What an engine answers.
pub type Result<T> = std::result::Result<T, EngineError>;

/// A heartbeat of a unit that is expected to be present, ready to be written.
#[derive(Clone, Copy, Debug)]
pub struct Refresh<'a> {
    /// Who.
    pub unit: &'a Unit,
    /// When it was heard.
    pub at: Timestamp,
    /// How long its key stands from now.
    pub ttl: Duration,
    /// The look that it needs at the latest; an earlier one stays.
    pub look: Timestamp,
}

/// The state of units.
#[async_trait]
pub trait UnitStore: Send + Sync {
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

    /// Cuts units into those that are looked at together, as suits the engine.
    fn looks(&self, units: &[Unit]) -> Vec<Vec<Unit>>;

    /// Reads units that may be due, at least one and together one of [`UnitStore::looks`], so that they can be
    /// changed if they are still the same. Reading an expiry key that is overdue makes it expire.
    async fn look(&self, units: &[Unit]) -> Result<Looked<'_>>;

    /// The open records of units whose facts do not say, in order: for when these are lost. What cannot be said of
    /// a record is as its id says.
    async fn open_records(&self, units: &[Unit]) -> Result<Vec<Option<OfflineRecord>>>;

    /// Has the next look of units that are in the index be at `until`, whatever else is stored of them.
    async fn put_off(&self, units: &[Unit], until: Timestamp) -> Result<()>;

    /// Puts units into the index that are known and not in there, for a look at `at`.
    async fn put_in(&self, units: &[Unit], at: Timestamp) -> Result<()>;

    /// How many partitions the units are spread over.
    fn partitions(&self) -> u16;

    /// Units of a partition whose next look is after `after`, where that is given, and at or before `until`: up to
    /// `limit` of them after the first `skip`, unordered.
    async fn due(
        &self,
        partition: u16,
        after: Option<Timestamp>,
        until: Timestamp,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Unit>>;

    /// The earliest next look of each partition, after the moment that `after` holds for it, and the name of the unit
    /// that it is for.
    async fn first_looks(&self, after: &HashMap<u16, Timestamp>) -> Result<Vec<Option<(Timestamp, String)>>>;
}

/// How far Rollcall has heard.
#[async_trait]
pub trait HearingStore: Send + Sync {
    /// How far it has heard and the blind intervals before that, as of one moment. `settle` is not
    /// stored and left at zero.
    async fn hearing(&self) -> Result<Hearing>;

    /// Everything that was sent to this ear up to `sent_at` has come all the way. Moves forward how
    /// far was heard, if the ear alone or its group's least leads there. If that is more than a gap
    /// after what was heard before, or if a member of the group ended out of order in between, what
    /// lies between was blind: it is added to the ledger, told through the outbox if it is long, and
    /// returned. Members whose release has passed at `sent_at` are removed as [`HearingStore::gone`]
    /// does. Safe to repeat. See [`ear`].
    async fn advance(&self, ear: &Ear, sent_at: Timestamp, gap: Gap) -> Result<Advance>;

    /// The same, with how far was heard after that, without asking twice.
    async fn advance_and_hear(&self, ear: &Ear, sent_at: Timestamp, gap: Gap) -> Result<(Advance, Hearing)> {
        let advance = self.advance(ear, sent_at, gap).await?;
        Ok((advance, self.hearing().await?))
    }

    /// Filters of kinds were heard, each up to its moment; several moments of one filter come in their order. Where
    /// one is more than its gap after what was known of the filter, or of its kind before this if the filter is
    /// new, what lies between was blind for the kind. A kind of which nothing was known begins without such
    /// an interval. Safe to repeat.
    async fn prove(&self, probed: &[Probed]) -> Result<()>;

    /// Up to when a session that the broker keeps has heard; `None` if it is not known, or the broker has
    /// dropped the session by now.
    async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>>;

    /// From `now` on the group has heard no further than this member. It is given messages only
    /// after this. `release` is how long after its last proof the broker is certain to have dropped
    /// it. An earlier connection under the same client id is gone by this. Safe to repeat.
    async fn attend(&self, member: &Member, now: Timestamp, release: Duration) -> Result<()>;

    /// The id of the fleet as this instance found it, or as the first found it that was there before its data was
    /// lost: random, and the same for all instances. It never
    /// leaves the engine and the instances, which sign their canaries by it.
    fn key(&self) -> &str;

    /// The id of the fleet that is there: another one after the engine lost its data. What was read before that
    /// says nothing.
    fn fleet_id(&self) -> String;

    /// The member is given nothing more and everything that it was given is recorded. Safe to repeat.
    async fn leave(&self, member: &Member) -> Result<()>;

    /// The broker has dropped the member at `at` or earlier. Whether it was one. Safe to repeat.
    async fn gone(&self, member: &Member, at: Timestamp) -> Result<bool>;
}

/// Something that operators may have to be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// A record was opened or closed.
    Record(OfflineRecord),
    /// Rollcall was blind for long, or has been for long and still is.
    Blind(Interval),
}

/// News in the outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Where it stands; given back when it was dealt with. News that was written in one step may
    /// stand in one place.
    pub position: Position,
    /// What it says.
    pub news: News,
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
    pub news: News,
}

/// When a group that has something to tell is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The wait of each silence, in which its unit may come back without being told.
    pub wait: Duration,
    /// The least time between two notifications of one group.
    pub interval: Duration,
}

/// How many deliveries the caller of [`AlertStore::join`] can take on, and until when they are kept from
/// others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// How many for each receiver, in their order; none for those that are missing.
    pub most: Vec<usize>,
    /// Until when.
    pub until: Timestamp,
}

impl Room {
    /// For nothing: deliveries are left to [`AlertStore::lease`].
    pub const NONE: Room = Room { most: Vec::new(), until: Timestamp::ZERO };
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
pub trait AlertStore: Send + Sync {
    /// The oldest news of these outboxes, about `limit` of them, and all that stands in the same places.
    /// It stays until [`AlertStore::settle`] is called. Each partition has an outbox; that of hearing has the number
    /// after the last partition's.
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<Entry>>;

    /// Lets every member join its group, for a notification at the pace given. A member that has
    /// joined before, in this form or a later one, changes nothing, also after it was sent. A
    /// return that comes before its silence was told takes it back: neither is told. News of a record
    /// joins the group that its first news joined, whichever is named: what was told belongs to the
    /// record. A return is told to those receivers to which the silence was told, or will be.
    ///
    /// A group that is due at once, that nobody waits in and that one member joins alone is sealed
    /// with that, as by [`AlertStore::seal`]. Silences among these may be handed out at once, as by
    /// [`AlertStore::lease`]: for each receiver as many as there is room for.
    async fn join(
        &self,
        joins: &[Join],
        pace: Pace,
        receivers: &[String],
        room: &Room,
        now: Timestamp,
    ) -> Result<Joined>;

    /// Empties places of the outbox: everything that stood there was dealt with.
    async fn settle(&self, entries: &[Position]) -> Result<()>;

    /// Seals groups of these partitions that are due: fixes members and id of their notifications and queues a
    /// delivery for each receiver. One notification holds at most 1000 members; a larger group is
    /// sealed in several. A silence is sealed when its own wait is over; those that joined later follow
    /// when the waits of all of them are over, in one notification more, and whoever joins after that
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
    /// the first partitions first, and keeps them from everybody else until `until`. Deliveries of
    /// one group come one after the other, in order. One of which nothing is to be told any more is ended instead,
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

/// What waits for a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Groups with at least one delivery.
    pub waiting: u64,
    /// Deliveries that were given up.
    pub dead: u64,
}

/// What a step of discarding did; nothing, if nothing was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Notifications that became dead letters, to be removed by a later step.
    pub ended: usize,
    /// What was removed.
    pub removed: usize,
}

/// Facts and records, to look at.
#[async_trait]
pub trait Queries: Send + Sync {
    /// The record of one silence.
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>>;

    /// Records by the time of detection, newest first, those strictly before `before` (time of
    /// detection, id); at most `limit`. `open`: only open ones.
    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>>;

    /// Into how many pages a partition is cut for [`Queries::walk`].
    fn pages(&self) -> u32;

    /// The units on one page of a partition, as they are now; every unit of the fleet is on
    /// exactly one page.
    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>>;

    /// What the expiry keys of these units of a partition hold, in order; each is named
    /// `<kind>:<unit>`.
    async fn alive(&self, partition: u16, names: &[&str]) -> Result<Vec<Option<Timestamp>>>;

    /// Notes for the owners of their partitions that these units were changed by somebody else.
    async fn note(&self, units: &[&Unit]) -> Result<()>;

    /// Takes what was noted for these partitions, a bounded number: pages on which something was
    /// changed by somebody else.
    async fn noted(&self, partitions: &[u16]) -> Result<Vec<(u16, u32)>>;

    /// Removes records of these partitions that were closed before `before`, a bounded number; answers
    /// how many.
    async fn forget_records(&self, partitions: &[u16], before: Timestamp) -> Result<usize>;
}

/// What is wrong with an engine that works all the same, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its name, for logs and metrics.
    pub name: Ailment,
    /// What is wrong and what to do.
    pub text: String,
}

/// A reason to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The unit's expiry key has expired.
    Expired(Unit),
    /// Hints may have been lost: look at whatever is due.
    Doubt,
}

/// An engine: all of the above, and a word on its health.
#[async_trait]
pub trait Engine: UnitStore + HearingStore + AlertStore + Queries + DataStore + Roster {
    /// Looks at the engine's settings and condition, and at how far its clock is from `now`. An
    /// error means that it cannot work at all.
    async fn examine(&self, now: Timestamp) -> Result<Vec<Warning>>;

    /// Ends when something was met that an examination puts right.
    async fn wants_examination(&self);

    /// Sends hints that units may be due, until nobody receives them any more. Hints may be lost,
    /// late or wrong. An error ends it; what it would have told meanwhile is lost.
    async fn listen(&self, hints: tokio::sync::mpsc::Sender<Hint>) -> Result<()>;

    /// Very many units are due, until that is over: their records go first, before what is told and what is
    /// read for the mirror. Hints that more keys expire are of no use meanwhile, and to send them is work for
    /// the engine; those that come do no harm.
    fn storm(&self, is_on: bool);

    /// What it takes for a word to reach the engine and the answer to come back, where that is long beside what
    /// the engine does; else nothing.
    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}

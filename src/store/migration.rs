//! Moving house: a fleet in parcels that every engine can pack and unpack.
//!
//! One engine packs what it holds, page by page, another one unpacks it. A parcel says what is so, not
//! how an engine stores it. Nobody may serve the fleet meanwhile, at either end.
//!
//! What an engine is left with is the whole fleet or none: until a move is complete, the other end holds no
//! fleet that could be served, and a move that was broken off begins anew.
//!
//! # What stays behind
//! Leases, members of shared subscriptions and sessions of the broker belong to connections, which end
//! before a move. What they may have lost is after `heard`, so it is blind time. Entries of the outbox
//! that cannot be read stay where an operator can look at them.

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt};

use super::{DeadLetter, EngineError, Group, OutboxEvent, Result};
use crate::clock::Timestamp;
use crate::presence::{Hearing, OfflineRecord, Unit};

/// How many pages are packed at once: while one is looked up, the others are asked for.
const UNDER_WAY: usize = 16;
/// So many parcels are carried at a time, and those of the page that exceeds it.
const LOAD: usize = 1000;

/// Something that a fleet is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum MigrationItem {
    /// A unit.
    Unit {
        /// Who.
        unit: Unit,
        /// Its facts, as `encoding` writes them.
        facts: String,
        /// Its expiry key.
        alive: Option<Timestamp>,
        /// `None`: it is not in the deadline index.
        next_check: Option<Timestamp>,
    },
    /// The newest value of a unit's metric. Comes after the unit.
    Value {
        /// Whose.
        unit: Unit,
        /// Of which metric.
        metric: String,
        /// When it came.
        at: Timestamp,
        /// As it came.
        value: String,
    },
    /// An offline record, open or closed.
    Record(OfflineRecord),
    /// OutboxEvent that joined no group yet; in order within a partition.
    OutboxEvent(OutboxEvent),
    /// A group.
    Group {
        /// Which.
        group: Group,
        /// When it is sealed; `None` if no member waits in it.
        due: Option<Timestamp>,
        /// When it was sealed last.
        sealed: Option<Timestamp>,
    },
    /// A member of a group. Comes after the group.
    Member {
        /// The key of its group.
        group: String,
        /// Its name there.
        name: String,
        /// What it was told, see the groups of either engine.
        letter: char,
        /// Nothing, or a colon and the receivers that were told its silence.
        told_to: String,
        /// When the silence was detected; zero for an interval.
        detected: Timestamp,
        /// When it joined, if it waits to be told, and what is told (JSON).
        waits: Option<(Timestamp, String)>,
        /// Since when it is over.
        over: Option<Timestamp>,
    },
    /// The group in which the news of a record is told.
    GroupOf {
        /// The member that stands for the record.
        member: String,
        /// Its group.
        group: Group,
    },
    /// A sealed notification.
    Notification {
        /// Its id.
        id: String,
        /// What it says (JSON).
        body: String,
        /// How many receivers do not have it yet.
        owed: u64,
    },
    /// What a group has for a receiver.
    Lane {
        /// For whom.
        receiver: String,
        /// The key of the group.
        group: String,
        /// The next attempt.
        next: Timestamp,
        /// Attempts at the first notification that were begun.
        attempts: u32,
        /// Ids of notifications, in order.
        notifications: Vec<String>,
    },
    /// A dead letter.
    Letter(DeadLetter),
}

/// The end that a fleet leaves.
#[async_trait]
pub trait Exporter: Send + Sync {
    /// Refuses if an instance serves the fleet.
    async fn check_rest(&self) -> Result<()>;

    /// Units of a page, as [`super::Queries::walk`] numbers them, and their values.
    async fn pack_units(&self, partition: u16, page: u32) -> Result<Vec<MigrationItem>>;

    /// Everything else of a partition; after the last one comes what belongs to none.
    async fn pack_rest(&self, partition: u16) -> Result<Vec<MigrationItem>>;
}

/// The end at which it arrives.
#[async_trait]
pub trait Importer: Send + Sync {
    /// Unpacks.
    async fn unpack(&self, parcels: Vec<MigrationItem>) -> Result<()>;

    /// Everything is here: from now on it is a fleet.
    async fn complete(&self, hearing: Hearing) -> Result<()>;
}

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Units.
    pub units: u64,
    /// Newest values of metrics.
    pub values: u64,
    /// Records of units that are offline.
    pub open_records: u64,
    /// Records of silences that are over.
    pub closed_records: u64,
    /// OutboxEvent that joined no group yet, and members of groups that wait to be told.
    pub untold: u64,
    /// Notifications that a receiver does not have yet, once for each receiver.
    pub undelivered: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Blind intervals.
    pub blind: u64,
}

impl Moved {
    fn count(&mut self, parcel: &MigrationItem) {
        match parcel {
            MigrationItem::Unit { .. } => self.units += 1,
            MigrationItem::Value { .. } => self.values += 1,
            MigrationItem::Record(record) if record.closed_by.is_none() => self.open_records += 1,
            MigrationItem::Record(_) => self.closed_records += 1,
            MigrationItem::OutboxEvent(_) | MigrationItem::Member { waits: Some(_), .. } => self.untold += 1,
            MigrationItem::Lane { notifications, .. } => self.undelivered += notifications.len() as u64,
            MigrationItem::Letter(_) => self.dead_letters += 1,
            MigrationItem::Group { .. }
            | MigrationItem::Member { .. }
            | MigrationItem::GroupOf { .. }
            | MigrationItem::Notification { .. } => {}
        }
    }
}

/// Moves everything, and tells `progress` after each step which share of the pages is done, 0 to 1.
/// May be dropped at any time: nothing has arrived then, and the move begins anew.
///
/// # Errors
/// Those of either engine; `Refused` also if an instance used the fleet meanwhile.
pub async fn migrate(
    from: &(impl Exporter + super::Engine),
    to: &dyn Importer,
    progress: impl Fn(f64),
) -> Result<Moved> {
    from.check_rest().await?;
    let hearing = from.hearing().await?;
    let (partitions, pages) = (from.partitions(), from.pages());
    let mut moved = Moved { blind: hearing.ledger.intervals().len() as u64, ..Moved::default() };
    let mut load = Vec::new();
    for partition in 0..partitions {
        let packing = (0..pages).map(|page| from.pack_units(partition, page));
        let mut packed = stream::iter(packing).buffered(UNDER_WAY).enumerate();
        while let Some((page, parcels)) = packed.next().await {
            load.extend(parcels?);
            if load.len() >= LOAD {
                carry(std::mem::take(&mut load), to, &mut moved).await?;
            }
            let done = f64::from(partition) + page as f64 / f64::from(pages);
            progress(done / f64::from(partitions));
        }
        load.extend(from.pack_rest(partition).await?);
    }
    load.extend(from.pack_rest(partitions).await?);
    carry(load, to, &mut moved).await?;
    from.check_rest().await?;
    if from.hearing().await? != hearing {
        let why = "an instance used the fleet while it was moved; stop every instance, then move again";
        return Err(EngineError::Refused(why.to_owned()));
    }
    to.complete(hearing).await?;
    Ok(moved)
}

async fn carry(parcels: Vec<MigrationItem>, to: &dyn Importer, moved: &mut Moved) -> Result<()> {
    parcels.iter().for_each(|parcel| moved.count(parcel));
    if parcels.is_empty() { Ok(()) } else { to.unpack(parcels).await }
}

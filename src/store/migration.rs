//! Migration: a fleet as items that every engine exports and imports.
//!
//! One engine exports the fleet page by page, the other imports it. An item says what is true of the fleet, not how
//! an engine stores it. No instance may serve the fleet meanwhile, on either engine.
//!
//! The target holds the whole fleet or none: until the migration is complete it holds no fleet that an instance could
//! serve, and an interrupted migration starts again from the beginning.
//!
//! # What is not migrated
//! Leases, members of shared subscriptions and sessions of the broker belong to connections, which end before a
//! migration. Heartbeats that they may have lost are later than `heard`, so that time is blind. Unreadable entries
//! of the outbox stay in the source, for an operator.

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt};

use super::lane::Lane;
use super::{Cells, EngineError, Index, IndexEntry, OutboxEvent, ReceiverName, Result, Table, TableValue};
use crate::clock::Timestamp;
use crate::presence::{Hearing, OfflineRecord, Unit};

/// The number of pages that are requested at once, so that the engine always has the next request.
const UNDER_WAY: usize = 16;
/// The number of items that completes a batch; the page that reaches it is added whole.
const BATCH: usize = 1000;

/// The error for a fleet whose migration is not complete.
pub(super) fn incomplete(target: &str) -> EngineError {
    EngineError::Refused(format!(
        "a move to {target} has begun and is not complete; let it end, or repeat it: rollcall move"
    ))
}

/// The number of the layout: how the engines store a fleet. A fleet of another layout is refused.
pub(super) const LAYOUT: u32 = 10;

/// Refuses the fleet at `place` if it has another layout; `place_option` is the option that names a place for a new
/// fleet. `found` is `None` for a fleet from before layouts had numbers.
pub(super) fn check_layout(found: Option<u32>, place: &str, place_option: &str) -> Result<()> {
    let (found, advice) = match found {
        Some(LAYOUT) => return Ok(()),
        Some(newer) if newer > LAYOUT => (
            format!("layout {newer}, which is a newer version's"),
            "start the newer version again; to go back, restore the backup that was taken before the upgrade"
                .to_owned(),
        ),
        older => (
            older.map_or("an older layout".to_owned(), |older| format!("layout {older}")),
            format!(
                "with the version that wrote it, write its units to a file (rollcall export); then set another \
                 {place_option}, start this version, and read the file (rollcall import)"
            ),
        ),
    };
    Err(EngineError::Refused(format!(
        "the fleet at {place} is stored in {found}, and this version reads layout {LAYOUT}: {advice}"
    )))
}

/// A part of a fleet.
#[derive(Clone, Debug, PartialEq)]
pub enum MigrationItem {
    Unit {
        unit: Unit,
        /// Written by `encoding`.
        facts: String,
        /// The last heartbeat, from the expiry key.
        alive: Option<Timestamp>,
        /// `None`: the unit is not in the deadline index.
        next_check: Option<Timestamp>,
    },
    /// The newest value of a unit's metric. Comes after the unit.
    Value {
        unit: Unit,
        metric: String,
        /// When the value arrived.
        at: Timestamp,
        value: String,
    },
    /// An offline record, open or closed.
    Record(OfflineRecord),
    /// An event that has joined no group yet; in order within a partition.
    OutboxEvent(OutboxEvent),
    Cell {
        table: Table,
        partition: u16,
        name: String,
        value: Vec<u8>,
    },
    /// An entry of an index.
    Entry {
        index: Index,
        partition: u16,
        name: String,
        at: i64,
    },
}

impl MigrationItem {
    /// The cells of a partition, and their indexes.
    pub(super) async fn cells(
        engine: &impl Cells,
        partition: u16,
        receivers: &[ReceiverName],
    ) -> Result<Vec<MigrationItem>> {
        let mut items = Vec::new();
        for table in Table::all(receivers) {
            let cells = engine.all_cells(table, partition).await?.into_iter();
            items.extend(cells.map(|(name, value)| MigrationItem::Cell { table, partition, name, value }));
        }
        for index in Index::all(receivers) {
            let entries = engine.entries(index, &[partition], i64::MAX, usize::MAX).await?.into_iter();
            let item = |IndexEntry { at, name, .. }| MigrationItem::Entry { index, partition, name, at };
            items.extend(entries.map(item));
        }
        Ok(items)
    }
}

/// The source of a migration.
#[async_trait]
pub trait Exporter: Send + Sync {
    /// Fails if an instance serves the fleet.
    async fn check_not_served(&self) -> Result<()>;

    /// The units of a page, numbered as in [`super::Queries::walk`], and their values.
    async fn export_units(&self, partition: u16, page: u32) -> Result<Vec<MigrationItem>>;

    /// Up to when the heartbeats of the export are complete, if that may be earlier than the fleet has heard.
    async fn complete_until(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    /// Everything else of a partition. The number after the last partition stands for all data outside of partitions.
    async fn export_rest(&self, partition: u16, receivers: &[ReceiverName]) -> Result<Vec<MigrationItem>>;
}

/// The target of a migration.
#[async_trait]
pub trait Importer: Send + Sync {
    async fn import(&self, items: Vec<MigrationItem>) -> Result<()>;

    /// Ends the migration after all items are imported: instances may serve the fleet now.
    async fn complete(&self, hearing: Hearing) -> Result<()>;
}

/// How many items were migrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub units: u64,
    /// Newest values of metrics.
    pub values: u64,
    pub open_records: u64,
    pub closed_records: u64,
    /// Events of the outbox, and members of groups that wait for a notification.
    pub unsealed: u64,
    /// Sealed notifications that a receiver has not got yet, counted for each receiver.
    pub undelivered: u64,
    pub dead_letters: u64,
    /// Timers that wait.
    pub timers: u64,
    pub silences: u64,
    pub blind: u64,
}

impl Moved {
    fn count(&mut self, item: &MigrationItem) {
        match item {
            MigrationItem::Unit { .. } => self.units += 1,
            MigrationItem::Value { .. } => self.values += 1,
            MigrationItem::Record(record) if record.closed_by.is_none() => self.open_records += 1,
            MigrationItem::Record(_) => self.closed_records += 1,
            MigrationItem::OutboxEvent(_) => self.unsealed += 1,
            MigrationItem::Entry { index: Index::Waiting, .. } => self.unsealed += 1,
            MigrationItem::Cell { table: Table::Lanes(_), value, .. } => {
                let lane = Lane::decode(value);
                self.undelivered += lane.map_or(0, |lane| lane.notifications.len() as u64);
            }
            MigrationItem::Cell { table: Table::DeadLetters(_), .. } => self.dead_letters += 1,
            MigrationItem::Cell { table: Table::Silences, .. } => self.silences += 1,
            MigrationItem::Cell { table: Table::Timers, .. } => self.timers += 1,
            MigrationItem::Cell { .. } | MigrationItem::Entry { .. } => {}
        }
    }
}

/// Migrates a fleet, and calls `progress` after each page with the completed share of all pages, 0 to 1. May be
/// dropped at any time: the target then holds no fleet, and the migration starts again from the beginning.
///
/// # Errors
/// The errors of either engine; `Refused` also if an instance served the fleet meanwhile.
pub async fn migrate(
    from: &(impl super::Engine + ?Sized),
    to: &dyn Importer,
    progress: impl Fn(f64),
) -> Result<Moved> {
    from.check_not_served().await?;
    let hearing = from.hearing().await?;
    let (partitions, pages) = (from.partitions(), from.pages());
    let mut moved = Moved { blind: hearing.ledger.intervals().len() as u64, ..Moved::default() };
    let receivers: Vec<ReceiverName> = from.receivers_with_cells().await?.into_iter().collect();
    let mut batch = Vec::new();
    for partition in 0..partitions {
        let exports = (0..pages).map(|page| from.export_units(partition, page));
        let mut exported = stream::iter(exports).buffered(UNDER_WAY).enumerate();
        while let Some((page, items)) = exported.next().await {
            batch.extend(items?);
            if batch.len() >= BATCH {
                import(std::mem::take(&mut batch), to, &mut moved).await?;
            }
            let done = f64::from(partition) + page as f64 / f64::from(pages);
            progress(done / f64::from(partitions));
        }
        batch.extend(from.export_rest(partition, &receivers).await?);
    }
    batch.extend(from.export_rest(partitions, &receivers).await?);
    import(batch, to, &mut moved).await?;
    from.check_not_served().await?;
    if from.hearing().await? != hearing {
        let why = "an instance used the fleet while it was moved; stop every instance, then move again";
        return Err(EngineError::Refused(why.to_owned()));
    }
    let heard = match (hearing.heard, from.complete_until().await?) {
        (Some(heard), Some(until)) => Some(heard.min(until)),
        (heard, _) => heard,
    };
    to.complete(Hearing { heard, ..hearing }).await?;
    Ok(moved)
}

async fn import(items: Vec<MigrationItem>, to: &dyn Importer, moved: &mut Moved) -> Result<()> {
    items.iter().for_each(|item| moved.count(item));
    if items.is_empty() { Ok(()) } else { to.import(items).await }
}

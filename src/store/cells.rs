//! Cells: the contract of an engine for everything that is not on the path of a heartbeat or of a deadline check.
//!
//! A **cell** is a named value of a table; an **index** has names by a number, usually a time (ms). A [`ChangeSet`]
//! changes cells and entries of one partition in one step if all that it expects holds; otherwise it changes nothing.
//! Decisions are written once, above this contract, and every engine stores them in one way.
//!
//! The number after the last partition stands for the fleet as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;

use super::cell_tables::{Index, Table};
use super::change_set::ChangeSet;
use super::receiver_name::ReceiverName;
use super::{Layout, Result};
use crate::telemetry::Telemetry;

/// The address of a cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    pub table: Table,
    pub partition: u16,
    pub name: String,
}

/// An entry of an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexEntry {
    pub at: i64,
    pub name: String,
    pub partition: u16,
}

/// The order of a list, by when its entries were written or are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryOrder {
    NewestFirst,
    OldestFirst,
}

/// A range of entries of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRange<'a> {
    pub index: Index,
    pub from: i64,
    /// Skips the entries at `from` up to this name (bytes), which need not exist; empty: skips none. Only for
    /// [`EntryOrder::OldestFirst`].
    pub after: &'a str,
    pub until: i64,
    pub limit: usize,
    pub order: EntryOrder,
}

/// Names of an index whose entries are all at zero, in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRange {
    pub partition: u16,
    /// The first name; it need not exist.
    pub from: String,
    /// The end of the range, exclusive.
    pub before: String,
}

impl NameRange {
    /// The names that begin with `begin`.
    pub fn of(partition: u16, begin: &str) -> NameRange {
        // No name contains the greatest character.
        NameRange { partition, from: begin.to_owned(), before: format!("{begin}{}", char::MAX) }
    }
}

/// Where the next page of a scan begins. Only the engine that created it reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellCursor(pub(super) String);

/// A page of a table, unordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellPage {
    pub cells: Vec<(String, Vec<u8>)>,
    /// `None`: it was the last page.
    pub next: Option<CellCursor>,
}

/// A value that cannot be read, or an invalid name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    Cell(Cell, Vec<u8>),
    /// The readable part of the value stays in use; a copy of the value is quarantined.
    CellInPart(Cell, Vec<u8>),
    Entry(Index, IndexEntry),
}

/// The cells of a fleet.
#[async_trait]
pub trait Cells: Layout {
    /// The values of these cells, in order; `None`: there is none.
    async fn read_cells(&self, cells: &[Cell]) -> Result<Vec<Option<Vec<u8>>>>;

    /// Applies each change-set, in order, if all that it expects holds. Answers, in order, which are applied.
    async fn write_cells(&self, sets: &[ChangeSet]) -> Result<Vec<bool>>;

    /// The numbers of entries, in order; `None`: there is no such entry.
    async fn numbers(&self, index: Index, entries: &[(u16, &str)]) -> Result<Vec<Option<i64>>>;

    /// The receivers that have tables with cells, whether they are in [`Table::ReceiverList`] or not. Slow.
    async fn receivers_with_cells(&self) -> Result<BTreeSet<ReceiverName>>;

    fn telemetry(&self) -> &Arc<Telemetry>;

    /// Waits until replicas have the last writes of these partitions, if the engine is configured to. Call it before
    /// a client gets its answer.
    async fn replicated(&self, _partitions: BTreeSet<u16>) {}

    /// Entries of these partitions, in the order of the range.
    async fn range(&self, range: &IndexRange<'_>, partitions: &[u16]) -> Result<Vec<IndexEntry>>;

    /// Up to `limit` entries of these partitions, up to `until` and the lowest first.
    async fn entries(
        &self,
        index: Index,
        partitions: &[u16],
        until: i64,
        limit: usize,
    ) -> Result<Vec<IndexEntry>> {
        let range =
            IndexRange { index, from: i64::MIN, after: "", until, limit, order: EntryOrder::OldestFirst };
        self.range(&range, partitions).await
    }

    /// Up to about `limit` entries of these partitions up to `until`, the lowest of each partition first. Beyond the
    /// limit, partitions with few entries are taken whole, and then others in order.
    async fn due_entries(
        &self,
        index: Index,
        partitions: &[u16],
        until: i64,
        limit: usize,
    ) -> Result<Vec<IndexEntry>> {
        self.entries(index, partitions, until, limit).await
    }

    /// How many entries each of these partitions has, in order. The embedded engine counts them one by one.
    async fn sizes(&self, index: Index, partitions: &[u16]) -> Result<Vec<i64>>;

    /// The first names of each of these ranges, up to `limit`, in order.
    async fn names(&self, index: Index, ranges: &[NameRange], limit: usize) -> Result<Vec<Vec<String>>>;

    /// The number of names in each of these ranges. The embedded engine counts them one by one.
    async fn count_names(&self, index: Index, ranges: &[NameRange]) -> Result<Vec<usize>>;

    /// A page of a table in a partition. Cells that change meanwhile may be on two pages, or on none.
    async fn scan_cells(&self, table: Table, partition: u16, from: Option<CellCursor>) -> Result<CellPage>;

    /// All cells of a table in a partition, by their names.
    async fn all_cells(&self, table: Table, partition: u16) -> Result<BTreeMap<String, Vec<u8>>> {
        let mut page = self.scan_cells(table, partition, None).await?;
        let mut all: BTreeMap<String, Vec<u8>> = page.cells.into_iter().collect();
        while let Some(next) = page.next {
            page = self.scan_cells(table, partition, Some(next)).await?;
            all.extend(page.cells);
        }
        Ok(all)
    }

    /// Quarantines an unreadable value if it is unchanged, and reports it: see `docs/broken-values.md`.
    async fn quarantine_cell(&self, unreadable: &Unreadable, why: &str) -> Result<()>;
}

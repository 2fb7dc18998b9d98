//! Cells: the contract of an engine for everything that is not on the path of a heartbeat or of a deadline check.
//!
//! A **cell** is a named value of a table; an **index** has names by a number, usually a time (ms). A [`ChangeSet`]
//! changes cells and entries of one partition in one step, if all that it expects is so; otherwise it changes nothing.
//! What is decided is written once, above this contract, and every engine stores it in one way.
//!
//! The number after the last partition stands for what belongs to the fleet as a whole.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;

use super::{Layout, MAX_AUDITED, Result, partition_of_group};
use crate::telemetry::Stored;

/// The tables of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// A unit → its last transitions, where its kind has flap detection: see `presence/flapping.rs`.
    Flaps,
    /// A unit that flaps → the record of its episode.
    Episodes,
    /// A group → the incident of its silences that lasts: see `alerting/incidents.rs`.
    Incidents,
    /// A table that instances keep a copy of → its version, another one after each change.
    Versions,
    /// Alert silences by their ids.
    Silences,
    /// A unit whose silence inhibits others → its last record: see `fleet/inhibitions.rs`.
    Sources,
    /// `trip` → the last trip of the mass-offline breaker: see `fleet/mass_breaker.rs`.
    Breaker,
    /// A receiver with a rate limit → when messages were sent to it, and its open digest: see `alerting/limit.rs`.
    Limits,
    /// The same receiver → the notifications of its open digest.
    Digests,
    /// A receiver → how the attempts at it ended: see `fleet/receivers.rs`.
    Receivers,
    /// The SHA-256 of the cookie of a session that was ended → when it would have ended: see `http/ended_sessions.rs`.
    Sessions,
    /// `fleet` → since when it is watched: see `http/beginning.rs`.
    Watched,
    /// The record of attempts to deliver: see `store/attempts.rs`. A name begins with the number of its partition.
    Attempts,
    /// Numbers of a partition, by what they count: `attempts`, the bytes of its record of attempts.
    Counts,
}

impl Table {
    pub const ALL: [Table; 14] = [
        Table::Flaps,
        Table::Episodes,
        Table::Incidents,
        Table::Versions,
        Table::Silences,
        Table::Sources,
        Table::Breaker,
        Table::Limits,
        Table::Digests,
        Table::Receivers,
        Table::Sessions,
        Table::Watched,
        Table::Attempts,
        Table::Counts,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Table::Flaps => "flaps",
            Table::Episodes => "episodes",
            Table::Incidents => "incidents",
            Table::Versions => "versions",
            Table::Silences => "silences",
            Table::Sources => "sources",
            Table::Breaker => "breaker",
            Table::Limits => "limits",
            Table::Digests => "digests",
            Table::Receivers => "receivers",
            Table::Sessions => "sessions",
            Table::Watched => "watched",
            Table::Attempts => "attempts",
            Table::Counts => "counts",
        }
    }

    pub fn named(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.as_str() == name)
    }

    /// The sort of its values, in the log and in metrics.
    pub fn what(self) -> Stored {
        match self {
            Table::Flaps | Table::Episodes | Table::Incidents => Stored::Group,
            Table::Silences => Stored::AlertSilence,
            Table::Limits | Table::Digests | Table::Receivers => Stored::Delivery,
            Table::Attempts => Stored::Attempt,
            Table::Versions | Table::Sources | Table::Breaker => Stored::Other,
            Table::Sessions | Table::Watched | Table::Counts => Stored::Other,
        }
    }

    /// The partition of a cell, by its name; the number after the last is that of the fleet.
    pub fn partition(self, name: &str, partitions: u16) -> u16 {
        match self {
            // The name is that of a unit or of a group.
            Table::Flaps | Table::Episodes | Table::Incidents => partition_of_group(name, partitions),
            Table::Attempts => {
                let number = name.split_once('.').and_then(|(number, _)| number.parse().ok());
                number.unwrap_or(partitions).min(partitions)
            }
            _ => partitions,
        }
    }
}

/// The indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Index {
    /// The units of [`Table::Flaps`], by when each is looked at (ms).
    FlapChecks,
    /// The entries of [`Table::Attempts`], by when they were written (ms).
    AttemptsWritten,
    /// A word of an attempt, a space, and its entry of [`Table::Attempts`]: see `store/attempts.rs`. All are at zero.
    AttemptsOf,
}

impl Index {
    pub const ALL: [Index; 3] = [Index::FlapChecks, Index::AttemptsWritten, Index::AttemptsOf];

    pub fn as_str(self) -> &'static str {
        match self {
            Index::FlapChecks => "flap_checks",
            Index::AttemptsWritten => "attempts_written",
            Index::AttemptsOf => "attempts_of",
        }
    }

    pub fn named(name: &str) -> Option<Index> {
        Index::ALL.into_iter().find(|index| index.as_str() == name)
    }

    /// The table with the cells of its names.
    pub fn table(self) -> Table {
        match self {
            Index::FlapChecks => Table::Flaps,
            Index::AttemptsWritten | Index::AttemptsOf => Table::Attempts,
        }
    }
}

/// The logs: entries in the order in which they were appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Log {
    /// The changes that operators made.
    Audit,
}

impl Log {
    pub const ALL: [Log; 1] = [Log::Audit];

    pub fn as_str(self) -> &'static str {
        match self {
            Log::Audit => "audit",
        }
    }

    pub fn named(name: &str) -> Option<Log> {
        Log::ALL.into_iter().find(|log| log.as_str() == name)
    }

    /// The sort of its entries, in the log and in metrics.
    pub fn what(self) -> Stored {
        match self {
            Log::Audit => Stored::Audit,
        }
    }

    /// The most entries; the oldest leave first.
    pub fn most(self) -> usize {
        match self {
            Log::Audit => MAX_AUDITED,
        }
    }
}

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
pub enum ListOrder {
    NewestFirst,
    OldestFirst,
}

/// Which entries of an index are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRange {
    pub index: Index,
    pub from: i64,
    pub until: i64,
    pub limit: usize,
    pub order: ListOrder,
}

/// What a part of a change-set expects or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Expects a cell to have this value.
    Has(Table),
    /// Expects no such cell.
    Lacks(Table),
    /// Expects an entry to be at this number.
    IsAt(Index),
    /// Expects no such entry.
    IsOff(Index),
    Put(Table),
    Remove(Table),
    /// Adds to the number in a cell.
    Add(Table),
    Enter(Index),
    Leave(Index),
    Append(Log),
}

/// A part of a change-set, on one cell or entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub what: What,
    /// Empty for `Append`.
    pub name: String,
    /// Of `Has`, `Put` and `Append`.
    pub value: Vec<u8>,
    /// Of `IsAt` and `Enter`; of `Add`, how much.
    pub at: i64,
}

/// Changes of one partition that apply together, if all that is expected is so before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet {
    pub partition: u16,
    pub parts: Vec<Part>,
}

impl ChangeSet {
    pub fn of(partition: u16) -> ChangeSet {
        ChangeSet { partition, parts: Vec::new() }
    }

    /// Expects a cell to have this value; `None`: not to be.
    #[must_use]
    pub fn has(self, table: Table, name: &str, value: Option<&[u8]>) -> ChangeSet {
        let what = if value.is_some() { What::Has(table) } else { What::Lacks(table) };
        self.part(what, name, value.unwrap_or_default(), 0)
    }

    /// Expects an entry to be at this number; `None`: not to be.
    #[must_use]
    pub fn is_at(self, index: Index, name: &str, at: Option<i64>) -> ChangeSet {
        let what = if at.is_some() { What::IsAt(index) } else { What::IsOff(index) };
        self.part(what, name, &[], at.unwrap_or_default())
    }

    /// Writes a cell; `None` removes it.
    #[must_use]
    pub fn put(self, table: Table, name: &str, value: Option<&[u8]>) -> ChangeSet {
        let what = if value.is_some() { What::Put(table) } else { What::Remove(table) };
        self.part(what, name, value.unwrap_or_default(), 0)
    }

    /// Adds to the number in a cell. An absent cell is zero, and a cell that becomes zero is removed; so is text that is
    /// no number. Change-sets that only add to a cell never wait for one another, and expect nothing of it. No change-set
    /// adds to a cell that it also writes.
    #[must_use]
    pub fn add(self, table: Table, name: &str, more: i64) -> ChangeSet {
        self.part(What::Add(table), name, &[], more)
    }

    /// Enters a name into an index; `None` takes it out.
    #[must_use]
    pub fn enter(self, index: Index, name: &str, at: Option<i64>) -> ChangeSet {
        let what = if at.is_some() { What::Enter(index) } else { What::Leave(index) };
        self.part(what, name, &[], at.unwrap_or_default())
    }

    /// Appends an entry to a log.
    #[must_use]
    pub fn append(self, log: Log, entry: &[u8]) -> ChangeSet {
        self.part(What::Append(log), "", entry, 0)
    }

    fn part(mut self, what: What, name: &str, value: &[u8], at: i64) -> ChangeSet {
        self.parts.push(Part { what, name: name.to_owned(), value: value.to_owned(), at });
        self
    }

    /// What it expects and does, without names and values, and how many parts in a row do it. Change-sets of one shape
    /// are written together.
    pub(super) fn shape(&self) -> Shape {
        let mut shape = Shape::new();
        for Part { what, .. } in &self.parts {
            match shape.last_mut().filter(|(last, _)| last == what) {
                Some((_, times)) => *times += 1,
                None => shape.push((*what, 1)),
            }
        }
        shape
    }

    /// The cells and entries that it reads or writes, and whether it only adds to them.
    fn touched(&self) -> impl Iterator<Item = (Touched<'_>, bool)> {
        self.parts.iter().filter_map(|Part { what, name, .. }| match what {
            What::Has(table) | What::Lacks(table) | What::Put(table) | What::Remove(table) => {
                Some(((true, table.as_str(), name.as_str()), false))
            }
            What::Add(table) => Some(((true, table.as_str(), name.as_str()), true)),
            What::IsAt(index) | What::IsOff(index) | What::Enter(index) | What::Leave(index) => {
                Some(((false, index.as_str(), name.as_str()), false))
            }
            What::Append(_) => None,
        })
    }
}

/// See [`ChangeSet::shape`].
pub(super) type Shape = Vec<(What, usize)>;

/// Whether it is a cell, the table or index, the name.
type Touched<'a> = (bool, &'static str, &'a str);

/// The places of change-sets, in batches that are written one after the other: no two of a batch touch one cell or
/// entry, so all that a batch expects can be read before its first write. Change-sets that only add to a cell may be in
/// one batch.
pub(super) fn batches(sets: &[ChangeSet]) -> Vec<Vec<usize>> {
    let mut last: HashMap<(u16, Touched<'_>, bool), usize> = HashMap::new();
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for (at, set) in sets.iter().enumerate() {
        let of = |name, adds| (set.partition, name, adds);
        let before = set.touched().flat_map(|(name, adds)| {
            [last.get(&of(name, false)), last.get(&of(name, true)).filter(|_| !adds)]
        });
        let batch = before.flatten().map(|batch| batch + 1).max().unwrap_or(0);
        last.extend(set.touched().map(|(name, adds)| (of(name, adds), batch)));
        if batch == batches.len() {
            batches.push(Vec::new());
        }
        batches[batch].push(at);
    }
    batches
}

/// Where the next page of a scan begins. Only the engine that made it reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub(super) String);

/// A page of a table, unordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellPage {
    pub cells: Vec<(String, Vec<u8>)>,
    /// `None`: it was the last page.
    pub next: Option<Cursor>,
}

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub partition: u16,
    /// Only the engine that made it reads it.
    pub id: String,
    pub value: Vec<u8>,
}

/// A value that cannot be read, or a name that cannot be the name of anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    Cell(Cell, Vec<u8>),
    Entry(Index, IndexEntry),
    Logged(Log, Logged),
}

/// The cells of a fleet.
#[async_trait]
pub trait Cells: Layout {
    /// The values of these cells, in order; `None`: there is none.
    async fn read_cells(&self, cells: &[Cell]) -> Result<Vec<Option<Vec<u8>>>>;

    /// Applies each change-set, in order, if all that it expects is so. Answers, in order, which are applied.
    async fn write_cells(&self, sets: &[ChangeSet]) -> Result<Vec<bool>>;

    /// Entries of these partitions, in the order of the range.
    async fn range(&self, range: &IndexRange, partitions: &[u16]) -> Result<Vec<IndexEntry>>;

    /// Up to `limit` entries of these partitions, up to `until` and the lowest first.
    async fn entries(
        &self,
        index: Index,
        partitions: &[u16],
        until: i64,
        limit: usize,
    ) -> Result<Vec<IndexEntry>> {
        let range = IndexRange { index, from: i64::MIN, until, limit, order: ListOrder::OldestFirst };
        self.range(&range, partitions).await
    }

    /// For each of these partitions and begins of names, up to `limit` names that begin so, in the order of their bytes.
    /// All entries of such an index are at zero.
    async fn names(&self, index: Index, begins: &[(u16, String)], limit: usize) -> Result<Vec<Vec<String>>>;

    /// A page of a table in a partition. Cells that change meanwhile may be on two pages, or on none.
    async fn scan_cells(&self, table: Table, partition: u16, from: Option<Cursor>) -> Result<CellPage>;

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

    /// Up to `limit` entries of a log, newest first.
    async fn newest(&self, log: Log, partition: u16, limit: usize) -> Result<Vec<Logged>>;

    /// Moves what cannot be read away, if it is still so, and reports it: see `docs/broken-values.md`.
    async fn quarantine_cell(&self, unreadable: &Unreadable, why: &str) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_sets_that_touch_one_cell_are_written_one_after_the_other() {
        let put = |partition, name: &str| ChangeSet::of(partition).put(Table::Flaps, name, Some(b""));
        let enter = |name: &str| ChangeSet::of(0).enter(Index::FlapChecks, name, Some(1));
        let both = put(0, "a").enter(Index::FlapChecks, "b", None);
        let sets = [put(0, "a"), put(1, "a"), put(0, "b"), put(0, "a"), enter("b"), both, put(0, "b")];
        assert_eq!(batches(&sets), [vec![0, 1, 2, 4], vec![3, 6], vec![5]]);
        let add = || ChangeSet::of(0).add(Table::Flaps, "a", 1);
        assert_eq!(batches(&[add(), add(), put(0, "a"), add(), add()]), [vec![0, 1], vec![2], vec![3, 4]]);
        assert_eq!(batches(&[]), Vec::<Vec<usize>>::new());
    }
}

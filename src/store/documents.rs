//! Cells as typed values: how each table is encoded and decoded, and how unreadable values are quarantined.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::cell_tables::{Index, Table};
use super::cells::{Cell, Cells, EntryOrder, IndexEntry, IndexRange, NameRange, Unreadable};
use super::change_set::ChangeSet;
use super::json::{append_json, from_json};
use super::{EngineError, MAX_STEP, Result};
use crate::clock::Timestamp;

/// How many partitions are read at once.
const AT_ONCE: usize = 32;

/// A value of a table.
pub trait TableValue: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The names of the cells.
    type Name: FromStr + Display + Clone + Ord + Send + Sync + 'static;
    const TABLE: Table;

    /// Appends the value as JSON, unless the table has a reason for another form.
    fn encode_into(&self, stored: &mut Vec<u8>) -> Result<()> {
        append_json(stored, self)
    }

    fn encode(&self) -> Result<Vec<u8>> {
        let mut stored = Vec::new();
        self.encode_into(&mut stored)?;
        Ok(stored)
    }

    fn decode(stored: &[u8]) -> Result<Self> {
        from_json(Self::TABLE.as_str(), &String::from_utf8_lossy(stored))
    }
}

/// A cell with the value that was read.
#[derive(Clone, Debug)]
pub struct Document<T: TableValue> {
    pub name: T::Name,
    /// `None`: the cell is absent or unreadable.
    pub value: Option<T>,
    /// `None`: the table of `T`.
    table: Option<Table>,
    stored: Option<Vec<u8>>,
}

impl<T: TableValue> Document<T> {
    /// A document that is expected to be stored with this value; `None`: to be absent.
    pub fn expected(name: T::Name, value: Option<T>) -> Result<Document<T>> {
        let stored = value.as_ref().map(T::encode).transpose()?;
        Ok(Document { name, value, table: None, stored })
    }

    /// This document after the value was written.
    pub fn written(&self, value: T) -> Result<Document<T>> {
        let written = Document::expected(self.name.clone(), Some(value))?;
        Ok(Document { table: self.table, ..written })
    }

    /// The document of a cell that is expected to be absent.
    pub fn absent(cell: Cell) -> Document<T>
    where
        T: TableValue<Name = String>,
    {
        Document { name: cell.name, value: None, table: Some(cell.table), stored: None }
    }

    fn table(&self) -> Table {
        self.table.unwrap_or(T::TABLE)
    }

    /// A change-set that also expects the document to be unchanged.
    pub fn expect_in(&self, set: ChangeSet) -> ChangeSet {
        set.has(self.table(), &self.name.to_string(), self.stored.as_deref())
    }

    /// A change-set that also writes this value if the document is unchanged; `None` removes it.
    pub fn change_in(&self, set: ChangeSet, value: Option<&T>) -> Result<ChangeSet> {
        self.put_in(self.expect_in(set), value)
    }

    /// A change-set that also writes this value, whatever is stored; `None` removes it.
    pub fn put_in(&self, set: ChangeSet, value: Option<&T>) -> Result<ChangeSet> {
        put_value(set, self.table(), &self.name.to_string(), value)
    }

    /// This document without its expectation, for a change-set that expects something else.
    pub fn without_stored(self) -> Document<T> {
        Document { stored: None, ..self }
    }
}

/// The cells of a fleet, as values. Cheap to clone.
#[derive(Clone)]
pub struct Documents {
    cells: Arc<dyn Cells>,
}

impl Documents {
    pub fn new(cells: Arc<dyn Cells>) -> Documents {
        Documents { cells }
    }

    /// The documents of these names, in order. An unreadable document is quarantined, and counts as absent.
    pub async fn read<T: TableValue>(&self, names: &[T::Name]) -> Result<Vec<Document<T>>> {
        let mut documents = Vec::with_capacity(names.len());
        for names in names.chunks(MAX_STEP) {
            let cells: Vec<Cell> = names.iter().map(|name| self.cell::<T>(&name.to_string())).collect();
            let stored = self.cells.read_cells(&cells).await?;
            for ((name, cell), stored) in names.iter().zip(cells).zip(stored) {
                documents.push(self.decode(name.clone(), cell, stored).await?);
            }
        }
        Ok(documents)
    }

    /// The documents of these cells, in order. An unreadable document is quarantined, and counts as absent.
    pub async fn read_cells<T: TableValue<Name = String>>(
        &self,
        cells: Vec<Cell>,
    ) -> Result<Vec<Document<T>>> {
        let stored = self.cells.read_cells(&cells).await?;
        let mut documents = Vec::with_capacity(cells.len());
        for (cell, stored) in cells.into_iter().zip(stored) {
            documents.push(self.document(cell, stored).await?);
        }
        Ok(documents)
    }

    /// The document of a cell that holds this value.
    pub async fn document<T: TableValue<Name = String>>(
        &self,
        cell: Cell,
        stored: Option<Vec<u8>>,
    ) -> Result<Document<T>> {
        let (name, table) = (cell.name.clone(), cell.table);
        Ok(Document { table: Some(table), ..self.decode(name, cell, stored).await? })
    }

    /// The document of this name.
    pub async fn one<T: TableValue>(&self, name: &T::Name) -> Result<Document<T>> {
        let mut read = self.read(std::slice::from_ref(name)).await?;
        Ok(read.pop().expect("a document for each name"))
    }

    /// All documents of these partitions.
    pub async fn all<T: TableValue>(&self, partitions: &[u16]) -> Result<BTreeMap<T::Name, T>> {
        Ok(self.each(partitions).await?.into_iter().collect())
    }

    /// The documents of each of these partitions; a name may be in several of them.
    pub async fn each<T: TableValue>(&self, partitions: &[u16]) -> Result<Vec<(T::Name, T)>> {
        let read = partitions.iter().copied().map(|partition| async move {
            let cells = self.cells.all_cells(T::TABLE, partition).await?;
            let mut documents = Vec::with_capacity(cells.len());
            for read in decoded::<T>(partition, cells).await? {
                match read {
                    Ok(document) => documents.push(document),
                    Err((unreadable, why)) => self.cells.quarantine_cell(&unreadable, &why).await?,
                }
            }
            Ok::<_, EngineError>(documents)
        });
        let read: Vec<Vec<(T::Name, T)>> = stream::iter(read).buffered(AT_ONCE).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// All documents of a table of the fleet.
    pub async fn of_fleet<T: TableValue>(&self) -> Result<BTreeMap<T::Name, T>> {
        self.all(&[self.fleet()]).await
    }

    /// The number that stands for the fleet as a whole.
    pub fn fleet(&self) -> u16 {
        self.cells.partitions()
    }

    /// The stored bytes of a cell.
    pub async fn stored(&self, table: Table, name: &str) -> Result<Option<Vec<u8>>> {
        let cell = Cell { table, partition: table.partition(name, self.fleet()), name: name.to_owned() };
        Ok(self.cells.read_cells(&[cell]).await?.pop().flatten())
    }

    /// Entries of an index in these partitions.
    pub async fn range(&self, range: &IndexRange<'_>, partitions: &[u16]) -> Result<Vec<IndexEntry>> {
        self.cells.range(range, partitions).await
    }

    /// Names of an index: see [`Cells::names`].
    pub async fn names(&self, index: Index, ranges: &[NameRange], limit: usize) -> Result<Vec<Vec<String>>> {
        self.cells.names(index, ranges, limit).await
    }

    /// See [`Cells::count_names`].
    pub async fn count_names(&self, index: Index, ranges: &[NameRange]) -> Result<Vec<usize>> {
        self.cells.count_names(index, ranges).await
    }

    /// The numbers of names in an index, in order; `None`: there is no such entry.
    pub async fn numbers<T: TableValue>(
        &self,
        index: Index,
        names: &[&str],
    ) -> Result<Vec<Option<Timestamp>>> {
        let entries: Vec<(u16, &str)> = names.iter().map(|name| (self.partition::<T>(name), *name)).collect();
        let numbers = self.cells.numbers(index, &entries).await?;
        Ok(numbers.into_iter().map(|at| at.map(Timestamp::from_millis)).collect())
    }

    /// The number of this name in [`Table::Counts`] of each of these partitions.
    pub async fn counts(&self, partitions: &[u16], name: &str) -> Result<Vec<i64>> {
        let cell =
            |partition: &u16| Cell { table: Table::Counts, partition: *partition, name: name.to_owned() };
        let stored = self.cells.read_cells(&partitions.iter().map(cell).collect::<Vec<_>>()).await?;
        let number = |stored: Option<Vec<u8>>| str::from_utf8(&stored?).ok()?.parse().ok();
        Ok(stored.into_iter().map(|stored| number(stored).unwrap_or(0)).collect())
    }

    /// How many entries an index of a partition has.
    pub(super) async fn size(&self, index: Index, partition: u16) -> Result<usize> {
        let size = self.cells.sizes(index, &[partition]).await?.pop();
        Ok(size.unwrap_or(0).max(0) as usize)
    }

    /// A change-set that also writes this document; `None` removes it.
    pub fn put<T: TableValue>(&self, set: ChangeSet, name: &T::Name, value: Option<&T>) -> Result<ChangeSet> {
        put_value(set, T::TABLE, &name.to_string(), value)
    }

    /// The change-set that writes this value if the document is unchanged; `None` removes it.
    pub fn change<T: TableValue>(&self, document: &Document<T>, value: Option<&T>) -> Result<ChangeSet> {
        document.change_in(ChangeSet::of(self.partition::<T>(&document.name.to_string())), value)
    }

    /// A change-set that also expects a document to be unchanged.
    pub fn expect<T: TableValue>(&self, set: ChangeSet, document: &Document<T>) -> ChangeSet {
        document.expect_in(set)
    }

    /// Up to about `limit` due names of an index of these partitions, and their documents.
    pub async fn due<T: TableValue>(
        &self,
        index: Index,
        partitions: &[u16],
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<Document<T>>> {
        let due = self.cells.due_entries(index, partitions, now.as_millis(), limit).await?;
        let names: Vec<T::Name> =
            self.named::<T>(index, due).await?.into_iter().map(|(_, name)| name).collect();
        self.read(&names).await
    }

    /// Up to `limit` names of an index of these partitions, after a number and a name, as in [`IndexRange`].
    pub async fn listed<T: TableValue>(
        &self,
        index: Index,
        partitions: &[u16],
        (from, after): (i64, &str),
        until: i64,
        limit: usize,
    ) -> Result<Vec<(i64, T::Name)>> {
        let range = IndexRange { index, from, after, until, limit, order: EntryOrder::OldestFirst };
        let entries = self.cells.range(&range, partitions).await?;
        self.named::<T>(index, entries).await
    }

    /// The names of entries. An entry with an invalid name, or a name of another partition, is quarantined.
    async fn named<T: TableValue>(
        &self,
        index: Index,
        entries: Vec<IndexEntry>,
    ) -> Result<Vec<(i64, T::Name)>> {
        let mut names = Vec::with_capacity(entries.len());
        for entry in entries {
            match entry.name.parse::<T::Name>() {
                Ok(name) if self.partition::<T>(&entry.name) == entry.partition => {
                    names.push((entry.at, name))
                }
                _ => self.misplaced(index, entry).await?,
            }
        }
        Ok(names)
    }

    /// When the first name of an index of these partitions is due.
    pub async fn first(&self, index: Index, partitions: &[u16]) -> Result<Option<Timestamp>> {
        let first = self.cells.entries(index, partitions, i64::MAX, 1).await?.pop();
        Ok(first.map(|entry| Timestamp::from_millis(entry.at)))
    }

    /// Applies each change-set if all that it expects holds. Answers, in order, which are applied.
    pub async fn write(&self, sets: &[ChangeSet]) -> Result<Vec<bool>> {
        self.cells.write_cells(sets).await
    }

    fn partition<T: TableValue>(&self, name: &str) -> u16 {
        T::TABLE.partition(name, self.cells.partitions())
    }

    fn cell<T: TableValue>(&self, name: &str) -> Cell {
        Cell { table: T::TABLE, partition: self.partition::<T>(name), name: name.to_owned() }
    }

    async fn decode<T: TableValue>(
        &self,
        name: T::Name,
        cell: Cell,
        stored: Option<Vec<u8>>,
    ) -> Result<Document<T>> {
        let (table, none) = (None, Document { name: name.clone(), value: None, table: None, stored: None });
        let Some(bytes) = stored else { return Ok(none) };
        match T::decode(&bytes) {
            Ok(value) => Ok(Document { name, value: Some(value), table, stored: Some(bytes) }),
            Err(why) => {
                self.cells.quarantine_cell(&Unreadable::Cell(cell, bytes), &why.to_string()).await?;
                Ok(none)
            }
        }
    }

    async fn misplaced(&self, index: Index, entry: IndexEntry) -> Result<()> {
        let why = "it belongs to nothing of its partition";
        self.cells.quarantine_cell(&Unreadable::Entry(index, entry), why).await
    }
}

fn put_value<T: TableValue>(
    set: ChangeSet,
    table: Table,
    name: &str,
    value: Option<&T>,
) -> Result<ChangeSet> {
    match value {
        Some(value) => set.put_encoded(table, name, |stored| value.encode_into(stored)),
        None => Ok(set.put(table, name, None)),
    }
}

type Decoded<T> = std::result::Result<(<T as TableValue>::Name, T), (Unreadable, String)>;

/// Decodes cells on a blocking thread, because the expressions of alert silences are compiled.
async fn decoded<T: TableValue>(partition: u16, cells: BTreeMap<String, Vec<u8>>) -> Result<Vec<Decoded<T>>> {
    let decode = move |(name, stored): (String, Vec<u8>)| {
        let value = T::decode(&stored);
        let why = match (name.parse::<T::Name>(), value) {
            (Ok(name), Ok(value)) => return Ok((name, value)),
            (Err(_), _) => "the name is that of nothing that is kept there".to_owned(),
            (_, Err(why)) => why.to_string(),
        };
        Err((Unreadable::Cell(Cell { table: T::TABLE, partition, name }, stored), why))
    };
    let decoding = tokio::task::spawn_blocking(move || cells.into_iter().map(decode).collect());
    decoding.await.map_err(|error| EngineError::Unavailable(format!("stored values were not read: {error}")))
}

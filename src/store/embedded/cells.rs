//! Cells: one table for all tables of cells, one for all indexes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::json;

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::quarantine;
use super::stored::text;
use crate::store::change_set::What;
use crate::store::json::to_json;
use crate::store::{
    Cell, CellCursor, CellPage, Cells, ChangeSet, EntryOrder, Index, IndexEntry, IndexRange, NameRange,
    ReceiverName, Result, Table, Unreadable,
};
use crate::telemetry::Telemetry;

/// How many cells one step of a scan reads.
const STEP: usize = 500;

#[async_trait]
impl Cells for EmbeddedEngine {
    async fn read_cells(&self, cells: &[Cell]) -> Result<Vec<Option<Vec<u8>>>> {
        let cells = cells.to_vec();
        let read = move |database: &Connection| {
            cells
                .iter()
                .map(|Cell { table, partition, name }| value(database, *table, *partition, name))
                .collect()
        };
        self.readers.read(read).await
    }

    async fn write_cells(&self, sets: &[ChangeSet]) -> Result<Vec<bool>> {
        if sets.is_empty() {
            return Ok(Vec::new());
        }
        let sets = sets.to_vec();
        let write = move |database: &Connection| sets.iter().map(|set| apply(database, set)).collect();
        self.writer.write("write_cells", write).await
    }

    async fn range(&self, range: &IndexRange<'_>, partitions: &[u16]) -> Result<Vec<IndexEntry>> {
        let IndexRange { index, from, after, until, limit, order } = *range;
        let (after, partitions) = (after.to_owned(), to_json(&partitions)?);
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached(match order {
                EntryOrder::OldestFirst => {
                    "SELECT at, name, partition FROM entries WHERE idx = ? AND (at, name) > (?, ?) AND at <= ? \
                     AND partition IN (SELECT value FROM json_each(?)) ORDER BY at, name LIMIT ?"
                }
                EntryOrder::NewestFirst => {
                    "SELECT at, name, partition FROM entries WHERE idx = ? AND (at, name) > (?, ?) AND at <= ? \
                     AND partition IN (SELECT value FROM json_each(?)) ORDER BY at DESC, name DESC LIMIT ?"
                }
            })?;
            let with = params![index.place(), from, after, until, partitions, limit as i64];
            let rows = select.query_map(with, |row| {
                Ok(IndexEntry { at: row.get(0)?, name: text(row, 1)?.into_owned(), partition: row.get(2)? })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        };
        self.readers.read(read).await
    }

    async fn names(&self, index: Index, ranges: &[NameRange], limit: usize) -> Result<Vec<Vec<String>>> {
        let ranges = ranges.to_vec();
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached(
                "SELECT name FROM entries WHERE idx = ? AND partition = ? AND name >= ? AND name < ? \
                 ORDER BY name LIMIT ?",
            )?;
            let mut all = Vec::with_capacity(ranges.len());
            for NameRange { partition, from, before } in ranges {
                let with = params![index.place(), partition, from, before, limit as i64];
                let rows = select.query_map(with, |row| Ok(text(row, 0)?.into_owned()))?;
                all.push(rows.collect::<rusqlite::Result<Vec<String>>>()?);
            }
            Ok(all)
        };
        self.readers.read(read).await
    }

    async fn count_names(&self, index: Index, ranges: &[NameRange]) -> Result<Vec<usize>> {
        let ranges = ranges.to_vec();
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached(
                "SELECT count(*) FROM entries WHERE idx = ? AND partition = ? AND name >= ? AND name < ?",
            )?;
            let count = |NameRange { partition, from, before }: &NameRange| {
                let with = params![index.place(), partition, from, before];
                select.query_row(with, |row| row.get::<_, i64>(0)).map(|count| count as usize)
            };
            Ok(ranges.iter().map(count).collect::<rusqlite::Result<_>>()?)
        };
        self.readers.read(read).await
    }

    async fn numbers(&self, index: Index, entries: &[(u16, &str)]) -> Result<Vec<Option<i64>>> {
        let entries: Vec<(u16, String)> =
            entries.iter().map(|(of, name)| (*of, (*name).to_owned())).collect();
        let read = move |database: &Connection| {
            entries.iter().map(|(partition, name)| at(database, index, *partition, name)).collect()
        };
        self.readers.read(read).await
    }

    async fn receivers_with_cells(&self) -> Result<BTreeSet<ReceiverName>> {
        let read = |database: &Connection| {
            let mut select =
                database.prepare_cached("SELECT DISTINCT tbl FROM cells WHERE tbl GLOB '*:*'")?;
            let rows = select.query_map([], |row| Ok(text(row, 0)?.into_owned()))?;
            Ok(rows.collect::<rusqlite::Result<Vec<String>>>()?)
        };
        let tables = self.readers.read(read).await?;
        Ok(tables.iter().filter_map(|table| Table::named(table)?.receiver()).collect())
    }

    fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    async fn sizes(&self, index: Index, partitions: &[u16]) -> Result<Vec<i64>> {
        let read = move |database: &Connection| {
            let select = "SELECT partition, count(*) FROM entries WHERE idx = ? GROUP BY partition";
            let mut select = database.prepare_cached(select)?;
            let rows = select.query_map([index.place().as_ref()], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<rusqlite::Result<HashMap<u16, i64>>>()?)
        };
        let sizes = self.readers.read(read).await?;
        Ok(partitions.iter().map(|partition| sizes.get(partition).copied().unwrap_or(0)).collect())
    }

    async fn scan_cells(&self, table: Table, partition: u16, from: Option<CellCursor>) -> Result<CellPage> {
        let read = move |database: &Connection| {
            let mut select = database.prepare_cached(
                "SELECT name, body FROM cells WHERE tbl = ?1 AND partition = ?2 AND (?3 IS NULL OR name > ?3) \
                 ORDER BY name LIMIT ?4",
            )?;
            let from = from.map(|CellCursor(name)| name);
            let rows = select.query_map(params![table.place(), partition, from, STEP as i64], |row| {
                Ok((text(row, 0)?.into_owned(), bytes(row, 1)?))
            })?;
            let cells: Vec<(String, Vec<u8>)> = rows.collect::<rusqlite::Result<_>>()?;
            let next = cells.last().filter(|_| cells.len() == STEP).map(|(name, _)| CellCursor(name.clone()));
            Ok(CellPage { cells, next })
        };
        self.readers.read(read).await
    }

    async fn quarantine_cell(&self, unreadable: &Unreadable, why: &str) -> Result<()> {
        let (what, place) = match unreadable {
            Unreadable::Cell(Cell { table, name, .. }, _)
            | Unreadable::CellInPart(Cell { table, name, .. }, _) => {
                (table.what(), format!("table cells {table} {name:?}"))
            }
            Unreadable::Entry(index, IndexEntry { name, .. }) => {
                (index.what(), format!("table entries {index} {name:?}"))
            }
        };
        let (unreadable, reason, at) = (unreadable.clone(), why.to_owned(), place.clone());
        let write = move |database: &Connection| move_away(database, &unreadable, &at, &reason);
        self.writer.write("quarantine", write).await?;
        self.telemetry.unreadable(what, &place, &quarantine::kept(why));
        Ok(())
    }
}

pub(super) fn value(
    database: &Connection,
    table: Table,
    partition: u16,
    name: &str,
) -> DatabaseResult<Option<Vec<u8>>> {
    let mut select =
        database.prepare_cached("SELECT body FROM cells WHERE tbl = ? AND partition = ? AND name = ?")?;
    Ok(select.query_row(params![table.place(), partition, name], |row| bytes(row, 0)).optional()?)
}

fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
        other => format!("{other:?}").into_bytes(),
    })
}

pub(super) fn at(
    database: &Connection,
    index: Index,
    partition: u16,
    name: &str,
) -> DatabaseResult<Option<i64>> {
    let mut select =
        database.prepare_cached("SELECT at FROM entries WHERE idx = ? AND partition = ? AND name = ?")?;
    Ok(select.query_row(params![index.place(), partition, name], |row| row.get(0)).optional()?)
}

pub(super) fn apply(database: &Connection, set: &ChangeSet) -> DatabaseResult<bool> {
    let of = set.partition;
    for part in set.parts() {
        let is_so = match part.what {
            What::Has(table) => value(database, table, of, part.name)?.as_deref() == Some(part.value),
            What::Lacks(table) => value(database, table, of, part.name)?.is_none(),
            What::IsAt(index) => at(database, index, of, part.name)? == Some(part.at),
            What::IsOff(index) => at(database, index, of, part.name)?.is_none(),
            What::Put(_) | What::Remove(_) => true,
            What::Add(_) | What::AddWord(_) | What::RemoveWord(_) => true,
            What::Enter(_) | What::EnterNew(_) | What::Leave(_) => true,
        };
        if !is_so {
            return Ok(false);
        }
    }
    for part in set.parts() {
        match part.what {
            What::Put(table) => put(database, table, of, part.name, part.value)?,
            What::Remove(table) => remove(database, table, of, part.name)?,
            What::Add(table) => {
                let before = value(database, table, of, part.name)?;
                let before = before.and_then(|text| str::from_utf8(&text).ok()?.parse::<i64>().ok());
                match before.unwrap_or(0).saturating_add(part.at) {
                    0 => remove(database, table, of, part.name)?,
                    sum => put(database, table, of, part.name, sum.to_string().as_bytes())?,
                }
            }
            What::AddWord(table) => {
                let words = value(database, table, of, part.name)?;
                let words = words.map(|words| [&words[..], b" ", part.value].concat());
                put(database, table, of, part.name, words.as_deref().unwrap_or(part.value))?;
            }
            What::RemoveWord(table) => {
                let words = value(database, table, of, part.name)?.unwrap_or_default();
                let others =
                    words.split(|byte| *byte == b' ').filter(|word| !word.is_empty() && *word != part.value);
                match others.collect::<Vec<_>>().join(&b' ') {
                    none if none.is_empty() => remove(database, table, of, part.name)?,
                    words => put(database, table, of, part.name, &words)?,
                }
            }
            What::Enter(index) => enter(database, index, of, part.name, part.at)?,
            What::EnterNew(index) => {
                let insert = "INSERT OR IGNORE INTO entries(idx, partition, name, at) VALUES(?, ?, ?, ?)";
                let with = params![index.place(), of, part.name, part.at];
                database.prepare_cached(insert)?.execute(with)?;
            }
            What::Leave(index) => {
                let delete = "DELETE FROM entries WHERE idx = ? AND partition = ? AND name = ?";
                database.prepare_cached(delete)?.execute(params![index.place(), of, part.name])?;
            }
            What::Has(_) | What::Lacks(_) | What::IsAt(_) | What::IsOff(_) => {}
        }
    }
    Ok(true)
}

/// The stored form of a value: text if it is valid text, so that operators can read it.
fn stored(value: &[u8]) -> ToSqlOutput<'_> {
    let is_text = std::str::from_utf8(value).is_ok();
    ToSqlOutput::Borrowed(if is_text { ValueRef::Text(value) } else { ValueRef::Blob(value) })
}

pub(super) fn put(
    database: &Connection,
    table: Table,
    partition: u16,
    name: &str,
    value: &[u8],
) -> DatabaseResult<()> {
    database
        .prepare_cached("INSERT OR REPLACE INTO cells(tbl, partition, name, body) VALUES(?, ?, ?, ?)")?
        .execute(params![table.place(), partition, name, stored(value)])?;
    Ok(())
}

fn remove(database: &Connection, table: Table, partition: u16, name: &str) -> DatabaseResult<()> {
    database
        .prepare_cached("DELETE FROM cells WHERE tbl = ? AND partition = ? AND name = ?")?
        .execute(params![table.place(), partition, name])?;
    Ok(())
}

pub(super) fn enter(
    database: &Connection,
    index: Index,
    partition: u16,
    name: &str,
    at: i64,
) -> DatabaseResult<()> {
    database
        .prepare_cached("INSERT OR REPLACE INTO entries(idx, partition, name, at) VALUES(?, ?, ?, ?)")?
        .execute(params![index.place(), partition, name, at])?;
    Ok(())
}

/// Moves a row into the table `unreadable`, if it is unchanged.
fn move_away(database: &Connection, unreadable: &Unreadable, place: &str, why: &str) -> DatabaseResult<()> {
    let lossy = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let (source, row, is_gone) = match unreadable {
        Unreadable::CellInPart(Cell { table, partition, name }, value) => {
            let row =
                json!({ "tbl": table.place(), "partition": partition, "name": name, "body": lossy(value) });
            ("cells", row, true)
        }
        Unreadable::Cell(Cell { table, partition, name }, value) => {
            let set = ChangeSet::of(*partition).has(*table, name, Some(value)).put(*table, name, None);
            let row =
                json!({ "tbl": table.place(), "partition": partition, "name": name, "body": lossy(value) });
            ("cells", row, apply(database, &set)?)
        }
        Unreadable::Entry(index, IndexEntry { at, name, partition }) => {
            let set = ChangeSet::of(*partition).is_at(*index, name, Some(*at)).enter(*index, name, None);
            let row = json!({ "idx": index.place(), "partition": partition, "name": name, "at": at });
            ("entries", row, apply(database, &set)?)
        }
    };
    if is_gone {
        // A value that stays in use is read, and moved here, again and again.
        let insert = "INSERT INTO unreadable(source, place, why, row) SELECT ?1, ?2, ?3, ?4 \
                      WHERE NOT EXISTS (SELECT 1 FROM unreadable WHERE place = ?2 AND row = ?4)";
        database.execute(insert, params![source, place, why, to_json(&row)?])?;
    }
    Ok(())
}

/// Makes deliveries due again that an earlier process leased: one process has the fleet to itself, and its leases end
/// with it.
pub(super) fn release_leases(database: &Connection) -> DatabaseResult<()> {
    let update = "UPDATE entries SET at = 0 WHERE idx GLOB 'queue:*' AND EXISTS (SELECT 1 FROM cells \
                  WHERE tbl = 'lanes' || substr(idx, 6) AND cells.partition = entries.partition \
                  AND cells.name = entries.name AND body GLOB '[0-9]*+ *')";
    database.execute(update, [])?;
    Ok(())
}

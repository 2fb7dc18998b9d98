//! What cannot be read is put aside, so that nothing waits for it: the row is kept in `unreadable` as it was, and
//! what can be said in its place takes it.
//!
//! `table_rules.rs` says what every column should hold. Rows are gone over when something was met that does not, and a
//! bounded number of them with each examination, for what is only compared is never met.
//!
//! # Why nothing in the place of a value is believed that would call a unit offline
//! An expiry key that cannot be read holds from then on up to when everything was heard: the unit is looked at one
//! timeout later at the most, and no living unit is told.

use std::fmt::Write;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, params, params_from_iter};
use serde_json::json;

use super::error::DatabaseResult;
use super::last_seen;
use super::memory::InMemoryFleet;
use super::table_rules::{Fallback, TABLE_RULES, TableRule};
use crate::clock::Timestamp;
use crate::presence::{Labels, OfflineRecord};
use crate::store::json::to_json;
use crate::store::{DeadLetter, Group, OutboxEvent, partition_of, partition_of_group};
use crate::telemetry::Stored;

/// Where rows that were put aside are kept.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS unreadable(id INTEGER PRIMARY KEY AUTOINCREMENT, \
                                source TEXT NOT NULL, place TEXT NOT NULL, why TEXT NOT NULL, row TEXT NOT NULL);";

/// The most rows that are kept of what was put aside; the oldest go.
const MOST_KEPT: i64 = 10_000;

/// How many rows of a table one examination goes over.
const STEP: i64 = 20_000;

/// The most bytes of a name that are shown.
const LONGEST: usize = 120;

/// What takes the place of what cannot be read.
pub(super) struct RepairContext<'a> {
    pub partitions: u16,
    /// Up to when everything was heard.
    pub heard: Option<Timestamp>,
    /// Beats up to this number are older than what is written now.
    pub number: i64,
    /// Where the units are that are on disk; `None` before they were read.
    pub memory: Option<&'a InMemoryFleet>,
}

/// A row that was put aside.
#[derive(Clone, Debug)]
pub(super) struct Aside {
    pub what: Stored,
    pub place: String,
    pub why: String,
}

/// Has the database know what a column should hold: `fits(<table>, <column>, <value>, <outboxes>)`.
pub(super) fn teach(database: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    database.create_scalar_function("fits", 4, flags, |row| {
        let (table, column, places): (u16, u16, i64) = (row.get(0)?, row.get(1)?, row.get(3)?);
        let column =
            TABLE_RULES.get(usize::from(table)).and_then(|sort| sort.columns.get(usize::from(column)));
        Ok(column.is_none_or(|column| column.holds.fits(row.get_raw(2), places)))
    })
}

/// A value as it stands in the database.
struct Cell {
    /// What SQLite says it is.
    kind: String,
    /// As bytes; those of a number are its digits.
    bytes: Vec<u8>,
    fits: bool,
}

impl Cell {
    fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok().filter(|_| self.kind == "text")
    }

    fn number(&self) -> Option<i64> {
        std::str::from_utf8(&self.bytes).ok().filter(|_| self.kind == "integer")?.parse().ok()
    }

    fn shown(&self) -> serde_json::Value {
        match (self.kind.as_str(), self.number(), self.text()) {
            ("null", ..) => serde_json::Value::Null,
            (_, Some(number), _) => json!(number),
            (_, _, Some(text)) => json!(text),
            _ => {
                let hex = self.bytes.iter().fold(String::new(), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                });
                json!({ (&self.kind): hex })
            }
        }
    }
}

/// A row with something in it that cannot be read.
struct Found<'a> {
    sort: &'a TableRule,
    cells: Vec<Cell>,
}

/// Puts aside what does not fit, in all tables. Answers what that was.
pub(super) fn put_aside(database: &Connection, known: &RepairContext<'_>) -> DatabaseResult<Vec<Aside>> {
    let mut aside = Vec::new();
    for number in 0..TABLE_RULES.len() {
        for row in misfits(database, number, known.partitions, None)? {
            aside.push(row.put_aside(database, known)?);
        }
    }
    if !aside.is_empty() {
        let delete = "DELETE FROM unreadable WHERE id <= (SELECT max(id) FROM unreadable) - ?";
        database.execute(delete, [MOST_KEPT])?;
    }
    Ok(aside)
}

/// Which rows are gone over next, of each table.
#[derive(Default)]
pub(super) struct ScanCursor([i64; TABLE_RULES.len()]);

impl ScanCursor {
    /// Whether anything does not fit among the next rows of each table.
    pub fn is_anything_odd(&mut self, database: &Connection, partitions: u16) -> DatabaseResult<bool> {
        let mut is_odd = false;
        for (number, skip) in self.0.iter_mut().enumerate() {
            is_odd |= !misfits(database, number, partitions, Some(*skip))?.is_empty();
            let rest = format!("SELECT 1 FROM {} LIMIT 1 OFFSET ?", TABLE_RULES[number].table);
            let next = *skip + STEP;
            *skip = if database.prepare_cached(&rest)?.exists([next])? { next } else { 0 };
        }
        Ok(is_odd)
    }
}

/// Rows of a table with something that does not fit: all, or those of a step after so many.
fn misfits(
    database: &Connection,
    number: usize,
    partitions: u16,
    skip: Option<i64>,
) -> DatabaseResult<Vec<Found<'static>>> {
    let sort = &TABLE_RULES[number];
    let places = i64::from(partitions) + 1;
    let fits = |place: usize| format!("fits({number}, {place}, \"{}\", {places})", sort.columns[place].name);
    let columns: Vec<String> = (0..sort.columns.len())
        .map(|place| {
            let name = sort.columns[place].name;
            format!("typeof(\"{name}\"), CAST(\"{name}\" AS BLOB), {}", fits(place))
        })
        .collect();
    let all: Vec<String> = (0..sort.columns.len()).map(fits).collect();
    let rows = match skip {
        None => sort.table.to_owned(),
        Some(skip) => format!("(SELECT * FROM {} LIMIT {STEP} OFFSET {skip})", sort.table),
    };
    let select = format!("SELECT {} FROM {rows} WHERE NOT ({})", columns.join(", "), all.join(" AND "));
    let mut select = database.prepare(&select)?;
    let mut rows = select.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let cell = |place: usize| -> rusqlite::Result<Cell> {
            let bytes = match row.get_ref(3 * place + 1)? {
                ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
                _ => Vec::new(),
            };
            Ok(Cell { kind: row.get(3 * place)?, bytes, fits: row.get(3 * place + 2)? })
        };
        let cells = (0..sort.columns.len()).map(cell).collect::<rusqlite::Result<_>>()?;
        found.push(Found { sort, cells });
    }
    Ok(found)
}

impl Found<'_> {
    fn cell(&self, column: &str) -> Option<&Cell> {
        let place = self.sort.columns.iter().position(|one| one.name == column)?;
        self.cells.get(place)
    }

    /// A text that can be read, of that column.
    fn text(&self, column: &str) -> Option<&str> {
        self.cell(column)?.text()
    }

    fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Option<T> {
        serde_json::from_str(self.text(column)?).ok()
    }

    /// Keeps the row as it is, and mends or removes it.
    fn put_aside(&self, database: &Connection, known: &RepairContext<'_>) -> DatabaseResult<Aside> {
        let odd: Vec<usize> = (0..self.cells.len()).filter(|place| !self.cells[*place].fits).collect();
        let mut mended: Vec<(&str, Value)> = Vec::new();
        let is_mended = odd.iter().all(|place| {
            let values = self.instead(*place, database, known);
            mended.extend(values.iter().flatten().cloned());
            values.is_some()
        });
        let names: Vec<&str> = odd.iter().map(|place| self.sort.columns[*place].name).collect();
        let names = names.join(", ");
        let what_now =
            if is_mended { "what can be said instead took its place" } else { "the row was removed" };
        let aside = Aside {
            what: self.sort.what,
            place: self.place(),
            why: format!(
                "{names} cannot be read; {what_now}, and the table unreadable keeps it: rollcall repair"
            ),
        };
        let shown: serde_json::Map<String, serde_json::Value> = (self.sort.columns.iter())
            .zip(&self.cells)
            .map(|(column, cell)| (column.name.to_owned(), cell.shown()))
            .collect();
        let insert = "INSERT INTO unreadable(source, place, why, row) VALUES(?, ?, ?, ?)";
        database.execute(insert, params![self.sort.table, aside.place, names, to_json(&shown)?])?;
        if is_mended {
            self.mend(database, mended)?
        } else {
            self.remove(database)?
        }
        Ok(aside)
    }

    /// Where it is, for people: the table, and what finds the row there.
    fn place(&self) -> String {
        let mut place = format!("table {}", self.sort.table);
        let names = self.sort.columns.iter().map(|column| column.name);
        for (name, cell) in
            names.zip(&self.cells).filter(|(name, _)| self.sort.key.contains(name) || *name == "name")
        {
            let text: String = String::from_utf8_lossy(&cell.bytes).chars().take(LONGEST).collect();
            let _ = write!(place, " {name} {text:?}");
        }
        place
    }

    /// What takes the place of a column that cannot be read, and of others with it; `None`: the row goes.
    fn instead(
        &self,
        place: usize,
        database: &Connection,
        known: &RepairContext<'_>,
    ) -> Option<Vec<(&'static str, Value)>> {
        let column = &self.sort.columns[place];
        let heard = || known.heard.map_or(Value::Null, |at| Value::Integer(at.as_millis()));
        let value = match column.otherwise {
            Fallback::Goes => return None,
            Fallback::Zero => Value::Integer(0),
            Fallback::Nothing => Value::Null,
            Fallback::Heard => heard(),
            Fallback::AsText => Value::Text(String::from_utf8_lossy(&self.cells[place].bytes).into_owned()),
            Fallback::Derived => self.derived(column.name, database, known)?,
        };
        let mut values = vec![(column.name, value)];
        // Which heartbeats are newer than its key is not known: none is, and the key says up to now.
        if column.name == "after" && self.cell("alive").is_some_and(|alive| alive.kind != "null") {
            values.push(("alive", heard()));
        }
        Some(values)
    }

    fn derived(&self, column: &str, database: &Connection, known: &RepairContext<'_>) -> Option<Value> {
        let of_group = |key: &str| Value::Integer(partition_of_group(key, known.partitions).into());
        let of_record =
            |record: OfflineRecord| Value::Integer(partition_of(record.whose(), known.partitions).into());
        let ms = |at: Timestamp| Value::Integer(at.as_millis());
        Some(match (self.sort.table, column) {
            ("units", "name") => {
                let (partition, place) = last_seen::partition_and_slot(self.cell("id")?.number()?)?;
                Value::Text(known.memory?.name_at(partition, place)?)
            }
            ("units", "after") => Value::Integer(known.number),
            ("records", "partition") => of_record(self.json("record")?),
            ("records", "detected") => ms(self.json::<OfflineRecord>("record")?.detected_at),
            ("records", "closed") => self.json::<OfflineRecord>("record")?.back_at.map_or(Value::Null, ms),
            ("outbox", "partition") => match self.json("news")? {
                OutboxEvent::Record(record) => of_record(record),
                OutboxEvent::Blind(_) => Value::Integer(known.partitions.into()),
            },
            ("groups", "partition") => of_group(self.text("key")?),
            ("groups", "body") => {
                let group = Group { key: self.text("key")?.to_owned(), labels: Labels::new() };
                Value::Text(to_json(&group).ok()?)
            }
            ("notifications", "owed") => {
                let count = "SELECT count(*) FROM lanes WHERE notification = ?";
                Value::Integer(database.query_row(count, [self.text("id")?], |row| row.get(0)).ok()?)
            }
            ("queue", "partition") => of_group(self.text("grp")?),
            ("letters", "partition") => of_group(&self.json::<DeadLetter>("letter")?.delivery.group.key),
            _ => return None,
        })
    }

    fn mend(&self, database: &Connection, values: Vec<(&str, Value)>) -> DatabaseResult<()> {
        let set: Vec<String> = values.iter().map(|(name, _)| format!("\"{name}\" = ?")).collect();
        let (at, mut with) = self.at();
        let mut all: Vec<Value> = values.into_iter().map(|(_, value)| value).collect();
        all.append(&mut with);
        let update = format!("UPDATE OR REPLACE {} SET {} WHERE {at}", self.sort.table, set.join(", "));
        database.execute(&update, params_from_iter(all))?;
        Ok(())
    }

    fn remove(&self, database: &Connection) -> DatabaseResult<()> {
        let (at, with) = self.at();
        database.execute(&format!("DELETE FROM {} WHERE {at}", self.sort.table), params_from_iter(with))?;
        Ok(())
    }

    /// The condition that finds the row, whatever its key holds, and what it is compared with.
    fn at(&self) -> (String, Vec<Value>) {
        let (mut conditions, mut with) = (Vec::new(), Vec::new());
        for name in self.sort.key {
            let Some(cell) = self.cell(name) else { continue };
            match cell.number() {
                Some(number) => {
                    conditions.push(format!("\"{name}\" = ?"));
                    with.push(Value::Integer(number));
                }
                None => {
                    conditions.push(format!("typeof(\"{name}\") = ? AND CAST(\"{name}\" AS BLOB) IS ?"));
                    with.push(Value::Text(cell.kind.clone()));
                    with.push(if cell.kind == "null" {
                        Value::Null
                    } else {
                        Value::Blob(cell.bytes.clone())
                    });
                }
            }
        }
        (conditions.join(" AND "), with)
    }
}

/// Keeps a notification that cannot be read, or not all of it, once.
pub(super) fn keep_notification(
    database: &Connection,
    id: &str,
    place: &str,
    body: &[u8],
) -> DatabaseResult<()> {
    let known = "SELECT 1 FROM unreadable WHERE source = 'notifications' AND place = ?";
    if database.prepare(known)?.exists([place])? {
        return Ok(());
    }
    let cell = Cell { kind: "text".to_owned(), bytes: body.to_vec(), fits: false };
    let row = to_json(&json!({ "id": id, "body": cell.shown() }))?;
    let insert = "INSERT INTO unreadable(source, place, why, row) VALUES('notifications', ?, 'body', ?)";
    database.execute(insert, [place, &row])?;
    Ok(())
}

/// What is kept of what was put aside, the oldest first.
pub(super) fn kept(database: &Connection, limit: usize) -> DatabaseResult<Vec<Kept>> {
    let mut select =
        database.prepare("SELECT id, source, place, why, row FROM unreadable ORDER BY id LIMIT ?")?;
    let rows = select.query_map([limit as i64], |row| {
        Ok(Kept {
            id: row.get(0)?,
            table: row.get(1)?,
            place: row.get(2)?,
            why: row.get(3)?,
            row: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// A row that is kept in `unreadable`.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub id: i64,
    pub table: String,
    pub place: String,
    /// The columns that could not be read.
    pub why: String,
    /// All columns (JSON).
    pub row: String,
}

impl Kept {
    /// The sort of value that it is.
    pub fn what(&self) -> Stored {
        TABLE_RULES.iter().find(|sort| sort.table == self.table).map_or(Stored::Other, |sort| sort.what)
    }
}

//! Quarantine: an unreadable row is moved unchanged to the table `unreadable`, so that it blocks no other row, and is
//! replaced if a replacement is known.
//!
//! `table_rules.rs` has the type of every column. All rows are scanned after an unreadable value was read, and a
//! bounded number with each examination, because a column that is only compared is never read.
//!
//! # Why a replacement never makes a unit offline
//! A unit with an unreadable expiry key counts as heard up to `heard` of the fleet: it is checked at most one timeout
//! later, and no living unit is declared offline.

use std::fmt::Write;

use data_encoding::HEXLOWER;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, params, params_from_iter};
use serde_json::json;

use super::error::DatabaseResult;
use super::last_seen;
use super::memory::InMemoryFleet;
use super::table_rules::{ColumnReplacement, TABLE_RULES, TableRule};
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::store::json::to_json;
use crate::store::{OutboxEvent, partition_of};
use crate::telemetry::Stored;

/// Creates the table of quarantined rows.
pub(super) const TABLE: &str = "CREATE TABLE unreadable(id INTEGER PRIMARY KEY AUTOINCREMENT, \
                                source TEXT NOT NULL, place TEXT NOT NULL, why TEXT NOT NULL, row TEXT NOT NULL);";

/// The most quarantined rows; the oldest are deleted.
const QUARANTINE_LIMIT: i64 = 10_000;

/// The number of rows of a table that one examination scans.
const ROWS_PER_SCAN: i64 = 20_000;

/// The most characters of a key that are shown.
const MAX_VALUE: usize = 120;

/// The inputs for replacements.
pub(super) struct RepairContext<'a> {
    pub partitions: u16,
    /// Up to when Rollcall has heard.
    pub heard: Option<Timestamp>,
    pub flush_number: i64,
    /// The units; `None` before they are loaded.
    pub memory: Option<&'a InMemoryFleet>,
}

/// Why a row is in quarantine, and where it is now.
pub(super) fn kept(why: &str) -> String {
    format!("{why}; the table unreadable keeps it: rollcall repair")
}

/// The report of an unreadable row.
#[derive(Clone, Debug)]
pub(super) struct QuarantineReport {
    pub what: Stored,
    pub location: String,
    pub why: String,
}

/// Adds an SQL function that checks a column: `fits(<table>, <column>, <value>, <outboxes>)`.
pub(super) fn register_fits(database: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    database.create_scalar_function("fits", 4, flags, |row| {
        let (table, column, outboxes): (u16, u16, i64) = (row.get(0)?, row.get(1)?, row.get(3)?);
        let column =
            TABLE_RULES.get(usize::from(table)).and_then(|rule| rule.columns.get(usize::from(column)));
        Ok(column.is_none_or(|column| column.holds.fits(row.get_raw(2), outboxes)))
    })
}

/// A value in the database.
struct ColumnValue {
    /// SQLite's `typeof`.
    kind: String,
    /// For a number: its digits.
    bytes: Vec<u8>,
    fits: bool,
}

impl ColumnValue {
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
            _ => json!({ (&self.kind): HEXLOWER.encode(&self.bytes) }),
        }
    }
}

/// A row with a value that does not fit its column.
struct UnreadableRow<'a> {
    rule: &'a TableRule,
    values: Vec<ColumnValue>,
}

/// Quarantines the unreadable rows of all tables, and answers them.
pub(super) fn quarantine_all(
    database: &Connection,
    context: &RepairContext<'_>,
) -> DatabaseResult<Vec<QuarantineReport>> {
    let mut quarantined = Vec::new();
    for number in 0..TABLE_RULES.len() {
        for row in unreadable_rows(database, number, context.partitions, None)? {
            quarantined.push(row.quarantine(database, context)?);
        }
    }
    if !quarantined.is_empty() {
        let delete = "DELETE FROM unreadable WHERE id <= (SELECT max(id) FROM unreadable) - ?";
        database.execute(delete, [QUARANTINE_LIMIT])?;
    }
    Ok(quarantined)
}

/// The row of each table at which the next scan begins.
#[derive(Default)]
pub(super) struct ScanCursor([i64; TABLE_RULES.len()]);

impl ScanCursor {
    /// Whether the next rows of any table hold an unreadable value.
    pub fn finds_unreadable(&mut self, database: &Connection, partitions: u16) -> DatabaseResult<bool> {
        let mut is_found = false;
        for (number, skip) in self.0.iter_mut().enumerate() {
            is_found |= !unreadable_rows(database, number, partitions, Some(*skip))?.is_empty();
            let rest = format!("SELECT 1 FROM {} LIMIT 1 OFFSET ?", TABLE_RULES[number].table);
            let next = *skip + ROWS_PER_SCAN;
            *skip = if database.prepare_cached(&rest)?.exists([next])? { next } else { 0 };
        }
        Ok(is_found)
    }
}

/// The unreadable rows of a whole table, or of one scan after `skip` rows.
fn unreadable_rows(
    database: &Connection,
    number: usize,
    partitions: u16,
    skip: Option<i64>,
) -> DatabaseResult<Vec<UnreadableRow<'static>>> {
    let rule = &TABLE_RULES[number];
    let outboxes = i64::from(partitions) + 1;
    let fits =
        |index: usize| format!("fits({number}, {index}, \"{}\", {outboxes})", rule.columns[index].name);
    let columns: Vec<String> = (0..rule.columns.len())
        .map(|index| {
            let name = rule.columns[index].name;
            format!("typeof(\"{name}\"), CAST(\"{name}\" AS BLOB), {}", fits(index))
        })
        .collect();
    let all: Vec<String> = (0..rule.columns.len()).map(fits).collect();
    let rows = match skip {
        None => rule.table.to_owned(),
        Some(skip) => format!("(SELECT * FROM {} LIMIT {ROWS_PER_SCAN} OFFSET {skip})", rule.table),
    };
    let select = format!("SELECT {} FROM {rows} WHERE NOT ({})", columns.join(", "), all.join(" AND "));
    let mut select = database.prepare(&select)?;
    let mut rows = select.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let value = |index: usize| -> rusqlite::Result<ColumnValue> {
            let bytes = match row.get_ref(3 * index + 1)? {
                ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
                _ => Vec::new(),
            };
            Ok(ColumnValue { kind: row.get(3 * index)?, bytes, fits: row.get(3 * index + 2)? })
        };
        let values = (0..rule.columns.len()).map(value).collect::<rusqlite::Result<_>>()?;
        found.push(UnreadableRow { rule, values });
    }
    Ok(found)
}

impl UnreadableRow<'_> {
    fn value(&self, column: &str) -> Option<&ColumnValue> {
        let index = self.rule.columns.iter().position(|one| one.name == column)?;
        self.values.get(index)
    }

    fn text(&self, column: &str) -> Option<&str> {
        self.value(column)?.text()
    }

    fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Option<T> {
        serde_json::from_str(self.text(column)?).ok()
    }

    /// Copies the row to the quarantine, and repairs or removes it.
    fn quarantine(
        &self,
        database: &Connection,
        context: &RepairContext<'_>,
    ) -> DatabaseResult<QuarantineReport> {
        let unreadable: Vec<usize> =
            (0..self.values.len()).filter(|index| !self.values[*index].fits).collect();
        let mut replacements: Vec<(&str, Value)> = Vec::new();
        let is_repaired = unreadable.iter().all(|index| {
            let values = self.replacements(*index, context);
            replacements.extend(values.iter().flatten().cloned());
            values.is_some()
        });
        let names: Vec<&str> = unreadable.iter().map(|index| self.rule.columns[*index].name).collect();
        let names = names.join(", ");
        let (location, what_now) = (
            self.location(),
            if is_repaired { "a replacement took its place" } else { "the row was removed" },
        );
        let why = format!("{names} cannot be read; {what_now}");
        let insert = "INSERT INTO unreadable(source, place, why, row) VALUES(?, ?, ?, ?)";
        database.execute(insert, params![self.rule.table, location, why, to_json(&self.shown())?])?;
        if is_repaired {
            self.repair(database, replacements)?
        } else {
            self.remove(database)?
        }
        let what = self.rule.what_of(self.text(self.rule.key[0]));
        Ok(QuarantineReport { what, location, why: kept(&why) })
    }

    /// All columns (JSON).
    fn shown(&self) -> serde_json::Map<String, serde_json::Value> {
        let columns = self.rule.columns.iter().zip(&self.values);
        columns.map(|(column, value)| (column.name.to_owned(), value.shown())).collect()
    }

    /// The table and the row's key, for operators.
    fn location(&self) -> String {
        let mut location = format!("table {}", self.rule.table);
        let names = self.rule.columns.iter().map(|column| column.name);
        for (name, value) in
            names.zip(&self.values).filter(|(name, _)| self.rule.key.contains(name) || *name == "name")
        {
            let text: String = String::from_utf8_lossy(&value.bytes).chars().take(MAX_VALUE).collect();
            let _ = write!(location, " {name} {text:?}");
        }
        location
    }

    /// The values that replace an unreadable column, and further columns with it; `None`: the row is removed.
    fn replacements(&self, index: usize, context: &RepairContext<'_>) -> Option<Vec<(&'static str, Value)>> {
        let column = &self.rule.columns[index];
        let heard = || context.heard.map_or(Value::Null, |at| Value::Integer(at.as_millis()));
        let value = match column.fallback {
            ColumnReplacement::RemoveRow => return None,
            ColumnReplacement::Zero => Value::Integer(0),
            ColumnReplacement::Heard => heard(),
            ColumnReplacement::AsText => {
                Value::Text(String::from_utf8_lossy(&self.values[index].bytes).into_owned())
            }
            ColumnReplacement::Derived => self.derived(column.name, context)?,
        };
        let mut values = vec![(column.name, value)];
        // It is unknown which heartbeats are newer than the key, so none counts, and the key is set to `heard`.
        if column.name == "after" && self.value("alive").is_some_and(|alive| alive.kind != "null") {
            values.push(("alive", heard()));
        }
        Some(values)
    }

    fn derived(&self, column: &str, context: &RepairContext<'_>) -> Option<Value> {
        let of_record =
            |record: OfflineRecord| Value::Integer(partition_of(&record.id.unit, context.partitions).into());
        let ms = |at: Timestamp| Value::Integer(at.as_millis());
        Some(match (self.rule.table, column) {
            ("units", "name") => {
                let (partition, slot) = last_seen::partition_and_slot(self.value("id")?.number()?)?;
                Value::Text(context.memory?.name_at(partition, slot)?)
            }
            ("units", "after") => Value::Integer(context.flush_number),
            ("records", "partition") => of_record(self.json("record")?),
            ("records", "detected") => ms(self.json::<OfflineRecord>("record")?.detected_at),
            ("records", "closed") => self.json::<OfflineRecord>("record")?.back_at.map_or(Value::Null, ms),
            ("outbox", "partition") => match self.json("event")? {
                OutboxEvent::Record(record) => of_record(record),
                OutboxEvent::Blind(_) | OutboxEvent::DataLost(_) => Value::Integer(context.partitions.into()),
            },
            _ => return None,
        })
    }

    fn repair(&self, database: &Connection, values: Vec<(&str, Value)>) -> DatabaseResult<()> {
        let set: Vec<String> = values.iter().map(|(name, _)| format!("\"{name}\" = ?")).collect();
        let (condition, mut with) = self.key_condition();
        let mut all: Vec<Value> = values.into_iter().map(|(_, value)| value).collect();
        all.append(&mut with);
        let update =
            format!("UPDATE OR REPLACE {} SET {} WHERE {condition}", self.rule.table, set.join(", "));
        database.execute(&update, params_from_iter(all))?;
        Ok(())
    }

    fn remove(&self, database: &Connection) -> DatabaseResult<()> {
        let (condition, with) = self.key_condition();
        database
            .execute(&format!("DELETE FROM {} WHERE {condition}", self.rule.table), params_from_iter(with))?;
        Ok(())
    }

    /// An SQL condition that finds the row even if its key is unreadable, and its parameters.
    fn key_condition(&self) -> (String, Vec<Value>) {
        let (mut conditions, mut with) = (Vec::new(), Vec::new());
        for name in self.rule.key {
            let Some(value) = self.value(name) else { continue };
            match value.number() {
                Some(number) => {
                    conditions.push(format!("\"{name}\" = ?"));
                    with.push(Value::Integer(number));
                }
                None => {
                    conditions.push(format!("typeof(\"{name}\") = ? AND CAST(\"{name}\" AS BLOB) IS ?"));
                    with.push(Value::Text(value.kind.clone()));
                    with.push(if value.kind == "null" {
                        Value::Null
                    } else {
                        Value::Blob(value.bytes.clone())
                    });
                }
            }
        }
        (conditions.join(" AND "), with)
    }
}

/// Up to `limit` quarantined rows, the oldest first.
pub(super) fn quarantined_rows(database: &Connection, limit: usize) -> DatabaseResult<Vec<QuarantinedRow>> {
    let mut select =
        database.prepare("SELECT id, source, place, why, row FROM unreadable ORDER BY id LIMIT ?")?;
    let rows = select.query_map([limit as i64], |row| {
        Ok(QuarantinedRow {
            id: row.get(0)?,
            table: row.get(1)?,
            location: row.get(2)?,
            why: row.get(3)?,
            row: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// A row of the table `unreadable`.
#[derive(Clone, Debug)]
pub(super) struct QuarantinedRow {
    pub id: i64,
    pub table: String,
    pub location: String,
    /// Why the row could not be read.
    pub why: String,
    /// All columns (JSON).
    pub row: String,
}

impl QuarantinedRow {
    pub fn what(&self) -> Stored {
        let Some(rule) = TABLE_RULES.iter().find(|rule| rule.table == self.table) else {
            return Stored::Other;
        };
        let row: serde_json::Value = serde_json::from_str(&self.row).unwrap_or_default();
        rule.what_of(row[rule.key[0]].as_str())
    }
}

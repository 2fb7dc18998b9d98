//! The type of every column of the database, and the replacement of a value that does not fit.
//!
//! SQLite accepts any value in any column, and a text need not be UTF-8. Every reader of the database
//! relies on these rules: `quarantine.rs` removes or replaces values that do not fit, if possible before they are read.

use rusqlite::types::ValueRef;

use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::store::{Index, Table};
use crate::telemetry::Stored;

pub(super) struct TableRule {
    pub table: &'static str,
    pub what: Stored,
    /// The columns that identify a row, all of them in `columns`.
    pub key: &'static [&'static str],
    pub columns: &'static [ColumnRule],
}

impl TableRule {
    /// The word for a row, by the first column of its key: a cell and an entry are named after their table or index.
    pub fn what_of(&self, place: Option<&str>) -> Stored {
        let of_place = match self.table {
            "cells" => place.and_then(Table::what_in),
            "entries" => place.and_then(Index::what_in),
            _ => None,
        };
        of_place.unwrap_or(self.what)
    }
}

pub(super) struct ColumnRule {
    pub name: &'static str,
    pub holds: ColumnType,
    pub fallback: ColumnReplacement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Number,
    Moment,
    MaybeMoment,
    /// The number of a partition or outbox, checked by [`ColumnType::fits`].
    Partition,
    Text,
    CellTable,
    CellIndex,
    Unit,
    RecordId,
    Record,
    OutboxEvent,
    /// The names of brokers (JSON).
    Brokers,
    /// Entries of this many bytes.
    Entries(usize),
}

/// The replacement of an unreadable column. The row is quarantined in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnReplacement {
    RemoveRow,
    /// Zero: due at once, or never yet.
    Zero,
    /// Up to when Rollcall has heard.
    Heard,
    /// The bytes as a text, which its reader may report as unreadable.
    AsText,
    /// Derived from other columns, see `quarantine.rs`; the row is removed if that fails.
    Derived,
}

const fn column(name: &'static str, holds: ColumnType, fallback: ColumnReplacement) -> ColumnRule {
    ColumnRule { name, holds, fallback }
}

use ColumnReplacement::*;
use ColumnType::*;

/// All tables except `unreadable` and `meta`; `meta` is read once, at the start.
pub(super) const TABLE_RULES: &[TableRule] = &[
    TableRule {
        table: "units",
        what: Stored::Facts,
        key: &["id"],
        columns: &[
            column("id", Number, RemoveRow),
            column("name", Unit, Derived),
            column("facts", Text, AsText),
            column("alive", MaybeMoment, Heard),
            column("next_check", MaybeMoment, Zero),
            column("after", Number, Derived),
        ],
    },
    TableRule {
        table: "heartbeats",
        what: Stored::ExpiryKey,
        key: &["id"],
        columns: &[
            column("id", Number, RemoveRow),
            column("number", Number, RemoveRow),
            column("entries", Entries(super::last_seen::ENTRY), RemoveRow),
            column("brokers", Brokers, RemoveRow),
        ],
    },
    TableRule {
        table: "pages",
        what: Stored::ExpiryKey,
        key: &["id"],
        columns: &[
            column("id", Number, RemoveRow),
            column("number", Number, RemoveRow),
            column("times", Entries(super::last_seen::KEY), RemoveRow),
            column("brokers", Brokers, RemoveRow),
        ],
    },
    TableRule {
        table: "data",
        what: Stored::Value,
        key: &["id", "metric"],
        columns: &[
            column("id", Number, RemoveRow),
            column("metric", Text, RemoveRow),
            column("at", Moment, Zero),
            column("value", Text, RemoveRow),
        ],
    },
    TableRule {
        table: "blind",
        what: Stored::Hearing,
        key: &["start", "until"],
        columns: &[column("start", Moment, RemoveRow), column("until", Moment, RemoveRow)],
    },
    TableRule {
        table: "records",
        what: Stored::Record,
        key: &["id"],
        columns: &[
            column("id", RecordId, RemoveRow),
            column("partition", Partition, Derived),
            column("detected", Moment, Derived),
            column("closed", MaybeMoment, Derived),
            column("record", Record, RemoveRow),
        ],
    },
    TableRule {
        table: "outbox",
        what: Stored::Outbox,
        key: &["id"],
        columns: &[
            column("id", Number, RemoveRow),
            column("partition", Partition, Derived),
            column("event", OutboxEvent, RemoveRow),
        ],
    },
    TableRule {
        table: "cells",
        what: Stored::Other,
        key: &["tbl", "partition", "name"],
        columns: &[
            column("tbl", CellTable, RemoveRow),
            column("partition", Partition, RemoveRow),
            column("name", Text, RemoveRow),
            // Each table has its own form; most are JSON.
            column("body", Text, RemoveRow),
        ],
    },
    TableRule {
        table: "entries",
        what: Stored::Other,
        key: &["idx", "partition", "name"],
        columns: &[
            column("idx", CellIndex, RemoveRow),
            column("partition", Partition, RemoveRow),
            column("name", Text, RemoveRow),
            column("at", Number, Zero),
        ],
    },
];

impl ColumnType {
    /// Whether a value fits. `outboxes` is the number of partitions plus one.
    pub fn fits(self, value: ValueRef<'_>, outboxes: i64) -> bool {
        match (self, value) {
            (MaybeMoment, ValueRef::Null) => true,
            (Number, ValueRef::Integer(_)) => true,
            (Moment | MaybeMoment, ValueRef::Integer(ms)) => Timestamp::from_millis(ms).as_millis() == ms,
            (Partition, ValueRef::Integer(number)) => (0..outboxes).contains(&number),
            (Entries(size), ValueRef::Blob(bytes)) => bytes.len() % size == 0,
            (Number | Moment | MaybeMoment | Partition | Entries(_), _) => false,
            (_, ValueRef::Text(text)) => std::str::from_utf8(text).is_ok_and(|text| self.fits_text(text)),
            _ => false,
        }
    }

    fn fits_text(self, text: &str) -> bool {
        fn json<T: serde::de::DeserializeOwned>(text: &str) -> bool {
            serde_json::from_str::<T>(text).is_ok()
        }
        match self {
            Text => true,
            CellTable => Table::named(text).is_some(),
            CellIndex => Index::named(text).is_some(),
            Unit => text.parse::<crate::presence::Unit>().is_ok(),
            RecordId => text.parse::<crate::presence::RecordId>().is_ok(),
            Record => json::<OfflineRecord>(text),
            OutboxEvent => json::<crate::store::OutboxEvent>(text),
            Brokers => json::<Vec<crate::presence::BrokerName>>(text),
            Number | Moment | MaybeMoment | Partition | Entries(_) => false,
        }
    }
}

/// All tables and their columns, for documentation and tests, except `meta`.
pub fn columns() -> Vec<(&'static str, Vec<&'static str>)> {
    TABLE_RULES
        .iter()
        .map(|rule| (rule.table, rule.columns.iter().map(|column| column.name).collect()))
        .collect()
}

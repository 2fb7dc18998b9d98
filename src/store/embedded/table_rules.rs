//! What every column of the database should hold, and what is put in the place of what it cannot.
//!
//! SQLite takes any value into any column, and a text need not be UTF-8. Everything that reads the database
//! relies on this table: what does not fit it is put aside by `quarantine.rs`, before anything else reads it where that
//! is possible.

use rusqlite::types::ValueRef;

use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::telemetry::Stored;

/// A table.
pub(super) struct TableRule {
    pub table: &'static str,
    pub what: Stored,
    /// The columns that find a row; all of them are among `columns`.
    pub key: &'static [&'static str],
    pub columns: &'static [ColumnRule],
}

/// A column.
pub(super) struct ColumnRule {
    pub name: &'static str,
    pub holds: ColumnType,
    pub otherwise: Fallback,
}

/// What a column should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Number,
    Moment,
    MaybeMoment,
    /// A number of partitions or outboxes: checked against how many there are by [`ColumnType::fits`].
    Place,
    /// From 0 to what a count may be.
    Count,
    Text,
    Unit,
    RecordId,
    Record,
    OutboxEvent,
    Group,
    /// What a member was told, see `groups.rs`.
    Letter,
    /// What waits to be told of a member (JSON), or nothing.
    MaybeBody,
    DeadLetter,
    /// So many bytes for each entry.
    Entries(usize),
}

/// What becomes of a row with a column that cannot be read. What the row held is put aside either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// The row goes.
    Goes,
    /// It is zero: at once, or never yet.
    Zero,
    /// It is not there.
    Nothing,
    /// Up to when everything was heard.
    Heard,
    /// It becomes a text, which may say nothing: whoever reads it says so.
    AsText,
    /// It follows from what else is known, see `quarantine.rs`; where it does not the row goes.
    Derived,
}

const fn column(name: &'static str, holds: ColumnType, otherwise: Fallback) -> ColumnRule {
    ColumnRule { name, holds, otherwise }
}

use ColumnType::*;
use Fallback::*;

/// All tables of the layout but `meta`, which is read once, at the start, and `unreadable`.
pub(super) const TABLE_RULES: &[TableRule] = &[
    TableRule {
        table: "units",
        what: Stored::Facts,
        key: &["id"],
        columns: &[
            column("id", Number, Goes),
            column("name", Unit, Derived),
            column("facts", Text, AsText),
            column("alive", MaybeMoment, Heard),
            column("look", MaybeMoment, Zero),
            column("after", Number, Derived),
        ],
    },
    TableRule {
        table: "beats",
        what: Stored::ExpiryKey,
        key: &["id"],
        columns: &[
            column("id", Number, Goes),
            column("number", Number, Goes),
            column("entries", Entries(super::last_seen::ENTRY), Goes),
        ],
    },
    TableRule {
        table: "pages",
        what: Stored::ExpiryKey,
        key: &["id"],
        columns: &[
            column("id", Number, Goes),
            column("number", Number, Goes),
            column("times", Entries(super::last_seen::TIME), Goes),
        ],
    },
    TableRule {
        table: "data",
        what: Stored::Value,
        key: &["id", "metric"],
        columns: &[
            column("id", Number, Goes),
            column("metric", Text, Goes),
            column("at", Moment, Zero),
            column("value", Text, Goes),
        ],
    },
    TableRule {
        table: "blind",
        what: Stored::Hearing,
        key: &["start", "until"],
        columns: &[column("start", Moment, Goes), column("until", Moment, Goes)],
    },
    TableRule {
        table: "records",
        what: Stored::Record,
        key: &["id"],
        columns: &[
            column("id", RecordId, Goes),
            column("partition", Place, Derived),
            column("detected", Moment, Derived),
            column("closed", MaybeMoment, Derived),
            column("record", Record, Goes),
        ],
    },
    TableRule {
        table: "outbox",
        what: Stored::Outbox,
        key: &["id"],
        columns: &[
            column("id", Number, Goes),
            column("partition", Place, Derived),
            column("news", OutboxEvent, Goes),
        ],
    },
    TableRule {
        table: "groups",
        what: Stored::Group,
        key: &["id"],
        columns: &[
            column("id", Number, Goes),
            column("partition", Place, Derived),
            column("key", Text, Goes),
            column("body", Group, Derived),
            column("due", MaybeMoment, Zero),
            column("sealed", MaybeMoment, Nothing),
        ],
    },
    TableRule {
        table: "members",
        what: Stored::Group,
        key: &["grp", "member"],
        columns: &[
            column("grp", Number, Goes),
            column("member", Text, Goes),
            column("letter", Letter, Goes),
            column("detected", Moment, Zero),
            column("joined", MaybeMoment, Zero),
            column("over", MaybeMoment, Zero),
            column("body", MaybeBody, Goes),
        ],
    },
    TableRule {
        table: "notifications",
        what: Stored::Delivery,
        key: &["id"],
        columns: &[column("id", Text, Goes), column("body", Text, AsText), column("owed", Count, Derived)],
    },
    TableRule {
        table: "queue",
        what: Stored::Delivery,
        key: &["receiver", "grp"],
        columns: &[
            column("receiver", Text, Goes),
            column("grp", Text, Goes),
            column("partition", Place, Derived),
            column("at", Moment, Zero),
        ],
    },
    TableRule {
        table: "lanes",
        what: Stored::Delivery,
        key: &["id"],
        columns: &[
            column("id", Number, Goes),
            column("receiver", Text, Goes),
            column("grp", Text, Goes),
            column("notification", Text, Goes),
            column("attempts", Count, Zero),
        ],
    },
    TableRule {
        table: "letters",
        what: Stored::DeadLetter,
        key: &["receiver", "id"],
        columns: &[
            column("receiver", Text, Goes),
            column("id", Text, Goes),
            column("partition", Place, Derived),
            column("at", Moment, Zero),
            column("letter", DeadLetter, Goes),
        ],
    },
    TableRule {
        table: "untold",
        what: Stored::DeadLetter,
        key: &["receiver", "silence"],
        columns: &[
            column("receiver", Text, Goes),
            column("silence", Text, Goes),
            column("letter", Text, Goes),
        ],
    },
    TableRule {
        table: "receivers",
        what: Stored::Delivery,
        key: &["name"],
        columns: &[column("name", Text, Goes), column("absent", MaybeMoment, Zero)],
    },
];

impl ColumnType {
    /// Whether a value is what this says. `places` is how many outboxes there are, one more than partitions.
    pub fn fits(self, value: ValueRef<'_>, places: i64) -> bool {
        match (self, value) {
            (MaybeMoment | MaybeBody, ValueRef::Null) => true,
            (Number, ValueRef::Integer(_)) => true,
            (Moment | MaybeMoment, ValueRef::Integer(ms)) => Timestamp::from_millis(ms).as_millis() == ms,
            (Place, ValueRef::Integer(place)) => (0..places).contains(&place),
            (Count, ValueRef::Integer(count)) => u32::try_from(count).is_ok(),
            (Entries(size), ValueRef::Blob(bytes)) => bytes.len() % size == 0,
            (Number | Moment | MaybeMoment | Place | Count | Entries(_), _) => false,
            (_, ValueRef::Text(text)) => std::str::from_utf8(text).is_ok_and(|text| self.says(text)),
            _ => false,
        }
    }

    fn says(self, text: &str) -> bool {
        fn json<T: serde::de::DeserializeOwned>(text: &str) -> bool {
            serde_json::from_str::<T>(text).is_ok()
        }
        match self {
            Text => true,
            Unit => text.parse::<crate::presence::Unit>().is_ok(),
            RecordId => text.parse::<crate::presence::RecordId>().is_ok(),
            Record => json::<OfflineRecord>(text),
            OutboxEvent => json::<crate::store::OutboxEvent>(text),
            Group => json::<crate::store::Group>(text),
            Letter => matches!(text.chars().next(), Some('o' | 't' | 'b' | 'x')),
            MaybeBody => json::<OfflineRecord>(text) || json::<crate::presence::Interval>(text),
            DeadLetter => json::<crate::store::DeadLetter>(text),
            Number | Moment | MaybeMoment | Place | Count | Entries(_) => false,
        }
    }
}

/// All tables and their columns, for documentation and tests. `meta` is read by name.
pub fn columns() -> Vec<(&'static str, Vec<&'static str>)> {
    TABLE_RULES
        .iter()
        .map(|sort| (sort.table, sort.columns.iter().map(|column| column.name).collect()))
        .collect()
}

//! The records of a message as a table (RFC 4180), for the attachment of a mail.
//!
//! Labels come from devices, and a spreadsheet takes a cell that begins like a formula for one. So such a cell begins
//! with an apostrophe.

use std::collections::BTreeMap;

use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::store::Delivery;

/// The most bytes of a table: some ten thousand ordinary rows. Mail servers refuse large mails.
const MOST_BYTES: usize = 2 << 20;
/// The most labels with columns of their own: those that most records have.
const MOST_LABELS: usize = 20;
const COLUMNS: [&str; 8] =
    ["transition", "kind", "unit", "offline_since", "last_seen", "back_at", "cause", "record"];

/// A table and how many records it has.
pub struct Table {
    pub text: String,
    pub rows: usize,
}

/// The table of a message: a row for each record, as far as there is room.
pub fn table(delivery: &Delivery) -> Table {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let both = [("offline", &delivery.offline), ("online", &delivery.online)];
    for name in both.iter().flat_map(|(_, records)| *records).flat_map(|record| record.labels.keys()) {
        *known.entry(name).or_default() += 1;
    }
    let mut labels: Vec<&str> = known.keys().copied().collect();
    labels.sort_by_key(|name| std::cmp::Reverse(known[name]));
    labels.truncate(MOST_LABELS);
    labels.sort_unstable();
    let mut text = String::new();
    let named = labels.iter().map(|name| format!("label_{name}"));
    push_row(&mut text, COLUMNS.iter().map(|name| (*name).to_owned()).chain(named));
    let mut rows = 0;
    for (transition, record) in
        both.iter().flat_map(|(transition, records)| records.iter().map(move |one| (*transition, one)))
    {
        let before = text.len();
        push_row(&mut text, cells(transition, record, &labels));
        if text.len() > MOST_BYTES {
            text.truncate(before);
            break;
        }
        rows += 1;
    }
    Table { text, rows }
}

fn cells(transition: &str, record: &OfflineRecord, labels: &[&str]) -> impl Iterator<Item = String> {
    let own = [
        transition.to_owned(),
        record.kind.to_string(),
        record.unit.to_string(),
        record.deadline.to_string(),
        record.last_seen.to_string(),
        record.back_at.as_ref().map(Timestamp::to_string).unwrap_or_default(),
        record.cause.as_str().to_owned(),
        record.id.to_string(),
    ];
    own.into_iter().chain(labels.iter().map(|name| record.labels.get(*name).cloned().unwrap_or_default()))
}

fn push_row(text: &mut String, cells: impl Iterator<Item = String>) {
    for (at, cell) in cells.enumerate() {
        if at > 0 {
            text.push(',');
        }
        push_cell(text, &cell);
    }
    text.push_str("\r\n");
}

fn push_cell(text: &mut String, cell: &str) {
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let apostrophe = if is_formula { "'" } else { "" };
    if cell.contains([',', '"', '\r', '\n']) {
        text.push('"');
        text.push_str(apostrophe);
        text.push_str(&cell.replace('"', "\"\""));
        text.push('"');
    } else {
        text.push_str(apostrophe);
        text.push_str(cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerting::message::test_delivery;

    #[test]
    fn no_cell_is_a_formula_or_ends_its_row() {
        let cases = [
            ("north", "north"),
            ("", ""),
            ("=HYPERLINK(\"x\")", "\"'=HYPERLINK(\"\"x\"\")\""),
            ("+1", "'+1"),
            ("-1,5", "\"'-1,5\""),
            ("@SUM", "'@SUM"),
            ("\tx", "'\tx"),
            ("\rx", "\"'\rx\""),
            ("a\r\nb", "\"a\r\nb\""),
            ("a=b", "a=b"),
        ];
        for (cell, expected) in cases {
            let mut text = String::new();
            push_cell(&mut text, cell);
            assert_eq!(text, expected, "{cell:?}");
        }
    }

    #[test]
    fn a_table_has_a_row_for_each_record_and_an_end() {
        let at = Timestamp::ZERO;
        let record = |number: usize, label: String| {
            let unit = format!("detector:{number}").parse().unwrap();
            OfflineRecord {
                labels: [("site".to_owned(), label)].into(),
                ..OfflineRecord::open(unit, at, at, at)
            }
        };
        let mut delivery = test_delivery("mail", at);
        delivery.offline = vec![record(1, "=north".to_owned())];
        delivery.online = vec![OfflineRecord { back_at: Some(at), ..record(2, "south".to_owned()) }];
        let Table { text, rows } = table(&delivery);
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!((rows, lines.len(), lines[3]), (2, 4, ""));
        assert_eq!(lines[0], "transition,kind,unit,offline_since,last_seen,back_at,cause,record,label_site");
        assert!(lines[1].starts_with("offline,detector,1,") && lines[1].ends_with(",'=north"), "{text}");
        assert!(lines[2].starts_with("online,detector,2,"), "{text}");
        delivery.offline = (0..10_000).map(|number| record(number, "x".repeat(400))).collect();
        let Table { text, rows } = table(&delivery);
        assert!(text.len() <= MOST_BYTES && text.ends_with("\r\n") && (1000..9000).contains(&rows), "{rows}");
    }
}

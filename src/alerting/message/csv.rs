//! The records of a message as a table (CSV), for the attachment of a mail.

use std::collections::BTreeMap;

use crate::clock::Timestamp;
use crate::csv_row::csv_row;
use crate::presence::OfflineRecord;
use crate::store::Delivery;

/// The most bytes of a table: some ten thousand ordinary rows. Mail servers refuse large mails.
const MAX_BYTES: usize = 2 << 20;
/// The most labels with columns of their own: the labels that most records have.
const MAX_LABELS: usize = 20;
/// The byte order mark, without which Excel reads `é` as `Ã©`.
const MARK: &str = "\u{feff}";
const COLUMNS: [&str; 8] =
    ["transition", "kind", "unit", "offline_since", "last_seen", "back_at", "cause", "record"];

/// A table and how many records it has.
pub struct CsvTable {
    pub text: String,
    pub rows: usize,
}

/// The table of a message: a row for each record, as far as there is room.
pub fn table(delivery: &Delivery) -> CsvTable {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let both = [("offline", &delivery.offline), ("online", &delivery.online)];
    for name in both.iter().flat_map(|(_, records)| *records).flat_map(|record| record.labels.keys()) {
        *known.entry(name).or_default() += 1;
    }
    let mut labels: Vec<&str> = known.keys().copied().collect();
    labels.sort_by_key(|name| std::cmp::Reverse(known[name]));
    labels.truncate(MAX_LABELS);
    labels.sort_unstable();
    let named = labels.iter().map(|name| format!("label_{name}"));
    let mut text = MARK.to_owned();
    text.push_str(&csv_row(COLUMNS.iter().map(|name| (*name).to_owned()).chain(named)));
    let mut rows = 0;
    for (transition, record) in
        both.iter().flat_map(|(transition, records)| records.iter().map(move |one| (*transition, one)))
    {
        let before = text.len();
        text.push_str(&csv_row(cells(transition, record, &labels)));
        if text.len() > MAX_BYTES {
            text.truncate(before);
            break;
        }
        rows += 1;
    }
    CsvTable { text, rows }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerting::message::test_delivery;

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
        let CsvTable { text, rows } = table(&delivery);
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!((rows, lines.len(), lines[3]), (2, 4, ""));
        assert_eq!(
            lines[0],
            "\u{feff}transition,kind,unit,offline_since,last_seen,back_at,cause,record,label_site"
        );
        assert!(lines[1].starts_with("offline,detector,1,") && lines[1].ends_with(",\"'=north\""), "{text}");
        assert!(lines[2].starts_with("online,detector,2,"), "{text}");
        delivery.offline = (0..10_000).map(|number| record(number, "x".repeat(400))).collect();
        let CsvTable { text, rows } = table(&delivery);
        assert!(text.len() <= MAX_BYTES && text.ends_with("\r\n") && (1000..9000).contains(&rows), "{rows}");
    }
}

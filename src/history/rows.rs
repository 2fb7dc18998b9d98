//! Values of Rollcall as columns of a batch: one array for each column, so that a batch is one statement.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Transaction};

use crate::clock::Timestamp;
use crate::presence::Labels;
use crate::store::{Attempt, AuditEntry};

/// The most record ids that a notification stores; the columns `offline` and `online` hold their numbers.
const MAX_RECORDS: usize = 1000;

/// A moment as the client of the database takes it.
pub(super) fn moment(at: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(at.as_millis()).unwrap_or(jiff::Timestamp::MAX)
}

/// A moment of the database.
pub(super) fn timestamp(at: jiff::Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millisecond())
}

/// Removes zero characters, which a text of PostgreSQL cannot hold.
pub(super) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) fn json(labels: &Labels) -> String {
    let labels: Labels = labels.iter().map(|(name, value)| (text(name), text(value))).collect();
    serde_json::to_string(&labels).unwrap_or_else(|_| "{}".to_owned())
}

/// Writes changes that operators made.
pub(super) async fn write_operations(
    transaction: &Transaction<'_>,
    entries: &[AuditEntry],
) -> Result<u64, Error> {
    let insert = "INSERT INTO operations (at, id, author, change, subject, kind, unit, text) \
                  SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], \
                  $6::text[], $7::text[], $8::text[]) ON CONFLICT DO NOTHING";
    let of = |part: fn(&AuditEntry) -> &str| entries.iter().map(|one| text(part(one))).collect::<Vec<_>>();
    let at: Vec<jiff::Timestamp> = entries.iter().map(|one| moment(one.at)).collect();
    let ids: Vec<String> = entries.iter().map(operation_id).collect();
    let (kinds, units): (Vec<_>, Vec<_>) = entries.iter().map(|one| one.unit().unzip()).unzip();
    let (authors, subjects, texts) = (of(|one| &one.author), of(|one| &one.subject), of(|one| &one.text));
    let changes: Vec<&str> = entries.iter().map(|one| one.change.as_str()).collect();
    let columns: [&(dyn ToSql + Sync); 8] =
        [&at, &ids, &authors, &changes, &subjects, &kinds, &units, &texts];
    transaction.execute(insert, &columns).await
}

/// The id is a digest of the content, because the audit has no ids that outlive the engine.
pub(super) fn operation_id(entry: &AuditEntry) -> String {
    let AuditEntry { at, author, change, subject, text } = entry;
    let content = format!("{}\n{author}\n{}\n{subject}\n{text}", at.as_millis(), change.as_str());
    let digest = ring::digest::digest(&ring::digest::SHA256, content.as_bytes());
    data_encoding::BASE64URL_NOPAD.encode(&digest.as_ref()[..16])
}

/// Writes attempts to notify receivers.
pub(super) async fn write_notifications(
    transaction: &Transaction<'_>,
    attempts: &[Attempt],
) -> Result<u64, Error> {
    let insert = "INSERT INTO notifications (at, notification, receiver, attempt, result, took_ms, answer, group_key, \
                  group_labels, sealed_at, offline, online, records, is_reminder) \
                  SELECT a, n, r, c, e, t, w, g, l::jsonb, s, f, b, ARRAY(SELECT jsonb_array_elements_text(i::jsonb)), \
                  m FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::int[], $5::text[], $6::bigint[], \
                  $7::text[], $8::text[], $9::text[], $10::timestamptz[], $11::int[], $12::int[], $13::text[], \
                  $14::bool[]) x(a, n, r, c, e, t, w, g, l, s, f, b, i, m) ON CONFLICT DO NOTHING";
    let of = |part: fn(&Attempt) -> &str| attempts.iter().map(|one| text(part(one))).collect::<Vec<_>>();
    let when =
        |part: fn(&Attempt) -> Timestamp| attempts.iter().map(|one| moment(part(one))).collect::<Vec<_>>();
    let count = |part: fn(&Attempt) -> usize| attempts.iter().map(|one| part(one) as i32).collect::<Vec<_>>();
    let (at, sealed) = (when(|one| one.at), when(|one| one.sealed_at));
    let (ids, receivers) = (of(|one| &one.notification), of(|one| &one.receiver));
    let (answers, groups) = (of(|one| &one.answer), of(|one| &one.group));
    let numbers = count(|one| one.number as usize);
    let results: Vec<&str> = attempts.iter().map(|one| one.result.as_str()).collect();
    let took: Vec<i64> = attempts.iter().map(|one| one.took_ms as i64).collect();
    let labels: Vec<String> = attempts.iter().map(|one| json(&one.labels)).collect();
    let (offline, online) = (count(|one| one.offline.len()), count(|one| one.online.len()));
    let records: Vec<String> = attempts.iter().map(records_of).collect();
    let reminders: Vec<bool> = attempts.iter().map(|one| one.reminder).collect();
    let columns: [&(dyn ToSql + Sync); 14] = [
        &at, &ids, &receivers, &numbers, &results, &took, &answers, &groups, &labels, &sealed, &offline,
        &online, &records, &reminders,
    ];
    transaction.execute(insert, &columns).await
}

/// The first records of a notification, as JSON.
fn records_of(attempt: &Attempt) -> String {
    let ids: Vec<String> =
        attempt.offline.iter().chain(&attempt.online).take(MAX_RECORDS).map(|id| text(&id.text())).collect();
    serde_json::to_string(&ids).unwrap_or_else(|_| "[]".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_zero_is_replaced() {
        // Of the labels, the last one is a text that only looks like it.
        for (value, stored) in [("a\0b", "a\u{fffd}b"), ("\0", "\u{fffd}"), ("a\\u0000b", "a\\\\u0000b")] {
            let labels: Labels = [("site".to_owned(), value.to_owned())].into_iter().collect();
            assert_eq!(json(&labels), format!("{{\"site\":\"{stored}\"}}"));
        }
        assert_eq!(text("a\0b"), "a\u{fffd}b");
    }
}

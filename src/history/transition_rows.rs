//! Rows of transitions and of open records, and the sums of days that they correct.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Transaction};

use super::late::{LateRecord, LateRecords};
use super::rows::{json, moment, text, timestamp};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, Transition};

/// Both transitions of records, and the records that are open.
#[derive(Default)]
pub(super) struct TransitionRows {
    at: Vec<jiff::Timestamp>,
    transition: Vec<&'static str>,
    record: Vec<String>,
    kind: Vec<String>,
    unit: Vec<String>,
    labels: Vec<String>,
    cause: Vec<&'static str>,
    last_seen: Vec<jiff::Timestamp>,
    offline_since: Vec<jiff::Timestamp>,
    detected_at: Vec<jiff::Timestamp>,
    closed_by: Vec<Option<&'static str>>,
    closed: Vec<String>,
    /// Records that are open, and their partitions.
    open: Vec<String>,
    partition: Vec<i32>,
    records: Vec<LateRecord>,
}

impl TransitionRows {
    /// The opening of a record, and its closing if it is closed.
    pub fn add(&mut self, record: &OfflineRecord, partition: u16) {
        let closing = record.back_at.zip(record.closed_by).map(|(at, by)| (at, by.as_str()));
        self.records.push(LateRecord::of(record));
        self.push(record, record.detected_at, Transition::Offline, None);
        if let Some((at, by)) = closing {
            self.push(record, at, Transition::Online, Some(by));
            self.closed.push(record.id.text());
            return;
        }
        self.open.push(record.id.text());
        self.partition.push(i32::from(partition));
    }

    /// The moments of the transitions.
    pub fn moments(&self) -> impl Iterator<Item = Timestamp> {
        self.at.iter().map(|at| timestamp(*at))
    }

    fn push(
        &mut self,
        record: &OfflineRecord,
        at: Timestamp,
        transition: Transition,
        closed_by: Option<&'static str>,
    ) {
        self.at.push(moment(at));
        self.transition.push(match transition {
            Transition::Offline => "offline",
            Transition::Online => "online",
        });
        self.record.push(record.id.text());
        self.kind.push(record.kind.to_string());
        self.unit.push(text(&record.unit.to_string()));
        self.labels.push(json(&record.labels));
        self.cause.push(record.cause.as_str());
        self.last_seen.push(moment(record.last_seen));
        self.offline_since.push(moment(record.deadline));
        self.detected_at.push(moment(record.detected_at));
        self.closed_by.push(closed_by);
    }

    /// Writes the rows that are not there, and corrects the sums of days that they change. Answers how many that were.
    pub async fn write(&self, transaction: &Transaction<'_>) -> Result<u64, Error> {
        let late = LateRecords::of(transaction, &self.records).await?;
        let written = self.insert(transaction).await?;
        late.correct(transaction).await?;
        Ok(written)
    }

    async fn insert(&self, transaction: &Transaction<'_>) -> Result<u64, Error> {
        let insert = "INSERT INTO transitions (at, transition, record, kind, unit, labels, cause, last_seen, \
                      offline_since, detected_at, closed_by) \
                      SELECT a, t, r, k, u, l::jsonb, c, s, o, d, b FROM unnest($1::timestamptz[], $2::text[], \
                      $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], \
                      $9::timestamptz[], $10::timestamptz[], $11::text[]) x(a, t, r, k, u, l, c, s, o, d, b) \
                      ON CONFLICT DO NOTHING";
        let columns: [&(dyn ToSql + Sync); 11] = [
            &self.at,
            &self.transition,
            &self.record,
            &self.kind,
            &self.unit,
            &self.labels,
            &self.cause,
            &self.last_seen,
            &self.offline_since,
            &self.detected_at,
            &self.closed_by,
        ];
        let written = transaction.execute(insert, &columns).await?;
        if !self.open.is_empty() {
            let insert = "INSERT INTO open SELECT r, k, u, l::jsonb, c, s, o, d, p FROM unnest($1::text[], $2::text[], \
                          $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], \
                          $8::timestamptz[]) x(r, k, u, l, c, s, o, d) JOIN unnest($9::text[], $10::int[]) y(w, p) \
                          ON w = r ON CONFLICT (record) DO UPDATE SET partition = excluded.partition \
                          WHERE open.partition <> excluded.partition";
            let columns: [&(dyn ToSql + Sync); 10] = [
                &self.record,
                &self.kind,
                &self.unit,
                &self.labels,
                &self.cause,
                &self.last_seen,
                &self.offline_since,
                &self.detected_at,
                &self.open,
                &self.partition,
            ];
            transaction.execute(insert, &columns).await?;
        }
        if !self.closed.is_empty() {
            transaction.execute("DELETE FROM open WHERE record = ANY ($1)", &[&self.closed]).await?;
        }
        Ok(written)
    }
}

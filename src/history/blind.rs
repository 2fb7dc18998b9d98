//! The ledger of blind intervals: of the fleet, and of each kind with filters of its own. It is short, so it is
//! compared as a whole with the intervals that this connection has written.

use std::collections::BTreeSet;

use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use super::rows::moment;
use crate::clock::Timestamp;
use crate::presence::{Hearing, Interval, Ledger};

/// The intervals that are written: the kind, empty for the fleet, and the time.
#[derive(Default)]
pub(super) struct WrittenIntervals(BTreeSet<(String, Timestamp, Timestamp)>);

impl WrittenIntervals {
    /// Writes new intervals. Returns how many there were.
    pub async fn write(&mut self, database: &mut Database, hearing: &Hearing) -> Result<u64> {
        let intervals = intervals(hearing);
        let new: Vec<&(String, Timestamp, Timestamp)> = intervals.difference(&self.0).collect();
        if new.is_empty() {
            return Ok(0);
        }
        let kinds: Vec<&str> = new.iter().map(|(kind, ..)| kind.as_str()).collect();
        let from: Vec<jiff::Timestamp> = new.iter().map(|(_, from, _)| moment(*from)).collect();
        let until: Vec<jiff::Timestamp> = new.iter().map(|(.., until)| moment(*until)).collect();
        let columns: [&(dyn ToSql + Sync); 3] = [&kinds, &from, &until];
        let written = database.in_transaction("write blind intervals", async |transaction| {
            // An interval that grew, or that joined others, replaces the older rows.
            let delete = "DELETE FROM blind USING unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) n(k, f, u) \
                          WHERE kind = k AND from_at >= f AND until_at <= u AND (from_at, until_at) <> (f, u)";
            transaction.execute(delete, &columns).await?;
            let insert = "INSERT INTO blind (kind, from_at, until_at) \
                          SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) \
                          ON CONFLICT (kind, from_at) DO UPDATE SET until_at = excluded.until_at \
                          WHERE blind.until_at < excluded.until_at";
            transaction.execute(insert, &columns).await
        });
        let written = written.await?;
        self.0 = intervals;
        Ok(written)
    }
}

fn intervals(hearing: &Hearing) -> BTreeSet<(String, Timestamp, Timestamp)> {
    let of = |kind: &str, all: &[Interval]| {
        let over = all.iter().filter(|one| one.is_over());
        over.map(|one| (kind.to_owned(), one.from, one.to)).collect::<Vec<_>>()
    };
    let of_kinds = hearing.filters.blind.keys().flat_map(|kind| {
        let own = hearing.filters.blind_of(kind, None).copied();
        of(kind.as_str(), Ledger::new(own).intervals())
    });
    of("", hearing.ledger.intervals()).into_iter().chain(of_kinds).collect()
}

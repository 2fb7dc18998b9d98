//! The ledger of blind intervals: of the fleet, and of each kind with filters of its own. It is short, so it is
//! compared as a whole with the intervals that this connection has written.
//!
//! # Why blind time has a cursor
//! The ledger gets an interval when it is over. So up to the last proof of hearing it is complete, and says nothing of
//! the time since: a day that ends in it is summed later. Blind time that lasts for [`LONGEST`] is written while it
//! lasts, hour by hour, so that a kind that is never heard again does not stop the sums of all others.
//!
//! # Why an interval that ends before the cursor is not new
//! An engine that has too many intervals of a kind joins old ones and the time between them, which is harmless for
//! detection. History keeps what it wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::database::{Database, Result};
use super::rows::moment;
use super::sources::PASS;
use super::{BLIND, cursors};
use crate::clock::Timestamp;
use crate::presence::{Filters, Hearing, Interval, Kind, Ledger};

/// How long a day waits for proof that its end was heard. A broker keeps messages for a session for less time, by default
/// for an hour.
const LONGEST: Duration = Duration::from_secs(86_400);
const HOUR: i64 = 3_600_000;

/// A kind, empty for the fleet, and a time.
type OfKind = (String, Timestamp, Timestamp);

/// What is known of blind time.
pub(super) struct BlindTime {
    intervals: BTreeSet<OfKind>,
    /// All blind time before this is in `intervals`.
    pub until: Timestamp,
}

impl BlindTime {
    /// `filters`: those by which kinds are heard.
    pub fn of(hearing: &Hearing, filters: &Filters, now: Timestamp) -> BlindTime {
        let given_up = (now - LONGEST).as_millis();
        let given_up = Timestamp::from_millis(given_up - given_up.rem_euclid(HOUR));
        let of_kind =
            |kind: &Kind| (kind.to_string(), hearing.filters.blind_of(kind, None).copied().collect());
        let mut all: BTreeMap<String, Vec<Interval>> = hearing.filters.blind.keys().map(of_kind).collect();
        all.insert(String::new(), hearing.ledger.intervals().to_vec());
        let mut until = hearing.heard.map_or(given_up, |_| now);
        for (kind, noted) in hearing.noted_until(filters) {
            let kind = kind.map_or_else(String::new, Kind::to_string);
            all.entry(kind).or_default().push(Interval { from: noted, to: given_up });
            until = until.min(noted.max(given_up));
        }
        let joined = |(kind, own): (String, Vec<Interval>)| {
            let own = Ledger::new(own).intervals().to_vec();
            own.into_iter().map(move |one| (kind.clone(), one.from, one.to))
        };
        BlindTime { intervals: all.into_iter().flat_map(joined).collect(), until }
    }
}

/// What this connection has written.
#[derive(Default)]
pub(super) struct WrittenIntervals {
    intervals: BTreeSet<OfKind>,
    until: Timestamp,
}

impl WrittenIntervals {
    /// Writes new intervals, and how far blind time is known. `fleet`: the number after the last partition. Answers how
    /// many intervals there were.
    pub async fn write(&mut self, database: &mut Database, found: BlindTime, fleet: u16) -> Result<u64> {
        let new: Vec<&OfKind> = found.intervals.difference(&self.intervals).collect();
        if new.is_empty() && found.until.since(self.until) < PASS {
            return Ok(0);
        }
        let kinds: Vec<&str> = new.iter().map(|(kind, ..)| kind.as_str()).collect();
        let from: Vec<jiff::Timestamp> = new.iter().map(|(_, from, _)| moment(*from)).collect();
        let until: Vec<jiff::Timestamp> = new.iter().map(|(.., until)| moment(*until)).collect();
        let columns: [&(dyn ToSql + Sync); 4] = [&kinds, &from, &until, &BLIND];
        let written = database.in_transaction("write blind intervals", async |transaction| {
            // An interval that grew, or that joined others, replaces the older rows.
            let write = "WITH n AS (SELECT k, f, u FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) x(k, f, u) \
                         WHERE u > ALL (SELECT at FROM cursors WHERE source = $4)), \
                         d AS (DELETE FROM blind USING n WHERE kind = k AND from_at > f AND until_at <= u) \
                         INSERT INTO blind (kind, from_at, until_at) SELECT k, f, u FROM n \
                         ON CONFLICT (kind, from_at) DO UPDATE SET until_at = excluded.until_at";
            let written = transaction.execute(write, &columns).await?;
            cursors::advance(transaction, BLIND, &[fleet], found.until).await?;
            Ok(written)
        });
        let written = written.await?;
        *self = WrittenIntervals { intervals: found.intervals, until: found.until };
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_waits_for_hearing_for_a_day_and_then_the_time_is_blind() {
        let hours = |hours: i64| Timestamp::from_millis(hours * HOUR + 60_000);
        let sharp = |hours: i64| Timestamp::from_millis(hours * HOUR);
        // Heard up to, now, until when blind time is known, and the blind time that lasts.
        type Case = (Option<i64>, i64, Timestamp, Option<(Timestamp, Timestamp)>);
        let cases: [Case; 5] = [
            (Some(100), 100, hours(100), None),
            (Some(100), 124, hours(100), None),
            (Some(100), 125, sharp(101), Some((hours(100), sharp(101)))),
            (Some(100), 200, sharp(176), Some((hours(100), sharp(176)))),
            (None, 200, sharp(176), None),
        ];
        for (heard, now, until, lasting) in cases {
            let hearing = Hearing { heard: heard.map(hours), ..Hearing::default() };
            let found = BlindTime::of(&hearing, &Filters::default(), hours(now));
            let expected: BTreeSet<OfKind> =
                lasting.map(|(from, to)| (String::new(), from, to)).into_iter().collect();
            assert_eq!((found.until, found.intervals), (until, expected), "{heard:?} {now}");
        }
    }
}

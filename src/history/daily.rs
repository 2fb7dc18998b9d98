//! The sums of days: of the fleet, of each kind and label value, and of each unit that was not online all day.
//!
//! A day (UTC) is summed when all cursors have passed its end, so that the database has all its rows. One instance does
//! it, a day at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Transaction};

use super::database::{Database, Result};
use super::reading::{ReadUnit, UnitSelection, each_unit};
use super::rows::timestamp;
use super::schema::Months;
use super::sources::HistorySource;
use super::{DAILY, UNITS, cursors};
use crate::clock::Timestamp;
use crate::presence::{Interval, Labels, TimeSpent};
use crate::reports::day_of;

const DAY: Duration = Duration::from_secs(86_400);

/// The most values of a label that have sums; a label with more values, such as a serial number, has no sums.
const MAX_VALUES: usize = 2000;

/// How many rows one statement writes.
const ROWS: usize = 5000;

/// The key of a row of sums: the scope and the name.
type SumKey = (String, String);

/// Sums the next day if it is complete; returns whether it was. `fleet`: the number after the last partition.
pub(super) async fn sum_next(database: &mut Database, months: &mut Months, fleet: u16) -> Result<bool> {
    let Some(from) = next(database, fleet).await? else { return Ok(false) };
    let day = Interval { from, to: from + DAY };
    months.make(database, "daily", std::iter::once(from)).await?;
    let (mut sums, mut rows) = (DaySums::default(), Vec::new());
    let all = UnitSelection::default();
    let read = each_unit(database.client(), day, &all, |unit| {
        rows.extend(sums.add(&unit, unit.spent(day)));
    });
    database.limited("read a day", read).await?;
    rows.extend(sums.rows());
    let date = day_of(from);
    let written = database.in_transaction("write a day", async |transaction| {
        for some in rows.chunks(ROWS) {
            write(transaction, date, some).await?;
        }
        cursors::advance(transaction, DAILY, &[fleet], day.to).await
    });
    written.await?;
    Ok(true)
}

/// The begin of the next day to sum, if it is complete.
async fn next(database: &Database, fleet: u16) -> Result<Option<Timestamp>> {
    let client = database.client();
    let sources = [HistorySource::Opened.as_str(), HistorySource::Closed.as_str(), UNITS];
    let all: Vec<u16> = (0..fleet).collect();
    let read = database.limited("read how far days are summed", async {
        let mut complete = Timestamp::NEVER;
        for source in sources {
            complete = complete.min(cursors::load(client, source, &all).await?.unwrap_or_default());
        }
        let first = "SELECT min(known_since) FROM units WHERE known_since > 'epoch'";
        let first: Option<jiff::Timestamp> = client.query_one(first, &[]).await?.get(0);
        let summed = cursors::load(client, DAILY, &[fleet]).await?;
        Ok((complete, summed.or(first.map(timestamp))))
    });
    let (complete, from) = read.await?;
    let day = DAY.as_millis() as i64;
    let from = from.map(|from| Timestamp::from_millis(from.as_millis().div_euclid(day) * day));
    Ok(from.filter(|from| *from + DAY <= complete))
}

#[derive(Default)]
struct DaySums {
    sums: BTreeMap<SumKey, (i32, TimeSpent)>,
    values: BTreeMap<String, BTreeSet<String>>,
}

/// A row of a day.
type DayRow = (SumKey, i32, TimeSpent);

impl DaySums {
    /// Adds a unit. Returns its row, unless it was online for all the time that it was known.
    fn add(&mut self, unit: &ReadUnit<'_>, spent: TimeSpent) -> Option<DayRow> {
        let labels: Labels = serde_json::from_str(&unit.labels).unwrap_or_default();
        let mut keys: Vec<SumKey> =
            vec![("fleet".to_owned(), String::new()), ("kind".to_owned(), unit.kind.clone())];
        for (label, value) in &labels {
            let values = self.values.entry(label.clone()).or_default();
            if values.len() <= MAX_VALUES {
                values.insert(value.clone());
                keys.push((format!("label:{label}"), value.clone()));
            }
        }
        for key in keys {
            let sum = self.sums.entry(key).or_default();
            *sum = (sum.0 + 1, sum.1 + spent);
        }
        let is_plain = spent.offline.is_zero() && spent.paused.is_zero() && spent.outages == 0;
        (!is_plain).then(|| (("unit".to_owned(), format!("{}/{}", unit.kind, unit.unit)), 1, spent))
    }

    fn rows(self) -> impl Iterator<Item = DayRow> {
        let DaySums { sums, values } = self;
        let has_too_many = move |scope: &str| {
            scope.strip_prefix("label:").is_some_and(|label| values[label].len() > MAX_VALUES)
        };
        let kept = sums.into_iter().filter(move |((scope, _), _)| !has_too_many(scope));
        kept.map(|(key, (units, spent))| (key, units, spent))
    }
}

async fn write(transaction: &Transaction<'_>, day: jiff::civil::Date, rows: &[DayRow]) -> Result<(), Error> {
    let scopes: Vec<&str> = rows.iter().map(|((scope, _), ..)| scope.as_str()).collect();
    let names: Vec<&str> = rows.iter().map(|((_, name), ..)| name.as_str()).collect();
    let units: Vec<i32> = rows.iter().map(|(_, units, _)| *units).collect();
    let seconds = |part: fn(&TimeSpent) -> Duration| {
        rows.iter().map(|(.., spent)| part(spent).as_secs_f64()).collect::<Vec<f64>>()
    };
    let (online, offline, blind) =
        (seconds(|one| one.online), seconds(|one| one.offline), seconds(|one| one.blind));
    let (paused, unknown, longest) =
        (seconds(|one| one.paused), seconds(|one| one.unknown), seconds(|one| one.longest));
    let outages: Vec<i32> = rows.iter().map(|(.., spent)| spent.outages as i32).collect();
    let upsert = "INSERT INTO daily (day, scope, name, units, online_seconds, offline_seconds, blind_seconds, \
                  paused_seconds, unknown_seconds, outages, longest_seconds) \
                  SELECT $1::date, x.* FROM unnest($2::text[], $3::text[], $4::int[], $5::float8[], $6::float8[], \
                  $7::float8[], $8::float8[], $9::float8[], $10::int[], $11::float8[]) x \
                  ON CONFLICT (day, scope, name) DO UPDATE SET units = excluded.units, \
                  online_seconds = excluded.online_seconds, offline_seconds = excluded.offline_seconds, \
                  blind_seconds = excluded.blind_seconds, paused_seconds = excluded.paused_seconds, \
                  unknown_seconds = excluded.unknown_seconds, outages = excluded.outages, \
                  longest_seconds = excluded.longest_seconds";
    let columns: [&(dyn ToSql + Sync); 11] =
        [&day, &scopes, &names, &units, &online, &offline, &blind, &paused, &unknown, &outages, &longest];
    transaction.execute(upsert, &columns).await?;
    Ok(())
}

//! The sums of days: of the fleet, of each kind and label value, and of each unit that was not online all day.
//!
//! A day (UTC) is summed once everything of it is in the database: when all cursors have passed its end. One instance
//! does it, a day at a time, and once: records that come later correct it, see `late.rs`. It reads and writes in one
//! transaction that holds the days alone: no record is written between, and of two instances that believe to own
//! the sums the second one finds the day summed.
//!
//! Summed days follow one another without a gap: each next one is the day after them or, where a file lets history begin
//! earlier, the day before them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::civil::Date;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, GenericClient, Transaction};

use super::database::{Database, Result};
use super::reading::{ReadUnit, UnitSelection, each_unit};
use super::rows::timestamp;
use super::schema::Months;
use super::sources::HistorySource;
use super::{BLIND, DAILY, OPEN, UNITS, cursors};
use crate::clock::Timestamp;
use crate::presence::{Interval, Labels, TimeSpent, floor};
use crate::reports::{MAX_VALUES, day_of, midnight};

const DAY: Duration = Duration::from_secs(86_400);

/// How many rows one statement writes.
const ROWS: usize = 5000;

/// Sums that stand in one row: the scope and the name.
pub(super) type SumKey = (String, String);

/// Sums the next day if it is complete; returns whether it was. `fleet`: the number after the last partition.
pub(super) async fn sum_next(database: &mut Database, months: &mut Months, fleet: u16) -> Result<bool> {
    let read = next(database.client(), fleet);
    let Some(from) = database.limited("read how far days are summed", read).await? else { return Ok(false) };
    let day = Interval { from, to: from + DAY };
    months.make(database, "daily", std::iter::once(from)).await?;
    let summed = database.in_transaction("sum a day", async |transaction| {
        cursors::hold_days(transaction, true).await?;
        if next(transaction, fleet).await? != Some(from) {
            return Ok(());
        }
        let (mut sums, mut rows) = (DaySums::default(), Vec::new());
        let all = UnitSelection::default();
        let add = |unit: ReadUnit<'_>| rows.extend(sums.add(&unit, unit.spent(day)));
        each_unit(transaction, day, &all, usize::MAX, add).await?;
        rows.extend(sums.rows());
        for some in rows.chunks(ROWS) {
            write(transaction, day_of(from), some).await?;
        }
        cursors::advance(transaction, DAILY, &[fleet], day.to).await
    });
    summed.await?;
    Ok(true)
}

/// The begin of the next day to sum, if there is one that is complete.
async fn next(client: &impl GenericClient, fleet: u16) -> Result<Option<Timestamp>, Error> {
    let sources = [HistorySource::Opened.as_str(), HistorySource::Closed.as_str(), UNITS, OPEN];
    let all: Vec<u16> = (0..fleet).collect();
    let mut complete = cursors::load(client, BLIND, &[fleet]).await?.unwrap_or_default();
    for source in sources {
        complete = complete.min(cursors::load(client, source, &all).await?.unwrap_or_default());
    }
    let is_complete = |day: &Timestamp| *day + DAY <= complete;
    let Some(end) = cursors::load(client, DAILY, &[fleet]).await? else {
        return Ok(first(client).await?.filter(is_complete));
    };
    let end = floor(end, DAY);
    if is_complete(&end) {
        return Ok(Some(end));
    }
    let summed = "SELECT min(day) FROM daily WHERE scope = 'fleet'";
    let summed: Option<Date> = client.query_one(summed, &[]).await?.get(0);
    let before = summed.map_or(end, midnight) - DAY;
    // This is asked again and again, so the units are read only if the bounds allow the day.
    if !is_complete(&before) || kept_since(client).await? > Some(before) {
        return Ok(None);
    }
    Ok(first(client).await?.filter(|first| before >= *first).map(|_| before))
}

/// The begin of the first day that can have sums; `None`: there is no unit.
async fn first(client: &impl GenericClient) -> Result<Option<Timestamp>, Error> {
    let known: Option<jiff::Timestamp> =
        client.query_one("SELECT min(known_since) FROM units", &[]).await?.get(0);
    let Some(known) = known.map(|known| floor(timestamp(known), DAY)) else { return Ok(None) };
    Ok(Some(known).max(kept_since(client).await?))
}

/// The begin of the first day of which history may have sums, whatever units there are. There is nothing to sum of the
/// time before history has records, nor of days whose sums are dropped, nor of the rest of a day that is dropped in part.
async fn kept_since(client: &impl GenericClient) -> Result<Option<Timestamp>, Error> {
    let since = "SELECT greatest((SELECT since FROM kept WHERE table_name = 'transitions'), \
                 (SELECT since + interval '1 day' - interval '1 microsecond' FROM kept WHERE table_name = 'daily'))";
    let since: Option<jiff::Timestamp> = client.query_one(since, &[]).await?.get(0);
    Ok(since.map(|since| floor(timestamp(since), DAY)))
}

#[derive(Default)]
struct DaySums {
    sums: BTreeMap<SumKey, (i32, TimeSpent)>,
    values: BTreeMap<String, BTreeSet<String>>,
}

/// A row of a day.
pub(super) type DayRow = (SumKey, i32, TimeSpent);

impl DaySums {
    /// Adds a unit. Returns its row, unless it was online for all the time that it was known.
    fn add(&mut self, unit: &ReadUnit<'_>, spent: TimeSpent) -> Option<DayRow> {
        let labels: Labels = serde_json::from_str(&unit.labels).unwrap_or_default();
        let keys = keys(&unit.kind, &labels).filter(|(scope, value)| {
            let Some(label) = scope.strip_prefix("label:") else { return true };
            let values = self.values.entry(label.to_owned()).or_default();
            let fits = values.len() <= MAX_VALUES;
            if fits {
                values.insert(value.clone());
            }
            fits
        });
        for key in keys {
            let sum = self.sums.entry(key).or_default();
            *sum = (sum.0 + 1, sum.1 + spent);
        }
        unit_row(&unit.kind, &unit.unit, spent)
    }

    fn rows(self) -> impl Iterator<Item = DayRow> {
        let DaySums { mut sums, values } = self;
        // Each summed day has a row of the fleet, also a day without units.
        sums.entry(of_fleet()).or_default();
        let has_too_many = move |scope: &str| {
            scope.strip_prefix("label:").is_some_and(|label| values[label].len() > MAX_VALUES)
        };
        let kept = sums.into_iter().filter(move |((scope, _), _)| !has_too_many(scope));
        kept.map(|(key, (units, spent))| (key, units, spent))
    }
}

/// The groups that a unit belongs to.
pub(super) fn keys<'a>(kind: &'a str, labels: &'a Labels) -> impl Iterator<Item = SumKey> + 'a {
    let of_all = [of_fleet(), ("kind".to_owned(), kind.to_owned())];
    let of_labels = labels.iter().map(|(label, value)| (format!("label:{label}"), value.clone()));
    of_all.into_iter().chain(of_labels)
}

fn of_fleet() -> SumKey {
    ("fleet".to_owned(), String::new())
}

/// The row of a unit; `None` if it was online all the time that it was known.
pub(super) fn unit_row(kind: &str, unit: &str, spent: TimeSpent) -> Option<DayRow> {
    let is_plain = spent.offline.is_zero() && spent.paused.is_zero() && spent.outages == 0;
    (!is_plain).then(|| (("unit".to_owned(), format!("{kind}/{unit}")), 1, spent))
}

pub(super) async fn write(transaction: &Transaction<'_>, day: Date, rows: &[DayRow]) -> Result<(), Error> {
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

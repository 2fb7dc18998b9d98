//! Reports, and how units spent a range, by unit, kind, label value or the fleet as a whole.
//!
//! The sums of groups are those of their days. Units have no row for a day on which they were online, so each one is
//! worked out from its outages; so are the parts of days at both ends of a range, and a label with too many values for
//! sums. Reports are about the days that are summed. Where the rows of units are not kept for as long as the sums, the time
//! of units before that is unknown, and so is all time before history begins.

use jiff::civil::Date;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::DAILY;
use super::database::{Database, HistoryError, Result};
use super::kept;
use super::reading::{self, ReadUnit, UnitSelection};
use super::rows::{moment, timestamp};
use crate::clock::Timestamp;
use crate::fleet::PastTime;
use crate::presence::{Interval, Ledger, TimeSpent, Unit};
use crate::reports::{AvailabilityReport, AvailabilityScope, Days, GroupBy, ReportRow, day_of, midnight};

/// The most outages, and the most pauses, that one read holds in memory: about 300 megabytes.
const MAX_OUTAGES: usize = 1_000_000;

/// Computes a report of days, as far as they are summed.
pub async fn report(database: &Database, asked: Days, group: &GroupBy) -> Result<AvailabilityReport> {
    let days = summed(database, asked).await?;
    let since = kept::units_since(database).await?;
    let units_since = since.filter(|since| *group == GroupBy::Unit && *since > midnight(days.from));
    let total = rows_of(database, "fleet", None, days).await?.pop().unwrap_or_default();
    let rows = match group {
        GroupBy::Unit => units(database, days).await?,
        GroupBy::Label(label) => rows_of(database, &of_label(label), None, days).await?,
        GroupBy::Fleet | GroupBy::Kind => rows_of(database, &group.to_string(), None, days).await?,
    };
    let losses = losses(database, days.interval()).await?;
    let Days { from, until } = days;
    let nameless = total.spent.total().saturating_sub(rows.iter().map(|row| row.spent.total()).sum());
    let (group, target, omitted) = (group.clone(), None, 0);
    Ok(AvailabilityReport {
        asked,
        from,
        until,
        group,
        target,
        total,
        rows,
        omitted,
        nameless,
        units_since,
        losses,
    })
}

/// How units spent a range, up to the end of the last summed day.
pub(super) async fn time_spent(
    database: &Database,
    of: &AvailabilityScope,
    range: Interval,
) -> Result<PastTime> {
    let (first, end) = summed_range(database).await?.map_or((range.from, range.from), midnights);
    let until = end.clamp(range.from, range.to);
    let range = Interval { to: until, ..range };
    let summed = Interval { from: first.clamp(range.from, until), to: until };
    let days = Days::within(summed);
    let sums = match of_scope(of) {
        Some((scope, name)) if days.from < days.until => sums_of(database, &scope, &name, days).await?,
        _ => None,
    };
    // Sums outlive the rows from which they were made. What was lost meanwhile, they may lack.
    let has_summed = if sums.is_some() {
        losses(database, summed).await?.is_empty()
    } else {
        let unknown = kept::unknown(database.client(), summed);
        database.limited("read losses", unknown).await?.intervals().is_empty()
    };
    let mut parts = Vec::new();
    match sums {
        Some(sums) => {
            let whole = days.interval();
            parts.push(sums);
            for rest in [Interval { to: whole.from, ..range }, Interval { from: whole.to, ..range }] {
                if rest.from < rest.to {
                    parts.push(worked_out(database, of, rest).await?);
                }
            }
        }
        // A single unit, or a label with too many values for sums.
        None => parts.push(worked_out(database, of, range).await?),
    }
    let units = parts.iter().map(|(units, _)| *units).max().unwrap_or_default();
    let spent: TimeSpent = parts.iter().map(|(_, spent)| *spent).sum();
    // Before the summed days it is complete as far as its units were not known.
    let (is_complete, begins) = (has_summed && spent.unknown.is_zero(), kept::begins(database).await?);
    Ok(PastTime { until, units, spent, is_complete, begins })
}

/// How a unit spent each of these days, up to the last one that is summed.
pub(super) async fn days_of_unit(database: &Database, unit: &Unit, asked: Days) -> Result<Vec<TimeSpent>> {
    let days = Days { from: asked.from, ..summed(database, asked).await? };
    let all: Vec<Date> = std::iter::successors(Some(days.from), |day| day.tomorrow().ok())
        .take_while(|day| *day < days.until)
        .collect();
    let mut spent = Vec::new();
    let selection = UnitSelection::from(&AvailabilityScope::Unit(unit.clone()));
    let read = each_unit(database, "read the days of a unit", days.interval(), &selection, |unit| {
        let of_day = |day: &Date| {
            unit.spent(Interval { from: midnight(*day), to: midnight(day.tomorrow().unwrap_or(*day)) })
        };
        spent = all.iter().map(of_day).collect();
    });
    read.await?;
    Ok(spent)
}

/// The number of units of a range, and how they spent it, from their outages.
async fn worked_out(
    database: &Database,
    of: &AvailabilityScope,
    range: Interval,
) -> Result<(u64, TimeSpent)> {
    let (mut sum, selection) = ((0, TimeSpent::default()), UnitSelection::from(of));
    let read = each_unit(database, "read how units spent a time", range, &selection, |unit| {
        sum = (sum.0 + 1, sum.1 + unit.spent(range));
    });
    read.await?;
    Ok(sum)
}

/// The units of a range, one by one.
///
/// # Errors
/// There are more outages than this process holds in memory, or the database fails.
async fn each_unit(
    database: &Database,
    doing: &str,
    range: Interval,
    selection: &UnitSelection,
    found: impl FnMut(ReadUnit<'_>),
) -> Result<()> {
    let read = reading::each_unit(database.client(), range, selection, MAX_OUTAGES, found);
    if database.limited_together(reading::STATEMENTS, doing, read).await? {
        return Ok(());
    }
    Err(HistoryError::Refused(format!(
        "there are more than {MAX_OUTAGES} outages or pauses in that time; ask for a shorter one, or for fewer units"
    )))
}

/// The scope and the name of the sums of days; `None` for a single unit.
fn of_scope(of: &AvailabilityScope) -> Option<(String, String)> {
    match of {
        AvailabilityScope::Fleet => Some(("fleet".to_owned(), String::new())),
        AvailabilityScope::Kind(kind) => Some(("kind".to_owned(), kind.to_string())),
        AvailabilityScope::Label { name, value } => Some((of_label(name), value.clone())),
        AvailabilityScope::Unit(_) => None,
    }
}

fn of_label(label: &str) -> String {
    format!("label:{label}")
}

/// The part of these days that is summed.
async fn summed(database: &Database, asked: Days) -> Result<Days> {
    let (first, end) = summed_range(database).await?.unwrap_or((asked.from, asked.from));
    let until = end.clamp(asked.from, asked.until);
    Ok(Days { from: first.clamp(asked.from, until), until })
}

/// The first day that has sums, and the first one that is not summed yet.
async fn summed_range(database: &Database) -> Result<Option<(Date, Date)>> {
    // One cursor, of the number after the last partition.
    let select =
        "SELECT (SELECT min(day) FROM daily WHERE scope = 'fleet'), max(at) FROM cursors WHERE source = $1";
    let parameters: [&(dyn ToSql + Sync); 1] = [&DAILY];
    let read = database.client().query_one(select, &parameters);
    let row = database.limited("read how far days are summed", read).await?;
    let end = row.get::<_, Option<jiff::Timestamp>>(1).map(|at| day_of(timestamp(at)));
    Ok(row.get::<_, Option<Date>>(0).zip(end))
}

fn midnights((first, end): (Date, Date)) -> (Timestamp, Timestamp) {
    (midnight(first), midnight(end))
}

/// The number of units of a name in these days, and how they spent them; `None` if one of the days has no sums of that
/// scope, as for a label with too many values.
async fn sums_of(
    database: &Database,
    scope: &str,
    name: &str,
    days: Days,
) -> Result<Option<(u64, TimeSpent)>> {
    // A day with rows of other values has no unit with this one.
    let select = "SELECT EXISTS (SELECT day FROM daily WHERE scope = 'fleet' AND day >= $2 AND day < $3 \
                  EXCEPT SELECT day FROM daily WHERE scope = $1 AND day >= $2 AND day < $3)";
    let parameters: [&(dyn ToSql + Sync); 3] = [&scope, &days.from, &days.until];
    let read = database.client().query_one(select, &parameters);
    if database.limited("read a report", read).await?.get(0) {
        return Ok(None);
    }
    let row = rows_of(database, scope, Some(name), days).await?.pop();
    Ok(Some(row.map_or_else(Default::default, |row| (row.units, row.spent))))
}

/// The sums of days, by name; only those of `name` if it is given.
async fn rows_of(database: &Database, scope: &str, name: Option<&str>, days: Days) -> Result<Vec<ReportRow>> {
    let select = "SELECT name, max(units)::bigint, sum(online_seconds), sum(offline_seconds), sum(blind_seconds), \
                  sum(paused_seconds), sum(unknown_seconds), sum(outages)::bigint, max(longest_seconds) \
                  FROM daily WHERE scope = $1 AND day >= $2 AND day < $3 AND ($4::text IS NULL OR name = $4) \
                  GROUP BY name ORDER BY name";
    let parameters: [&(dyn ToSql + Sync); 4] = [&scope, &days.from, &days.until, &name];
    let rows = database.limited("read a report", database.client().query(select, &parameters)).await?;
    let row = |row: &Row| {
        let span = |column: usize| Duration::try_from_secs_f64(row.get(column)).unwrap_or_default();
        let spent = TimeSpent {
            online: span(2),
            offline: span(3),
            blind: span(4),
            paused: span(5),
            unknown: span(6),
            outages: row.get::<_, i64>(7) as u64,
            longest: span(8),
        };
        ReportRow { name: row.get(0), units: row.get::<_, i64>(1) as u64, spent }
    };
    Ok(rows.iter().map(row).collect())
}

async fn units(database: &Database, days: Days) -> Result<Vec<ReportRow>> {
    let (mut rows, range, all) = (Vec::new(), days.interval(), UnitSelection::default());
    let read = each_unit(database, "read a report", range, &all, |unit| {
        let spent = unit.spent(range);
        rows.push(ReportRow { name: format!("{}/{}", unit.kind, unit.unit), units: 1, spent });
    });
    read.await?;
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}

pub(super) async fn losses(database: &Database, time: Interval) -> Result<Vec<Interval>> {
    let (from, to) = (moment(time.from), moment(time.to));
    let select = "SELECT from_at, until_at FROM losses WHERE table_name = 'transitions' AND until_at > $1 \
                  AND from_at < $2 ORDER BY 1";
    let parameters: [&(dyn ToSql + Sync); 2] = [&from, &to];
    let rows = database.limited("read losses", database.client().query(select, &parameters)).await?;
    let time = |row: &Row| Interval { from: timestamp(row.get(0)), to: timestamp(row.get(1)) };
    Ok(Ledger::new(rows.iter().map(time)).intervals().to_vec())
}

//! Reports: how a range of days was spent, by unit, kind, label value or by the fleet as a whole.
//!
//! The sums of groups are those of their days. Units have no row for a day on which they were online, so a report by unit
//! works each one out from its outages.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Serialize;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::DAILY;
use super::database::{Database, Result};
use super::reading::each_unit;
use super::rows::{moment, timestamp};
use super::schema::day_of;
use crate::clock::Timestamp;
use crate::presence::{Interval, TimeSpent};

/// What a report has a row for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupBy {
    Fleet,
    Kind,
    Unit,
    Label(String),
}

impl GroupBy {
    /// The name of a label, or one of `fleet`, `kind` and `unit`.
    pub fn named(name: &str) -> GroupBy {
        match name {
            "fleet" => GroupBy::Fleet,
            "kind" => GroupBy::Kind,
            "unit" => GroupBy::Unit,
            label => GroupBy::Label(label.to_owned()),
        }
    }

    fn scope(&self) -> String {
        match self {
            GroupBy::Fleet => "fleet".to_owned(),
            GroupBy::Kind => "kind".to_owned(),
            GroupBy::Unit => "unit".to_owned(),
            GroupBy::Label(label) => format!("label:{label}"),
        }
    }
}

/// Days, the last one not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days {
    pub from: Date,
    pub until: Date,
}

/// How units spent days.
#[derive(Clone, Debug, PartialEq)]
pub struct AvailabilityReport {
    pub asked: Days,
    /// The first day that is not summed yet: the report ends before it.
    pub until: Date,
    /// The row of the whole.
    pub total: ReportRow,
    /// By name.
    pub rows: Vec<ReportRow>,
    /// Times of the report for which history may lack rows.
    pub losses: Vec<Interval>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportRow {
    /// A unit as `kind/unit`, a kind or a value; empty for the fleet.
    pub name: String,
    /// The most units of a day.
    pub units: u64,
    pub spent: TimeSpent,
}

/// A row as programs read it.
#[derive(Debug, Serialize)]
pub struct ReportLine<'a> {
    pub name: &'a str,
    pub units: u64,
    pub online_share: Option<f64>,
    pub outages: u64,
    pub offline_seconds: f64,
    pub longest_outage_seconds: f64,
    pub mean_seconds_between_outages: Option<f64>,
    pub mean_seconds_to_return: Option<f64>,
    pub blind_seconds: f64,
    pub paused_seconds: f64,
    pub unknown_seconds: f64,
    /// How much of the time offline that the target allows was spent.
    pub budget_spent: Option<f64>,
}

impl ReportRow {
    /// `target`: the share of time online that was agreed.
    pub fn line(&self, target: Option<f64>) -> ReportLine<'_> {
        let ReportRow { name, units, spent } = self;
        let seconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64());
        ReportLine {
            name,
            units: *units,
            online_share: spent.online_share(),
            outages: spent.outages,
            offline_seconds: spent.offline.as_secs_f64(),
            longest_outage_seconds: spent.longest.as_secs_f64(),
            mean_seconds_between_outages: seconds(spent.mean_between_outages()),
            mean_seconds_to_return: seconds(spent.mean_to_return()),
            blind_seconds: spent.blind.as_secs_f64(),
            paused_seconds: spent.paused.as_secs_f64(),
            unknown_seconds: spent.unknown.as_secs_f64(),
            budget_spent: target.and_then(|target| spent.budget_spent(target)),
        }
    }
}

/// Makes a report of days, as far as they are summed.
pub async fn report(database: &Database, asked: Days, group: &GroupBy) -> Result<AvailabilityReport> {
    let until =
        summed_until(database).await?.map_or(asked.from, |until| until.clamp(asked.from, asked.until));
    let days = Days { from: asked.from, until };
    let total = rows_of(database, &GroupBy::Fleet.scope(), days).await?.pop().unwrap_or_default();
    let rows = match group {
        GroupBy::Unit => units(database, days).await?,
        group => rows_of(database, &group.scope(), days).await?,
    };
    Ok(AvailabilityReport { asked, until, total, rows, losses: losses(database, days).await? })
}

/// The first day that is not summed yet.
async fn summed_until(database: &Database) -> Result<Option<Date>> {
    // One row, of the number after the last partition.
    let read = async {
        database.client().query_one("SELECT max(at) FROM cursors WHERE source = $1", &[&DAILY]).await
    };
    let row = database.limited("read how far days are summed", read).await?;
    Ok(row.get::<_, Option<jiff::Timestamp>>(0).map(|at| day_of(timestamp(at))))
}

async fn rows_of(database: &Database, scope: &str, days: Days) -> Result<Vec<ReportRow>> {
    let select = "SELECT name, max(units)::bigint, sum(online_seconds), sum(offline_seconds), sum(blind_seconds), \
                  sum(paused_seconds), sum(unknown_seconds), sum(outages)::bigint, max(longest_seconds) \
                  FROM daily WHERE scope = $1 AND day >= $2 AND day < $3 GROUP BY name ORDER BY name";
    let parameters: [&(dyn ToSql + Sync); 3] = [&scope, &days.from, &days.until];
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
    let mut rows = Vec::new();
    let read = each_unit(database.client(), range(days), |unit| {
        rows.push(ReportRow { name: format!("{}/{}", unit.kind, unit.unit), units: 1, spent: unit.spent });
    });
    database.limited("read a report", read).await?;
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}

async fn losses(database: &Database, days: Days) -> Result<Vec<Interval>> {
    let time = range(days);
    let (from, to) = (moment(time.from), moment(time.to));
    let select = "SELECT from_at, until_at FROM losses WHERE table_name = 'transitions' AND until_at > $1 \
                  AND from_at < $2 ORDER BY 1";
    let parameters: [&(dyn ToSql + Sync); 2] = [&from, &to];
    let rows = database.limited("read losses", database.client().query(select, &parameters)).await?;
    let time = |row: &Row| Interval { from: timestamp(row.get(0)), to: timestamp(row.get(1)) };
    Ok(rows.iter().map(time).collect())
}

/// From midnight to midnight (UTC).
fn range(days: Days) -> Interval {
    let at = |day: Date| {
        let moment = day.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp().as_millisecond());
        Timestamp::from_millis(moment.unwrap_or_default())
    };
    Interval { from: at(days.from), to: at(days.until) }
}

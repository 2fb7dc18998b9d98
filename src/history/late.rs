//! Records that come after days of them are summed, as those of a file: how their units spent these days before and
//! after the records are written corrects the sums, in the same step. Other units stay as they were summed, and so do
//! the labels: a record has those of its time.
//!
//! Sums of days of which history has not everything any more are left as they are.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::civil::Date;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Transaction};

use super::DAILY;
use super::cursors;
use super::daily::{self, DayRow, SumKey};
use super::kept;
use super::reading::{KindAndId, UnitSelection, each_unit};
use super::rows::{moment, text, timestamp};
use crate::clock::Timestamp;
use crate::presence::{Interval, Labels, OfflineRecord, TimeSpent};
use crate::reports::{day_of, midnight};

/// Transactions that correct sums do so one after the other: what one reads, no other one changes meanwhile.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtext(current_schema() || ' of late records'))";

/// What a record changes in sums of days.
pub(super) struct LateRecord {
    record: String,
    unit: KindAndId,
    labels: Labels,
    offline_since: Timestamp,
    detected_at: Timestamp,
    back_at: Option<Timestamp>,
}

impl LateRecord {
    pub fn of(record: &OfflineRecord) -> LateRecord {
        LateRecord {
            record: record.id.text(),
            unit: (record.kind.to_string(), text(&record.unit.to_string())),
            labels: record.labels.clone(),
            offline_since: record.deadline,
            detected_at: record.detected_at,
            back_at: record.back_at,
        }
    }
}

/// Units whose records are late, and how they spent the days that are summed before these are written.
#[derive(Default)]
pub(super) struct LateRecords<'a> {
    days: Vec<Date>,
    units: BTreeMap<&'a KindAndId, &'a Labels>,
    before: HashMap<KindAndId, Vec<TimeSpent>>,
}

impl LateRecords<'_> {
    /// Those of these records that are about to be written and change a sum. No day is summed before the end of the
    /// transaction.
    pub async fn of<'a>(
        transaction: &Transaction<'_>,
        records: &'a [LateRecord],
    ) -> Result<LateRecords<'a>, Error> {
        cursors::hold_days(transaction, false).await?;
        let select = "SELECT max(at) FROM cursors WHERE source = $1";
        let summed: Option<jiff::Timestamp> = transaction.query_one(select, &[&DAILY]).await?.get(0);
        let summed = summed.map_or(Timestamp::ZERO, timestamp);
        let early: Vec<&LateRecord> = records.iter().filter(|one| one.offline_since < summed).collect();
        if early.is_empty() {
            return Ok(LateRecords::default());
        }
        transaction.execute(LOCK, &[]).await?;
        let mut late = LateRecords::default();
        let mut range = Interval { from: summed, to: Timestamp::ZERO };
        for (record, is_new) in missing(transaction, &early, summed).await? {
            let end = record.back_at.filter(|_| is_new).unwrap_or(summed).min(summed);
            range = Interval { from: range.from.min(record.offline_since), to: range.to.max(end) };
            late.units.insert(&record.unit, &record.labels);
        }
        if range.from < range.to {
            late.days = days(transaction, range).await?;
            late.before = late.spent(transaction).await?;
        }
        Ok(late)
    }

    /// Corrects the sums by what differs now.
    pub async fn correct(self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let after = self.spent(transaction).await?;
        let mut sums: BTreeMap<(Date, SumKey), Difference> = BTreeMap::new();
        let mut rows: BTreeMap<Date, Vec<DayRow>> = BTreeMap::new();
        let mut changed = Vec::new();
        for (unit, after) in &after {
            let (Some(before), Some(labels)) = (self.before.get(unit), self.units.get(unit)) else {
                continue;
            };
            for (day, (before, after)) in self.days.iter().zip(before.iter().zip(after)) {
                if before == after {
                    continue;
                }
                for key in daily::keys(&unit.0, labels) {
                    sums.entry((*day, key)).or_default().add(before, after);
                }
                changed.push((*day, format!("{}/{}", unit.0, unit.1)));
                rows.entry(*day).or_default().extend(daily::unit_row(&unit.0, &unit.1, *after));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        let (days, names): (Vec<Date>, Vec<String>) = changed.into_iter().unzip();
        let delete = "DELETE FROM daily USING unnest($1::date[], $2::text[]) x(d, n) \
                      WHERE day = d AND scope = 'unit' AND name = n";
        transaction.execute(delete, &[&days, &names]).await?;
        for (day, rows) in &rows {
            daily::write(transaction, *day, rows).await?;
        }
        add(transaction, &sums).await
    }

    async fn spent(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<HashMap<KindAndId, Vec<TimeSpent>>, Error> {
        let mut all = HashMap::new();
        let (Some(first), Some(last)) = (self.days.first(), self.days.last()) else { return Ok(all) };
        let range = Interval { from: midnight(*first), to: of_day(*last).to };
        let kinds: BTreeSet<&String> = self.units.keys().map(|(kind, _)| kind).collect();
        for kind in kinds {
            let units =
                self.units.keys().filter(|(of, _)| of == kind).map(|(_, unit)| unit.clone()).collect();
            let selection =
                UnitSelection { kind: Some(kind.clone()), units: Some(units), ..UnitSelection::default() };
            let found = each_unit(transaction, range, &selection, usize::MAX, |unit| {
                let days = self.days.iter().map(|day| unit.spent(of_day(*day))).collect();
                all.insert((unit.kind, unit.unit), days);
            });
            found.await?;
        }
        Ok(all)
    }
}

/// The records that history lacks, or whose ends it lacks; `true`: also its opening.
async fn missing<'a>(
    transaction: &Transaction<'_>,
    early: &[&'a LateRecord],
    summed: Timestamp,
) -> Result<Vec<(&'a LateRecord, bool)>, Error> {
    let records: Vec<&str> = early.iter().map(|one| one.record.as_str()).collect();
    let opened: Vec<jiff::Timestamp> = early.iter().map(|one| moment(one.detected_at)).collect();
    let closed = early.iter().map(|one| one.back_at.filter(|at| *at < summed).map(moment));
    let closed: Vec<Option<jiff::Timestamp>> = closed.collect();
    let select = "SELECT n, lacks_opening FROM (SELECT n, c, \
                  NOT EXISTS (SELECT FROM transitions WHERE record = r AND transition = 'offline' AND at = o) lacks_opening, \
                  NOT EXISTS (SELECT FROM transitions WHERE record = r AND transition = 'online' AND at = c) lacks_closing \
                  FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) WITH ORDINALITY x(r, o, c, n)) y \
                  WHERE lacks_opening OR (c IS NOT NULL AND lacks_closing)";
    let columns: [&(dyn ToSql + Sync); 3] = [&records, &opened, &closed];
    let rows = transaction.query(select, &columns).await?;
    Ok(rows.iter().map(|row| (early[row.get::<_, i64>(0) as usize - 1], row.get(1))).collect())
}

/// The days of a range that are summed, and of which history has everything.
async fn days(transaction: &Transaction<'_>, range: Interval) -> Result<Vec<Date>, Error> {
    let select =
        "SELECT day FROM daily WHERE scope = 'fleet' AND name = '' AND day BETWEEN $1 AND $2 ORDER BY 1";
    let (first, last) = (day_of(range.from), day_of(range.to));
    let rows = transaction.query(select, &[&first, &last]).await?;
    let unknown = kept::unknown(transaction, Interval { from: midnight(first), to: of_day(last).to }).await?;
    let is_whole = |day: &Date| of_day(*day).length_outside(&unknown) == of_day(*day).length();
    Ok(rows.iter().map(|row| row.get(0)).filter(is_whole).collect())
}

fn of_day(day: Date) -> Interval {
    Interval { from: midnight(day), to: midnight(day.tomorrow().unwrap_or(day)) }
}

/// What a sum grows by: online, offline, blind, paused and unknown, in seconds; the outages, and the longest of them. The
/// longest outage of a group never gets shorter here: the group may have another one that was as long.
#[derive(Clone, Copy, Default)]
struct Difference([f64; 5], i32, f64);

impl Difference {
    fn add(&mut self, before: &TimeSpent, after: &TimeSpent) {
        let parts = |spent: &TimeSpent| {
            [spent.online, spent.offline, spent.blind, spent.paused, spent.unknown]
                .map(|part| part.as_secs_f64())
        };
        let (before_parts, after_parts) = (parts(before), parts(after));
        for (sum, (before, after)) in self.0.iter_mut().zip(before_parts.into_iter().zip(after_parts)) {
            *sum += after - before;
        }
        self.1 += after.outages as i32 - before.outages as i32;
        self.2 = self.2.max(after.longest.as_secs_f64());
    }
}

async fn add(
    transaction: &Transaction<'_>,
    sums: &BTreeMap<(Date, SumKey), Difference>,
) -> Result<(), Error> {
    let days: Vec<Date> = sums.keys().map(|(day, _)| *day).collect();
    let scopes: Vec<&str> = sums.keys().map(|(_, (scope, _))| scope.as_str()).collect();
    let names: Vec<&str> = sums.keys().map(|(_, (_, name))| name.as_str()).collect();
    let part = |at: usize| sums.values().map(|sum| sum.0[at]).collect::<Vec<f64>>();
    let (online, offline, blind, paused, unknown) = (part(0), part(1), part(2), part(3), part(4));
    let outages: Vec<i32> = sums.values().map(|sum| sum.1).collect();
    let longest: Vec<f64> = sums.values().map(|sum| sum.2).collect();
    let update = "UPDATE daily SET online_seconds = online_seconds + x.online, offline_seconds = offline_seconds + x.offline, \
                  blind_seconds = blind_seconds + x.blind, paused_seconds = paused_seconds + x.paused, \
                  unknown_seconds = unknown_seconds + x.unknown, outages = daily.outages + x.more, \
                  longest_seconds = greatest(longest_seconds, x.longest) \
                  FROM unnest($1::date[], $2::text[], $3::text[], $4::float8[], $5::float8[], $6::float8[], \
                  $7::float8[], $8::float8[], $9::int[], $10::float8[]) \
                  x(d, s, n, online, offline, blind, paused, unknown, more, longest) \
                  WHERE day = d AND scope = s AND name = n";
    let columns: [&(dyn ToSql + Sync); 10] =
        [&days, &scopes, &names, &online, &offline, &blind, &paused, &unknown, &outages, &longest];
    transaction.execute(update, &columns).await?;
    Ok(())
}

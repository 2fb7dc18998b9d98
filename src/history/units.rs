//! The units of the fleet in history: since when each is known, its labels, and its last pause. Reports need them: the
//! time before a unit was known is not online. A unit is known once it was heard.
//!
//! The owner of a partition reads it page by page, one partition between two passes over the transitions.
//!
//! # When a unit was removed
//! The engine says it for a while, and the audit. Without both, a unit was in the fleet until it was last seen there.

use std::collections::BTreeMap;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Transaction};

use super::database::{Database, Result};
use super::refused::Pieces;
use super::rows::{json, moment, text};
use super::{UNITS, cursors};
use crate::clock::Timestamp;
use crate::fleet::UnitPause;
use crate::presence::{Lifecycle, Snapshot, Unit};
use crate::store::Queries;

/// The most pages that are read in one step.
const PAGES: u32 = 16;

/// What a refresh wrote.
#[derive(Default)]
pub(super) struct Refreshed {
    pub rows: u64,
    /// Units whose rows the database refuses: since when each is known, and why.
    pub refused: Vec<(Timestamp, String)>,
}

/// Writes the units of a partition as they are now, and which are no longer there.
pub(super) async fn refresh(
    database: &mut Database,
    queries: &dyn Queries,
    partition: u16,
    now: Timestamp,
) -> Result<Refreshed> {
    let own = [partition];
    let read = cursors::load(database.client(), UNITS, &own);
    let last = database.limited("read a cursor", read).await?.unwrap_or(now);
    // The units that are there, and when others were removed.
    let (mut seen, mut refreshed) = (BTreeMap::new(), Refreshed::default());
    for step in queries.occupied(partition, PAGES).await? {
        let mut units = Vec::new();
        for page in step {
            let read = queries.walk(partition, page).await?.into_iter();
            units.extend(read.filter(|one| one.last_heard().is_some()));
        }
        seen.extend(units.iter().map(|one| (name_of(&one.unit), removed_at(one))));
        units.retain(|one| one.is_known() || was_known(one));
        if units.is_empty() {
            continue;
        }
        let mut pieces = Pieces::of(units.len());
        while let Some((piece, _)) = pieces.next() {
            let written = database.in_transaction("write units", async |transaction| {
                let some = &units[piece.clone()];
                let written = write(transaction, some, partition, last).await?;
                write_last_pauses(transaction, some).await?;
                Ok(written)
            });
            let written = written.await;
            refreshed.rows += pieces.note(piece, written)?;
        }
        let named = |(place, why): (usize, String)| {
            let unit: &Snapshot = &units[place];
            (known_since(unit), format!("unit {}: {why}", unit.unit))
        };
        refreshed.refused.extend(pieces.refused.into_iter().map(named));
    }
    let removed = database.in_transaction("write removed units", async |transaction| {
        let removed = write_removed(transaction, &seen, (partition, queries.partitions()), last).await?;
        cursors::advance(transaction, UNITS, &own, now).await?;
        Ok(removed)
    });
    refreshed.rows += removed.await?;
    Ok(refreshed)
}

fn name_of(unit: &Unit) -> (String, String) {
    (unit.kind.to_string(), text(&unit.id.to_string()))
}

/// The epoch for a unit that is known for so long that its facts do not say since when.
fn known_since(unit: &Snapshot) -> Timestamp {
    unit.facts.as_ref().and_then(|facts| facts.known).map_or(Timestamp::ZERO, |known| known.since)
}

/// Whether the facts of a unit that was removed say since when it was known: history may have no row of it yet.
fn was_known(unit: &Snapshot) -> bool {
    unit.facts.as_ref().is_some_and(|facts| facts.known.is_some())
}

fn removed_at(unit: &Snapshot) -> Option<Timestamp> {
    match unit.facts.as_ref()?.lifecycle {
        Lifecycle::Retired(at) => Some(at),
        _ => None,
    }
}

async fn write(
    transaction: &Transaction<'_>,
    units: &[Snapshot],
    partition: u16,
    last: Timestamp,
) -> Result<u64, Error> {
    let (kinds, names): (Vec<String>, Vec<String>) = units.iter().map(|one| name_of(&one.unit)).unzip();
    let facts = || units.iter().filter_map(|one| one.facts.as_ref());
    let labels: Vec<String> = facts().map(|facts| json(&facts.labels)).collect();
    let since: Vec<jiff::Timestamp> = units.iter().map(|one| moment(known_since(one))).collect();
    let removed: Vec<Option<jiff::Timestamp>> = units.iter().map(|one| removed_at(one).map(moment)).collect();
    let (partition, last) = (i32::from(partition), moment(last));
    // A unit that was removed and is back since the last time. Facts have the whole second of its return.
    let end = "UPDATE units SET removed_at = greatest(known_since, least(s, coalesce((SELECT max(at) FROM operations o \
               WHERE o.kind = k AND o.unit = u AND change = 'removed' AND at > known_since \
               AND at < s + interval '1 second'), $4))) \
               FROM unnest($1::text[], $2::text[], $3::timestamptz[]) x(k, u, s) \
               WHERE kind = k AND unit = u AND removed_at IS NULL AND known_since < s";
    transaction.execute(end, &[&kinds, &names, &since, &last]).await?;
    // Facts forget since when a unit is known after a year, and say the epoch then.
    let upsert = "INSERT INTO units (kind, unit, labels, known_since, removed_at, partition) \
                  SELECT k, u, l::jsonb, greatest(s, (SELECT max(known_since) FROM units WHERE kind = k AND unit = u)), \
                  r, $6::int FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[]) \
                  x(k, u, l, s, r) \
                  ON CONFLICT (kind, unit, known_since) DO UPDATE SET labels = excluded.labels, \
                  removed_at = excluded.removed_at, partition = excluded.partition \
                  WHERE units.labels <> excluded.labels OR units.removed_at IS DISTINCT FROM excluded.removed_at \
                  OR units.partition <> excluded.partition";
    let columns: [&(dyn ToSql + Sync); 6] = [&kinds, &names, &labels, &since, &removed, &partition];
    transaction.execute(upsert, &columns).await
}

/// Ends the time of the units of a partition that are no longer there. Rows of partitions that another engine had, and
/// this one has not, belong to the first one: a unit that is in another partition here is there again when that one is
/// written.
async fn write_removed(
    transaction: &Transaction<'_>,
    seen: &BTreeMap<(String, String), Option<Timestamp>>,
    (partition, all): (u16, u16),
    last: Timestamp,
) -> Result<u64, Error> {
    let known = "SELECT kind, unit FROM units WHERE (partition = $1 OR ($1 = 0 AND partition >= $2)) \
                 AND removed_at IS NULL";
    let known = transaction.query(known, &[&i32::from(partition), &i32::from(all)]).await?;
    let known = known.iter().map(|row| (row.get::<_, String>(0), row.get::<_, String>(1)));
    let gone = known.filter_map(|unit| match seen.get(&unit) {
        Some(None) => None,
        Some(Some(at)) => Some((unit, Some(moment(*at)))),
        None => Some((unit, None)),
    });
    let (gone, at): (Vec<(String, String)>, Vec<Option<jiff::Timestamp>>) = gone.unzip();
    let (kinds, names): (Vec<String>, Vec<String>) = gone.into_iter().unzip();
    let remove = "UPDATE units SET removed_at = greatest(known_since, coalesce(a, (SELECT max(at) FROM operations o \
                  WHERE o.kind = k AND o.unit = u AND change = 'removed' AND at > known_since), $4)) \
                  FROM unnest($1::text[], $2::text[], $3::timestamptz[]) x(k, u, a) \
                  WHERE kind = k AND unit = u AND removed_at IS NULL";
    transaction.execute(remove, &[&kinds, &names, &at, &moment(last)]).await
}

async fn write_last_pauses(transaction: &Transaction<'_>, units: &[Snapshot]) -> Result<(), Error> {
    let last = |one: &Snapshot| Some((name_of(&one.unit), one.facts.as_ref()?.pause?));
    let pauses: Vec<UnitPause> = units.iter().filter_map(last).collect();
    write_pauses(transaction, &pauses, "excluded.until_at").await
}

/// Writes pauses as operators set and ended them. An end that is there and earlier stays.
pub(super) async fn write_past_pauses(
    transaction: &Transaction<'_>,
    pauses: &[UnitPause],
) -> Result<(), Error> {
    write_pauses(transaction, pauses, "least(pauses.until_at, excluded.until_at)").await
}

async fn write_pauses(transaction: &Transaction<'_>, pauses: &[UnitPause], until: &str) -> Result<(), Error> {
    if pauses.is_empty() {
        return Ok(());
    }
    let (kinds, units): (Vec<&str>, Vec<&str>) =
        pauses.iter().map(|((kind, unit), _)| (kind.as_str(), unit.as_str())).unzip();
    let from: Vec<jiff::Timestamp> = pauses.iter().map(|(_, pause)| moment(pause.from)).collect();
    let to: Vec<jiff::Timestamp> = pauses.iter().map(|(_, pause)| moment(pause.to)).collect();
    let upsert = format!(
        "INSERT INTO pauses (kind, unit, from_at, until_at) \
         SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[]) \
         ON CONFLICT (kind, unit, from_at) DO UPDATE SET until_at = {until} WHERE pauses.until_at <> {until}"
    );
    transaction.execute(&upsert, &[&kinds, &units, &from, &to]).await?;
    Ok(())
}

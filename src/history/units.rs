//! The units of the fleet in history: since when each is known, its labels, and its last pause. Reports need them: the
//! time before a unit was known is not online.
//!
//! The owner of a partition reads it page by page, one partition after each pass over the transitions.

use std::collections::BTreeSet;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Transaction};

use super::database::{Database, Result};
use super::rows::{json, moment, text};
use super::{UNITS, cursors};
use crate::clock::Timestamp;
use crate::presence::Snapshot;
use crate::store::Queries;

/// The most pages that are read in one step.
const PAGES: u32 = 16;

/// Writes the current units of a partition, and marks those that no longer exist. Returns how many rows changed.
pub(super) async fn refresh(
    database: &mut Database,
    queries: &dyn Queries,
    partition: u16,
    now: Timestamp,
) -> Result<u64> {
    let (mut seen, mut changed) = (BTreeSet::new(), 0);
    for step in queries.occupied(partition, PAGES).await? {
        let mut units = Vec::new();
        for page in step {
            units.extend(queries.walk(partition, page).await?.into_iter().filter(Snapshot::is_known));
        }
        if units.is_empty() {
            continue;
        }
        seen.extend(units.iter().map(|one| (one.unit.kind.to_string(), text(&one.unit.id.to_string()))));
        let written = database.in_transaction("write units", async |transaction| {
            let written = write(transaction, &units, partition).await?;
            write_pauses(transaction, &units).await?;
            Ok(written)
        });
        changed += written.await?;
    }
    let number = i32::from(partition);
    let removed = database.in_transaction("write removed units", async |transaction| {
        let known = "SELECT kind, unit FROM units WHERE partition = $1 AND removed_at IS NULL";
        let known = transaction.query(known, &[&number]).await?;
        let known = known.iter().map(|row| (row.get::<_, String>(0), row.get::<_, String>(1)));
        let (kinds, units): (Vec<String>, Vec<String>) = known.filter(|unit| !seen.contains(unit)).unzip();
        let remove = "UPDATE units SET removed_at = $1 FROM unnest($2::text[], $3::text[]) x(k, u) \
                      WHERE kind = k AND unit = u";
        let removed = transaction.execute(remove, &[&moment(now), &kinds, &units]).await?;
        cursors::advance(transaction, UNITS, &[partition], now).await?;
        Ok(removed)
    });
    Ok(changed + removed.await?)
}

async fn write(transaction: &Transaction<'_>, units: &[Snapshot], partition: u16) -> Result<u64, Error> {
    let kinds: Vec<String> = units.iter().map(|one| one.unit.kind.to_string()).collect();
    let names: Vec<String> = units.iter().map(|one| text(&one.unit.id.to_string())).collect();
    let facts = || units.iter().filter_map(|one| one.facts.as_ref());
    let labels: Vec<String> = facts().map(|facts| json(&facts.labels)).collect();
    let since = facts().map(|facts| moment(facts.known.map_or(Timestamp::ZERO, |known| known.since)));
    let since: Vec<jiff::Timestamp> = since.collect();
    let partition = i32::from(partition);
    // After a year, facts no longer hold since when a unit is known, and give the epoch instead.
    let upsert = "INSERT INTO units (kind, unit, labels, known_since, partition) \
                  SELECT k, u, l::jsonb, s, $5::int FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) \
                  x(k, u, l, s) ON CONFLICT (kind, unit) DO UPDATE SET labels = excluded.labels, removed_at = NULL, \
                  partition = excluded.partition, known_since = CASE WHEN excluded.known_since = 'epoch' \
                  THEN units.known_since ELSE excluded.known_since END \
                  WHERE units.labels <> excluded.labels OR units.removed_at IS NOT NULL \
                  OR units.partition <> excluded.partition \
                  OR (excluded.known_since <> 'epoch' AND units.known_since <> excluded.known_since)";
    let columns: [&(dyn ToSql + Sync); 5] = [&kinds, &names, &labels, &since, &partition];
    transaction.execute(upsert, &columns).await
}

async fn write_pauses(transaction: &Transaction<'_>, units: &[Snapshot]) -> Result<(), Error> {
    let pauses: Vec<_> =
        units.iter().filter_map(|one| Some((&one.unit, one.facts.as_ref()?.pause?))).collect();
    if pauses.is_empty() {
        return Ok(());
    }
    let kinds: Vec<String> = pauses.iter().map(|(unit, _)| unit.kind.to_string()).collect();
    let names: Vec<String> = pauses.iter().map(|(unit, _)| text(&unit.id.to_string())).collect();
    let from: Vec<jiff::Timestamp> = pauses.iter().map(|(_, pause)| moment(pause.from)).collect();
    let until: Vec<jiff::Timestamp> = pauses.iter().map(|(_, pause)| moment(pause.to)).collect();
    let upsert = "INSERT INTO pauses (kind, unit, from_at, until_at) \
                  SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[]) \
                  ON CONFLICT (kind, unit, from_at) DO UPDATE SET until_at = excluded.until_at \
                  WHERE pauses.until_at <> excluded.until_at";
    transaction.execute(upsert, &[&kinds, &names, &from, &until]).await?;
    Ok(())
}

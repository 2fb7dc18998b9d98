//! Fills history from a file of records as `/api/v1/records` and `rollcall records --json` print them, one a line.

use std::io::BufRead;

use super::database::Database;
use super::kept;
use super::schema::Months;
use super::transition_rows::TransitionRows;
use crate::presence::{Interval, OfflineRecord};

/// What a backfill read from its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backfilled {
    pub records: u64,
    /// The rows that were missing in history.
    pub rows: u64,
    /// Open records, which are left out: history gets them from the engine.
    pub open: u64,
}

/// Writes the closed records of a file, which may let history begin earlier.
///
/// # Errors
/// The first line that is not a record; the lines before it may be written already.
pub async fn backfill(
    database: &mut Database,
    lines: impl BufRead,
    batch: usize,
) -> anyhow::Result<Backfilled> {
    let (mut done, mut waiting, mut months) = (Backfilled::default(), Vec::new(), Months::default());
    let mut closings: Option<Interval> = None;
    for (number, line) in lines.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let record: OfflineRecord = serde_json::from_str(&line)
            .map_err(|why| anyhow::anyhow!("line {} is no record: {why}", number + 1))?;
        done.records += 1;
        let Some(back_at) = record.back_at else {
            done.open += 1;
            continue;
        };
        let known = closings.unwrap_or(Interval { from: back_at, to: back_at });
        closings = Some(Interval { from: known.from.min(back_at), to: known.to.max(back_at) });
        waiting.push(record);
        if waiting.len() >= batch {
            done.rows += write(database, &mut months, &std::mem::take(&mut waiting)).await?;
        }
    }
    done.rows += write(database, &mut months, &waiting).await?;
    if let Some(closings) = closings {
        kept::begin_with_file(database, closings).await?;
    }
    Ok(done)
}

async fn write(
    database: &mut Database,
    months: &mut Months,
    records: &[OfflineRecord],
) -> super::Result<u64> {
    if records.is_empty() {
        return Ok(0);
    }
    let mut rows = TransitionRows::default();
    // A closed record has no row that names a partition.
    records.iter().for_each(|one| rows.add(one, 0));
    months.make(database, "transitions", rows.moments()).await?;
    database.in_transaction("write records", async |transaction| rows.write(transaction).await).await
}

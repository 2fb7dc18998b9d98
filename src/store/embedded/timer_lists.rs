//! Timers as they are read: by id, as pages by moment, and those that are forgotten.

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use super::stored::text;
use super::timer_rows::stored;
use crate::clock::Timestamp;
use crate::presence::{Timer, TimerId};
use crate::store::json::to_json;
use crate::store::timer_text::decode;
use crate::store::{FindTimers, Result, TimerPage, TimerPosition};
use crate::telemetry::Stored;

/// The most timers of a page.
const MAX_OF_PAGE: usize = 1000;
/// How many timers one call forgets.
const FORGOTTEN: i64 = 2000;
/// After how long a timer that receivers have not got yet is looked at again.
const KEPT_LONGER_MS: i64 = 3_600_000;

pub(super) async fn read(engine: &EmbeddedEngine, ids: &[TimerId]) -> Result<Vec<Option<Timer>>> {
    let wanted = ids.to_vec();
    let read = move |database: &Connection| {
        wanted.iter().map(|id| stored(database, id)).collect::<DatabaseResult<Vec<_>>>()
    };
    let texts = engine.readers.read(read).await?;
    Ok(ids.iter().zip(texts).map(|(id, text)| engine.timer(id, text?.as_str())).collect())
}

impl EmbeddedEngine {
    /// A timer from its stored form. One that cannot be read is quarantined by the next scan.
    pub(super) fn timer(&self, id: &TimerId, text: &str) -> Option<Timer> {
        let timer = decode(id, text);
        if timer.is_none() {
            let location = format!("table timers id {:?}", id.as_str());
            self.telemetry.unreadable(Stored::Timer, &location, "it is not a timer; it does not fire");
            self.full_scan.request();
        }
        timer
    }
}

/// A timer of a page as it is stored: its place in the order, its id and its text.
type Row = (i64, String, String);

pub(super) async fn find(engine: &EmbeddedEngine, find: &FindTimers, limit: usize) -> Result<TimerPage> {
    let limit = limit.clamp(1, MAX_OF_PAGE);
    let begin = find.from.unwrap_or(Timestamp::ZERO).as_millis();
    let (from, after) = match &find.after {
        Some(place) if place.due.as_millis() >= begin => {
            (place.due.as_millis(), place.id.as_str().to_owned())
        }
        _ => (begin, String::new()),
    };
    let until = find.until.map_or(i64::MAX, Timestamp::as_millis);
    let (waits, ended) = find.wants();
    let read = move |database: &Connection| {
        let mut rows: Vec<Row> = Vec::new();
        for (is_wanted, column, which) in
            [(waits, "next_check", "next_check IS NOT NULL"), (ended, "due", "next_check IS NULL")]
        {
            if !is_wanted {
                continue;
            }
            let select = format!(
                "SELECT {column}, id, body FROM timers WHERE {which} AND {column} >= ?1 AND {column} < ?3 \
                 AND ({column} > ?1 OR id > ?2) ORDER BY {column}, id LIMIT ?4"
            );
            let mut select = database.prepare_cached(&select)?;
            let found = select.query_map(params![from, after, until, limit as i64], |row| {
                Ok((row.get(0)?, text(row, 1)?.into_owned(), text(row, 2)?.into_owned()))
            })?;
            rows.extend(found.collect::<rusqlite::Result<Vec<Row>>>()?);
        }
        Ok(rows)
    };
    let mut rows = engine.readers.read(read).await?;
    rows.sort_unstable();
    let place =
        |(due, id, _): &Row| Some(TimerPosition { due: Timestamp::from_millis(*due), id: id.parse().ok()? });
    let next = rows.get(limit - 1).and_then(place);
    rows.truncate(limit);
    let timers = rows.iter().filter_map(|(_, id, text)| engine.timer(&id.parse().ok()?, text));
    Ok(TimerPage { timers: timers.filter(|timer| find.matches(timer)).collect(), next })
}

pub(super) async fn forget(engine: &EmbeddedEngine, partitions: &[u16], now: Timestamp) -> Result<usize> {
    let over = "kept <= ?1 AND partition IN (SELECT value FROM json_each(?2))";
    let partitions = to_json(&partitions)?;
    let wanted = partitions.clone();
    let is_there = move |database: &Connection| {
        let select = format!("SELECT EXISTS (SELECT 1 FROM timers WHERE {over})");
        Ok(database.prepare_cached(&select)?.query_row(params![now.as_millis(), wanted], |row| row.get(0))?)
    };
    if !engine.readers.read::<bool, _>(is_there).await? {
        return Ok(0);
    }
    let write = move |database: &Connection| {
        // One that receivers have not got yet is kept.
        let update = format!("UPDATE timers SET kept = ?3 WHERE {over} AND substr(body, 1, 1) = 'f'");
        let later = now.as_millis() + KEPT_LONGER_MS;
        database.prepare_cached(&update)?.execute(params![now.as_millis(), partitions, later])?;
        let delete = format!(
            "DELETE FROM timers WHERE id IN (SELECT id FROM timers WHERE {over} ORDER BY kept LIMIT ?3)"
        );
        Ok(database.prepare_cached(&delete)?.execute(params![now.as_millis(), partitions, FORGOTTEN])?)
    };
    engine.writer.write("forget_timers", write).await
}

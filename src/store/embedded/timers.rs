//! Timers: their registration and cancellation, and the implementation of [`TimerStore`].
//!
//! A row is a timer in its stored form; `look` is when one that waits is looked at, and none has it that does not wait.
//! The number of those that wait is counted in the same transaction, because counting rows would read all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::error::DatabaseResult;
use super::stored::text;
use super::timer_rows::{Counts, end, stored};
use super::{EmbeddedEngine, timer_attempts, timer_firing, timer_lists};
use crate::clock::Timestamp;
use crate::presence::{NewTimer, Timer, TimerId, TimerStanding, TimerType};
use crate::store::json::to_json;
use crate::store::timer_text::{decode, encode};
use crate::store::timers::keep_of;
use crate::store::{
    Delivery, FindTimers, Fired, Result, TimerCancelled, TimerCapacity, TimerClasses, TimerPage,
    TimerRegistered, TimerStore, group_of_timer, partition_of_group,
};

/// How many timers one job of the writer registers or cancels, so that other jobs are not delayed for long.
const STEP: usize = 10_000;

#[async_trait]
impl TimerStore for EmbeddedEngine {
    async fn register(
        &self,
        timers: &[NewTimer],
        only_new: bool,
        _now: Timestamp,
    ) -> Result<Vec<TimerRegistered>> {
        let mut answers = Vec::with_capacity(timers.len());
        for step in timers.chunks(STEP) {
            let (step, partitions): (Arc<[NewTimer]>, u16) = (step.into(), self.memory.partitions());
            let write = move |database: &Connection| {
                let mut counts = Counts::default();
                let register =
                    |timer: &NewTimer| register(database, timer, only_new, partitions, &mut counts);
                let answers = step.iter().map(register).collect::<DatabaseResult<Vec<_>>>()?;
                counts.write(database)?;
                Ok(answers)
            };
            answers.extend(self.writer.write("register_timers", write).await?);
        }
        Ok(answers)
    }

    async fn cancel(
        &self,
        ids: &[TimerId],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>> {
        self.cancel_timers(ids.iter().map(|id| (id.clone(), None)).collect(), classes, now).await
    }

    async fn cancel_unchanged(
        &self,
        timers: &[Timer],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>> {
        let expected = timers.iter().map(|timer| (timer.id.clone(), Some(encode(timer)))).collect();
        self.cancel_timers(expected, classes, now).await
    }

    async fn timers(&self, ids: &[TimerId]) -> Result<Vec<Option<Timer>>> {
        timer_lists::read(self, ids).await
    }

    async fn find_timers(&self, find: &FindTimers, limit: usize) -> Result<TimerPage> {
        timer_lists::find(self, find, limit).await
    }

    async fn count_timers(&self, partitions: &[u16]) -> Result<BTreeMap<TimerType, u64>> {
        let partitions = to_json(&partitions)?;
        let read = move |database: &Connection| {
            let select = "SELECT type, sum(waiting) FROM timer_counts WHERE partition IN \
                          (SELECT value FROM json_each(?)) GROUP BY type";
            let mut select = database.prepare_cached(select)?;
            let rows = select
                .query_map([&partitions], |row| Ok((text(row, 0)?.into_owned(), row.get::<_, i64>(1)?)))?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        };
        let counts = self.readers.read(read).await?;
        Ok(counts
            .into_iter()
            .filter_map(|(of, count)| Some((of.parse().ok()?, count.max(0) as u64)))
            .collect())
    }

    async fn first_timer(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        let partitions = to_json(&partitions)?;
        let read = move |database: &Connection| {
            let select = "SELECT look FROM timers WHERE look IS NOT NULL AND partition IN \
                          (SELECT value FROM json_each(?)) ORDER BY look LIMIT 1";
            let mut select = database.prepare_cached(select)?;
            Ok(select.query_row([&partitions], |row| row.get::<_, i64>(0)).optional()?)
        };
        Ok(self.readers.read(read).await?.map(Timestamp::from_millis))
    }

    async fn due_timers(&self, partitions: &[u16], until: Timestamp, limit: usize) -> Result<Vec<Timer>> {
        timer_firing::due(self, partitions, until, limit).await
    }

    async fn fire(
        &self,
        timers: &[Timer],
        classes: &TimerClasses,
        _capacity: &TimerCapacity,
        now: Timestamp,
    ) -> Result<Fired> {
        timer_firing::fire(self, timers, classes, now).await
    }

    async fn put_off(&self, timers: &[Timer], until: Timestamp) -> Result<()> {
        timer_firing::put_off(self, timers, until).await
    }

    async fn begin_only_attempts(&self, deliveries: &[&Delivery], now: Timestamp) -> Result<Vec<bool>> {
        timer_attempts::begin(self, deliveries, now).await
    }

    async fn give_up_only_attempts(&self, partitions: &[u16], before: Timestamp) -> Result<Vec<TimerType>> {
        timer_attempts::give_up(self, partitions, before).await
    }

    async fn forget_timers(&self, partitions: &[u16], now: Timestamp) -> Result<usize> {
        timer_lists::forget(self, partitions, now).await
    }
}

fn register(
    database: &Connection,
    timer: &NewTimer,
    only_new: bool,
    partitions: u16,
    counts: &mut Counts,
) -> DatabaseResult<TimerRegistered> {
    let (id, due) = (&timer.id, timer.due.as_millis());
    let partition = partition_of_group(&group_of_timer(id), partitions);
    let body = encode(&Timer::waiting(timer.clone()));
    // Most are new: one command finds that out, and writes.
    let mut insert = database.prepare_cached(
        "INSERT INTO timers(id, partition, due, look, body) VALUES(?1, ?2, ?3, ?3, ?4) ON CONFLICT(id) DO NOTHING",
    )?;
    if insert.execute(params![id.as_str(), partition, due, body])? > 0 {
        counts.add(partition, &timer.timer_type, 1);
        return Ok(TimerRegistered::Created);
    }
    if only_new {
        return Ok(TimerRegistered::Exists);
    }
    let known = stored(database, id)?.and_then(|text| decode(id, &text));
    let mut answer = TimerRegistered::Created;
    match known.as_ref().map(|known| (&known.standing, known)) {
        Some((TimerStanding::Waiting, known)) => {
            counts.add(partition, &known.timer_type, -1);
            answer = TimerRegistered::Changed;
        }
        Some((TimerStanding::Fired { .. }, known)) if known.due == timer.due => {
            return Ok(TimerRegistered::HasFired);
        }
        _ => {}
    }
    let update = "UPDATE timers SET due = ?2, look = ?2, kept = NULL, body = ?3 WHERE id = ?1";
    database.prepare_cached(update)?.execute(params![id.as_str(), due, body])?;
    counts.add(partition, &timer.timer_type, 1);
    Ok(answer)
}

impl EmbeddedEngine {
    /// Cancels timers; each may have its stored text as it was read.
    async fn cancel_timers(
        &self,
        timers: Vec<(TimerId, Option<String>)>,
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>> {
        let mut answers = Vec::with_capacity(timers.len());
        for step in timers.chunks(STEP) {
            let (step, classes, partitions) = (step.to_vec(), classes.clone(), self.memory.partitions());
            let write = move |database: &Connection| {
                let mut counts = Counts::default();
                let mut answers = Vec::with_capacity(step.len());
                for (id, expected) in &step {
                    let partition = partition_of_group(&group_of_timer(id), partitions);
                    let answer = cancel(database, id, expected.as_deref(), &classes, now)?;
                    if let Ok(of) = &answer {
                        counts.add(partition, of, -1);
                    }
                    answers.push(answer.map_or_else(|why| why, |_| TimerCancelled::Yes));
                }
                counts.write(database)?;
                Ok(answers)
            };
            answers.extend(self.writer.write("cancel_timers", write).await?);
        }
        Ok(answers)
    }
}

/// The type of a timer that waits no more, or why it is not cancelled.
fn cancel(
    database: &Connection,
    id: &TimerId,
    expected: Option<&str>,
    classes: &TimerClasses,
    now: Timestamp,
) -> DatabaseResult<std::result::Result<TimerType, TimerCancelled>> {
    let Some(text) = stored(database, id)? else { return Ok(Err(TimerCancelled::Unknown)) };
    let Some(timer) = decode(id, &text).filter(|timer| timer.standing == TimerStanding::Waiting) else {
        return Ok(Err(TimerCancelled::Ended));
    };
    if expected.is_some_and(|expected| expected != text) {
        return Ok(Err(TimerCancelled::Changed));
    }
    let kept = now + keep_of(classes, &timer.timer_type);
    let timer = Timer { standing: TimerStanding::Cancelled { at: now }, ..timer };
    end(database, &timer, kept)?;
    Ok(Ok(timer.timer_type))
}

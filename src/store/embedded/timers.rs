//! Timers: their registration and cancellation, and the implementation of [`TimerStore`].
//!
//! A row is a timer in its stored form; `next_check` is when one that waits is looked at, and none has it that does not wait.
//! The number of those that wait is counted in the same transaction, because counting rows would read all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::error::DatabaseResult;
use super::stored::text;
use super::timer_rows::{Counts, end, stored};
use super::{EmbeddedEngine, timer_attempts, timer_firing, timer_lists};
use crate::clock::Timestamp;
use crate::presence::{NewTimer, Timer, TimerId, TimerLifecycle, TimerType};
use crate::store::json::to_json;
use crate::store::timer_text::{decode, encode, encode_waiting};
use crate::store::timers::{CalledTimers, keep_of, partition_of_timer};
use crate::store::{
    Delivery, FindTimers, Fired, Result, TimerCancelled, TimerCapacity, TimerClasses, TimerPage,
    TimerRegistered, TimerStore,
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
        let stepped = self.leases.stepped();
        let called = CalledTimers::new(timers.iter().map(|timer| &timer.id));
        let mut answers = vec![TimerRegistered::Exists; timers.len()];
        for step in called.once(only_new).chunks(STEP) {
            let partitions = self.memory.partitions();
            let rows: Vec<NewRow> =
                step.iter().map(|place| NewRow::of(&timers[*place], partitions, stepped)).collect();
            let write = move |database: &Connection| register(database, &rows, only_new);
            let registered = self.writer.write("register_timers", write).await?;
            step.iter().zip(registered).for_each(|(place, answer)| answers[*place] = answer);
        }
        if !only_new {
            called.complete(&mut answers);
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
            let select = "SELECT next_check FROM timers WHERE next_check IS NOT NULL AND partition IN \
                          (SELECT value FROM json_each(?)) ORDER BY next_check LIMIT 1";
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

/// A timer as it is registered. The caller makes it, beside the one thread that writes.
struct NewRow {
    id: TimerId,
    timer_type: TimerType,
    partition: u16,
    due: Timestamp,
    body: String,
}

impl NewRow {
    fn of(timer: &NewTimer, partitions: u16, stepped: Duration) -> NewRow {
        NewRow {
            id: timer.id.clone(),
            timer_type: timer.timer_type.clone(),
            partition: partition_of_timer(&timer.id, partitions),
            due: timer.due,
            body: encode_waiting(timer, stepped),
        }
    }
}

fn register(database: &Connection, rows: &[NewRow], only_new: bool) -> DatabaseResult<Vec<TimerRegistered>> {
    // Most are new: one command finds that out, and writes.
    let mut insert = database.prepare_cached(
        "INSERT INTO timers(id, partition, due, next_check, body) VALUES(?1, ?2, ?3, ?3, ?4) ON CONFLICT(id) DO NOTHING",
    )?;
    let (mut counts, mut answers) = (Counts::default(), Vec::with_capacity(rows.len()));
    for row in rows {
        let values = params![row.id.as_str(), row.partition, row.due.as_millis(), row.body];
        let answer = match insert.execute(values)? > 0 {
            true => TimerRegistered::Created,
            false if only_new => TimerRegistered::Exists,
            false => register_again(database, row, &mut counts)?,
        };
        if matches!(answer, TimerRegistered::Created | TimerRegistered::Changed) {
            counts.add(row.partition, &row.timer_type, 1);
        }
        answers.push(answer);
    }
    counts.write(database)?;
    Ok(answers)
}

/// Registers a timer whose id is known.
fn register_again(
    database: &Connection,
    row: &NewRow,
    counts: &mut Counts,
) -> DatabaseResult<TimerRegistered> {
    let known = stored(database, &row.id)?.and_then(|text| decode(&row.id, &text));
    let mut answer = TimerRegistered::Created;
    match known.as_ref().map(|known| (&known.lifecycle, known)) {
        Some((TimerLifecycle::Waiting, known)) => {
            counts.add(row.partition, &known.timer_type, -1);
            answer = TimerRegistered::Changed;
        }
        Some((TimerLifecycle::Fired { .. }, known)) if known.due == row.due => {
            return Ok(TimerRegistered::HasFired);
        }
        _ => {}
    }
    let update = "UPDATE timers SET due = ?2, next_check = ?2, kept = NULL, body = ?3 WHERE id = ?1";
    let values = params![row.id.as_str(), row.due.as_millis(), row.body];
    database.prepare_cached(update)?.execute(values)?;
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
                    let partition = partition_of_timer(id, partitions);
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
    let Some(timer) = decode(id, &text).filter(|timer| timer.lifecycle == TimerLifecycle::Waiting) else {
        return Ok(Err(TimerCancelled::Ended));
    };
    if expected.is_some_and(|expected| expected != text) {
        return Ok(Err(TimerCancelled::Changed));
    }
    let kept = now + keep_of(classes, &timer.timer_type);
    let timer = Timer { lifecycle: TimerLifecycle::Cancelled { at: now }, ..timer };
    end(database, &timer, kept)?;
    Ok(Ok(timer.timer_type))
}

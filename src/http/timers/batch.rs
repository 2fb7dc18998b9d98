//! `POST /api/v1/timers`: registers many timers, as a JSON array or as lines. The body is read as it arrives and
//! written in steps, so a batch takes the memory of one step and of its answers, which are short.
//!
//! # Why the answer waits for the end of the body
//! Many clients send a whole request before they read its answer. An earlier answer would fill the connection, and both
//! sides would wait for each other.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;

use super::{RegisteredTimer, TimersState};
use crate::fleet::timers::{BadTimer, TimerRefusal, TimerRequest};
use crate::http::changes::Caller;
use crate::http::entries::{BatchEntry, MAX_ENTRY, TooLong};
use crate::http::entry_answers::{EntryAnswers, in_time, reason, turn};
use crate::http::entry_body::{EntryBody, NextEntries};
use crate::http::http_error::HttpError;
use crate::presence::TimerId;
use crate::store::{Audited, TimerRegistered};
use crate::telemetry::TimerOutcome;

/// The most timers of a request.
const MAX_TIMERS: usize = 100_000;
/// The number of timers, or of their bytes (`STEP_BYTES`), after which a step is written.
const STEP: usize = 1000;
const STEP_BYTES: usize = 1 << 20;

/// A timer of a batch that was refused.
#[derive(Serialize)]
struct RefusedTimer<'a> {
    id: Option<&'a TimerId>,
    error: &'a str,
}

/// The answers so far, and the timers that wait to be written.
#[derive(Default)]
struct TimerBatch {
    /// The entries of this step, in order.
    step: Vec<Result<TimerRequest, BadTimer>>,
    bytes: usize,
    entries: usize,
    answers: EntryAnswers,
    created: u64,
    changed: u64,
    refused: u64,
}

pub(super) async fn register(
    State(state): State<TimersState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, HttpError> {
    state.admit(&caller)?;
    let body = EntryBody::new(&headers, body)?;
    let _turn = turn(&state.batches, super::BATCHES)?;
    let mut batch = TimerBatch::default();
    let read = in_time(state.read(body, &caller, &mut batch), "timers").await;
    // After an error nothing is left to write. If the body broke off, its last step is dropped.
    let written = match &read {
        Ok(()) => state.write(&mut batch).await,
        Err(_) => Ok(()),
    };
    if batch.created + batch.changed > 0 {
        let subject = format!("{} timers", batch.created + batch.changed);
        state.note(&caller, Audited::TimersRegistered, &subject, String::new).await?;
    }
    match read.and(written) {
        Ok(()) => {
            let counts = [("created", batch.created), ("changed", batch.changed), ("refused", batch.refused)];
            Ok(batch.answers.response(&counts, "timers"))
        }
        Err(problem) => Err(batch.answers.with(problem)),
    }
}

impl TimersState {
    /// Reads a body to its end, and writes each step that is full.
    async fn read(
        &self,
        mut body: EntryBody,
        caller: &Caller,
        batch: &mut TimerBatch,
    ) -> Result<(), HttpError> {
        loop {
            let NextEntries { entries, end } = body.next().await?;
            let (count, now) = (entries.len(), self.clock.now());
            entries.into_iter().for_each(|entry| batch.take(entry, now));
            self.count(caller, count);
            if batch.entries > MAX_TIMERS {
                return self.too_many(batch).await;
            }
            if matches!(end, Some(Err(_))) || batch.step.len() >= STEP || batch.bytes >= STEP_BYTES {
                self.write(batch).await?;
            }
            if let Some(end) = end {
                return end.map_err(HttpError::bad_request);
            }
            batch.answers.has_room()?;
        }
    }

    /// Writes the timers up to the limit, and refuses the rest.
    async fn too_many(&self, batch: &mut TimerBatch) -> Result<(), HttpError> {
        batch.step.truncate(batch.step.len().saturating_sub(batch.entries - MAX_TIMERS));
        self.write(batch).await?;
        Err(HttpError::too_large(format!(
            "a batch has at most {MAX_TIMERS} timers; send the others in another request"
        )))
    }

    /// Registers the timers of the step, and adds the answers of its entries.
    async fn write(&self, batch: &mut TimerBatch) -> Result<(), HttpError> {
        let step = std::mem::take(&mut batch.step);
        batch.bytes = 0;
        let wanted: Vec<TimerRequest> = step.iter().flatten().cloned().collect();
        let mut registered = Vec::with_capacity(wanted.len());
        for part in wanted.chunks(STEP) {
            registered.extend(self.timers.register(part).await?);
        }
        let mut registered = registered.into_iter();
        for entry in &step {
            match entry {
                Ok(wanted) => match registered.next() {
                    Some(Ok(registered)) => batch.answer(wanted, registered),
                    Some(Err(TimerRefusal { why, .. })) => batch.refuse(Some(&wanted.timer.id), &why),
                    None => batch.refuse(Some(&wanted.timer.id), "no answer"),
                },
                Err(bad) => {
                    self.timers.refused(TimerOutcome::Bad);
                    batch.refuse(bad.id.as_ref(), &bad.why);
                }
            }
        }
        Ok(())
    }
}

impl TimerBatch {
    fn take(&mut self, entry: BatchEntry, now: crate::clock::Timestamp) {
        self.entries += 1;
        self.bytes += entry.as_ref().map_or(0, Vec::len);
        self.step.push(match entry {
            Ok(json) => TimerRequest::read(&json, None, now),
            Err(TooLong) => {
                Err(BadTimer { id: None, why: format!("a timer has at most {MAX_ENTRY} bytes of JSON") })
            }
        });
    }

    fn answer(&mut self, wanted: &TimerRequest, registered: TimerRegistered) {
        match registered {
            TimerRegistered::Created => self.created += 1,
            _ => self.changed += 1,
        }
        self.answers.add(&RegisteredTimer::of(wanted, registered));
    }

    fn refuse(&mut self, id: Option<&TimerId>, error: &str) {
        self.refused += 1;
        self.answers.add(&RefusedTimer { id, error: reason(error) });
    }
}

//! `/api/v1/timers`: registers, lists, shows and cancels timers; [`batch`] registers many, [`list`] lists them, and
//! [`cancel`] cancels several at once.
//!
//! Programs register many timers, so the audit notes a change only if the request names an operator, as the pages and
//! the command line do.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::changes::{self, Caller, HasTokens};
use super::entries::MAX_ENTRY;
use super::http_error::HttpError;
use super::rate_limit::{LimitedClient, RequestLimit, RequestRate, moment};
use super::{PageSources, Role};
use crate::clock::{Clock, Timestamp};
use crate::fleet::timers::{TimerRefusal, TimerRequest};
use crate::fleet::{Silences, Timers};
use crate::presence::{TimerId, TimerType};
use crate::store::{AuditEntry, Audited, TimerRegistered};
use crate::telemetry::TimerOutcome;

mod batch;
mod cancel;
mod list;
mod shown;

pub(super) use list::TimersQuery;
pub(super) use shown::ShownTimer;
use shown::WholeTimer;

pub(super) const PATH: &str = "/api/v1/timers";
/// The batches that are read at a time; each holds its answers in memory.
const BATCHES: usize = 4;
/// A token saves up the timers that it may register in this time (`timers.rate`).
const SAVED: Duration = Duration::from_secs(10);

/// Registers, reads and cancels timers.
#[derive(Clone)]
pub(super) struct TimersState {
    timers: Arc<Timers>,
    silences: Arc<Silences>,
    asked: Arc<RequestLimit>,
    batches: Arc<Semaphore>,
    clock: Clock,
}

pub(super) fn pages(state: TimersState, has_tokens: HasTokens) -> Router {
    let batches = Router::new()
        .route(PATH, get(list::list).post(batch::register))
        .route_layer(from_fn_with_state(has_tokens, changes::guard_without_body));
    Router::new()
        .route("/api/v1/timers/{id}", get(show).put(register).delete(cancel_one))
        .layer(DefaultBodyLimit::max(MAX_ENTRY))
        .merge(
            Router::new()
                .route("/api/v1/timers:cancel", post(cancel::cancel))
                .layer(DefaultBodyLimit::max(cancel::MAX_BODY)),
        )
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .merge(batches)
        .with_state(state)
}

type TimerPath = Result<Path<String>, PathRejection>;

fn timer_id(id: TimerPath) -> Result<TimerId, HttpError> {
    id?.0.parse().map_err(|error: crate::presence::TimerError| HttpError::bad_request(error.to_string()))
}

/// The answer to registering a timer.
#[derive(Serialize)]
struct RegisteredTimer<'a> {
    id: &'a TimerId,
    r#type: &'a TimerType,
    due: Timestamp,
    result: &'static str,
}

impl<'a> RegisteredTimer<'a> {
    fn of(wanted: &'a TimerRequest, registered: TimerRegistered) -> RegisteredTimer<'a> {
        let result = match registered {
            TimerRegistered::Created => "created",
            TimerRegistered::Changed | TimerRegistered::Exists => "changed",
            TimerRegistered::HasFired => "fired",
        };
        RegisteredTimer {
            id: &wanted.timer.id,
            r#type: &wanted.timer.timer_type,
            due: wanted.timer.due,
            result,
        }
    }
}

#[derive(Serialize)]
struct WasCancelled {
    cancelled: bool,
}

async fn show(State(state): State<TimersState>, id: TimerPath) -> Result<Json<WholeTimer>, HttpError> {
    let id = timer_id(id)?;
    let found = state.timers.read(std::slice::from_ref(&id)).await?.into_iter().next().flatten();
    let found = found
        .ok_or_else(|| HttpError::not_found(format!("there is no timer {id}, or it is no longer kept")))?;
    Ok(Json(found.into()))
}

async fn register(
    State(state): State<TimersState>,
    Extension(caller): Extension<Caller>,
    id: TimerPath,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<serde_json::Value>), HttpError> {
    state.admit(&caller)?;
    let (id, body, now) = (timer_id(id)?, body?, state.clock.now());
    let wanted = TimerRequest::read(&body, Some(&id), now).map_err(|bad| {
        state.timers.refused(TimerOutcome::Bad);
        HttpError::bad_request(bad.why)
    })?;
    state.count(&caller, 1);
    let answers = state.timers.register(std::slice::from_ref(&wanted)).await?;
    let registered = answers.into_iter().next().ok_or_else(|| HttpError::internal("no answer"))??;
    let text = || format!("{}, due at {}", wanted.timer.timer_type, wanted.timer.due);
    state.note(&caller, Audited::TimerRegistered, id.as_str(), text).await?;
    let status = if registered == TimerRegistered::Created { StatusCode::CREATED } else { StatusCode::OK };
    let answer = serde_json::to_value(RegisteredTimer::of(&wanted, registered));
    Ok((status, Json(answer.map_err(|error| HttpError::internal(error.to_string()))?)))
}

async fn cancel_one(
    State(state): State<TimersState>,
    Extension(caller): Extension<Caller>,
    id: TimerPath,
) -> Result<Json<WasCancelled>, HttpError> {
    state.admit(&caller)?;
    let id = timer_id(id)?;
    let cancelled = state.cancel(&id, &caller).await?;
    if cancelled {
        state.note(&caller, Audited::TimerCancelled, id.as_str(), String::new).await?;
    }
    Ok(Json(WasCancelled { cancelled }))
}

impl TimersState {
    pub fn new(sources: &PageSources) -> TimersState {
        let PageSources { timers, silences, clock, .. } = sources.clone();
        let batches = Arc::new(Semaphore::new(BATCHES));
        TimersState { timers, silences, asked: Arc::new(RequestLimit::open()), batches, clock }
    }

    /// Cancels a timer; returns whether it was waiting.
    async fn cancel(&self, id: &TimerId, caller: &Caller) -> Result<bool, HttpError> {
        self.count(caller, 1);
        let answers = self.timers.cancel(std::slice::from_ref(id), self.clock.now()).await?;
        Ok(answers.into_iter().next().unwrap_or(Ok(false))?)
    }

    /// Cancels a timer for an operator at a page, and adds that to the audit.
    pub async fn cancel_by_hand(&self, id: &TimerId, caller: &Caller) -> Result<(), HttpError> {
        self.admit(caller)?;
        if self.cancel(id, caller).await? {
            self.audit(caller, Audited::TimerCancelled, id.as_str(), String::new()).await?;
        }
        Ok(())
    }

    /// Refuses a client whose role is too low, or that has to wait.
    fn admit(&self, caller: &Caller) -> Result<(), HttpError> {
        caller.require(Role::Operator)?;
        let rate = self.timers.rules().rate;
        let Some((client, limit)) = self.limit(caller) else { return Ok(()) };
        self.asked.admit(&client, limit, moment(self.clock.now())).map_err(|wait| {
            self.timers.refused(TimerOutcome::Rate);
            let detail =
                format!("this token may ask for {rate} timers a second (timers.rate); try again later");
            HttpError::too_many_requests(detail, wait)
        })
    }

    fn count(&self, caller: &Caller, timers: usize) {
        if let Some((client, limit)) = self.limit(caller) {
            self.asked.take(client, limit, moment(self.clock.now()), timers);
        }
    }

    /// The client whose timers are counted, and its limit; `None` if there is no limit.
    fn limit(&self, caller: &Caller) -> Option<(LimitedClient, RequestRate)> {
        let limit = RequestRate::per_second(self.timers.rules().rate, SAVED)?;
        Some((LimitedClient::Named(caller.token_name().to_owned()), limit))
    }

    /// Adds a change to the audit, if the request names its operator.
    async fn note(
        &self,
        caller: &Caller,
        change: Audited,
        subject: &str,
        text: impl FnOnce() -> String,
    ) -> Result<(), HttpError> {
        if !caller.names_operator() {
            return Ok(());
        }
        self.audit(caller, change, subject, text()).await
    }

    async fn audit(
        &self,
        caller: &Caller,
        change: Audited,
        subject: &str,
        text: String,
    ) -> Result<(), HttpError> {
        let (at, author, subject) = (self.clock.now(), caller.by(None), subject.to_owned());
        Ok(self.silences.note(&AuditEntry { at, author, change, subject, text }).await?)
    }
}

impl From<TimerRefusal> for HttpError {
    fn from(refused: TimerRefusal) -> HttpError {
        match refused.reason {
            TimerOutcome::Exists => HttpError::conflict(refused.why),
            TimerOutcome::ClassFull | TimerOutcome::Full => {
                HttpError::unprocessable(refused.why, ("reason", refused.reason.as_str().into()))
            }
            TimerOutcome::Unreadable => HttpError::internal(refused.why),
            _ => HttpError::bad_request(refused.why),
        }
    }
}

//! `/api/v1/policy/try`: the records and notifications that another timeout of a kind would have produced for the
//! silences in history.
//!
//! A trial reads a month of a fleet and may take many seconds, so one runs at a time, on a thread of its own and for
//! [`LONGEST`] at most. A request waits for it a while. A repeated request with the same parameters finds the trial, or
//! its answer, which is kept for [`KEPT`]. A trial changes nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::timeout;
use url::form_urlencoded;

use super::http_error::{HttpError, query};
use super::unit_filter::known_kind;
use super::{AlertRoutes, PageSources};
use crate::clock::{Clock, Stopwatch, Timestamp, parse_moment, parse_span, shown_span};
use crate::fleet::{AvailabilityHistory, Mirror, Roll};
use crate::presence::{Kind, Policy, is_timeout};
use crate::routing::trial::{PolicyTrial, TrialRules};

const PATH: &str = "/api/v1/policy/try";

/// How long a request waits for an answer.
const WAIT: Duration = Duration::from_secs(10);
/// The time limit of a trial.
const LONGEST: Duration = Duration::from_secs(120);
/// How long the last answer is kept.
const KEPT: Duration = Duration::from_secs(300);
const WITHOUT_HISTORY: &str =
    "a policy is tried on history, and there is none: set history.url to the address of a PostgreSQL";
const DEFAULT_SINCE: Duration = Duration::from_secs(30 * 86_400);
const MAX_SINCE: Duration = Duration::from_secs(400 * 86_400);
/// The longest label name in a request, in bytes.
const MAX_LABEL: usize = 128;

/// A question as a request has it; an empty text is not set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TrialQuery {
    pub kind: String,
    pub timeout: String,
    pub grace: String,
    /// How far back.
    pub since: String,
    /// A moment.
    pub until: String,
    /// A label.
    pub group_by: String,
}

impl TrialQuery {
    /// The query of a URL, without texts that are not set.
    pub fn encoded(&self) -> String {
        let TrialQuery { kind, timeout, grace, since, until, group_by } = self;
        let all = [("kind", kind), ("timeout", timeout), ("grace", grace), ("since", since)];
        let all = all.into_iter().chain([("until", until), ("group_by", group_by)]);
        let set = all.filter(|(_, text)| !text.is_empty());
        form_urlencoded::Serializer::new(String::new()).extend_pairs(set).finish()
    }
}

/// The policies to compare.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrialQuestion {
    kind: Kind,
    policies: [Policy; 2],
    since: Duration,
    until: Option<Timestamp>,
    group_by: Option<String>,
}

/// The answer to a question, or how long its trial has run.
pub(super) enum TrialAnswer {
    Made(Arc<PolicyTrial>),
    Runs(Duration),
}

/// An answer, or why there is none.
type TrialResult = Result<Arc<PolicyTrial>, String>;

/// The last trial.
struct TrialRun {
    question: TrialQuestion,
    routes: Arc<AlertRoutes>,
    begun: Stopwatch,
    result: watch::Receiver<Option<TrialResult>>,
}

impl TrialRun {
    fn is_running(&self) -> bool {
        self.result.borrow().is_none() && self.result.has_changed().is_ok()
    }

    /// Returns whether the trial answers a question. If history did not reach the end of its range, more may be written
    /// now.
    fn answers(&self, question: &TrialQuestion, routes: &Arc<AlertRoutes>) -> bool {
        let is_whole = |trial: &PolicyTrial| question.until.is_none_or(|until| until == trial.until);
        let is_made = matches!(&*self.result.borrow(), Some(Ok(trial)) if is_whole(trial));
        let is_kept = is_made && self.begun.elapsed() < KEPT;
        self.question == *question && Arc::ptr_eq(&self.routes, routes) && (is_kept || self.is_running())
    }
}

/// Tries policies, one at a time.
#[derive(Clone)]
pub(super) struct PolicyTrials {
    history: Option<Arc<dyn AvailabilityHistory>>,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    roll: Arc<Roll>,
    mirror: Arc<Mirror>,
    clock: Clock,
    last: Arc<Mutex<Option<TrialRun>>>,
}

pub(super) fn page(trials: PolicyTrials) -> Router {
    Router::new().route(PATH, get(tried)).with_state(trials)
}

async fn tried(State(trials): State<PolicyTrials>, uri: Uri) -> Result<Response, HttpError> {
    let question = trials.question(&query(&uri)?)?;
    match trials.ask(&question).await? {
        TrialAnswer::Made(trial) => Ok(Json(&*trial).into_response()),
        TrialAnswer::Runs(time) => Err(HttpError::unavailable(format!(
            "the trial has run for {}; ask again with the same parameters for its answer",
            shown_span(time)
        ))),
    }
}

impl PolicyTrials {
    pub fn new(sources: &PageSources) -> PolicyTrials {
        PolicyTrials {
            history: sources.history.clone(),
            routes: sources.routes.clone(),
            roll: sources.roll.clone(),
            mirror: sources.mirror.clone(),
            clock: sources.clock.clone(),
            last: Arc::default(),
        }
    }

    /// Why no policy can be tried; `None`: there is history.
    pub fn missing(&self) -> Option<&'static str> {
        self.history.is_none().then_some(WITHOUT_HISTORY)
    }

    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.mirror.kinds()
    }

    /// The policy of a kind.
    pub fn policy(&self, kind: &str) -> Result<Policy, HttpError> {
        let kind = known_kind(kind, &self.mirror)?;
        let rules = self.roll.shared_rules().of(kind.as_str());
        Ok(rules.ok_or_else(|| HttpError::bad_request(format!("kind {kind} has no rules")))?.policy)
    }

    pub fn question(&self, asked: &TrialQuery) -> Result<TrialQuestion, HttpError> {
        if asked.kind.is_empty() {
            return Err(HttpError::bad_request("kind is missing"));
        }
        let was = self.policy(&asked.kind)?;
        let would = Policy {
            timeout: span("timeout", &asked.timeout, was.timeout)?,
            grace: span("grace", &asked.grace, was.grace)?,
        };
        if !is_timeout(would.timeout) || would.grace > MAX_SINCE {
            return Err(HttpError::bad_request("timeout or grace is out of bounds"));
        }
        let since = span("since", &asked.since, DEFAULT_SINCE)?;
        if since.is_zero() || since > MAX_SINCE {
            let longest = shown_span(MAX_SINCE);
            return Err(HttpError::bad_request(format!("since is longer than 0s and at most {longest}")));
        }
        let until = Some(asked.until.as_str()).filter(|text| !text.is_empty());
        let moment = |text| parse_moment(text).ok_or_else(|| HttpError::bad_request("until is no moment"));
        if asked.group_by.len() > MAX_LABEL {
            return Err(HttpError::bad_request("group_by is no label"));
        }
        Ok(TrialQuestion {
            kind: known_kind(&asked.kind, &self.mirror)?,
            policies: [was, would],
            since,
            until: until.map(moment).transpose()?,
            group_by: Some(asked.group_by.clone()).filter(|label| !label.is_empty()),
        })
    }

    /// Answers a question, or says that its trial still runs.
    ///
    /// # Errors
    /// There is no history; another trial runs; or the trial failed.
    pub async fn ask(&self, question: &TrialQuestion) -> Result<TrialAnswer, HttpError> {
        let history = self.history.clone().ok_or_else(|| HttpError::not_found(WITHOUT_HISTORY))?;
        let (begun, mut result) = self.run_of(question, history)?;
        let Ok(ended) = timeout(WAIT, result.wait_for(Option::is_some)).await else {
            return Ok(TrialAnswer::Runs(begun.elapsed()));
        };
        match ended.ok().and_then(|result| result.clone()) {
            Some(Ok(trial)) => Ok(TrialAnswer::Made(trial)),
            Some(Err(why)) => Err(HttpError::unavailable(why)),
            None => Err(HttpError::internal("the trial ended without an answer")),
        }
    }

    /// The trial of a question; starts one if there is none.
    fn run_of(
        &self,
        question: &TrialQuestion,
        history: Arc<dyn AvailabilityHistory>,
    ) -> Result<(Stopwatch, watch::Receiver<Option<TrialResult>>), HttpError> {
        let (routes, mut last) = (self.routes.borrow().clone(), self.last.lock());
        if let Some(run) = &*last {
            if run.answers(question, &routes) {
                return Ok((run.begun, run.result.clone()));
            }
            if run.is_running() {
                return Err(HttpError::unavailable(format!(
                    "another policy is tried, of kind {}, since {}: one trial runs at a time; ask again later",
                    run.question.kind,
                    shown_span(run.begun.elapsed())
                )));
            }
        }
        let (sender, result) = watch::channel(None);
        let (question, begun) = (question.clone(), Stopwatch::start());
        *last = Some(TrialRun {
            question: question.clone(),
            routes: routes.clone(),
            begun,
            result: result.clone(),
        });
        let (now, settle) = (self.clock.now(), self.roll.hearing().settle);
        tokio::spawn(async move {
            let made = try_policy(&question, (history, routes), settle, now, begun).await;
            sender.send_replace(Some(made.map(Arc::new)));
        });
        Ok((begun, result))
    }
}

/// Runs a trial.
///
/// # Errors
/// The reason for the client.
async fn try_policy(
    question: &TrialQuestion,
    (history, routes): (Arc<dyn AvailabilityHistory>, Arc<AlertRoutes>),
    settle: Duration,
    now: Timestamp,
    begun: Stopwatch,
) -> Result<PolicyTrial, String> {
    let too_long = || {
        let longest = shown_span(LONGEST);
        format!("the trial took longer than {longest}; ask for a shorter time")
    };
    let TrialQuestion { kind, policies, since, until, group_by } = question.clone();
    let read = timeout(LONGEST, history.past_fleet(&kind, (since, until), now)).await;
    let past = read.map_err(|_| too_long())?.map_err(|why| format!("history does not answer: {why}"))?;
    let tried = tokio::task::spawn_blocking(move || {
        let AlertRoutes { routes, receivers, inhibition, breaker, flapping, limited, .. } = &*routes;
        let has_flapping = flapping.contains_key(&kind);
        let breaker = *breaker;
        let [was, would] = policies.map(|policy| TrialRules {
            policy,
            settle,
            routes,
            receivers,
            inhibition,
            breaker,
            has_flapping,
            has_rate_limits: !limited.is_empty(),
        });
        PolicyTrial::of(&past, &was, &would, group_by.as_deref(), &|| begun.elapsed() > LONGEST)
    });
    tried.await.map_err(|error| format!("the trial failed: {error}"))?.ok_or_else(too_long)
}

fn span(name: &str, text: &str, default: Duration) -> Result<Duration, HttpError> {
    if text.is_empty() {
        return Ok(default);
    }
    let advice = || HttpError::bad_request(format!("{name} is no span of time; write 20m or 1d 12h"));
    parse_span(text).ok_or_else(advice)
}

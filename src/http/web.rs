//! The web pages for people: written on the server, complete without a script, with every state in their URLs.
//!
//! | file | page |
//! |---|---|
//! | `fleet.rs`, `sentence.rs` | `/`: the state in words, counts, labels, the list of units |
//! | `unit.rs` | `/units/{kind}/{unit}`: one unit, and forms for operators |
//! | `records.rs`, `strangers.rs` | `/records`, `/strangers` |
//! | `deliveries.rs` | `/deliveries`, `/deliveries/{id}`: notifications with their attempts, delivering again |
//! | `silences.rs` | `/silences` |
//! | `reports.rs` | `/reports`, `/reports.csv`: how much of some days units were online |
//! | `policy.rs` | `/policy`: another timeout of a kind, tried on history |
//! | `timers.rs` | `/timers` |
//! | `incidents.rs` | `/incidents`: the open records, in groups |
//! | `instances.rs` | `/instances`: the partitions, units and problems of each instance |
//! | `configuration.rs`, `about.rs` | `/configuration`, `/about` |
//! | `forms.rs` | the forms with which operators change a unit |
//! | `demo.rs` | `/demo/power`: switches of a simulated fleet |
//! | `login.rs` | `/login`, `/logout` |
//! | `plot.rs` | the history of a unit as pictures |
//! | `chart.rs` | the counts of the fleet over time, as a chart and a table |
//! | `layout.rs`, `format.rs` | the parts of every page, and the form of states and times |
//!
//! The script replaces the live part of a page when a stream of events reports a change of the fleet. Everything that
//! comes from devices is text: the templates escape it, and the content policy of the pages allows no script but
//! Rollcall's own.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router, http::StatusCode};
use serde::Serialize;
use tokio::sync::watch;

use super::changes::HasTokens;
use super::deliveries::DeliveriesState;
use super::ended_sessions::EndedSessions;
use super::http_error::HttpError;
use super::incidents::IncidentReader;
use super::middleware::wants_page;
use super::notices::NoticeReader;
use super::operators::OperatorState;
use super::past_counts::PastCountReader;
use super::policy::PolicyTrials;
use super::records::Records;
use super::session::BrowserSessions;
use super::silences::SilencesState;
use super::strangers::StrangersState;
use super::summary::Summaries;
use super::timeline::Timelines;
use super::timers::TimersState;
use super::unit_list::{UnitLists, UnitsQuery};
use super::{Config, PageSources, Proxies, ShownConfiguration, Switches};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{AvailabilityHistory, Roll};

mod about;
mod chart;
mod configuration;
mod deliveries;
mod demo;
mod fleet;
mod format;
mod forms;
mod incidents;
mod instances;
mod layout;
mod login;
mod plot;
mod policy;
mod records;
mod reports;
mod sentence;
mod silences;
mod strangers;
mod timers;
mod unit;

/// Nothing is loaded from other sites, and no text of a device can run as a script.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const STYLE: &str = include_str!("web/style.css");
const SCRIPT: &str = include_str!("web/script.js");

/// The state of the pages.
#[derive(Clone)]
pub(super) struct Web {
    lists: UnitLists,
    summaries: Summaries,
    past_counts: PastCountReader,
    timelines: Timelines,
    records: Records,
    operators: OperatorState,
    deliveries: DeliveriesState,
    silences: SilencesState,
    strangers: StrangersState,
    timers: TimersState,
    trials: PolicyTrials,
    incidents: IncidentReader,
    notices: NoticeReader,
    roll: Arc<Roll>,
    configuration: watch::Receiver<Arc<ShownConfiguration>>,
    sessions: Arc<BrowserSessions>,
    ended: Arc<EndedSessions>,
    has_tokens: HasTokens,
    proxies: Arc<Proxies>,
    /// Reads history, if it is configured.
    history: Option<Arc<dyn AvailabilityHistory>>,
    /// The labels by which units are counted.
    labels: Arc<[String]>,
    clock: Clock,
    switches: Option<Switches>,
    example_topic: Option<Arc<str>>,
    /// The name of this instance, and since when it shows pages.
    instance: Arc<str>,
    started: Timestamp,
    /// The path of `http.external_url`, which links begin with.
    base: Arc<str>,
}

impl Web {
    pub fn new(
        config: &Config,
        sources: &PageSources,
        (lists, summaries, past_counts, records): (UnitLists, Summaries, PastCountReader, Records),
        (sessions, ended): (Arc<BrowserSessions>, Arc<EndedSessions>),
        (timers, trials): (TimersState, PolicyTrials),
    ) -> Web {
        Web {
            lists,
            summaries,
            past_counts,
            timelines: Timelines::new(sources),
            records,
            operators: OperatorState::new(sources),
            deliveries: DeliveriesState::new(sources),
            silences: SilencesState::new(sources),
            strangers: StrangersState::new(sources),
            timers,
            trials,
            incidents: IncidentReader::new(sources),
            notices: NoticeReader::new(sources),
            roll: sources.roll.clone(),
            configuration: sources.configuration.clone(),
            sessions,
            ended,
            proxies: Arc::new(config.proxies.clone()),
            has_tokens: config.has_tokens(),
            history: sources.history.clone(),
            labels: sources.mirror.labels().into(),
            clock: sources.clock.clone(),
            switches: config.switches.clone(),
            example_topic: config.example_topic.as_deref().map(Arc::from),
            instance: sources.ownership.view().instance.as_str().into(),
            started: sources.clock.now(),
            base: config.base().into(),
        }
    }
}

pub(super) fn pages(web: Web) -> Router {
    let (has_tokens, base) = (web.has_tokens, web.base.clone());
    let other_forms = deliveries::forms()
        .merge(silences::forms())
        .merge(timers::forms())
        .merge(strangers::forms())
        .merge(incidents::forms())
        .merge(demo::forms());
    Router::new()
        .route("/", get(fleet::page))
        .route("/units/{kind}/{unit}", get(unit::page))
        .route("/records", get(records::page))
        .route("/deliveries", get(deliveries::page))
        .route("/deliveries/{id}", get(deliveries::one))
        .route("/silences", get(silences::page))
        .route("/timers", get(timers::page))
        .route("/strangers", get(strangers::page))
        .route("/incidents", get(incidents::page))
        .route("/instances", get(instances::page))
        .route("/configuration", get(configuration::page))
        .route("/about", get(about::page))
        .merge(reports::pages())
        .merge(policy::pages())
        .merge(forms::pages(other_forms, has_tokens))
        .merge(login::pages(has_tokens))
        .with_state(web)
        .route("/assets/style.css", get(|| asset("text/css; charset=utf-8", STYLE)))
        .route("/assets/script.js", get(|| asset("text/javascript; charset=utf-8", SCRIPT)))
        .fallback(unknown)
        .layer(from_fn_with_state(base, finish))
}

/// The answer for an unknown path.
async fn unknown(headers: HeaderMap) -> Response {
    if !wants_page(&headers) {
        return HttpError::not_found("there is no such page").into_response();
    }
    let text = "There is no such page. It may have moved, or its unit is gone.";
    FailedPage::from(HttpError::not_found(text)).into_response()
}

/// An asset, which browsers may keep for an hour.
async fn asset(media: &'static str, text: &'static str) -> impl IntoResponse {
    ([(CONTENT_TYPE, media), (CACHE_CONTROL, "private, max-age=3600")], text)
}

/// Writes the page of a problem, and sets the headers of every page.
async fn finish(State(base): State<Arc<str>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(FailedPage { status, detail }) = response.extensions_mut().remove() {
        response = (status, layout::problem(status, &detail, &base)).into_response();
    }
    let headers: [(HeaderName, &'static str); 3] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_FRAME_OPTIONS, "DENY"),
        // Without a referrer a browser would hide the origin of a form too, and the guard would refuse the form.
        (REFERRER_POLICY, "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A problem as a page, which [`finish`] writes.
#[derive(Clone)]
struct FailedPage {
    status: StatusCode,
    detail: String,
}

impl From<HttpError> for FailedPage {
    fn from(problem: HttpError) -> FailedPage {
        FailedPage { status: problem.status(), detail: problem.detail().to_owned() }
    }
}

impl From<crate::store::EngineError> for FailedPage {
    fn from(error: crate::store::EngineError) -> FailedPage {
        HttpError::from(error).into()
    }
}

impl IntoResponse for FailedPage {
    fn into_response(self) -> Response {
        (self.status, Extension(self)).into_response()
    }
}

/// A group of notifications as the key of its row.
fn key_of(group: &impl Serialize) -> String {
    serde_json::to_string(group).unwrap_or_default()
}

/// The query of a page that selects units by label.
fn label_query(label: &str, value: &str) -> String {
    UnitsQuery { label: Some(format!("{label}={value}")), ..UnitsQuery::default() }.to_url()
}

/// The state of every page.
type WebState = State<Web>;

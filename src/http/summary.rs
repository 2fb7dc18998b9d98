//! `/api/v1/summary`: the whole fleet in numbers, and whether they can be trusted now.
//!
//! The summary of a large fleet may be a second old, see [`MaxAge::LARGE_FLEET`]: no request waits for a count of a
//! million units. `at` is its moment.
//!
//! The ETag covers everything except the moment: a client that sends `if-none-match` gets 304 while nothing has
//! changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use super::breaker::breaker;
use super::counts::UnitCounts;
use super::http_error::HttpError;
use super::peers::{Peers, is_from_peer};
use super::shared_answers::{MaxAge, SharedAnswers};
use super::{AlertRoutes, PageSources};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{BrokerHearing, MassBreaker, Mirror, Ownership, Roll};
use crate::presence::{self, Kind, Trip};
use crate::telemetry::{Consequence, Severity, Telemetry, UnknownTopics};

const PATH: &str = "/api/v1/summary";

/// How long the engine may take to read the breaker; the numbers do not need it.
const BREAKER_TIMEOUT: Duration = Duration::from_secs(1);

/// Counts the fleet.
#[derive(Clone)]
pub(super) struct Summaries {
    mirror: Arc<Mirror>,
    roll: Arc<Roll>,
    ownership: Ownership,
    telemetry: Arc<Telemetry>,
    breaker: Arc<MassBreaker>,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    peers: Peers,
    counts: UnitCounts,
    last: SharedAnswers<FleetSummary>,
    clock: Clock,
}

pub(super) fn page(summaries: Summaries) -> Router {
    Router::new().route(PATH, get(summary)).with_state(summaries)
}

/// The fleet in numbers.
pub(super) struct FleetSummary {
    pub at: Timestamp,
    pub content: SummaryContent,
    /// A digest of the content.
    pub tag: String,
    /// The moment and the content.
    pub json: String,
}

#[derive(Serialize)]
struct DatedContent<'a> {
    at: Timestamp,
    #[serde(flatten)]
    content: &'a SummaryContent,
}

/// Everything but the moment.
#[derive(Serialize)]
pub(super) struct SummaryContent {
    pub units: u64,
    pub states: States,
    /// Units that have been offline for so long that no other number counts them.
    pub archived: u64,
    /// Units that are not offline and whose silence is unusual by their rhythm.
    pub unusual: u64,
    pub kinds: Vec<KindSummary>,
    /// The values of the labels in `http.count_by_labels` with most units that are offline, the worst first: see
    /// [`LabelSummary::is_silent`].
    pub labels: Vec<LabelSummary>,
    pub hearing: HearingSummary,
    /// The mass-offline breaker holds notifications; `null` if the engine does not answer.
    pub breaker_tripped: Option<bool>,
    /// The problems of Rollcall itself, the most serious first.
    pub problems: Vec<InstanceProblem>,
    /// Facts that an operator may want to know, and that are no problem of Rollcall.
    pub notes: Vec<String>,
    pub instances: Vec<InstanceSummary>,
    /// The instances whose units are missing, all or some.
    pub incomplete: Vec<String>,
}

/// How many units are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct States {
    pub online: u64,
    pub late: u64,
    pub offline: u64,
    pub never_seen: u64,
    pub paused: u64,
    pub unknown: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KindSummary {
    pub kind: Kind,
    pub states: States,
    #[serde(default)]
    pub archived: u64,
    #[serde(default)]
    pub unusual: u64,
    /// The last heartbeat of the unit that has been offline for longest.
    pub silent_since: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LabelSummary {
    pub label: String,
    pub value: String,
    pub states: States,
}

#[derive(Serialize)]
pub(super) struct HearingSummary {
    /// Rollcall cannot prove now that it hears the fleet, so no unit is declared offline.
    pub blind: bool,
    /// Until when units may be declared offline later than usual, after blind time.
    pub settling_until: Option<Timestamp>,
    /// The brokers of a fleet that has several.
    pub brokers: Vec<BrokerHearing>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstanceProblem {
    pub instance: String,
    pub name: String,
    pub text: String,
    pub severity: Severity,
    /// The consequences of the problem.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consequences: Vec<Consequence>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct InstanceSummary {
    pub name: String,
    /// The number of its partitions.
    pub partitions: usize,
    pub units: u64,
}

/// The part of one instance.
#[derive(Serialize, Deserialize)]
struct SummaryPart {
    /// When its units were counted.
    #[serde(default)]
    at: Option<Timestamp>,
    instance: InstanceSummary,
    is_filled: bool,
    is_blind: bool,
    kinds: Vec<KindSummary>,
    labels: Vec<LabelSummary>,
    problems: Vec<InstanceProblem>,
    #[serde(default)]
    unknown_topics: UnknownTopics,
}

impl States {
    pub fn total(&self) -> u64 {
        self.online + self.late + self.offline + self.never_seen + self.paused + self.unknown
    }

    pub fn of(&self, state: presence::State) -> u64 {
        match state {
            presence::State::Online => self.online,
            presence::State::Late => self.late,
            presence::State::Offline => self.offline,
            presence::State::NeverSeen => self.never_seen,
            presence::State::Paused => self.paused,
            presence::State::Unknown => self.unknown,
        }
    }

    fn add(&mut self, other: &States) {
        self.online += other.online;
        self.late += other.late;
        self.offline += other.offline;
        self.never_seen += other.never_seen;
        self.paused += other.paused;
        self.unknown += other.unknown;
    }
}

impl KindSummary {
    fn none_of(kind: &Kind) -> KindSummary {
        KindSummary {
            kind: kind.clone(),
            states: States::default(),
            archived: 0,
            unusual: 0,
            silent_since: None,
        }
    }

    fn add(&mut self, other: &KindSummary) {
        self.states.add(&other.states);
        self.archived += other.archived;
        self.unusual += other.unusual;
        self.silent_since = self.silent_since.into_iter().chain(other.silent_since).min();
    }
}

/// The fewest offline units of a place that is silent: one or two devices without power are no place without it.
const SILENT_PLACE: u64 = 3;

impl LabelSummary {
    /// Whether the place itself seems to have failed, its power or its network: half of its units are offline, and they
    /// are more than two. Such places come first, because one cause explains them; five offline units of a thousand are
    /// five faults. Both parts are sorted by the number of offline units.
    fn is_silent(&self) -> bool {
        self.states.offline >= SILENT_PLACE && 2 * self.states.offline >= self.states.total()
    }

    /// The greatest is the worst.
    fn gravity(&self) -> (bool, u64, u64) {
        (self.is_silent(), self.states.offline, self.states.total())
    }
}

/// The numbers are in the order of [`presence::State::ALL`].
impl From<[u64; presence::State::ALL.len()]> for States {
    fn from([online, late, offline, never_seen, paused, unknown]: [u64; 6]) -> States {
        States { online, late, offline, never_seen, paused, unknown }
    }
}

async fn summary(State(summaries): State<Summaries>, headers: HeaderMap) -> Result<Response, HttpError> {
    if is_from_peer(&headers) {
        return Ok(Json(summaries.own_part(summaries.counts.age()).await?).into_response());
    }
    let summary = summaries.of_fleet().await?;
    let tag = format!("\"{}\"", summary.tag);
    let is_known = |known: &HeaderValue| {
        let known = known.to_str().unwrap_or_default();
        known.split(',').any(|one| matches!(one.trim(), "*") || one.trim().trim_start_matches("W/") == tag)
    };
    let mut response = if headers.get_all(IF_NONE_MATCH).iter().any(is_known) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(CONTENT_TYPE, "application/json")], summary.json.clone()).into_response()
    };
    let tag = HeaderValue::from_str(&tag).expect("hexadecimal digits");
    response.headers_mut().insert(ETAG, tag);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

impl FleetSummary {
    fn new(at: Timestamp, content: SummaryContent) -> serde_json::Result<FleetSummary> {
        let text = serde_json::to_string(&content)?;
        let tag = HEXLOWER.encode(&digest(&SHA256, text.as_bytes()).as_ref()[..16]);
        let json = serde_json::to_string(&DatedContent { at, content: &content })?;
        Ok(FleetSummary { at, content, tag, json })
    }
}

impl Summaries {
    pub fn new(sources: &PageSources, counts: UnitCounts) -> Summaries {
        Summaries {
            mirror: sources.mirror.clone(),
            roll: sources.roll.clone(),
            ownership: sources.ownership.clone(),
            telemetry: sources.telemetry.clone(),
            breaker: Arc::new(breaker(sources)),
            routes: sources.routes.clone(),
            peers: Peers::new(sources),
            counts,
            last: SharedAnswers::new(1),
            clock: sources.clock.clone(),
        }
    }

    /// The summary of all instances. In a small fleet it includes every change before the request.
    pub async fn of_fleet(&self) -> Result<Arc<FleetSummary>, HttpError> {
        self.no_older_than(self.counts.age()).await
    }

    /// The summary of all instances, up to a second old: for pages and streams, of which many may be open.
    pub async fn recent(&self) -> Result<Arc<FleetSummary>, HttpError> {
        let age = self.counts.age();
        self.no_older_than(if age == MaxAge::EXACT { MaxAge::RECENT } else { age }).await
    }

    async fn no_older_than(&self, age: MaxAge) -> Result<Arc<FleetSummary>, HttpError> {
        let summaries = self.clone();
        self.last.get("", age, async move { summaries.made_anew().await }).await
    }

    async fn made_anew(&self) -> Result<FleetSummary, HttpError> {
        let has_breaker = self.routes.borrow().breaker.is_some();
        let trip = timeout(BREAKER_TIMEOUT, self.breaker.last());
        let (own, others, trip) =
            tokio::join!(self.own_part(MaxAge::EXACT), self.peers.ask::<SummaryPart>(PATH), trip);
        let own = own?;
        let mut parts = others.parts;
        // Some parts have no moment.
        let at = parts.iter().filter_map(|part| part.at).chain(own.at).min();
        let at = at.unwrap_or_else(|| self.clock.now());
        parts.push(own);
        let is_held = |trip: Option<Trip>| has_breaker && trip.as_ref().is_some_and(Trip::is_held);
        let settling_until = self.roll.hearing().settles_at(self.clock.now());
        let mut content =
            merged(parts, others.missing, settling_until, trip.ok().and_then(Result::ok).map(is_held));
        content.hearing.brokers = self.roll.brokers();
        FleetSummary::new(at, content)
            .map_err(|error| HttpError::internal(format!("the summary cannot be written: {error}")))
    }

    async fn own_part(&self, age: MaxAge) -> Result<SummaryPart, HttpError> {
        let counted = self.counts.units(age).await?;
        let view = self.ownership.view();
        let kinds =
            counted.kinds.iter().zip(&counted.silent_since).zip(&counted.archived).zip(&counted.unusual);
        let kinds: Vec<KindSummary> = kinds
            .map(|((((kind, states), silent_since), archived), unusual)| KindSummary {
                kind: kind.clone(),
                states: (*states).into(),
                archived: *archived,
                unusual: *unusual,
                silent_since: *silent_since,
            })
            .collect();
        let labels = counted.worst.iter().flat_map(|(label, values)| {
            values.iter().map(move |(value, states)| LabelSummary {
                label: label.clone(),
                value: value.to_string(),
                states: (*states).into(),
            })
        });
        let problems = self.telemetry.problems().into_iter().map(|problem| InstanceProblem {
            instance: view.instance.clone(),
            name: problem.name.to_owned(),
            text: problem.text,
            severity: problem.severity,
            consequences: problem.consequences,
        });
        Ok(SummaryPart {
            at: Some(counted.at),
            instance: InstanceSummary {
                name: view.instance.clone(),
                partitions: view.partitions.len(),
                units: kinds.iter().map(|kind| kind.states.total()).sum(),
            },
            is_filled: self.mirror.is_filled(),
            is_blind: self.telemetry.is_blind(),
            kinds,
            labels: labels.collect(),
            problems: problems.collect(),
            unknown_topics: self.telemetry.unknown_topics(),
        })
    }
}

/// The notes of all instances for operators.
fn notes(parts: &[SummaryPart]) -> Vec<String> {
    let topics = UnknownTopics::merged(parts.iter().map(|part| part.unknown_topics.clone()));
    topics.sentence().into_iter().collect()
}

fn merged(
    parts: Vec<SummaryPart>,
    missing: Vec<String>,
    settling_until: Option<Timestamp>,
    breaker_tripped: Option<bool>,
) -> SummaryContent {
    let mut kinds = BTreeMap::<Kind, KindSummary>::new();
    let mut labels = BTreeMap::<(String, String), States>::new();
    let (mut problems, mut instances, mut incomplete) = (Vec::new(), Vec::new(), missing);
    let (mut states, notes) = (States::default(), notes(&parts));
    // The canaries of one instance prove the hearing of all, so the fleet is blind only if every instance is.
    let blind = parts.iter().all(|part| part.is_blind);
    for part in parts {
        for kind in part.kinds {
            states.add(&kind.states);
            kinds.entry(kind.kind.clone()).or_insert_with(|| KindSummary::none_of(&kind.kind)).add(&kind);
        }
        for label in part.labels {
            labels.entry((label.label, label.value)).or_default().add(&label.states);
        }
        if !part.is_filled {
            incomplete.push(part.instance.name.clone());
        }
        problems.extend(part.problems);
        instances.push(part.instance);
    }
    problems.sort_by_key(|problem| problem.severity != Severity::Serious);
    instances.sort_by(|a, b| a.name.cmp(&b.name));
    incomplete.sort();
    let labels = labels.into_iter().map(|((label, value), states)| LabelSummary { label, value, states });
    let mut labels: Vec<LabelSummary> = labels.collect();
    labels.sort_by(|a, b| a.label.cmp(&b.label).then(b.gravity().cmp(&a.gravity())));
    let kinds: Vec<KindSummary> = kinds.into_values().collect();
    SummaryContent {
        units: states.total(),
        states,
        archived: kinds.iter().map(|kind| kind.archived).sum(),
        unusual: kinds.iter().map(|kind| kind.unusual).sum(),
        kinds,
        labels,
        hearing: HearingSummary { blind, settling_until, brokers: Vec::new() },
        breaker_tripped,
        problems,
        notes,
        instances,
        incomplete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_mostly_silent_comes_before_one_with_more_faults() {
        let place = |(offline, units): (u64, u64)| LabelSummary {
            label: "site".to_owned(),
            value: format!("{offline} of {units}"),
            states: States { offline, online: units - offline, ..States::default() },
        };
        let mut places = [(50, 1000), (1, 1), (2, 2), (3, 6), (40, 52), (3, 7), (0, 9)].map(place);
        places.sort_by_key(|one| std::cmp::Reverse(one.gravity()));
        let order: Vec<&str> = places.iter().map(|one| one.value.as_str()).collect();
        assert_eq!(order, ["40 of 52", "3 of 6", "50 of 1000", "3 of 7", "2 of 2", "1 of 1", "0 of 9"]);
    }
}

//! `/api/v1/units`: the units of the fleet, in pages.
//!
//! States and times come from the mirrors of all instances; the labels, pauses and acknowledgements of the units on the
//! page come from the engine. While the engine does not answer, the page is shown without them.
//!
//! In a large fleet, requests for the same page share an answer of the last second, see [`MaxAge::LARGE_FLEET`]; `at`
//! is its moment. After a change through this instance, pages are read again.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::form_urlencoded;

use super::PageSources;
use super::cursor::{cursor, place};
use super::http_error::{HttpError, page_limit, query};
use super::peers::{Peers, is_from_peer};
use super::scans::Scans;
use super::shared_answers::{MaxAge, SharedAnswers};
use super::unit_filter::{known_kind, label_pair};
use crate::clock::{Clock, Timestamp};
use crate::fleet::mirror::{Archive, ListKey, ListOrder, ListQuery, ListedUnit, UnitFilter};
use crate::fleet::{Mirror, Roll};
use crate::presence::{
    self, Acknowledgement, Labels, Lifecycle, MAX_ID, OfflineRecord, RecordId, Silence, Snapshot, Unit,
};
use crate::store::UnitStore;

const PATH: &str = "/api/v1/units";

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// The most lists in memory for identical requests: with the longest pages, they take some megabytes.
const MAX_KEPT: usize = 16;

/// How long the engine may take for the details of a page.
const DETAILS_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads lists of units.
#[derive(Clone)]
pub(super) struct UnitLists {
    mirror: Arc<Mirror>,
    roll: Arc<Roll>,
    units: Arc<dyn UnitStore>,
    peers: Peers,
    clock: Clock,
    scans: Scans,
    pages: SharedAnswers<UnitPage>,
}

pub(super) fn page(lists: UnitLists) -> Router {
    Router::new().route(PATH, get(units)).with_state(lists)
}

/// The query of a URL of units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnitsQuery {
    /// States, with commas between them.
    pub state: Option<String>,
    pub kind: Option<String>,
    pub label: Option<String>,
    /// The prefix of ids.
    pub q: Option<String>,
    /// A text that ids contain.
    pub contains: Option<String>,
    pub silent_seconds: Option<f64>,
    /// Only units whose silence is unusual, or only the others.
    pub unusual: Option<bool>,
    /// Only archived units, which are left out otherwise.
    pub archived: Option<bool>,
    pub sort: Option<ListOrder>,
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

impl UnitsQuery {
    fn limit(&self) -> Result<usize, HttpError> {
        page_limit(self.limit, DEFAULT_LIMIT, MAX_LIMIT)
    }

    /// The query of a URL with these parameters.
    pub fn to_url(&self) -> String {
        let fields = match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in fields {
            match value {
                Value::Null => {}
                Value::String(text) => drop(query.append_pair(&name, &text)),
                number => drop(query.append_pair(&name, &number.to_string())),
            }
        }
        query.finish()
    }
}

#[derive(Serialize)]
pub(super) struct UnitPage {
    pub units: Vec<ShownUnit>,
    /// The `cursor` of the next page; `null` on the last.
    pub next: Option<String>,
    pub at: Timestamp,
    /// The greatest age of the units in the mirrors of the instances.
    pub mirror_age_seconds: Option<f64>,
    /// The instances whose units are missing, all or some.
    pub incomplete: Vec<String>,
}

/// A unit of a page.
#[derive(Serialize)]
pub(super) struct ShownUnit {
    #[serde(flatten)]
    pub listed: ListedUnit,
    #[serde(flatten)]
    pub details: Details,
}

/// The details of a unit from the engine; every field is `null` if the engine does not answer.
#[derive(Default, Serialize)]
pub(super) struct Details {
    pub labels: Option<Labels>,
    pub paused_until: Option<Timestamp>,
    /// The id of the unit's open record.
    pub record: Option<RecordId>,
    pub acknowledged: Option<Acknowledgement>,
    /// The open record, as far as the facts have it, for pages.
    #[serde(skip)]
    pub silence: Option<OfflineRecord>,
}

/// The part of one instance.
#[derive(Serialize, Deserialize)]
struct UnitListPart {
    units: Vec<ListedUnit>,
    /// The moment at which its units were read.
    #[serde(default)]
    at: Option<Timestamp>,
    mirror_age_seconds: Option<f64>,
}

/// The end of a page; its form depends on the order of the list.
#[derive(Serialize, Deserialize)]
struct PageEnd {
    sort: ListOrder,
    after: ListKey,
}

/// Wraps the pages that change units, so that a list requested afterwards shows the change.
pub(super) fn changing<S: Clone + Send + Sync + 'static>(pages: Router<S>, lists: &UnitLists) -> Router<S> {
    pages.layer(from_fn_with_state(lists.clone(), forget_after_change))
}

async fn forget_after_change(State(lists): State<UnitLists>, request: Request, next: Next) -> Response {
    let is_change = !matches!(*request.method(), Method::GET | Method::HEAD);
    let response = next.run(request).await;
    if is_change {
        lists.forget();
    }
    response
}

async fn units(State(lists): State<UnitLists>, uri: Uri, headers: HeaderMap) -> Result<Response, HttpError> {
    let wanted: UnitsQuery = query(&uri)?;
    if is_from_peer(&headers) {
        return Ok(Json(lists.own_part(&wanted).await?).into_response());
    }
    Ok(Json(&*lists.page(&wanted).await?).into_response())
}

impl UnitLists {
    pub fn new(sources: &PageSources, scans: Scans) -> UnitLists {
        UnitLists {
            mirror: sources.mirror.clone(),
            roll: sources.roll.clone(),
            units: sources.units.clone(),
            peers: Peers::new(sources),
            clock: sources.clock.clone(),
            scans,
            pages: SharedAnswers::new(MAX_KEPT),
        }
    }

    /// The page of the whole fleet.
    pub async fn page(&self, wanted: &UnitsQuery) -> Result<Arc<UnitPage>, HttpError> {
        self.read(wanted)?;
        let (lists, asked) = (self.clone(), wanted.clone());
        let make = async move { lists.made_anew(&asked).await };
        self.pages.get(&wanted.to_url(), self.age(), make).await
    }

    /// Drops stored pages, because a unit was changed.
    pub fn forget(&self) {
        self.pages.forget();
    }

    /// The greatest age of a page. In a small fleet a page includes every change before the request.
    fn age(&self) -> MaxAge {
        if self.mirror.is_large() { MaxAge::LARGE_FLEET } else { MaxAge::EXACT }
    }

    async fn made_anew(&self, wanted: &UnitsQuery) -> Result<UnitPage, HttpError> {
        let path = format!("{PATH}?{}", wanted.to_url());
        let (order, limit) = (wanted.sort.unwrap_or_default(), wanted.limit()?);
        let (own, others) = tokio::join!(self.own_part(wanted), self.peers.ask::<UnitListPart>(&path));
        let own = own?;
        let mut incomplete = others.missing;
        if own.mirror_age_seconds.is_none() {
            incomplete.push(self.peers.own_name());
        }
        let ages = others.parts.iter().map(|part| part.mirror_age_seconds);
        // `None` is less than every age.
        let mirror_age_seconds = ages.chain([own.mirror_age_seconds]).flatten().reduce(f64::max);
        // Some parts have no moment.
        let at = others.parts.iter().filter_map(|part| part.at).chain(own.at).min();
        let at = at.unwrap_or_else(|| self.clock.now());
        let listed = merged(others.parts, &own, order, limit);
        let last = listed.last().filter(|_| listed.len() == limit);
        let next = last.map(|last| cursor(&PageEnd { sort: order, after: last.key(order) }));
        let units = self.with_details(listed).await;
        Ok(UnitPage { units, next, at, mirror_age_seconds, incomplete })
    }

    fn read(&self, wanted: &UnitsQuery) -> Result<ListQuery, HttpError> {
        let limit = wanted.limit()?;
        let order = wanted.sort.unwrap_or_default();
        let kind = wanted.kind.as_ref().map(|kind| known_kind(kind, &self.mirror)).transpose()?;
        let label = wanted.label.as_ref().map(|label| label_pair(label, &self.mirror)).transpose()?;
        let archive = match wanted.archived {
            Some(true) => Archive::Only,
            Some(false) | None => Archive::LeftOut,
        }(self.clock.now());
        Ok(ListQuery {
            filter: UnitFilter { kind, label, archive, ..UnitFilter::default() },
            states: wanted.state.as_ref().map_or_else(|| Ok(Vec::new()), |states| read_states(states))?,
            prefix: part_of_id("q", wanted.q.as_ref())?,
            contains: part_of_id("contains", wanted.contains.as_ref())?,
            silent_longer: wanted.silent_seconds.map(read_seconds).transpose()?,
            unusual: wanted.unusual,
            order,
            after: wanted.cursor.as_deref().map(|text| end_of_page(text, order)).transpose()?,
            limit,
        })
    }

    async fn own_part(&self, wanted: &UnitsQuery) -> Result<UnitListPart, HttpError> {
        let query = self.read(wanted)?;
        let (mirror, roll, scans, clock) =
            (self.mirror.clone(), self.roll.clone(), &self.scans, self.clock.clone());
        let scan = move || {
            let now = clock.now();
            let units = mirror.list(&query, &roll.hearing(), now);
            let mirror_age_seconds = mirror.age(now).map(|age| age.as_secs_f64());
            UnitListPart { units, at: Some(now), mirror_age_seconds }
        };
        scans.run(scan).await
    }

    async fn with_details(&self, listed: Vec<ListedUnit>) -> Vec<ShownUnit> {
        let units: Vec<Unit> =
            listed.iter().map(|unit| Unit::new(unit.kind.clone(), unit.unit.clone())).collect();
        let read = tokio::time::timeout(DETAILS_TIMEOUT, self.units.read(&units)).await;
        let snapshots = read.ok().and_then(Result::ok).unwrap_or_default();
        let now = self.clock.now();
        let details = snapshots.into_iter().map(|seen| (seen.unit.clone(), details(seen, now)));
        let mut details: HashMap<Unit, Details> = details.collect();
        let shown = listed.into_iter().zip(units).map(|(listed, unit)| {
            let details = details.remove(&unit).unwrap_or_default();
            ShownUnit { listed, details }
        });
        shown.collect()
    }
}

fn details(seen: Snapshot, now: Timestamp) -> Details {
    let Some(facts) = seen.facts else { return Details::default() };
    let silence = match &facts.lifecycle {
        Lifecycle::Offline(Silence { deadline, detected_at, cause, .. }) => {
            let open = OfflineRecord::open(seen.unit, facts.last_seen, *deadline, *detected_at);
            Some(OfflineRecord { labels: facts.labels.clone(), cause: *cause, ..open })
        }
        _ => None,
    };
    Details {
        record: silence.as_ref().map(|open| open.id.clone()),
        acknowledged: facts.acknowledged.filter(|_| silence.is_some()),
        silence,
        paused_until: facts.pause.map(|pause| pause.to).filter(|until| *until > now),
        labels: Some(facts.labels),
    }
}

/// The first units of all parts. While two instances claim a partition, both have its units.
fn merged(others: Vec<UnitListPart>, own: &UnitListPart, order: ListOrder, limit: usize) -> Vec<ListedUnit> {
    if others.is_empty() {
        return own.units.clone();
    }
    let parts = others.into_iter().map(|part| part.units).chain([own.units.clone()]);
    let mut units: Vec<ListedUnit> = parts.flatten().collect();
    units.sort_by_cached_key(|unit| unit.key(order));
    let mut names = HashSet::new();
    units.retain(|unit| names.insert((unit.kind.clone(), unit.unit.clone())));
    units.truncate(limit);
    units
}

fn read_states(states: &str) -> Result<Vec<presence::State>, HttpError> {
    let read = |name: &str| {
        let state = presence::State::ALL.into_iter().find(|state| state.as_str() == name);
        state.ok_or_else(|| {
            let all = presence::State::ALL.map(presence::State::as_str).join(", ");
            HttpError::bad_request(format!("{name:?} is not a state; states are {all}"))
        })
    };
    let mut states = states.split(',').map(read).collect::<Result<Vec<_>, _>>()?;
    states.sort_by_key(|state| *state as usize);
    states.dedup();
    Ok(states)
}

fn part_of_id(name: &str, text: Option<&String>) -> Result<String, HttpError> {
    let text = text.cloned().unwrap_or_default();
    if text.len() > MAX_ID {
        return Err(HttpError::bad_request(format!("{name} has at most {MAX_ID} bytes, as ids have")));
    }
    Ok(text)
}

fn read_seconds(seconds: f64) -> Result<Duration, HttpError> {
    const YEARS: f64 = 10.0 * 365.0 * 86_400.0;
    if !(0.0..=YEARS).contains(&seconds) {
        return Err(HttpError::bad_request("silent_seconds is a number of seconds, at most ten years"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn end_of_page(text: &str, order: ListOrder) -> Result<ListKey, HttpError> {
    place(text, |end: PageEnd| (end.sort == order).then_some(end.after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_of_one_order() {
        let unit = ListedUnit {
            kind: "detector".parse().unwrap(),
            unit: "ü/7".replace('/', ":").parse().unwrap(),
            state: presence::State::Offline,
            last_seen: None,
            offline_since: Some(Timestamp::from_millis(7)),
            unusual: false,
        };
        let key = unit.key(ListOrder::NewestOffline);
        let written = cursor(&PageEnd { sort: ListOrder::NewestOffline, after: key.clone() });
        assert_eq!(end_of_page(&written, ListOrder::NewestOffline).unwrap(), key);
        assert!(end_of_page(&written, ListOrder::State).is_err());
    }

    #[test]
    fn states_are_read_by_their_names() {
        use presence::State::{Late, Offline};
        assert_eq!(read_states("offline,late,offline").unwrap(), [Late, Offline]);
        for wrong in ["", "offline,", "Offline", "up"] {
            assert!(read_states(wrong).is_err(), "{wrong}");
        }
    }
}

//! `/api/v1/units/{kind}/{unit}`: one unit, as the engine holds it now.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tokio::sync::watch;

use super::http_error::HttpError;
use super::rhythm::{Rhythms, ShownRhythm};
use super::{AlertRoutes, PageSources};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{FlapDetector, Roll};
use crate::presence::{
    self, BrokerName, Cause, Hearing, Interval, Kind, KindRules, Labels, Lifecycle, NameError, OfflineRecord,
    RecordId, Snapshot, TimeoutRule, Unit, UnitId, UnitName,
};
use crate::store::{Catalogue, Cells, DataStore, MetricType, Queries, UnitStore};
use crate::telemetry::Telemetry;

/// Reads single units.
#[derive(Clone)]
pub(super) struct UnitViews {
    units: Arc<dyn UnitStore>,
    records: Arc<dyn Queries>,
    values: Arc<dyn DataStore>,
    roll: Arc<Roll>,
    clock: Clock,
    metrics: Arc<Catalogue>,
    cells: Arc<dyn Cells>,
    /// The current routes, for the kinds that have flap detection.
    routes: watch::Receiver<Arc<AlertRoutes>>,
    rhythms: Rhythms,
    telemetry: Arc<Telemetry>,
}

pub(super) fn page(views: UnitViews) -> Router {
    Router::new().route("/api/v1/units/{kind}/{unit}", get(unit)).with_state(views)
}

#[derive(Serialize)]
pub(super) struct UnitDetails {
    pub kind: Kind,
    pub unit: UnitId,
    pub state: presence::State,
    /// `null` if the unit was never heard.
    pub last_seen: Option<Timestamp>,
    /// Since when the unit counts as silent, if that is later than `last_seen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_from: Option<Timestamp>,
    /// When the unit becomes, or became, offline.
    pub deadline: Option<Timestamp>,
    pub timeout_seconds: f64,
    /// The rule that gives the timeout.
    pub timeout_rule: TimeoutRule,
    pub grace_seconds: f64,
    pub labels: Labels,
    /// Since when the unit is known; `None` if longer than its stored facts reach back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_since: Option<Timestamp>,
    /// A note of operators to each other; may be empty.
    pub note: String,
    /// The last pause, also if it is over.
    #[serde(skip)]
    pub pause: Option<Interval>,
    pub paused_from: Option<Timestamp>,
    pub paused_until: Option<Timestamp>,
    pub sleeps_until: Option<Timestamp>,
    /// The broker that last heard the unit, if its kind is heard at several; or HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker: Option<BrokerName>,
    /// When the unit was announced as gone, if it was not heard since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announced_at: Option<Timestamp>,
    /// The announcement that makes the unit late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_cause: Option<Cause>,
    /// The open record; `null` if the unit is not offline.
    pub record: Option<OfflineRecord>,
    /// The unit has been offline for so long that lists and counts leave it out.
    pub archived: bool,
    /// The unit goes offline and comes back so often that receivers are not notified of it.
    pub flapping: bool,
    /// The rhythm of the unit; `None` if its owner does not answer.
    pub rhythm: Option<ShownRhythm>,
    /// The latest values, by the name of the metric.
    pub values: BTreeMap<String, UnitValue>,
}

/// A value, and when the unit sent it.
#[derive(Serialize)]
pub(super) struct UnitValue {
    pub value: serde_json::Value,
    pub at: Timestamp,
}

async fn unit(
    State(views): State<UnitViews>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<UnitDetails>, HttpError> {
    let Path((kind, id)) = path?;
    let unit = parse(&kind, &id).map_err(|error| HttpError::bad_request(error.to_string()))?;
    Ok(Json(views.view(&unit).await?))
}

impl UnitViews {
    pub fn new(sources: &PageSources) -> UnitViews {
        let PageSources { units, records, values, roll, clock, metrics, cells, routes, telemetry, .. } =
            sources.clone();
        let rhythms = Rhythms::new(sources);
        UnitViews { units, records, values, roll, clock, metrics, cells, routes, rhythms, telemetry }
    }

    /// A unit as the engine holds it now.
    pub async fn view(&self, unit: &Unit) -> Result<UnitDetails, HttpError> {
        let Some(rules) = self.roll.shared_rules().of(unit.kind.as_str()) else {
            let detail = format!("there is no kind {} in the configuration", unit.kind);
            return Err(HttpError::not_found(detail));
        };
        let seen = self.units.read(std::slice::from_ref(unit)).await?.into_iter().next();
        let view =
            seen.and_then(|seen| UnitDetails::of(seen, &rules, &self.roll.hearing(), self.clock.now()));
        let Some((mut view, open)) = view else {
            let (id, kind) = (unit.id.as_str(), &unit.kind);
            return Err(HttpError::not_found(format!("there is no unit {id:?} of kind {kind}")));
        };
        if let Some(open) = open {
            view.record = self.records.record(&open).await?;
        }
        let rules = self.routes.borrow().flapping.clone();
        let flapping = FlapDetector::new(self.cells.clone(), rules, self.telemetry.clone());
        view.flapping = flapping.lasting([unit].into_iter()).await?.contains_key(unit);
        view.values = self.values(unit).await?;
        view.rhythm = self.rhythms.of(unit).await;
        Ok(view)
    }

    /// The sentence about a unit that is heard on two topics in turn.
    pub fn two_places(&self, unit: &Unit) -> Option<String> {
        let ([one, other], advice) = self.telemetry.two_places_of(unit)?;
        Some(format!("It is heard on two topics in turn, {one} and {other}: {advice}."))
    }

    async fn values(&self, unit: &Unit) -> Result<BTreeMap<String, UnitValue>, HttpError> {
        let metrics = self.metrics.of(&unit.kind);
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        let values = self.values.values(unit, &names).await?;
        let named = metrics.iter().zip(values).filter_map(|(metric, value)| {
            let value = value?;
            let json = match metric.metric_type {
                MetricType::Info => serde_json::Value::String(value.text),
                _ => serde_json::Number::from_f64(value.text.parse().ok()?)?.into(),
            };
            Some((metric.name.clone(), UnitValue { value: json, at: value.at }))
        });
        Ok(named.collect())
    }
}

/// Refuses to register an id that no topic of its kind can contain: the unit would never be heard.
pub(super) fn check_name(unit: &Unit, name: &UnitName) -> Result<(), String> {
    match name.parts(unit.id.as_str()) {
        Some(_) => Ok(()),
        None => Err(format!(
            "a unit {:?} of kind {} is never heard, because its topics name units {name}",
            unit.id.as_str(),
            unit.kind
        )),
    }
}

pub(super) fn parse(kind: &str, id: &str) -> Result<Unit, NameError> {
    Ok(Unit::new(kind.parse()?, id.parse()?))
}

impl UnitDetails {
    /// The unit without its record, and the id of its open record; `None` if the unit is unknown or was removed.
    fn of(
        seen: Snapshot,
        rules: &KindRules,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Option<(UnitDetails, Option<RecordId>)> {
        let state = presence::state(&seen, rules, hearing, now)?;
        let deadline = presence::deadline(&seen, rules, hearing);
        let (last_heard, broker) = (seen.last_heard(), seen.heard_at(rules));
        let Snapshot { unit, alive, facts, .. } = seen;
        let facts = facts?;
        let newest = alive.map_or(facts.last_seen, |alive| alive.max(facts.last_seen));
        let archived = match &facts.lifecycle {
            Lifecycle::Offline(silence) => rules.is_archived(silence.deadline, now),
            _ => false,
        };
        let open = matches!(facts.lifecycle, Lifecycle::Offline(_))
            .then(|| RecordId { unit: unit.clone(), last_seen: facts.last_seen });
        let policy = facts.policy(rules);
        let ahead = |absence: &Interval| absence.to > now;
        let pause = facts.pause.filter(ahead);
        let sleep = hearing.sleep(facts.sleep, newest).filter(ahead);
        let departure = facts.departure.filter(|departure| departure.at >= newest);
        let is_waiting = matches!(state, presence::State::Late | presence::State::Unknown);
        let view = UnitDetails {
            kind: unit.kind,
            unit: unit.id,
            state,
            last_seen: last_heard,
            silent_from: facts.silent_from.filter(|from| *from > newest),
            deadline,
            timeout_seconds: policy.timeout.as_secs_f64(),
            timeout_rule: facts.timeout_rule(rules),
            grace_seconds: policy.grace.as_secs_f64(),
            known_since: facts.known.map(|known| known.since),
            labels: facts.labels,
            note: facts.note,
            pause: facts.pause,
            paused_from: pause.map(|pause| pause.from),
            paused_until: pause.map(|pause| pause.to),
            sleeps_until: sleep.map(|sleep| sleep.to),
            broker,
            announced_at: departure.map(|departure| departure.at),
            late_cause: departure.filter(|_| is_waiting).map(|departure| departure.cause),
            record: None,
            archived,
            flapping: false,
            rhythm: None,
            values: BTreeMap::new(),
        };
        Some((view, open))
    }
}

//! `/api/v1/availability`: how a unit, the units of a kind or label, or all spent a range: see
//! [`TimeSpent`].
//!
//! Each instance works out its own units: their closed records of the range are read, and their pauses in the audit, and
//! the mirror knows the rest. If the engine does not have all of the range, such as a unit that was removed, history
//! answers up to the end of the last day that is summed, and the engine answers for the rest.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use super::PageSources;
use super::http_error::{HttpError, query};
use super::peers::{Peers, is_from_peer};
use super::scans::Scans;
use super::shared_answers::{MaxAge, SharedAnswers};
use super::unit_filter::{known_kind, label_pair};
use super::units::parse;
use crate::clock::{Clock, Timestamp};
use crate::fleet::mirror::{Archive, TimesOfUnits, UnitFilter, UnitPasts};
use crate::fleet::{AvailabilityHistory, Beginning, Mirror, Ownership, PastTime, Roll, past_pauses};
use crate::presence::{
    Cause, Facts, Interval, OfflineRecord, Snapshot, TimeSpent, Transition, Unit, UnitTimes,
};
use crate::reports::{AvailabilityFigures, AvailabilityScope};
use crate::store::{Documents, MAX_AUDITED, Queries, UnitStore};

const PATH: &str = "/api/v1/availability";

/// The range if the request names no begin.
const DEFAULT_RANGE: Duration = Duration::from_secs(30 * 86_400);

/// The most answers that are kept.
const MAX_ANSWERS: usize = 200;

/// The most records of one unit that are read.
const MAX_OF_UNIT: usize = 1000;

/// The most closed records that an instance reads of its units.
const MAX_OF_FLEET: usize = 100_000;

/// How many closed records one step reads.
const STEP: usize = 1000;

/// A device whose clock is ahead may have closed a record up to this long after now.
const AHEAD: Duration = Duration::from_secs(86_400);

#[derive(Clone)]
pub(super) struct AvailabilityState {
    records: Arc<dyn Queries>,
    roll: Arc<Roll>,
    units: Arc<dyn UnitStore>,
    mirror: Arc<Mirror>,
    peers: Peers,
    scans: Scans,
    ownership: Ownership,
    clock: Clock,
    beginning: Beginning,
    documents: Documents,
    history: Option<Arc<dyn AvailabilityHistory>>,
    /// How long the engine keeps closed records.
    keep_records: Duration,
    /// For the fleet, a kind or a label over the usual range an answer needs thousands of records; its `until` gives its
    /// moment.
    recent: SharedAnswers<AvailabilityAnswer>,
}

impl AvailabilityState {
    pub fn new(sources: &PageSources, scans: Scans) -> AvailabilityState {
        AvailabilityState {
            records: sources.records.clone(),
            roll: sources.roll.clone(),
            units: sources.units.clone(),
            mirror: sources.mirror.clone(),
            peers: Peers::new(sources),
            scans,
            ownership: sources.ownership.clone(),
            clock: sources.clock.clone(),
            beginning: Beginning::new(sources.cells.clone()),
            documents: Documents::new(sources.cells.clone()),
            history: sources.history.clone(),
            keep_records: sources.keep_records,
            recent: SharedAnswers::new(MAX_ANSWERS),
        }
    }
}

pub(super) fn page(state: AvailabilityState) -> Router {
    Router::new().route(PATH, get(availability)).with_state(state)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AvailabilityQuery {
    /// `kind/unit`.
    unit: Option<String>,
    kind: Option<String>,
    /// `name=value`.
    label: Option<String>,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
}

/// How units spent a range.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct AvailabilityAnswer {
    pub from: Timestamp,
    pub until: Timestamp,
    pub units: u64,
    #[serde(flatten)]
    pub figures: AvailabilityFigures,
    /// Until when history answers; `null` if the engine alone does.
    pub history_until: Option<Timestamp>,
    /// `false`: records, pauses or units are missing, or an instance did not answer for its units.
    pub is_complete: bool,
}

/// How the units of one instance, or of all of them, spent a range.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct AvailabilityPart {
    units: u64,
    spent: TimeSpent,
    is_complete: bool,
}

impl AvailabilityPart {
    fn and(self, more: &AvailabilityPart) -> AvailabilityPart {
        AvailabilityPart {
            units: self.units + more.units,
            spent: self.spent + more.spent,
            is_complete: self.is_complete && more.is_complete,
        }
    }

    fn answer(self, range: Interval, history_until: Option<Timestamp>) -> AvailabilityAnswer {
        let AvailabilityPart { units, spent, is_complete } = self;
        let Interval { from, to: until } = range;
        AvailabilityAnswer { from, until, units, figures: (&spent).into(), history_until, is_complete }
    }
}

async fn availability(
    State(state): State<AvailabilityState>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, HttpError> {
    let wanted: AvailabilityQuery = query(&uri)?;
    if let (true, Some(from), Some(to)) = (is_from_peer(&headers), wanted.from, wanted.until) {
        let scope = state.scope(&wanted)?;
        return Ok(Json(state.own_part(scope, Interval { from, to }).await?).into_response());
    }
    if wanted.unit.is_some() || wanted.from.is_some() || wanted.until.is_some() {
        return Ok(Json(state.read_for(&wanted).await?).into_response());
    }
    let asked = format!("{:?} {:?}", wanted.kind, wanted.label);
    let reader = state.clone();
    let reading = async move { reader.read_for(&wanted).await };
    Ok(Json(&*state.recent.get(&asked, MaxAge::AVAILABILITY, reading).await?).into_response())
}

impl AvailabilityState {
    async fn read_for(&self, wanted: &AvailabilityQuery) -> Result<AvailabilityAnswer, HttpError> {
        let now = self.clock.now();
        let until = wanted.until.unwrap_or(now).min(now);
        let from = wanted.from.unwrap_or(until - DEFAULT_RANGE);
        if from >= until {
            return Err(HttpError::bad_request("from is before until, and in the past"));
        }
        let range = Interval { from, to: until };
        let scope = match self.scope(wanted) {
            Ok(scope) => scope,
            Err(refused) => return self.by_history_alone(wanted, range, refused).await,
        };
        self.refuse_unknown(&scope, until).await?;
        // Nothing is known of the time before the fleet was watched, nor which records the engine had of the time
        // before those that it keeps.
        let watched = self.beginning.since(now).await.unwrap_or(Timestamp::ZERO);
        let known = from.max(watched).max(now - self.keep_records).min(until);
        let by_engine = async |from| self.by_engine(wanted, &scope, Interval { from, to: until }).await;
        let Some(history) = &self.history else {
            let (range, part) = by_engine(known).await?;
            return Ok(part.answer(range, None));
        };
        if known == from {
            let (range, part) = by_engine(known).await?;
            if part.is_complete {
                return Ok(part.answer(range, None));
            }
        }
        match history.time_spent(&scope, range).await {
            Ok(PastTime { until: reached, units, spent, is_complete, .. }) if reached > from => {
                let mut part = AvailabilityPart { units, spent, is_complete };
                if reached < until {
                    let (_, rest) = by_engine(reached).await?;
                    part = AvailabilityPart { units: units.max(rest.units), ..part.and(&rest) };
                }
                Ok(part.answer(range, Some(reached)))
            }
            read => {
                let (range, part) = by_engine(known).await?;
                // An engine that lost its data knows less than history has, also of days that are not summed yet.
                let has_no_more =
                    |past: &PastTime| known == from || past.begins.is_none_or(|begins| begins >= known);
                let is_complete = part.is_complete && read.as_ref().is_ok_and(has_no_more);
                if let Err(why) = read {
                    tracing::debug!("availability is answered without history: {why}");
                }
                Ok(AvailabilityPart { is_complete, ..part }.answer(range, None))
            }
        }
    }

    /// How the units of a kind or of a label that this instance cannot select spent a range, as far as history is summed.
    /// `refused`: the answer if history has no such units.
    async fn by_history_alone(
        &self,
        wanted: &AvailabilityQuery,
        range: Interval,
        refused: HttpError,
    ) -> Result<AvailabilityAnswer, HttpError> {
        let Some((history, scope)) = self.history.as_ref().zip(past_scope(wanted)) else {
            return Err(refused);
        };
        let past = history.time_spent(&scope, range).await.map_err(|why| {
            HttpError::unavailable(format!(
                "{}; history may know it, and does not answer: {why}",
                refused.detail()
            ))
        })?;
        let PastTime { until, units, spent, is_complete, .. } = past;
        if units == 0 || until <= range.from {
            return Err(refused);
        }
        let part = AvailabilityPart { units, spent, is_complete: is_complete && until == range.to };
        Ok(part.answer(Interval { to: until, ..range }, Some(until)))
    }

    /// Refuses a unit of which neither the engine nor history has anything.
    async fn refuse_unknown(&self, scope: &AvailabilityScope, until: Timestamp) -> Result<(), HttpError> {
        let AvailabilityScope::Unit(unit) = scope else { return Ok(()) };
        let read = self.units.read(std::slice::from_ref(unit)).await?;
        if read.iter().any(|seen| seen.is_known() || seen.is_unreadable()) {
            return Ok(());
        }
        if !self.records.history(unit, 1).await?.records.is_empty() {
            return Ok(());
        }
        let ever = Interval { from: Timestamp::ZERO, to: until };
        match &self.history {
            // It may know the unit, if it does not answer.
            Some(history) if history.time_spent(scope, ever).await.is_ok_and(|past| past.units == 0) => {}
            None => {}
            _ => return Ok(()),
        }
        Err(HttpError::not_found(format!("there is no unit {}/{}, and there was none", unit.kind, unit.id)))
    }

    /// How units spent a range by what the engine has, and the range from the moment on that a single unit is known.
    async fn by_engine(
        &self,
        wanted: &AvailabilityQuery,
        scope: &AvailabilityScope,
        range: Interval,
    ) -> Result<(Interval, AvailabilityPart), HttpError> {
        match scope {
            AvailabilityScope::Unit(unit) => self.of_unit(unit, range).await,
            _ => Ok((range, self.of_units(wanted, scope, range).await?)),
        }
    }

    async fn of_unit(&self, unit: &Unit, range: Interval) -> Result<(Interval, AvailabilityPart), HttpError> {
        let (read, history, (mut paused, has_all_pauses)) = tokio::try_join!(
            async { Ok(self.units.read(std::slice::from_ref(unit)).await?) },
            async { Ok(self.records.history(unit, MAX_OF_UNIT).await?) },
            self.past_pauses(range.from)
        )?;
        let (seen, hearing) = (read.into_iter().next(), self.roll.hearing_so_far());
        // The hearing of the broker that last heard the unit counts.
        let broker = seen.as_ref().and_then(|seen| {
            let rules = self.roll.shared_rules().of(unit.kind.as_str())?;
            seen.heard_at(&rules)
        });
        let facts = seen.filter(Snapshot::is_known).and_then(|seen| seen.facts);
        // Facts without a moment: the unit has been known for long. Without facts, the engine does not know the unit.
        let known = facts.as_ref().map(|facts| facts.known.map_or(Timestamp::ZERO, |known| known.since));
        let since = known.unwrap_or(Timestamp::NEVER);
        let range = Interval { from: range.from.max(since).min(range.to), ..range };
        // A unit that was never heard is neither online nor offline.
        let known = if facts.as_ref().is_some_and(Facts::was_heard) { range.from } else { Timestamp::NEVER };
        let outages: Vec<Interval> = outages_of(&history.records);
        let past = paused.remove(&unit.to_string()).unwrap_or_default();
        let pauses: Vec<Interval> = past.into_iter().chain(facts.and_then(|facts| facts.pause)).collect();
        let times = UnitTimes {
            outages: &outages,
            pauses: &pauses,
            blind: hearing.at(&unit.kind, broker.as_ref()).ledger.intervals(),
            unknown: &[],
        };
        let spent = TimeSpent::of(range, Interval { from: known, to: Timestamp::NEVER }, times);
        let reaches_back = history.records.last().is_some_and(|oldest| oldest.deadline < range.from);
        let is_complete = (history.is_complete || reaches_back) && has_all_pauses;
        Ok((range, AvailabilityPart { units: 1, spent, is_complete }))
    }

    /// The units of all instances.
    async fn of_units(
        &self,
        wanted: &AvailabilityQuery,
        scope: &AvailabilityScope,
        range: Interval,
    ) -> Result<AvailabilityPart, HttpError> {
        let path = format!("{PATH}?{}", written(wanted, range));
        let (own, others) =
            tokio::join!(self.own_part(scope.clone(), range), self.peers.ask::<AvailabilityPart>(&path));
        let sum = others.parts.iter().fold(own?, |sum, part| sum.and(part));
        match &wanted.label {
            // Without history, no unit with this label means that the label is unknown; in history, units of the past
            // may have had it.
            Some(label) if sum.units == 0 && self.history.is_none() => {
                Err(HttpError::not_found(format!("no unit that was heard has {label:?}")))
            }
            _ => Ok(AvailabilityPart { is_complete: sum.is_complete && others.missing.is_empty(), ..sum }),
        }
    }

    async fn own_part(
        &self,
        scope: AvailabilityScope,
        range: Interval,
    ) -> Result<AvailabilityPart, HttpError> {
        let (outages, has_all_outages) = self.past_outages(&scope, range).await?;
        let (pauses, has_all_pauses) = self.past_pauses(range.from).await?;
        let (past, is_complete) = (UnitPasts { outages, pauses }, has_all_outages && has_all_pauses);
        let (kind, label) = match scope {
            AvailabilityScope::Kind(kind) => (Some(kind), None),
            AvailabilityScope::Label { name, value } => (None, Some((name, value))),
            AvailabilityScope::Fleet | AvailabilityScope::Unit(_) => (None, None),
        };
        let archive = Archive::LeftOut(self.clock.now());
        let filter = UnitFilter { kind, label, archive, ..UnitFilter::default() };
        let (mirror, hearing) = (self.mirror.clone(), self.roll.hearing_so_far());
        let scan = move || mirror.time_spent(filter, range, &past, &hearing);
        let (units, spent) = self.scans.run(scan).await?;
        Ok(AvailabilityPart { units, spent, is_complete })
    }

    /// The pauses of units that the audit knows; `false` if it does not reach back to `since`.
    async fn past_pauses(&self, since: Timestamp) -> Result<(TimesOfUnits, bool), HttpError> {
        let audit = self.documents.audited(MAX_AUDITED).await?;
        let is_all = audit.len() < MAX_AUDITED || audit.last().is_some_and(|oldest| oldest.at <= since);
        let mut pauses = TimesOfUnits::new();
        for ((kind, unit), pause) in past_pauses(audit.iter().rev(), Timestamp::ZERO) {
            pauses.entry(format!("{kind}:{unit}")).or_default().push(pause);
        }
        Ok((pauses, is_all))
    }

    /// The outages of own units that ended after the beginning of a range; `false` if some are missing, or if a unit of
    /// the scope is not there any more, so that the rest of its time is missing.
    async fn past_outages(
        &self,
        scope: &AvailabilityScope,
        range: Interval,
    ) -> Result<(TimesOfUnits, bool), HttpError> {
        let partitions = self.ownership.view().partitions.clone();
        let (mut outages, mut read, mut all_are_there) = (TimesOfUnits::new(), 0, true);
        let is_in_scope = |record: &OfflineRecord| match scope {
            AvailabilityScope::Kind(kind) => record.kind == *kind,
            AvailabilityScope::Label { name, value } => record.labels.get(name) == Some(value),
            AvailabilityScope::Fleet | AvailabilityScope::Unit(_) => true,
        };
        let mut time = Interval { from: range.from, to: self.clock.now() + AHEAD };
        while time.from < time.to && read < MAX_OF_FLEET {
            let (records, until) =
                self.records.changed_records(Transition::Online, &partitions, time, STEP).await?;
            read += records.len();
            for record in records.into_iter().filter(|record| record.cause != Cause::NeverSeen) {
                all_are_there &= !is_in_scope(&record) || self.mirror.has(&record.id.unit);
                outages.entry(record.id.unit.to_string()).or_default().push(record.outage());
            }
            time.from = until;
        }
        Ok((outages, time.from >= time.to && all_are_there))
    }

    fn scope(&self, wanted: &AvailabilityQuery) -> Result<AvailabilityScope, HttpError> {
        if let Some(unit) = &wanted.unit {
            if wanted.kind.is_some() || wanted.label.is_some() {
                return Err(HttpError::bad_request("unit stands alone, without kind and label"));
            }
            let written = unit.split_once('/').and_then(|(kind, id)| parse(kind, id).ok());
            return written
                .map(AvailabilityScope::Unit)
                .ok_or_else(|| HttpError::bad_request("unit is written kind/id, e.g. unit=detector/pump-7"));
        }
        match (&wanted.kind, &wanted.label) {
            (Some(_), Some(_)) => Err(HttpError::bad_request("either kind or label, not both")),
            (Some(kind), None) => Ok(AvailabilityScope::Kind(known_kind(kind, &self.mirror)?)),
            (None, Some(label)) => {
                let (name, value) = label_pair(label, &self.mirror)?;
                Ok(AvailabilityScope::Label { name, value })
            }
            (None, None) => Ok(AvailabilityScope::Fleet),
        }
    }
}

/// A kind or a label of which history may have units, whatever the configuration has. A text of PostgreSQL has no NUL.
fn past_scope(wanted: &AvailabilityQuery) -> Option<AvailabilityScope> {
    match (&wanted.unit, &wanted.kind, &wanted.label) {
        (None, Some(kind), None) => kind.parse().ok().map(AvailabilityScope::Kind),
        (None, None, Some(label)) if !label.contains('\0') => {
            let (name, value) = label.split_once('=')?;
            Some(AvailabilityScope::Label { name: name.to_owned(), value: value.to_owned() })
        }
        _ => None,
    }
}

/// The outages of a unit. The time before it was heard for the first time is none, though it has a record.
pub(super) fn outages_of(records: &[OfflineRecord]) -> Vec<Interval> {
    let heard = records.iter().filter(|record| record.cause != Cause::NeverSeen);
    heard.map(OfflineRecord::outage).collect()
}

/// The query that asks another instance for its part.
fn written(wanted: &AvailabilityQuery, range: Interval) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("from", &range.from.to_string()).append_pair("until", &range.to.to_string());
    for (name, text) in [("kind", &wanted.kind), ("label", &wanted.label)] {
        if let Some(text) = text {
            query.append_pair(name, text);
        }
    }
    query.finish()
}

//! `/api/v1/availability`: the share of time in which a unit, the units of a kind or label, or all were not offline.
//!
//! A unit is offline from the deadline that passed to the end of its record. Blind time counts neither as online nor as
//! offline: it is left out, and the answer says how much it was. So is the time before the fleet was watched, and for
//! each unit the time before it was known.

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
use super::beginning::Beginning;
use super::http_error::{HttpError, query};
use super::peers::{Peers, is_from_peer};
use super::scans::Scans;
use super::unit_filter::{known_kind, label_pair};
use super::units::parse;
use crate::clock::{Clock, Timestamp, monotonic};
use crate::fleet::mirror::{Archive, KnownTime, UnitFilter};
use crate::fleet::{Mirror, Roll};
use crate::presence::{Interval, Kind, OfflineRecord, Snapshot, Unit};
use crate::store::{Queries, UnitStore};

mod recent;

use recent::{AnswerKey, RecentAnswers};

const PATH: &str = "/api/v1/availability";

/// The range if the request names no begin.
const DEFAULT_RANGE: Duration = Duration::from_secs(30 * 86_400);

/// The most records of one unit that are read.
const MAX_OF_UNIT: usize = 1000;

/// The most records that are read for units of a kind, of a label or of the fleet.
const MAX_OF_FLEET: usize = 20_000;

/// How many of them are read in one step.
const STEP: usize = 1000;

#[derive(Clone)]
pub(super) struct AvailabilityState {
    records: Arc<dyn Queries>,
    roll: Arc<Roll>,
    units: Arc<dyn UnitStore>,
    mirror: Arc<Mirror>,
    peers: Peers,
    scans: Scans,
    clock: Clock,
    beginning: Beginning,
    recent: RecentAnswers,
    /// One request at a time reads an answer that is not kept yet; the others then find it.
    turn: Arc<tokio::sync::Mutex<()>>,
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
            clock: sources.clock.clone(),
            beginning: Beginning::new(sources.cells.clone()),
            recent: RecentAnswers::default(),
            turn: Arc::default(),
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

/// How much of a range units were not offline.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct AvailabilityAnswer {
    pub from: Timestamp,
    pub until: Timestamp,
    /// How many units, as of now.
    pub units: u64,
    /// 0 to 1; `null` if all of the range was blind, or no unit was known in it.
    pub online_share: Option<f64>,
    pub outages: usize,
    /// The offline time of all units together.
    pub offline_seconds: f64,
    pub longest_outage_seconds: f64,
    /// The time online of all units for each outage; `null` without one.
    pub mean_seconds_between_outages: Option<f64>,
    /// Blind time of the range, which is left out.
    pub blind_seconds: f64,
    /// `false`: there are more records than are read, and older outages are missing, or an instance did not answer
    /// for its units.
    pub is_complete: bool,
}

/// The units whose availability is asked for.
enum Scope {
    Unit(Unit),
    Units { kind: Option<Kind>, label: Option<(String, String)> },
}

/// The part of one instance: its units, and how much of the range passed before they were known.
#[derive(Serialize, Deserialize)]
struct AvailabilityPart {
    units: u64,
    unknown_seconds: f64,
}

impl From<KnownTime> for AvailabilityPart {
    fn from(time: KnownTime) -> AvailabilityPart {
        AvailabilityPart { units: time.units, unknown_seconds: time.unknown.as_secs_f64() }
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
        return Ok(Json(state.own_part(&scope, Interval { from, to }).await?).into_response());
    }
    if wanted.unit.is_some() || wanted.from.is_some() || wanted.until.is_some() {
        return Ok(Json(state.read_for(&wanted).await?).into_response());
    }
    let asked = (wanted.kind, wanted.label);
    if let Some((answer, is_due)) = state.recent.find(&asked, monotonic()) {
        if is_due {
            tokio::spawn(async move { state.renew(asked).await });
        }
        return Ok(Json(&*answer).into_response());
    }
    let turn = state.turn.clone();
    let _turn = turn.lock().await;
    let answer = match state.recent.find(&asked, monotonic()) {
        Some((answer, _)) => answer,
        None => state.renew(asked).await?,
    };
    Ok(Json(&*answer).into_response())
}

impl AvailabilityState {
    /// Makes an answer for the usual range, and keeps it.
    async fn renew(&self, asked: AnswerKey) -> Result<Arc<AvailabilityAnswer>, HttpError> {
        let begun = monotonic();
        let (kind, label) = asked.clone();
        let wanted = AvailabilityQuery { kind, label, ..AvailabilityQuery::default() };
        match self.read_for(&wanted).await {
            Ok(answer) => {
                let answer = Arc::new(answer);
                self.recent.keep(asked, answer.clone(), begun);
                Ok(answer)
            }
            Err(problem) => {
                self.recent.give_up(&asked);
                Err(problem)
            }
        }
    }

    async fn read_for(&self, wanted: &AvailabilityQuery) -> Result<AvailabilityAnswer, HttpError> {
        let now = self.clock.now();
        let until = wanted.until.unwrap_or(now).min(now);
        let from = wanted.from.unwrap_or(until - DEFAULT_RANGE);
        if from >= until {
            return Err(HttpError::bad_request("from is before until, and in the past"));
        }
        let scope = self.scope(wanted)?;
        let seen = self.seen(&scope).await?;
        // Nothing is known of the time before the fleet was watched.
        let from = from.max(self.beginning.since(now).await.unwrap_or(Timestamp::ZERO));
        let from = from.max(known_since(seen.as_ref())).min(until);
        let range = Interval { from, to: until };
        let ((of, has_all), (records, is_complete)) =
            tokio::try_join!(self.units(wanted, &scope, range), self.read(&scope, range))?;
        let hearing = self.roll.hearing();
        // The broker that last heard a single unit decides about it.
        let broker = seen.as_ref().and_then(|seen| {
            let rules = self.roll.shared_rules().of(seen.unit.kind.as_str())?;
            seen.heard_at(&rules)
        });
        let at = |kind: &Kind| &hearing.at(kind, broker.as_ref()).ledger;
        let ledger = match &scope {
            Scope::Unit(Unit { kind, .. }) | Scope::Units { kind: Some(kind), .. } => at(kind),
            Scope::Units { .. } => &hearing.ledger,
        };
        let blind = overlap(range, ledger.intervals());
        let outages = records.iter().filter_map(|record| outage(record, range, at(&record.kind).intervals()));
        Ok(AvailabilityAnswer { is_complete: is_complete && has_all, ..summed(range, &of, blind, outages) })
    }

    /// The stored state of a single unit.
    async fn seen(&self, scope: &Scope) -> Result<Option<Snapshot>, HttpError> {
        let Scope::Unit(unit) = scope else { return Ok(None) };
        Ok(self.units.read(std::slice::from_ref(unit)).await?.into_iter().next())
    }

    /// The units of all instances, and whether every instance answered.
    async fn units(
        &self,
        wanted: &AvailabilityQuery,
        scope: &Scope,
        range: Interval,
    ) -> Result<(AvailabilityPart, bool), HttpError> {
        if let Scope::Unit(_) = scope {
            return Ok((AvailabilityPart { units: 1, unknown_seconds: 0.0 }, true));
        }
        let path = format!("{PATH}?{}", written(wanted, range));
        let (own, others) =
            tokio::join!(self.own_part(scope, range), self.peers.ask::<AvailabilityPart>(&path));
        let own = own?;
        let sum = others.parts.iter().fold(own, |sum, part| AvailabilityPart {
            units: sum.units + part.units,
            unknown_seconds: sum.unknown_seconds + part.unknown_seconds,
        });
        match &wanted.label {
            Some(label) if sum.units == 0 => Err(HttpError::not_found(format!("no unit has {label:?}"))),
            _ => Ok((sum, others.missing.is_empty())),
        }
    }

    async fn own_part(&self, scope: &Scope, range: Interval) -> Result<AvailabilityPart, HttpError> {
        let (kind, label) = match scope {
            Scope::Units { kind, label } => (kind.clone(), label.clone()),
            Scope::Unit(_) => (None, None),
        };
        let archive = Archive::LeftOut(self.clock.now());
        let filter = UnitFilter { kind, label, archive, ..UnitFilter::default() };
        let mirror = self.mirror.clone();
        Ok(self.scans.run(move || mirror.known_time(filter, range)).await?.into())
    }

    fn scope(&self, wanted: &AvailabilityQuery) -> Result<Scope, HttpError> {
        if let Some(unit) = &wanted.unit {
            if wanted.kind.is_some() || wanted.label.is_some() {
                return Err(HttpError::bad_request("unit stands alone, without kind and label"));
            }
            let written = unit.split_once('/').and_then(|(kind, id)| parse(kind, id).ok());
            return written
                .map(Scope::Unit)
                .ok_or_else(|| HttpError::bad_request("unit is written kind/id, e.g. unit=detector/pump-7"));
        }
        match (&wanted.kind, &wanted.label) {
            (Some(_), Some(_)) => Err(HttpError::bad_request("either kind or label, not both")),
            (kind, label) => {
                let kind = kind.as_ref().map(|kind| known_kind(kind, &self.mirror)).transpose()?;
                let label = label.as_ref().map(|label| label_pair(label, &self.mirror)).transpose()?;
                Ok(Scope::Units { kind, label })
            }
        }
    }

    /// The records of the range, and whether they are all.
    async fn read(&self, scope: &Scope, range: Interval) -> Result<(Vec<OfflineRecord>, bool), HttpError> {
        let (kind, label) = match scope {
            Scope::Unit(unit) => {
                let history = self.records.history(unit, MAX_OF_UNIT).await?;
                let reaches_back = history.records.last().is_some_and(|oldest| oldest.deadline < range.from);
                return Ok((history.records, history.is_complete || reaches_back));
            }
            Scope::Units { kind, label } => (kind, label),
        };
        // A record that ended in the range may have begun long before it, so all records are read.
        let (mut found, mut before, mut read) = (Vec::new(), Some((range.to, super::records::first_id())), 0);
        while read < MAX_OF_FLEET {
            let page = self.records.records(false, before, STEP).await?;
            read += page.len();
            if page.len() < STEP {
                found.extend(page);
                return Ok((selected(found, kind.as_ref(), label.as_ref()), true));
            }
            before = page.last().map(|last| (last.detected_at, last.id.clone()));
            found.extend(page);
        }
        Ok((selected(found, kind.as_ref(), label.as_ref()), false))
    }
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

fn selected(
    mut records: Vec<OfflineRecord>,
    kind: Option<&Kind>,
    label: Option<&(String, String)>,
) -> Vec<OfflineRecord> {
    records.retain(|record| {
        kind.is_none_or(|kind| record.kind == *kind)
            && label.is_none_or(|(name, value)| record.labels.get(name) == Some(value))
    });
    records
}

/// Since when a single unit is known.
fn known_since(seen: Option<&Snapshot>) -> Timestamp {
    let known = seen.and_then(|seen| seen.facts.as_ref()?.known);
    known.map_or(Timestamp::ZERO, |known| known.since)
}

/// How long the record's unit was offline within the range, without its blind time.
pub(super) fn outage(record: &OfflineRecord, range: Interval, blind: &[Interval]) -> Option<Duration> {
    let from = record.deadline.max(range.from);
    let to = record.back_at.unwrap_or(range.to).min(range.to);
    let offline = Interval { from, to };
    (from < to).then(|| offline.length() - overlap(offline, blind))
}

fn overlap(range: Interval, intervals: &[Interval]) -> Duration {
    let within = |one: &Interval| one.to.min(range.to).since(one.from.max(range.from).min(range.to));
    intervals.iter().filter(|one| one.from < range.to && one.to > range.from).map(within).sum()
}

fn summed(
    range: Interval,
    of: &AvailabilityPart,
    blind: Duration,
    outages: impl Iterator<Item = Duration>,
) -> AvailabilityAnswer {
    let (mut count, mut offline, mut longest) = (0, Duration::ZERO, Duration::ZERO);
    for outage in outages {
        (count, offline, longest) = (count + 1, offline + outage, longest.max(outage));
    }
    let range_seconds = range.length().as_secs_f64();
    let watched = range_seconds * of.units as f64 - of.unknown_seconds;
    // Blind time is not known of each unit, so it is taken from the whole range alike.
    let heard = range.length().saturating_sub(blind).as_secs_f64() / range_seconds.max(f64::MIN_POSITIVE);
    let all = watched * heard;
    let offline = offline.as_secs_f64();
    AvailabilityAnswer {
        from: range.from,
        until: range.to,
        units: of.units,
        online_share: (all > 0.0).then(|| (1.0 - offline / all).max(0.0)),
        outages: count,
        offline_seconds: offline,
        longest_outage_seconds: longest.as_secs_f64(),
        mean_seconds_between_outages: (count > 0).then(|| (all - offline).max(0.0) / count as f64),
        blind_seconds: blind.as_secs_f64(),
        is_complete: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(unknown_seconds: f64) -> AvailabilityPart {
        AvailabilityPart { units: 2, unknown_seconds }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn blind_time_is_left_out_of_the_range_and_of_outages() {
        let range = Interval { from: at(100), to: at(200) };
        let blind =
            [(0, 110), (150, 160), (190, 300)].map(|(from, to)| Interval { from: at(from), to: at(to) });
        assert_eq!(overlap(range, &blind), Duration::from_secs(30));
        let sum = summed(
            range,
            &units(0.0),
            Duration::from_secs(30),
            [20, 15].map(Duration::from_secs).into_iter(),
        );
        assert_eq!((sum.outages, sum.longest_outage_seconds, sum.offline_seconds), (2, 20.0, 35.0));
        assert_eq!((sum.online_share, sum.mean_seconds_between_outages), (Some(0.75), Some(52.5)));
        let blind = summed(range, &units(0.0), range.length(), std::iter::empty());
        assert_eq!((blind.online_share, blind.mean_seconds_between_outages), (None, None));
        // One of the two units is known for the last 20 of 100 s.
        let young = summed(range, &units(80.0), Duration::ZERO, [30].map(Duration::from_secs).into_iter());
        assert_eq!((young.online_share, young.mean_seconds_between_outages), (Some(0.75), Some(90.0)));
    }
}

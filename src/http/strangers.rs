//! `/api/v1/strangers`: ids that send heartbeats but are no units of the fleet. An administrator admits one with `PUT
//! /api/v1/units/{kind}/{unit}`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use super::PageSources;
use super::cursor::{cursor, place};
use super::http_error::{HttpError, page_limit, query};
use super::peers::{Peers, is_from_peer};
use super::unit_filter::known_kind;
use crate::clock::Clock;
use crate::fleet::strangers::{Stranger, StrangerFilter};
use crate::fleet::{Mirror, Roll};
use crate::presence::{Kind, MAX_ID, Unit, UnitId};
use crate::store::UnitStore;
use crate::telemetry::{Telemetry, UnknownTopics};

const PATH: &str = "/api/v1/strangers";

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

#[derive(Clone)]
pub(super) struct StrangersState {
    roll: Arc<Roll>,
    telemetry: Arc<Telemetry>,
    mirror: Arc<Mirror>,
    units: Arc<dyn UnitStore>,
    peers: Peers,
    clock: Clock,
}

pub(super) fn page(state: StrangersState) -> Router {
    Router::new().route(PATH, get(strangers)).with_state(state)
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StrangersQuery {
    pub kind: Option<String>,
    /// The prefix of ids.
    pub q: Option<String>,
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

/// A page of strangers, ordered by name.
#[derive(Serialize)]
pub(super) struct StrangerPage {
    pub strangers: Vec<ShownStranger>,
    /// The `cursor` of the next page; `null` on the last.
    pub next: Option<String>,
    /// The heartbeats of ids beyond the limit of the list.
    pub unlisted_heartbeats: u64,
    /// Messages on topics that belong to no kind.
    pub unknown_topics: UnknownTopics,
    /// The instances whose strangers are missing.
    pub incomplete: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ShownStranger {
    pub kind: Kind,
    pub unit: UnitId,
    #[serde(flatten)]
    pub heard: Stranger,
}

/// The strangers of one instance.
#[derive(Serialize, Deserialize)]
struct StrangersPart {
    strangers: Vec<ShownStranger>,
    unlisted_heartbeats: u64,
    #[serde(default)]
    unknown_topics: UnknownTopics,
}

async fn strangers(
    State(state): State<StrangersState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let wanted: StrangersQuery = query(&uri)?;
    if is_from_peer(&headers) {
        let (filter, limit) = state.read(&wanted)?;
        return Ok(Json(state.own_part(&filter, limit)).into_response());
    }
    Ok(Json(state.page(&wanted).await?).into_response())
}

impl StrangersState {
    pub fn new(sources: &PageSources) -> StrangersState {
        StrangersState {
            roll: sources.roll.clone(),
            telemetry: sources.telemetry.clone(),
            mirror: sources.mirror.clone(),
            units: sources.units.clone(),
            peers: Peers::new(sources),
            clock: sources.clock.clone(),
        }
    }

    /// The page of all instances, without ids that were registered after they were heard.
    pub async fn page(&self, wanted: &StrangersQuery) -> Result<StrangerPage, HttpError> {
        let (filter, limit) = self.read(wanted)?;
        let others = self.peers.ask::<StrangersPart>(&format!("{PATH}?{}", written(wanted))).await;
        let mut parts = others.parts;
        parts.push(self.own_part(&filter, limit));
        let unlisted_heartbeats = parts.iter().map(|part| part.unlisted_heartbeats).sum();
        let unknown_topics = parts.iter_mut().map(|part| std::mem::take(&mut part.unknown_topics));
        let unknown_topics = UnknownTopics::merged(unknown_topics);
        let mut merged: BTreeMap<Unit, Stranger> = BTreeMap::new();
        for one in parts.into_iter().flat_map(|part| part.strangers) {
            let unit = Unit::new(one.kind, one.unit);
            let heard = match merged.remove(&unit) {
                Some(other) => other.and(one.heard),
                None => one.heard,
            };
            merged.insert(unit, heard);
        }
        let found: Vec<(Unit, Stranger)> = merged.into_iter().take(limit).collect();
        let next = found.last().filter(|_| found.len() == limit).map(|(unit, _)| cursor(&unit.to_string()));
        let names: Vec<Unit> = found.iter().map(|(unit, _)| unit.clone()).collect();
        let known = self.units.read(&names).await?.into_iter().filter(|seen| seen.is_known());
        let known: Vec<Unit> = known.map(|seen| seen.unit).collect();
        self.roll.strangers().admitted(&known);
        let strangers = found.into_iter().filter(|(unit, _)| !known.contains(unit));
        let strangers =
            strangers.map(|(unit, heard)| ShownStranger { kind: unit.kind, unit: unit.id, heard });
        Ok(StrangerPage {
            strangers: strangers.collect(),
            next,
            unlisted_heartbeats,
            unknown_topics,
            incomplete: others.missing,
        })
    }

    fn read(&self, wanted: &StrangersQuery) -> Result<(StrangerFilter, usize), HttpError> {
        let limit = page_limit(wanted.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
        let kind = wanted.kind.as_ref().map(|kind| known_kind(kind, &self.mirror)).transpose()?;
        let prefix = wanted.q.clone().unwrap_or_default();
        if prefix.len() > MAX_ID {
            return Err(HttpError::bad_request(format!("q has at most {MAX_ID} bytes, as ids have")));
        }
        let after = wanted.cursor.as_deref();
        let after = after.map(|text| place(text, |name: String| name.parse().ok())).transpose()?;
        Ok((StrangerFilter { kind, prefix, after }, limit))
    }

    fn own_part(&self, filter: &StrangerFilter, limit: usize) -> StrangersPart {
        let (found, unlisted_heartbeats) = self.roll.strangers().list(filter, limit, self.clock.now());
        let shown = |(unit, heard): (Unit, Stranger)| ShownStranger { kind: unit.kind, unit: unit.id, heard };
        let unknown_topics = self.telemetry.unknown_topics();
        StrangersPart {
            strangers: found.into_iter().map(shown).collect(),
            unlisted_heartbeats,
            unknown_topics,
        }
    }
}

/// The query of a URL with these parameters.
pub(super) fn written(wanted: &StrangersQuery) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    let texts = [("kind", &wanted.kind), ("q", &wanted.q), ("cursor", &wanted.cursor)];
    for (name, text) in texts {
        if let Some(text) = text {
            query.append_pair(name, text);
        }
    }
    if let Some(limit) = wanted.limit {
        query.append_pair("limit", &limit.to_string());
    }
    query.finish()
}

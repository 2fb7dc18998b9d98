//! `/api/v1/suggest`: for each kind the timeout that the rhythms of its units suggest, with its expected false alarms
//! and its time to detect a dead unit, beside those of the current timeout.
//!
//! Each instance counts its own units, in one pass over the table in memory; the counts of instances add up.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::PageSources;
use super::http_error::{HttpError, query};
use super::peers::{Peers, is_from_peer};
use super::scans::Scans;
use super::shared_answers::{MaxAge, SharedAnswers};
use super::unit_filter::known_kind;
use crate::clock::{Clock, Timestamp};
use crate::fleet::{Mirror, Roll};
use crate::presence::{CadenceClass, Cadences, Kind};

const PATH: &str = "/api/v1/suggest";

/// The most answers in memory: for all kinds, and for single ones.
const MAX_KEPT: usize = 8;

#[derive(Clone)]
pub(super) struct Suggestions {
    mirror: Arc<Mirror>,
    roll: Arc<Roll>,
    peers: Peers,
    scans: Scans,
    last: SharedAnswers<SuggestedTimeouts>,
    clock: Clock,
}

pub(super) fn page(suggestions: Suggestions) -> Router {
    Router::new().route(PATH, get(suggest)).with_state(suggestions)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SuggestQuery {
    kind: Option<String>,
}

#[derive(Serialize)]
struct SuggestedTimeouts {
    at: Timestamp,
    kinds: Vec<KindCadences>,
    /// The instances whose units are missing.
    incomplete: Vec<String>,
}

#[derive(Serialize)]
struct KindCadences {
    kind: Kind,
    timeout_seconds: f64,
    grace_seconds: f64,
    /// The units with a known rhythm, and those without.
    units: u64,
    learning: u64,
    /// The classes of cadence, shortest intervals first.
    classes: Vec<CadenceClass>,
}

/// The part of one instance.
type CadencePart = Vec<(Kind, Cadences)>;

async fn suggest(
    State(suggestions): State<Suggestions>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let SuggestQuery { kind } = query(&uri)?;
    let kind = kind.map(|kind| known_kind(&kind, &suggestions.mirror)).transpose()?;
    if is_from_peer(&headers) {
        return Ok(Json(suggestions.own_part(kind).await?).into_response());
    }
    let made = suggestions.clone();
    let age = if suggestions.mirror.is_large() { MaxAge::PER_MINUTE } else { MaxAge::EXACT };
    let name = kind.as_ref().map_or(String::new(), Kind::to_string);
    let answer = suggestions.last.get(&name, age, async move { made.suggested(kind).await }).await?;
    Ok(Json(&*answer).into_response())
}

impl Suggestions {
    pub fn new(sources: &PageSources, scans: Scans) -> Suggestions {
        Suggestions {
            mirror: sources.mirror.clone(),
            roll: sources.roll.clone(),
            peers: Peers::new(sources),
            scans,
            last: SharedAnswers::new(MAX_KEPT),
            clock: sources.clock.clone(),
        }
    }

    async fn own_part(&self, kind: Option<Kind>) -> Result<CadencePart, HttpError> {
        let mirror = self.mirror.clone();
        self.scans.run(move || mirror.cadences(kind)).await
    }

    async fn suggested(&self, kind: Option<Kind>) -> Result<SuggestedTimeouts, HttpError> {
        let path = kind.as_ref().map_or(PATH.to_owned(), |kind| format!("{PATH}?kind={kind}"));
        let (own, others) = tokio::join!(self.own_part(kind), self.peers.ask::<CadencePart>(&path));
        let mut kinds: BTreeMap<Kind, Cadences> = BTreeMap::new();
        for (kind, cadences) in others.parts.into_iter().flatten().chain(own?) {
            kinds.entry(kind).or_default().merge(cadences);
        }
        let mut incomplete = others.missing;
        if !self.mirror.is_filled() {
            incomplete.push(self.peers.own_name());
        }
        let rules = self.roll.rules();
        let of_kind = |(kind, cadences): (Kind, Cadences)| {
            let policy = rules.get(&kind)?.policy;
            Some(KindCadences {
                timeout_seconds: policy.timeout.as_secs_f64(),
                grace_seconds: policy.grace.as_secs_f64(),
                units: cadences.units(),
                learning: cadences.learning,
                classes: cadences.classes(policy.timeout, policy.grace),
                kind,
            })
        };
        let kinds = kinds.into_iter().filter_map(of_kind).collect();
        Ok(SuggestedTimeouts { at: self.clock.now(), kinds, incomplete })
    }
}

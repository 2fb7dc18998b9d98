//! `/api/v1/silences`: alert silences with matchers in the notation of routes. The audit notes each change. Clients of
//! Alertmanager find the same alert silences in [`super::alertmanager`].

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use super::body::{end, read};
use super::changes::{self, Caller, HasTokens, MAX_BODY};
use super::coverage::{Asked, CoveredUnits};
use super::http_error::{HttpError, page_limit, query};
use super::peers::is_from_peer;
use super::{PageSources, expressions};
use crate::clock::{Clock, Timestamp};
use crate::fleet::Silences;
use crate::routing::alert_silence::{SilenceRequest, SilenceState, in_order};
use crate::routing::{AlertSilence, SilenceId};

const PATH: &str = "/api/v1/silences";

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// Lists and changes alert silences.
#[derive(Clone)]
pub(super) struct SilencesState {
    silences: Arc<Silences>,
    units: CoveredUnits,
    clock: Clock,
}

pub(super) fn pages(state: SilencesState, has_tokens: HasTokens) -> Router {
    Router::new()
        .route(PATH, get(list).post(add))
        .route("/api/v1/silences/{id}", get(show).put(change).delete(expire))
        .route("/api/v1/silences/{id}/extend", post(extend))
        .route_layer(from_fn_with_state(has_tokens, changes::guard))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(state)
}

/// The query of a URL of alert silences.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SilencesQuery {
    pub state: Option<SilenceState>,
    pub limit: Option<usize>,
    pub cursor: Option<SilenceId>,
}

/// A page of alert silences.
#[derive(Serialize)]
pub(super) struct SilencePage {
    pub silences: Vec<ShownSilence>,
    /// The `cursor` of the next page; `null` on the last.
    pub next: Option<SilenceId>,
}

#[derive(Serialize)]
pub(super) struct ShownSilence {
    pub id: SilenceId,
    pub state: SilenceState,
    /// Matchers, such as `site="north"`.
    pub matchers: Vec<String>,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    pub updated_at: Timestamp,
    pub author: String,
    pub comment: String,
    /// How many units of the fleet the silence covers, offline or not; `null` for an expired silence, and until the
    /// units are counted.
    pub units: Option<u64>,
}

/// The body that adds or changes an alert silence.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PostedSilence {
    matchers: Vec<String>,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
    /// How long the silence lasts, instead of `ends_at`.
    r#for: Option<String>,
    /// The operator of the change; the default is the name of the token.
    author: Option<String>,
    comment: String,
}

/// A later end of an alert silence.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendRequest {
    ends_at: Option<Timestamp>,
    /// How long the silence lasts from now on, instead of `ends_at`.
    r#for: Option<String>,
}

/// The answer to an [`ExtendRequest`].
#[derive(Serialize)]
struct Extended {
    id: SilenceId,
    /// The end that is in force.
    ends_at: Timestamp,
    /// Whether the end was moved; `false` if it is already later, because a silence is never shortened.
    extended: bool,
}

/// The answer to a [`PostedSilence`].
#[derive(Serialize)]
pub(super) struct SilenceInForce {
    /// The id of the alert silence that is in force.
    pub id: SilenceId,
    /// How many units the silence covers, see [`ShownSilence`].
    pub units: Option<u64>,
}

async fn list(
    State(state): State<SilencesState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Json<SilencePage>, HttpError> {
    let wanted = query::<SilencesQuery>(&uri)?;
    let asked = if is_from_peer(&headers) { Asked::ByPeer } else { Asked::At(wanted.path()) };
    Ok(Json(state.page_for(&wanted, &asked).await?))
}

type SilencePath = Result<Path<String>, PathRejection>;

async fn show(
    State(state): State<SilencesState>,
    id: SilencePath,
    headers: HeaderMap,
) -> Result<Json<ShownSilence>, HttpError> {
    let id = silence_id(id)?;
    let (stored, now) = (state.silences.current().await?, state.clock.now());
    let found = stored.iter().find(|silence| silence.id == id);
    let found = found.ok_or_else(|| HttpError::not_found(format!("there is no silence {id}")))?;
    let asked = if is_from_peer(&headers) { Asked::ByPeer } else { Asked::At(format!("{PATH}/{id}")) };
    let units = state.units(&[found], &asked, now).await;
    Ok(Json(ShownSilence::of(found, units.get(&id).copied(), now)))
}

async fn add(
    State(state): State<SilencesState>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<SilenceInForce>), HttpError> {
    let wanted = read::<PostedSilence>(&body?)?.wanted(state.clock.now(), None, &caller).await?;
    Ok((StatusCode::CREATED, Json(state.put(None, wanted, &caller).await?)))
}

async fn change(
    State(state): State<SilencesState>,
    Extension(caller): Extension<Caller>,
    id: SilencePath,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SilenceInForce>, HttpError> {
    let (id, posted) = (silence_id(id)?, read::<PostedSilence>(&body?)?);
    let (stored, now) = (state.silences.current().await?, state.clock.now());
    let before = stored.iter().find(|silence| silence.id == id);
    let lasting = before.filter(|silence| silence.state(now) != SilenceState::Expired);
    let wanted = posted.wanted(now, lasting.map(|silence| silence.starts_at), &caller).await?;
    Ok(Json(state.put(Some(id), wanted, &caller).await?))
}

async fn extend(
    State(state): State<SilencesState>,
    Extension(caller): Extension<Caller>,
    id: SilencePath,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Extended>, HttpError> {
    let (id, wanted, now) = (silence_id(id)?, read::<ExtendRequest>(&body?)?, state.clock.now());
    let wanted = end(("ends_at", wanted.ends_at), wanted.r#for.as_deref(), now)?;
    let ends_at = state.silences.extend(id, wanted, &caller.by(None), now).await?;
    Ok(Json(Extended { id, ends_at, extended: ends_at == wanted }))
}

async fn expire(
    State(state): State<SilencesState>,
    Extension(caller): Extension<Caller>,
    id: SilencePath,
) -> Result<StatusCode, HttpError> {
    state.expire(silence_id(id)?, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl SilencesState {
    pub fn new(sources: &PageSources) -> SilencesState {
        let units = CoveredUnits::new(sources);
        SilencesState { silences: sources.silences.clone(), units, clock: sources.clock.clone() }
    }

    pub async fn page(&self, wanted: &SilencesQuery) -> Result<SilencePage, HttpError> {
        self.page_for(wanted, &Asked::At(wanted.path())).await
    }

    async fn page_for(&self, wanted: &SilencesQuery, asked: &Asked) -> Result<SilencePage, HttpError> {
        let limit = page_limit(wanted.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
        let (stored, now) = (self.silences.current().await?, self.clock.now());
        let mut all = in_order(&stored, now);
        if let Some(cursor) = wanted.cursor {
            let last = all.iter().position(|silence| silence.id == cursor);
            let last = last.ok_or_else(|| HttpError::bad_request("the page before is gone; begin again"))?;
            all.drain(..=last);
        }
        all.retain(|silence| wanted.state.is_none_or(|state| silence.state(now) == state));
        let next = all.get(limit).and_then(|_| all.get(limit - 1)).map(|last| last.id);
        all.truncate(limit);
        let units = self.units(&all, asked, now).await;
        let shown = all.into_iter().map(|one| ShownSilence::of(one, units.get(&one.id).copied(), now));
        Ok(SilencePage { silences: shown.collect(), next })
    }

    /// The number of covered units of each silence that has not expired.
    async fn units(
        &self,
        silences: &[&AlertSilence],
        asked: &Asked,
        now: Timestamp,
    ) -> HashMap<SilenceId, u64> {
        let lasting = silences.iter().filter(|one| one.state(now) != SilenceState::Expired);
        self.units.of(&lasting.copied().collect::<Vec<_>>(), asked).await
    }

    /// Adds an alert silence or, with an id, changes one, and counts the units that it covers. The silence is written
    /// even if the units cannot be counted.
    pub async fn put(
        &self,
        id: Option<SilenceId>,
        wanted: SilenceRequest,
        caller: &Caller,
    ) -> Result<SilenceInForce, HttpError> {
        let by = caller.by(Some(&wanted.author));
        let id = self.silences.put(id, wanted, &by, self.clock.now()).await?;
        Ok(SilenceInForce { id, units: self.units.count(id).await })
    }

    /// Ends an alert silence. An expired silence stays expired, so the request may be repeated.
    pub async fn expire(&self, id: SilenceId, caller: &Caller) -> Result<(), HttpError> {
        self.silences.expire(id, &caller.by(None), self.clock.now()).await?;
        Ok(())
    }
}

impl SilencesQuery {
    fn path(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(format!("{PATH}?"));
        query.append_pair("limit", &self.limit.unwrap_or(DEFAULT_LIMIT).to_string());
        if let Some(state) = self.state {
            query.append_pair("state", state.as_str());
        }
        if let Some(cursor) = self.cursor {
            query.append_pair("cursor", &cursor.to_string());
        }
        query.finish()
    }
}

impl ShownSilence {
    pub fn of(silence: &AlertSilence, units: Option<u64>, now: Timestamp) -> ShownSilence {
        ShownSilence {
            id: silence.id,
            state: silence.state(now),
            matchers: silence.matchers.iter().map(ToString::to_string).collect(),
            starts_at: silence.starts_at,
            ends_at: silence.ends_at,
            updated_at: silence.updated_at,
            author: silence.author.clone(),
            comment: silence.comment.clone(),
            units,
        }
    }
}

impl PostedSilence {
    /// `before`: the beginning of the changed silence, which stays unless the request names another.
    async fn wanted(
        self,
        now: Timestamp,
        before: Option<Timestamp>,
        caller: &Caller,
    ) -> Result<SilenceRequest, HttpError> {
        let starts_at = self.starts_at.or(before).unwrap_or(now);
        // For a silence already in force, the span counts from now on.
        let begin = self.starts_at.unwrap_or(starts_at.max(now));
        let ends_at = end(("ends_at", self.ends_at), self.r#for.as_deref(), begin)?;
        let matchers = expressions::matchers(self.matchers, "matchers").await?;
        let (author, comment) = (self.author.unwrap_or_else(|| caller.operator().to_owned()), self.comment);
        Ok(SilenceRequest { matchers, starts_at, ends_at, author, comment })
    }
}

fn silence_id(id: SilencePath) -> Result<SilenceId, HttpError> {
    let Path(id) = id?;
    id.parse().map_err(|error| HttpError::bad_request(format!("{id:?}: {error}")))
}

//! Heartbeats of devices that have no MQTT: `/ping/{kind}/{unit}` for one, `POST /api/v1/heartbeats` for many.
//!
//! A heartbeat is read as the payload of a message over MQTT, and recorded before it is answered. `/ping/…/fail`
//! announces that the unit is gone: the kind's `presence` says what that is worth. A unit that was never heard, or sleeps, is
//! heard by that first: a job whose first run fails is found like any other, and a unit that wakes and fails sleeps no more.
//!
//! # Why a GET may change something
//! Many devices can only call a URL. A page of another site cannot use it: browsers name the site that a request comes
//! from.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Extension, Router};

use super::changes::{Caller, MAX_BODY};
use super::http_error::HttpError;
use super::operators::UnitPath;
use super::rate_limit::{LimitedClient, RequestLimit, RequestRate, moment};
use super::units::parse;
use super::{Config, DeviceRights, PageSources, Role, Token};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{BodyReader, LastReturn, Refused, Roll, StrangerReason};
use crate::presence::{Heartbeat, NameError, State as UnitState, Unit};
use crate::telemetry::{Rejection, Telemetry};

mod batch;
mod turns;

use turns::Turns;

pub(super) const PATH: &str = "/api/v1/heartbeats";
/// The beginning of the paths of single units.
const PING: &str = "/ping/";
/// A token saves up the heartbeats that it may send within this time.
const SAVED: Duration = Duration::from_secs(10);
const OK: &str = "OK\n";

#[derive(Clone)]
pub(super) struct HeartbeatsState {
    roll: Arc<Roll>,
    bodies: Arc<dyn BodyReader>,
    tokens: Arc<[Token]>,
    sent: Arc<RequestLimit>,
    turns: Turns,
    telemetry: Arc<Telemetry>,
    clock: Clock,
}

pub(super) fn pages(state: HeartbeatsState) -> Router {
    Router::new()
        .route("/api/v1/heartbeats", post(batch::record))
        .route("/ping/{kind}/{unit}", get(alive).post(alive))
        .route("/ping/{kind}/{unit}/start", get(alive).post(alive))
        .route("/ping/{kind}/{unit}/fail", get(fail).post(fail))
        .with_state(state)
}

/// Returns whether a device may call this path.
pub(super) fn is_for_devices(path: &str) -> bool {
    path == PATH || path.starts_with(PING)
}

async fn alive(
    State(state): State<HeartbeatsState>,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    body: Body,
) -> Result<&'static str, HttpError> {
    let unit = state.admitted_unit(&caller, path)?;
    // The content of a body that is too large, or breaks off, is ignored: the unit is alive anyway.
    let body = to_bytes(body, MAX_BODY).await.unwrap_or_default();
    let now = state.clock.now();
    let read = state.bodies.heartbeat(unit.clone(), &body, now);
    let heartbeat = read.map_err(|refused| state.refused(&path_of(&unit), refused))?;
    state.hear(heartbeat, now).await?;
    Ok(OK)
}

async fn fail(
    State(state): State<HeartbeatsState>,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
) -> Result<&'static str, HttpError> {
    let unit = state.admitted_unit(&caller, path)?;
    let now = state.clock.now();
    let read = state.bodies.departure(unit.clone(), now);
    let (first, announced) = read.map_err(|refused| state.refused(&path_of(&unit), refused))?;
    if state.has_to_be_heard(&unit, now).await? {
        state.hear(first, now).await?;
    }
    state.roll.announce(&[announced], || state.clock.now()).await?;
    Ok(OK)
}

/// The reason why a heartbeat of an id counts for no unit.
fn why_not(unit: &Unit, reason: StrangerReason) -> String {
    let kind = &unit.kind;
    match reason {
        StrangerReason::Unregistered => {
            format!("{unit} is not registered, and kind {kind} has a closed registry")
        }
        StrangerReason::Removed => format!("{unit} was removed from the fleet; register it again"),
        StrangerReason::TooManyUnits => format!("kind {kind} has as many units as max_units allows"),
    }
}

impl HeartbeatsState {
    pub fn new(config: &Config, sources: &PageSources) -> HeartbeatsState {
        HeartbeatsState {
            roll: sources.roll.clone(),
            bodies: sources.bodies.clone(),
            tokens: config.tokens.as_slice().into(),
            sent: Arc::new(RequestLimit::open()),
            turns: Turns::default(),
            telemetry: sources.telemetry.clone(),
            clock: sources.clock.clone(),
        }
    }

    /// Records a heartbeat, or answers why it counts for no unit.
    async fn hear(&self, heartbeat: Heartbeat, now: Timestamp) -> Result<(), HttpError> {
        match self.roll.hear(&[heartbeat], now).await?.into_iter().next() {
            Some((unit, reason)) => Err(HttpError::conflict(why_not(&unit, reason))),
            None => Ok(()),
        }
    }

    /// Whether an announcement of the unit would say nothing, because it was never heard, or sleeps.
    async fn has_to_be_heard(&self, unit: &Unit, now: Timestamp) -> Result<bool, HttpError> {
        let wanted = [(unit.clone(), LastReturn::Known(None))];
        let state = self.roll.states(&wanted, now).await?.pop().flatten();
        Ok(state.is_none_or(|one| match one.state {
            UnitState::Offline => false,
            UnitState::Paused => true,
            _ => one.last_seen.is_none(),
        }))
    }

    /// Counts what a request says of a unit and does not count.
    fn refused(&self, path: &str, (reason, why): Refused) -> HttpError {
        self.telemetry.heartbeat_refused(path, reason, &why);
        match reason {
            Rejection::Forbidden => HttpError::forbidden(why),
            _ => HttpError::bad_request(why),
        }
    }

    /// Checks the client and the unit of a request about one unit.
    fn admitted_unit(&self, caller: &Caller, path: UnitPath) -> Result<Unit, HttpError> {
        let rights = self.admit(caller)?;
        let not_read = |error: PathRejection| {
            self.telemetry.heartbeat_refused(PING, Rejection::BadUnit, &error.body_text());
            HttpError::from(error)
        };
        let Path((kind, id)) = path.map_err(not_read)?;
        let bad = |error: NameError| {
            self.refused(&format!("{PING}{kind}/{id}"), (Rejection::BadUnit, error.to_string()))
        };
        let unit = parse(&kind, &id).map_err(bad)?;
        match rights.is_none_or(|rights| rights.allow(&unit)) {
            true => Ok(unit),
            false => Err(self.refused(&path_of(&unit), (Rejection::Forbidden, not_of(&unit)))),
        }
    }

    /// Refuses a client that may not send heartbeats, or has to wait, and counts its request as a heartbeat, whatever it
    /// says. Returns the rights of a device; `None` for a client that may send for all units.
    fn admit(&self, caller: &Caller) -> Result<Option<&DeviceRights>, HttpError> {
        if caller.is_foreign() {
            return Err(HttpError::forbidden("a page of another site may not send heartbeats"));
        }
        if caller.role() != Role::Device {
            caller.require(Role::Operator)?;
            return Ok(None);
        }
        let is_own = |token: &&Token| token.role == Role::Device && token.name == caller.token_name();
        let Some(token) = self.tokens.iter().find(is_own) else {
            return Err(HttpError::forbidden("this device has no token"));
        };
        let rights = &token.device;
        if let Some((client, rate)) = limit(caller, rights) {
            self.sent.count(client, rate, moment(self.clock.now())).map_err(|wait| {
                let most = rights.heartbeats_per_second;
                let detail = format!(
                    "this token may send {most} heartbeats a second (heartbeats_per_second); try again later"
                );
                self.telemetry.heartbeat_refused(caller.token_name(), Rejection::RateLimited, &detail);
                HttpError::too_many_requests(detail, wait)
            })?;
        }
        Ok(Some(rights))
    }

    /// Counts heartbeats of a request beside its first one.
    fn count_more(&self, caller: &Caller, rights: Option<&DeviceRights>, heartbeats: usize) {
        if let Some((client, rate)) = rights.and_then(|rights| limit(caller, rights)) {
            self.sent.take(client, rate, moment(self.clock.now()), heartbeats);
        }
    }
}

/// The client whose heartbeats are counted, and its limit; `None` if there is no limit.
fn limit(caller: &Caller, rights: &DeviceRights) -> Option<(LimitedClient, RequestRate)> {
    let rate = RequestRate::per_second(rights.heartbeats_per_second, SAVED)?;
    Some((LimitedClient::Named(caller.token_name().to_owned()), rate))
}

fn path_of(unit: &Unit) -> String {
    format!("{PING}{}/{}", unit.kind, unit.id)
}

fn not_of(unit: &impl Display) -> String {
    format!("this token may not send heartbeats of {unit}")
}

//! `POST /api/v1/heartbeats`: many heartbeats, as a JSON array or as lines, with an answer for each. The body is read
//! as it arrives and recorded in steps; the answer comes after the last step. No heartbeat waits long for the next one:
//! a client may send what it hears as it hears it, and what is not recorded is not heard.
//!
//! A client may send a batch that ended early again as a whole: recording a heartbeat twice is harmless.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout_at;

use super::turns::{MOST, MOST_OF_ONE};
use super::{HeartbeatsState, PATH, PING, not_of, why_not};
use crate::cause;
use crate::clock::{Timestamp, monotonic};
use crate::fleet::{Refused, StrangerReason};
use crate::http::DeviceRights;
use crate::http::changes::Caller;
use crate::http::entries::{BatchEntry, MAX_ENTRY};
use crate::http::entry_answers::{EntryAnswers, in_time, reason};
use crate::http::entry_body::{EntryBody, NextEntries};
use crate::http::http_error::HttpError;
use crate::http::units::parse;
use crate::presence::{Heartbeat, MAX_ID, Unit};
use crate::store::{EngineError, Result};
use crate::telemetry::Rejection;

/// The most heartbeats of a request.
const MAX_HEARTBEATS: usize = 100_000;
/// The number of heartbeats after which a step is recorded.
const STEP: usize = 1000;
/// The longest that the first heartbeat of a step waits for further ones.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// The fields that name the unit of a heartbeat; the others are those of a payload.
#[derive(Deserialize)]
struct EntryUnit<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    unit: Cow<'a, str>,
}

/// The answer to a heartbeat.
#[derive(Serialize)]
struct EntryAnswer<'a> {
    kind: Option<&'a str>,
    unit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// A heartbeat that does not count.
struct BadEntry {
    said: SaidUnit,
    refused: Refused,
}

/// The unit that a heartbeat names, where it can be read and as it stands there: that may be no name. Cut after the
/// length of an id, because answers are kept in memory.
#[derive(Default)]
struct SaidUnit {
    kind: Option<String>,
    unit: Option<String>,
}

impl SaidUnit {
    fn of(json: &[u8]) -> SaidUnit {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Said {
            kind: Value,
            unit: Value,
        }
        let Said { kind, unit } = serde_json::from_slice(json).unwrap_or_default();
        let text = |value: Value| {
            let text = value.as_str()?;
            Some(text[..text.floor_char_boundary(MAX_ID)].to_owned())
        };
        SaidUnit { kind: text(kind), unit: text(unit) }
    }

    fn texts(&self) -> (Option<&str>, Option<&str>) {
        (self.kind.as_deref(), self.unit.as_deref())
    }
}

/// The answers so far, and the heartbeats that wait to be recorded.
#[derive(Default)]
struct HeartbeatBatch {
    /// The entries of this step, in order.
    step: Vec<std::result::Result<Heartbeat, BadEntry>>,
    /// When the step began to wait; `None`: it is empty.
    waits_since: Option<Instant>,
    entries: usize,
    answers: EntryAnswers,
    recorded: u64,
    refused: u64,
}

pub(super) async fn record(
    State(state): State<HeartbeatsState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> std::result::Result<Response, HttpError> {
    let rights = state.admit(&caller)?;
    let body = EntryBody::new(&headers, body)?;
    let Some(_turn) = state.turns.take(caller.token_name()) else {
        let detail =
            format!("{MOST_OF_ONE} batches of this token are being read, or {MOST} of all; try again later");
        return Err(HttpError::unavailable(detail));
    };
    let mut batch = HeartbeatBatch::default();
    let read = in_time(state.read(body, (&caller, rights), &mut batch), "heartbeats").await;
    // Also if the rest broke off or cannot be read: the units of this step are alive.
    let recorded = state.record(&mut batch).await.map_err(HttpError::from);
    match read.and(recorded) {
        Ok(()) => {
            let counts = [("recorded", batch.recorded), ("refused", batch.refused)];
            Ok(batch.answers.response(&counts, "heartbeats"))
        }
        Err(problem) => Err(batch.answers.with(problem)),
    }
}

impl HeartbeatsState {
    /// Reads a body to its end, and records each step that is full or waited for long. The last step is left.
    async fn read(
        &self,
        mut body: EntryBody,
        (caller, rights): (&Caller, Option<&DeviceRights>),
        batch: &mut HeartbeatBatch,
    ) -> std::result::Result<(), HttpError> {
        loop {
            let Some(NextEntries { entries, end }) = batch.next(&mut body).await? else {
                self.record(batch).await?;
                continue;
            };
            let now = self.clock.now();
            let counted = usize::from(batch.entries == 0);
            self.count_more(caller, rights, entries.len().saturating_sub(counted));
            for entry in entries {
                batch.answers.has_room()?;
                if batch.entries == MAX_HEARTBEATS {
                    return Err(HttpError::too_large(format!(
                        "a batch has at most {MAX_HEARTBEATS} heartbeats; send the others in another request"
                    )));
                }
                batch.entries += 1;
                batch.step.push(self.entry(entry, rights, now));
                batch.waits_since.get_or_insert_with(monotonic);
                if batch.step.len() >= STEP {
                    self.record(batch).await?;
                }
            }
            if let Some(end) = end {
                return end.map_err(HttpError::bad_request);
            }
        }
    }

    fn entry(
        &self,
        entry: BatchEntry,
        rights: Option<&DeviceRights>,
        now: Timestamp,
    ) -> std::result::Result<Heartbeat, BadEntry> {
        let json = entry.map_err(|_| {
            let why = format!("a heartbeat has at most {MAX_ENTRY} bytes of JSON");
            BadEntry { said: SaidUnit::default(), refused: (Rejection::Unreadable, why) }
        })?;
        let read = self.heartbeat(&json, rights, now);
        read.map_err(|refused| BadEntry { said: SaidUnit::of(&json), refused })
    }

    fn heartbeat(
        &self,
        json: &[u8],
        rights: Option<&DeviceRights>,
        now: Timestamp,
    ) -> std::result::Result<Heartbeat, Refused> {
        let unreadable = |why: String| (Rejection::Unreadable, why);
        if json.trim_ascii_start().first() != Some(&b'{') {
            return Err(unreadable("a heartbeat is an object with kind and unit".to_owned()));
        }
        let read: EntryUnit = cause::json::read(json).map_err(unreadable)?;
        let unit = parse(&read.kind, &read.unit).map_err(|error| (Rejection::BadUnit, error.to_string()))?;
        if rights.is_some_and(|rights| !rights.allow(&unit)) {
            return Err((Rejection::Forbidden, not_of(&unit)));
        }
        self.bodies.heartbeat(unit, json, now)
    }

    /// Records the heartbeats of the step, and adds the answers to its entries.
    async fn record(&self, batch: &mut HeartbeatBatch) -> Result<()> {
        let step = std::mem::take(&mut batch.step);
        batch.waits_since = None;
        let heartbeats: Vec<Heartbeat> = step.iter().flatten().cloned().collect();
        let now = self.clock.now();
        let mut refused: HashMap<Unit, String> = HashMap::new();
        let text = |(unit, reason): (Unit, StrangerReason)| {
            let why = why_not(&unit, reason);
            (unit, why)
        };
        match self.roll.hear(&heartbeats, now).await {
            Ok(strangers) => refused.extend(strangers.into_iter().map(text)),
            // A unit whose stored state cannot be read delays no other unit.
            Err(EngineError::Damaged(_)) => {
                for one in heartbeats.chunks(1) {
                    match self.roll.hear(one, now).await {
                        Err(EngineError::Damaged(why)) => drop(refused.insert(one[0].unit.clone(), why)),
                        heard => refused.extend(heard?.into_iter().map(text)),
                    }
                }
            }
            Err(error) => return Err(error),
        }
        for entry in &step {
            match entry {
                Ok(Heartbeat { unit, .. }) => {
                    let said = (Some(unit.kind.as_str()), Some(unit.id.as_str()));
                    batch.answer(said, refused.get(unit).map(String::as_str));
                }
                Err(BadEntry { said, refused: (reason, why) }) => {
                    let path = match said.texts() {
                        (Some(kind), Some(unit)) => format!("{PING}{kind}/{unit}"),
                        _ => PATH.to_owned(),
                    };
                    self.telemetry.heartbeat_refused(&path, *reason, why);
                    batch.answer(said.texts(), Some(why));
                }
            }
        }
        Ok(())
    }
}

impl HeartbeatBatch {
    /// The next entries; `None` if the step has waited for them long enough.
    async fn next(&self, body: &mut EntryBody) -> std::result::Result<Option<NextEntries>, HttpError> {
        match self.waits_since {
            None => body.next().await.map(Some),
            // Cancel-safe: nothing of a body is taken before it is there.
            Some(since) => match timeout_at((since + MAX_WAIT).into(), body.next()).await {
                Ok(next) => next.map(Some),
                Err(_) => Ok(None),
            },
        }
    }

    fn answer(&mut self, (kind, unit): (Option<&str>, Option<&str>), error: Option<&str>) {
        match error {
            Some(_) => self.refused += 1,
            None => self.recorded += 1,
        }
        self.answers.add(&EntryAnswer { kind, unit, error: error.map(reason) });
    }
}

//! `/api/v1/units:import`: registers the units of an inventory, and with `replace` removes all others.
//!
//! # Why the body waits in a file
//! An import may have to take all lines or none, so each line is checked before the first is written. The inventory of
//! a large fleet does not belong in memory, so it waits in a file without a name, which is read twice. After the checks
//! the import runs to its end, even if the client disconnects; repeating it changes nothing more.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::post;
use axum::{Extension, Json, Router};
use futures_util::StreamExt;
use futures_util::stream::{self, TryStreamExt};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::{timeout, timeout_at};

use super::changes::{self, Caller, HasTokens};
use super::entry_body::{is_lines_of_json, media_type};
use super::http_error::{HttpError, query};
use super::unit_filter::known_kind;
use super::{PageSources, Role};
use crate::clock::Clock;
use crate::fleet::coverage::pages;
use crate::fleet::{Mirror, Registered, Roll, Silences};
use crate::presence::{Kind, Snapshot, Unit, UnitSettings};
use crate::store::{AuditEntry, Audited, EngineError, MAX_STEP, Queries};

mod lines;
mod uploads;

use lines::{Checks, ImportFormat, ImportLine};
use uploads::{UploadPace, Uploads};

pub(super) const PATH: &str = "/api/v1/units:import";

/// The largest inventory, in bytes.
const MAX_UPLOAD: u64 = 1 << 30;
/// How long an import whose body has arrived waits for another import.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The most bad lines, and the most changes of a dry run, that an answer lists.
const LISTED: usize = 100;
/// The steps that are written at once; a unit is in one step only.
const STEPS_AT_ONCE: usize = 4;

#[derive(Clone)]
pub(super) struct ImportState {
    roll: Arc<Roll>,
    queries: Arc<dyn Queries>,
    mirror: Arc<Mirror>,
    silences: Arc<Silences>,
    clock: Clock,
    uploads: Uploads,
    /// One import at a time.
    turn: Arc<Semaphore>,
}

pub(super) fn page(state: ImportState, has_tokens: HasTokens) -> Router {
    Router::new()
        .route(PATH, post(import))
        .route_layer(from_fn_with_state(has_tokens, changes::guard_without_body))
        .with_state(state)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportQuery {
    /// The kind of lines that name no kind; lines of other kinds are bad.
    kind: Option<String>,
    /// Changes nothing, and only answers with the changes that an import would make.
    #[serde(default)]
    dry_run: bool,
    /// Removes the units that the inventory does not name; with `kind`, only units of that kind.
    #[serde(default)]
    replace: bool,
    /// Removes them even if they are more than half of the units.
    #[serde(default)]
    force: bool,
    #[serde(default)]
    bad_lines: BadLines,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BadLines {
    /// A single bad line makes the import change nothing.
    #[default]
    Refuse,
    /// Bad lines are left out, and the good lines are imported.
    Skip,
}

/// The effect of an import; with `dry_run`, the effect that it would have.
#[derive(Default, Serialize)]
struct Outcome {
    dry_run: bool,
    lines: u64,
    new: u64,
    changed: u64,
    same: u64,
    removed: u64,
    bad_lines: u64,
    /// The first bad lines, up to [`LISTED`].
    bad: Vec<BadLine>,
    /// The first changes, up to [`LISTED`]; only in a dry run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<PlannedChange>,
}

#[derive(Serialize)]
struct BadLine {
    line: u64,
    problem: String,
}

#[derive(Serialize)]
struct PlannedChange {
    kind: Kind,
    unit: String,
    /// `new`, `changed` or `removed`.
    change: &'static str,
}

/// A unique number of a unit: it takes less memory than the name.
type UnitNumber = [u8; 16];

/// An inventory whose lines were checked.
struct Inventory {
    file: File,
    format: ImportFormat,
    checks: Checks,
    units: HashSet<UnitNumber>,
    outcome: Outcome,
}

async fn import(
    State(state): State<ImportState>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Outcome>, HttpError> {
    caller.require(Role::Admin)?;
    let wanted: ImportQuery = query(&uri)?;
    let format = format_of(&headers)?;
    let kind = wanted.kind.as_deref().map(|kind| known_kind(kind, &state.mirror)).transpose()?;
    if wanted.replace && wanted.bad_lines == BadLines::Skip {
        return Err(HttpError::bad_request("replace needs bad_lines=refuse"));
    }
    let busy = || HttpError::unavailable("another import is under way; try again later");
    let uploading = state.uploads.begin(caller.token_name()).ok_or_else(|| {
        HttpError::unavailable(
            "this token already sends an inventory, or too many others do; try again later",
        )
    })?;
    let file = received(body).await?;
    drop(uploading);
    // The whole body has arrived, so a slow client cannot prolong its turn.
    let turn = timeout(MAX_WAIT, state.turn.clone().acquire_owned()).await.map_err(|_| busy())?;
    let turn = turn.map_err(|_| busy())?;
    let rules = state.roll.rules();
    let kinds = rules.values().map(|rules| (rules.kind.clone(), rules.name.clone())).collect();
    let checks = Checks { kinds, kind, now: state.clock.now() };
    let checked = spawn_blocking(move || Inventory::checked(file, format, checks)).await;
    let inventory = checked.map_err(|error| HttpError::internal(error.to_string()))??;
    let Outcome { lines, bad_lines, bad, .. } = &inventory.outcome;
    if *bad_lines > 0 && wanted.bad_lines == BadLines::Refuse && !wanted.dry_run {
        let first =
            bad.first().map(|bad| format!(", first line {}: {}", bad.line, bad.problem)).unwrap_or_default();
        let detail = format!("{bad_lines} of {lines} lines are bad{first}; nothing was changed");
        return Err(HttpError::unprocessable(detail, ("bad", json!(bad))));
    }
    if wanted.replace && inventory.units.is_empty() {
        return Err(HttpError::bad_request("an inventory without units would remove the whole fleet"));
    }
    let author = caller.by(None);
    let written = tokio::spawn(async move { state.write(inventory, &wanted, author, turn).await }).await;
    Ok(Json(written.map_err(|error| HttpError::internal(error.to_string()))??))
}

fn format_of(headers: &HeaderMap) -> Result<ImportFormat, HttpError> {
    match &*media_type(headers) {
        "text/csv" => Ok(ImportFormat::Csv),
        media if is_lines_of_json(media) => Ok(ImportFormat::Ndjson),
        _ => Err(HttpError::unsupported_media_type(
            "send NDJSON or CSV, with content-type: application/x-ndjson or text/csv",
        )),
    }
}

/// Writes the body to a file without a name, which disappears with its last user.
async fn received(body: Body) -> Result<File, HttpError> {
    let unwritable = |error: io::Error| {
        let folder = std::env::temp_dir();
        HttpError::unavailable(format!("the inventory cannot be written to {}: {error}", folder.display()))
    };
    let mut file = spawn_blocking(tempfile::tempfile).await.map_err(io::Error::other).and_then(|file| file);
    let mut body = body.into_data_stream();
    let (mut length, pace) = (0, UploadPace::begin());
    loop {
        let Ok(chunk) = timeout_at(pace.deadline(length).into(), body.next()).await else {
            return Err(HttpError::bad_request(UploadPace::TOO_SLOW));
        };
        let Some(chunk) = chunk else { return file.map_err(unwritable) };
        let chunk =
            chunk.map_err(|error| HttpError::bad_request(format!("the body ended early: {error}")))?;
        length += chunk.len() as u64;
        if length > MAX_UPLOAD {
            let detail = format!("an inventory has at most {MAX_UPLOAD} bytes; import it in parts");
            return Err(HttpError::too_large(detail));
        }
        let mut open = file.map_err(unwritable)?;
        let written = spawn_blocking(move || open.write_all(&chunk).map(|()| open)).await;
        file = written.map_err(io::Error::other).and_then(|file| file);
    }
}

impl Inventory {
    /// Checks every line.
    fn checked(mut file: File, format: ImportFormat, checks: Checks) -> Result<Inventory, HttpError> {
        let (mut units, mut outcome) = (HashSet::new(), Outcome::default());
        let read = lines::read(&mut file, format, &checks, |ImportLine { number, entry }| {
            outcome.lines += 1;
            let entry = entry.and_then(|(unit, _)| {
                let is_first = units.insert(number_of(&unit));
                if is_first { Ok(()) } else { Err(format!("{unit} is on an earlier line too")) }
            });
            if let Err(problem) = entry {
                outcome.bad_lines += 1;
                if outcome.bad.len() < LISTED {
                    outcome.bad.push(BadLine { line: number, problem });
                }
            }
            true
        });
        match read {
            Ok(()) => Ok(Inventory { file, format, checks, units, outcome }),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(HttpError::bad_request(error.to_string()))
            }
            Err(error) => Err(HttpError::internal(format!("the inventory cannot be read: {error}"))),
        }
    }
}

fn number_of(unit: &Unit) -> UnitNumber {
    let digest = digest(&SHA256, unit.to_string().as_bytes());
    let mut number = UnitNumber::default();
    number.copy_from_slice(&digest.as_ref()[..16]);
    number
}

impl ImportState {
    pub fn new(sources: &PageSources) -> ImportState {
        let PageSources { roll, records, mirror, silences, clock, .. } = sources.clone();
        ImportState {
            roll,
            queries: records,
            mirror,
            silences,
            clock,
            uploads: Uploads::default(),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    async fn write(
        &self,
        inventory: Inventory,
        wanted: &ImportQuery,
        author: String,
        _turn: OwnedSemaphorePermit,
    ) -> Result<Outcome, HttpError> {
        let Inventory { mut file, format, checks, units, mut outcome } = inventory;
        let kind = checks.kind.clone();
        outcome.dry_run = wanted.dry_run;
        let others = match wanted.replace {
            true => self.others(&units, kind.as_ref()).await?,
            false => UnlistedUnits::default(),
        };
        if others.are_many() && !wanted.dry_run && !wanted.force {
            return Err(HttpError::conflict(format!(
                "replace would remove {others}, more than half; nothing was changed. If that is meant, add force=true"
            )));
        }
        if !wanted.dry_run {
            let mut text = format!("{} lines, {} of them bad", outcome.lines, outcome.bad_lines);
            if wanted.replace {
                text += &format!("; removes {others}");
            }
            let subject = kind.as_ref().map_or_else(|| "all kinds".to_owned(), Kind::to_string);
            let change = Audited::InventoryImported;
            let at = self.clock.now();
            self.silences.note(&AuditEntry { at, author, change, subject, text }).await?;
        }
        let (sender, mut steps) = mpsc::channel(STEPS_AT_ONCE);
        let reading = spawn_blocking(move || read_steps(&mut file, format, &checks, &sender));
        let steps = stream::poll_fn(|context| steps.poll_recv(context));
        let written = steps.map(|step: Vec<(Unit, UnitSettings)>| async move {
            let effects = self.roll.register_all(&step, wanted.dry_run, self.clock.now()).await?;
            Ok::<_, EngineError>((step, effects))
        });
        let mut written = written.buffered(STEPS_AT_ONCE);
        while let Some((step, effects)) = written.try_next().await? {
            for ((unit, _), effect) in step.into_iter().zip(effects) {
                outcome.count(unit, effect);
            }
        }
        let read = reading.await.map_err(|error| HttpError::internal(error.to_string()))?;
        read.map_err(|error| HttpError::internal(format!("the inventory cannot be read: {error}")))?;
        if wanted.replace {
            self.remove_others(&units, kind.as_ref(), &mut outcome).await?;
        }
        Ok(outcome)
    }

    /// Counts the units that an inventory does not name.
    async fn others(
        &self,
        named: &HashSet<UnitNumber>,
        kind: Option<&Kind>,
    ) -> Result<UnlistedUnits, HttpError> {
        let (mut pages, mut others) = (std::pin::pin!(pages(self.queries.clone())), UnlistedUnits::default());
        while let Some(page) = pages.try_next().await? {
            for seen in page.iter().filter(|seen| is_meant(seen, kind)) {
                others.of += 1;
                others.removed += u64::from(!named.contains(&number_of(&seen.unit)));
            }
        }
        Ok(others)
    }

    /// Removes the units that an inventory does not name.
    async fn remove_others(
        &self,
        named: &HashSet<UnitNumber>,
        kind: Option<&Kind>,
        outcome: &mut Outcome,
    ) -> Result<(), HttpError> {
        let mut pages = std::pin::pin!(pages(self.queries.clone()));
        while let Some(mut page) = pages.try_next().await? {
            page.retain(|seen| is_meant(seen, kind) && !named.contains(&number_of(&seen.unit)));
            if outcome.dry_run {
                page.iter().for_each(|seen| outcome.plan(seen.unit.clone(), "removed"));
            }
            outcome.removed += self.roll.retire_all(page, outcome.dry_run, self.clock.now()).await? as u64;
        }
        Ok(())
    }
}

/// Before an import writes: the units that it does not name, and all units that it could name.
#[derive(Default)]
struct UnlistedUnits {
    removed: u64,
    of: u64,
}

impl UnlistedUnits {
    /// Returns whether the import would remove so many units that the inventory is probably the wrong one.
    fn are_many(&self) -> bool {
        self.removed * 2 > self.of
    }
}

impl fmt::Display for UnlistedUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} units", self.removed, self.of)
    }
}

/// Returns whether an inventory (of this kind, or of all kinds) could name the unit.
fn is_meant(seen: &Snapshot, kind: Option<&Kind>) -> bool {
    kind.is_none_or(|kind| *kind == seen.unit.kind) && !seen.unit.id.is_reserved() && seen.is_known()
}

/// Sends the units of the good lines to `steps`, each once, until the channel is closed.
fn read_steps(
    file: &mut File,
    format: ImportFormat,
    checks: &Checks,
    steps: &mpsc::Sender<Vec<(Unit, UnitSettings)>>,
) -> io::Result<()> {
    let (mut step, mut known) = (Vec::with_capacity(MAX_STEP), HashSet::new());
    lines::read(file, format, checks, |ImportLine { entry, .. }| {
        let Ok((unit, settings)) = entry else { return true };
        if !known.insert(number_of(&unit)) {
            return true;
        }
        step.push((unit, settings));
        step.len() < MAX_STEP || steps.blocking_send(std::mem::take(&mut step)).is_ok()
    })?;
    if !step.is_empty() {
        // Without a receiver the import has failed already.
        let _ = steps.blocking_send(step);
    }
    Ok(())
}

impl Outcome {
    fn count(&mut self, unit: Unit, effect: Registered) {
        match effect {
            Registered::New => self.new += 1,
            Registered::Changed => self.changed += 1,
            Registered::Same => self.same += 1,
            // A reload has meanwhile removed the kind from the configuration.
            Registered::Unknown | Registered::TooManyLabels => self.bad_lines += 1,
        }
        match effect {
            Registered::New => self.plan(unit, "new"),
            Registered::Changed => self.plan(unit, "changed"),
            Registered::Same | Registered::Unknown | Registered::TooManyLabels => {}
        }
    }

    fn plan(&mut self, unit: Unit, change: &'static str) {
        if self.dry_run && self.changes.len() < LISTED {
            self.changes.push(PlannedChange { kind: unit.kind, unit: unit.id.to_string(), change });
        }
    }
}

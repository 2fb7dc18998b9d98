//! `/probe?unit=KIND:ID`: the metrics of one unit, as the engine holds it now.
//!
//! For a close watch over a few units: Prometheus scrapes a unit by name from any instance, as it scrapes a target
//! through a blackbox exporter.

use std::io::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Uri};
use axum::response::IntoResponse;
use axum::routing::get;
use serde::Deserialize;

use super::exposition::{ExpositionFormat, Family};
use super::http_error::{HttpError, query};
use super::unit_metrics::text::{LAST_SEEN, UP, is_up, write_moment, write_value};
use crate::clock::Clock;
use crate::fleet::Roll;
use crate::presence::{self, Unit};
use crate::store::{Catalogue, DataStore, UnitStore};

const DEADLINE: Family = Family::gauge(
    "rollcall_unit_deadline_timestamp_seconds",
    "When the unit becomes offline unless it is heard before, or became offline.",
);
const STATE: Family = Family::gauge("rollcall_unit_state", "1 for the state that the unit is in.");

#[derive(Clone)]
pub(super) struct ProbePage {
    pub units: Arc<dyn UnitStore>,
    pub values: Arc<dyn DataStore>,
    pub roll: Arc<Roll>,
    pub clock: Clock,
    pub metrics: Arc<Catalogue>,
}

pub(super) fn page(state: ProbePage) -> Router {
    Router::new().route("/probe", get(probe)).with_state(state)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbeQuery {
    unit: String,
}

async fn probe(
    State(state): State<ProbePage>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<impl IntoResponse, HttpError> {
    let ProbeQuery { unit } = query(&uri)?;
    // An id has no slash, so a slash can only separate kind and id.
    let unit: Unit = unit
        .replacen('/', ":", 1)
        .parse()
        .map_err(|error| HttpError::bad_request(format!("unit {unit:?}: {error}")))?;
    let format = ExpositionFormat::accepted(&headers);
    let text = state.text(&unit, format).await?;
    let text = text.ok_or_else(|| HttpError::not_found(format!("there is no unit {unit}")))?;
    Ok(([(CONTENT_TYPE, format.content_type())], text))
}

impl ProbePage {
    /// The metrics of a unit; `None` if it is unknown or was removed.
    async fn text(&self, unit: &Unit, format: ExpositionFormat) -> Result<Option<Vec<u8>>, HttpError> {
        let Some(rules) = self.roll.shared_rules().of(unit.kind.as_str()) else { return Ok(None) };
        let Some(seen) = self.units.read(std::slice::from_ref(unit)).await?.into_iter().next() else {
            return Ok(None);
        };
        let (hearing, now) = (self.roll.hearing(), self.clock.now());
        let Some(state) = presence::state(&seen, &rules, &hearing, now) else { return Ok(None) };
        let (kind, id) = (unit.kind.as_str(), unit.id.as_str());
        let mut out = Vec::new();
        let sample = |out: &mut Vec<u8>, family: &Family| {
            family.begin(out, format);
            family.sample(out, kind, id, None);
        };
        sample(&mut out, &UP);
        let _ = writeln!(out, "{}", u8::from(is_up(state)));
        if let Some(last_seen) = seen.last_heard() {
            sample(&mut out, &LAST_SEEN);
            write_moment(&mut out, last_seen);
        }
        if let Some(deadline) = presence::deadline(&seen, &rules, &hearing) {
            sample(&mut out, &DEADLINE);
            write_moment(&mut out, deadline);
        }
        STATE.begin(&mut out, format);
        for one in presence::State::ALL {
            STATE.sample(&mut out, kind, id, Some(("state", one.as_str())));
            let _ = writeln!(out, "{}", u8::from(one == state));
        }
        self.write_values(&mut out, unit, format).await?;
        out.extend_from_slice(format.end());
        Ok(Some(out))
    }

    async fn write_values(
        &self,
        out: &mut Vec<u8>,
        unit: &Unit,
        format: ExpositionFormat,
    ) -> Result<(), HttpError> {
        let metrics = self.metrics.of(&unit.kind);
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        let values = self.values.values(unit, &names).await?;
        for (metric, value) in metrics.iter().zip(values) {
            let Some(value) = value else { continue };
            let mut sample = Vec::new();
            if write_value(&mut sample, metric, &unit.to_string(), &value.text) {
                Family::of(metric).begin(out, format);
                out.extend_from_slice(&sample);
            }
        }
        Ok(())
    }
}

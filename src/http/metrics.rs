//! `/metrics`: the metrics of Rollcall, with the counts of units from [`UnitCounts`].

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus::TextEncoder;

use super::counts::UnitCounts;
use super::exposition::ExpositionFormat;
use super::http_error::HttpError;
use crate::clock::Clock;
use crate::fleet::Mirror;
use crate::fleet::mirror::{UnitSummary, WINDOWS};
use crate::presence;
use crate::telemetry::Telemetry;

#[derive(Clone)]
struct MetricsState {
    mirror: Arc<Mirror>,
    counts: UnitCounts,
    telemetry: Arc<Telemetry>,
    clock: Clock,
}

pub(super) fn page(
    mirror: Arc<Mirror>,
    counts: UnitCounts,
    telemetry: Arc<Telemetry>,
    clock: Clock,
) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(MetricsState {
        mirror,
        counts,
        telemetry,
        clock,
    })
}

async fn metrics(State(state): State<MetricsState>) -> Result<impl IntoResponse, HttpError> {
    let text = state.text(&*state.counts.units(state.counts.age()).await?)?;
    Ok(([(CONTENT_TYPE, ExpositionFormat::Text.content_type())], text))
}

impl MetricsState {
    fn text(&self, summary: &UnitSummary) -> Result<String, HttpError> {
        let kinds =
            summary.kinds.iter().zip(&summary.silent_since).zip(&summary.archived).zip(&summary.unusual);
        for ((((kind, states), silent_since), archived), unusual) in kinds {
            self.telemetry.silent_since(kind.as_str(), *silent_since);
            self.telemetry.units_archived(kind.as_str(), *archived);
            self.telemetry.units_unusual(kind.as_str(), *unusual);
            for (state, count) in presence::State::ALL.into_iter().zip(states) {
                self.telemetry.units(kind.as_str(), state.as_str(), *count);
            }
        }
        let within = WINDOWS.into_iter().zip(summary.seen_within);
        self.telemetry.silences(within, summary.heard, summary.silence);
        self.telemetry.units_by_label(summary.labels.clone());
        self.telemetry.mirror_age(self.mirror.age(self.clock.now()));
        TextEncoder::new()
            .encode_to_string(&self.telemetry.gather())
            .map_err(|error| HttpError::internal(format!("metrics cannot be written: {error}")))
    }
}

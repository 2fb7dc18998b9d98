//! `/api/v1/units/{kind}/{unit}/rhythm`: how often a unit is usually heard, and whether its silence is unusual.
//!
//! The owner of a unit has its rhythm. Other instances request it from the owner.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::PageSources;
use super::http_error::HttpError;
use super::peers::{Peers, is_from_peer};
use crate::clock::{Clock, Timestamp, shown_span};
use crate::fleet::mirror::UnitRhythm;
use crate::fleet::{Mirror, Roll};
use crate::pages;
use crate::presence::{NameError, Rhythm, Unit};
use crate::store::{UnitStore, partition_of};

/// Reads the rhythms of single units. Cheap to share.
#[derive(Clone)]
pub(super) struct Rhythms {
    mirror: Arc<Mirror>,
    units: Arc<dyn UnitStore>,
    roll: Arc<Roll>,
    peers: Peers,
    clock: Clock,
}

pub(super) fn page(rhythms: Rhythms) -> Router {
    Router::new().route("/api/v1/units/{kind}/{unit}/rhythm", get(rhythm)).with_state(rhythms)
}

/// The rhythm of a unit, as far as it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ShownRhythm {
    /// How many intervals were learned, at most 255; and how many are needed.
    pub intervals: u8,
    pub intervals_needed: u8,
    /// The usual interval between two heartbeats; `null` until the rhythm is known, like the next two.
    pub usual_seconds: Option<f64>,
    /// How far an interval is from the usual one, on average.
    pub spread_seconds: Option<f64>,
    /// The longest interval in memory.
    pub longest_seconds: Option<f64>,
    /// The longest silence that is not unusual.
    pub allows_seconds: Option<f64>,
    /// Since when the silence of the unit is unusual; `null` if it is not.
    pub unusual_since: Option<Timestamp>,
}

impl From<UnitRhythm> for ShownRhythm {
    fn from(UnitRhythm { rhythm, unusual_since }: UnitRhythm) -> ShownRhythm {
        let known = Some(rhythm).filter(|rhythm| rhythm.is_known());
        let seconds = |of: fn(&Rhythm) -> Duration| known.as_ref().map(|known| of(known).as_secs_f64());
        let (intervals, intervals_needed) = rhythm.progress();
        ShownRhythm {
            intervals,
            intervals_needed,
            usual_seconds: seconds(Rhythm::usual),
            spread_seconds: seconds(Rhythm::spread),
            longest_seconds: seconds(Rhythm::longest),
            allows_seconds: rhythm.allows().map(|allows| allows.as_secs_f64()),
            unusual_since,
        }
    }
}

impl ShownRhythm {
    /// The rhythm in words, and how long the unit has been silent if that is unusual; `None` before it is known.
    /// `silence`: the time since the last heartbeat.
    pub fn sentence(&self, silence: Duration) -> Option<String> {
        let (usual, spread) = (exact(self.usual_seconds?), exact(self.spread_seconds?));
        let spread = if spread == "0s" { String::new() } else { format!(" ± {spread}") };
        let usual = format!("Usually every {usual}{spread}");
        Some(match self.unusual_since {
            Some(_) => format!("{usual}; silent for {}, as long as never before.", shown_span(silence)),
            None => format!("{usual}."),
        })
    }
}

/// A span of seconds; short spans with tenths.
fn exact(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{}s", (seconds * 10.0).round() / 10.0);
    }
    shown_span(Duration::try_from_secs_f64(seconds.round()).unwrap_or_default())
}

async fn rhythm(
    State(rhythms): State<Rhythms>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Result<Json<Option<ShownRhythm>>, HttpError> {
    let Path((kind, id)) = path?;
    let named = kind.parse().and_then(|kind| Ok(Unit::new(kind, id.parse()?)));
    let unit = named.map_err(|error: NameError| HttpError::bad_request(error.to_string()))?;
    if is_from_peer(&headers) {
        return Ok(Json(rhythms.own(&unit)));
    }
    let known = rhythms.of(&unit).await;
    if known.is_none() {
        let read = rhythms.units.read(std::slice::from_ref(&unit)).await?;
        if !read.iter().any(|seen| seen.is_known() || seen.is_unreadable()) {
            return Err(HttpError::not_found(format!("there is no unit {}/{}", unit.kind, unit.id)));
        }
    }
    Ok(Json(known))
}

impl Rhythms {
    pub fn new(sources: &PageSources) -> Rhythms {
        Rhythms {
            mirror: sources.mirror.clone(),
            units: sources.units.clone(),
            roll: sources.roll.clone(),
            peers: Peers::new(sources),
            clock: sources.clock.clone(),
        }
    }

    /// The rhythm of a unit; `None` if no instance that answers has the unit.
    pub async fn of(&self, unit: &Unit) -> Option<ShownRhythm> {
        if self.mirror.keeps(partition_of(unit, self.mirror.partition_count())) {
            return self.own(unit);
        }
        let path = format!("/api/v1{}/rhythm", pages::unit(unit.kind.as_str(), unit.id.as_str()));
        self.peers.ask::<Option<ShownRhythm>>(&path).await.parts.into_iter().flatten().next()
    }

    fn own(&self, unit: &Unit) -> Option<ShownRhythm> {
        self.mirror.rhythm(unit, &self.roll.hearing(), self.clock.now()).map(ShownRhythm::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rhythm_is_said_in_words_once_it_is_known() {
        let rhythm = ShownRhythm {
            intervals: 40,
            intervals_needed: 8,
            usual_seconds: Some(299.9),
            spread_seconds: Some(20.2),
            longest_seconds: Some(400.0),
            allows_seconds: Some(700.0),
            unusual_since: None,
        };
        let silence = Duration::from_secs(2400);
        let said = |rhythm: &ShownRhythm| rhythm.sentence(silence);
        assert_eq!(said(&rhythm).unwrap(), "Usually every 5m ± 20s.");
        let unusual = ShownRhythm { unusual_since: Some(Timestamp::ZERO), ..rhythm.clone() };
        assert_eq!(
            said(&unusual).unwrap(),
            "Usually every 5m ± 20s; silent for 40m, as long as never before."
        );
        let fast = ShownRhythm { usual_seconds: Some(2.5), spread_seconds: Some(0.04), ..rhythm.clone() };
        assert_eq!(said(&fast).unwrap(), "Usually every 2.5s.");
        assert_eq!(said(&ShownRhythm { usual_seconds: None, ..rhythm }), None);
    }
}

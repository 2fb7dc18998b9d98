//! `/metrics/units`: two series a unit, written piece by piece from the mirror.
//!
//! A million units make some 150 MB of text. No more than two pieces of it exist at a time: the
//! next one is written when the client has taken the one before. A client that goes away, or takes
//! nothing for a while, ends the writing.
//!
//! # Why a stream that is cut off is an error
//! A scrape that ended early but cleanly would say that half of the fleet is gone. So the end is
//! marked, and without the mark the connection is broken off; Prometheus then discards the scrape.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream::unfold;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::UnitMetrics;
use super::metrics::TEXT_FORMAT;
use super::problem::{Problem, query};
use crate::clock::Clock;
use crate::engine::{Mirror, Roll};

mod text;

use text::Text;

/// How many clients may read at a time; each takes a core while it does.
const READERS: usize = 4;
/// How long a client may take nothing.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Listed {
    mirror: Arc<Mirror>,
    roll: Arc<Roll>,
    clock: Clock,
    usual: UnitMetrics,
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

/// The page.
pub(super) fn page(
    mirror: Arc<Mirror>,
    roll: Arc<Roll>,
    clock: Clock,
    usual: UnitMetrics,
    stop: CancellationToken,
) -> Router {
    let places = Arc::new(Semaphore::new(READERS));
    Router::new().route("/metrics/units", get(unit_metrics)).with_state(Listed {
        mirror,
        roll,
        clock,
        usual,
        places,
        stop,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    mode: Option<UnitMetrics>,
}

async fn unit_metrics(
    State(listed): State<Listed>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Wanted { mode } = query(&uri)?;
    let Ok(place) = listed.places.try_acquire_owned() else {
        return Err(Problem::unavailable(format!("{READERS} clients are reading this page already")));
    };
    let gzip = accepts_gzip(&headers);
    let hearing = listed.roll.hearing();
    let text = Text::new(listed.mirror, hearing, listed.clock.now(), mode.unwrap_or(listed.usual), gzip);
    let (pieces, taken) = mpsc::channel(1);
    tokio::spawn(listed.stop.run_until_cancelled_owned(write(text, pieces, place)));
    let headers = [(CONTENT_TYPE, TEXT_FORMAT), (VARY, "accept-encoding")];
    let mut response = (headers, Body::from_stream(stream(taken))).into_response();
    if gzip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// Writes pieces as fast as they are taken, then the mark of the end.
async fn write(mut text: Text, pieces: mpsc::Sender<Option<Bytes>>, _place: OwnedSemaphorePermit) {
    loop {
        let written = tokio::task::spawn_blocking(move || {
            let piece = text.next_piece();
            (text, piece)
        });
        let Ok((rest, piece)) = written.await else { return };
        text = rest;
        let last = piece.is_none();
        let sent = tokio::time::timeout(PATIENCE, pieces.send(piece)).await;
        if last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

/// What the client takes: pieces up to the mark of the end, or an error where it is missing.
fn stream(taken: mpsc::Receiver<Option<Bytes>>) -> impl futures_util::Stream<Item = io::Result<Bytes>> {
    unfold(Some(taken), |taken| async {
        let mut taken = taken?;
        match taken.recv().await {
            Some(Some(piece)) => Some((Ok(piece), Some(taken))),
            Some(None) => None,
            None => Some((Err(io::Error::other("cut off")), None)),
        }
    })
}

/// Whether `Accept-Encoding` names gzip and does not refuse it with a weight of zero.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let all = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).any(|offer| {
        let (coding, parameters) = offer.split_once(';').unwrap_or((offer, ""));
        let weight = parameters.trim().strip_prefix("q=").map(|weight| weight.trim().parse::<f32>());
        coding.trim().eq_ignore_ascii_case("gzip") && weight != Some(Ok(0.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_where_it_is_offered_and_not_refused() {
        let cases = [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip; q=0", false),
            ("gzip;q=0.000", false),
            ("identity", false),
            ("", false),
        ];
        for (offer, expected) in cases {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, offer.parse().unwrap())]);
            assert_eq!(accepts_gzip(&headers), expected, "{offer}");
        }
    }
}

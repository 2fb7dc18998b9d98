//! `/metrics/units`: a few series a unit, written piece by piece.
//!
//! A million units make some 150 MB of text. No more than two pieces of it exist at a time: the
//! next one is written when the client has taken the one before. A client that goes away, or takes
//! nothing for a while, ends the writing. The fleet may be asked for in shards; a unit stays in its
//! shard for good, as that follows from its partition.
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
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::UnitMetrics;
use super::exposition::{Format, accepts_gzip};
use super::problem::Problem;
use crate::clock::Clock;
use crate::fleet::{Mirror, Roll};
use crate::store::{Engine, Metric};

mod asked;
mod places;
pub(super) mod text;
mod values;

use asked::Asked;
use places::{Place, Places, READERS};
use text::{Source, Text};
use values::{Values, on_a_thread};

/// How long a client may take nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a text may take as a whole: longer than any Prometheus waits for one.
const LONGEST: Duration = Duration::from_secs(300);

/// What the page reads.
#[derive(Clone)]
pub(super) struct Listed {
    pub mirror: Arc<Mirror>,
    pub engine: Arc<dyn Engine>,
    pub roll: Arc<Roll>,
    pub clock: Clock,
    /// What units tell of themselves, by name.
    pub metrics: Vec<Metric>,
    /// Which units are shown where the request does not say.
    pub usual: UnitMetrics,
    /// The most units on a page.
    pub limit: u64,
    pub stop: CancellationToken,
}

/// The page.
pub(super) fn page(listed: Listed) -> Router {
    Router::new().route("/metrics/units", get(unit_metrics)).with_state((listed, Arc::new(Places::new())))
}

async fn unit_metrics(
    State((listed, places)): State<(Listed, Arc<Places>)>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let asked = Asked::read(&uri, listed.usual, &listed.mirror)?;
    let Some(place) = places.take(asked.shard).await else {
        return Err(Problem::unavailable(format!(
            "this page is being written for somebody else, or others for {READERS} already"
        )));
    };
    let (format, gzip) = (Format::wanted(&headers), accepts_gzip(&headers));
    let (pieces, taken) = mpsc::channel(1);
    tokio::spawn(listed.stop.clone().run_until_cancelled_owned(async move {
        let written = write(listed, asked, format, gzip, Pieces(pieces), place);
        let _ = tokio::time::timeout(LONGEST, written).await;
    }));
    let headers = [(CONTENT_TYPE, format.content_type()), (VARY, "accept, accept-encoding")];
    let mut response = (headers, Body::from_stream(stream(taken))).into_response();
    if gzip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// Where pieces go, and at last the mark of the end.
struct Pieces(mpsc::Sender<Option<Bytes>>);

impl Pieces {
    /// Hands over a piece as soon as the one before was taken; nothing if the client is gone.
    async fn send(&self, piece: Bytes) -> Option<()> {
        if piece.is_empty() {
            return Some(()); // The compressor still holds it.
        }
        self.hand_over(Some(piece)).await
    }

    async fn hand_over(&self, piece: Option<Bytes>) -> Option<()> {
        tokio::time::timeout(PATIENCE, self.0.send(piece)).await.ok()?.ok()
    }
}

/// Writes pieces as fast as they are taken, then the mark of the end; nothing if it came to none.
async fn write(
    listed: Listed,
    asked: Asked,
    format: Format,
    gzip: bool,
    pieces: Pieces,
    _place: Place,
) -> Option<()> {
    let Listed { mirror, engine, roll, clock, metrics, limit, .. } = listed;
    let source = Source {
        mirror: mirror.clone(),
        hearing: roll.hearing(),
        now: clock.now(),
        wanted: asked.wanted.clone(),
        limit,
    };
    let mut text = Text::new(source, format, gzip);
    loop {
        let written = tokio::task::spawn_blocking(move || {
            let more = text.write_states();
            let piece = if text.has_piece() { text.take_piece() } else { Bytes::new() };
            (text, more, piece)
        });
        let (rest, more, piece) = written.await.ok()?;
        text = rest;
        pieces.send(piece).await?;
        if !more {
            break;
        }
    }
    let mut values_read = None;
    if let Some(wanted) = asked.wanted.filter(|_| !metrics.is_empty()) {
        let (rest, read) = Values { engine, mirror, metrics, wanted }.write(text, &pieces).await?;
        (text, values_read) = (rest, Some(read));
    }
    text.end(values_read);
    let (text, piece) = on_a_thread(text).await?;
    pieces.send(piece).await?;
    pieces.send(text.finish()).await?;
    pieces.hand_over(None).await
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

//! `/metrics/units`: a few series for each unit, written frame by frame.
//!
//! A million units make some 150 MB of text. At most two frames of it exist at a time: the next one is written when the
//! client has read the previous one. Writing stops when the client disconnects, or does not read for a while. A request
//! may ask for one shard of the fleet; a unit stays in its shard, which follows from its partition.
//!
//! # Why a stream that is cut off is an error
//! A scrape that ended early but cleanly would show half of the fleet as gone. So an end mark follows the last frame;
//! without it the connection is aborted, and Prometheus discards the scrape.

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
use super::exposition::{ExpositionFormat, accepts_gzip};
use super::http_error::HttpError;
use crate::clock::Clock;
use crate::fleet::{Mirror, Roll};
use crate::store::{DataStore, Metric};

mod selection;
pub(super) mod text;
mod values;
mod writer_limit;

use selection::Selection;
use text::{TextSource, UnitMetricsText};
use values::{UnitMetricValues, take_frame_on_a_thread};
use writer_limit::{WRITERS, WriterLimit, WriterPermit};

/// How long a client may pause reading.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time for a whole text: longer than the scrape timeout of any Prometheus.
const TEXT_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Clone)]
pub(super) struct UnitMetricsState {
    pub mirror: Arc<Mirror>,
    pub engine: Arc<dyn DataStore>,
    pub roll: Arc<Roll>,
    pub clock: Clock,
    /// The metrics of units, by name.
    pub metrics: Vec<Metric>,
    /// The units that are shown if the request does not choose.
    pub default_mode: UnitMetrics,
    /// The most units on a page.
    pub limit: u64,
    pub stop: CancellationToken,
}

pub(super) fn page(state: UnitMetricsState) -> Router {
    Router::new().route("/metrics/units", get(unit_metrics)).with_state((state, Arc::new(WriterLimit::new())))
}

async fn unit_metrics(
    State((state, writers)): State<(UnitMetricsState, Arc<WriterLimit>)>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let selection = Selection::read(&uri, state.default_mode, &state.mirror, state.clock.now())?;
    let Some(permit) = writers.take(selection.shard).await else {
        return Err(HttpError::unavailable(format!(
            "the page is busy: another request reads this shard, or {WRITERS} requests read other shards"
        )));
    };
    let (format, gzip) = (ExpositionFormat::accepted(&headers), accepts_gzip(&headers));
    let (frames, taken) = mpsc::channel(1);
    tokio::spawn(state.stop.clone().run_until_cancelled_owned(async move {
        let written = write(state, selection, format, gzip, FrameSender(frames), permit);
        let _ = tokio::time::timeout(TEXT_TIMEOUT, written).await;
    }));
    let headers = [(CONTENT_TYPE, format.content_type()), (VARY, "accept, accept-encoding")];
    let mut response = (headers, Body::from_stream(stream(taken))).into_response();
    if gzip {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// Sends the frames of a response, and then the end mark.
struct FrameSender(mpsc::Sender<Option<Bytes>>);

impl FrameSender {
    /// Sends a frame as soon as the previous one was read; `None` if the client has disconnected.
    async fn send(&self, frame: Bytes) -> Option<()> {
        if frame.is_empty() {
            return Some(()); // The compressor still holds it.
        }
        self.send_or_end(Some(frame)).await
    }

    /// Sends a frame, or `None` as the end mark.
    async fn send_or_end(&self, frame: Option<Bytes>) -> Option<()> {
        tokio::time::timeout(FRAME_TIMEOUT, self.0.send(frame)).await.ok()?.ok()
    }
}

/// Writes frames as fast as they are read, then the end mark; `None` if the text ends before that.
async fn write(
    state: UnitMetricsState,
    selection: Selection,
    format: ExpositionFormat,
    gzip: bool,
    frames: FrameSender,
    _permit: WriterPermit,
) -> Option<()> {
    let UnitMetricsState { mirror, engine, roll, clock, metrics, limit, .. } = state;
    let source = TextSource {
        mirror: mirror.clone(),
        hearing: roll.hearing(),
        now: clock.now(),
        filter: selection.filter.clone(),
        limit,
    };
    let mut text = UnitMetricsText::new(source, format, gzip);
    loop {
        let written = tokio::task::spawn_blocking(move || {
            let more = text.write_states();
            let frame = if text.has_frame() { text.take_frame() } else { Bytes::new() };
            (text, more, frame)
        });
        let (rest, more, frame) = written.await.ok()?;
        text = rest;
        frames.send(frame).await?;
        if !more {
            break;
        }
    }
    let mut values_read = None;
    if let Some(filter) = selection.filter.filter(|_| !metrics.is_empty()) {
        let (rest, read) = UnitMetricValues { engine, mirror, metrics, filter }.write(text, &frames).await?;
        (text, values_read) = (rest, Some(read));
    }
    text.end(values_read);
    let (text, frame) = take_frame_on_a_thread(text).await?;
    frames.send(frame).await?;
    frames.send(text.finish()).await?;
    frames.send_or_end(None).await
}

/// The body: frames up to the end mark; an error if the mark is missing.
fn stream(taken: mpsc::Receiver<Option<Bytes>>) -> impl futures_util::Stream<Item = io::Result<Bytes>> {
    unfold(Some(taken), |taken| async {
        let mut taken = taken?;
        match taken.recv().await {
            Some(Some(frame)) => Some((Ok(frame), Some(taken))),
            Some(None) => None,
            None => Some((Err(io::Error::other("cut off")), None)),
        }
    })
}

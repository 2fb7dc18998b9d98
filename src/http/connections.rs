//! Connections: how many there may be, how long a client may take, and how they end.
//!
//! A client that holds a place without using it loses it: at once when the place is wanted, else by a
//! deadline. So neither requests that never end nor readers that never read keep others out. See
//! [`places`] for the bounds and [`paced`] for the deadline of writing.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Pages;
use super::problem::Problem;
use crate::telemetry::{CutReason, Telemetry};

mod conduct;
mod paced;
mod places;
#[cfg(test)]
mod tests;

use conduct::Conduct;
use paced::{Pace, Paced};
use places::{Bounds, Place, Places, Sort};

/// How large the head of a request may be.
const LARGEST_HEAD: usize = 16 * 1024;
/// How long answers that are on their way may take after the stop.
const FAREWELL: Duration = Duration::from_secs(5);
/// The same for a connection that only waits for a request: for the last bytes of its last answer.
const LAST_BYTES: Duration = Duration::from_millis(200);
/// What connections beyond the bounds are for: whether Rollcall lives, and what it counts.
const ALWAYS_ANSWERED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// What clients may take.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    bounds: Bounds,
    /// How long the head of a request may take, and how long a connection may be idle.
    head: Duration,
    pace: Pace,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bounds: Bounds::default(), head: Duration::from_secs(30), pace: Pace::default() }
    }
}

/// Serves connections until `stop`.
pub(super) async fn accept(
    listener: TcpListener,
    pages: Pages,
    limits: Limits,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) {
    let places = Places::new(limits.bounds);
    let mut open = JoinSet::new();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    match places.take(peer.ip(), |peer| telemetry.connection_cut(CutReason::Idle, peer)) {
                        Some(place) => {
                            let (pages, telemetry, stop) = (pages.clone(), telemetry.clone(), stop.clone());
                            open.spawn(serve(stream, peer.ip(), place, pages, limits, telemetry, stop));
                        }
                        None => telemetry.connection_cut(CutReason::NoSlot, peer.ip()),
                    }
                }
                // The client is gone already, or files have run out; neither ends the server.
                Err(error) => {
                    tracing::debug!("no connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            while open.try_join_next().is_some() {}
        }
    };
    stop.run_until_cancelled(accepting).await;
    drop(listener);
    let farewell = async { while open.join_next().await.is_some() {} };
    // What is still open then is cut off when `open` goes.
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

async fn serve(
    stream: TcpStream,
    peer: IpAddr,
    place: Place,
    pages: Pages,
    limits: Limits,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let conduct = place.conduct().clone();
    let sort = place.sort();
    let stream = Paced::new(stream, limits.pace, conduct.clone());
    let answers = service_fn(|request| answer(&pages, sort, conduct.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(LARGEST_HEAD)
        .keep_alive(sort == Sort::Ordinary)
        .serve_connection(TokioIo::new(stream), answers);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Dropping the connection closes it; the place has its next holder already.
        () = place.taken_away() => return,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let longest = if conduct.still_since().is_some() { LAST_BYTES } else { FAREWELL };
            let Ok(ended) = tokio::time::timeout(longest, connection).await else { return };
            ended
        }
    };
    if conduct.was_too_slow() {
        telemetry.connection_cut(CutReason::SlowReader, peer);
    } else if let Err(error) = ended {
        tracing::debug!("connection broken off: {error}");
    }
}

/// The answer to a request, by the pages that there are at its moment.
async fn answer(
    pages: &Pages,
    sort: Sort,
    conduct: Arc<Conduct>,
    request: Request<Incoming>,
) -> Result<Response<Answering>, Infallible> {
    conduct.begins();
    let response = if sort == Sort::Ordinary || ALWAYS_ANSWERED.contains(&request.uri().path()) {
        TowerToHyperService::new(pages.now()).call(request).await?
    } else {
        let detail = "all connections for this page are taken; ask again in a moment";
        let mut response = Problem::unavailable(detail).into_response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    };
    Ok(response.map(|body| Answering { body, conduct }))
}

/// A body whose end is noted: from then on its connection waits for the next request.
struct Answering {
    body: Body,
    conduct: Arc<Conduct>,
}

impl hyper::body::Body for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.conduct.rests();
    }
}

//! Connections: their number, their time limits, and how they end.
//!
//! A client that does not use its slot loses it: at once if another connection needs the slot, otherwise after a
//! deadline. So neither requests without an end nor clients that never read block other connections. See [`slots`] for
//! the bounds and [`write_limit`] for the deadline of writing.

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
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use super::Pages;
use super::http_error::HttpError;
use super::proxies::PeerAddress;
use crate::clock::monotonic;
use crate::telemetry::{CutReason, Telemetry};
use crate::trust::ServerTls;

mod activity;
mod slots;
#[cfg(test)]
mod tests;
mod write_limit;

use activity::Activity;
use slots::{Bounds, ConnectionSlot, ConnectionSlots, SlotKind};
use write_limit::{WriteLimit, WriteLimited};

/// The most bytes of the head of a request.
const MAX_HEAD: usize = 16 * 1024;
/// How long pending answers may take after the stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection without a pending request may take after the stop: for the last bytes of its last answer.
const LAST_BYTES: Duration = Duration::from_millis(200);
/// The pages that the reserved slots serve: health, and the metrics.
const ALWAYS_ANSWERED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

#[derive(Clone, Copy)]
pub(super) struct ConnectionLimits {
    bounds: Bounds,
    /// How long the head of a request may take, and how long a connection may be idle.
    head: Duration,
    write: WriteLimit,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            bounds: Bounds::default(),
            head: Duration::from_secs(30),
            write: WriteLimit::default(),
        }
    }
}

/// Serves connections until `stop`.
///
/// # Errors
/// The runtime of the task cannot watch the listener.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    pages: Pages,
    limits: ConnectionLimits,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    // The listener may come from another runtime, whose busy threads would accept new connections late.
    let listener = TcpListener::from_std(listener.into_std()?)?;
    let slots = ConnectionSlots::new(limits.bounds);
    let mut open = JoinSet::new();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    match slots.take(peer.ip(), |peer| telemetry.connection_cut(CutReason::Idle, peer)) {
                        Some(slot) => {
                            let (pages, telemetry, stop) = (pages.clone(), telemetry.clone(), stop.clone());
                            let stream = (stream, tls.clone());
                            open.spawn(serve(stream, peer.ip(), slot, pages, limits, telemetry, stop));
                        }
                        None => telemetry.connection_cut(CutReason::NoSlot, peer.ip()),
                    }
                }
                // The client has disconnected already, or the process has too many open files; neither ends the server.
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
    let stopping = async { while open.join_next().await.is_some() {} };
    // Dropping `open` ends the connections that are still open after the timeout.
    let _ = timeout(STOP_TIMEOUT, stopping).await;
    Ok(())
}

async fn serve(
    (stream, tls): (TcpStream, Option<Arc<ServerTls>>),
    peer: IpAddr,
    slot: ConnectionSlot,
    pages: Pages,
    limits: ConnectionLimits,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let activity = slot.activity().clone();
    let kind = slot.kind();
    let stream = WriteLimited::new(stream, limits.write, activity.clone());
    let stream = match tls {
        None => Either::Left(stream),
        Some(tls) => {
            let shaken = tokio::select! {
                shaken = timeout(limits.head, TlsAcceptor::from(tls.config()).accept(stream)) => shaken,
                () = slot.evicted() => return,
                () = stop.cancelled() => return,
            };
            match shaken {
                Ok(Ok(stream)) => Either::Right(Box::new(stream)),
                Ok(Err(error)) => return tracing::debug!(%peer, "no TLS: {error}"),
                Err(_) => return tracing::debug!(%peer, "the TLS handshake timed out"),
            }
        }
    };
    let answers = service_fn(|request| answer(&pages, kind, activity.clone(), PeerAddress(peer), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_HEAD)
        .keep_alive(kind == SlotKind::AnyPage)
        .serve_connection(TokioIo::new(stream), answers);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Another connection already has the slot; dropping this connection closes it.
        () = slot.evicted() => return,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let longest = if activity.idle_since(monotonic()).is_some() { LAST_BYTES } else { STOP_TIMEOUT };
            let Ok(ended) = timeout(longest, connection).await else { return };
            ended
        }
    };
    if activity.was_too_slow() {
        telemetry.connection_cut(CutReason::SlowReader, peer);
    } else if let Err(error) = ended {
        tracing::debug!("connection ended: {error}");
    }
}

/// Answers a request with the current pages.
async fn answer(
    pages: &Pages,
    kind: SlotKind,
    activity: Arc<Activity>,
    peer: PeerAddress,
    mut request: Request<Incoming>,
) -> Result<Response<TrackedBody>, Infallible> {
    activity.request_begins();
    request.extensions_mut().insert(peer);
    let response = if kind == SlotKind::AnyPage || ALWAYS_ANSWERED.contains(&request.uri().path()) {
        TowerToHyperService::new(pages.now()).call(request).await?
    } else {
        let detail = "all connections for this page are in use; ask again in a moment";
        let mut response = HttpError::unavailable(detail).into_response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    };
    Ok(response.map(|body| TrackedBody { body, activity }))
}

/// A body that reports its end: the connection then waits for the next request.
struct TrackedBody {
    body: Body,
    activity: Arc<Activity>,
}

impl hyper::body::Body for TrackedBody {
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

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.activity.request_ends();
    }
}

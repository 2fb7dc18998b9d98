//! Connections: how many there may be, how long a client may take, and how they end.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The most connections at a time; further ones wait in the listener's queue.
const MOST: usize = 512;
/// How long the head of a request may take, and how long a connection may be idle.
const PATIENCE: Duration = Duration::from_secs(30);
/// How large the head of a request may be.
const LARGEST_HEAD: usize = 16 * 1024;
/// How long answers that are on their way may take after the stop.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves connections until `stop`.
pub(super) async fn accept(listener: TcpListener, pages: Router, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(MOST));
    let mut open = JoinSet::new();
    let accepting = async {
        loop {
            let place = places.clone().acquire_owned().await.expect("nobody closes it");
            match listener.accept().await {
                Ok((stream, _)) => {
                    let served = serve(stream, pages.clone(), stop.clone());
                    open.spawn(async move {
                        served.await;
                        drop(place);
                    });
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

async fn serve(stream: TcpStream, pages: Router, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("connection broken off: {error}");
    }
}

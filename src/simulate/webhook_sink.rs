//! A receiver of webhooks for the demo and the tests: it verifies and stores requests, and answers them with the wanted
//! status.
//!
//! The sink listens on the loopback address only; dropping the value ends it and every connection.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::signature::{self, Secret};

/// The most stored requests; the oldest are dropped first.
const MAX_KEPT: usize = 10_000;
/// The longest body: a notification of ten thousand records is a few megabytes long.
const MAX_BODY: usize = 16 << 20;

/// A function that is called with each request.
pub type Watcher = Box<dyn Fn(&Received) + Send + Sync>;

#[derive(Default)]
pub struct Options {
    /// The port; 0 means any free port.
    pub port: u16,
    /// The secret, `whsec_…`; if it is set, a request with a wrong signature gets 401.
    pub secret: Option<String>,
    pub watcher: Option<Watcher>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    Status(u16),
    /// Answers with a status and a text.
    Say(u16, String),
    /// Answers with a status and a `Retry-After`.
    RetryAfter(u16, String),
    /// Answers with 308 and a `Location`.
    Redirect(String),
    /// Does not answer before [`WebhookSink::release`].
    Hang,
}

#[derive(Clone, Debug)]
pub struct Received {
    pub method: Method,
    pub path: String,
    /// The query without the question mark; empty if there is none.
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Received {
    /// A header as text; empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn is_signed(&self, secret: &Secret) -> bool {
        let [id, seconds, signatures] =
            [signature::ID, signature::TIMESTAMP, signature::SIGNATURE].map(|name| self.header(name));
        secret.verifies(id, seconds, signatures, &self.body, Clock::system().now())
    }

    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A running sink, which ends with this value.
pub struct WebhookSink {
    address: SocketAddr,
    shared: Arc<SharedRequests>,
    stop: CancellationToken,
}

struct SharedRequests {
    secret: Option<Secret>,
    watcher: Option<Watcher>,
    answers: Mutex<VecDeque<Answer>>,
    received: Mutex<VecDeque<Received>>,
    count: watch::Sender<usize>,
    /// A change answers the hanging requests.
    released: watch::Sender<()>,
    stop: CancellationToken,
}

impl WebhookSink {
    /// Starts the sink. It answers every request with 200 until [`WebhookSink::answer_with`].
    pub async fn start(options: Options) -> io::Result<WebhookSink> {
        let secret = options.secret.as_deref().map(Secret::parse).transpose();
        let secret = secret.map_err(|why| io::Error::other(format!("webhook sink: the secret {why}")))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let shared = Arc::new(SharedRequests {
            secret,
            watcher: options.watcher,
            answers: Mutex::default(),
            received: Mutex::default(),
            count: watch::Sender::new(0),
            released: watch::Sender::new(()),
            stop: stop.clone(),
        });
        let app =
            Router::new().fallback(receive).layer(DefaultBodyLimit::max(MAX_BODY)).with_state(shared.clone());
        let ending = stop.clone().cancelled_owned();
        tokio::spawn(axum::serve(listener, app).with_graceful_shutdown(ending).into_future());
        Ok(WebhookSink { address, shared, stop })
    }

    pub fn url(&self) -> String {
        format!("{}/hook", self.base())
    }

    /// The address without a path.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Uses these answers for the next requests, one each, and then 200 again.
    pub fn answer_with(&self, answers: impl IntoIterator<Item = Answer>) {
        *self.shared.answers.lock() = answers.into_iter().collect();
    }

    /// Answers the hanging requests with 200.
    pub fn release(&self) {
        self.shared.released.send_replace(());
    }

    /// The requests, in order.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().iter().cloned().collect()
    }

    /// Waits until this many requests have come in all, at most for `patience`.
    pub async fn wait_for(&self, count: usize, patience: Duration) -> io::Result<Vec<Received>> {
        let mut counted = self.shared.count.subscribe();
        let enough = counted.wait_for(|&so_far| so_far >= count);
        match tokio::time::timeout(patience, enough).await {
            Ok(_) => Ok(self.received()),
            Err(_) => {
                let so_far = self.shared.received.lock().len();
                Err(io::Error::other(format!("{so_far} of {count} webhooks came within {patience:?}")))
            }
        }
    }
}

impl Drop for WebhookSink {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn receive(
    State(sink): State<Arc<SharedRequests>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
    let received = Received { method, path, query, headers, body };
    let verified = sink.secret.as_ref().is_none_or(|secret| received.is_signed(secret));
    let answer = sink.answers.lock().pop_front().unwrap_or(Answer::Status(200));
    let mut released = sink.released.subscribe();
    sink.keep(received);
    match answer {
        _ if !verified => (StatusCode::UNAUTHORIZED, "the signature is wrong").into_response(),
        Answer::Status(status) => with(status, None),
        Answer::Say(status, text) => {
            (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), text).into_response()
        }
        Answer::RetryAfter(status, wait) => with(status, Some((header::RETRY_AFTER, wait))),
        Answer::Redirect(to) => with(308, Some((header::LOCATION, to))),
        Answer::Hang => tokio::select! {
            _ = released.changed() => with(200, None),
            () = sink.stop.cancelled() => with(503, None),
        },
    }
}

fn with(status: u16, more: Option<(header::HeaderName, String)>) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, format!("the sink is set to answer {status}\n")).into_response();
    if let Some((name, value)) = more
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        response.headers_mut().insert(name, value);
    }
    response
}

impl SharedRequests {
    fn keep(&self, received: Received) {
        if let Some(show) = &self.watcher {
            show(&received);
        }
        let mut kept = self.received.lock();
        if kept.len() >= MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back(received);
        drop(kept);
        self.count.send_modify(|count| *count += 1);
    }
}

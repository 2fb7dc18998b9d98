//! `/api/v1/stream`: server-sent events for clients that follow the fleet. The event `summary` comes at once and whenever the
//! summary has changed, at most once a second; its data is that of `/api/v1/summary`, its id the ETag.
//!
//! All clients of an instance share one summary, so a client costs no more than the bytes that it is sent. A client
//! that reads nothing is disconnected like every other one. A comment every few seconds shows that the stream lives.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use axum::routing::get;
use futures_util::stream::{Stream, unfold};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::problem::Problem;
use super::summary::Summaries;

/// The time between two looks at the summary.
const EVERY: Duration = Duration::from_secs(1);

const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How long a stream lasts. A client connects again then, and its token or session is looked at again.
const LONGEST: Duration = Duration::from_secs(900);

/// The most clients of an instance; a connection for other pages is left to every address.
const MOST_CLIENTS: usize = 512;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

#[derive(Clone)]
struct StreamState {
    summaries: Summaries,
    clients: Arc<AtomicUsize>,
    stop: CancellationToken,
}

pub(super) fn page(summaries: Summaries, stop: CancellationToken) -> Router {
    let state = StreamState { summaries, clients: Arc::default(), stop };
    Router::new().route("/api/v1/stream", get(stream)).with_state(state)
}

/// One of [`MOST_CLIENTS`].
struct Client(Arc<AtomicUsize>);

impl Client {
    fn new(clients: &Arc<AtomicUsize>) -> Option<Client> {
        let room = |count: usize| (count < MOST_CLIENTS).then_some(count + 1);
        clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some(Client(clients.clone()))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn stream(
    State(state): State<StreamState>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let Some(client) = Client::new(&state.clients) else {
        return Err(Problem::unavailable(format!("{MOST_CLIENTS} clients follow this instance already")));
    };
    let last = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let (begin, end) = ((state, client, last.unwrap_or_default()), Instant::now() + LONGEST);
    let events = unfold(begin, move |(state, client, last)| async move {
        while Instant::now() < end {
            if let Ok(shown) = state.summaries.recent().await
                && shown.tag != last
            {
                let event = Event::default().event("summary").id(&shown.tag).data(&*shown.json);
                let tag = shown.tag.clone();
                return Some((Ok(event), (state, client, tag)));
            }
            state.stop.run_until_cancelled(sleep(EVERY)).await?;
        }
        None
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

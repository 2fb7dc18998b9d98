//! `/api/v1/stream`: server-sent events for clients that follow the fleet.
//!
//! | event | data |
//! |---|---|
//! | `summary` | the answer of `/api/v1/summary`: at once, and whenever it has changed, at most once a second |
//! | `transition` | a record that was opened or closed: `transition` and `record` |
//! | `reset` | transitions are missing: `reason`; the client reads again what it shows |
//!
//! An event's id says how far a client has read. A client that sends it as `last-event-id` continues there, if it
//! reaches the same process and that process still has the transitions since then.
//!
//! All clients of an instance share one summary and one sequence of transitions, so a client costs no more than the
//! bytes sent to it. A client that reads slowly falls behind, and gets a `reset`. A client that reads nothing is
//! disconnected, as on every page. A comment every few seconds shows that the stream is alive.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, Uri};
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream::unfold;
use serde::Deserialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::PageSources;
use super::http_error::{HttpError, query};
use super::peers::is_from_peer;
use super::summary::Summaries;
use crate::clock::monotonic;

mod feed;

use feed::TransitionFeed;

const PATH: &str = "/api/v1/stream";

/// The time between two checks for changes of the fleet.
const INTERVAL: Duration = Duration::from_secs(1);

const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The longest life of a stream. The client then connects again, which checks its token or session again.
const MAX_LIFE: Duration = Duration::from_secs(900);

/// The most clients of an instance, so that every address still has a connection for other pages.
const MAX_CLIENTS: usize = 512;

/// The most buffered transitions of one client; further ones stay in the sequence that all clients share.
const MAX_WAITING: usize = 64;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

#[derive(Clone)]
struct StreamState {
    summaries: Summaries,
    feed: TransitionFeed,
    clients: Arc<AtomicUsize>,
    stop: CancellationToken,
}

pub(super) fn page(sources: &PageSources, summaries: Summaries, stop: CancellationToken) -> Router {
    let state = StreamState { summaries, feed: TransitionFeed::new(sources), clients: Arc::default(), stop };
    Router::new().route(PATH, get(stream)).with_state(state)
}

/// A client that counts towards [`MAX_CLIENTS`].
struct StreamClient(Arc<AtomicUsize>);

impl StreamClient {
    fn new(clients: &Arc<AtomicUsize>) -> Option<StreamClient> {
        let room = |count: usize| (count < MAX_CLIENTS).then_some(count + 1);
        clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some(StreamClient(clients.clone()))
    }
}

impl Drop for StreamClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How far a client has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReadUpTo {
    /// The process that assigned the positions.
    run: u64,
    position: u64,
    /// The ETag of the last summary.
    tag: String,
}

impl ReadUpTo {
    /// Writes the id of an event.
    fn id(&self) -> String {
        format!("{:x}.{}.{}", self.run, self.position, self.tag)
    }

    /// Parses the id of an event; `None` if the text is no such id.
    fn of(id: &str) -> Option<ReadUpTo> {
        let mut parts = id.splitn(3, '.');
        let run = u64::from_str_radix(parts.next()?, 16).ok()?;
        let position = parts.next()?.parse().ok()?;
        Some(ReadUpTo { run, position, tag: parts.next()?.to_owned() })
    }
}

/// A client, and the transitions to send to it next.
struct Follower {
    state: StreamState,
    read: ReadUpTo,
    waiting: VecDeque<Arc<str>>,
    /// Why the client missed transitions.
    missed: Option<&'static str>,
    _client: StreamClient,
}

/// `after`: another instance requests the transitions after these positions.
#[derive(Deserialize)]
struct PartQuery {
    after: String,
}

async fn stream(
    State(state): State<StreamState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    if is_from_peer(&headers) {
        let PartQuery { after } = query(&uri)?;
        return Ok(Json(state.feed.part(&after)).into_response());
    }
    let Some(client) = StreamClient::new(&state.clients) else {
        return Err(HttpError::unavailable(format!("{MAX_CLIENTS} clients follow this instance already")));
    };
    let last = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty());
    let follower = Follower::begin(state, last, client).await;
    let end = monotonic() + MAX_LIFE;
    let events = unfold(follower, move |mut follower| async move {
        let event = follower.next(end).await?;
        Some((Ok::<Event, Infallible>(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

impl Follower {
    /// `last`: the id of the last event that the client has read.
    async fn begin(state: StreamState, last: Option<&str>, client: StreamClient) -> Follower {
        let now = ReadUpTo { run: state.feed.run(), position: state.feed.end().await, tag: String::new() };
        let known = last.and_then(ReadUpTo::of);
        let (read, missed) = match (known, last) {
            (Some(known), _) if known.run == now.run => (known, None),
            (Some(known), _) => (ReadUpTo { tag: known.tag, ..now }, Some(ANOTHER)),
            (None, Some(_)) => (now, Some(ANOTHER)),
            (None, None) => (now, None),
        };
        Follower { state, read, waiting: VecDeque::new(), missed, _client: client }
    }

    /// The next event; `None` at the end of the stream.
    async fn next(&mut self, end: Instant) -> Option<Event> {
        while monotonic() < end {
            if self.waiting.is_empty() && self.missed.is_none() {
                self.poll().await;
            }
            if let Some(reason) = self.missed.take() {
                let data = serde_json::json!({ "reason": reason }).to_string();
                return Some(Event::default().event("reset").id(self.read.id()).data(data));
            }
            if let Some(event) = self.waiting.pop_front() {
                self.read.position += 1;
                return Some(Event::default().event("transition").id(self.read.id()).data(&*event));
            }
            if let Ok(shown) = self.state.summaries.recent().await
                && shown.tag != self.read.tag
            {
                self.read.tag = shown.tag.clone();
                return Some(Event::default().event("summary").id(self.read.id()).data(&*shown.json));
            }
            self.state.stop.run_until_cancelled(sleep(INTERVAL)).await?;
        }
        None
    }

    async fn poll(&mut self) {
        let following = self.state.feed.after(self.read.position, MAX_WAITING).await;
        if following.is_cut {
            self.read.position = following.end;
            self.missed = Some(TOO_MANY);
        }
        self.waiting = following.items.into();
    }
}

const ANOTHER: &str = "another process sent the last event";
const TOO_MANY: &str = "more transitions came than are kept";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_how_far_a_client_has_read() {
        let read = ReadUpTo { run: u64::MAX, position: 12, tag: "3f.a".to_owned() };
        assert_eq!(ReadUpTo::of(&read.id()), Some(read));
        for wrong in ["", "1", "1.2", "x.2.", "1.-2.", "3fa2b1"] {
            assert_eq!(ReadUpTo::of(wrong), None, "{wrong}");
        }
    }
}

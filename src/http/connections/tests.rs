//! Connections over real sockets, with small bounds.

use std::net::SocketAddr;
use std::sync::OnceLock;

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::http::{Config, Proxies, UnitMetrics};

const MAX_WAIT: Duration = Duration::from_secs(30);
const LONG: usize = 64 << 20;

struct Served {
    address: SocketAddr,
    telemetry: Arc<Telemetry>,
    /// Lets `/waits` answer.
    go: Arc<Notify>,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

impl Served {
    async fn start(limits: ConnectionLimits) -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)));
        let (go, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let wait = go.clone();
        let early = Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route("/other", get(|| async { "other" }))
            .route("/long", get(|| async { vec![b'x'; LONG] }))
            .route("/waits", get(|| async move { wait.notified().await }));
        let config = Config {
            listen: address,
            tokens: vec![],
            unit_metrics: UnitMetrics::Off,
            unit_metrics_limit: 1,
            requests_per_second: 0,
            external_url: None,
            tls: None,
            proxies: Proxies::default(),
            switches: None,
            example_topic: None,
        };
        let pages = Pages { config: Arc::new(config), early, all: Arc::new(OnceLock::new()) };
        let serving = accept(listener, None, pages, limits, telemetry.clone(), stop.clone());
        let server = tokio::spawn(async { serving.await.unwrap() });
        Served { address, telemetry, go, stop, server }
    }

    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request over a connection of its own, and returns the answer.
    async fn ask(&self, path: &str) -> String {
        let stream = self.send(&format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).await;
        rest(stream).await
    }

    /// Waits until this many connections were cut for that reason.
    async fn cut(&self, why: CutReason, count: u64) {
        let line = format!("rollcall_http_connections_cut_total{{reason=\"{}\"}} {count}\n", why.as_str());
        let awaited = async {
            loop {
                let text = prometheus::TextEncoder::new().encode_to_string(&self.telemetry.gather()).unwrap();
                if text.contains(&line) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(MAX_WAIT, awaited).await.expect("it is cut");
    }

    async fn end(self) {
        self.stop.cancel();
        self.server.await.unwrap();
    }
}

/// Reads until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    let read = stream.read_to_end(&mut all);
    let _ = tokio::time::timeout(MAX_WAIT, read).await.expect("the connection is closed");
    String::from_utf8(all).unwrap()
}

fn limits(most: usize, most_per_address: usize, reserved: usize) -> ConnectionLimits {
    ConnectionLimits { bounds: Bounds { most, most_per_address, reserved }, ..ConnectionLimits::default() }
}

#[tokio::test]
async fn requests_that_never_end_lose_their_slots_the_oldest_first() {
    let served = Served::start(limits(4, 4, 0)).await;
    let mut halves = Vec::new();
    for _ in 0..10 {
        halves.push(served.send("GET /healthz HTTP/1.1\r\nHost").await);
    }
    assert!(served.ask("/healthz").await.ends_with("ok"));
    served.cut(CutReason::Idle, 7).await;
    for half in halves.drain(..7) {
        assert_eq!(rest(half).await, "");
    }
    // The other connections still have their slots.
    let mut last = halves.pop().unwrap();
    last.write_all(b": a\r\nConnection: close\r\n\r\n").await.unwrap();
    assert!(rest(last).await.ends_with("ok"));
    served.end().await;
}

#[tokio::test]
async fn an_idle_connection_loses_its_slot_and_one_with_a_pending_request_does_not() {
    let served = Served::start(limits(2, 2, 1)).await;
    let answered = served.send("GET /waits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let mut idle = served.send("GET /other HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut some = [0; 5];
    idle.read_exact(&mut some).await.unwrap();
    // Each of these connections needs a slot.
    for _ in 0..3 {
        assert!(served.ask("/other").await.ends_with("other"));
    }
    rest(idle).await;
    served.go.notify_one();
    assert!(rest(answered).await.starts_with("HTTP/1.1 200"));
    served.end().await;
}

#[tokio::test]
async fn while_every_slot_is_in_use_health_is_answered_and_other_pages_answer_503() {
    let served = Served::start(limits(2, 2, 1)).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        busy.push(served.send("GET /waits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await);
    }
    let refused = async {
        // A connection that has sent no whole request is idle, and loses its slot instead.
        while !served.ask("/other").await.starts_with("HTTP/1.1 503") {
            busy.push(served.send("GET /waits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await);
        }
    };
    tokio::time::timeout(MAX_WAIT, refused).await.expect("every slot is in use");
    let refused = served.ask("/other").await;
    assert!(
        refused.contains("application/problem+json") && refused.contains("connection: close"),
        "{refused}"
    );
    assert!(served.ask("/healthz").await.ends_with("ok"));
    served.go.notify_waiters();
    served.end().await;
}

#[tokio::test]
async fn a_client_that_never_reads_loses_its_slot() {
    let write = WriteLimit { patience: Duration::from_millis(200), slowest_rate: LONG as u64 };
    let served = Served::start(ConnectionLimits { write, ..limits(1, 1, 0) }).await;
    let never = served.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n").await;
    served.cut(CutReason::SlowReader, 1).await;
    assert!(served.ask("/healthz").await.ends_with("ok"));
    drop(never);
    served.end().await;
}

#[tokio::test]
async fn a_client_that_never_reads_loses_its_slot_to_another_connection_before_its_deadline() {
    let write = WriteLimit { patience: Duration::from_secs(3600), slowest_rate: 1 };
    let served = Served::start(ConnectionLimits { write, ..limits(1, 1, 0) }).await;
    let mut never = served.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n").await;
    never.read_exact(&mut [0]).await.unwrap();
    let others = async {
        // The request is refused until the connection has been idle for longer than a slow reader pauses.
        while !served.ask("/healthz").await.ends_with("ok") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(MAX_WAIT, others).await.expect("it makes room");
    drop(never);
    served.end().await;
}

#[tokio::test]
async fn a_slow_reader_gets_its_whole_answer() {
    let served = Served::start(limits(1, 1, 0)).await;
    assert!(served.ask("/long").await.len() > LONG);
    served.end().await;
}

#[test]
fn no_address_has_all_slots_and_an_ipv6_network_counts_as_one_address() {
    let slots = ConnectionSlots::new(Bounds { most: 4, most_per_address: 2, reserved: 1 });
    let take = |peer: &str| {
        let mut lost = None;
        let slot = slots.take(peer.parse().unwrap(), |peer| lost = Some(peer.to_string()));
        (slot.as_ref().map(ConnectionSlot::kind), lost, slot)
    };
    let (first, _, busy) = take("10.0.0.1");
    let (second, _, _also) = take("::ffff:10.0.0.1");
    assert_eq!((first, second), (Some(SlotKind::AnyPage), Some(SlotKind::AnyPage)));
    // Its own idle connection is evicted.
    busy.as_ref().unwrap().activity().request_begins();
    let (kind, lost, third) = take("10.0.0.1");
    assert_eq!((kind, lost.as_deref()), (Some(SlotKind::AnyPage), Some("10.0.0.1")));
    third.as_ref().unwrap().activity().request_begins();
    let (kind, lost, _kept) = take("10.0.0.1");
    assert_eq!((kind, lost), (Some(SlotKind::Reserved), None), "both are in use");
    let others = [take("2001:db8::1"), take("2001:db8::2")];
    assert!(others.iter().all(|(kind, lost, _)| *kind == Some(SlotKind::AnyPage) && lost.is_none()));
    let (kind, lost, _sixth) = take("2001:db8::3");
    assert_eq!((kind, lost.as_deref()), (Some(SlotKind::AnyPage), Some("2001:db8::")));
}

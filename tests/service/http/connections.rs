//! Clients that hold connections without a request.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::world::{Fleet, MAX_WAIT};

#[tokio::test]
async fn requests_that_never_end_do_not_block_the_health_page() {
    allow_many_files();
    let fleet = Fleet::start().await;
    let address = fleet.url.strip_prefix("http://").unwrap();
    let mut halves = Vec::new();
    for _ in 0..800 {
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"GET /healthz HTTP/1.1\r\nHost: rollcall").await.unwrap();
        halves.push(half);
    }
    assert_eq!(fleet.text("/healthz").await, "ok");
    assert_eq!(fleet.get("/api/v1/records").await.status(), 200);
    // The first connection was closed for the last one, before any deadline.
    let closed = tokio::time::timeout(MAX_WAIT, halves[0].read(&mut [0])).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    let mut last = halves.pop().unwrap();
    last.write_all(b"\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(MAX_WAIT, last.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let page = fleet.text("/metrics").await;
    assert!(page.contains("rollcall_http_connections_cut_total{reason=\"idle\"} 1"), "{page}");
}

/// Both ends of every connection are file descriptors of this process.
pub(super) fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

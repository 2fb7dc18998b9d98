//! A cheap receiver of webhooks: it counts requests and their ids.
//!
//! The sink of the demo is not used here: it verifies and stores requests, and would dominate the figures.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// A running sink, which ends with this value.
pub struct Sink {
    address: SocketAddr,
    ids: Arc<Ids>,
    running: JoinHandle<()>,
}

/// The number of requests, and their ids.
#[derive(Default)]
struct Ids(Mutex<(u64, HashSet<Vec<u8>>)>);

impl Sink {
    /// Starts to listen.
    pub async fn start() -> anyhow::Result<Sink> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let ids = Arc::new(Ids::default());
        let shared = ids.clone();
        let running = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, shared.clone()));
            }
        });
        Ok(Sink { address, ids, running })
    }

    /// The address of the sink.
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// How many different notifications arrived.
    pub fn notified(&self) -> u64 {
        self.ids.0.lock().expect("nothing panics under this lock").1.len() as u64
    }

    /// How many requests arrived.
    pub fn requests(&self) -> u64 {
        self.ids.0.lock().expect("nothing panics under this lock").0
    }

    /// Forgets all requests.
    pub fn forget(&self) {
        *self.ids.0.lock().expect("nothing panics under this lock") = Default::default();
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Answers requests of one connection until it ends.
async fn answer(mut stream: TcpStream, ids: Arc<Ids>) {
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::with_capacity(8192);
    loop {
        while let Some((length, id)) = request(&buffer) {
            {
                let mut known = ids.0.lock().expect("nothing panics under this lock");
                known.0 += 1;
                known.1.insert(id);
            }
            buffer.drain(..length);
            if stream.write_all(ANSWER).await.is_err() {
                return;
            }
        }
        if !matches!(stream.read_buf(&mut buffer).await, Ok(1..)) {
            return;
        }
    }
}

/// The length of the first request and its `webhook-id`, if it is complete.
fn request(buffer: &[u8]) -> Option<(usize, Vec<u8>)> {
    let head = buffer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let mut id = Vec::new();
    let mut body = 0;
    for line in buffer[..head].split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        match line[..colon].to_ascii_lowercase().as_slice() {
            b"webhook-id" => id = value.to_vec(),
            b"content-length" => body = std::str::from_utf8(value).ok()?.parse().ok()?,
            _ => {}
        }
    }
    (buffer.len() >= head + body).then_some((head + body, id))
}

//! A TCP proxy that cuts and stalls connections, and loses one direction.

#![allow(dead_code, reason = "no test breaks it in every way")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The fault of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// No fault.
    #[default]
    Whole,
    /// Bytes wait, in both directions, without an error.
    Stalled,
    /// Bytes from the server are lost, the others arrive: a half-open connection.
    HalfOpen,
    /// Every connection breaks, and none is accepted.
    Cut,
    /// The answer to a command that contains this is lost, and the connection with it.
    Swallows(&'static str),
    /// A command that contains this arrives, and from then on all connections are stalled.
    StallsAfter(&'static str),
}

/// The proxy, which ends with this value.
pub struct Proxy {
    address: SocketAddr,
    wire: Arc<watch::Sender<Wire>>,
    _serving: JoinSet<()>,
}

impl Proxy {
    /// Listens on `on` (port 0: any) and forwards to `to`.
    pub async fn start(on: &str, to: &str) -> Proxy {
        let listener = TcpListener::bind(on).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (wire, to) = (Arc::new(watch::Sender::new(Wire::Whole)), to.to_owned());
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, to, wire.clone()));
        Proxy { address, wire, _serving: serving }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }
}

async fn serve(listener: TcpListener, to: String, wire: Arc<watch::Sender<Wire>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(carry(client, to.clone(), wire.clone()));
    }
}

async fn carry(client: TcpStream, to: String, set: Arc<watch::Sender<Wire>>) {
    let wire = set.subscribe();
    let mut cut = wire.clone();
    if *wire.borrow() == Wire::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(to).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (swallows, asked) = (wire.clone(), AtomicBool::new(false));
    let commands = |bytes: &[u8]| {
        let has = |command: &str| bytes.windows(command.len()).any(|window| window == command.as_bytes());
        let now = *swallows.borrow();
        match now {
            Wire::Swallows(command) if has(command) => asked.store(true, Ordering::SeqCst),
            Wire::StallsAfter(command) if has(command) => drop(set.send_replace(Wire::Stalled)),
            _ => {}
        }
        true
    };
    let answers = |_: &[u8]| !asked.load(Ordering::SeqCst);
    tokio::select! {
        () = pass(from_client, to_server, wire.clone(), false, commands) => {}
        () = pass(from_server, to_client, wire, true, answers) => {}
        _ = cut.wait_for(|wire| *wire == Wire::Cut) => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
    answers: bool,
    goes_on: impl Fn(&[u8]) -> bool,
) {
    let mut bytes = vec![0; 16 << 10];
    // After a loss the following bytes make no sense: a half-open connection never recovers.
    let mut lost = false;
    loop {
        let Ok(read @ 1..) = from.read(&mut bytes).await else { return };
        let Ok(now) = wire.wait_for(|wire| *wire != Wire::Stalled).await.map(|wire| *wire) else { return };
        lost |= answers && now == Wire::HalfOpen;
        if !goes_on(&bytes[..read]) {
            return;
        }
        if !lost && to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

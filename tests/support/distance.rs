//! A server that is far away: bytes in both directions are delayed, by a delay that may change.

use std::time::{Duration, Instant};

use rollcall::clock::monotonic;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

/// A proxy to a server of this machine.
pub struct Distance {
    port: u16,
    delay: watch::Sender<Duration>,
    cuts: watch::Sender<u32>,
    task: JoinHandle<()>,
}

impl Distance {
    /// A proxy to this port, with this round trip time.
    pub async fn to(port: u16, round_trip: Duration) -> Distance {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let near = listener.local_addr().unwrap().port();
        let (delay, delays) = watch::channel(round_trip / 2);
        let cuts = watch::Sender::new(0);
        let ends = cuts.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, port, delays.clone(), ends.subscribe()));
            }
        });
        Distance { port: near, delay, cuts, task }
    }

    /// Changes the round trip time, for bytes that are sent from now on. They stay in order.
    #[allow(dead_code, reason = "most tests have one distance")]
    pub fn set(&self, round_trip: Duration) {
        self.delay.send_replace(round_trip / 2);
    }

    /// Ends the connections of now; bytes that are on their way are lost.
    #[allow(dead_code, reason = "most tests keep their connections")]
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    client: TcpStream,
    port: u16,
    delay: watch::Receiver<Duration>,
    mut cuts: watch::Receiver<u32>,
) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = pass(from_client, to_server, delay.clone()) => {}
        () = pass(from_server, to_client, delay) => {}
        _ = cuts.changed() => {}
    }
}

/// Forwards each piece with the delay of its moment; pieces do not wait for one another, and stay in order.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: watch::Receiver<Duration>) {
    let (sender, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let arrive = async {
        while let Some((at, bytes)) = under_way.recv().await {
            sleep_until(at.into()).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let depart = async {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes).await {
            let delay = *delay.borrow();
            let _ = sender.send((monotonic() + delay, bytes[..read].to_vec()));
        }
    };
    tokio::select! {
        () = arrive => {}
        () = depart => {}
    }
}

//! Heartbeats at a given rate, or as many as the broker accepts.
//!
//! Implements just enough MQTT 3.1.1 to publish: packets are made once and sent again and again, so
//! that the broker is the bottleneck and not the publisher.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval_at};

use super::fleet::unit;
use rollcall::clock::monotonic;

/// Packets of QoS 1 that may wait for their acknowledgement, on each connection.
const WINDOW: usize = 1000;
/// The bytes of an acknowledgement.
const ACKNOWLEDGEMENT: usize = 4;
/// The most packets that are written at once.
const CHUNK: usize = 100;
/// How many times in a second each connection writes, if the rate is lower than this many chunks in a second.
const WRITES: u32 = 10;

/// The load to publish.
#[derive(Clone, Debug, Args)]
pub struct Load {
    /// Port of the broker.
    #[arg(long)]
    pub port: u16,
    /// The number of the first unit.
    #[arg(long, default_value_t = 0)]
    pub first: u32,
    /// How many units take turns.
    #[arg(long)]
    pub units: u32,
    /// The quality of service, 0 or 1.
    #[arg(long)]
    pub qos: u8,
    /// Heartbeats a second; 0: as many as the broker accepts.
    #[arg(long, default_value_t = 0)]
    pub rate: u32,
    /// Whether to send only one heartbeat for each unit.
    #[arg(long)]
    pub once: bool,
    /// The number of connections.
    #[arg(long, default_value_t = 4)]
    pub connections: u32,
}

impl Load {
    /// Starts a process that publishes this load; dropping the value ends it.
    pub fn start(&self) -> anyhow::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("publish");
        for (name, value) in [
            ("--port", u32::from(self.port)),
            ("--first", self.first),
            ("--units", self.units),
            ("--qos", self.qos.into()),
            ("--rate", self.rate),
            ("--connections", self.connections),
        ] {
            command.arg(name).arg(value.to_string());
        }
        command.args(self.once.then_some("--once"));
        Ok(command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?)
    }
}

/// Publishes until it is killed, or once for each unit.
pub async fn publish(load: Load) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    for part in 0..load.connections {
        connections.spawn(publish_part(load.clone(), part));
    }
    let mut input = super::subscriber::lines_of_input();
    tokio::select! {
        ended = connections.join_all() => ended.into_iter().collect(),
        _ = input.recv() => Ok(()),
    }
}

/// Publishes for `units` units of each kind, `<kind>/<number>`, at the interval of the kind, until each falls
/// silent, evenly within `span`.
pub async fn fall_silent(
    port: u16,
    intervals: &[(&str, Duration)],
    units: u32,
    span: Duration,
) -> anyhow::Result<()> {
    let mut beats: Vec<(Duration, Vec<u8>)> = Vec::new();
    for (kind, interval) in intervals {
        for number in 0..units {
            let packet = packet(&format!("{kind}/{number}"), 0, 0);
            let last = span * (number + 1) / units;
            // The heartbeats of one kind are spread over its interval.
            let first = *interval * (number % 20) / 20;
            let moments = (0..).map(|n| first + *interval * n).take_while(|at| *at < last);
            beats.extend(moments.chain([last]).map(|at| (at, packet.clone())));
        }
    }
    beats.sort_by_key(|(at, _)| *at);
    let mut stream = enter(port, "fleet").await?;
    let began = monotonic();
    for (at, packet) in beats {
        tokio::time::sleep_until((began + at).into()).await;
        stream.write_all(&packet).await?;
    }
    Ok(())
}

/// Publishes this payload on each of these topics over one connection. At QoS 1 the broker keeps what Rollcall has no
/// room for.
pub async fn publish_all(
    port: u16,
    topics: impl Iterator<Item = String>,
    payload: &[u8],
    qos: u8,
) -> anyhow::Result<()> {
    let packet = |(place, topic): (usize, String)| packet_of(&topic, qos, packet_id(place), payload);
    let packets: Vec<Vec<u8>> = topics.enumerate().map(packet).collect();
    let (packets, acknowledgements) = (packets.concat(), packets.len() * usize::from(qos) * ACKNOWLEDGEMENT);
    let mut stream = enter(port, "all").await?;
    let (mut reader, mut writer) = stream.split();
    let mut answers = vec![0; acknowledgements];
    tokio::try_join!(writer.write_all(&packets), reader.read_exact(&mut answers))?;
    writer.write_all(&[0xe0, 0]).await?;
    // The broker reads all packets before it sees the end of the connection.
    writer.shutdown().await?;
    Ok(())
}

/// A connection that the broker has accepted.
async fn enter(port: u16, client_id: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&connect(client_id)).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    ensure!(answer == [0x20, 2, 0, 0], "the broker does not let us in: {answer:?}");
    Ok(stream)
}

/// A device with a last will that says `offline` on this topic; it says `online` there. `keep_alive` in seconds; 0: none.
pub async fn with_will(
    port: u16,
    client_id: &str,
    topic: &str,
    keep_alive: u16,
) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let text = |text: &str| [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
    // MQTT 3.1.1, a clean session, a will at QoS 1.
    let head = [text("MQTT"), vec![4, 0b0000_1110], keep_alive.to_be_bytes().to_vec()].concat();
    let body = [head, text(client_id), text(topic), text("offline")].concat();
    stream.write_all(&[&[0x10, body.len() as u8], &body[..]].concat()).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    ensure!(answer == [0x20, 2, 0, 0], "the broker does not let us in: {answer:?}");
    stream.write_all(&packet_of(topic, 0, 0, b"online")).await?;
    Ok(stream)
}

/// Publishes the share of one connection.
async fn publish_part(load: Load, part: u32) -> anyhow::Result<()> {
    let stream = enter(load.port, &format!("publisher-{part}-{}", std::process::id())).await?;
    let (mut reader, mut writer) = stream.into_split();
    let window = Arc::new(Semaphore::new(WINDOW));
    let open = window.clone();
    let mut acknowledgements: JoinHandle<anyhow::Result<()>> = tokio::spawn(async move {
        // The content of an acknowledgement does not matter.
        let mut buffer = [0; 4096];
        let mut rest = 0;
        loop {
            let read = reader.read(&mut buffer).await?;
            ensure!(read > 0, "the broker ended the connection");
            open.add_permits((rest + read) / ACKNOWLEDGEMENT);
            rest = (rest + read) % ACKNOWLEDGEMENT;
        }
    });
    let chunks = chunks(&load, part);
    // Connections take turns: together they would be silent for most of the time.
    let first = monotonic() + pause(&load) * part / load.connections;
    let mut ticks = interval_at(first.into(), pause(&load));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        for (packets, bytes) in &chunks {
            if load.rate > 0 {
                ticks.tick().await;
            }
            if load.qos > 0 {
                window.acquire_many(*packets).await?.forget();
            }
            writer.write_all(bytes).await?;
        }
        if load.once {
            break;
        }
        tokio::task::yield_now().await;
    }
    if load.qos > 0 {
        tokio::select! {
            all = window.acquire_many(WINDOW as u32) => all?.forget(),
            ended = &mut acknowledgements => ended??,
        }
    }
    // The broker reads all packets before it sees the end of the connection.
    writer.write_all(&[0xe0, 0]).await?;
    writer.shutdown().await?;
    Ok(())
}

/// The time between two chunks of one connection.
fn pause(load: &Load) -> Duration {
    let per_second = f64::from(load.rate.max(1)) / f64::from(load.connections) / chunk(load) as f64;
    Duration::from_secs_f64(1.0 / per_second)
}

/// The packets of a chunk.
fn chunk(load: &Load) -> usize {
    match load.rate {
        0 => CHUNK,
        rate => ((rate / load.connections / WRITES) as usize).clamp(1, CHUNK),
    }
}

/// The packets of one connection, ready to be written, with their number.
fn chunks(load: &Load, part: u32) -> Vec<(u32, Vec<u8>)> {
    let numbers: Vec<u32> =
        (load.first..load.first + load.units).filter(|number| number % load.connections == part).collect();
    let packet = |(place, number): (usize, &u32)| {
        let topic = format!("units/{}/heartbeat", unit(*number).id);
        packet(&topic, load.qos, packet_id(place))
    };
    let packets: Vec<Vec<u8>> = numbers.iter().enumerate().map(packet).collect();
    packets.chunks(chunk(load)).map(|chunk| (chunk.len() as u32, chunk.concat())).collect()
}

/// The id of the packet with this number: unique among the packets that wait, which are far fewer than ids.
fn packet_id(number: usize) -> u16 {
    (number % 60_000 + 1) as u16
}

/// CONNECT with a clean session and no keep-alive.
fn connect(client_id: &str) -> Vec<u8> {
    let length = 10 + 2 + client_id.len() as u8;
    let mut packet = vec![0x10, length, 0, 4];
    packet.extend(b"MQTT");
    packet.extend([4, 2, 0, 0, 0, client_id.len() as u8]);
    packet.extend(client_id.as_bytes());
    packet
}

/// PUBLISH with a small payload.
fn packet(topic: &str, qos: u8, id: u16) -> Vec<u8> {
    packet_of(topic, qos, id, b"{\"battery\":87}")
}

fn packet_of(topic: &str, qos: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let id_length = if qos > 0 { 2 } else { 0 };
    let mut packet = vec![0x30 | (qos << 1), (2 + topic.len() + id_length + payload.len()) as u8];
    packet.extend((topic.len() as u16).to_be_bytes());
    packet.extend(topic.as_bytes());
    if qos > 0 {
        packet.extend(id.to_be_bytes());
    }
    packet.extend(payload);
    packet
}

//! Devices that connect straight to Rollcall, on the embedded engine, beside the same devices at a Mosquitto whose
//! client Rollcall is: processor time for a heartbeat, how soon it is acknowledged, and many connections.

use std::time::Duration;

use rollcall::clock::{Stopwatch, monotonic};
use rollcall::simulate::servers::free_port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::KIND;
use crate::harness::process::{cpu_of, usage};
use crate::harness::publisher::Load;
use crate::harness::world::Rollcall;
use crate::harness::{World, quantile, say, thousands, until};

const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(3);
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Units that take turns.
const UNITS: u32 = 10_000;
/// Connections that stay open.
const MANY: usize = 10_000;
const UNBOUNDED: &str = "max_rate = 0, max_bytes_per_second = 0";
const EMBEDDED: &str = "type = \"embedded\", path = \"fleet\"";

pub async fn run(report: &mut Report, _units: u32) -> anyhow::Result<()> {
    let mut world = World::new()?;
    for (connections, qos, rate) in [(1, 0, 0), (1, 1, 0), (50, 0, 0), (50, 1, 0), (50, 1, 1000)] {
        let speed =
            if rate == 0 { "as fast as they go".to_owned() } else { format!("{}/s", thousands(rate)) };
        let title = format!("{connections} connections, QoS {qos}, {speed}");
        say(&title);
        let (port, listener) = listens(&mut world, UNBOUNDED).await?;
        let straight = flow(&listener, port, None, (connections, qos, rate)).await?;
        drop(listener);
        world.renew_broker()?;
        let served = world.serve_on(EMBEDDED, &format!("mqtt.qos = {qos}\n{KIND}")).await?;
        let broker = Some(world.broker.pid());
        let around = flow(&served, world.broker.port(), broker, (connections, qos, rate)).await?;
        for (by, (a_second, cpu)) in [("straight", straight), ("over Mosquitto", around)] {
            report.add(format!("{title}, {by}: recorded"), a_second, "/s", Goal::None);
            report.add(format!("{title}, {by}: processor time for each"), cpu, "µs", Goal::None);
        }
        report.add(
            format!("{title}: processor time, straight ÷ over Mosquitto"),
            straight.1 / around.1,
            "",
            Goal::None,
        );
    }
    for (rate, goal) in [(10, Goal::AtMost(20.0)), (1000, Goal::AtMost(20.0)), (20_000, Goal::AtMost(20.0))] {
        let (port, listener) = listens(&mut world, UNBOUNDED).await?;
        let (mut waits, title) =
            (latencies(port, rate).await?, format!("at {} heartbeats/s", thousands(rate)));
        say(&title);
        report.add(format!("{title}: median acknowledgement"), quantile(&mut waits, 0.5), "ms", Goal::None);
        report.add(format!("{title}: p99 of acknowledgements"), quantile(&mut waits, 0.99), "ms", goal);
        drop(listener);
    }
    beside(report, &mut world).await?;
    many(report, &mut world).await
}

/// A Rollcall that listens with these limits, and the port for devices.
async fn listens(world: &mut World, limits: &str) -> anyhow::Result<(u16, Rollcall)> {
    let port = free_port()?;
    let options =
        format!("broker = {{ listen = \"127.0.0.1:{port}\", {limits}, max_connections = 20000 }}\n{KIND}");
    let engine = EMBEDDED;
    // mqtt.url keeps its default: there is no other broker.
    Ok((port, world.serve_straight(engine, &options).await?))
}

/// Recorded heartbeats a second, and the processor time of Rollcall and the broker for each, in µs.
async fn flow(
    rollcall: &Rollcall,
    port: u16,
    broker: Option<u32>,
    (connections, qos, rate): (u32, u8, u32),
) -> anyhow::Result<(f64, f64)> {
    // The first heartbeat of a unit costs a transaction, which is not what is measured here.
    let first = Load { port, first: 0, units: UNITS, qos: 1, rate: 0, once: true, connections };
    let mut publisher = first.start()?;
    // It ends with its input, which `wait` would close.
    let _input = publisher.stdin.take();
    publisher.wait().await?;
    until("every unit is known", MAX_WAIT, async || Ok(rollcall.recorded().await? >= f64::from(UNITS)))
        .await?;
    let load = Load { qos, rate, once: false, ..first };
    let _publisher = load.start()?;
    tokio::time::sleep(WARM_UP).await;
    let pids: Vec<u32> = [rollcall.server.pid()].into_iter().chain(broker).collect();
    let (before, began, first) = (cpu_of(&pids)?, Stopwatch::start(), rollcall.recorded().await?);
    tokio::time::sleep(MEASURED).await;
    let count = rollcall.recorded().await? - first;
    let spent = cpu_of(&pids)? - before;
    Ok((count / began.elapsed().as_secs_f64(), spent.as_secs_f64() * 1e6 / count))
}

/// A client of MQTT 3.1.1.
async fn connect(port: u16, id: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let head = [0x10, 12 + id.len() as u8, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, id.len() as u8];
    stream.write_all(&[&head[..], id.as_bytes()].concat()).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    anyhow::ensure!(answer == [0x20, 2, 0, 0], "it is let in");
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// How long each acknowledgement took, in ms, at `rate` heartbeats a second over ten connections.
async fn latencies(port: u16, rate: u32) -> anyhow::Result<Vec<f64>> {
    const CONNECTIONS: u32 = 10;
    let mut clients = JoinSet::new();
    for number in 0..CONNECTIONS {
        let mut stream = connect(port, &format!("latency-{number}")).await?;
        clients.spawn(async move {
            let mut waits = Vec::new();
            let mut ticks = tokio::time::interval(Duration::from_secs(1) * CONNECTIONS / rate);
            let until = monotonic() + WARM_UP + MEASURED;
            let topic = format!("units/{number:03}/heartbeat");
            let head = [0x32, topic.len() as u8 + 6, 0, topic.len() as u8];
            let packet = [&head[..], topic.as_bytes(), b"\0\x01{}"].concat();
            while monotonic() < until {
                ticks.tick().await;
                let (sent, mut answer) = (Stopwatch::start(), [0; 4]);
                stream.write_all(&packet).await?;
                stream.read_exact(&mut answer).await?;
                waits.push(sent.elapsed().as_secs_f64() * 1e3);
            }
            anyhow::Ok(waits)
        });
    }
    let all: anyhow::Result<Vec<Vec<f64>>> = clients.join_all().await.into_iter().collect();
    Ok(all?.concat())
}

/// The acknowledgements of other devices beside one device that sends as much as it can, small messages and large
/// ones, and does not read the messages that it subscribed to.
async fn beside(report: &mut Report, world: &mut World) -> anyhow::Result<()> {
    let (port, _listener) = listens(world, "max_rate = 1000").await?;
    let title = "beside one device at its limits";
    say(title);
    let small = b"\x30\x14\x00\x10units/flood/data{}".repeat(500);
    let large = format!("{{\"a\":[0{}]}}", ",1".repeat(120 << 10));
    let length = 2 + 16 + large.len();
    let header =
        [0x30, (length & 0x7f | 0x80) as u8, (length >> 7 & 0x7f | 0x80) as u8, (length >> 14) as u8];
    let large = [&header[..], b"\x00\x10units/flood/data", large.as_bytes()].concat();
    let mut deaf = connect(port, "deaf").await?;
    deaf.write_all(b"\x82\x0c\x00\x01\x00\x07units/#\x01").await?;
    let mut device = JoinSet::new();
    for (id, packets) in [("small", small), ("large", large)] {
        let mut stream = connect(port, id).await?;
        device.spawn(async move { while stream.write_all(&packets).await.is_ok() {} });
    }
    let mut waits = latencies(port, 1000).await?;
    let p99 = quantile(&mut waits, 0.99);
    report.add(format!("{title}: p99 of acknowledgements of others"), p99, "ms", Goal::AtMost(50.0));
    device.shutdown().await;
    Ok(())
}

/// Memory of many connections, how fast they are accepted, and how fast all of them come back.
async fn many(report: &mut Report, world: &mut World) -> anyhow::Result<()> {
    let (port, listener) = listens(world, UNBOUNDED).await?;
    let before = usage(listener.server.pid())?.rss;
    let title = format!("{} connections", thousands(MANY as u32));
    say(&title);
    let mut open = Vec::new();
    for what in ["accepted", "accepted again at once"] {
        open.clear();
        let began = Stopwatch::start();
        let mut clients = JoinSet::new();
        for part in 0..20 {
            clients.spawn(async move {
                let mut streams = Vec::new();
                for number in 0..MANY / 20 {
                    streams.push(connect(port, &format!("many-{part}-{number}")).await?);
                }
                anyhow::Ok(streams)
            });
        }
        for streams in clients.join_all().await {
            open.extend(streams?);
        }
        report.add(format!("{title}: {what}"), MANY as f64 / began.elapsed().as_secs_f64(), "/s", Goal::None);
    }
    let memory = usage(listener.server.pid())?.rss.saturating_sub(before) as f64 / 1e6;
    report.add(format!("{title}: memory"), memory, "MB", Goal::AtMost(100.0));
    Ok(())
}

//! What announcements cost: the last wills of a storm; a message of Sparkplug beside a plain heartbeat; the time from a
//! cut socket to the webhook, at a broker and at the listener; and the published states of a storm.
//!
//! A socket is cut in two ways. If it is closed, the broker knows it at once. If its device just falls silent, as
//! without power, the broker knows it after one and a half times the keep-alive. At a broker that does not say which
//! sessions were taken over, an announcement waits for a birth (`TAKEOVER`), so there is no goal.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rollcall::clock::{Clock, Stopwatch};
use rollcall::presence::TAKEOVER;
use rollcall::simulate::servers::free_port;
use rumqttc::{AsyncClient, Event, MqttOptions, Packet, QoS, SubscribeFilterInput};
use tokio::task::JoinSet;

use crate::harness::figures::{Goal, Report, TAKEN};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT, unit};
use crate::harness::other_load::OtherLoad;
use crate::harness::process::usage;
use crate::harness::publisher;
use crate::harness::sink::Sink;
use crate::harness::world::Rollcall;
use crate::harness::{World, quantile, thousands};
use crate::mass::wait_for;
use crate::wills;

const MAX_WAIT: Duration = Duration::from_secs(120);
/// How often a process is asked: the answer costs it a little.
const ASKED: Duration = Duration::from_millis(50);
/// Nodes of Sparkplug and plain units, and the messages of each in one measurement.
const NODES: u32 = 10_000;
const ROUNDS: u32 = 10;
/// How often each is measured, in turn.
const TURNS: usize = 3;
/// Sockets that are closed, and sockets that fall silent.
const CLOSED: u32 = 30;
const SILENT: u32 = 5;
/// The keep-alive of a device that falls silent, in seconds.
const KEEP_ALIVE: u16 = 2;
/// How long it may take from the moment at which the broker knows of the end of a socket to the webhook, in ms.
const TOLD_WITHIN: f64 = 10.0;
const SPARKPLUG: &str =
    "[[kind]]\nname = \"edge\"\ntimeout = \"48h\"\npresence = { format = \"sparkplug\", trust = \"proof\" }";
const LAMPS: &str = "[[kind]]\nname = \"lamp\"\ntopics = [\"lamps/{unit}/data\"]\ntimeout = \"48h\"\n\
    presence = { format = \"last_will\", trust = \"proof\", topics = [\"lamps/{unit}/status\"] }";

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    wills::run(report, units).await?;
    let others = OtherLoad::watch()?;
    sparkplug(report).await?;
    cut_sockets(report).await?;
    states(report, units / 10).await?;
    report.add("announcements: ".to_owned() + TAKEN, others.percent()?, "%", Goal::None);
    Ok(())
}

/// A payload of Sparkplug: a time, metrics with aliases and numbers, and the number of the message.
fn payload(metrics: u8, seq: u8) -> Vec<u8> {
    let time = [0x08, 0x80, 0xd0, 0xb6, 0xb1, 0xb4, 0x32];
    let metric = |alias: u8| [0x12, 15, 0x10, alias, 0x20, 10, 0x69, 0, 0, 0, 0, 0, 0, 0x45, 0x40, 0x38, 0];
    let metrics = (1..=metrics).flat_map(metric);
    time.into_iter().chain(metrics).chain([0x18, seq]).collect()
}

async fn sparkplug(report: &mut Report) -> anyhow::Result<()> {
    let mut world = World::new()?;
    let now = Clock::system().now();
    Fleet(0..NODES).fill(&world.engine().await?, now, |_| now).await?;
    let process = world.serve(&format!("{KIND}\n{SPARKPLUG}\n")).await?;
    let port = world.broker.port();
    let nodes = |what: &'static str| (0..NODES).map(move |n| format!("spBv1.0/plant/{what}/node-{n:07}"));
    let beats = || (0..NODES).map(|n| format!("units/{}/heartbeat", unit(n).id));
    let births: Vec<String> = nodes("NBIRTH").collect();
    cost(&process, port, births, &payload(4, 0), 1).await?;
    let (mut plain, mut data) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        plain.push(cost(&process, port, beats().collect(), b"{\"temperature\":42.5}", ROUNDS).await?);
        data.push(cost(&process, port, nodes("NDATA").collect(), &payload(4, 1), ROUNDS).await?);
    }
    let (plain, data) = (quantile(&mut plain, 0.5), quantile(&mut data, 0.5));
    report.add("a plain heartbeat: CPU of Rollcall", plain, "µs", Goal::None);
    report.add("an NDATA with four metrics: CPU of Rollcall", data, "µs", Goal::None);
    report.add("NDATA ÷ plain heartbeat", data / plain, "", Goal::AtMost(1.3));
    Ok(())
}

/// The CPU time of Rollcall for each message, in µs.
async fn cost(
    process: &Rollcall,
    port: u16,
    topics: Vec<String>,
    payload: &[u8],
    rounds: u32,
) -> anyhow::Result<f64> {
    let (pid, count) = (process.server.pid(), f64::from(rounds) * topics.len() as f64);
    let before = usage(pid)?.cpu;
    for _ in 0..rounds {
        let recorded = process.recorded().await?;
        publisher::publish_all(port, topics.iter().cloned(), payload, 0).await?;
        at_least(process, recorded + topics.len() as f64, Rollcall::recorded).await?;
    }
    Ok((usage(pid)?.cpu - before).as_secs_f64() * 1e6 / count)
}

/// Waits until a number of a process has reached `wanted`.
async fn at_least(
    process: &Rollcall,
    wanted: f64,
    number: impl AsyncFn(&Rollcall) -> anyhow::Result<f64>,
) -> anyhow::Result<()> {
    let began = Stopwatch::start();
    while number(process).await? < wanted {
        anyhow::ensure!(began.elapsed() < MAX_WAIT, "not within {MAX_WAIT:?}");
        tokio::time::sleep(ASKED).await;
    }
    Ok(())
}

async fn cut_sockets(report: &mut Report) -> anyhow::Result<()> {
    let sink = Sink::start().await?;
    let options = format!(
        "{LAMPS}\n[route]\nreceivers = [\"hook\"]\ngroup_by = [\"unit\"]\ngroup_wait = \"0s\"\n\
         [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"{}\"\n",
        sink.url()
    );
    let mut world = World::new()?;
    let process = world.serve(&options).await?;
    let port = world.broker.port();
    cut(report, "Mosquitto", &process, port, &sink, |_| Goal::None).await?;
    drop(process);
    let mut world = World::new()?;
    let (port, url) = (free_port()?, format!("url = \"redis://127.0.0.1:{}/0\"", world.redis.port()));
    let listen = format!("broker.listen = \"127.0.0.1:{port}\"\n");
    let process = world.serve_straight(&url, &(listen + &options)).await?;
    cut(report, "the listener", &process, port, &sink, |known| Goal::AtMost(known + TOLD_WITHIN)).await
}

/// Cuts sockets of devices with wills, one after the other. `goal`: by the time after which the broker knows it, in ms.
async fn cut(
    report: &mut Report,
    at: &str,
    process: &Rollcall,
    port: u16,
    sink: &Sink,
    goal: impl Fn(f64) -> Goal,
) -> anyhow::Result<()> {
    let known = 1500.0 * f64::from(KEEP_ALIVE);
    let cuts = [("closed", 0, CLOSED, 0.0), ("silent", KEEP_ALIVE, SILENT, known)];
    for (how, keep_alive, count, known) in cuts {
        let mut times = Vec::new();
        for number in 0..count {
            let recorded = process.recorded().await?;
            let name = format!("{how}-{number}");
            let topic = format!("lamps/{name}/status");
            let device = publisher::with_will(port, &name, &topic, keep_alive).await?;
            let (told, mut began) = (sink.notified(), Stopwatch::start());
            at_least(process, recorded + 1.0, Rollcall::recorded).await?;
            if keep_alive == 0 {
                // A will right after a birth may be that of the session before.
                tokio::time::sleep(TAKEOVER + ASKED).await;
                began = Stopwatch::start();
            }
            let _silent = (keep_alive > 0).then_some(device);
            while sink.notified() == told {
                anyhow::ensure!(began.elapsed() < MAX_WAIT, "no webhook within {MAX_WAIT:?}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            times.push(began.elapsed().as_secs_f64() * 1000.0);
        }
        let title = match keep_alive {
            0 => format!("from a closed socket at {at} to the webhook"),
            _ => format!("from the silence of a socket at {at}, keep-alive {keep_alive} s, to the webhook"),
        };
        report.add(format!("{title}, p50"), quantile(&mut times, 0.5), "ms", goal(known));
        report.add(format!("{title}, p95"), quantile(&mut times, 0.95), "ms", Goal::None);
    }
    Ok(())
}

/// Counts the units that are published as offline.
struct OfflineStates {
    units: Arc<AtomicUsize>,
    // Ends with this value.
    _reading: JoinSet<anyhow::Result<()>>,
}

impl OfflineStates {
    async fn watch(port: u16) -> anyhow::Result<OfflineStates> {
        let options = MqttOptions::new("offline-states", ("127.0.0.1", port));
        let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
        client.try_subscribe_many([SubscribeFilterInput::new("rollcall/state/#", QoS::AtMostOnce)])?;
        while !matches!(events.poll().await?, Event::Incoming(Packet::SubAck(_))) {}
        let (units, mut reading) = (Arc::<AtomicUsize>::default(), JoinSet::new());
        let count = units.clone();
        reading.spawn(async move {
            let (_client, mut offline) = (client, HashSet::new());
            loop {
                if let Event::Incoming(Packet::Publish(publish)) = events.poll().await?
                    && publish.payload.starts_with(b"{\"state\":\"offline\"")
                {
                    offline.insert(publish.topic);
                    count.store(offline.len(), Ordering::Relaxed);
                }
            }
        });
        Ok(OfflineStates { units, _reading: reading })
    }
}

async fn states(report: &mut Report, due: u32) -> anyhow::Result<()> {
    let clock = Clock::system();
    let mut world = World::new()?;
    let instant = clock.now() + Duration::from_secs(10) + Duration::from_micros(500) * due;
    Fleet(0..due).fill(&world.engine().await?, clock.now(), |_| instant - TIMEOUT).await?;
    let process = world.serve(&format!("mqtt.publish_state = true\n{KIND}\n")).await?;
    let published = async |process: &Rollcall| {
        process.metric("rollcall_states_published_total{result=\"published\"}").await
    };
    at_least(&process, due.into(), published).await?;
    anyhow::ensure!(clock.now() < instant, "the first states were published too late");
    let offline = OfflineStates::watch(world.broker.port()).await?;
    let before = usage(process.server.pid())?.rss;
    wait_for(instant, &clock).await?;
    let mut most = before;
    while offline.units.load(Ordering::Relaxed) < due as usize {
        most = most.max(usage(process.server.pid())?.rss);
        anyhow::ensure!(clock.now().since(instant) < MAX_WAIT, "not within {MAX_WAIT:?}");
        tokio::time::sleep(ASKED).await;
    }
    let messages = published(&process).await? - f64::from(due);
    let (took, more) = (clock.now().since(instant).as_secs_f64(), (most - before) as f64 / (1 << 20) as f64);
    let title = format!("states of {} units that fall silent at one instant", thousands(due));
    report.add(format!("{title}: published"), took, "s", Goal::AtMost(10.0));
    report.add(format!("{title}: messages for each"), messages / f64::from(due), "", Goal::None);
    report.add(format!("{title}: memory above that before"), more, "MB", Goal::None);
    Ok(())
}

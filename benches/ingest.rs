//! Recorded heartbeats per second at saturation, compared with a bare subscriber of the same
//! broker. Broker, publisher, Redis and Rollcall share the cores, so the CPU time of each per
//! message is shown, too.

use std::time::Duration;

use rollcall::clock::{Clock, Stopwatch};

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND};
use crate::harness::process::usage;
use crate::harness::publisher::Load;
use crate::harness::subscriber::Subscriber;
use crate::harness::{World, say, thousands};

/// The time until queues are as full as they get.
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(3);
/// How often each subscriber is measured, in turn, so that other load on the machine hits all of them.
const TURNS: usize = 3;
/// The small fleet.
const FEW: u32 = 10_000;

/// The subscriber that takes the messages.
#[derive(Clone, Copy)]
enum Taker {
    Bare,
    RedisWriter,
    Rollcall,
}

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    for fleet in [FEW, units] {
        let mut world = World::new()?;
        let now = Clock::system().now();
        Fleet(0..fleet).fill(&world.engine().await?, now, |_| now).await?;
        for persistent in [false, true] {
            if persistent {
                world.persist().await?;
            }
            for qos in [0, 1] {
                let log = if persistent { ", AOF everysec" } else { "" };
                let title = format!("QoS {qos}, {} units{log}", thousands(fleet));
                say(&title);
                compare(report, &title, &mut world, fleet, qos).await?;
            }
        }
    }
    Ok(())
}

async fn compare(
    report: &mut Report,
    title: &str,
    world: &mut World,
    fleet: u32,
    qos: u8,
) -> anyhow::Result<()> {
    let (mut bare, mut writer, mut rollcall) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        bare.push(flow_to(Taker::Bare, world, fleet, qos).await?);
        writer.push(flow_to(Taker::RedisWriter, world, fleet, qos).await?);
        rollcall.push(flow_to(Taker::Rollcall, world, fleet, qos).await?);
    }
    let [bare, writer, rollcall] = [bare, writer, rollcall].map(middle);
    report.add(format!("{title}: bare subscriber"), bare.per_second, "/s", Goal::None);
    report.add(format!("{title}: bare subscriber that writes to Redis"), writer.per_second, "/s", Goal::None);
    report.add(format!("{title}: recorded"), rollcall.per_second, "/s", Goal::None);
    let share = rollcall.per_second / bare.per_second;
    report.add(format!("{title}: recorded ÷ bare"), share, "", Goal::AtLeast(0.9));
    let bound = writer.per_second / bare.per_second;
    report.add(format!("{title}: the same of the one that writes to Redis"), bound, "", Goal::None);
    for (name, cpu) in &bare.cpu {
        report.add(format!("{title}, bare: CPU of {name} for a message"), *cpu, "µs", Goal::None);
    }
    for (name, cpu) in &rollcall.cpu {
        report.add(format!("{title}: CPU of {name} for a message"), *cpu, "µs", Goal::None);
    }
    Ok(())
}

/// The result of a load.
struct Flow {
    per_second: f64,
    /// CPU time for a message in µs, by process.
    cpu: Vec<(&'static str, f64)>,
}

/// The flow with the median rate.
fn middle(mut flows: Vec<Flow>) -> Flow {
    flows.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    flows.swap_remove(flows.len() / 2)
}

/// Measures a subscriber with a fresh broker, which has no sessions of earlier ones.
async fn flow_to(taker: Taker, world: &mut World, units: u32, qos: u8) -> anyhow::Result<Flow> {
    world.renew_broker()?;
    let load = Load { port: world.broker.port(), first: 0, units, qos, rate: 0, once: false, connections: 4 };
    let redis = match taker {
        Taker::Rollcall => return recorded(&load, world).await,
        Taker::RedisWriter => Some(world.redis.port()),
        Taker::Bare => None,
    };
    let mut subscriber = Subscriber::start(load.port, load.qos, redis).await?;
    let publisher = load.start()?;
    let pids = [
        ("the broker", world.broker.pid()),
        ("the publisher", publisher.id().unwrap_or(0)),
        ("the subscriber", subscriber.child.id().unwrap_or(0)),
    ];
    flow(&pids, async || subscriber.count().await).await
}

async fn recorded(load: &Load, world: &mut World) -> anyhow::Result<Flow> {
    let rollcall = world.serve(&format!("mqtt.qos = {}\n{KIND}", load.qos)).await?;
    let publisher = load.start()?;
    let pids = [
        ("the broker", world.broker.pid()),
        ("the publisher", publisher.id().unwrap_or(0)),
        ("Redis", world.redis.pid()),
        ("Rollcall", rollcall.server.pid()),
    ];
    flow(&pids, async || rollcall.recorded().await).await
}

/// Counts for a while, after the warm-up.
async fn flow(
    pids: &[(&'static str, u32)],
    mut count: impl AsyncFnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<Flow> {
    tokio::time::sleep(WARM_UP).await;
    let before: Vec<Duration> = cpu(pids)?;
    let (began, first) = (Stopwatch::start(), count().await?);
    tokio::time::sleep(MEASURED).await;
    let messages = count().await? - first;
    let per_second = messages / began.elapsed().as_secs_f64();
    let after = cpu(pids)?;
    let used = before.iter().zip(after).map(|(before, after)| after - *before);
    let cpu = pids.iter().zip(used).map(|((name, _), cpu)| (*name, cpu.as_secs_f64() * 1e6 / messages));
    Ok(Flow { per_second, cpu: cpu.collect() })
}

fn cpu(pids: &[(&'static str, u32)]) -> anyhow::Result<Vec<Duration>> {
    pids.iter().map(|(_, pid)| Ok(usage(*pid)?.cpu)).collect()
}

//! Ten times the large fleet on three primaries and two instances of Rollcall: memory, the time to start, processor
//! time, and how late records are; heartbeats beside a cluster with the large fleet.
//!
//! The benchmark runs only if it is chosen: registering the units takes several minutes, and Redis some gigabytes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;

use rollcall::clock::Clock;
use rollcall::presence::Heartbeat;
use rollcall::store::redis::{RedisConfig, RedisEngine};
use rollcall::telemetry::Telemetry;

use crate::engine::{hear, roll};
use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND};
use crate::harness::process::usage;
use crate::harness::publisher::Load;
use crate::harness::servers::plan;
use crate::harness::world::Rollcall;
use crate::harness::{Servers, World, quantile, say, thousands};
use crate::lateness::{FLOW, due_within, show};
use crate::pages;
use crate::support::cluster::Cluster;

/// How many times as large as the large fleet this one is.
const TIMES: u32 = 10;
const INSTANCES: usize = 2;
/// Heartbeats whose cost is measured, spread over the fleet, and the number of measurements.
const BEATS: u32 = 500_000;
const PAIRS: usize = 5;
/// Units that come due one after the other, and in which time.
const DUE: u32 = 200;
const SPAN: Duration = Duration::from_secs(60);
/// The pages of one partition, and the most pages of a fleet: see `store/redis/keys.rs`.
const PAGES: u64 = 1024;
const MAX_PAGES: u64 = 65_536;
/// The most memory of a unit in bytes, in Redis and in Rollcall together, including the memory for registering.
const ROOM: u64 = 1000;

pub async fn run(report: &mut Report, base: u32) -> anyhow::Result<()> {
    let units = TIMES * base;
    let free = available()?;
    let needed = ROOM * u64::from(units + base);
    ensure!(free > needed, "{} MB of memory are needed and {} MB are free", needed >> 20, free >> 20);
    let clock = Clock::system();
    let mut world = World::new()?;
    let (small, large) = (Cluster::start(plan()).await, Cluster::start(plan()).await);
    let sides = [Servers::of(&small).await?, Servers::of(&large).await?];
    let empty = sides[1].memory()?;
    for (side, units) in sides.iter().zip([base, units]) {
        let now = clock.now();
        Fleet(0..units).fill(&side.engine().await?, now, |_| now).await?;
    }
    let title = format!("{} units on three primaries", thousands(units));
    let each = (sides[1].memory()? - empty) as f64 / f64::from(units);
    report.add(format!("{title}: memory of Redis for a unit"), each, "bytes", Goal::None);
    heartbeats(report, &sides, [base, units], &clock).await?;
    drop(small);
    full_pages(report, base, &clock).await?;
    let servers = &sides[1];
    let instances = start(report, &title, &mut world, servers).await?;
    rest(report, &title, servers, &instances, units, &clock).await?;
    let port = world.broker.port();
    let load = Load { port, first: 0, units: base, qos: 0, rate: FLOW, once: false, connections: 2 };
    let publisher = load.start()?;
    let (written, mut late) = due_within(SPAN, units + DUE, DUE, servers, &clock).await?;
    drop(publisher);
    let flow = format!("{title}, {DUE} due in a minute with {} heartbeats/s", thousands(FLOW));
    report.add(format!("{flow}: records"), written as f64, "", Goal::Exactly(f64::from(DUE)));
    show(report, &flow, &mut late);
    for (number, rollcall) in instances.iter().enumerate() {
        let what = format!("{title}: /metrics of instance {}", number + 1);
        report.add(what, pages::aggregates(rollcall).await?, "ms", Goal::AtMost(20.0));
    }
    Ok(())
}

/// The memory of units on pages that are as full as those of a hundred times the large fleet.
async fn full_pages(report: &mut Report, base: u32, clock: &Clock) -> anyhow::Result<()> {
    let world = World::new()?;
    let servers = Servers::one(&world).await?;
    let telemetry = Arc::new(Telemetry::new(clock));
    let config = RedisConfig { url: servers.url.clone(), partitions: Some(1), ..RedisConfig::default() };
    let engine = Arc::new(RedisEngine::connect(&config, telemetry).await?);
    let units = (u64::from(base) * 100 * PAGES / MAX_PAGES) as u32;
    let (empty, now) = (servers.memory()?, clock.now());
    Fleet(0..units).fill(&engine, now, |_| now).await?;
    let each = (servers.memory()? - empty) as f64 / f64::from(units);
    let what = format!("pages as full as with {} units: memory of Redis for a unit", thousands(100 * base));
    report.add(what, each, "bytes", Goal::None);
    Ok(())
}

/// The memory of this machine that is free, in bytes.
fn available() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let free = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("free memory")?;
    Ok(free.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// The processor time of heartbeats of both fleets, in turn.
async fn heartbeats(
    report: &mut Report,
    sides: &[Servers; 2],
    units: [u32; 2],
    clock: &Clock,
) -> anyhow::Result<()> {
    say("heartbeats");
    let (mut redis, mut rollcall) = ([Vec::<f64>::new(), Vec::new()], [Vec::<f64>::new(), Vec::new()]);
    let mut rolls = Vec::new();
    for side in sides {
        rolls.push(Arc::new(roll(side.engine().await?, clock)));
    }
    for _ in 0..PAIRS {
        for side in 0..2 {
            let beats = spread(units[side], clock);
            let (before, redis_before) = (usage(std::process::id())?.cpu, sides[side].cpu()?);
            hear(&rolls[side], &beats, clock).await?;
            let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / beats.len() as f64;
            rollcall[side].push(each(usage(std::process::id())?.cpu - before));
            redis[side].push(each(sides[side].cpu()? - redis_before));
        }
    }
    let both = std::array::from_fn(|side| {
        redis[side].iter().zip(&rollcall[side]).map(|(redis, rollcall)| redis + rollcall).collect()
    });
    let sums = [
        ("Redis", redis, Goal::None),
        ("Rollcall", rollcall, Goal::None),
        ("both together", both, Goal::AtMost(1.3)),
    ];
    for (name, mut costs, goal) in sums {
        let mut ratios: Vec<f64> = costs[0].iter().zip(&costs[1]).map(|(few, many)| many / few).collect();
        for (units, costs) in units.iter().zip(&mut costs) {
            let title =
                format!("{} units on three primaries: CPU for a heartbeat, {name}", thousands(*units));
            report.add(title, quantile(costs, 0.5), "µs", Goal::None);
        }
        let title =
            format!("CPU for a heartbeat, {name}: {} ÷ {} units", thousands(units[1]), thousands(units[0]));
        report.add(title, quantile(&mut ratios, 0.5), "", goal);
    }
    Ok(())
}

/// A heartbeat of each of `units` units, spread over the fleet: neighbours in time are not neighbours in memory.
fn spread(units: u32, clock: &Clock) -> Vec<Heartbeat> {
    let (now, count) = (clock.now(), BEATS.min(units));
    let step = units / count;
    // The multiplier has no factor in common with a number of units that is a power of ten.
    let number = |n: u32| (u64::from(n) * 7_919 % u64::from(count)) as u32 * step;
    (0..count).flat_map(|n| Fleet(number(n)..number(n) + 1).beats(now)).collect()
}

/// Starts all instances at once.
async fn start(
    report: &mut Report,
    title: &str,
    world: &mut World,
    servers: &Servers,
) -> anyhow::Result<Vec<Rollcall>> {
    let mut launched = Vec::new();
    for _ in 0..INSTANCES {
        launched.push(world.launch(&servers.setting(), &format!("mqtt.share = \"bench\"\n{KIND}"))?);
    }
    let instances = try_join_all(launched.into_iter().map(Rollcall::until_ready)).await?;
    let slowest = instances.iter().map(|one| one.ready_after).max().unwrap_or_default();
    let what = format!("{title}: {INSTANCES} instances that start together are ready after");
    report.add(what, slowest.as_secs_f64(), "s", Goal::None);
    Ok(instances)
}

/// A minute in which only a few units come due.
async fn rest(
    report: &mut Report,
    title: &str,
    servers: &Servers,
    instances: &[Rollcall],
    units: u32,
    clock: &Clock,
) -> anyhow::Result<()> {
    let cpu =
        || instances.iter().map(|one| Ok(usage(one.server.pid())?.cpu)).sum::<anyhow::Result<Duration>>();
    let (began, before, redis_before) = (clock.now(), cpu()?, servers.cpu()?);
    let (written, mut late) = due_within(SPAN, units, DUE, servers, clock).await?;
    let passed = clock.now().since(began).as_secs_f64();
    let share = |used: Duration| 100.0 * used.as_secs_f64() / passed;
    let (rollcall, redis) = (share(cpu()? - before), share(servers.cpu()? - redis_before));
    report.add(
        format!("{title}, quiet: CPU of Rollcall, all instances"),
        rollcall,
        "% of a core",
        Goal::None,
    );
    report.add(format!("{title}, quiet: CPU of Redis, all primaries"), redis, "% of a core", Goal::None);
    let mut memory = 0;
    for one in instances {
        memory += usage(one.server.pid())?.rss;
    }
    let each = memory as f64 / f64::from(units);
    report.add(format!("{title}: memory of Rollcall, all instances"), memory as f64 / 1e6, "MB", Goal::None);
    report.add(format!("{title}: memory of Rollcall for a unit"), each, "bytes", Goal::AtMost(100.0));
    let due = format!("{title}, {DUE} due in a minute");
    report.add(format!("{due}: records"), written as f64, "", Goal::Exactly(f64::from(DUE)));
    show(report, &due, &mut late);
    Ok(())
}

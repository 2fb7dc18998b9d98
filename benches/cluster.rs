//! A cluster of three primaries compared with one server on the same machine: the processor time of a heartbeat and of
//! a record, how evenly units are dealt, and how late records are.
//! All servers share the cores of this machine, so time per item is measured, not the rate. No side has replicas or
//! persistence. The sides take turns, so that other load on the machine hits both; the median of the pairs' ratios
//! counts.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::store::partition_of;
use rollcall::store::redis::HashTags;

use crate::engine::{hear, roll};
use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT, unit};
use crate::harness::process::usage;
use crate::harness::publisher::Load;
use crate::harness::servers::{CLUSTER_PARTITIONS, begin, plan};
use crate::harness::sink::Sink;
use crate::harness::world::Rollcall;
use crate::harness::{Servers, World, quantile, say, thousands, until};
use crate::lateness::{FLOW, due_within, show};
use crate::mass;
use crate::support::cluster::Cluster;

/// How often each side is measured.
const PAIRS: usize = 5;
const STORMS: usize = 3;
/// How many units come due one after the other, and in which time.
const DUE: u32 = 200;
const SPAN: Duration = Duration::from_secs(30);
/// The slots of a cluster.
const SLOTS: u16 = 16_384;
/// The time between the last preparation and the instant.
const SETTLE: Duration = Duration::from_secs(3);
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Processor time for an item, in µs.
#[derive(Clone, Copy)]
struct Cost {
    redis: f64,
    rollcall: f64,
}

impl Cost {
    fn both(self) -> f64 {
        self.redis + self.rollcall
    }
}

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let clock = Clock::system();
    let mut world = World::new()?;
    let cluster = Cluster::start(plan()).await;
    let sides = [Servers::one(&world).await?, Servers::of(&cluster).await?];
    for side in &sides {
        let now = clock.now();
        Fleet(0..units).fill(&side.engine().await?, now, |_| now).await?;
    }
    shares(report, &cluster, &sides[1], units).await?;
    heartbeats(report, &sides, units, &clock).await?;
    let mut next = units;
    for side in &sides {
        next = lateness(report, &mut world, side, units, next, &clock).await?;
    }
    storms(report, &mut world, &sides, units, next, &clock).await
}

/// The largest share of a primary: counted for this cluster, and computed from the slots of the partitions for larger
/// ones.
async fn shares(report: &mut Report, cluster: &Cluster, servers: &Servers, units: u32) -> anyhow::Result<()> {
    let goal = Goal::AtMost(1.05);
    let title = "the largest share of units of a primary ÷ mean";
    report.add(format!("{title}, 3 primaries"), largest(&servers.units().await?), "", goal);
    let mut slots = Vec::new();
    for partition in 0..CLUSTER_PARTITIONS {
        slots.push(cluster.slot_of(&begin(HashTags::Spread, partition, CLUSTER_PARTITIONS)).await);
    }
    for primaries in [6, 12] {
        // The slots are dealt as by `redis-cli --cluster create`.
        let first = |index: u16| (f64::from(index) * f64::from(SLOTS) / f64::from(primaries)).round() as u16;
        let firsts: Vec<u16> = (0..primaries).map(first).collect();
        let mut counts = vec![0; firsts.len()];
        for number in 0..units {
            let slot = slots[usize::from(partition_of(&unit(number), CLUSTER_PARTITIONS))];
            counts[firsts.partition_point(|first| *first <= slot) - 1] += 1;
        }
        report.add(format!("{title}, {primaries} primaries, computed"), largest(&counts), "", goal);
    }
    Ok(())
}

fn largest(counts: &[u64]) -> f64 {
    let sum: u64 = counts.iter().sum();
    counts.iter().copied().max().unwrap_or(0) as f64 * counts.len() as f64 / sum as f64
}

async fn heartbeats(
    report: &mut Report,
    sides: &[Servers; 2],
    units: u32,
    clock: &Clock,
) -> anyhow::Result<()> {
    say("heartbeats");
    let fleet = Fleet(0..units);
    let mut costs = [Vec::new(), Vec::new()];
    let mut rolls = Vec::new();
    for side in sides {
        rolls.push(Arc::new(roll(side.engine().await?, clock)));
    }
    for _ in 0..PAIRS {
        for ((side, roll), costs) in sides.iter().zip(&rolls).zip(&mut costs) {
            let beats = fleet.beats(clock.now());
            let begun = Spent::begin(side, std::process::id())?;
            hear(roll, &beats, clock).await?;
            costs.push(begun.each(side, units)?);
        }
    }
    let goal = Goal::AtMost(1.15);
    let title = "CPU for a heartbeat";
    add(report, &format!("{title}, Redis"), sides, &costs, |cost| cost.redis, goal);
    add(report, &format!("{title}, Rollcall"), sides, &costs, |cost| cost.rollcall, goal);
    Ok(())
}

/// The processor time that was used up to a moment.
struct Spent {
    redis: Duration,
    rollcall: Duration,
    pid: u32,
}

impl Spent {
    /// `pid`: the process of Rollcall.
    fn begin(servers: &Servers, pid: u32) -> anyhow::Result<Spent> {
        Ok(Spent { redis: servers.cpu()?, rollcall: usage(pid)?.cpu, pid })
    }

    /// The processor time since then, for each of `items` items.
    fn each(&self, servers: &Servers, items: u32) -> anyhow::Result<Cost> {
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / f64::from(items);
        let now = Spent::begin(servers, self.pid)?;
        Ok(Cost { redis: each(now.redis - self.redis), rollcall: each(now.rollcall - self.rollcall) })
    }
}

/// Adds the median of each side, and the median of the ratios of pairs.
fn add(
    report: &mut Report,
    title: &str,
    sides: &[Servers; 2],
    costs: &[Vec<Cost>; 2],
    of: impl Fn(Cost) -> f64,
    goal: Goal,
) {
    for (side, costs) in sides.iter().zip(costs) {
        let mut costs: Vec<f64> = costs.iter().map(|cost| of(*cost)).collect();
        report.add(format!("{title}, {}", side.name), quantile(&mut costs, 0.5), "µs", Goal::None);
    }
    let mut ratios: Vec<f64> =
        costs[0].iter().zip(&costs[1]).map(|(one, many)| of(*many) / of(*one)).collect();
    let what = format!("{title}: {} ÷ {}, in the middle of pairs", sides[1].name, sides[0].name);
    report.add(what, quantile(&mut ratios, 0.5), "", goal);
}

/// Measures a side at rest and with heartbeats. Returns the number of the next unit that is not registered.
async fn lateness(
    report: &mut Report,
    world: &mut World,
    side: &Servers,
    units: u32,
    mut next: u32,
    clock: &Clock,
) -> anyhow::Result<u32> {
    let _rollcall = world.serve_on(&side.setting(), KIND).await?;
    for flow in [0, FLOW] {
        let with = if flow > 0 { format!(" with {} heartbeats/s", thousands(flow)) } else { String::new() };
        let title = format!("{DUE} due among {}{with}, {}", thousands(units), side.name);
        say(&title);
        let port = world.broker.port();
        let load = Load { port, first: 0, units, qos: 0, rate: flow, once: false, connections: 2 };
        let _publisher = (flow > 0).then(|| load.start()).transpose()?;
        let (written, mut late) = due_within(SPAN, next, DUE, side, clock).await?;
        next += DUE;
        report.add(format!("{title}: records"), written as f64, "", Goal::Exactly(f64::from(DUE)));
        show(report, &title, &mut late);
    }
    Ok(next)
}

/// Storms: a tenth of the fleet is due at one instant, and a receiver is notified of each unit.
async fn storms(
    report: &mut Report,
    world: &mut World,
    sides: &[Servers; 2],
    units: u32,
    mut next: u32,
    clock: &Clock,
) -> anyhow::Result<()> {
    let due = units / 10;
    let sink = Sink::start().await?;
    let mut running: Vec<Rollcall> = Vec::new();
    for side in sides {
        running.push(world.serve_on(&side.setting(), &mass::each_alone(&sink)).await?);
    }
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..STORMS {
        for ((side, rollcall), costs) in sides.iter().zip(&running).zip(&mut costs) {
            say(format!("{} due at one instant, {}", thousands(due), side.name));
            let fleet = Fleet(next..next + due);
            let cost = storm(report, side, rollcall, &sink, fleet, clock).await?;
            say(format!("{:.1} µs for a record in Redis, {:.1} µs in Rollcall", cost.redis, cost.rollcall));
            costs.push(cost);
            next += due;
        }
    }
    let title = format!("{} due at one instant: CPU for a record and its notification", thousands(due));
    add(report, &format!("{title}, Redis"), sides, &costs, |cost| cost.redis, Goal::None);
    add(report, &format!("{title}, Rollcall"), sides, &costs, |cost| cost.rollcall, Goal::None);
    add(report, &title, sides, &costs, Cost::both, Goal::AtMost(1.2));
    Ok(())
}

async fn storm(
    report: &mut Report,
    side: &Servers,
    rollcall: &Rollcall,
    sink: &Sink,
    fleet: Fleet,
    clock: &Clock,
) -> anyhow::Result<Cost> {
    let due = fleet.0.len() as u32;
    let instant = clock.now() + SETTLE + Duration::from_micros(100) * due;
    fleet.fill(&side.engine().await?, clock.now(), |_| instant - TIMEOUT).await?;
    let before = side.records().await?;
    sink.forget();
    mass::wait_for(instant, clock).await?;
    let spent = Spent::begin(side, rollcall.server.pid())?;
    until("all are written", MAX_WAIT, async || {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(sink.notified() >= u64::from(due) && side.records().await? >= before + u64::from(due))
    })
    .await?;
    // Writes behind the last record belong to the storm, too.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let cost = spent.each(side, due)?;
    let written = side.records().await? - before;
    let title = format!("{} due at one instant, {}: records", thousands(due), side.name);
    if written != u64::from(due) {
        report.add(title, written as f64, "", Goal::Exactly(f64::from(due)));
    }
    Ok(cost)
}

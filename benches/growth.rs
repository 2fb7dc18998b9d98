//! Costs that grow with the fleet or with the number of instances, and costs that do not.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Clock;

use crate::engine::{hear, roll};
use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT};
use crate::harness::process::usage;
use crate::harness::records::Watch;
use crate::harness::{World, quantile, records, thousands};

/// Heartbeats whose cost is measured.
const BEATS: u32 = 500_000;
/// Units that are due one after the other, and the time between two units.
const DUE: u32 = 100;
const APART: Duration = Duration::from_millis(100);
const SETTLE: Duration = Duration::from_secs(3);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    for fleet in [units / 100, units / 10, units, 5 * units] {
        let mut world = World::new()?;
        let engine = world.engine().await?;
        let clock = Clock::system();
        let now = clock.now();
        Fleet(3 * DUE..fleet).fill(&engine, now, |_| now).await?;
        cost(report, &world, fleet, &clock).await?;
        let mut running = Vec::new();
        // The sharing of work between instances is measured with one fleet only.
        let counts: &[usize] = if fleet == units { &[1, 2, 4] } else { &[1] };
        for (round, instances) in counts.iter().enumerate() {
            while running.len() < *instances {
                running.push(world.serve(&format!("mqtt.share = \"bench\"\n{KIND}")).await?);
            }
            let first = round as u32 * DUE;
            let begin = clock.now() + SETTLE;
            let due = |unit: u32| begin + APART * (unit - first) - TIMEOUT;
            Fleet(first..first + DUE).fill(&engine, clock.now(), due).await?;
            let span = begin.since(clock.now()) + APART * DUE + Duration::from_secs(1);
            let mut client = world.client().await?;
            let before = records::count(&mut client).await?;
            let mut late = Watch::start(&world, span).await?.finish().await?;
            let written = records::count(&mut client).await? - before;
            let with =
                if *instances == 1 { "1 instance".to_owned() } else { format!("{instances} instances") };
            let title = format!("{} units, {with}", thousands(fleet));
            report.add(format!("{title}: records"), written as f64, "", Goal::Exactly(f64::from(DUE)));
            report.add(
                format!("{title}: deadline to record, p50"),
                quantile(&mut late, 0.5),
                "ms",
                Goal::None,
            );
            let p99 = quantile(&mut late, 0.99);
            report.add(format!("{title}: deadline to record, p99"), p99, "ms", Goal::AtMost(10.0));
        }
    }
    Ok(())
}

/// CPU time of one heartbeat, here and in Redis.
async fn cost(report: &mut Report, world: &World, fleet: u32, clock: &Clock) -> anyhow::Result<()> {
    let roll = Arc::new(roll(world.engine().await?, clock));
    let known = Fleet(3 * DUE..fleet.min(BEATS));
    let rounds = BEATS / fleet.min(BEATS);
    let (before, redis_before) = (usage(std::process::id())?.cpu, usage(world.redis.pid())?.cpu);
    for _ in 0..rounds {
        hear(&roll, &known.beats(clock.now()), clock).await?;
    }
    let heard = f64::from(rounds) * known.0.len() as f64;
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / heard;
    let title = format!("{} units: CPU for a heartbeat", thousands(fleet));
    report.add(format!("{title}, Rollcall"), each(usage(std::process::id())?.cpu - before), "µs", Goal::None);
    report.add(
        format!("{title}, Redis"),
        each(usage(world.redis.pid())?.cpu - redis_before),
        "µs",
        Goal::None,
    );
    Ok(())
}

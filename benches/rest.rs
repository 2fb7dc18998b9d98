//! The cost of a large fleet at rest: memory, CPU, and the time to start.

use std::time::Duration;

use rollcall::clock::Clock;

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND};
use crate::harness::process::usage;
use crate::harness::{World, say, thousands};

/// The time of measuring: long enough for a full round of the walk.
const MEASURED: Duration = Duration::from_secs(60);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let mut world = World::new()?;
    let now = Clock::system().now();
    Fleet(0..units).fill(&world.engine().await?, now, |_| now).await?;
    let rollcall = world.serve(KIND).await?;
    let title = format!("{} quiet units", thousands(units));
    let ready = rollcall.ready_after.as_secs_f64();
    report.add(format!("{title}: ready after"), ready, "s", Goal::AtMost(5.0));
    say("resting");
    let before = usage(rollcall.server.pid())?;
    let redis_before = usage(world.redis.pid())?;
    tokio::time::sleep(MEASURED).await;
    let after = usage(rollcall.server.pid())?;
    let share = |used: Duration| 100.0 * used.as_secs_f64() / MEASURED.as_secs_f64();
    report.add(
        format!("{title}: CPU of Rollcall"),
        share(after.cpu - before.cpu),
        "% of a core",
        Goal::AtMost(2.0),
    );
    let redis = usage(world.redis.pid())?;
    report.add(
        format!("{title}: CPU of Redis"),
        share(redis.cpu - redis_before.cpu),
        "% of a core",
        Goal::None,
    );
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    report.add(format!("{title}: memory of Rollcall"), megabytes(after.rss), "MB", Goal::AtMost(150.0));
    report.add(format!("{title}: memory of Redis"), megabytes(redis.rss), "MB", Goal::None);
    Ok(())
}

//! The time from the deadline to the record in a fleet of short and long timeouts, and how much kinds delay one
//! another.

use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::store::Queries;

use crate::harness::figures::{Goal, Report};
use crate::harness::publisher::fall_silent;
use crate::harness::{World, quantile, records, say};

/// The timeouts by kind, and the goal for the 99th percentile, in ms.
const TIMEOUTS: [(&str, u64, f64); 3] = [("short", 1, 60.0), ("middle", 3, 60.0), ("long", 12, 10.0)];

/// The most units of each timeout that fall silent.
const EACH: u32 = 200;
/// The time in which these units fall silent.
const SPAN: Duration = Duration::from_secs(60);
/// How long the last records may take.
const MAX_WAIT: Duration = Duration::from_secs(60);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let (each, clock) = (units.min(EACH), Clock::system());
    let mut world = World::new()?;
    let kinds = TIMEOUTS.map(|(name, seconds, _)| {
        format!("[[kind]]\nname = \"{name}\"\ntopics = [\"{name}/{{unit}}\"]\ntimeout = \"{seconds}s\"\n")
    });
    let rollcall = world.serve(&kinds.concat()).await?;
    say(format!("{each} units of each timeout fall silent within a minute"));
    let intervals = TIMEOUTS.map(|(name, seconds, _)| (name, Duration::from_secs(seconds) / 4));
    fall_silent(world.broker.port(), &intervals, each, SPAN).await?;
    let all = each * TIMEOUTS.len() as u32;
    records::wait_for(&mut world.client().await?, &clock, clock.now(), 0, all.into(), MAX_WAIT).await?;
    let found = world.engine().await?.records(false, None, 2 * all as usize).await?;
    for (name, seconds, most) in TIMEOUTS {
        let of_kind = found.iter().filter(|record| record.kind.as_str() == name);
        let mut late: Vec<f64> = of_kind
            .map(|record| (record.detected_at.as_millis() - record.deadline.as_millis()) as f64)
            .collect();
        let title = format!("timeout of {seconds} s");
        report.add(format!("{title}: records"), late.len() as f64, "", Goal::Exactly(each.into()));
        report.add(format!("{title}: p50"), quantile(&mut late, 0.5), "ms", Goal::None);
        report.add(format!("{title}: p99"), quantile(&mut late, 0.99), "ms", Goal::AtMost(most));
        report.add(format!("{title}: worst"), quantile(&mut late, 1.0), "ms", Goal::None);
    }
    drop(rollcall);
    Ok(())
}

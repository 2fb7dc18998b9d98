//! The time from the deadline to the written record, for a few due units among very many; compared with
//! the plain way, which learns of an expiry when Redis happens to check the key.

use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT};
use crate::harness::plain::Plain;
use crate::harness::publisher::Load;
use crate::harness::{Servers, World, quantile, say, thousands};

/// Units that come due within a minute.
const DUE: u32 = 200;
const MINUTE: Duration = Duration::from_secs(60);
/// The time for registering everything.
const PREPARATION: Duration = Duration::from_secs(30);
/// Heartbeats a second of other units.
pub const FLOW: u32 = 20_000;
/// The time between registering and the first deadline.
const SETTLE: Duration = Duration::from_secs(5);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let clock = Clock::system();
    let mut world = World::new()?;
    let engine = world.engine().await?;
    let now = clock.now();
    Fleet(2 * DUE..units).fill(&engine, now, |_| now).await?;
    let rollcall = world.serve(KIND).await?;
    let servers = Servers::one(&world).await?;
    for (first, flow) in [(0, 0), (DUE, FLOW)] {
        let title = match flow {
            0 => format!("{DUE} due in a minute among {}", thousands(units)),
            _ => format!("the same with {} heartbeats/s", thousands(flow)),
        };
        say(&title);
        let (port, units) = (world.broker.port(), units - 2 * DUE);
        let load = Load { port, first: 2 * DUE, units, qos: 0, rate: flow, once: false, connections: 2 };
        let _publisher = (flow > 0).then(|| load.start()).transpose()?;
        let (written, mut late) = due_within(MINUTE, first, DUE, &servers, &clock).await?;
        report.add(format!("{title}: records"), written as f64, "", Goal::Exactly(f64::from(DUE)));
        show(report, &title, &mut late);
    }
    drop((rollcall, engine, world));
    plain(report, units, &clock).await
}

/// Registers `count` units from `first` on that come due within `span`. Returns the number of their records, and how
/// late, in ms, each record was that the watch has seen.
pub async fn due_within(
    span: Duration,
    first: u32,
    count: u32,
    servers: &Servers,
    clock: &Clock,
) -> anyhow::Result<(u64, Vec<f64>)> {
    let begin = clock.now() + SETTLE;
    let due = spread(begin, span, first, count);
    Fleet(first..first + count)
        .fill(&servers.engine().await?, clock.now(), |unit| due(unit) - TIMEOUT)
        .await?;
    let until = begin.since(clock.now()) + span + Duration::from_secs(2);
    let before = servers.records().await?;
    let late = servers.watch(until).await?.finish().await?;
    Ok((servers.records().await? - before, late))
}

/// Deadlines of `count` units from `first` on, evenly within `span` from `begin` on.
fn spread(begin: Timestamp, span: Duration, first: u32, count: u32) -> impl Fn(u32) -> Timestamp {
    move |unit| begin + span * (unit - first) / count
}

/// Adds how late records were.
pub fn show(report: &mut Report, title: &str, late_ms: &mut [f64]) {
    report.add(format!("{title}: of them timed"), late_ms.len() as f64, "", Goal::None);
    report.add(format!("{title}: p50"), quantile(late_ms, 0.5), "ms", Goal::None);
    report.add(format!("{title}: p99"), quantile(late_ms, 0.99), "ms", Goal::AtMost(10.0));
    report.add(format!("{title}: worst"), quantile(late_ms, 1.0), "ms", Goal::None);
}

async fn plain(report: &mut Report, units: u32, clock: &Clock) -> anyhow::Result<()> {
    let begin = clock.now() + PREPARATION;
    let due = spread(begin, MINUTE, 0, DUE);
    let plain = Plain::start(units, clock, |unit| (unit < DUE).then(|| due(unit))).await?;
    let title = "the plain way, notification and HDEL";
    say(title);
    plain.wait_for(DUE.into(), begin.since(clock.now()) + MINUTE).await;
    report.add(format!("{title}: arrived within the minute, of {DUE}"), plain.won() as f64, "", Goal::None);
    plain.wait_for(DUE.into(), MINUTE).await;
    let mut late = plain.late_ms().await;
    report.add(format!("{title}: arrived within the next"), late.len() as f64, "", Goal::None);
    if !late.is_empty() {
        report.add(format!("{title}: p50 of those"), quantile(&mut late, 0.5), "ms", Goal::None);
        report.add(format!("{title}: worst of those"), quantile(&mut late, 1.0), "ms", Goal::None);
    }
    Ok(())
}

//! Six thousand units are due at one instant and two processes watch them, compared with a queue, pollers of a sorted
//! set, timers in the memory of one process, and expiry notifications with `HDEL`.

use std::time::Duration;

use rollcall::clock::Clock;

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, TIMEOUT};
use crate::harness::plain::Plain;
use crate::harness::poster::{self, CONCURRENCY};
use crate::harness::process::{CPU, Spent};
use crate::harness::sink::Sink;
use crate::harness::{World, quantile, records, say, thousands, until};
use crate::mass::notifying;
use crate::{bullmq, poller};

const DUE: u32 = 6000;
const SETTLE: Duration = Duration::from_secs(3);
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The time for registering a million units in the plain way, with some to spare.
const PREPARATION: Duration = Duration::from_secs(30);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let clock = Clock::system();
    let sink = Sink::start().await?;
    let mut world = World::new()?;
    let engine = world.engine().await?;
    let now = clock.now();
    Fleet(DUE..units).fill(&engine, now, |_| now).await?;
    let two = [world.serve(&notifying(&sink)).await?, world.serve(&notifying(&sink)).await?];
    let instant = clock.now() + SETTLE;
    Fleet(0..DUE).fill(&engine, clock.now(), |_| instant - TIMEOUT).await?;
    let title = format!("{} due at one instant among {}, two processes", thousands(DUE), thousands(units));
    say(&title);
    tokio::time::sleep(instant.since(clock.now())).await;
    let pids = two.iter().map(|rollcall| rollcall.server.pid()).chain([world.redis.pid()]);
    let spent = Spent::begin(pids.collect())?;
    let mut client = world.client().await?;
    let (_, took) = records::wait_for(&mut client, &clock, instant, 0, DUE.into(), MAX_WAIT).await?;
    report.add(format!("{title}: records"), took.as_secs_f64(), "s", Goal::AtMost(0.3));
    until("all are notified", MAX_WAIT, async || Ok(sink.notified() >= DUE.into())).await?;
    let notified = clock.now().since(instant).as_secs_f64();
    report.add(format!("{title}: notified, one request each"), notified, "s", Goal::AtMost(1.0));
    let cpu = spent.each(DUE as usize).await?;
    report.add(format!("{title}: {CPU}"), cpu, "µs", Goal::None);
    let again = sink.requests().saturating_sub(DUE.into()) as f64;
    report.add(format!("{title}: requests beyond one each"), again, "", Goal::None);
    drop((two, world));
    if let Some(queue) = bullmq::at_one_instant(report, &sink, DUE as usize, CONCURRENCY).await? {
        report.add("CPU for each, Rollcall ÷ BullMQ", cpu / queue, "", Goal::AtMost(0.36));
    }
    poller::at_one_instant(report, &sink, DUE as usize, CONCURRENCY).await?;
    sink.forget();
    let memory = poster::post(&sink, DUE, &clock).await?.as_secs_f64();
    report.add("the same from timers in memory, nothing durable: notified", memory, "s", Goal::None);
    plain(report, units, &clock).await
}

async fn plain(report: &mut Report, units: u32, clock: &Clock) -> anyhow::Result<()> {
    let instant = clock.now() + PREPARATION;
    let plain = Plain::start(units, clock, |unit| (unit < DUE).then_some(instant)).await?;
    let title = "the plain way, notification and HDEL";
    say(title);
    plain.wait_for(DUE.into(), instant.since(clock.now()) + MAX_WAIT).await;
    let mut late = plain.late_ms().await;
    let arrived = format!("{title}: arrived within {} s, of {}", MAX_WAIT.as_secs(), thousands(DUE));
    report.add(arrived, late.len() as f64, "", Goal::None);
    if !late.is_empty() {
        let worst = quantile(&mut late, 1.0) / 1000.0;
        report.add(format!("{title}: the last of those after"), worst, "s", Goal::None);
    }
    Ok(())
}

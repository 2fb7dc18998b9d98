//! The embedded engine compared with the one on Redis, in one run: heartbeats, a storm, bytes to disk, and a
//! restart.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures_util::{StreamExt, stream};
use tempfile::TempDir;

use rollcall::clock::{Clock, Stopwatch, Timestamp};
use rollcall::fleet::Roll;
use rollcall::store::Engine;
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine};
use rollcall::telemetry::Telemetry;

use crate::engine::{hear, roll};
use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT};
use crate::harness::process::{bytes_written, usage};
use crate::harness::{World, say, thousands};

/// How long a process rests before its memory is measured: it notifies of a storm first, and frees
/// that memory some seconds later.
const REST: Duration = Duration::from_secs(20);
/// Partitions that are swept at the same time, as by expiry.
const AT_ONCE: usize = 4;
/// Rounds of heartbeats that are each written to disk, and the time between two rounds: longer than last seen times
/// stay in memory.
const ROUNDS: u32 = 6;
const APART: Duration = Duration::from_millis(2500);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let (mut world, dir, clock) = (World::new()?, TempDir::new()?, Clock::system());
    let (due, now) = (units / 10, clock.now());
    let (silent, alive) = (Fleet(0..due), Fleet(due..units));
    let embedded = open(&dir).await?;
    let redis = world.engine().await?;
    for fleet in [&silent, &alive] {
        let seen = if fleet.0.start == 0 { now - TIMEOUT } else { now };
        fleet.fill(&embedded, now, |_| seen).await?;
        fleet.fill(&redis, now, |_| seen).await?;
    }
    let embedded = Arc::new(roll_that_hears(embedded, now, &clock).await?);
    let redis = Arc::new(roll_that_hears(redis, now, &clock).await?);
    heartbeats(report, &embedded, &redis, &alive, &clock).await?;
    writes(report, &embedded, &alive, &clock).await?;
    storm(report, &embedded, due, &clock).await?;
    drop(embedded);
    restart(report, &mut world, &dir, units).await
}

async fn open(dir: &TempDir) -> anyhow::Result<Arc<EmbeddedEngine>> {
    let config = EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(16) };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    Ok(Arc::new(EmbeddedEngine::open(&config, telemetry).await?))
}

struct Hearing {
    engine: Arc<dyn Engine>,
    roll: Arc<Roll>,
}

/// A roll for which everything since the beginning of all silences was heard.
async fn roll_that_hears(engine: Arc<dyn Engine>, now: Timestamp, clock: &Clock) -> anyhow::Result<Hearing> {
    let roll = Arc::new(roll(engine.clone(), clock));
    roll.canary_returned(now).await?;
    Ok(Hearing { engine, roll })
}

/// Measures heartbeats on both engines in turn, so that other load on the machine hits both; the best of each counts.
async fn heartbeats(
    report: &mut Report,
    embedded: &Hearing,
    redis: &Hearing,
    fleet: &Fleet,
    clock: &Clock,
) -> anyhow::Result<()> {
    say("heartbeats on both engines");
    let (mut on_disk, mut on_redis) = (0.0_f64, 0.0_f64);
    let count = fleet.0.len() as f64;
    for _ in 0..3 {
        for (hearing, best) in [(redis, &mut on_redis), (embedded, &mut on_disk)] {
            let took = hear(&hearing.roll, &fleet.beats(clock.now()), clock).await?;
            *best = best.max(count / took.as_secs_f64());
        }
    }
    report.add("heartbeats recorded, engine on Redis", on_redis, "/s", Goal::None);
    report.add("heartbeats recorded, embedded engine", on_disk, "/s", Goal::None);
    report.add("… as a share of those on Redis", on_disk / on_redis, "", Goal::AtLeast(1.0));
    Ok(())
}

/// The bytes to disk for a heartbeat that is not followed at once by another of its unit.
async fn writes(report: &mut Report, embedded: &Hearing, fleet: &Fleet, clock: &Clock) -> anyhow::Result<()> {
    say("what goes to disk");
    // Wait until pending writes are done.
    tokio::time::sleep(APART).await;
    let before = bytes_written()?;
    for _ in 0..ROUNDS {
        hear(&embedded.roll, &fleet.beats(clock.now()), clock).await?;
        tokio::time::sleep(APART).await;
    }
    let heartbeats = f64::from(ROUNDS) * fleet.0.len() as f64;
    let written = (bytes_written()? - before) as f64 / heartbeats;
    report.add("written to disk for a heartbeat, embedded engine", written, "bytes", Goal::AtMost(64.0));
    Ok(())
}

/// Measures a storm: a tenth of the fleet is due.
async fn storm(report: &mut Report, embedded: &Hearing, due: u32, clock: &Clock) -> anyhow::Result<()> {
    let title = format!("{} due at once, embedded engine", thousands(due));
    say(&title);
    let now = clock.now();
    let began = Stopwatch::start();
    let sweeps = (0..embedded.engine.partitions()).map(|partition| {
        let (engine, roll) = (embedded.engine.clone(), embedded.roll.clone());
        tokio::spawn(async move {
            let units = engine.due(partition, None, now, 0, usize::MAX).await?;
            let undecided = roll.check_deadlines(&units, now).await?;
            ensure!(undecided.is_empty(), "{} are undecided", undecided.len());
            Ok(())
        })
    });
    let mut sweeps = stream::iter(sweeps).buffer_unordered(AT_ONCE);
    while let Some(swept) = sweeps.next().await {
        swept??;
    }
    let took = began.elapsed().as_secs_f64();
    let records = embedded.engine.records(true, None, 2 * due as usize).await?.len();
    report.add(format!("{title}: records and outbox durable"), took, "s", Goal::AtMost(1.0));
    report.add(format!("{title}: records"), records as f64, "", Goal::Exactly(due.into()));
    Ok(())
}

async fn restart(report: &mut Report, world: &mut World, dir: &TempDir, units: u32) -> anyhow::Result<()> {
    say("restart");
    let engine = format!("type = \"embedded\", path = \"{}\"", dir.path().display());
    let rollcall = world.serve_on(&engine, KIND).await?;
    let title = format!("{} units, embedded engine", thousands(units));
    let ready = rollcall.ready_after.as_secs_f64();
    report.add(format!("{title}: ready after"), ready, "s", Goal::AtMost(3.0));
    tokio::time::sleep(REST).await;
    let megabytes = usage(rollcall.server.pid())?.rss as f64 / 1e6;
    report.add(format!("{title}: memory of Rollcall at rest"), megabytes, "MB", Goal::AtMost(200.0));
    let size = std::fs::metadata(dir.path().join("rollcall.db"))?.len() as f64 / 1e6;
    report.add(format!("{title}: size of the database"), size, "MB", Goal::None);
    Ok(())
}

//! Timers: registering and cancelling in batches on both engines, the memory of waiting timers, and how late timers
//! fire; compared with a plain poller of a sorted set, which keeps no retries and no record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures_util::{StreamExt, TryStreamExt, stream};
use redis::aio::MultiplexedConnection;
use rollcall::clock::{Clock, Stopwatch, Timestamp};
use rollcall::presence::{Guarantee, NewTimer, TimerClass, TimerId, TimerType};
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine};
use rollcall::store::{Engine, StoredTimers, TimerClasses};
use rollcall::telemetry::Telemetry;
use tempfile::TempDir;

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::KIND;
use crate::harness::poster;
use crate::harness::process::{CPU, Spent};
use crate::harness::sink::Sink;
use crate::harness::world::Rollcall;
use crate::harness::{World, quantile, say, thousands, until};
use crate::{bullmq, poller};

/// How many timers one call registers or cancels.
const BATCH: usize = 5000;
/// How many calls are under way at once.
const CALLS: usize = 4;
const CANCELLED: usize = 10_000;
/// Timers that are due within a minute, among many timers that wait.
const FEW: usize = 300;
const MINUTE: Duration = Duration::from_secs(60);
const DUE: usize = 6000;
const MAX_WAIT: Duration = Duration::from_secs(120);
/// The time between registering and the moment at which the timers are due.
const SETTLE: Duration = Duration::from_secs(4);
/// How many attempts of a receiver run at the same time.
const CONCURRENCY: usize = 64;

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let count = units as usize;
    on_a_directory(report, count).await?;
    let sink = Sink::start().await?;
    let mut world = World::new()?;
    let engine: Arc<dyn Engine> = world.engine().await?;
    on_redis(report, &world, &engine, count).await?;
    few_among_many(report, &mut world, &engine, &sink, count).await?;
    drop((engine, world));
    at_one_instant(report, &sink, 2, DUE, Goal::AtMost(0.3)).await?;
    bullmq::at_one_instant(report, &sink, DUE, CONCURRENCY).await?;
    poller::at_one_instant(report, &sink, DUE, CONCURRENCY).await?;
    at_one_instant(report, &sink, 1, count / 10, Goal::AtMost(4.0)).await
}

fn timer_type() -> TimerType {
    "report-due".parse().expect("a valid type")
}

fn classes() -> TimerClasses {
    let timer_type = timer_type();
    let class = TimerClass {
        timer_type: timer_type.clone(),
        receivers: vec!["hook".to_owned()],
        guarantee: Guarantee::AtLeastOnce,
        keep: MINUTE,
        most: u64::MAX,
    };
    BTreeMap::from([(timer_type, class)])
}

/// Timers with 40 bytes of data.
fn timers(name: &str, count: usize, due: impl Fn(usize) -> Timestamp) -> Vec<NewTimer> {
    let timer = |n: usize| NewTimer {
        is_span: false,
        id: format!("{name}-{n:07}").parse().expect("a valid id"),
        timer_type: timer_type(),
        due: due(n),
        data: format!("{{\"device\":\"pump-{n:07}\",\"command\":\"on\"}}").parse().expect("valid data"),
    };
    (0..count).map(timer).collect()
}

async fn register(engine: &Arc<dyn Engine>, timers: &[NewTimer]) -> anyhow::Result<Duration> {
    let (began, stored) = (Stopwatch::start(), StoredTimers::new(engine.clone()));
    let calls = timers.chunks(BATCH).map(|batch| stored.register(batch, false));
    let answers: Vec<_> = stream::iter(calls).buffered(CALLS).try_collect().await?;
    ensure!(answers.iter().map(Vec::len).sum::<usize>() == timers.len(), "some were not answered");
    Ok(began.elapsed())
}

async fn cancel(engine: &Arc<dyn Engine>, timers: &[NewTimer]) -> anyhow::Result<Duration> {
    let ids: Vec<TimerId> = timers.iter().take(CANCELLED).map(|timer| timer.id.clone()).collect();
    let began = Stopwatch::start();
    StoredTimers::new(engine.clone()).cancel(&ids, &classes(), Clock::system().now()).await?;
    Ok(began.elapsed())
}

/// A moment far away, spread over a day.
fn far(n: usize) -> Timestamp {
    Clock::system().now() + 24 * 60 * MINUTE + Duration::from_millis(83 * (n as u64 % 1_000_000))
}

async fn on_a_directory(report: &mut Report, count: usize) -> anyhow::Result<()> {
    say("registering, embedded engine");
    let dir = TempDir::new()?;
    let config = EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(16) };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine: Arc<dyn Engine> = Arc::new(EmbeddedEngine::open(&config, telemetry).await?);
    let all = timers("timer", count, far);
    let rate = count as f64 / register(&engine, &all).await?.as_secs_f64();
    let title = format!("{} timers registered in batches", thousands(count as u64));
    report.add(format!("{title}, embedded engine"), rate, "/s", Goal::AtLeast(500_000.0));
    let took = cancel(&engine, &all).await?.as_secs_f64();
    let title = format!("{} cancelled in a batch, embedded engine", thousands(CANCELLED as u64));
    report.add(title, took, "s", Goal::AtMost(0.2));
    Ok(())
}

async fn on_redis(
    report: &mut Report,
    world: &World,
    engine: &Arc<dyn Engine>,
    count: usize,
) -> anyhow::Result<()> {
    say("registering, engine on Redis");
    let mut client = world.client().await?;
    let before = used_memory(&mut client).await?;
    let all = timers("timer", count, far);
    let rate = count as f64 / register(engine, &all).await?.as_secs_f64();
    let title = format!("{} timers registered in batches", thousands(count as u64));
    report.add(format!("{title}, engine on Redis"), rate, "/s", Goal::AtLeast(100_000.0));
    let bytes = (used_memory(&mut client).await? - before) as f64 / count as f64;
    let title = "memory of Redis for a timer that waits, with 40 bytes of data";
    report.add(title, bytes, "bytes", Goal::AtMost(250.0));
    let plain = plain_memory(&mut client, &all).await?;
    report.add("… of a plain sorted set and a hash with the data", plain, "bytes", Goal::None);
    let took = cancel(engine, &all).await?.as_secs_f64();
    let title = format!("{} cancelled in a batch, engine on Redis", thousands(CANCELLED as u64));
    report.add(title, took, "s", Goal::AtMost(0.2));
    // The cancelled timers are registered again.
    register(engine, &all[..all.len().min(CANCELLED)]).await?;
    Ok(())
}

async fn used_memory(client: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let info: String = redis::cmd("INFO").arg("memory").query_async(client).await?;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.parse().ok());
    used.ok_or_else(|| anyhow::anyhow!("INFO names no used_memory"))
}

/// The bytes of a timer in one sorted set and one hash, which are removed afterwards.
async fn plain_memory(client: &mut MultiplexedConnection, all: &[NewTimer]) -> anyhow::Result<f64> {
    let before = used_memory(client).await?;
    for batch in all.chunks(BATCH) {
        let mut write = redis::pipe();
        for timer in batch {
            write.zadd("plain", timer.id.as_str(), timer.due.as_millis()).ignore();
            write.hset("plain-data", timer.id.as_str(), timer.data.as_str()).ignore();
        }
        write.exec_async(client).await?;
    }
    let used = used_memory(client).await? - before;
    redis::cmd("UNLINK").arg("plain").arg("plain-data").exec_async(client).await?;
    Ok(used as f64 / all.len() as f64)
}

fn firing(sink: &Sink) -> String {
    format!(
        "mqtt.share = \"bench\"\n{KIND}\n[route]\nreceivers = [\"hook\"]\n\
         [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"{}\"\nconcurrency = {CONCURRENCY}\n\
         [[timer]]\ntype = \"report-due\"\nreceivers = [\"hook\"]\n",
        sink.url()
    )
}

/// Measures how late timers fire while very many wait.
async fn few_among_many(
    report: &mut Report,
    world: &mut World,
    engine: &Arc<dyn Engine>,
    sink: &Sink,
    count: usize,
) -> anyhow::Result<()> {
    let title = format!("{FEW} due in a minute among {}", thousands(count as u64));
    say(&title);
    let _rollcall = world.serve(&firing(sink)).await?;
    sink.forget();
    let begin = Clock::system().now() + SETTLE;
    let few = timers("few", FEW, |n| begin + MINUTE / FEW as u32 * n as u32);
    register(engine, &few).await?;
    until("all are delivered", MINUTE + MAX_WAIT, async || Ok(sink.notified() >= FEW as u64)).await?;
    let ids: Vec<TimerId> = few.iter().map(|timer| timer.id.clone()).collect();
    let fired = StoredTimers::new(engine.clone()).timers(&ids).await?;
    let late =
        |timer: &rollcall::presence::Timer| Some(timer.fired_at()?.since(timer.due).as_secs_f64() * 1e3);
    let mut late: Vec<f64> = fired.iter().flatten().filter_map(late).collect();
    report.add(format!("{title}: fired"), late.len() as f64, "", Goal::Exactly(FEW as f64));
    let half = quantile(&mut late, 0.5);
    report.add(format!("{title}: half fire within"), half, "ms", Goal::None);
    let most = quantile(&mut late, 0.99);
    report.add(format!("{title}: 99 of 100 fire within"), most, "ms", Goal::AtMost(10.0));
    Ok(())
}

/// Measures very many timers that are due at one instant.
async fn at_one_instant(
    report: &mut Report,
    sink: &Sink,
    processes: usize,
    count: usize,
    goal: Goal,
) -> anyhow::Result<()> {
    let title = format!("{} timers at one instant, processes: {processes}", thousands(count as u64));
    say(&title);
    let mut world = World::new()?;
    let engine: Arc<dyn Engine> = world.engine().await?;
    let mut running = Vec::new();
    for _ in 0..processes {
        running.push(world.serve(&firing(sink)).await?);
    }
    sink.forget();
    let clock = Clock::system();
    let preparation = SETTLE + Duration::from_micros(20 * count as u64);
    let instant = clock.now() + preparation;
    register(&engine, &timers("timer", count, |_| instant)).await?;
    ensure!(clock.now() < instant, "registering took longer than {preparation:?}");
    tokio::time::sleep(instant.since(clock.now())).await;
    let pids = running.iter().map(|rollcall: &Rollcall| rollcall.server.pid());
    let spent = Spent::begin(pids.chain([world.redis.pid()]).collect())?;
    until("all are delivered", MAX_WAIT, async || Ok(sink.notified() >= count as u64)).await?;
    let took = clock.now().since(instant).as_secs_f64();
    report.add(format!("{title}: the last POST came after"), took, "s", goal);
    report.add(format!("{title}: {CPU}"), spent.each(count).await?, "µs", Goal::None);
    let again = sink.requests().saturating_sub(count as u64) as f64;
    report.add(format!("{title}: requests beyond one each"), again, "", Goal::None);
    sink.forget();
    let memory = poster::post(sink, count as u32, &clock).await?.as_secs_f64();
    report.add("the same from timers in memory, nothing durable: delivered", memory, "s", Goal::None);
    Ok(())
}

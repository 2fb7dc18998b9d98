//! The engine alone: heartbeats written to Redis, compared with the same commands from
//! a client that spends no time on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use rollcall::clock::{Clock, Stopwatch, Timestamp};
use rollcall::fleet::{HearingConfig, Mirror, Roll, Rules};
use rollcall::presence::{Heartbeat, KindRules};
use rollcall::store::{Engine, partition_of};
use rollcall::telemetry::Telemetry;

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, TIMEOUT};
use crate::harness::process::{cpu_of, usage};
use crate::harness::{World, quantile, say};

/// Units in one batch, as in the engine.
const BATCH: usize = 200;
/// Batches of the raw pipeline in flight.
const IN_FLIGHT: usize = 4;
/// Heartbeats that intake records at once.
const RECORDED_AT_ONCE: usize = 2000;
/// How often both sides are measured.
const PAIRS: u32 = 5;
/// Batches of intake in flight.
const BATCHES_AT_ONCE: usize = 2;

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let world = World::new()?;
    let clock = Clock::system();
    let fleet = Fleet(0..units);
    say("first contacts");
    let roll = Arc::new(roll(world.engine().await?, &clock));
    let beats = fleet.beats(clock.now());
    let took = hear(&roll, &beats, &clock).await?;
    report.add("first contacts of new units", f64::from(units) / took.as_secs_f64(), "/s", Goal::None);
    say("raw pipeline");
    let mut raw = 0.0_f64;
    let mut recorded = 0.0_f64;
    let mut shares = Vec::new();
    let mut cpu = Duration::ZERO;
    let mut redis_cpu = Duration::ZERO;
    // The sides take turns, so that other load on the machine hits both. The best of each counts, and the median of
    // the ratios of pairs.
    for _ in 0..PAIRS {
        let by_itself = raw_pipeline(&world, &beats).await?;
        raw = raw.max(f64::from(units) / by_itself.as_secs_f64());
        let beats = fleet.beats(clock.now());
        let (before, redis_before) = (usage(std::process::id())?.cpu, usage(world.redis.pid())?.cpu);
        let took = hear(&roll, &beats, &clock).await?;
        recorded = recorded.max(f64::from(units) / took.as_secs_f64());
        shares.push(by_itself.as_secs_f64() / took.as_secs_f64());
        cpu = usage(std::process::id())?.cpu - before;
        redis_cpu = cpu_of(&[world.redis.pid()])? - redis_before;
    }
    report.add("heartbeats that one Redis takes from a raw pipeline", raw, "/s", Goal::None);
    report.add("heartbeats recorded by the roll", recorded, "/s", Goal::None);
    let share = quantile(&mut shares, 0.5);
    report.add("… as a share of the raw pipeline, in the middle of pairs", share, "", Goal::AtLeast(0.85));
    let per_unit = |cpu: Duration| cpu.as_secs_f64() * 1e6 / f64::from(units);
    report.add("CPU of Rollcall for a heartbeat", per_unit(cpu), "µs", Goal::None);
    report.add("CPU of Redis for a heartbeat", per_unit(redis_cpu), "µs", Goal::None);
    Ok(())
}

/// A roll in this process, with the timeout of every unit here.
pub fn roll(engine: Arc<dyn Engine>, clock: &Clock) -> Roll {
    let mut rules = KindRules::new("detector".parse().expect("it is a kind"));
    rules.policy.timeout = TIMEOUT;
    let rules = Arc::new(Rules::from_iter([(rules.kind.clone(), rules)]));
    let mirror = Arc::new(Mirror::of(&*engine, Arc::clone(&rules), &[]));
    let hearing = HearingConfig {
        gap: Duration::from_secs(3),
        follows: false,
        settle: Duration::from_secs(300),
        tell_after: Duration::from_secs(300),
    };
    Roll::new(engine, rules, mirror, Arc::new(Telemetry::new(clock)), hearing, Arc::new(Notify::new()))
}

/// Records heartbeats as intake does with full batches, and returns how long that took.
pub async fn hear(roll: &Arc<Roll>, beats: &[Heartbeat], clock: &Clock) -> anyhow::Result<Duration> {
    let began = Stopwatch::start();
    let batches = beats.chunks(RECORDED_AT_ONCE).map(|batch| roll.hear(batch, clock.now()));
    stream::iter(batches).buffered(BATCHES_AT_ONCE).try_for_each(|_| std::future::ready(Ok(()))).await?;
    Ok(began.elapsed())
}

/// Commands for the same heartbeats, made beforehand and sent over two connections with several
/// batches in flight; answers are counted and not parsed.
async fn raw_pipeline(world: &World, beats: &[Heartbeat]) -> anyhow::Result<Duration> {
    let batches: Vec<(Vec<u8>, usize)> = beats.chunks(BATCH).map(commands).collect();
    let halves: Vec<_> = batches.chunks(batches.len().div_ceil(2)).collect();
    let began = Stopwatch::start();
    try_join_all(halves.into_iter().map(|half| send(world.redis.port(), half))).await?;
    Ok(began.elapsed())
}

async fn send(port: u16, batches: &[(Vec<u8>, usize)]) -> anyhow::Result<()> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = stream.into_split();
    let window = tokio::sync::Semaphore::new(IN_FLIGHT / 2);
    let write = async {
        for (bytes, _) in batches {
            window.acquire().await?.forget();
            writer.write_all(bytes).await?;
        }
        anyhow::Ok(())
    };
    let read = async {
        let mut buffer = Vec::new();
        for (_, answer) in batches {
            buffer.resize(*answer, 0);
            reader.read_exact(&mut buffer).await?;
            window.add_permits(1);
        }
        anyhow::Ok(())
    };
    tokio::try_join!(write, read)?;
    Ok(())
}

/// The commands of one batch and the length of their answers.
fn commands(beats: &[Heartbeat]) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    let mut checks: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for beat in beats {
        let (partition, at) = (partition_of(&beat.unit, 16), beat.at.as_millis().to_string());
        let key = format!("rollcall:{{p{partition}}}:alive:{}", beat.unit);
        let ttl = TIMEOUT.as_millis().to_string();
        command(&mut bytes, &["SET", &key, &at, "PX", &ttl, "XX", "GET"]);
        let deadline: Timestamp = beat.at + TIMEOUT;
        let checks = checks.entry(partition).or_default();
        checks.extend([deadline.as_millis().to_string(), beat.unit.to_string()]);
    }
    for (partition, checks) in &checks {
        let key = format!("rollcall:{{p{partition}}}:deadlines");
        let arguments: Vec<&str> =
            ["ZADD", &key, "XX", "LT"].into_iter().chain(checks.iter().map(String::as_str)).collect();
        command(&mut bytes, &arguments);
    }
    // "$13\r\n<13 digits>\r\n" for each SET, ":0\r\n" for each ZADD.
    (bytes, beats.len() * 20 + checks.len() * 4)
}

fn command(bytes: &mut Vec<u8>, arguments: &[&str]) {
    bytes.extend(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        bytes.extend(format!("${}\r\n{argument}\r\n", argument.len()).as_bytes());
    }
}

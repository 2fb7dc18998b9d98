//! Two plain pollers of a sorted set whose ids are due at one instant: if a poller dies, its ids are lost, and nothing
//! is tried again.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use futures_util::{StreamExt, stream};
use rollcall::clock::Clock;
use tokio::process::{Child, Command};

use crate::harness::figures::{Goal, Report};
use crate::harness::process::{CPU, Spent};
use crate::harness::sink::Sink;
use crate::harness::world::connect;
use crate::harness::{World, say, thousands, until};

const KEY: &str = "plain";
const PROCESSES: usize = 2;
/// How many ids one command registers.
const BATCH: usize = 5000;
/// How many ids one command asks for.
const ASKED: usize = 500;
const INTERVAL: Duration = Duration::from_millis(10);
/// The time between registering and the moment at which the ids are due.
const SETTLE: Duration = Duration::from_secs(4);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The options of a process that polls.
#[derive(Debug, Args)]
pub struct Options {
    /// Port of Redis.
    #[arg(long)]
    port: u16,
    /// The receiver of the requests.
    #[arg(long)]
    url: String,
    /// Requests in flight.
    #[arg(long)]
    concurrency: usize,
}

impl Options {
    /// Starts a process that polls, which ends with the value.
    fn start(&self) -> anyhow::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("poll").arg(format!("--port={}", self.port)).arg(format!("--url={}", self.url));
        command.arg(format!("--concurrency={}", self.concurrency));
        Ok(command.stdin(Stdio::null()).kill_on_drop(true).spawn()?)
    }
}

/// `count` ids are due at one instant, and two processes with `concurrency` each deliver them. Returns the CPU time of
/// an id, in µs.
pub async fn at_one_instant(
    report: &mut Report,
    sink: &Sink,
    count: usize,
    concurrency: usize,
) -> anyhow::Result<f64> {
    let title = format!("{} at one instant, two plain pollers of a sorted set", thousands(count as u64));
    say(&title);
    let world = World::new()?;
    let mut client = world.client().await?;
    let options = Options { port: world.redis.port(), url: sink.url(), concurrency };
    let pollers = (0..PROCESSES).map(|_| options.start()).collect::<anyhow::Result<Vec<_>>>()?;
    sink.forget();
    let clock = Clock::system();
    let instant = clock.now() + SETTLE;
    let ids: Vec<String> = (0..count).map(|n| format!("timer-{n:07}")).collect();
    for batch in ids.chunks(BATCH) {
        let mut add = redis::cmd("ZADD");
        add.arg(KEY);
        batch.iter().for_each(|id| {
            add.arg(instant.as_millis()).arg(id);
        });
        add.exec_async(&mut client).await?;
    }
    ensure!(clock.now() < instant, "registering took longer than {SETTLE:?}");
    tokio::time::sleep(instant.since(clock.now())).await;
    let pids = pollers.iter().map(|poller| poller.id().context("a poller has ended"));
    let spent = Spent::begin(pids.chain([Ok(world.redis.pid())]).collect::<anyhow::Result<_>>()?)?;
    until("all are delivered", MAX_WAIT, async || Ok(sink.notified() >= count as u64)).await?;
    let took = clock.now().since(instant).as_secs_f64();
    let cpu = spent.each(count).await?;
    report.add(format!("{title}: the last POST came after"), took, "s", Goal::None);
    report.add(format!("{title}: {CPU}"), cpu, "µs", Goal::None);
    Ok(cpu)
}

/// Asks for due ids, removes them and delivers the ids that it removed, until the process is killed.
pub async fn poll(options: Options) -> anyhow::Result<()> {
    let (mut client, clock) = (connect(options.port).await?, Clock::system());
    let http = reqwest::Client::builder().no_proxy().build()?;
    let mut every = tokio::time::interval(INTERVAL);
    loop {
        every.tick().await;
        let mut ask = redis::cmd("ZRANGEBYSCORE");
        ask.arg(KEY).arg("-inf").arg(clock.now().as_millis()).arg("LIMIT").arg(0).arg(ASKED);
        let due: Vec<String> = ask.query_async(&mut client).await?;
        if due.is_empty() {
            continue;
        }
        let mut take = redis::pipe();
        due.iter().for_each(|id| {
            take.zrem(KEY, id);
        });
        let won: Vec<u8> = take.query_async(&mut client).await?;
        let won = due.into_iter().zip(won).filter(|(_, won)| *won == 1);
        let posts = won.map(|(id, _)| http.post(&options.url).header("webhook-id", id).body("{}").send());
        stream::iter(posts).buffer_unordered(options.concurrency).for_each(|_| async {}).await;
        every.reset_immediately();
    }
}

//! Delayed jobs of BullMQ that are due at one instant, with the same Redis and the same receiver.
//!
//! BullMQ comes from the npm registry into a temporary directory, in the versions of
//! `benches/bullmq/package-lock.json`. If the registry cannot be reached, the run says so and reports no figure.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use rollcall::clock::Clock;
use rollcall::simulate::servers::Server;
use tempfile::TempDir;

use crate::harness::figures::{Goal, Report};
use crate::harness::process::{CPU, Spent};
use crate::harness::sink::Sink;
use crate::harness::{World, say, thousands, until};

/// How many processes deliver.
const PROCESSES: usize = 2;
const FILES: [&str; 3] = ["package.json", "package-lock.json", "delayed.mjs"];
/// The time between adding the jobs and the moment at which they are due.
const SETTLE: Duration = Duration::from_secs(6);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// `count` jobs are due at one instant, and two processes with `concurrency` each deliver them. Returns the CPU time
/// of a job, in µs.
pub async fn at_one_instant(
    report: &mut Report,
    sink: &Sink,
    count: usize,
    concurrency: usize,
) -> anyhow::Result<Option<f64>> {
    let title =
        format!("{} at one instant, delayed jobs of BullMQ, processes: {PROCESSES}", thousands(count as u64));
    say(&title);
    let dir = match installed() {
        Ok(dir) => dir,
        Err(error) => {
            say(format!("!! NOT MEASURED, because BullMQ cannot be had here: {error:#}"));
            return Ok(None);
        }
    };
    let world = World::new()?;
    let port = world.redis.port();
    sink.forget();
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        let args = ["delayed.mjs", "work", &port.to_string(), &sink.url(), &concurrency.to_string()];
        workers.push(Server::start("node", &args.map(str::to_owned), dir.path(), port, "ready")?);
    }
    let clock = Clock::system();
    let instant = clock.now() + SETTLE;
    let mut add = Command::new("node");
    add.args(["delayed.mjs", "add", &port.to_string(), &count.to_string()]);
    let added = add.arg(instant.as_millis().to_string()).current_dir(dir.path()).status()?;
    ensure!(added.success() && clock.now() < instant, "the jobs were not added in time: {added}");
    tokio::time::sleep(instant.since(clock.now())).await;
    let spent = Spent::begin(workers.iter().map(Server::pid).chain([world.redis.pid()]).collect())?;
    until("all are delivered", MAX_WAIT, async || Ok(sink.notified() >= count as u64)).await?;
    let took = clock.now().since(instant).as_secs_f64();
    let cpu = spent.each(count).await?;
    report.add(format!("{title}: the last POST came after"), took, "s", Goal::None);
    report.add(format!("{title}: {CPU}"), cpu, "µs", Goal::None);
    Ok(Some(cpu))
}

fn installed() -> anyhow::Result<TempDir> {
    let (dir, from) = (TempDir::new()?, Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/bullmq"));
    for file in FILES {
        std::fs::copy(from.join(file), dir.path().join(file)).with_context(|| file.to_owned())?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--cache"]);
    let ended = npm.arg(dir.path().join("cache")).current_dir(dir.path()).status().context("npm")?;
    ensure!(ended.success(), "npm ci: {ended}");
    Ok(dir)
}

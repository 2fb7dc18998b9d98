//! A tenth of a large fleet comes due at one instant: how long until everything is written, until
//! everybody is told one by one, and what other clients of Redis notice of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rollcall::clock::{Clock, Timestamp};

use crate::lab::by_hand;
use crate::lab::figures::{Goal, Report};
use crate::lab::fleet::{Fleet, KIND, TIMEOUT};
use crate::lab::poster::{self, CONCURRENCY};
use crate::lab::sink::Sink;
use crate::lab::world::Rollcall;
use crate::lab::{World, quantile, records, say, thousands, until};

/// Between the last preparation and the instant.
const BREATH: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let clock = Clock::system();
    let due = units / 10;
    let sink = Sink::start().await?;
    let floor = poster::post(&sink, due, &clock).await?.as_secs_f64();
    let title = format!("{} from memory, one request each, nothing durable", thousands(due));
    report.add(title, floor, "s", Goal::None);
    let by_hand = by_hand(report, units, &clock).await?;
    let mut world = World::new()?;
    let now = clock.now();
    Fleet(2 * due..units).fill(&world.engine().await?, now, |_| now).await?;
    let mut running = Vec::new();
    for (round, instances) in [1, 3].into_iter().enumerate() {
        while running.len() < instances {
            running.push(serve(&mut world, &sink).await?);
        }
        let first = round as u32 * due;
        let with = if instances == 1 { "one instance".to_owned() } else { format!("{instances} instances") };
        let title = format!("{} due at one instant, {with}", thousands(due));
        say(&title);
        let recorded = storm(report, &title, &world, &sink, first..first + due, &clock).await?;
        report.add(format!("{title}: records ÷ by hand"), recorded / by_hand, "", Goal::None);
    }
    Ok(())
}

/// The same storm without Rollcall, see [`by_hand`]. Answers how long it took, in seconds.
async fn by_hand(report: &mut Report, units: u32, clock: &Clock) -> anyhow::Result<f64> {
    let (world, due) = (World::new()?, Fleet(0..units / 10));
    let now = clock.now();
    Fleet(due.0.end..units).fill(&world.engine().await?, now, |_| now).await?;
    let title = format!("{} due at one instant, by hand: bare commands, no decision", thousands(due.0.end));
    say(&title);
    let instant = instant(&due, clock);
    due.fill(&world.engine().await?, clock.now(), |_| instant - TIMEOUT).await?;
    let (storm, client) = (by_hand::Storm::prepare(&due, instant), world.client().await?);
    wait_for(instant, clock).await?;
    let probe = Probe::start(world.redis()?);
    storm.run(&client).await?;
    let took = clock.now().since(instant).as_secs_f64();
    report.add(format!("{title}: written"), took, "s", Goal::None);
    let written = records::count(&mut world.client().await?).await?;
    report.add(format!("{title}: records"), written as f64, "", Goal::Exactly(f64::from(due.0.end)));
    meanwhile(report, &title, probe, Goal::None).await?;
    Ok(took)
}

/// When a fleet is due: as long from now as registering takes, and then some.
fn instant(due: &Fleet, clock: &Clock) -> Timestamp {
    clock.now() + BREATH + Duration::from_micros(60 * due.0.len() as u64)
}

async fn wait_for(instant: Timestamp, clock: &Clock) -> anyhow::Result<()> {
    anyhow::ensure!(clock.now() < instant, "registering took longer than expected; nothing is measured");
    tokio::time::sleep(instant.since(clock.now())).await;
    Ok(())
}

/// Adds what another client has noticed.
async fn meanwhile(report: &mut Report, title: &str, probe: Probe, goal: Goal) -> anyhow::Result<()> {
    let p99 = quantile(&mut probe.finish().await?, 0.99);
    report.add(format!("{title}: SET of other clients meanwhile, p99"), p99, "ms", goal);
    Ok(())
}

/// Options of a process that tells one by one, at once.
pub fn telling(sink: &Sink) -> String {
    format!(
        "mqtt.share = \"bench\"\n{KIND}\n[route]\nreceivers = [\"hook\"]\ngroup_by = [\"unit\"]\ngroup_wait = \"0s\"\n\
         [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"{}\"\nconcurrency = {CONCURRENCY}\n",
        sink.url()
    )
}

async fn serve(world: &mut World, sink: &Sink) -> anyhow::Result<Rollcall> {
    world.serve(&telling(sink)).await
}

/// Answers how long it took until everything was written, in seconds.
async fn storm(
    report: &mut Report,
    title: &str,
    world: &World,
    sink: &Sink,
    units: std::ops::Range<u32>,
    clock: &Clock,
) -> anyhow::Result<f64> {
    let mut client = world.client().await?;
    let due = u64::from(units.end - units.start);
    let fleet = Fleet(units);
    let instant = instant(&fleet, clock);
    fleet.fill(&world.engine().await?, clock.now(), |_| instant - TIMEOUT).await?;
    sink.forget();
    let before = records::count(&mut client).await?;
    wait_for(instant, clock).await?;
    let probe = Probe::start(world.redis()?);
    let (_, took) = records::wait_for(&mut client, clock, instant, before, due, PATIENCE).await?;
    report.add(format!("{title}: records and outbox durable"), took.as_secs_f64(), "s", Goal::AtMost(1.0));
    // Not to get there is a figure too: it shows as patience that has run out.
    let _ = until("all are told", PATIENCE, async || Ok(sink.told() >= due)).await;
    let seconds = clock.now().since(instant).as_secs_f64();
    report.add(format!("{title}: told, one request each"), seconds, "s", Goal::AtMost(4.0));
    meanwhile(report, title, probe, Goal::AtMost(5.0)).await?;
    // One too many, of whatever, may come a little later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let written = records::count(&mut client).await? - before;
    report.add(format!("{title}: records"), written as f64, "", Goal::Exactly(due as f64));
    report.add(format!("{title}: notifications"), sink.told() as f64, "", Goal::Exactly(due as f64));
    let again = sink.requests().saturating_sub(due) as f64;
    report.add(format!("{title}: requests beyond one each"), again, "", Goal::None);
    Ok(took.as_secs_f64())
}

/// Another client of the same Redis, on a thread of its own: what it measures is the server, not how
/// busy this process is with being told. Such a client is on another machine as a rule, so the thread goes
/// before all others if that is permitted.
pub struct Probe {
    end: Arc<AtomicBool>,
    running: std::thread::JoinHandle<anyhow::Result<Vec<f64>>>,
}

impl Probe {
    /// Begins to write, about a thousand times a second.
    pub fn start(client: redis::Client) -> Probe {
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let running = std::thread::spawn(move || {
            // Linux takes this thread for the process.
            let _ = rustix::process::setpriority_process(None, -20);
            let mut connection = client.get_connection()?;
            let mut latencies = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let began = Instant::now();
                redis::cmd("SET").arg("other").arg("value").exec(&mut connection)?;
                latencies.push(began.elapsed().as_secs_f64() * 1000.0);
                std::thread::park_timeout(Duration::from_millis(1));
            }
            Ok(latencies)
        });
        Probe { end, running }
    }

    /// Ends it and answers how long each write took, in ms.
    pub async fn finish(self) -> anyhow::Result<Vec<f64>> {
        self.end.store(true, Ordering::Relaxed);
        let running = tokio::task::spawn_blocking(move || self.running.join());
        running.await?.map_err(|_| anyhow::anyhow!("the other client broke down"))?
    }
}

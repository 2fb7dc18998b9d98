//! A tenth of a large fleet is due at one instant: the time until everything is written, the time until
//! each unit is notified one by one, and the latency of other clients of Redis.
//!
//! A storm is over in seconds. So after other load on the machine there is another storm, and
//! the least disturbed one counts; every one has to be exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollcall::clock::{Clock, Stopwatch, Timestamp};

use crate::harness::bare_commands;
use crate::harness::figures::{Goal, Report, TAKEN};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT};
use crate::harness::other_load::OtherLoad;
use crate::harness::poster::{self, CONCURRENCY};
use crate::harness::sink::Sink;
use crate::harness::world::Rollcall;
use crate::harness::{World, quantile, records, say, thousands, until};

/// The time between the last preparation and the instant.
const SETTLE: Duration = Duration::from_secs(3);
const MAX_WAIT: Duration = Duration::from_secs(120);
/// The most storms of a kind.
const STORMS: usize = 6;
/// Other load up to this share of the machine, in percent, is no disturbance.
const QUIET: f64 = 1.0;

/// The writing of a storm.
struct Written {
    /// The time until everything was written, in seconds.
    after: f64,
    /// The latency of other clients of Redis, in ms, 99th percentile.
    others_wait: f64,
    records: u64,
    /// Other load on the machine meanwhile, in percent.
    taken: f64,
}

/// The result of a storm.
struct Storm {
    written: Written,
    /// The time until each unit was notified, in seconds.
    notified: f64,
    notifications: u64,
    requests: u64,
}

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
    Fleet(due..units).fill(&world.engine().await?, now, |_| now).await?;
    let mut running = Vec::new();
    let mut fleets = fleets(units);
    for instances in [1, 3] {
        while running.len() < instances {
            running.push(serve(&mut world, &sink).await?);
        }
        let with = if instances == 1 { "one instance".to_owned() } else { format!("{instances} instances") };
        let title = format!("{} due at one instant, {with}", thousands(due));
        say(&title);
        let mut storms = Vec::new();
        while is_to_be_repeated(storms.iter().map(|storm: &Storm| storm.written.taken)) {
            let fleet = fleets.next().expect("there is no end of them");
            storms.push(storm(&world, &sink, fleet, &clock).await?);
        }
        let recorded = add_best(report, &title, storms, due);
        report.add(format!("{title}: records ÷ by hand"), recorded / by_hand, "", Goal::None);
    }
    Ok(())
}

/// Due fleets, one after the other: a tenth of all units; the resting fleet lacks the units of
/// the first.
fn fleets(units: u32) -> impl Iterator<Item = Fleet> {
    let due = units / 10;
    std::iter::once(0)
        .chain((0..).map(move |later| units + later * due))
        .map(move |first| Fleet(first..first + due))
}

/// Whether another storm follows, given the other load during the storms so far.
fn is_to_be_repeated(taken: impl ExactSizeIterator<Item = f64>) -> bool {
    taken.len() < STORMS && taken.into_iter().all(|taken| taken > QUIET)
}

/// Adds the least disturbed storm, or a storm that was not exact. Returns how long writing took.
fn add_best(report: &mut Report, title: &str, storms: Vec<Storm>, due: u32) -> f64 {
    let count = storms.len();
    let is_exact = |storm: &Storm| [storm.written.records, storm.notifications] == [u64::from(due); 2];
    let order = |a: &Storm, b: &Storm| {
        is_exact(a).cmp(&is_exact(b)).then(a.written.taken.total_cmp(&b.written.taken))
    };
    let Storm { written, notified, notifications, requests } =
        storms.into_iter().min_by(order).expect("there was one");
    let mut add = |what: &str, value, unit, goal| report.add(format!("{title}: {what}"), value, unit, goal);
    add("records and outbox durable", written.after, "s", Goal::AtMost(1.0));
    add("notified, one request each", notified, "s", Goal::AtMost(4.0));
    add("SET of other clients meanwhile, p99", written.others_wait, "ms", Goal::AtMost(5.0));
    add("records", written.records as f64, "", Goal::Exactly(due.into()));
    add("notifications", notifications as f64, "", Goal::Exactly(due.into()));
    add("requests beyond one each", requests.saturating_sub(due.into()) as f64, "", Goal::None);
    add(TAKEN, written.taken, "%", Goal::None);
    add("storms of which this was the least disturbed", count as f64, "", Goal::None);
    written.after
}

/// Measures the storm without Rollcall, by [`bare_commands`]. Returns how long it took, in seconds.
async fn by_hand(report: &mut Report, units: u32, clock: &Clock) -> anyhow::Result<f64> {
    let (world, due) = (World::new()?, units / 10);
    let now = clock.now();
    Fleet(due..units).fill(&world.engine().await?, now, |_| now).await?;
    let title = format!("{} due at one instant, by hand: bare commands, no decision", thousands(due));
    say(&title);
    let mut fleets = fleets(units);
    let mut storms = Vec::new();
    while is_to_be_repeated(storms.iter().map(|storm: &Written| storm.taken)) {
        let fleet = fleets.next().expect("there is no end of them");
        storms.push(storm_by_hand(&world, fleet, clock).await?);
    }
    let count = storms.len();
    let storm = storms.into_iter().min_by(|a, b| a.taken.total_cmp(&b.taken)).expect("there was one");
    let mut add = |what: &str, value, unit, goal| report.add(format!("{title}: {what}"), value, unit, goal);
    add("written", storm.after, "s", Goal::None);
    add("records", storm.records as f64, "", Goal::Exactly(due.into()));
    add("SET of other clients meanwhile, p99", storm.others_wait, "ms", Goal::None);
    add(TAKEN, storm.taken, "%", Goal::None);
    add("storms of which this was the least disturbed", count as f64, "", Goal::None);
    Ok(storm.after)
}

async fn storm_by_hand(world: &World, fleet: Fleet, clock: &Clock) -> anyhow::Result<Written> {
    let mut client = world.client().await?;
    let instant = instant(&fleet, clock);
    fleet.fill(&world.engine().await?, clock.now(), |_| instant - TIMEOUT).await?;
    let storm = bare_commands::Storm::prepare(&fleet, instant);
    let before = records::count(&mut client).await?;
    wait_for(instant, clock).await?;
    let (others, probe) = (OtherLoad::watch()?, Probe::start(world.redis()?));
    storm.run(&client).await?;
    let after = clock.now().since(instant).as_secs_f64();
    let taken = others.percent()?;
    let others_wait = quantile(&mut probe.finish().await?, 0.99);
    let records = records::count(&mut client).await? - before;
    Ok(Written { after, others_wait, records, taken })
}

/// The deadline of a fleet: later than registering takes.
fn instant(due: &Fleet, clock: &Clock) -> Timestamp {
    clock.now() + SETTLE + Duration::from_micros(150 * due.0.len() as u64)
}

/// Waits for the instant of a storm.
pub async fn wait_for(instant: Timestamp, clock: &Clock) -> anyhow::Result<()> {
    anyhow::ensure!(clock.now() < instant, "registering took longer than expected; nothing is measured");
    tokio::time::sleep(instant.since(clock.now())).await;
    Ok(())
}

/// Options of a process that notifies of each unit alone, at once.
pub fn notifying(sink: &Sink) -> String {
    format!("mqtt.share = \"bench\"\n{}", each_alone(sink))
}

/// Options of a process that notifies of each unit alone, at once, without a shared subscription.
pub fn each_alone(sink: &Sink) -> String {
    format!(
        "{KIND}\n[route]\nreceivers = [\"hook\"]\ngroup_by = [\"unit\"]\ngroup_wait = \"0s\"\n\
         [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"{}\"\nconcurrency = {CONCURRENCY}\n",
        sink.url()
    )
}

async fn serve(world: &mut World, sink: &Sink) -> anyhow::Result<Rollcall> {
    world.serve(&notifying(sink)).await
}

async fn storm(world: &World, sink: &Sink, fleet: Fleet, clock: &Clock) -> anyhow::Result<Storm> {
    let mut client = world.client().await?;
    let due = fleet.0.len() as u64;
    let instant = instant(&fleet, clock);
    fleet.fill(&world.engine().await?, clock.now(), |_| instant - TIMEOUT).await?;
    sink.forget();
    let before = records::count(&mut client).await?;
    wait_for(instant, clock).await?;
    let (others, probe) = (OtherLoad::watch()?, Probe::start(world.redis()?));
    let (_, after) = records::wait_for(&mut client, clock, instant, before, due, MAX_WAIT).await?;
    // A timeout is a figure, too.
    let _ = until("all are notified", MAX_WAIT, async || Ok(sink.notified() >= due)).await;
    let notified = clock.now().since(instant).as_secs_f64();
    let taken = others.percent()?;
    let others_wait = quantile(&mut probe.finish().await?, 0.99);
    // A notification too many may come a little later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let records = records::count(&mut client).await? - before;
    let (notifications, requests) = (sink.notified(), sink.requests());
    let written = Written { after: after.as_secs_f64(), others_wait, records, taken };
    Ok(Storm { written, notified, notifications, requests })
}

/// Another client of the same Redis, on a thread of its own: it measures the server, not the load
/// of this process. Such a client is usually on another machine, so the thread gets the highest
/// priority if that is permitted.
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
                let began = Stopwatch::start();
                redis::cmd("SET").arg("other").arg("value").exec(&mut connection)?;
                latencies.push(began.elapsed().as_secs_f64() * 1000.0);
                std::thread::park_timeout(Duration::from_millis(1));
            }
            Ok(latencies)
        });
        Probe { end, running }
    }

    /// Ends the probe and returns how long each write took, in ms.
    pub async fn finish(self) -> anyhow::Result<Vec<f64>> {
        self.end.store(true, Ordering::Relaxed);
        let running = tokio::task::spawn_blocking(move || self.running.join());
        running.await?.map_err(|_| anyhow::anyhow!("the other client broke down"))?
    }
}

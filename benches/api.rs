//! The API while the fleet is alive: how long every page takes while heartbeats flow, and in a storm; how late silences
//! are found meanwhile; clients that follow the fleet; an inventory of the whole fleet out and in. On both engines.
//!
//! Requests come at a fixed rate, whatever the answers do, in turn for every page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::try_join_all;
use reqwest::Client;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use rollcall::clock::{Clock, Stopwatch, Timestamp, monotonic, parse_moment};
use rollcall::store::UnitStore;
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine};
use rollcall::telemetry::Telemetry;

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT};
use crate::harness::process::usage;
use crate::harness::publisher::Load;
use crate::harness::sink::Sink;
use crate::harness::world::Rollcall;
use crate::harness::{World, quantile, say, thousands, until};
use crate::lateness::FLOW;
use crate::mass::wait_for;
use crate::pages::most_memory;
use crate::support::browser::{Browser, SCHEMES, SIZES, pictures};

/// Requests in a second, and heartbeats; a trial with a smaller fleet has a tenth of both.
const RATE: u32 = 200;
const WHOLE: u32 = 1_000_000;
/// The most requests for one page under way; a further one waits, and the wait counts. So a slow page does not make
/// others seem slow.
const AT_ONCE: usize = 20;
/// How many units come due within a minute.
const DUE: u32 = 200;
const MINUTE: Duration = Duration::from_secs(60);
/// How long requests go on in a storm: longer than the storm takes.
const STORM: Duration = Duration::from_secs(10);
/// The values of the label that units are counted by.
const SITES: u32 = 50;
const FOLLOWERS: usize = 500;
/// How long clients follow the fleet.
const FOLLOWED: Duration = Duration::from_secs(15);
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Pages and the most milliseconds that 99 of 100 requests may take.
const PAGES: [(&str, &str, f64); 20] = [
    ("summary", "/api/v1/summary", 5.0),
    ("units", "/api/v1/units", 50.0),
    ("units by a prefix", "/api/v1/units?q=unit-0001", 20.0),
    ("units by a part of the id", "/api/v1/units?contains=1234", 200.0),
    ("units, newest offline first", "/api/v1/units?state=offline&sort=-offline_since", 50.0),
    ("1000 units of a site", "/api/v1/units?label=site=site-7&limit=1000", 50.0),
    ("one unit", "/api/v1/units/detector/unit-0000001", 50.0),
    ("timeline", "/api/v1/units/detector/unit-0000001/timeline", 20.0),
    ("availability of a unit", "/api/v1/availability?unit=detector/unit-0000001", 50.0),
    ("availability of the fleet", "/api/v1/availability", 50.0),
    ("records", "/api/v1/records", 50.0),
    ("open records", "/api/v1/records?open=true&limit=1000", 50.0),
    ("deliveries", "/api/v1/deliveries", 50.0),
    ("receivers", "/api/v1/receivers", 50.0),
    ("silences", "/api/v1/silences", 50.0),
    ("audit", "/api/v1/audit", 50.0),
    ("strangers", "/api/v1/strangers", 50.0),
    ("breaker", "/api/v1/breaker", 50.0),
    ("targets", "/api/v1/prometheus/targets", 50.0),
    ("the web page", "/", 100.0),
];

/// Pages of which pictures are taken after the storm.
const PICTURES: [(&str, &str); 4] = [
    ("fleet", "/"),
    ("unit", "/units/detector/unit-0000001"),
    ("records", "/records"),
    ("incidents", "/incidents"),
];

/// An engine with a fleet, of which some units come due.
struct Ground {
    name: &'static str,
    world: World,
    /// The engine, for a configuration.
    engine: String,
    /// When the first of the [`DUE`] units is due, and when the storm begins.
    first: Timestamp,
    storm: Timestamp,
    _dir: TempDir,
}

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    for name in ["Redis", "embedded"] {
        let sink = Sink::start().await?;
        let mut ground = Ground::prepare(name, units).await?;
        let options = format!("http.count_by_labels = [\"site\"]\n{}", notifying(&sink));
        let rollcall = ground.world.serve_on(&ground.engine.clone(), &options).await?;
        under_load(report, &ground, &rollcall, units).await?;
        take_pictures(&rollcall, &format!("{units}-units-{}", name.to_lowercase())).await?;
        export(report, &ground, &rollcall, units).await?;
        drop((rollcall, ground));
        import(report, name, units).await?;
    }
    Ok(())
}

/// Takes pictures of pages for people to look at, if a browser is installed.
async fn take_pictures(rollcall: &Rollcall, name: &str) -> anyhow::Result<()> {
    if Command::new("chromedriver").arg("--version").output().is_err() {
        say("no pictures: the Debian package chromium-driver is not installed");
        return Ok(());
    }
    let dir = TempDir::new()?;
    let browser = Browser::start(dir.path()).await;
    for (page, path) in PICTURES {
        browser.open(&rollcall.page(path)).await;
        for (size, pixels) in SIZES {
            for scheme in SCHEMES {
                browser.look(pixels, scheme).await;
                browser.picture(&pictures().join(format!("{name}-{page}-{size}-{scheme}.png"))).await;
            }
        }
    }
    Ok(())
}

/// Options that notify once for many units, as most fleets do.
fn notifying(sink: &Sink) -> String {
    format!(
        "{KIND}\n[route]\nreceivers = [\"hook\"]\ngroup_by = [\"kind\"]\ngroup_wait = \"1s\"\n\
         [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"{}\"\n",
        sink.url()
    )
}

impl Ground {
    async fn prepare(name: &'static str, units: u32) -> anyhow::Result<Ground> {
        let (world, dir) = (World::new()?, TempDir::new()?);
        let engine = match name {
            "Redis" => format!("url = \"redis://127.0.0.1:{}/0\"", world.redis.port()),
            _ => format!("type = \"embedded\", path = \"{}\"", dir.path().display()),
        };
        // The time is longer than registering the units and the start take.
        let first =
            |now: Timestamp| now + Duration::from_secs(20) + Duration::from_micros(60 * u64::from(units));
        let (first, storm) = match name {
            "Redis" => fill(&world.engine().await?, units, first).await?,
            _ => fill(&embedded(&dir).await?, units, first).await?,
        };
        Ok(Ground { name, world, engine, first, storm, _dir: dir })
    }

    fn due(units: u32) -> u32 {
        units / 10
    }
}

async fn embedded(dir: &TempDir) -> anyhow::Result<Arc<EmbeddedEngine>> {
    let config = EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(16) };
    Ok(Arc::new(EmbeddedEngine::open(&config, Arc::new(Telemetry::new(&Clock::system()))).await?))
}

/// The first tenth of the units is due at one instant, and [`DUE`] more within the minute before.
async fn fill(
    engine: &Arc<impl UnitStore + 'static>,
    units: u32,
    first: impl Fn(Timestamp) -> Timestamp,
) -> anyhow::Result<(Timestamp, Timestamp)> {
    let (clock, due) = (Clock::system(), Ground::due(units));
    let now = clock.now();
    Fleet(due + DUE..units).fill_by_site(engine, now, |_| now, SITES).await?;
    let now = clock.now();
    let first = first(now);
    let storm = first + MINUTE + Duration::from_secs(5);
    let each = |unit: u32| first + MINUTE * (unit - due) / DUE;
    Fleet(due..due + DUE).fill_by_site(engine, now, |unit| each(unit) - TIMEOUT, SITES).await?;
    Fleet(0..due).fill_by_site(engine, clock.now(), |_| storm - TIMEOUT, SITES).await?;
    Ok((first, storm))
}

async fn under_load(
    report: &mut Report,
    ground: &Ground,
    rollcall: &Rollcall,
    units: u32,
) -> anyhow::Result<()> {
    let (clock, due, name) = (Clock::system(), Ground::due(units), ground.name);
    let (port, rest) = (ground.world.broker.port(), due + DUE);
    let (rate, flow) = if units < WHOLE { (RATE / 10, FLOW / 10) } else { (RATE, FLOW) };
    let load =
        Load { port, first: rest, units: units - rest, qos: 0, rate: flow, once: false, connections: 2 };
    let _publisher = load.start()?;
    wait_for(ground.first, &clock).await?;
    let title =
        format!("{} units, {name}, {} heartbeats/s and {rate} requests/s", thousands(units), thousands(flow));
    say(&title);
    show(report, &title, ask_all(rollcall, rate, MINUTE).await?, MINUTE);
    let mut late = lateness(rollcall).await?;
    report.add(format!("{title}: records"), late.len() as f64, "", Goal::Exactly(DUE.into()));
    report.add(format!("{title}: lateness p50"), quantile(&mut late, 0.5), "ms", Goal::None);
    report.add(format!("{title}: lateness p99"), quantile(&mut late, 0.99), "ms", Goal::AtMost(10.0));

    let title = format!("the same while {} fall silent", thousands(due));
    say(&title);
    wait_for(ground.storm, &clock).await?;
    show(report, &title, ask_all(rollcall, rate, STORM).await?, STORM);
    until("the storm is recorded", MAX_WAIT, async || {
        Ok(rollcall.metric("rollcall_unit_transitions_total{cause=\"silence\",to=\"offline\"").await?
            >= f64::from(due + DUE))
    })
    .await?;
    follow(report, rollcall, name).await
}

/// Asks every page in turn.
async fn ask_all(rollcall: &Rollcall, rate: u32, span: Duration) -> anyhow::Result<Answers> {
    let client = Client::builder().no_proxy().build()?;
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut asked, end) = (JoinSet::new(), monotonic() + span);
    let pid = rollcall.server.pid();
    let before = usage(pid)?.cpu;
    let rooms = PAGES.map(|_| Arc::new(Semaphore::new(AT_ONCE)));
    for number in (0..PAGES.len()).cycle() {
        ticks.tick().await;
        if monotonic() > end {
            break;
        }
        let (request, room) = (client.get(rollcall.page(PAGES[number].1)), rooms[number].clone());
        asked.spawn(async move {
            let began = Stopwatch::start();
            let _turn = room.acquire().await?;
            let answer = request.send().await?;
            let (status, text) = (answer.status(), answer.text().await?);
            let failure = (!status.is_success()).then(|| format!("{}: {status} {text}", PAGES[number].1));
            anyhow::Ok((number, began.elapsed().as_secs_f64() * 1e3, failure))
        });
    }
    let mut answers = Answers { cpu: usage(pid)?.cpu - before, ..Answers::default() };
    while let Some(one) = asked.join_next().await {
        let (number, ms, failure) = one??;
        answers.took.entry(number).or_default().push(ms);
        answers.failed.extend(failure);
    }
    answers.failed.first().inspect(|failure| say(failure));
    Ok(answers)
}

/// How long the answers of each page took, in ms, and the answers that were errors.
#[derive(Default)]
struct Answers {
    took: BTreeMap<usize, Vec<f64>>,
    failed: Vec<String>,
    /// The processor time of Rollcall during the requests.
    cpu: Duration,
}

fn show(report: &mut Report, title: &str, Answers { took, failed, cpu }: Answers, span: Duration) {
    let share = cpu.as_secs_f64() / span.as_secs_f64() * 100.0;
    report.add(format!("{title}: of a core"), share, "%", Goal::None);
    report.add(format!("{title}: errors"), failed.len() as f64, "", Goal::Exactly(0.0));
    for (number, mut took) in took {
        let (what, _, most) = PAGES[number];
        report.add(format!("{title}: {what}, p99"), quantile(&mut took, 0.99), "ms", Goal::AtMost(most));
    }
}

/// How late the silences of the minute were recorded, in ms.
async fn lateness(rollcall: &Rollcall) -> anyhow::Result<Vec<f64>> {
    sleep(Duration::from_secs(1)).await;
    let page = reqwest::get(rollcall.page("/api/v1/records?limit=1000")).await?.text().await?;
    let page: Value = serde_json::from_str(&page)?;
    let at = |record: &Value, field: &str| parse_moment(record[field].as_str()?);
    let late = page["records"].as_array().into_iter().flatten().map(|record| {
        let late = at(record, "detected_at")?.as_millis() - at(record, "deadline")?.as_millis();
        Some(late as f64)
    });
    late.collect::<Option<Vec<f64>>>().context("a record has no times")
}

/// The processor time of clients that follow the fleet, while heartbeats flow.
async fn follow(report: &mut Report, rollcall: &Rollcall, name: &str) -> anyhow::Result<()> {
    let title = format!("{FOLLOWERS} clients follow the fleet, {name}");
    say(&title);
    let pid = rollcall.server.pid();
    let used = async || {
        let before = usage(pid)?.cpu;
        sleep(FOLLOWED).await;
        anyhow::Ok((usage(pid)?.cpu - before).as_secs_f64() / FOLLOWED.as_secs_f64() * 100.0)
    };
    let alone = used().await?;
    // A client with one address may not take all connections.
    let clients = [1, 2].map(|number| {
        let address = IpAddr::from(Ipv4Addr::new(127, 0, 0, number));
        Client::builder().no_proxy().local_address(address).build()
    });
    let [one, other] = clients;
    let (one, other) = (one?, other?);
    let (bytes, stop) = (Arc::new(Mutex::new(vec![0_u64; FOLLOWERS])), CancellationToken::new());
    let opened = (0..FOLLOWERS).map(|number| {
        let client = if number % 2 == 0 { &one } else { &other };
        client.get(rollcall.page("/api/v1/stream")).send()
    });
    let mut following = JoinSet::new();
    for (number, stream) in try_join_all(opened).await?.into_iter().enumerate() {
        let (mut stream, bytes, stop) = (stream.error_for_status()?, bytes.clone(), stop.clone());
        following.spawn(async move {
            while let Some(Ok(Some(chunk))) = stop.run_until_cancelled(stream.chunk()).await {
                bytes.lock().await[number] += chunk.len() as u64;
            }
        });
    }
    let together = used().await?;
    stop.cancel();
    following.join_all().await;
    let told = bytes.lock().await.iter().filter(|bytes| **bytes > 0).count();
    report.add(format!("{title}: told"), told as f64, "", Goal::Exactly(FOLLOWERS as f64));
    report.add(format!("{title}: of a core"), together - alone, "%", Goal::AtMost(10.0));
    Ok(())
}

async fn export(report: &mut Report, ground: &Ground, rollcall: &Rollcall, units: u32) -> anyhow::Result<()> {
    let title = format!("export of {} units, {}", thousands(units), ground.name);
    say(&title);
    let pid = rollcall.server.pid();
    let (before, done) = (usage(pid)?.rss, CancellationToken::new());
    let most = tokio::spawn(most_memory(pid, done.clone()));
    let began = Stopwatch::start();
    let mut answer = reqwest::get(rollcall.page("/api/v1/units:export")).await?.error_for_status()?;
    let mut lines = 0_u64;
    while let Some(chunk) = answer.chunk().await? {
        lines += chunk.iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    let took = began.elapsed().as_secs_f64();
    done.cancel();
    let memory = most.await?.saturating_sub(before) as f64 / 1e6;
    report.add(format!("{title}: lines"), lines as f64, "", Goal::Exactly(units.into()));
    report.add(&title, took, "s", Goal::AtMost(3.0));
    report.add(format!("{title}: memory for it"), memory, "MB", Goal::AtMost(32.0));
    Ok(())
}

/// Registers all units of an empty fleet.
async fn import(report: &mut Report, name: &str, units: u32) -> anyhow::Result<()> {
    let title = format!("import of {} units, {name}", thousands(units));
    say(&title);
    let (mut world, dir) = (World::new()?, TempDir::new()?);
    let engine = match name {
        "Redis" => format!("url = \"redis://127.0.0.1:{}/0\"", world.redis.port()),
        _ => format!("type = \"embedded\", path = \"{}\"", dir.path().display()),
    };
    let rollcall = world.serve_on(&engine, KIND).await?;
    let mut inventory = String::from("kind,unit,label.site,timeout_seconds\n");
    for number in 0..units {
        let _ = writeln!(inventory, "detector,unit-{number:07},site-{},7200", number % SITES);
    }
    let pid = rollcall.server.pid();
    let (before, done) = (usage(pid)?.rss, CancellationToken::new());
    let most = tokio::spawn(most_memory(pid, done.clone()));
    let began = Stopwatch::start();
    let request =
        Client::new().post(rollcall.page("/api/v1/units:import")).header("content-type", "text/csv");
    let answer = request.body(inventory).send().await?.error_for_status()?.text().await?;
    let took = began.elapsed().as_secs_f64();
    done.cancel();
    let memory = most.await?.saturating_sub(before) as f64 / 1e6;
    let answer: Value = serde_json::from_str(&answer)?;
    let new = answer["new"].as_f64().context("the answer counts no new units")?;
    report.add(format!("{title}: new"), new, "", Goal::Exactly(units.into()));
    let most = if name == "Redis" { Goal::AtMost(60.0) } else { Goal::None };
    report.add(&title, took, "s", most);
    report.add(format!("{title}: memory for it, with the units"), memory, "MB", Goal::None);
    Ok(())
}

//! The cost of the pages of metrics in a large fleet, and their use by Prometheus and dashboards.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::header::{ACCEPT, ACCEPT_ENCODING};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use rollcall::clock::{Clock, Stopwatch, Timestamp};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::redis::RedisEngine;
use rollcall::store::{DataStore, Reading};

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND, unit};
use crate::harness::process::usage;
use crate::harness::world::Rollcall;
use crate::harness::{World, quantile, say, thousands, until};

/// How often a page is requested; the median counts.
const ROUNDS: usize = 5;
/// The values of the label that units are counted by.
const SITES: u32 = 50;
/// Units that a real Prometheus scrapes.
const SCRAPED: u32 = 100_000;
const SCRAPES: usize = 8;
const MAX_WAIT: Duration = Duration::from_secs(120);
/// How often memory is read while a page is written.
const READ_EVERY: Duration = Duration::from_millis(5);
/// Values that are written at once.
const CHUNK: usize = 5000;

const VOLTS: &str = "detector_battery_volts";
const COUNTED: &str = "http.count_by_labels = [\"site\"]\n";
const METRIC: &str = "[[kind.metric]]\nname = \"detector_battery_volts\"\npointer = \"/volts\"\ntype = \"gauge\"\n\
    help = \"Voltage of the battery.\"\nunit = \"volts\"";

pub async fn run(report: &mut Report, units: u32) -> anyhow::Result<()> {
    pages(report, units).await?;
    scrapes(report, units.min(SCRAPED)).await
}

/// The pages themselves.
async fn pages(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let mut world = World::new()?;
    let engine = world.engine().await?;
    let now = Clock::system().now();
    Fleet(0..units).fill_by_site(&engine, now, |_| now, SITES).await?;
    let mut rollcall = world.serve(&format!("{COUNTED}{KIND}")).await?;
    let title = thousands(units);
    let ms = aggregates(&rollcall).await?;
    report.add(format!("/metrics of {title} units, by site too"), ms, "ms", Goal::AtMost(20.0));
    let whole = Page::new("/metrics/units").ask(&rollcall).await?;
    ensure!(whole.lines >= 2 * u64::from(units), "the page has only {} lines", whole.lines);
    let what = format!("/metrics/units of {title} units: to the last byte");
    report.add(&what, whole.seconds, "s", Goal::AtMost(1.0));
    report.add(format!("{what}, memory for it"), whole.memory_mb, "MB", Goal::AtMost(16.0));
    report.add(format!("{what}, size"), whole.bytes as f64 / 1e6, "MB", Goal::None);
    let open = Page { accept: "application/openmetrics-text", ..Page::new("/metrics/units") };
    report.add(format!("{what}, OpenMetrics"), open.ask(&rollcall).await?.seconds, "s", Goal::None);
    let gzip = Page { encoding: "gzip", ..Page::new("/metrics/units") }.ask(&rollcall).await?;
    report.add(format!("{what}, gzip"), gzip.seconds, "s", Goal::None);
    report.add(format!("{what}, gzip, size"), gzip.bytes as f64 / 1e6, "MB", Goal::None);
    let shard = Page::new("/metrics/units?shard=0&shards=16").ask(&rollcall).await?;
    report.add("one of 16 shards of it", shard.seconds * 1e3, "ms", Goal::None);
    let site = Page::new("/metrics/units?label=site=site-7").ask(&rollcall).await?;
    report.add("one of 50 sites of it", site.seconds * 1e3, "ms", Goal::None);
    let rss = usage(rollcall.server.pid())?.rss as f64 / 1e6;
    report.add("memory of Rollcall after all of that", rss, "MB", Goal::AtMost(150.0));

    let before = redis_memory(&world).await?;
    let took = write_values(&engine, units, now).await?;
    report.add(format!("values written, of {title} units"), f64::from(units) / took, "/s", Goal::None);
    let each = (redis_memory(&world).await? - before) / f64::from(units);
    report.add("memory of Redis for a value", each, "bytes", Goal::None);
    drop(rollcall);
    rollcall = world.serve(&format!("{COUNTED}{KIND}\n{METRIC}")).await?;
    // The earlier process was killed, so its lease has to expire first.
    until("the new one owns all units", MAX_WAIT, async || {
        Ok(rollcall.metric("rollcall_units{").await? >= f64::from(units))
    })
    .await?;
    let whole = Page::new("/metrics/units").ask(&rollcall).await?;
    ensure!(whole.lines >= 3 * u64::from(units), "the page has only {} lines", whole.lines);
    report.add(format!("{what}, with a value of each"), whole.seconds, "s", Goal::None);
    report.add(format!("{what}, with a value of each, memory"), whole.memory_mb, "MB", Goal::AtMost(16.0));
    Ok(())
}

/// How long `/metrics` takes, in ms.
pub async fn aggregates(rollcall: &Rollcall) -> anyhow::Result<f64> {
    Ok(Page::new("/metrics").ask(rollcall).await?.seconds * 1e3)
}

/// Writes a value for every unit; returns how many seconds that took.
async fn write_values(engine: &Arc<RedisEngine>, units: u32, at: Timestamp) -> anyhow::Result<f64> {
    say("notifying");
    let began = Stopwatch::start();
    let numbers: Vec<u32> = (0..units).collect();
    let chunks = numbers.chunks(CHUNK).map(|chunk| async move {
        let values: Vec<_> = chunk.iter().map(|n| (unit(*n), format!("3.{}", n % 100))).collect();
        let reading = |(unit, value)| Reading { unit, metric: VOLTS, at, value };
        let readings: Vec<Reading> =
            values.iter().map(|(unit, value)| reading((unit, value.as_str()))).collect();
        engine.keep_values(&readings).await
    });
    let known: Vec<Vec<bool>> = stream::iter(chunks).buffer_unordered(2).try_collect().await?;
    ensure!(known.iter().flatten().all(|known| *known), "a unit is not known");
    Ok(began.elapsed().as_secs_f64())
}

async fn redis_memory(world: &World) -> anyhow::Result<f64> {
    let mut client = world.client().await?;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut client).await?;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    Ok(used.context("redis does not say how much memory it uses")?.trim().parse()?)
}

/// A request for a page.
struct Page {
    path: &'static str,
    accept: &'static str,
    encoding: &'static str,
}

/// The answers, as the median of some rounds.
struct Answer {
    seconds: f64,
    bytes: u64,
    lines: u64,
    /// The most memory in use during the answers, above the memory before, in MB.
    memory_mb: f64,
}

impl Page {
    fn new(path: &'static str) -> Page {
        Page { path, accept: "text/plain", encoding: "identity" }
    }

    async fn ask(&self, rollcall: &Rollcall) -> anyhow::Result<Answer> {
        let client = reqwest::Client::new();
        let pid = rollcall.server.pid();
        let mut answer = Answer { seconds: f64::NAN, bytes: 0, lines: 0, memory_mb: 0.0 };
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            let before = usage(pid)?.rss;
            let done = CancellationToken::new();
            let most = tokio::spawn(most_memory(pid, done.clone()));
            let began = Stopwatch::start();
            let request = client.get(rollcall.page(self.path)).header(ACCEPT, self.accept);
            let mut page = request.header(ACCEPT_ENCODING, self.encoding).send().await?.error_for_status()?;
            (answer.bytes, answer.lines) = (0, 0);
            while let Some(piece) = page.chunk().await? {
                answer.bytes += piece.len() as u64;
                answer.lines += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
            }
            took.push(began.elapsed().as_secs_f64());
            done.cancel();
            let most = most.await?.saturating_sub(before);
            answer.memory_mb = answer.memory_mb.max(most as f64 / 1e6);
        }
        answer.seconds = quantile(&mut took, 0.5);
        Ok(answer)
    }
}

/// The most memory that a process has in use until `done`.
pub async fn most_memory(pid: u32, done: CancellationToken) -> u64 {
    let mut reads = tokio::time::interval(READ_EVERY);
    let mut most = 0;
    while done.run_until_cancelled(reads.tick()).await.is_some() {
        most = most.max(usage(pid).map_or(0, |usage| usage.rss));
    }
    most
}

/// A real Prometheus scrapes every unit, and dashboards query it.
async fn scrapes(report: &mut Report, units: u32) -> anyhow::Result<()> {
    let mut world = World::new()?;
    let now = Clock::system().now();
    Fleet(0..units).fill_by_site(&world.engine().await?, now, |_| now, SITES).await?;
    let rollcall = world.serve(&format!("{COUNTED}{KIND}")).await?;
    let dir = tempfile::tempdir()?;
    let prometheus = Prometheus::start(dir.path(), rollcall.server.port())?;
    say("Prometheus is asking");
    let durations = "scrape_duration_seconds{job=\"rollcall-units\"}[5m]";
    let mut took = Vec::new();
    until("Prometheus has asked often enough", MAX_WAIT, async || {
        let answer = prometheus.ask(durations).await?;
        let samples = answer[0]["values"].as_array().into_iter().flatten();
        took = samples.filter_map(|sample| sample[1].as_str()?.parse::<f64>().ok()).collect();
        // The first scrape creates the series.
        Ok(took.len() > SCRAPES)
    })
    .await?;
    let scraped = prometheus.ask("scrape_samples_scraped{job=\"rollcall-units\"}").await?;
    let samples: f64 = scraped[0]["value"][1].as_str().unwrap_or_default().parse()?;
    ensure!(samples >= 2.0 * f64::from(units), "Prometheus got only {samples} samples");
    let title = format!("Prometheus asks for {} units, two series each", thousands(units));
    report.add(format!("{title}: the first time"), took[0], "s", Goal::None);
    report.add(title, quantile(&mut took[1..], 0.5), "s", Goal::AtMost(0.5));
    let mut queries = Vec::new();
    for query in aggregate_queries()? {
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            let began = Stopwatch::start();
            prometheus.ask(&query).await?;
            took.push(began.elapsed().as_secs_f64() * 1e3);
        }
        queries.push(quantile(&mut took, 0.5));
    }
    ensure!(queries.len() > 50, "dashboards ask only {} questions", queries.len());
    report.add("questions of dashboards over aggregates", queries.len() as f64, "", Goal::None);
    report.add("the slowest of them", quantile(&mut queries, 1.0), "ms", Goal::AtMost(100.0));
    Ok(())
}

/// A Prometheus server for this benchmark.
struct Prometheus {
    server: Server,
    client: reqwest::Client,
}

impl Prometheus {
    fn start(dir: &Path, target: u16) -> anyhow::Result<Prometheus> {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/prometheus/rules/*.yml");
        let target = format!("static_configs: [{{ targets: ['127.0.0.1:{target}'] }}]");
        let text = format!(
            "global: {{ scrape_interval: 4s, scrape_timeout: 4s, evaluation_interval: 4s }}\n\
             rule_files: ['{}']\nscrape_configs:\n- {{ job_name: rollcall, {target} }}\n\
             - {{ job_name: rollcall-units, metrics_path: /metrics/units, {target} }}\n",
            rules.display()
        );
        std::fs::write(dir.join("prometheus.yml"), text)?;
        let port = free_port()?;
        let arguments = [
            "--config.file=prometheus.yml".to_owned(),
            "--storage.tsdb.path=data".to_owned(),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ];
        let ready = "Server is ready to receive web requests";
        let server = Server::start("prometheus", &arguments, dir, port, ready)?;
        Ok(Prometheus { server, client: reqwest::Client::new() })
    }

    /// The answer to an instant query.
    async fn ask(&self, query: &str) -> anyhow::Result<Value> {
        let url = format!("http://127.0.0.1:{}/api/v1/query", self.server.port());
        let url = url::Url::parse_with_params(&url, [("query", query)])?;
        let answer = self.client.get(url).send().await?.bytes().await?;
        let mut answer: Value = serde_json::from_slice(&answer)?;
        ensure!(answer["status"] == "success", "{query}: {answer}");
        Ok(answer["data"]["result"].take())
    }
}

/// The queries of panels, with all values selected; queries for single units are left out.
fn aggregate_queries() -> anyhow::Result<Vec<String>> {
    let mut queries = Vec::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let dashboard: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let panels = dashboard["panels"].as_array().into_iter().flatten();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        for query in targets.filter_map(|target| target["expr"].as_str()) {
            if !query.contains("rollcall_unit_up") && !query.contains("rollcall_unit_last_seen") {
                queries.push(chosen(query));
            }
        }
    }
    Ok(queries)
}

fn chosen(query: &str) -> String {
    let all = [
        ("$__rate_interval", "1m"),
        ("$__interval_ms", "15000"),
        ("$__interval", "15s"),
        ("$__range", "1h"),
        ("$label", "site"),
        ("$kind", ".*"),
        ("$unit", ".*"),
        ("$instance", ".*"),
        ("$receiver", ".*"),
    ];
    let matched = query.replace("=\"$", "=~\"$").replace("=~~", "=~");
    all.iter().fold(matched, |query, (variable, value)| query.replace(variable, value))
}

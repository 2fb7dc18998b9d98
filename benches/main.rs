//! The performance of Rollcall on this machine, compared with the plain way.
//!
//! `make bench` runs everything on private servers, each figure together with its
//! baseline, and writes each benchmark that has ended to `benches/results.json` and the table in
//! `benches/FIGURES.md`. On a busy machine absolute figures are noise; ratios are reliable, and the
//! other load on the machine is shown, too.
//!
//! One file for each benchmark; `harness/` holds their common parts: servers, a fleet, load, a sink, and the figures.
//! The same program is also the publisher and the subscriber of a measurement, as processes of their own, so that the
//! CPU time of each is measured alone.

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use harness::figures::Report;
use harness::machine::Machine;

mod announcements;
mod api;
mod brokers;
mod bullmq;
mod cluster;
mod embedded;
mod engine;
mod failover;
mod first_contact;
mod growth;
mod harness;
mod history;
mod ingest;
mod lateness;
mod listener;
mod mass;
mod mixed;
mod pages;
mod poller;
mod rest;
mod routed;
mod six_thousand;
#[path = "../tests/support/mod.rs"]
mod support;
mod ten_million;
mod timers;
mod wills;

/// The allocator of the program `rollcall`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Every benchmark, in the order in which they run.
const BENCHMARKS: [&str; 21] = [
    "engine",
    "embedded",
    "ingest",
    "first_contact",
    "lateness",
    "mixed",
    "mass",
    "six_thousand",
    "routed",
    "rest",
    "pages",
    "api",
    "growth",
    "cluster",
    "failover",
    "timers",
    "listener",
    "announcements",
    "brokers",
    "history",
    TEN_MILLION,
];

/// This benchmark takes longer than all the others, and ten times the memory: it runs only if it is chosen.
const TEN_MILLION: &str = "ten_million";

/// The command line.
#[derive(Debug, Parser)]
struct Options {
    /// Only these benchmarks: engine, embedded, ingest, first_contact, lateness, mixed, mass, six_thousand, routed,
    /// rest, pages, api, growth, cluster, failover, timers, listener, announcements, brokers, history; and ten_million, which
    /// runs only if it is named.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(BENCHMARKS))]
    only: Vec<String>,
    /// How many units the large fleet has. With less than a million, goals mean little, and nothing is written.
    #[arg(long, default_value_t = FULL)]
    units: u32,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The size of the large fleet of the goals.
const FULL: u32 = 1_000_000;

/// Other processes of a measurement.
#[derive(Debug, Subcommand)]
enum Part {
    /// Publishes heartbeats.
    #[command(hide = true)]
    Publish(harness::publisher::Load),
    /// Counts the messages of a bare subscriber.
    #[command(hide = true)]
    Subscribe(harness::subscriber::Options),
    /// Delivers what is due in a sorted set.
    #[command(hide = true)]
    Poll(poller::Options),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = Options::parse();
    match options.part {
        Some(Part::Publish(load)) => harness::publisher::publish(load).await?,
        Some(Part::Subscribe(options)) => harness::subscriber::count(options).await?,
        Some(Part::Poll(options)) => poller::poll(options).await?,
        None => measure(&options).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let mut report = Report::new(Machine::detect()?)?;
    let chosen = |name: &&str| match options.only.is_empty() {
        true => *name != TEN_MILLION,
        false => options.only.iter().any(|only| only == name),
    };
    for name in BENCHMARKS.into_iter().filter(chosen) {
        report.begin(name)?;
        match name {
            "engine" => engine::run(&mut report, options.units).await?,
            "embedded" => embedded::run(&mut report, options.units).await?,
            "ingest" => ingest::run(&mut report, options.units).await?,
            "first_contact" => first_contact::run(&mut report, options.units).await?,
            "lateness" => lateness::run(&mut report, options.units).await?,
            "mixed" => mixed::run(&mut report, options.units).await?,
            "mass" => mass::run(&mut report, options.units).await?,
            "six_thousand" => six_thousand::run(&mut report, options.units).await?,
            "routed" => routed::run(&mut report, options.units).await?,
            "rest" => rest::run(&mut report, options.units).await?,
            "pages" => pages::run(&mut report, options.units).await?,
            "api" => api::run(&mut report, options.units).await?,
            "growth" => growth::run(&mut report, options.units).await?,
            "cluster" => cluster::run(&mut report, options.units).await?,
            "failover" => failover::run(&mut report).await?,
            "timers" => timers::run(&mut report, options.units).await?,
            "listener" => listener::run(&mut report, options.units).await?,
            "announcements" => announcements::run(&mut report, options.units).await?,
            "brokers" => brokers::run(&mut report).await?,
            "history" => history::run(&mut report, options.units).await?,
            _ => ten_million::run(&mut report, options.units).await?,
        }
        report.end()?;
        if options.units == FULL {
            report.write(Path::new(env!("CARGO_MANIFEST_DIR")), &BENCHMARKS)?;
        }
    }
    println!("{}", report.table());
    if options.units != FULL {
        println!("Not written down: the large fleet has {FULL} units.");
    }
    Ok(())
}

//! `rollcall simulate`: a fleet over real MQTT, to see Rollcall at work or to find its limits.
//!
//! The behaviour of the fleet follows from `--seed`: every run has the same silences at the same times.

use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

use super::logging;
use super::signals::{self, HangUp};
use crate::address::BrokerAddress;
use crate::clock::monotonic;
use crate::config::Span;
use crate::simulate::fleet::{self, FleetConfig, FleetProgress};

#[derive(Debug, Args)]
pub(super) struct SimulateArguments {
    /// The MQTT broker.
    #[arg(long, value_name = "URL", default_value = "mqtt://127.0.0.1:1883", value_parser = broker)]
    url: String,
    /// The user name for the broker.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    username: Option<String>,
    /// File with the password.
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// The number of units.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    units: usize,
    /// The number of sites that the units are spread over.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    sites: usize,
    /// The topic that they publish on: text, {unit} and {site}.
    #[arg(long, value_name = "TEMPLATE", default_value = "units/{unit}/heartbeat")]
    topic: String,
    /// The usual time between two heartbeats of a unit.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = span)]
    interval: Duration,
    /// The share of the interval by which it varies, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    jitter: f64,
    /// The chance that a heartbeat is the last before a silence, 0 to 1.
    #[arg(long, value_name = "CHANCE", default_value_t = 0.0)]
    silence: f64,
    /// The length of the shortest silence.
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = span)]
    shortest_silence: Duration,
    /// The length of the longest silence.
    #[arg(long, value_name = "SPAN", default_value = "5m", value_parser = span)]
    longest_silence: Duration,
    /// The quality of service of the heartbeats, 0 or 1.
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    qos: u8,
    /// The seed of all random numbers.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// The number of connections; 0: one for every few thousand units.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    connections: usize,
    /// How long to run; by default until Ctrl-C.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    duration: Option<Duration>,
}

fn broker(text: &str) -> Result<String, String> {
    text.parse::<BrokerAddress>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// A span of time on the command line.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    Span::parse(text)
        .map(|span| span.0)
        .ok_or_else(|| "write a span of time such as 10s or \"1m 30s\"".into())
}

impl SimulateArguments {
    fn fleet(self) -> anyhow::Result<FleetConfig> {
        let password = |file: PathBuf| {
            let text = std::fs::read_to_string(&file);
            text.with_context(|| format!("the password in {} cannot be read", file.display()))
        };
        let password = self.password_file.map(password).transpose()?;
        Ok(FleetConfig {
            url: self.url,
            credentials: self.username.zip(password.map(|text| text.trim().to_owned())),
            units: self.units,
            sites: self.sites,
            topic: self.topic,
            interval: self.interval,
            jitter: self.jitter,
            silence_chance: self.silence,
            silence_for: self.shortest_silence..self.longest_silence,
            qos: self.qos,
            seed: self.seed,
            connections: self.connections,
            duration: self.duration,
            ..FleetConfig::new("")
        })
    }
}

pub(super) async fn run(arguments: SimulateArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let stop = signals::stop(HangUp::Stop)?;
    let fleet = arguments.fleet()?;
    let (progress, seen) = watch::channel(FleetProgress::default());
    let shown = tokio::spawn(show(seen, fleet.duration));
    let summary = fleet::run(fleet, progress, stop).await;
    // The display ends by itself, because the sender of its channel is gone.
    shown.await?;
    let summary = summary?;
    println!(
        "{} heartbeats sent and {} missed in {:.1} s",
        summary.sent,
        summary.missed,
        summary.took.as_secs_f64()
    );
    Ok(ExitCode::SUCCESS)
}

/// How often a line of progress is printed without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows the progress on standard error: as a bar if that is a terminal, otherwise as lines.
async fn show(seen: watch::Receiver<FleetProgress>, duration: Option<Duration>) {
    if stderr().is_terminal() {
        show_bar(seen, duration).await;
    } else {
        print_lines(seen).await;
    }
}

fn describe(now: &FleetProgress) -> String {
    format!(
        "{} units, {} silent; {:.0} heartbeats/s, {} sent, {} missed",
        now.total, now.silent, now.per_second, now.sent, now.missed
    )
}

async fn print_lines(mut seen: watch::Receiver<FleetProgress>) {
    let mut printed: Option<Instant> = None;
    while seen.changed().await.is_ok() {
        let (now, at) = (seen.borrow_and_update().clone(), monotonic());
        if printed.is_none_or(|printed| at.duration_since(printed) >= LINE_EVERY) {
            // The reader may be gone; the fleet goes on.
            let _ = writeln!(stderr(), "{}", describe(&now));
            printed = Some(at);
        }
    }
}

async fn show_bar(mut seen: watch::Receiver<FleetProgress>, duration: Option<Duration>) {
    let bar = match duration {
        Some(duration) => ProgressBar::new(duration.as_secs()),
        None => ProgressBar::new_spinner(),
    };
    let template = match duration {
        Some(_) => "[{elapsed_precise}] {bar:30} {msg}",
        None => "[{elapsed_precise}] {spinner} {msg}",
    };
    bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
    while seen.changed().await.is_ok() {
        let now = seen.borrow_and_update().clone();
        bar.set_position(bar.elapsed().as_secs());
        bar.set_message(describe(&now));
    }
    bar.finish_and_clear();
}

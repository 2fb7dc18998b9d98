//! `rollcall simulate`: a fleet over real MQTT, to see Rollcall at work or to find its limits.
//!
//! What the fleet does follows from `--seed`: the same silences at the same times, run after run.

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
use crate::config::Span;
use crate::simulate::fleet::{self, FleetConfig, Progress};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The MQTT broker.
    #[arg(long, value_name = "URL", default_value = "mqtt://127.0.0.1:1883")]
    url: String,
    /// Who to be towards the broker.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    username: Option<String>,
    /// File with the password.
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// How many units.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    units: usize,
    /// Over how many sites they are spread.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    sites: usize,
    /// Where they speak: text, {unit} and {site}.
    #[arg(long, value_name = "TEMPLATE", default_value = "units/{unit}/heartbeat")]
    topic: String,
    /// The usual time between two heartbeats of a unit.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = span)]
    interval: Duration,
    /// By how much of the interval it varies, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    jitter: f64,
    /// The chance that a heartbeat is the last before a silence, 0 to 1.
    #[arg(long, value_name = "CHANCE", default_value_t = 0.0)]
    silence: f64,
    /// How long the shortest silence is.
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = span)]
    shortest_silence: Duration,
    /// How long the longest silence is.
    #[arg(long, value_name = "SPAN", default_value = "5m", value_parser = span)]
    longest_silence: Duration,
    /// 0 or 1.
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    qos: u8,
    /// What all chance comes from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// How many connections; 0: one for every few thousand units.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    connections: usize,
    /// When to end; without it, when told to.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    duration: Option<Duration>,
}

/// A span of time on the command line.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    Span::parse(text)
        .map(|span| span.0)
        .ok_or_else(|| "write a span of time such as 10s or \"1m 30s\"".into())
}

impl Arguments {
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
            power_cuts: None,
            qos: self.qos,
            seed: self.seed,
            connections: self.connections,
            duration: self.duration,
        })
    }
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let stop = signals::stop(HangUp::Stop)?;
    let fleet = arguments.fleet()?;
    let (progress, seen) = watch::channel(Progress::default());
    let shown = tokio::spawn(show(seen, fleet.duration));
    let summary = fleet::run(fleet, progress, stop).await;
    // It ends by itself: the other side of its channel is gone.
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

/// How often the progress is a line where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows the progress while there is any, on standard error: in place if that is a terminal, otherwise as a
/// line at once and then now and then.
async fn show(seen: watch::Receiver<Progress>, duration: Option<Duration>) {
    if stderr().is_terminal() {
        show_in_place(seen, duration).await;
    } else {
        print_now_and_then(seen).await;
    }
}

fn in_words(now: &Progress) -> String {
    format!(
        "{} units, {} silent; {:.0} heartbeats/s, {} sent, {} missed",
        now.total, now.silent, now.per_second, now.sent, now.missed
    )
}

async fn print_now_and_then(mut seen: watch::Receiver<Progress>) {
    let mut printed: Option<Instant> = None;
    while seen.changed().await.is_ok() {
        let now = seen.borrow_and_update().clone();
        if printed.is_none_or(|printed| printed.elapsed() >= LINE_EVERY) {
            // Whoever reads it may be gone; the fleet goes on.
            let _ = writeln!(stderr(), "{}", in_words(&now));
            printed = Some(Instant::now());
        }
    }
}

async fn show_in_place(mut seen: watch::Receiver<Progress>, duration: Option<Duration>) {
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
        bar.set_message(in_words(&now));
    }
    bar.finish_and_clear();
}

//! `rollcall top`: the fleet in the terminal, live: counts by state, problems of Rollcall itself, how late silences are
//! found, and the units that fell silent last.
//!
//! The command polls a running instance, and draws with control sequences that every terminal knows, so it needs no
//! library and works over SSH. While the instance does not answer, it shows the last answers and says so.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::logging;
use super::remote::{Remote, RemoteArguments};
use super::table::has_colours;
use super::times::span;
use crate::clock::{Clock, monotonic};

mod keys;
mod lateness;
mod page;
mod screen;

use keys::{PressedKey, PressedKeys};
use lateness::Delays;
use page::TopPage;
use screen::Screen;

/// The shortest time between two requests.
const SHORTEST: Duration = Duration::from_millis(200);
/// The delays of silences that were found within this time are shown.
const LATELY: Duration = Duration::from_secs(60);
/// How long Ctrl-Z may take to stop the process.
const NOT_STOPPED: Duration = Duration::from_millis(500);
/// The most units that a request lists.
const MAX_UNITS: usize = 200;

#[derive(Debug, Args)]
pub(super) struct TopArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// How often the instance is asked.
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "2s")]
    interval: Duration,
}

/// The answers of an instance.
struct FleetAnswers {
    summary: Value,
    /// The offline units, the latest to fall silent first.
    units: Value,
    delays: Delays,
}

impl FleetAnswers {
    async fn ask(remote: &Remote, units: usize) -> anyhow::Result<FleetAnswers> {
        let query = [
            ("state", "offline".to_owned()),
            ("sort", "-offline_since".to_owned()),
            ("limit", units.clamp(1, MAX_UNITS).to_string()),
        ];
        let (summary, units, metrics) = tokio::try_join!(
            remote.get(&["api", "v1", "summary"], &[], "states"),
            remote.get(&["api", "v1", "units"], &query, "units"),
            remote.text(&["metrics"]),
        )?;
        Ok(FleetAnswers { summary, units: units["units"].clone(), delays: Delays::read(&metrics) })
    }
}

pub(super) async fn run(TopArguments { remote, interval: every }: TopArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let remote = remote.open()?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    ensure!(
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !is_dumb,
        "top needs a terminal; elsewhere use rollcall summary --watch"
    );
    // Send the first request before drawing, so that a wrong address or token is reported as by every other command.
    let first = FleetAnswers::ask(&remote, MAX_UNITS).await?;
    watch(&remote, every.max(SHORTEST), first).await?;
    Ok(ExitCode::SUCCESS)
}

/// Draws until a key or a signal ends it. The terminal is restored on every way out.
///
/// In one piece: each event that a step waits for changes the next drawing.
async fn watch(remote: &Remote, every: Duration, first: FleetAnswers) -> anyhow::Result<()> {
    let [mut resized, mut resumed, mut hung_up, mut interrupted, mut ended] = [
        signal(SignalKind::window_change())?,
        signal(SignalKind::from_raw(screen::CONTINUED))?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    ];
    let screen = Screen::open()?;
    let mut keys = PressedKeys::read()?;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let place = remote.place();
    let mut earlier = VecDeque::from([(monotonic(), first.delays.clone())]);
    let (mut answers, mut failure) = (first, None::<String>);
    loop {
        let now = monotonic();
        while earlier.len() > 1 && earlier.get(1).is_some_and(|(at, _)| now - *at >= LATELY) {
            earlier.pop_front();
        }
        let lately = earlier.front().map(|(_, before)| answers.delays.since(before)).unwrap_or_default();
        let page = TopPage {
            place: &place,
            now: Clock::machine(),
            summary: &answers.summary,
            units: &answers.units,
            lately: &lately,
            all: &answers.delays,
            failure: failure.as_deref(),
        };
        let (width, height) = screen.size();
        screen.show(&page.draw(width, height, has_colours()))?;
        tokio::select! {
            _ = ticks.tick() => {}
            key = keys.next() => match key {
                PressedKey::Quit => return Ok(()),
                PressedKey::Suspend => {
                    screen.suspend()?;
                    // Without job control the process does not stop, and no SIGCONT comes.
                    let _ = timeout(NOT_STOPPED, resumed.recv()).await;
                    screen.enter()?;
                }
                PressedKey::Other => {}
            },
            _ = resumed.recv() => screen.enter()?,
            _ = resized.recv() => continue,
            _ = hung_up.recv() => return Ok(()),
            _ = interrupted.recv() => return Ok(()),
            _ = ended.recv() => return Ok(()),
        }
        let asked = tokio::select! {
            asked = FleetAnswers::ask(remote, usize::from(height)) => asked,
            // A server that does not answer must not delay the end of the command.
            () = keys.quit() => return Ok(()),
            _ = ended.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
        };
        match asked {
            Ok(now) => {
                earlier.push_back((monotonic(), now.delays.clone()));
                (answers, failure) = (now, None);
            }
            Err(error) => failure = Some(format!("{error:#}")),
        }
    }
}

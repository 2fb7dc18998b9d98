//! `rollcall deliveries`: lists notifications with their attempts, delivers them again, removes dead letters, and
//! discards what waits for a receiver that is not configured any more.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};

use super::access::AccessArguments;
use super::silence::moment;
use super::{logging, shown, shown_json};
use crate::clock::{Clock, Timestamp};
use crate::fleet::deliveries::{DeliveryDetails, DeliveryFilter, DeliveryLine, DeliveryState, LARGEST_PAGE};
use crate::presence::Shown;

mod discard;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List notifications that wait, dead letters, and delivered notifications.
    List(List),
    /// Show one notification, with every attempt.
    Show(Show),
    /// Deliver notifications again, under their ids.
    Replay(Replay),
    /// Remove dead letters.
    Purge(Purge),
    /// Discard notifications and dead letters of a receiver that is not configured any more.
    Discard(discard::Discard),
}

#[derive(Debug, Args)]
struct Filter {
    /// Those of one receiver.
    #[arg(long, value_name = "NAME")]
    receiver: Option<String>,
    /// From this moment on, such as 2026-11-23T08:00:00+01:00.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// Up to this moment.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

impl Filter {
    fn with(&self, state: Option<DeliveryState>) -> DeliveryFilter {
        DeliveryFilter { receiver: self.receiver.clone(), state, from: self.from, until: self.until }
    }
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    access: AccessArguments,
    #[command(flatten)]
    filter: Filter,
    /// pending, failed (waits for its next attempt), orphaned (its receiver is not configured), dead or delivered.
    #[arg(long, value_parser = state)]
    state: Option<DeliveryState>,
    /// How many, at most 1000.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    /// Where the page begins, as the page before said.
    #[arg(long)]
    cursor: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Show {
    #[command(flatten)]
    access: AccessArguments,
    /// Of a delivery, or of a notification for all its receivers.
    #[arg(value_name = "ID")]
    id: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Replay {
    #[command(flatten)]
    access: AccessArguments,
    #[command(flatten)]
    filter: Filter,
    /// Of deliveries, or of notifications for all their receivers.
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// dead, or delivered as far as --from or --until says.
    #[arg(long, value_parser = state)]
    state: Option<DeliveryState>,
    /// All dead letters, of every receiver.
    #[arg(long)]
    all: bool,
    /// Only say how many there are.
    #[arg(long)]
    dry_run: bool,
    /// The operator who does it.
    #[arg(long, env = "USER", value_name = "NAME")]
    author: String,
}

#[derive(Debug, Args)]
struct Purge {
    #[command(flatten)]
    access: AccessArguments,
    #[command(flatten)]
    filter: Filter,
    /// The dead letters of every receiver.
    #[arg(long)]
    all: bool,
    /// Only say how many there are.
    #[arg(long)]
    dry_run: bool,
    /// They cannot be delivered any more: confirm that.
    #[arg(long)]
    yes: bool,
    /// The operator who does it.
    #[arg(long, env = "USER", value_name = "NAME")]
    author: String,
}

fn state(text: &str) -> Result<DeliveryState, String> {
    let all = [
        DeliveryState::Pending,
        DeliveryState::Failed,
        DeliveryState::Orphaned,
        DeliveryState::Dead,
        DeliveryState::Delivered,
    ];
    let names = all.map(DeliveryState::as_str).join(", ");
    all.into_iter().find(|state| state.as_str() == text).ok_or_else(|| format!("write one of {names}"))
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        Command::List(list) => self::list(list).await?,
        Command::Show(Show { access, id, json }) => {
            let details = access.open().await?.delivery(&id).await?;
            let text = if json { serde_json::to_string_pretty(&details)? } else { text_of(&details) };
            println!("{}", if json { shown_json(&text) } else { shown(text.trim_end()) });
        }
        Command::Replay(replay) => self::replay(replay).await?,
        Command::Purge(purge) => self::purge(purge).await?,
        Command::Discard(discard) => discard::run(discard).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(list: List) -> anyhow::Result<()> {
    if !(1..=LARGEST_PAGE).contains(&list.limit) {
        bail!("--limit is a number from 1 to {LARGEST_PAGE}");
    }
    let (access, filter) = (list.access.open().await?, list.filter.with(list.state));
    let page = access.deliveries(&filter, list.limit, list.cursor.as_deref()).await?;
    if list.json {
        println!("{}", shown_json(&serde_json::to_string_pretty(&page)?));
        return Ok(());
    }
    let mut text = String::new();
    page.deliveries.iter().for_each(|line| add_line(&mut text, line));
    if page.deliveries.is_empty() {
        text.push_str("there are none here\n");
    }
    if let Some(next) = page.next {
        let _ = writeln!(text, "there may be more: --cursor {next}");
    }
    println!("{}", shown(text.trim_end()));
    Ok(())
}

fn add_line(text: &mut String, line: &DeliveryLine) {
    let labels: Vec<String> = line.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut told = Vec::new();
    for (count, what) in [(line.offline, "offline"), (line.online, "back"), (line.blind, "blind")] {
        told.extend((count > 0).then(|| format!("{count} {what}")));
    }
    told.extend(line.reminder.then(|| "reminder".to_owned()));
    let _ = write!(text, "{}  {}  {}  {}", line.id, line.state.as_str(), line.at, told.join(", "));
    let _ = write!(text, "  {}", one_line(&labels.join(",")));
    let _ = write!(text, "  attempts: {}", line.attempts);
    if let Some(next) = line.next_attempt {
        let _ = write!(text, ", next from {next}");
    }
    if line.state == DeliveryState::Orphaned {
        let _ = write!(text, "; receiver {} is not configured", line.receiver);
    }
    let _ = writeln!(text, "{}{}", if line.answer.is_empty() { "" } else { ": " }, one_line(&line.answer));
}

fn text_of(details: &DeliveryDetails) -> String {
    let mut text = String::new();
    details.deliveries.iter().for_each(|line| add_line(&mut text, line));
    for one in &details.attempts {
        let (result, answer) = (one.result.as_str(), one_line(&one.answer));
        let _ = writeln!(
            text,
            "    attempt {} to {} at {}: {result} after {} ms: {answer}",
            one.number, one.receiver, one.at, one.took_ms
        );
    }
    for (what, records) in [("offline", &details.offline), ("back", &details.online)] {
        for record in records {
            let _ = writeln!(text, "    {what}: {}/{} since {}", record.kind, record.unit, record.deadline);
        }
    }
    for interval in &details.blind {
        let _ = writeln!(text, "    blind: from {} to {}", interval.from, interval.to);
    }
    text
}

async fn replay(replay: Replay) -> anyhow::Result<()> {
    let Replay { access, filter, ids, state, all, dry_run, author } = replay;
    let has_filter = filter.receiver.is_some() || filter.from.is_some() || filter.until.is_some();
    if ids.is_empty() != (has_filter || all) {
        bail!("name deliveries by their ids, or by --receiver, --from and --until, or --all");
    }
    let state = state.unwrap_or(DeliveryState::Dead);
    if state == DeliveryState::Delivered && filter.from.is_none() && filter.until.is_none() && ids.is_empty()
    {
        bail!("say which with --from and --until: delivered notifications of days are many");
    }
    let access = access.open().await?;
    let filter = filter.with(Some(state));
    if dry_run {
        let count = if ids.is_empty() { access.count_deliveries(&filter).await? } else { ids.len() };
        println!("{count} notifications would be delivered again");
        return Ok(());
    }
    let now = Clock::system().now();
    let mut count = 0;
    for id in &ids {
        count += access.replay(id, &author, now).await?;
    }
    if ids.is_empty() {
        count = access.replay_all(filter, &author, now).await?;
    }
    println!("{count} notifications are delivered again");
    Ok(())
}

async fn purge(purge: Purge) -> anyhow::Result<()> {
    let Purge { access, filter, all, dry_run, yes, author } = purge;
    if filter.receiver.is_none() && filter.from.is_none() && filter.until.is_none() && !all {
        bail!("name dead letters by --receiver, --from and --until, or --all");
    }
    let (access, filter) = (access.open().await?, filter.with(Some(DeliveryState::Dead)));
    let count = access.count_deliveries(&filter).await?;
    if dry_run || count == 0 {
        println!("{count} dead letters would be removed");
        return Ok(());
    }
    if !yes {
        bail!("{count} dead letters would be removed for good; add --yes");
    }
    let count = access.purge(&filter, &author, Clock::system().now()).await?;
    println!("{count} dead letters were removed");
    Ok(())
}

/// Texts of receivers stay on their line.
fn one_line(text: &str) -> String {
    Shown(&text.split_whitespace().collect::<Vec<&str>>().join(" ")).to_string()
}

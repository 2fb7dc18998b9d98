//! `rollcall deliveries`: lists notifications with their attempts, delivers them again, removes dead letters, and
//! discards the notifications of a receiver that is not configured any more.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::access::Access;
use super::output::{OutputArguments, table, text};
use super::remote::RemoteArguments;
use super::table::Table;
use super::times::{in_order, moment};
use super::{logging, system_user, wrong};
use crate::clock::Timestamp;
use crate::fleet::deliveries::{DeliveryFilter, DeliveryState, MAX_PAGE};

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
    #[command(
        after_help = "Example: rollcall deliveries replay --receiver hook --from 2026-11-23T08:00:00Z --author ana"
    )]
    Replay(Replay),
    /// Remove dead letters.
    Purge(Purge),
    /// Discard notifications and dead letters of a receiver that is not configured any more.
    Discard(discard::Discard),
}

#[derive(Debug, Args)]
struct Filter {
    /// Only deliveries of this receiver.
    #[arg(long, value_name = "NAME")]
    receiver: Option<String>,
    /// Only from this moment on, such as 2026-11-23T08:00:00+01:00.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// Only up to this moment.
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
    remote: RemoteArguments,
    #[command(flatten)]
    filter: Filter,
    /// pending, failed (waits for its next attempt), orphaned (its receiver is not configured), dead or delivered.
    #[arg(long, value_parser = state)]
    state: Option<DeliveryState>,
    /// The most rows, up to 1000.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    /// Where the page begins: the --cursor that the page before printed.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
struct Show {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The id of a delivery, or of a notification for all its receivers.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
struct Replay {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    filter: Filter,
    /// The ids of deliveries, or of notifications for all their receivers.
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
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    author: String,
}

#[derive(Debug, Args)]
struct Purge {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    filter: Filter,
    /// The dead letters of every receiver.
    #[arg(long)]
    all: bool,
    /// Only say how many there are.
    #[arg(long)]
    dry_run: bool,
    /// Confirm that the dead letters cannot be delivered any more.
    #[arg(long)]
    yes: bool,
    /// The operator who does it.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
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
        Command::Show(show) => self::show(show).await?,
        Command::Replay(replay) => self::replay(replay).await?,
        Command::Purge(purge) => self::purge(purge).await?,
        Command::Discard(discard) => discard::run(discard).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(list: List) -> anyhow::Result<()> {
    if !(1..=MAX_PAGE).contains(&list.limit) {
        return Err(wrong(format!("--limit is a number from 1 to {MAX_PAGE}")));
    }
    in_order(list.filter.from, list.filter.until)?;
    let (access, filter) = (Access::open(&list.remote).await?, list.filter.with(list.state));
    let print = async || {
        let page = access.deliveries(&filter, list.limit, list.cursor.as_deref()).await?;
        list.output.print(&page, || lines(&page["deliveries"]))?;
        list.output.note_none(&page["deliveries"], "deliveries");
        if let Some(next) = page["next"].as_str() {
            eprintln!("there may be more: --cursor {next}");
        }
        Ok(())
    };
    list.output.repeat(print).await
}

/// A row for each delivery.
fn lines(deliveries: &Value) -> Table {
    let of_line = |line: &Value| {
        let mut contents = Vec::new();
        for (field, what) in [("offline", "offline"), ("online", "back"), ("blind", "blind")] {
            let count = line[field].as_u64().unwrap_or_default();
            contents.extend((count > 0).then(|| format!("{count} {what}")));
        }
        contents.extend(line["event"].as_str().map(|event| event.replace('_', " ")));
        contents.extend(line["timer"].as_str().map(|id| format!("timer {id}")));
        contents.extend((line["reminder"] == true).then(|| "reminder".to_owned()));
        let [id, state, at, labels, attempts, next, answer] =
            ["id", "state", "at", "labels", "attempts", "next_attempt", "answer"]
                .map(|field| text(&line[field]));
        vec![id, state, at, contents.join(", "), labels, attempts, next, answer]
    };
    let heads = ["id", "state", "at", "content", "labels", "attempts", "next_attempt", "answer"];
    Table { rows: deliveries.as_array().into_iter().flatten().map(of_line).collect(), ..Table::new(&heads) }
}

async fn show(Show { remote, id, output }: Show) -> anyhow::Result<()> {
    let details = Access::open(&remote).await?.delivery(&id).await?;
    output.print(&details, || lines(&details["deliveries"]))?;
    let records = ["offline", "online"].map(|of| {
        let what = if of == "online" { "back" } else { of };
        let records = details[of].as_array().into_iter().flatten();
        let row = |record: &Value| {
            let unit = format!("{}/{}", text(&record["kind"]), text(&record["unit"]));
            vec![what.to_owned(), unit, text(&record["deadline"]), text(&record["back_at"])]
        };
        records.map(row).collect::<Vec<Vec<String>>>()
    });
    let blind = details["blind"].as_array().into_iter().flatten();
    let event = details["deliveries"][0]["event"].as_str().unwrap_or("blind").replace('_', " ");
    let blind = blind.map(|of| vec![event.clone(), String::new(), text(&of["from"]), text(&of["to"])]);
    let timers = details["timers"].as_array().into_iter().flatten();
    let timers = timers.map(|of| {
        let what = format!("{}: {}", text(&of["id"]), of["data"]);
        vec![format!("timer {}", text(&of["type"])), what, text(&of["due"]), text(&of["fired_at"])]
    });
    let contents = records.into_iter().flatten().chain(blind).chain(timers).collect();
    let attempts = table(&details["attempts"], &["number", "receiver", "at", "result", "took_ms", "answer"]);
    output.say_table(&Table { rows: contents, ..Table::new(&["content", "unit", "from", "to"]) });
    output.say_table(&attempts);
    Ok(())
}

async fn replay(replay: Replay) -> anyhow::Result<()> {
    let Replay { remote, filter, ids, state, all, dry_run, author } = replay;
    let has_filter = filter.receiver.is_some() || filter.from.is_some() || filter.until.is_some();
    if ids.is_empty() != (has_filter || all) {
        return Err(wrong("select deliveries by id, by --receiver, --from and --until, or with --all"));
    }
    let state = state.unwrap_or(DeliveryState::Dead);
    if state == DeliveryState::Delivered && filter.from.is_none() && filter.until.is_none() && ids.is_empty()
    {
        return Err(wrong("--state delivered needs --from or --until"));
    }
    let access = Access::open(&remote).await?;
    let filter = filter.with(Some(state));
    if dry_run {
        let count = if ids.is_empty() { access.count_deliveries(&filter).await? } else { ids.len() };
        println!("{count} notifications would be delivered again");
        return Ok(());
    }
    let now = access.now();
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
    let Purge { remote, filter, all, dry_run, yes, author } = purge;
    if filter.receiver.is_none() && filter.from.is_none() && filter.until.is_none() && !all {
        return Err(wrong("name dead letters by --receiver, --from and --until, or --all"));
    }
    let (access, filter) = (Access::open(&remote).await?, filter.with(Some(DeliveryState::Dead)));
    let count = access.count_deliveries(&filter).await?;
    if count == 0 && !dry_run {
        println!("no dead letters match; nothing is removed");
        return Ok(());
    }
    if dry_run {
        println!("{count} dead letters would be removed");
        return Ok(());
    }
    if !yes {
        bail!("{count} dead letters would be removed permanently; add --yes");
    }
    let count = access.purge(&filter, &author, access.now()).await?;
    println!("{count} dead letters were removed");
    Ok(())
}

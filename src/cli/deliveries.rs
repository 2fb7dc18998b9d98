//! `rollcall deliveries`: lists notifications with their attempts, delivers them again, removes dead letters, and
//! discards the notifications of a receiver that is not configured any more.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::output::{OutputArguments, table, text};
use super::remote::{PAGE, Remote, RemoteArguments, given};
use super::table::PrintedTable;
use super::times::{in_order, moment};
use super::{logging, shown, system_user, wrong};
use crate::clock::Timestamp;
use crate::fleet::deliveries::{DeliveryFilter, MAX_PAGE, WantedState};

const PATH: [&str; 3] = ["api", "v1", "deliveries"];

#[derive(Debug, Args)]
pub(super) struct DeliveriesArguments {
    #[command(subcommand)]
    command: DeliveriesCommand,
}

#[derive(Debug, Subcommand)]
enum DeliveriesCommand {
    /// List notifications that wait, dead letters, and delivered notifications.
    List(ListDeliveries),
    /// Show one notification, with every attempt.
    Show(ShowDelivery),
    /// Deliver notifications again, under their ids.
    #[command(
        after_help = "Example: rollcall deliveries replay --receiver hook --from 2026-11-23T08:00:00Z --author ana"
    )]
    Replay(Replay),
    /// Remove dead letters.
    Purge(Purge),
    /// Discard notifications and dead letters of a receiver that is not configured any more.
    Discard(Discard),
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
    fn with(&self, state: Option<WantedState>) -> DeliveryFilter {
        DeliveryFilter { receiver: self.receiver.clone(), state, from: self.from, until: self.until }
    }

    fn is_set(&self) -> bool {
        self.receiver.is_some() || self.from.is_some() || self.until.is_some()
    }
}

#[derive(Debug, Args)]
struct ListDeliveries {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    filter: Filter,
    /// pending, failed (waits for its next attempt) or orphaned (its receiver is not configured); waiting: all of these;
    /// dead or delivered.
    #[arg(long, value_parser = state)]
    state: Option<WantedState>,
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
struct ShowDelivery {
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
    state: Option<WantedState>,
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

#[derive(Debug, Args)]
struct Discard {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The receiver's name, as it was in the configuration.
    #[arg(long, value_name = "NAME")]
    receiver: String,
    /// Discard also if a receiver of that name is configured.
    #[arg(long)]
    force: bool,
    /// The operator who does it.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    author: String,
}

fn state(text: &str) -> Result<WantedState, String> {
    let names = WantedState::ALL.map(WantedState::as_str).join(", ");
    WantedState::ALL
        .into_iter()
        .find(|state| state.as_str() == text)
        .ok_or_else(|| format!("write one of {names}"))
}

pub(super) async fn run(arguments: DeliveriesArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        DeliveriesCommand::List(list) => self::list(list).await?,
        DeliveriesCommand::Show(show) => self::show(show).await?,
        DeliveriesCommand::Replay(replay) => self::replay(replay).await?,
        DeliveriesCommand::Purge(purge) => self::purge(purge).await?,
        DeliveriesCommand::Discard(discard) => self::discard(discard).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(list: ListDeliveries) -> anyhow::Result<()> {
    if !(1..=MAX_PAGE).contains(&list.limit) {
        return Err(wrong(format!("--limit is a number from 1 to {MAX_PAGE}")));
    }
    in_order(list.filter.from, list.filter.until)?;
    let (remote, filter) = (list.remote.open()?, list.filter.with(list.state));
    let print = async || {
        let page = page(&remote, &filter, list.limit, list.cursor.as_deref()).await?;
        list.output.print(&page, || lines(&page["deliveries"]))?;
        list.output.note_none(&page["deliveries"], "deliveries");
        if let Some(next) = page["next"].as_str() {
            eprintln!("there may be more: --cursor {next}");
        }
        Ok(())
    };
    list.output.repeat(print).await
}

/// A page of deliveries; `next` in it is the cursor of the page after it.
async fn page(
    remote: &Remote,
    filter: &DeliveryFilter,
    limit: usize,
    cursor: Option<&str>,
) -> anyhow::Result<Value> {
    let moment = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let query = given(vec![
        ("limit", Some(limit.to_string())),
        ("receiver", filter.receiver.clone()),
        ("state", filter.state.map(|state| state.as_str().to_owned())),
        ("from", moment(filter.from)),
        ("until", moment(filter.until)),
        ("cursor", cursor.map(str::to_owned)),
    ]);
    remote.get(&PATH, &query, "deliveries").await
}

async fn count(remote: &Remote, filter: &DeliveryFilter) -> anyhow::Result<u64> {
    let (mut count, mut cursor) = (0, None::<String>);
    loop {
        let page = page(remote, filter, PAGE, cursor.as_deref()).await?;
        count += page["deliveries"].as_array().map_or(0, Vec::len) as u64;
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return Ok(count),
        }
    }
}

/// Repeats a change until nothing is left; each request changes a bounded number of deliveries. `next` sets the body of
/// the next request from the last answer. Returns how many deliveries were changed.
async fn change_all(
    remote: &Remote,
    what: &str,
    mut body: Value,
    author: &str,
    next: impl Fn(&mut Value, &Value),
) -> anyhow::Result<u64> {
    let (path, mut count) = ([&PATH[..], &[what]].concat(), 0);
    loop {
        let answer = remote.change(Method::POST, &path, Some(&body), Some(author)).await?;
        count += answer["count"].as_u64().unwrap_or_default();
        if answer["more"] != true {
            return Ok(count);
        }
        next(&mut body, &answer);
    }
}

/// A row for each delivery.
fn lines(deliveries: &Value) -> PrintedTable {
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
    PrintedTable {
        rows: deliveries.as_array().into_iter().flatten().map(of_line).collect(),
        ..PrintedTable::new(&heads)
    }
}

async fn show(ShowDelivery { remote, id, output }: ShowDelivery) -> anyhow::Result<()> {
    let details = remote.open()?.get(&[&PATH[..], &[&id]].concat(), &[], "deliveries").await?;
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
    output
        .say_table(&PrintedTable { rows: contents, ..PrintedTable::new(&["content", "unit", "from", "to"]) });
    output.say_table(&attempts);
    Ok(())
}

async fn replay(replay: Replay) -> anyhow::Result<()> {
    let Replay { remote, filter, ids, state, all, dry_run, author } = replay;
    if ids.is_empty() != (filter.is_set() || all) {
        return Err(wrong("select deliveries by id, by --receiver, --from and --until, or with --all"));
    }
    let state = state.unwrap_or(WantedState::Dead);
    if state == WantedState::Delivered && filter.from.is_none() && filter.until.is_none() && ids.is_empty() {
        return Err(wrong("--state delivered needs --from or --until"));
    }
    let (remote, filter) = (remote.open()?, filter.with(Some(state)));
    if dry_run {
        let count = if ids.is_empty() { count(&remote, &filter).await? } else { ids.len() as u64 };
        println!("{count} notifications would be delivered again");
        return Ok(());
    }
    let mut count = 0;
    for id in &ids {
        let path = [&PATH[..], &[id, "replay"]].concat();
        let replayed = remote.change(Method::POST, &path, Some(&json!({})), Some(&author)).await?;
        count += replayed["count"].as_u64().unwrap_or_default();
    }
    if ids.is_empty() {
        // Deliveries that end after the first request are not delivered again.
        let next = |body: &mut Value, answer: &Value| {
            body["cursor"] = answer["next"].clone();
            body["filter"]["until"] = answer["until"].clone();
        };
        count = change_all(&remote, "replay", json!({ "filter": filter }), &author, next).await?;
    }
    println!("{count} notifications are delivered again");
    Ok(())
}

async fn purge(purge: Purge) -> anyhow::Result<()> {
    let Purge { remote, filter, all, dry_run, yes, author } = purge;
    if !filter.is_set() && !all {
        return Err(wrong("name dead letters by --receiver, --from and --until, or --all"));
    }
    let (remote, filter) = (remote.open()?, filter.with(Some(WantedState::Dead)));
    let count = count(&remote, &filter).await?;
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
    let count = change_all(&remote, "purge", json!({ "filter": filter }), &author, |_, _| ()).await?;
    println!("{count} dead letters were removed");
    Ok(())
}

async fn discard(Discard { remote, receiver, force, author }: Discard) -> anyhow::Result<()> {
    let body = json!({ "receiver": receiver, "force": force });
    let count = change_all(&remote.open()?, "discard", body, &author, |_, _| ()).await?;
    println!("{count} notifications and dead letters of receiver {} were discarded", shown(&receiver));
    Ok(())
}

//! `rollcall timers`: registers, lists, shows, cancels and follows timers, over the HTTP API of a running instance.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgGroup, Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::fs::File;

use super::{ListLength, PagedList};
use crate::cause::json;
use crate::cli::output::{OutputArguments, facts, text};
use crate::cli::remote::{Remote, RemoteArguments, content, given};
use crate::cli::times::{in_ms, in_order, moment, span};
use crate::cli::{logging, shown, shown_json};
use crate::clock::Timestamp;

/// How often `watch` asks.
const INTERVAL: Duration = Duration::from_millis(500);

const FIELDS: [&str; 5] = ["id", "type", "state", "due", "fired_at"];

#[derive(Debug, Args)]
pub(in crate::cli) struct TimersArguments {
    #[command(subcommand)]
    command: TimersCommand,
}

#[derive(Debug, Subcommand)]
enum TimersCommand {
    /// Register a timer, or change the one with that id; or all timers of a file.
    #[command(
        after_help = "Example: rollcall timers add pump-7-report --type report-due --in 30m --data '{\"site\": \
                      \"north\"}'"
    )]
    Add(AddTimers),
    /// List timers: waiting timers, soonest first, or timers that fired or were cancelled.
    List(ListTimers),
    /// Show one timer with its data.
    Show(ShowTimer),
    /// Cancel timers that still wait.
    Cancel(Cancel),
    /// Follow a timer until it was delivered, given up or cancelled.
    Watch(WatchTimer),
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("when").required(true).args(["due", "span", "file"])))]
struct AddTimers {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The id; without one Rollcall makes it.
    #[arg(value_name = "ID", conflicts_with = "file")]
    id: Option<String>,
    /// Its class: the `type` of a `[[timer]]` of the configuration.
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "file")]
    class: Option<String>,
    /// When it fires, such as 2026-11-25T06:00:00+01:00.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    due: Option<Timestamp>,
    /// In how long it fires, such as 30m.
    #[arg(long = "in", id = "span", value_name = "SPAN", value_parser = span)]
    span: Option<Duration>,
    /// JSON for the receivers.
    #[arg(long, value_name = "JSON", value_parser = json_text)]
    data: Option<Value>,
    /// Refuse if there is a timer with that id.
    #[arg(long)]
    if_absent: bool,
    /// All timers of this file, one JSON object a line as the API takes them; - is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["class", "data", "if_absent"])]
    file: Option<PathBuf>,
    /// The operator who does it, for the audit.
    #[arg(long, value_name = "NAME")]
    author: Option<String>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ListTimers {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Only timers of this type.
    #[arg(long = "type", value_name = "TYPE")]
    class: Option<String>,
    /// Only timers in this state; by default waiting timers.
    #[arg(long, default_value = "waiting", value_parser = ["waiting", "fired", "delivered", "dead", "cancelled"])]
    state: String,
    /// Only timers that are due from this moment on.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// Only timers that are due before this moment.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
    #[command(flatten)]
    pages: ListLength,
}

#[derive(Debug, Args)]
struct ShowTimer {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// The id of the timer.
    #[arg(value_name = "ID")]
    id: String,
}

#[derive(Debug, Args)]
struct Cancel {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The ids of the timers.
    #[arg(value_name = "ID", required_unless_present = "class", conflicts_with = "class")]
    ids: Vec<String>,
    /// Cancel all waiting timers of this class.
    #[arg(long = "type", value_name = "TYPE")]
    class: Option<String>,
    /// Of this class, only timers that are due from this moment on.
    #[arg(long, value_name = "TIME", value_parser = moment, requires = "class")]
    from: Option<Timestamp>,
    /// Of this class, only timers that are due before this moment.
    #[arg(long, value_name = "TIME", value_parser = moment, requires = "class")]
    until: Option<Timestamp>,
    /// The operator who does it, for the audit.
    #[arg(long, value_name = "NAME")]
    author: Option<String>,
    /// Print the answers as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct WatchTimer {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The id of the timer.
    #[arg(value_name = "ID")]
    id: String,
    /// Print each state as JSON.
    #[arg(long)]
    json: bool,
}

fn json_text(text: &str) -> Result<Value, String> {
    json::read(text.as_bytes())
}

pub(in crate::cli) async fn timers(arguments: TimersArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        TimersCommand::Add(wanted) => add(wanted).await,
        TimersCommand::List(wanted) => list(wanted).await,
        TimersCommand::Show(ShowTimer { remote, output, id }) => {
            let remote = remote.open()?;
            output
                .repeat(async || {
                    let answer = remote.get(&one(&id), &[], "state").await?;
                    output.print(&answer, || facts(&answer))
                })
                .await?;
            Ok(ExitCode::SUCCESS)
        }
        TimersCommand::Cancel(wanted) => cancel(wanted).await,
        TimersCommand::Watch(wanted) => watch(wanted).await,
    }
}

fn one(id: &str) -> [&str; 4] {
    ["api", "v1", "timers", id]
}

async fn add(wanted: AddTimers) -> anyhow::Result<ExitCode> {
    let AddTimers { remote, id, class, due, span, data, if_absent, file, author, json } = wanted;
    let (remote, author) = (remote.open()?, author.as_deref());
    let path = ["api", "v1", "timers"];
    if let Some(name) = file {
        let from = if name.as_os_str() == "-" { PathBuf::from("/dev/stdin") } else { name };
        let open = File::open(&from).await.with_context(|| format!("{} cannot be read", from.display()))?;
        let answer = remote.send(&path, &[], "application/x-ndjson", content(open), author).await?;
        return batch(&answer, json);
    }
    let fields = [
        ("type", class.map(Value::from)),
        ("due", due.map(|due| due.to_string().into())),
        ("in", span.map(|span| in_ms(span).into())),
        ("data", data),
        ("if_absent", if_absent.then_some(Value::Bool(true))),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let timer = Value::Object(fields.collect());
    let answer = match id {
        Some(id) => remote.change(Method::PUT, &one(&id), Some(&timer), author).await?,
        None => {
            let mut answer = remote.change(Method::POST, &path, Some(&json!([timer])), author).await?;
            answer["timers"][0].take()
        }
    };
    if let Some(error) = answer["error"].as_str() {
        bail!("{}", shown(error));
    }
    if json {
        print_json(&answer)?;
    } else {
        println!(
            "{} {}, due at {}",
            shown(&text(&answer["id"])),
            text(&answer["result"]),
            text(&answer["due"])
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the outcome for the timers of a file, with a line for each refused timer.
fn batch(answer: &Value, json: bool) -> anyhow::Result<ExitCode> {
    let mut refused = 0;
    for (number, one) in (1..).zip(answer["timers"].as_array().into_iter().flatten()) {
        if let Some(error) = one["error"].as_str() {
            refused += 1;
            eprintln!("{}", shown(&format!("timer {number} {}: {error}", text(&one["id"]))));
        }
    }
    if json {
        print_json(answer)?;
    } else {
        println!("{} created, {} changed, {refused} refused", answer["created"], answer["changed"]);
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn list(wanted: ListTimers) -> anyhow::Result<ExitCode> {
    let ListTimers { remote, output, class, state, from, until, pages } = wanted;
    in_order(from, until)?;
    let remote = remote.open()?;
    let query = given(vec![
        ("type", class),
        ("state", Some(state)),
        ("from", from.map(|moment| moment.to_string())),
        ("until", until.map(|moment| moment.to_string())),
    ]);
    let list = PagedList { path: &["api", "v1", "timers"], items: "timers", fields: &FIELDS };
    output.repeat(async || list.print(&remote, &query, &pages, &output).await).await?;
    Ok(ExitCode::SUCCESS)
}

async fn cancel(wanted: Cancel) -> anyhow::Result<ExitCode> {
    let Cancel { remote, ids, class, from, until, author, json } = wanted;
    let (remote, author) = (remote.open()?, author.as_deref());
    let path = ["api", "v1", "timers:cancel"];
    if class.is_none() {
        let answer = remote.change(Method::POST, &path, Some(&json!({ "ids": ids })), author).await?;
        if json {
            print_json(&answer)?;
            return Ok(ExitCode::SUCCESS);
        }
        for one in answer["timers"].as_array().into_iter().flatten() {
            let what = match &one["cancelled"] {
                Value::Bool(true) => "is cancelled".to_owned(),
                Value::Bool(false) => "is not waiting: it fired, was cancelled, or does not exist".to_owned(),
                _ => text(&one["error"]),
            };
            println!("{}", shown(&format!("{} {what}", text(&one["id"]))));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let range =
        [("from", from), ("until", until)].into_iter().filter_map(|(name, at)| Some((name.to_owned(), at?)));
    let mut filter: serde_json::Map<String, Value> =
        range.map(|(name, at)| (name, at.to_string().into())).collect();
    filter.insert("type".to_owned(), class.into());
    let (mut filter, mut cancelled) = (Value::Object(filter), 0);
    // One request cancels a bounded number of timers.
    loop {
        let mut answer = remote.change(Method::POST, &path, Some(&filter), author).await?;
        cancelled += answer["cancelled"].as_u64().unwrap_or_default();
        if answer["next"].is_null() {
            break;
        }
        filter["cursor"] = answer["next"].take();
    }
    if json {
        print_json(&json!({ "cancelled": cancelled }))?;
    } else {
        println!("{cancelled} cancelled");
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(WatchTimer { remote, id, json }: WatchTimer) -> anyhow::Result<ExitCode> {
    let remote: Remote = remote.open()?;
    let mut before = Value::Null;
    loop {
        let timer = remote.get(&one(&id), &[], "state").await?;
        if timer["state"] != before["state"] || timer["due"] != before["due"] {
            if json {
                println!("{}", shown_json(&timer.to_string()));
            } else {
                println!(
                    "{}",
                    shown(&format!("{} is {}, due at {}", id, text(&timer["state"]), text(&timer["due"])))
                );
            }
        }
        match timer["state"].as_str() {
            Some("delivered") => return Ok(ExitCode::SUCCESS),
            Some("dead" | "cancelled") => return Ok(ExitCode::FAILURE),
            _ => {}
        }
        before = timer;
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn print_json(answer: &Value) -> anyhow::Result<()> {
    println!("{}", shown_json(&serde_json::to_string_pretty(answer)?));
    Ok(())
}

//! `rollcall silence`: adds, lists, extends and ends silences of alerts. `rollcall audit`: the changes that operators made.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::access::AccessArguments;
use super::{logging, shown, shown_json};
use crate::clock::{Clock, Timestamp, parse_moment, parse_span};
use crate::routing::alert_silence::{SilenceState, WantedSilence};
use crate::routing::{AlertSilence, Matcher, SilenceId, parse_label_matchers};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Do not notify of the units that all matchers match, for a while.
    Add(Add),
    /// List silences that are active or to come.
    List(List),
    /// Move the end of a silence.
    Extend(Extend),
    /// End silences now.
    Expire(Expire),
}

#[derive(Debug, Args)]
struct Add {
    #[command(flatten)]
    access: AccessArguments,
    /// Matchers, as in routes: site=north, kind=~"gate.*", unit!=pump-7.
    #[arg(required = true, value_name = "MATCHER", value_parser = matchers)]
    matchers: Vec<Matchers>,
    #[command(flatten)]
    end: End,
    /// When it begins, such as 2026-11-23T08:00:00+01:00; by default now.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// The operator who adds it.
    #[arg(long, env = "USER", value_name = "NAME")]
    author: String,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    comment: String,
}

/// The end of a silence.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct End {
    /// How long, such as 2h; with --from from then on.
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    span: Option<Duration>,
    /// Until when, such as 2026-11-23T18:00:00+01:00.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

impl End {
    fn after(&self, begin: Timestamp) -> Timestamp {
        self.until.unwrap_or_else(|| begin + self.span.unwrap_or_default())
    }
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    access: AccessArguments,
    /// Also those that are over; they are kept for five days.
    #[arg(long)]
    expired: bool,
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Extend {
    #[command(flatten)]
    access: AccessArguments,
    #[arg(value_name = "ID")]
    id: SilenceId,
    #[command(flatten)]
    end: End,
    /// The operator who extends it.
    #[arg(long, env = "USER", value_name = "NAME")]
    author: String,
}

#[derive(Debug, Args)]
struct Expire {
    #[command(flatten)]
    access: AccessArguments,
    #[arg(required = true, value_name = "ID")]
    ids: Vec<SilenceId>,
    /// The operator who ends them.
    #[arg(long, env = "USER", value_name = "NAME")]
    author: String,
}

/// The arguments of `rollcall audit`.
#[derive(Debug, Args)]
pub(super) struct AuditArguments {
    #[command(flatten)]
    access: AccessArguments,
    /// How many, newest first; the last 1000 are kept.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
}

/// The matchers of one argument.
#[derive(Clone, Debug)]
struct Matchers(Vec<Matcher>);

fn matchers(text: &str) -> Result<Matchers, String> {
    parse_label_matchers(text).map(Matchers).map_err(|error| error.to_string())
}

pub(super) fn span(text: &str) -> Result<Duration, String> {
    parse_span(text).ok_or_else(|| "write a span of time, such as 2h or 1d 12h".to_owned())
}

pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    let advice = "write a time with its offset, such as 2026-11-23T18:00:00+01:00 or …Z";
    parse_moment(text).ok_or_else(|| advice.to_owned())
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let now = Clock::system().now();
    match arguments.command {
        Command::Add(add) => {
            let starts_at = add.from.unwrap_or(now);
            let wanted = WantedSilence {
                matchers: add.matchers.into_iter().flat_map(|Matchers(all)| all).collect(),
                starts_at,
                ends_at: add.end.after(starts_at),
                author: add.author,
                comment: add.comment,
            };
            println!("{}", add.access.open().await?.add(wanted, now).await?);
        }
        Command::List(list) => {
            let mut silences = list.access.open().await?.list().await?;
            silences.retain(|one| !one.is_forgotten(now));
            silences.retain(|one| list.expired || one.state(now) != SilenceState::Expired);
            silences.sort_by_key(|one| (one.state(now), one.ends_at));
            print_list(&silences, list.json, now)?;
        }
        Command::Extend(Extend { access, id, end, author }) => {
            let ends_at = end.after(now);
            access.open().await?.extend(id, ends_at, &author, now).await?;
            println!("silence {id} ends at {ends_at}");
        }
        Command::Expire(Expire { access, ids, author }) => {
            let access = access.open().await?;
            for id in ids {
                let is_ended = access.expire(id, &author, now).await?;
                println!("silence {id} {}", if is_ended { "is over now" } else { "was over already" });
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A silence in the output of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    id: SilenceId,
    state: &'static str,
    matchers: Vec<String>,
    starts_at: Timestamp,
    ends_at: Timestamp,
    updated_at: Timestamp,
    author: &'a str,
    comment: &'a str,
}

fn print_list(silences: &[AlertSilence], json: bool, now: Timestamp) -> anyhow::Result<()> {
    let lines: Vec<Line<'_>> = silences
        .iter()
        .map(|one| Line {
            id: one.id,
            state: one.state(now).as_str(),
            matchers: one.matchers.iter().map(ToString::to_string).collect(),
            starts_at: one.starts_at,
            ends_at: one.ends_at,
            updated_at: one.updated_at,
            author: &one.author,
            comment: &one.comment,
        })
        .collect();
    if json {
        println!("{}", shown_json(&serde_json::to_string_pretty(&lines)?));
        return Ok(());
    }
    let mut text = String::new();
    for Line { id, state, matchers, starts_at, ends_at, author, comment, .. } in &lines {
        let _ = writeln!(text, "{id}  {state}  {}", one_line(&matchers.join(", ")));
        let _ = writeln!(
            text,
            "    from {starts_at} until {ends_at}, {}: {}",
            one_line(author),
            one_line(comment)
        );
    }
    if lines.is_empty() {
        text.push_str("there are no silences\n");
    }
    println!("{}", shown(text.trim_end()));
    Ok(())
}

pub(super) async fn run_audit(arguments: AuditArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let AuditArguments { access, limit, json } = arguments;
    let audit = access.open().await?.audit(limit).await?;
    if json {
        println!("{}", shown_json(&serde_json::to_string_pretty(&audit)?));
        return Ok(ExitCode::SUCCESS);
    }
    for entry in &audit {
        let (author, text) = (one_line(&entry.author), one_line(&entry.text));
        println!(
            "{}",
            shown(&format!("{} {author} {} {} {text}", entry.at, entry.change.as_str(), entry.subject))
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Texts of operators stay on their line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<&str>>().join(" ")
}

//! `rollcall silence`: adds, lists, extends and ends alert silences. `rollcall audit`: the changes that operators made.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::output::{OutputArguments, table, text};
use super::remote::{Remote, RemoteArguments};
use super::times::{in_ms, moment, span};
use super::{logging, system_user};
use crate::clock::Timestamp;
use crate::routing::alert_silence::SilenceState;
use crate::routing::{Matcher, SilenceId, parse_label_matchers};
use crate::store::MAX_AUDITED;

const PATH: [&str; 3] = ["api", "v1", "silences"];

#[derive(Debug, Args)]
pub(super) struct SilenceArguments {
    #[command(subcommand)]
    command: SilenceCommand,
}

#[derive(Debug, Subcommand)]
enum SilenceCommand {
    /// Do not notify of the units that all matchers match, for a while.
    #[command(
        after_help = "Example: rollcall silence add site=north --for 2h --author ana --comment 'cable works'"
    )]
    Add(AddSilence),
    /// List silences that are active or to come.
    List(ListSilences),
    /// Move the end of a silence to a later moment.
    Extend(Extend),
    /// End silences now.
    Expire(Expire),
}

#[derive(Debug, Args)]
struct AddSilence {
    #[command(flatten)]
    remote: RemoteArguments,
    /// Matchers, as in routes: site=north, kind=~"gate.*", unit!=pump-7.
    #[arg(required = true, value_name = "MATCHER", value_parser = matchers)]
    matchers: Vec<Matchers>,
    #[command(flatten)]
    end: SilenceEnd,
    /// When it begins, such as 2026-11-23T08:00:00+01:00; by default now.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// The operator who adds it.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    author: String,
    /// The reason, for the audit.
    #[arg(long, value_name = "TEXT")]
    comment: String,
}

/// The end of a silence.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SilenceEnd {
    /// How long, such as 2h, from now or from --from.
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    span: Option<Duration>,
    /// Until when, such as 2026-11-23T18:00:00+01:00.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

/// The new end of a silence.
#[derive(Debug, Args)]
#[group(id = "later", required = true, multiple = false)]
struct Later {
    /// From now on, such as 2h.
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    span: Option<Duration>,
    /// Until when, such as 2026-11-23T18:00:00+01:00.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

#[derive(Debug, Args)]
struct ListSilences {
    #[command(flatten)]
    remote: RemoteArguments,
    /// List ended silences too; they are kept for five days.
    #[arg(long)]
    expired: bool,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
struct Extend {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The id of the silence.
    #[arg(value_name = "ID")]
    id: SilenceId,
    #[command(flatten)]
    end: Later,
    /// The operator who extends it.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    author: String,
}

#[derive(Debug, Args)]
struct Expire {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The ids of the silences.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<SilenceId>,
    /// The operator who ends them.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    author: String,
}

/// The arguments of `rollcall audit`.
#[derive(Debug, Args)]
pub(super) struct AuditArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The most rows, newest first; the last 1000 are kept.
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_AUDITED as u64))]
    limit: usize,
    #[command(flatten)]
    output: OutputArguments,
}

/// The matchers of one argument.
#[derive(Clone, Debug)]
struct Matchers(Vec<Matcher>);

fn matchers(text: &str) -> Result<Matchers, String> {
    parse_label_matchers(text).map(Matchers).map_err(|error| error.to_string())
}

pub(super) async fn run(arguments: SilenceArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        SilenceCommand::Add(add) => self::add(add).await?,
        SilenceCommand::List(ListSilences { remote, expired, output }) => {
            let remote = remote.open()?;
            output.repeat(async || list(&remote, expired, &output).await).await?;
        }
        SilenceCommand::Extend(extend) => self::extend(extend).await?,
        SilenceCommand::Expire(Expire { remote, ids, author }) => {
            let remote = remote.open()?;
            for id in ids.iter().map(ToString::to_string) {
                let path = [&PATH[..], &[&id]].concat();
                let was_over = is_over(&remote.get(&path, &[], "ends_at").await?);
                remote.change(Method::DELETE, &path, None, Some(&author)).await?;
                println!("silence {id} {}", if was_over { "was over already" } else { "is over now" });
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn add(add: AddSilence) -> anyhow::Result<()> {
    let remote = add.remote.open()?;
    let matchers: Vec<String> =
        add.matchers.iter().flat_map(|Matchers(all)| all).map(ToString::to_string).collect();
    let body = json!({
        "matchers": matchers, "starts_at": add.from, "ends_at": add.end.until, "for": add.end.span.map(in_ms),
        "comment": add.comment,
    });
    let added = remote.change(Method::POST, &PATH, Some(&body), Some(&add.author)).await?;
    println!("{}", added["id"].as_str().context("the answer names no silence")?);
    // Programs read the id alone.
    eprintln!("{}", covers(added["units"].as_u64()));
    Ok(())
}

async fn extend(Extend { remote, id, end, author }: Extend) -> anyhow::Result<()> {
    let id = id.to_string();
    let body = json!({ "ends_at": end.until, "for": end.span.map(in_ms) });
    let path = [&PATH[..], &[&id, "extend"]].concat();
    let extended = remote.open()?.change(Method::POST, &path, Some(&body), Some(&author)).await?;
    let ends_at = text(&extended["ends_at"]);
    match extended["extended"] == true {
        true => println!("silence {id} ends at {ends_at}"),
        false => println!(
            "silence {id} already lasts until {ends_at}, and is not shortened; to end it: rollcall silence expire {id}"
        ),
    }
    Ok(())
}

/// Returns whether a silence in an answer is over.
fn is_over(shown: &Value) -> bool {
    shown["state"] == SilenceState::Expired.as_str()
}

/// How many units a new silence covers, in a sentence.
fn covers(units: Option<u64>) -> String {
    match units {
        None => "its units are not counted yet: rollcall silence list shows them in a few minutes".to_owned(),
        Some(0) => {
            "it covers no unit of the fleet now: compare its matchers with the labels of rollcall units"
                .to_owned()
        }
        Some(1) => "it covers 1 unit now".to_owned(),
        Some(units) => format!("it covers {units} units now"),
    }
}

async fn list(remote: &Remote, expired: bool, output: &OutputArguments) -> anyhow::Result<()> {
    let mut silences = remote.all(&PATH, "silences").await?;
    silences.retain(|one| expired || !is_over(one));
    let silences = Value::Array(silences);
    let fields = ["id", "state", "matchers", "units", "starts_at", "ends_at", "author", "comment"];
    output.print_list(&silences, "silences", || table(&silences, &fields))
}

pub(super) async fn run_audit(arguments: AuditArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let AuditArguments { remote, limit, output } = arguments;
    let remote = remote.open()?;
    let query = [("limit", limit.to_string())];
    let show = async || {
        let audit = remote.get(&["api", "v1", "audit"], &query, "audit").await?["audit"].take();
        output.print_list(&audit, "changes", || table(&audit, &["at", "author", "change", "subject", "text"]))
    };
    output.repeat(show).await?;
    Ok(ExitCode::SUCCESS)
}

//! `rollcall silence`: adds, lists, extends and ends alert silences. `rollcall audit`: the changes that operators made.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::access::{Access, is_over};
use super::logging;
use super::output::{OutputArguments, table};
use super::remote::RemoteArguments;
use super::times::{moment, span};
use crate::clock::{Clock, Timestamp};
use crate::routing::alert_silence::WantedSilence;
use crate::routing::{Matcher, SilenceId, parse_label_matchers};

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
    remote: RemoteArguments,
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
    /// The reason, for the audit.
    #[arg(long, value_name = "TEXT")]
    comment: String,
}

/// The end of a silence.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct End {
    /// How long, such as 2h, from now or from --from.
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
    remote: RemoteArguments,
    /// Also those that are over; they are kept for five days.
    #[arg(long)]
    expired: bool,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
struct Extend {
    #[command(flatten)]
    remote: RemoteArguments,
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
    remote: RemoteArguments,
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
    remote: RemoteArguments,
    /// How many, newest first; the last 1000 are kept.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
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
            let times = (add.from, add.end.span);
            println!("{}", Access::open(&add.remote).await?.add(wanted, times, now).await?);
        }
        Command::List(List { remote, expired, output }) => {
            let access = Access::open(&remote).await?;
            output.repeat(async || list(&access, expired, &output).await).await?;
        }
        Command::Extend(Extend { remote, id, end, author }) => {
            let ends_at = end.after(now);
            Access::open(&remote).await?.extend(id, ends_at, &author, now).await?;
            println!("silence {id} ends at {ends_at}");
        }
        Command::Expire(Expire { remote, ids, author }) => {
            let access = Access::open(&remote).await?;
            for id in ids {
                let is_ended = access.expire(id, &author, now).await?;
                println!("silence {id} {}", if is_ended { "is over now" } else { "was over already" });
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(access: &Access, expired: bool, output: &OutputArguments) -> anyhow::Result<()> {
    let mut silences = access.silences(Clock::system().now()).await?;
    let shown = silences.as_array_mut();
    let is_empty = shown.is_none_or(|shown| {
        shown.retain(|one| expired || !is_over(one));
        shown.is_empty()
    });
    if is_empty {
        output.say("there are no silences");
    }
    let fields = ["id", "state", "matchers", "starts_at", "ends_at", "author", "comment"];
    output.print_rows(&silences, || table(&silences, &fields))
}

pub(super) async fn run_audit(arguments: AuditArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let AuditArguments { remote, limit, output } = arguments;
    let access = Access::open(&remote).await?;
    let show = async || {
        let audit = access.audit(limit).await?;
        output.print(&audit, || table(&audit, &["at", "author", "change", "subject", "text"]))
    };
    output.repeat(show).await?;
    Ok(ExitCode::SUCCESS)
}

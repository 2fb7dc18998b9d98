//! `rollcall silence`: adds, lists, extends and ends alert silences. `rollcall audit`: the changes that operators made.

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

use super::access::{Access, is_over};
use super::output::{OutputArguments, table};
use super::remote::RemoteArguments;
use super::times::{moment, span};
use super::{logging, system_user};
use crate::clock::Timestamp;
use crate::routing::alert_silence::SilenceRequest;
use crate::routing::{Matcher, SilenceId, parse_label_matchers};
use crate::store::MAX_AUDITED;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Do not notify of the units that all matchers match, for a while.
    #[command(
        after_help = "Example: rollcall silence add site=north --for 2h --author ana --comment 'cable works'"
    )]
    Add(Add),
    /// List silences that are active or to come.
    List(List),
    /// Move the end of a silence to a later moment.
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
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
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

impl End {
    fn after(&self, begin: Timestamp) -> Timestamp {
        self.until.unwrap_or_else(|| begin + self.span.unwrap_or_default())
    }
}

#[derive(Debug, Args)]
struct List {
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

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        Command::Add(add) => {
            let access = Access::open(&add.remote).await?;
            let now = access.now();
            let starts_at = add.from.unwrap_or(now);
            let wanted = SilenceRequest {
                matchers: add.matchers.into_iter().flat_map(|Matchers(all)| all).collect(),
                starts_at,
                ends_at: add.end.after(starts_at),
                author: add.author,
                comment: add.comment,
            };
            let times = (add.from, add.end.span);
            let (id, units) = access.add(wanted, times, now).await?;
            println!("{id}");
            // Programs read the id alone.
            eprintln!("{}", covers(units));
        }
        Command::List(List { remote, expired, output }) => {
            let access = Access::open(&remote).await?;
            output.repeat(async || list(&access, expired, &output).await).await?;
        }
        Command::Extend(Extend { remote, id, end, author }) => {
            let access = Access::open(&remote).await?;
            let now = access.now();
            let ends_at = end.until.unwrap_or_else(|| now + end.span.unwrap_or_default());
            match access.extend(id, ends_at, &author, now).await? {
                later if later > ends_at => println!(
                    "silence {id} already lasts until {later}, and is not shortened; to end it: rollcall silence \
                     expire {id}"
                ),
                ends_at => println!("silence {id} ends at {ends_at}"),
            }
        }
        Command::Expire(Expire { remote, ids, author }) => {
            let access = Access::open(&remote).await?;
            for id in ids {
                let is_ended = access.expire(id, &author, access.now()).await?;
                println!("silence {id} {}", if is_ended { "is over now" } else { "was over already" });
            }
        }
    }
    Ok(ExitCode::SUCCESS)
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

async fn list(access: &Access, expired: bool, output: &OutputArguments) -> anyhow::Result<()> {
    let mut silences = access.silences(access.now()).await?;
    if let Some(shown) = silences.as_array_mut() {
        shown.retain(|one| expired || !is_over(one));
    }
    let fields = ["id", "state", "matchers", "units", "starts_at", "ends_at", "author", "comment"];
    output.print_list(&silences, "silences", || table(&silences, &fields))
}

pub(super) async fn run_audit(arguments: AuditArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let AuditArguments { remote, limit, output } = arguments;
    let access = Access::open(&remote).await?;
    let show = async || {
        let audit = access.audit(limit).await?;
        output.print_list(&audit, "changes", || table(&audit, &["at", "author", "change", "subject", "text"]))
    };
    output.repeat(show).await?;
    Ok(ExitCode::SUCCESS)
}

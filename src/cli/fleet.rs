//! `rollcall units`, `explain`, `records`, `availability`, `summary`, `instances`, `import`, `export`, `timers`: the
//! fleet as a running instance has it.
//!
//! They ask its HTTP API, with the rights of a token, so they also work from another machine.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::logging;
use super::output::{OutputArguments, facts, table, text};
use super::remote::{PAGE, Remote, RemoteArguments};
use super::route::unit;
use super::table::Table;
use super::times::{moment, span};
use crate::clock::Timestamp;
use crate::presence::Unit;

mod inventory;
mod timers;

pub(super) use inventory::{ExportArguments, ImportArguments, export, import};
pub(super) use timers::{TimersArguments, timers};

#[derive(Debug, Args)]
pub(super) struct UnitsArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Those in these states: online, late, offline, never_seen, paused, unknown.
    #[arg(long, value_name = "STATE,…")]
    state: Option<String>,
    #[arg(long)]
    kind: Option<String>,
    /// Those with this label, which http.count_by_labels has to name.
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// How their ids begin.
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// A part of their ids.
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// Not heard for longer than this, such as 2h.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    silent_for: Option<Duration>,
    /// Only units that are archived, which are left out otherwise.
    #[arg(long)]
    archived: bool,
    #[arg(long, default_value = "state")]
    sort: Order,
    #[command(flatten)]
    pages: Pages,
}

/// How much of a list is printed.
#[derive(Debug, Args)]
struct Pages {
    /// How many.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    /// All of them, page by page.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// Units that need attention first.
    State,
    Unit,
    /// Heard longest ago first.
    LastSeen,
    OfflineSince,
}

impl Order {
    fn as_str(self) -> &'static str {
        match self {
            Order::State => "state",
            Order::Unit => "unit",
            Order::LastSeen => "last_seen",
            Order::OfflineSince => "offline_since",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ExplainArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    #[arg(value_name = "KIND/UNIT", value_parser = unit)]
    unit: Unit,
}

#[derive(Debug, Args)]
pub(super) struct RecordsArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Open records only.
    #[arg(long)]
    open: bool,
    /// Detected from this moment on.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// Detected before this moment.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
    #[arg(long)]
    kind: Option<String>,
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// silence or never_seen.
    #[arg(long)]
    cause: Option<String>,
    #[command(flatten)]
    pages: Pages,
}

#[derive(Debug, Args)]
pub(super) struct AvailabilityArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Of one unit; without it, and without --kind and --label, of the fleet.
    #[arg(value_name = "KIND/UNIT", value_parser = unit)]
    unit: Option<Unit>,
    #[arg(long)]
    kind: Option<String>,
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// By default 30 days ago.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

#[derive(Debug, Args)]
pub(super) struct SummaryArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// The parameters that are given.
fn given(parameters: Vec<(&'static str, Option<String>)>) -> Vec<(&'static str, String)> {
    parameters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

pub(super) async fn units(arguments: UnitsArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let UnitsArguments {
        remote,
        output,
        state,
        kind,
        label,
        prefix,
        contains,
        silent_for,
        archived,
        sort,
        pages,
    } = arguments;
    let remote = remote.open()?;
    let query = given(vec![
        ("state", state),
        ("kind", kind),
        ("label", label),
        ("q", prefix),
        ("contains", contains),
        ("silent_seconds", silent_for.map(|span| span.as_secs_f64().to_string())),
        ("archived", archived.then(|| "true".to_owned())),
        ("sort", Some(sort.as_str().to_owned())),
    ]);
    let fields = ["kind", "unit", "state", "last_seen", "offline_since", "labels"];
    let list = List { path: &["api", "v1", "units"], items: "units", fields: &fields };
    output.repeat(async || list.print(&remote, &query, &pages, &output).await).await?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn records(arguments: RecordsArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let RecordsArguments { remote, output, open, from, until, kind, label, cause, pages } = arguments;
    let remote = remote.open()?;
    let query = given(vec![
        ("open", open.then(|| "true".to_owned())),
        ("from", from.map(|moment| moment.to_string())),
        ("until", until.map(|moment| moment.to_string())),
        ("kind", kind),
        ("label", label),
        ("cause", cause),
    ]);
    let fields = ["id", "cause", "last_seen", "deadline", "detected_at", "back_at", "closed_by", "labels"];
    let list = List { path: &["api", "v1", "records"], items: "records", fields: &fields };
    output.repeat(async || list.print(&remote, &query, &pages, &output).await).await?;
    Ok(ExitCode::SUCCESS)
}

/// A list of the API, in pages.
struct List<'a> {
    path: &'a [&'a str],
    /// The name of the items in the answer.
    items: &'a str,
    /// The columns.
    fields: &'a [&'static str],
}

impl List<'_> {
    /// Prints page after page.
    async fn print(
        &self,
        remote: &Remote,
        query: &[(&str, String)],
        pages: &Pages,
        output: &OutputArguments,
    ) -> anyhow::Result<()> {
        ensure!(pages.all || pages.limit > 0, "--limit is at least 1");
        let (mut left, mut cursor, mut is_first) =
            (if pages.all { usize::MAX } else { pages.limit }, None, true);
        loop {
            let mut query = query.to_vec();
            query.push(("limit", left.min(PAGE).to_string()));
            query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let answer = remote.get(self.path, &query).await?;
            let items = &answer[self.items];
            left = left.saturating_sub(items.as_array().map_or(0, Vec::len));
            output.print_part(&answer, is_first, || table(items, self.fields))?;
            is_first = false;
            for name in answer["incomplete"].as_array().into_iter().flatten() {
                eprintln!("not all units of {} are known: it does not answer, or is being read", text(name));
            }
            match answer["next"].as_str() {
                Some(_) if left == 0 => {
                    eprintln!("there may be more: --limit or --all");
                    return Ok(());
                }
                Some(next) => cursor = Some(next.to_owned()),
                None => return Ok(()),
            }
        }
    }
}

pub(super) async fn explain(arguments: ExplainArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let ExplainArguments { remote, output, unit } = arguments;
    let remote = remote.open()?;
    let path = ["api", "v1", "units", unit.kind.as_str(), unit.id.as_str(), "timeline"];
    output
        .repeat(async || {
            let answer = remote.get(&path, &[]).await?;
            output.say(&format!(
                "{}/{} is {}. {}",
                unit.kind,
                unit.id,
                text(&answer["state"]),
                text(&answer["sentence"])
            ));
            for field in
                ["last_seen", "deadline", "timeout_seconds", "grace_seconds", "labels", "paused_until"]
            {
                if !answer[field].is_null() {
                    output.say(&format!("  {:<16}  {}", field.replace('_', " "), text(&answer[field])));
                }
            }
            output.say("");
            output.print(&answer, || table(&answer["events"], &["at", "event", "text"]))
        })
        .await?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn availability(arguments: AvailabilityArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let AvailabilityArguments { remote, output, unit, kind, label, from, until } = arguments;
    let remote = remote.open()?;
    let query = given(vec![
        ("unit", unit.map(|unit| format!("{}/{}", unit.kind, unit.id))),
        ("kind", kind),
        ("label", label),
        ("from", from.map(|moment| moment.to_string())),
        ("until", until.map(|moment| moment.to_string())),
    ]);
    output
        .repeat(async || {
            let answer = remote.get(&["api", "v1", "availability"], &query).await?;
            output.print(&answer, || facts(&answer))
        })
        .await?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn summary(arguments: SummaryArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let SummaryArguments { remote, output } = arguments;
    let remote = remote.open()?;
    output
        .repeat(async || {
            let answer = remote.get(&["api", "v1", "summary"], &[]).await?;
            if answer["hearing"]["blind"] == true {
                output.say("Rollcall is blind: it cannot prove that it hears the fleet, and declares no unit offline.");
            }
            for problem in answer["problems"].as_array().into_iter().flatten() {
                output.say(&format!("{}: {}", text(&problem["instance"]), text(&problem["text"])));
            }
            output.print(&answer, || counts(&answer))
        })
        .await?;
    Ok(ExitCode::SUCCESS)
}

const STATES: [&str; 6] = ["offline", "late", "online", "never_seen", "paused", "unknown"];

/// A row for the fleet, for each kind, and for each value of a label.
pub(super) fn counts(answer: &Value) -> Table {
    let row = |name: String, states: &Value| {
        std::iter::once(name).chain(STATES.map(|state| text(&states[state]))).collect::<Vec<String>>()
    };
    let list = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    let mut rows = vec![row("all".to_owned(), &answer["states"])];
    rows.extend(
        list("kinds").iter().map(|kind| row(format!("kind={}", text(&kind["kind"])), &kind["states"])),
    );
    rows.extend(
        list("labels").iter().map(|label| {
            row(format!("{}={}", text(&label["label"]), text(&label["value"])), &label["states"])
        }),
    );
    let heads: Vec<&'static str> = std::iter::once("units").chain(STATES).collect();
    Table { heads, rows }
}

pub(super) async fn instances(arguments: SummaryArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let SummaryArguments { remote, output } = arguments;
    let remote = remote.open()?;
    output
        .repeat(async || {
            let answer = remote.get(&["api", "v1", "summary"], &[]).await?;
            let instances = &answer["instances"];
            output.print(instances, || table(instances, &["name", "partitions", "units"]))?;
            for name in answer["incomplete"].as_array().into_iter().flatten() {
                eprintln!("{} does not answer, or is being read", text(name));
            }
            Ok(())
        })
        .await?;
    Ok(ExitCode::SUCCESS)
}

//! `rollcall units`, `explain`, `records`, `availability`, `summary`, `instances`, `import`, `export`, `timers`: the
//! fleet as a running instance has it.

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::output::{OutputArguments, table, text};
use super::remote::{PAGE, Remote, RemoteArguments, given};
use super::route::{label, unit};
use super::table::PrintedTable;
use super::times::{in_order, moment, span};
use super::{logging, shown};
use crate::clock::Timestamp;
use crate::presence::{State, Unit};

mod availability;
mod inventory;
mod timers;

pub(super) use availability::{AvailabilityArguments, availability};
pub(super) use inventory::{ExportArguments, ImportArguments, export, import};
pub(super) use timers::{TimersArguments, timers};

#[derive(Debug, Args)]
pub(super) struct UnitsArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Only these states: online, late, offline, never_seen, paused, unknown.
    #[arg(long, value_name = "STATE,…", value_delimiter = ',', value_parser = state)]
    state: Vec<State>,
    /// Only units of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only units with this label, which http.count_by_labels has to name, such as site=north.
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Option<(String, String)>,
    /// Only ids with this prefix.
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Only ids that contain this text.
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// Only units silent for longer than this, such as 2h.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    silent_for: Option<Duration>,
    /// Only units that are archived, which are left out otherwise.
    #[arg(long)]
    archived: bool,
    /// Only units that are silent for unusually long by their rhythm, though not offline.
    #[arg(long)]
    unusual: bool,
    /// The order.
    #[arg(long, default_value = "state")]
    sort: Order,
    #[command(flatten)]
    pages: ListLength,
}

/// How much of a list is printed.
#[derive(Debug, Args)]
struct ListLength {
    /// The most rows.
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
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
    /// The unit, such as detector/pump-7.
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
    /// Only records of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only records of units with this label, such as site=north.
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Option<(String, String)>,
    /// Only records of this cause.
    #[arg(long, value_parser = ["silence", "never_seen", "last_will", "node_death", "disconnected"])]
    cause: Option<String>,
    #[command(flatten)]
    pages: ListLength,
}

#[derive(Debug, Args)]
pub(super) struct SummaryArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
}

fn state(name: &str) -> Result<State, String> {
    let found = State::ALL.into_iter().find(|state| state.as_str() == name);
    found.ok_or_else(|| format!("states are {}", State::ALL.map(State::as_str).join(", ")))
}

/// A label as the API takes it.
fn pair((name, value): (String, String)) -> String {
    format!("{name}={value}")
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
        unusual,
        sort,
        pages,
    } = arguments;
    let remote = remote.open()?;
    let states: Vec<&str> = state.into_iter().map(State::as_str).collect();
    let query = given(vec![
        ("state", (!states.is_empty()).then(|| states.join(","))),
        ("kind", kind),
        ("label", label.map(pair)),
        ("q", prefix),
        ("contains", contains),
        ("silent_seconds", silent_for.map(|span| span.as_secs_f64().to_string())),
        ("archived", archived.then(|| "true".to_owned())),
        ("unusual", unusual.then(|| "true".to_owned())),
        ("sort", Some(sort.as_str().to_owned())),
    ]);
    let fields = ["kind", "unit", "state", "last_seen", "offline_since", "labels"];
    let list = PagedList { path: &["api", "v1", "units"], items: "units", fields: &fields };
    output.repeat(async || list.print(&remote, &query, &pages, &output).await).await?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn records(arguments: RecordsArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let RecordsArguments { remote, output, open, from, until, kind, label, cause, pages } = arguments;
    in_order(from, until)?;
    let remote = remote.open()?;
    let query = given(vec![
        ("open", open.then(|| "true".to_owned())),
        ("from", from.map(|moment| moment.to_string())),
        ("until", until.map(|moment| moment.to_string())),
        ("kind", kind.clone()),
        ("label", label.map(pair)),
        ("cause", cause),
    ]);
    let fields = ["id", "cause", "last_seen", "deadline", "detected_at", "back_at", "closed_by", "labels"];
    let list = PagedList { path: &["api", "v1", "records"], items: "records", fields: &fields };
    // A kind that is no longer configured still has records.
    if let Some(kind) = kind
        && !knows_kind(&remote, &kind).await?
    {
        eprintln!("there is no kind {} in the configuration", shown(&kind));
    }
    output.repeat(async || list.print(&remote, &query, &pages, &output).await).await?;
    Ok(ExitCode::SUCCESS)
}

async fn knows_kind(remote: &Remote, kind: &str) -> anyhow::Result<bool> {
    let summary = remote.get(&["api", "v1", "summary"], &[], "kinds").await?;
    Ok(summary["kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|known| known["kind"] == kind)))
}

/// A list of the API, in pages.
struct PagedList<'a> {
    path: &'a [&'a str],
    /// The name of the items in the answer.
    items: &'a str,
    /// The columns.
    fields: &'a [&'static str],
}

impl PagedList<'_> {
    /// Prints page after page.
    async fn print(
        &self,
        remote: &Remote,
        query: &[(&str, String)],
        pages: &ListLength,
        output: &OutputArguments,
    ) -> anyhow::Result<()> {
        let (mut left, mut cursor, mut is_first) =
            (if pages.all { usize::MAX } else { pages.limit }, None, true);
        loop {
            let mut query = query.to_vec();
            query.push(("limit", left.min(PAGE).to_string()));
            query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let answer = remote.get(self.path, &query, self.items).await?;
            let items = &answer[self.items];
            left = left.saturating_sub(items.as_array().map_or(0, Vec::len));
            output.print_part(&answer, is_first, || table(items, self.fields))?;
            if is_first && answer["next"].is_null() {
                output.note_none(items, self.items);
            }
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
            let answer = remote.get(&path, &[], "state").await?;
            output.say(&format!(
                "{}/{} is {}. {}",
                unit.kind,
                unit.id,
                text(&answer["state"]),
                text(&answer["sentence"])
            ));
            output.say(&format!("  {}", text(&answer["notified"])));
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

pub(super) async fn summary(arguments: SummaryArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let SummaryArguments { remote, output } = arguments;
    let remote = remote.open()?;
    output
        .repeat(async || {
            let answer = remote.get(&["api", "v1", "summary"], &[], "states").await?;
            if answer["hearing"]["blind"] == true {
                output.say("Rollcall is blind: it cannot prove that it hears the fleet, and declares no unit offline.");
            }
            for problem in answer["problems"].as_array().into_iter().flatten() {
                output.say(&format!("problem: {}: {}", text(&problem["instance"]), text(&problem["text"])));
            }
            for note in answer["notes"].as_array().into_iter().flatten() {
                output.say(&text(note));
            }
            if answer["unusual"].as_u64().is_some_and(|unusual| unusual > 0) {
                output.say(&format!(
                    "silent for unusually long: {}; see rollcall units --unusual",
                    text(&answer["unusual"])
                ));
            }
            if answer["breaker_tripped"] == true {
                let breaker = remote.get(&["api", "v1", "breaker"], &[], "tripped").await?;
                let until = text(&breaker["trip"]["until"]);
                output.say(&format!(
                    "the mass-offline breaker holds notifications until {until}; see rollcall breaker show"
                ));
            }
            let is_well = answer["problems"].as_array().is_some_and(Vec::is_empty);
            if is_well && answer["hearing"]["blind"] != true && answer["breaker_tripped"] != true {
                output.say("no problems");
            }
            output.print(&answer, || counts(&answer))
        })
        .await?;
    Ok(ExitCode::SUCCESS)
}

const STATES: [&str; 6] = ["offline", "late", "online", "never_seen", "paused", "unknown"];

/// A row for the fleet, for each kind, and for each value of a label.
pub(super) fn counts(answer: &Value) -> PrintedTable {
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
    PrintedTable { heads, rows }
}

pub(super) async fn instances(arguments: SummaryArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let SummaryArguments { remote, output } = arguments;
    let remote = remote.open()?;
    output
        .repeat(async || {
            let answer = remote.get(&["api", "v1", "summary"], &[], "instances").await?;
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

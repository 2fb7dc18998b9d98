//! `rollcall receivers`: the backlog of each receiver, and whether it takes notifications.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::logging;
use super::output::{OutputArguments, text};
use super::remote::RemoteArguments;
use super::table::PrintedTable;

#[derive(Debug, Args)]
pub(super) struct ReceiversArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(super) async fn run(
    ReceiversArguments { remote, output }: ReceiversArguments,
) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let remote = remote.open()?;
    let show = async || {
        let receivers = remote.get(&["api", "v1", "receivers"], &[], "receivers").await?["receivers"].take();
        output.print_list(&receivers, "receivers", || lines(&receivers))
    };
    output.repeat(show).await?;
    Ok(ExitCode::SUCCESS)
}

/// A row for each receiver.
fn lines(receivers: &Value) -> PrintedTable {
    let row = |one: &Value| {
        let state = match (&one["type"], &one["failing_since"], &one["last_success"]) {
            (Value::Null, _, _) => "not configured",
            (_, Value::String(_), _) => "failing",
            (_, _, Value::Null) => "no attempt yet",
            _ => "ok",
        };
        let why = if state == "failing" { text(&one["why"]) } else { String::new() };
        let [name, of, waiting, dead, success, since] =
            ["name", "type", "waiting", "dead_letters", "last_success", "failing_since"]
                .map(|field| text(&one[field]));
        vec![name, of, state.to_owned(), waiting, dead, success, since, why]
    };
    let heads =
        ["receiver", "type", "state", "waiting", "dead_letters", "last_success", "failing_since", "why"];
    PrintedTable {
        rows: receivers.as_array().into_iter().flatten().map(row).collect(),
        ..PrintedTable::new(&heads)
    }
}

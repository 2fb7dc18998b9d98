//! `rollcall ack`: acknowledges the open record of a unit. `rollcall pause`: a planned absence of a unit.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use reqwest::Method;
use serde_json::json;

use super::operator::OperatorArguments;
use super::output::text;
use super::remote::{Remote, RemoteArguments};
use super::route::unit;
use super::times::{in_ms, moment, span};
use super::{logging, shown};
use crate::clock::Timestamp;
use crate::fleet::Subject;
use crate::presence::Unit;

#[derive(Debug, Args)]
pub(super) struct AckArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The unit, as KIND/UNIT, or the id of its open record.
    #[arg(value_name = "RECORD|KIND/UNIT", value_parser = subject)]
    subject: Subject,
    /// Take the acknowledgement back.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    operator: OperatorArguments,
}

#[derive(Debug, Args)]
pub(super) struct PauseArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The unit, such as detector/pump-7.
    #[arg(value_name = "KIND/UNIT", value_parser = unit)]
    unit: Unit,
    #[command(flatten)]
    length: PauseLength,
    #[command(flatten)]
    operator: OperatorArguments,
}

/// How long a pause is.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct PauseLength {
    /// How long from now on, such as 4h.
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    span: Option<Duration>,
    /// Until when, such as 2026-11-23T18:00:00+01:00.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
    /// End the pause now.
    #[arg(long)]
    end: bool,
}

fn subject(text: &str) -> Result<Subject, String> {
    // A record's id is `kind:unit:number`.
    match text.parse().map(Subject::Record) {
        Ok(record) if !text.contains('/') => Ok(record),
        _ => unit(text).map(Subject::Unit).map_err(|error| format!("{error}, or the id of a record")),
    }
}

pub(super) async fn acknowledge(arguments: AckArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let AckArguments { remote, subject, undo, operator } = arguments;
    let remote = remote.open()?;
    let record = match &subject {
        Subject::Record(id) => id.to_string(),
        Subject::Unit(unit) => open_record(&remote, unit).await?,
    };
    let path = ["api", "v1", "records", &record, "ack"];
    let name = shown(&subject.to_string());
    if undo {
        remote.delete(&path, &operator).await?;
        println!("{name} is no longer acknowledged");
    } else {
        let body = json!({ "comment": operator.comment });
        remote.change(Method::PUT, &path, Some(&body), Some(&operator.author)).await?;
        println!("{name} is acknowledged");
    }
    Ok(ExitCode::SUCCESS)
}

/// The id of the open record of a unit.
async fn open_record(remote: &Remote, Unit { kind, id }: &Unit) -> anyhow::Result<String> {
    let unit = remote.get(&["api", "v1", "units", kind.as_str(), id.as_str()], &[], "state").await?;
    let record = unit["record"]["id"].as_str().map(str::to_owned);
    record.with_context(|| format!("unit {kind}/{id} has no open record"))
}

pub(super) async fn pause(arguments: PauseArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let PauseArguments { remote, unit: Unit { kind, id }, length, operator } = arguments;
    let (remote, name) = (remote.open()?, shown(&format!("{kind}/{id}")));
    let path = ["api", "v1", "units", kind.as_str(), id.as_str(), "pause"];
    if length.end {
        remote.delete(&path, &operator).await?;
        println!("the pause of {name} is over now");
        return Ok(ExitCode::SUCCESS);
    }
    // The instance adds the span to its own clock, which is that of the fleet.
    let body = json!({
        "until": length.until, "for": length.span.map(in_ms), "comment": operator.comment
    });
    let paused = remote.change(Method::PUT, &path, Some(&body), Some(&operator.author)).await?;
    println!("{name} is paused until {}", text(&paused["until"]));
    Ok(ExitCode::SUCCESS)
}

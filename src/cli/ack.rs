//! `rollcall ack`: acknowledges the open record of a unit. `rollcall pause`: a planned absence of a unit.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;

use super::access::{Access, Operator};
use super::remote::RemoteArguments;
use super::route::unit;
use super::times::{moment, span};
use super::{logging, system_user, wrong};
use crate::clock::Timestamp;
use crate::fleet::{Subject, UnitChange};
use crate::presence::{Acknowledgement, MAX_PAUSE, Shown, Unit, is_pause};
use crate::routing::alert_silence::{is_author, is_comment};

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
    length: Length,
    #[command(flatten)]
    operator: OperatorArguments,
}

/// How long a pause is.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Length {
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

#[derive(Debug, Args)]
pub(super) struct OperatorArguments {
    /// The operator who does it.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    author: String,
    /// Why, or what is being done.
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,
}

impl OperatorArguments {
    pub fn operator(self) -> anyhow::Result<Operator> {
        let OperatorArguments { author, comment } = self;
        if !is_author(&author) || !is_comment(&comment) {
            return Err(wrong("author and comment are short texts without control characters"));
        }
        Ok(Operator { author, comment })
    }
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
    let operator = operator.operator()?;
    let access = Access::open(&remote).await?;
    let now = access.now();
    let acknowledged = || {
        let Operator { author, comment } = &operator;
        Acknowledgement { at: now, author: author.clone(), comment: comment.clone() }
    };
    let change = UnitChange::Acknowledge((!undo).then(acknowledged));
    let name = subject.to_string();
    if !access.change(&subject, &change, &operator, now).await? {
        let what = if undo { "no open record that is acknowledged" } else { "no open record" };
        bail!("{} has {what}", Shown(&name));
    }
    println!("{} {}", Shown(&name), if undo { "is no longer acknowledged" } else { "is acknowledged" });
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn pause(arguments: PauseArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let PauseArguments { remote, unit, length, operator } = arguments;
    let (operator, subject) = (operator.operator()?, Subject::Unit(unit));
    let access = Access::open(&remote).await?;
    let now = access.now();
    let until = length.until.or(length.span.map(|span| now + span));
    if until.is_some_and(|until| !is_pause(until, now)) {
        let days = MAX_PAUSE.as_secs() / 86_400;
        return Err(wrong(format!("the end of a pause is in the future, within {days} days")));
    }
    let name = subject.to_string();
    if !access.change(&subject, &UnitChange::Pause(until), &operator, now).await? {
        match until {
            _ if !access.has_kind(&subject.unit().kind) => {
                bail!("kind {} is not configured; see [[kind]]", subject.unit().kind)
            }
            Some(_) => bail!("there is no unit {}", Shown(&name)),
            None => bail!("{} is not paused", Shown(&name)),
        }
    }
    match until {
        Some(until) => println!("{} is paused until {until}", Shown(&name)),
        None => println!("the pause of {} is over now", Shown(&name)),
    }
    Ok(ExitCode::SUCCESS)
}

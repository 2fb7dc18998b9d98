//! `rollcall breaker`: shows and releases the mass-offline breaker.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::access::{Access, Operator};
use super::output::{OutputArguments, text};
use super::remote::RemoteArguments;
use super::{logging, system_user, wrong};
use crate::routing::alert_silence::{is_author, is_comment};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show whether it holds notifications, and its last trip.
    Show(Show),
    /// Release it: receivers are notified of held units that are still offline.
    Release(Release),
}

#[derive(Debug, Args)]
struct Show {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
struct Release {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The operator who releases it.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    author: String,
    /// The reason, for the audit.
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        Command::Show(Show { remote, output }) => {
            let access = Access::open(&remote).await?;
            let show = async || {
                let breaker = access.breaker().await?;
                output.print_sentence(&breaker, &sentence(&breaker))
            };
            output.repeat(show).await?;
        }
        Command::Release(Release { remote, author, comment }) => {
            if !is_author(&author) || !is_comment(&comment) {
                return Err(wrong("author and comment are short texts without control characters"));
            }
            let operator = Operator { author, comment };
            let access = Access::open(&remote).await?;
            match access.release_breaker(&operator, access.now()).await? {
                true => {
                    println!(
                        "the breaker is released: receivers are notified of held units that are still offline"
                    )
                }
                false => println!("the breaker holds nothing"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn sentence(breaker: &Value) -> String {
    if breaker["enabled"] != true {
        return "the mass-offline breaker is not enabled; see [breaker]".to_owned();
    }
    let trip = &breaker["trip"];
    if trip.is_null() {
        return "the breaker holds nothing; it has never tripped".to_owned();
    }
    let [offline, units, since, until, at] =
        ["offline", "units", "since", "until", "at"].map(|field| text(&trip[field]));
    let what = format!("{offline} of {units} units fell silent since {since}");
    let released = &trip["released"];
    if released.is_null() {
        return format!("the breaker holds notifications until {until} at the latest: {what}");
    }
    let [over, why] = ["at", "why"].map(|field| text(&released[field]));
    format!("the breaker holds nothing; last trip at {at}: {what}; released at {over} ({why})")
}

//! `rollcall breaker`: shows and releases the mass-offline breaker.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::logging;
use super::operator::OperatorArguments;
use super::output::{OutputArguments, text};
use super::remote::RemoteArguments;

const PATH: [&str; 3] = ["api", "v1", "breaker"];

#[derive(Debug, Args)]
pub(super) struct BreakerArguments {
    #[command(subcommand)]
    command: BreakerCommand,
}

#[derive(Debug, Subcommand)]
enum BreakerCommand {
    /// Show whether it holds notifications, and its last trip.
    Show(ShowBreaker),
    /// Release it: receivers are notified of held units that are still offline.
    Release(ReleaseBreaker),
}

#[derive(Debug, Args)]
struct ShowBreaker {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
struct ReleaseBreaker {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    operator: OperatorArguments,
}

pub(super) async fn run(arguments: BreakerArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        BreakerCommand::Show(ShowBreaker { remote, output }) => {
            let remote = remote.open()?;
            let show = async || {
                let breaker = remote.get(&PATH, &[], "tripped").await?;
                output.print_sentence(&breaker, &sentence(&breaker))
            };
            output.repeat(show).await?;
        }
        BreakerCommand::Release(ReleaseBreaker {
            remote,
            operator: OperatorArguments { author, comment },
        }) => {
            let remote = remote.open()?;
            if remote.get(&PATH, &[], "tripped").await?["tripped"] != true {
                println!("the breaker holds nothing");
                return Ok(ExitCode::SUCCESS);
            }
            let (path, body) = ([&PATH[..], &["release"]].concat(), json!({ "comment": comment }));
            remote.change(Method::POST, &path, Some(&body), Some(&author)).await?;
            println!("the breaker is released: receivers are notified of held units that are still offline");
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

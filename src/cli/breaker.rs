//! `rollcall breaker`: shows and releases the mass-offline breaker.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};

use super::access::{AccessArguments, Operator};
use super::{logging, shown_json};
use crate::clock::Clock;
use crate::http::ShownBreaker;
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
    /// Release it: what it holds and is still offline is notified.
    Release(Release),
}

#[derive(Debug, Args)]
struct Show {
    #[command(flatten)]
    access: AccessArguments,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Release {
    #[command(flatten)]
    access: AccessArguments,
    /// The operator who releases it.
    #[arg(long, env = "USER", value_name = "NAME")]
    author: String,
    /// Why.
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        Command::Show(Show { access, json }) => {
            let breaker = access.open().await?.breaker().await?;
            if json {
                println!("{}", shown_json(&serde_json::to_string_pretty(&breaker)?));
            } else {
                println!("{}", text(&breaker));
            }
        }
        Command::Release(Release { access, author, comment }) => {
            if !is_author(&author) || !is_comment(&comment) {
                bail!("author and comment are short texts without control characters");
            }
            let operator = Operator { author, comment };
            match access.open().await?.release_breaker(&operator, Clock::system().now()).await? {
                true => {
                    println!("the breaker is released: what it held and is still offline is notified now")
                }
                false => println!("the breaker holds nothing"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(breaker: &ShownBreaker) -> String {
    if !breaker.enabled {
        return "the mass-offline breaker is not enabled; see [breaker]".to_owned();
    }
    let Some(trip) = &breaker.trip else {
        return "the breaker holds nothing; it has never tripped".to_owned();
    };
    let what = format!("{} of {} units fell silent since {}", trip.offline, trip.units, trip.since);
    match &trip.released {
        None => format!("the breaker holds notifications until {} at the latest: {what}", trip.until),
        Some(over) => {
            let why = over.why.as_str();
            format!(
                "the breaker holds nothing; last trip at {}: {what}; released at {} ({why})",
                trip.at, over.at
            )
        }
    }
}

//! `rollcall token new`: makes a token for the HTTP API and the web page.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde::Serialize;

use super::times::moment;
use super::wrong;
use crate::clock::{Clock, Timestamp};
use crate::http::Token;
use crate::routing::alert_silence::is_author;

/// The prefix of every token, so that programs which look for secrets in files find it.
const PREFIX: &str = "rollcall_";

#[derive(Debug, Args)]
pub(super) struct TokenArguments {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token, and print it once with the lines that the configuration needs for it. Nothing is stored.
    #[command(after_help = "Example: rollcall token new --name grafana --role viewer")]
    New(New),
}

#[derive(Debug, Args)]
struct New {
    /// Its name, for the log and the audit.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What the token may do.
    #[arg(long, value_enum, default_value_t = TokenRole::Viewer)]
    role: TokenRole,
    /// When it expires, such as 2027-01-01T00:00:00Z; by default never.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    expires: Option<Timestamp>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The rights of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum TokenRole {
    /// Send heartbeats over HTTP, and nothing else.
    Device,
    /// Read.
    Viewer,
    /// Make silences, acknowledge, pause and replay, too.
    Operator,
    /// Register and remove units, too.
    Admin,
}

/// A token that was made.
#[derive(Serialize)]
struct Made {
    token: String,
    name: String,
    sha256: String,
    role: TokenRole,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
}

pub(super) fn run(arguments: TokenArguments) -> anyhow::Result<ExitCode> {
    let TokenCommand::New(New { name, role, expires, json }) = arguments.command;
    if !is_author(&name) {
        return Err(wrong("--name is a short text without control characters"));
    }
    if expires.is_some_and(|at| at <= Clock::machine()) {
        return Err(wrong("--expires must be in the future"));
    }
    let token = format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&rand::random::<[u8; 32]>()));
    let sha256 = HEXLOWER.encode(&Token::digest(&token));
    let made = Made { token, name, sha256, role, expires };
    if json {
        println!("{}", serde_json::to_string_pretty(&made)?);
    } else {
        print!(
            "The token (it is shown only once):\n\n{}\n\nFor the configuration:\n\n{}",
            made.token,
            made.lines()?
        );
    }
    Ok(ExitCode::SUCCESS)
}

impl Made {
    /// The lines of the configuration.
    fn lines(&self) -> serde_json::Result<String> {
        // TOML escapes as JSON does.
        let (name, role) = (serde_json::to_string(&self.name)?, serde_json::to_string(&self.role)?);
        let expires = self.expires.map(|at| format!("expires = \"{at}\"\n")).unwrap_or_default();
        Ok(format!("[[http.token]]\nname = {name}\nsha256 = \"{}\"\nrole = {role}\n{expires}", self.sha256))
    }
}

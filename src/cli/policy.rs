//! `rollcall policy try`: the records and notifications that another timeout or configuration would have produced for
//! the silences in history. It only reads the database.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};

use super::history::prepared;
use super::table::{PrintedTable, has_colours};
use super::times::{moment, span};
use super::{ConfigFile, logging, shown_json, wrong};
use crate::clock::{Clock, Timestamp, shown_span};
use crate::config::{self, Config};
use crate::history::past_fleet;
use crate::presence::{Kind, Policy, is_timeout};
use crate::routing::Routes;
use crate::routing::trial::{PolicyTrial, TrialRules};

#[derive(Debug, Args)]
pub(super) struct PolicyArguments {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Try a timeout or a configuration on the silences of history: what would have been recorded, and sent to whom.
    Try(TryArguments),
}

#[derive(Debug, Args)]
struct TryArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// The kind of the units.
    #[arg(long)]
    kind: Kind,
    /// The timeout to try; by default that of --new, or the one of now.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    timeout: Option<Duration>,
    /// The grace to try; by default that of --new, or the one of now.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    grace: Option<Duration>,
    /// Another configuration to try: its timeouts, routes, mute times, inhibition and breaker.
    #[arg(long, value_name = "FILE")]
    new: Option<PathBuf>,
    /// How far back, such as 30d.
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "30d")]
    since: Duration,
    /// The end of that time; by default as far as history is written.
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    until: Option<Timestamp>,
    /// Count by the values of this label, too.
    #[arg(long, value_name = "LABEL")]
    group_by: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(arguments: PolicyArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let PolicyCommand::Try(arguments) = arguments.command;
    let TryArguments { file, kind, timeout, grace, new, since, until, group_by, json } = arguments;
    if since.is_zero() {
        return Err(wrong("since is longer than 0s"));
    }
    let now = file.load()?;
    let new = new.as_deref().map(|path| config::load(Some(path))).transpose()?;
    let (now, new) = (TriedConfig::of(&now, &kind)?, TriedConfig::of(new.as_ref().unwrap_or(&now), &kind)?);
    let policy =
        Policy { timeout: timeout.unwrap_or(new.policy.timeout), grace: grace.unwrap_or(new.policy.grace) };
    if !is_timeout(policy.timeout) {
        return Err(wrong(format!("a timeout of {} is out of bounds", shown_span(policy.timeout))));
    }
    let (_, database) = prepared(&file).await?;
    let past = past_fleet(&database, &kind, (since, until), Clock::system().now()).await?;
    let would = TrialRules { policy, ..new.rules() };
    let trial = PolicyTrial::of(&past, &now.rules(), &would, group_by.as_deref(), &|| false);
    let trial = trial.context("the trial was given up")?;
    if json {
        println!("{}", shown_json(&serde_json::to_string_pretty(&trial)?));
    } else {
        print!("{}", in_words(&trial));
    }
    Ok(ExitCode::SUCCESS)
}

/// The rules of a configuration for one kind.
struct TriedConfig<'a> {
    config: &'a Config,
    policy: Policy,
    routes: Routes,
    receivers: Vec<String>,
    has_flapping: bool,
    has_rate_limits: bool,
}

impl TriedConfig<'_> {
    fn of<'a>(config: &'a Config, kind: &Kind) -> anyhow::Result<TriedConfig<'a>> {
        let rules = config.rules.get(kind);
        let rules = rules.ok_or_else(|| wrong(format!("there is no kind {kind} in the configuration")))?;
        let alerting = &config.alerting;
        Ok(TriedConfig {
            config,
            policy: rules.policy,
            routes: Routes::new(alerting.route.clone()),
            receivers: alerting.receivers.iter().map(|receiver| receiver.name.clone()).collect(),
            has_flapping: alerting.flapping.contains_key(kind),
            has_rate_limits: alerting.receivers.iter().any(|receiver| receiver.rate_limit.is_some()),
        })
    }

    fn rules(&self) -> TrialRules<'_> {
        TrialRules {
            policy: self.policy,
            settle: self.config.hearing.settle,
            routes: &self.routes,
            receivers: &self.receivers,
            inhibition: &self.config.alerting.inhibition,
            breaker: self.config.alerting.breaker,
            has_flapping: self.has_flapping,
            has_rate_limits: self.has_rate_limits,
        }
    }
}

fn in_words(trial: &PolicyTrial) -> String {
    let table = |heads: &[&'static str], rows: Vec<Vec<String>>| {
        PrintedTable { rows, ..PrintedTable::new(heads) }.to_text(has_colours())
    };
    let counts = trial.rows().into_iter().map(Vec::from).collect();
    let mut parts = vec![trial.to_string(), table(&PolicyTrial::HEADS, counts)];
    let differences: Vec<Vec<String>> = trial.difference_rows().into_iter().map(Vec::from).collect();
    if !differences.is_empty() {
        parts.push(table(&PolicyTrial::DIFFERENCE_HEADS, differences));
    }
    let parts: Vec<&str> = parts.iter().map(|part| part.trim_end()).collect();
    format!("{}\n\n{}\n", parts.join("\n\n"), trial.notes.join("\n"))
}

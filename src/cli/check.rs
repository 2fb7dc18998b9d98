//! `rollcall check`: the configuration and every dependency, each with what to do.
//!
//! It changes nothing and tells nobody: receivers are connected to and not told, the broker is
//! subscribed to by a client that leaves again. All are asked at once, and each within a bound, so
//! one that does not answer hides nothing about the others.

use std::fmt;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use serde::Serialize;

use super::{BAD_CONFIGURATION, ConfigFile, FAILED, logging, shown, shown_json};
use crate::broker::Broker;
use crate::clock::Clock;
use crate::config::{Config, ConfigError};
use crate::presence::Shown;
use crate::telemetry::Telemetry;
use crate::{alerting, intake};

mod engine;
mod ids;
mod orphans;
mod unreadable;
mod unwatched;

/// How long one dependency may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    Warn,
    Fail,
}

/// What was found about one thing.
#[derive(Debug, Serialize)]
struct Finding {
    outcome: Outcome,
    name: String,
    text: String,
}

impl Finding {
    fn ok(name: &str, text: impl Into<String>) -> Finding {
        Finding { outcome: Outcome::Ok, name: name.to_owned(), text: text.into() }
    }

    fn warn(name: &str, text: impl Into<String>) -> Finding {
        Finding { outcome: Outcome::Warn, name: name.to_owned(), text: text.into() }
    }

    fn fail(name: &str, text: impl Into<String>) -> Finding {
        Finding { outcome: Outcome::Fail, name: name.to_owned(), text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.outcome {
            Outcome::Ok => "ok  ",
            Outcome::Warn => "warn",
            Outcome::Fail => "FAIL",
        };
        // An error of the file has several lines; nothing else may look like another finding.
        let text = match self.name.as_str() {
            "configuration" => shown(&self.text),
            _ => Shown(&self.text).to_string(),
        };
        write!(f, "{word}  {}: {text}", Shown(&self.name))
    }
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_silently()?;
    let (findings, code) = match arguments.file.load() {
        Ok(config) => {
            let findings = examine(&config).await;
            let failed = findings.iter().any(|finding| finding.outcome == Outcome::Fail);
            (findings, if failed { FAILED } else { 0 })
        }
        Err(error) => (misconfigured(error), BAD_CONFIGURATION),
    };
    if arguments.json {
        println!("{}", shown_json(&serde_json::to_string_pretty(&findings)?));
    } else {
        findings.iter().for_each(|finding| println!("{finding}"));
    }
    Ok(ExitCode::from(code))
}

fn misconfigured(error: ConfigError) -> Vec<Finding> {
    match error {
        ConfigError::Meaning(problems) => {
            problems.iter().map(|problem| Finding::fail("configuration", problem.to_string())).collect()
        }
        error => vec![Finding::fail("configuration", error.to_string())],
    }
}

async fn examine(config: &Config) -> Vec<Finding> {
    let source = config.source.as_ref();
    let source = source
        .map_or("every option has its default".to_owned(), |path| format!("{} makes sense", path.display()));
    let mut findings = vec![Finding::ok("configuration", source)];
    let odd = config.warnings.iter();
    findings.extend(odd.map(|problem| Finding::warn("configuration", problem.to_string())));
    if config.alerting.route.receivers.is_empty() {
        findings.push(Finding::warn("receivers", alerting::NO_RECEIVER));
    }
    let (engine, unreadable, orphans, unwatched, broker, ids, receivers) = tokio::join!(
        engine::examine(&config.engine),
        unreadable::examine(&config.engine),
        orphans::examine(&config.engine, &config.alerting),
        unwatched::examine(config),
        broker(config),
        ids(config),
        receivers(&config.alerting)
    );
    findings.extend(engine);
    findings.extend(unreadable);
    findings.extend(orphans);
    findings.extend(unwatched);
    findings.extend(broker);
    findings.extend(ids);
    findings.extend(receivers);
    findings
}

/// The broker within the process keeps client ids apart by itself.
async fn ids(config: &Config) -> Option<Finding> {
    if config.broker.is_some() { None } else { ids::examine(&config.intake).await }
}

async fn broker(config: &Config) -> Vec<Finding> {
    if let Some(within) = &config.broker {
        let found = match patiently(Broker::bind(within, Arc::new(Telemetry::new(&Clock::system())))).await {
            Ok(_) => Finding::ok("broker", "can listen; its files make sense"),
            Err(why) => {
                Finding::warn("broker", format!("{why}; if rollcall is running, it is the one that listens"))
            }
        };
        return vec![found];
    }
    let config = &config.intake;
    match patiently(intake::probe(config)).await {
        Ok(deaf) if deaf.is_empty() => vec![Finding::ok(
            "mqtt",
            format!(
                "{} takes the connection and the subscriptions, and what is said on each topic is heard",
                config.url
            ),
        )],
        Ok(deaf) => deaf.iter().map(unheard).collect(),
        Err(why) => vec![Finding::fail("mqtt", format!("{why}; check mqtt.url and that the broker runs"))],
    }
}

fn unheard(deaf: &intake::TopicProblem) -> Finding {
    match deaf {
        intake::TopicProblem::Unheard(why) => Finding::fail("mqtt", why),
        intake::TopicProblem::Unknown(why) => Finding::warn("mqtt", why),
    }
}

async fn receivers(config: &alerting::Config) -> Vec<Finding> {
    let probes = config.receivers.iter().map(|receiver| async move {
        let name = format!("receiver {}", receiver.name);
        match patiently(alerting::probe(receiver)).await {
            Ok(()) => Finding::ok(
                &name,
                format!(
                    "can be reached; `rollcall send-test --receiver {}` tells it something",
                    receiver.name
                ),
            ),
            Err(why) => Finding::fail(&name, format!("{why}; check its address and that it runs")),
        }
    });
    join_all(probes).await
}

async fn patiently<T, E: fmt::Display>(probe: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, probe).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

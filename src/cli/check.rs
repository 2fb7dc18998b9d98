//! `rollcall check`: the configuration and every dependency, each fault with advice.
//!
//! The command changes nothing and sends no notification: it only connects to receivers, and subscribes at the broker
//! with a client of its own. All checks run at once, each with a timeout, so a dependency that does not answer does
//! not hide the state of the others.

use std::fmt;
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::net::TcpListener;

use super::remote::{reachable, without_file};
use super::{BAD_CONFIGURATION, ConfigFile, FAILED, health, logging, running, shown, shown_json};
use crate::cause::{self, without_number};
use crate::clock::{Clock, Timestamp};
use crate::config::{Config, ConfigError, filters_of};
use crate::fleet::SharedRules;
use crate::http::check_address;
use crate::intake::listener::Listener;
use crate::presence::Shown;
use crate::routing::Route;
use crate::telemetry::Telemetry;
use crate::{alerting, intake};

mod certificate;
mod engine;
mod history;
mod ids;
mod names;
mod orphans;
mod unreadable;
mod unwatched;

/// How long one dependency may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Connect to nothing: read the configuration, its files, and of a fleet in a directory whether this version can use it.
    #[arg(long)]
    offline: bool,
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FindingOutcome {
    Ok,
    Warn,
    Fail,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    outcome: FindingOutcome,
    name: String,
    text: String,
}

impl Finding {
    fn ok(name: &str, text: impl Into<String>) -> Finding {
        Finding { outcome: FindingOutcome::Ok, name: name.to_owned(), text: without_number(&text.into()) }
    }

    fn warn(name: &str, text: impl Into<String>) -> Finding {
        Finding { outcome: FindingOutcome::Warn, name: name.to_owned(), text: without_number(&text.into()) }
    }

    fn fail(name: &str, text: impl Into<String>) -> Finding {
        Finding { outcome: FindingOutcome::Fail, name: name.to_owned(), text: without_number(&text.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.outcome {
            FindingOutcome::Ok => "ok  ",
            FindingOutcome::Warn => "warn",
            FindingOutcome::Fail => "FAIL",
        };
        // An error of the file has several lines; only the configuration may print several, so that no other text
        // looks like a finding.
        let text = match self.name.as_str() {
            "configuration" => shown(&self.text),
            _ => Shown(&self.text).to_string(),
        };
        write!(f, "{word}  {}: {text}", Shown(&self.name))
    }
}

pub(super) async fn run(arguments: CheckArguments) -> anyhow::Result<ExitCode> {
    logging::start_silently()?;
    let (findings, code) = match arguments.file.load() {
        Ok(config) => {
            let mut findings = examine(&config);
            match arguments.offline {
                true => findings.extend(engine::stored(&config.engine)),
                false => findings.extend(connect(&config).await),
            }
            let failed = findings.iter().any(|finding| finding.outcome == FindingOutcome::Fail);
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

/// The findings about the configuration and its files.
fn examine(config: &Config) -> Vec<Finding> {
    let source = config.source.as_ref();
    let source = source.map_or_else(
        || format!("every option has its default: {}", without_file()),
        |path| format!("{} is valid", path.display()),
    );
    let mut findings = vec![Finding::ok("configuration", source)];
    let warnings = config.warnings.iter();
    findings.extend(warnings.map(|problem| Finding::warn("configuration", problem.to_string())));
    if let Some(why) = alerting::without_receivers(&config.alerting) {
        findings.push(Finding::warn("receivers", why));
    }
    findings.extend(unguarded(config));
    findings.extend(topics(config));
    findings.extend(names::examine(config));
    let now = Clock::system().now();
    let of_pages = config.http.tls.as_ref().map(|tls| &tls.files);
    let of_devices = config.broker.as_ref().and_then(|broker| broker.tls.as_ref()).map(|tls| &tls.files);
    findings.extend(certificate::examine("http", of_pages, now));
    findings.extend(certificate::examine("broker", of_devices, now));
    findings.extend(never_active("route", &config.alerting.route, now));
    findings
}

/// The findings about everything that Rollcall depends on.
async fn connect(config: &Config) -> Vec<Finding> {
    let (engine, unreadable, orphans, unwatched, broker, ids, receivers, differs, named, history) = tokio::join!(
        engine::examine(&config.engine),
        unreadable::examine(&config.engine),
        orphans::examine(&config.engine, &config.alerting),
        unwatched::examine(config),
        broker(config),
        ids(config),
        receivers(&config.alerting),
        running_configuration(config),
        ids::of_running_instance(config.http.listen),
        history::examine(config)
    );
    let listen_at = config.http.listen;
    let mut findings: Vec<Finding> = listen("http.listen", listen_at, listen_at).await.into_iter().collect();
    if let Some(tls) = &config.http.tls {
        findings.extend(listen("http.tls_listen", tls.listen, listen_at).await);
    }
    findings.extend(differs);
    findings.extend(named);
    findings.extend(engine);
    findings.extend(unreadable);
    findings.extend(orphans);
    findings.extend(unwatched);
    findings.extend(broker);
    findings.extend(ids);
    findings.extend(receivers);
    findings.extend(history);
    findings
}

/// The finding about an address of the web server that is not free. `pages`: `http.listen`.
async fn listen(option: &str, address: SocketAddr, pages: SocketAddr) -> Option<Finding> {
    let error = TcpListener::bind(address).await.err()?;
    Some(match error.kind() {
        ErrorKind::AddrInUse if is_served(pages).await => {
            Finding::warn("http", format!("{address} is in use; this is expected while rollcall serve runs"))
        }
        ErrorKind::AddrInUse => Finding::fail(
            "http",
            format!("{address} is in use by another program; end that program, or choose another {option}"),
        ),
        _ => Finding::fail(
            "http",
            format!("cannot listen on {address}: {}; correct {option}", cause::why("http", "client", &error)),
        ),
    })
}

/// Addresses that are open to other machines while no token is configured.
fn unguarded(config: &Config) -> Vec<Finding> {
    let tls = config.http.tls.as_ref().map(|tls| ("http.tls_listen", tls.listen));
    let addresses = [("http.listen", config.http.listen)].into_iter().chain(tls);
    let refused =
        addresses.filter_map(|(option, address)| check_address(address, &config.http, option).err());
    refused.map(|why| Finding::fail("http", format!("rollcall serve would end at once: {why:#}"))).collect()
}

/// Topic templates with which intake could not start.
fn topics(config: &Config) -> Option<Finding> {
    let rules = SharedRules::from(Arc::new(config.rules.clone()));
    let error = filters_of(&config.intake, &rules).err()?;
    Some(Finding::fail("topics", format!("rollcall serve would end at once: {error:#}")))
}

/// Returns whether an instance of Rollcall serves its pages at `address`.
async fn is_served(address: SocketAddr) -> bool {
    let page = tokio::time::timeout(TIMEOUT, health::ask(reachable(address), "/readyz")).await;
    page.is_ok_and(|page| page.is_ok_and(|page| page.contains("\"instance\"")))
}

/// The finding that the running instance has another configuration than the file.
async fn running_configuration(config: &Config) -> Option<Finding> {
    let differ = running::instances_that_differ(config).await.filter(|differ| !differ.is_empty())?;
    let text = format!(
        "running with other kinds, routes, receivers or timers than this file has: {}; reload (SIGHUP, or POST /-/reload) or \
         restart them",
        differ.join(", ")
    );
    Some(Finding::warn("running instance", text))
}

/// Warns of routes that are muted for as far ahead as their times are evaluated.
fn never_active(path: &str, route: &Route, now: Timestamp) -> Vec<Finding> {
    let is_muted = |at: Timestamp| route.times.muted_by(at).is_some();
    let until = route.times.muted_until(now);
    let mut found = Vec::new();
    if let Some(until) = until.filter(|until| is_muted(now) && is_muted(*until)) {
        let text = format!(
            "{path} is muted until after {until}, and notifies no receiver until then; check its mute_times and \
             active_times"
        );
        found.push(Finding::warn("routes", text));
    }
    let below = route.routes.iter().enumerate();
    found.extend(below.flat_map(|(at, below)| never_active(&format!("{path}.routes[{at}]"), below, now)));
    found
}

/// The findings about client ids. The in-process broker protects its own ids, so it has none.
async fn ids(config: &Config) -> Vec<Finding> {
    let found = join_all(elsewhere(config).map(ids::examine)).await;
    found.into_iter().flatten().collect()
}

/// The brokers that this instance connects to.
fn elsewhere(config: &Config) -> impl Iterator<Item = &intake::Config> {
    let count = config.intake.len() - usize::from(config.broker.is_some());
    config.intake[..count].iter().filter(move |one| is_used(config, one))
}

fn is_used(config: &Config, one: &intake::Config) -> bool {
    config.brokers.is_empty() || config.brokers.contains(&one.broker)
}

async fn broker(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_within_used = config.intake.last().is_some_and(|within| is_used(config, within));
    if let Some(within) = config.broker.as_ref().filter(|_| is_within_used) {
        let is_in_use = |why: &anyhow::Error| {
            let found = why.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
            found.is_some_and(|error| error.kind() == ErrorKind::AddrInUse)
        };
        let found = match Listener::bind(within, Arc::new(Telemetry::new(&Clock::system()))).await {
            Ok(_) => Finding::ok("broker", "the address is free, and its files are valid"),
            Err(why) if is_in_use(&why) && is_served(config.http.listen).await => {
                Finding::warn("broker", format!("{why:#}; this is expected while rollcall serve runs"))
            }
            Err(why) => Finding::fail("broker", format!("rollcall serve would end at once: {why:#}")),
        };
        findings.push(found);
    }
    findings.extend(join_all(elsewhere(config).map(mqtt)).await.into_iter().flatten());
    findings
}

async fn mqtt(config: &intake::Config) -> Vec<Finding> {
    let name = &["mqtt", config.broker.as_str()].join(" ");
    let name = name.trim_end();
    match with_timeout(intake::probe(config)).await {
        Ok(topics) if topics.is_empty() => vec![Finding::ok(
            name,
            format!("{} accepts the connection and the subscriptions, and each topic is heard", config.url),
        )],
        Ok(topics) => topics.iter().map(|topic| unheard(name, topic)).collect(),
        Err(why) if why.contains("; check ") => vec![Finding::fail(name, why)],
        Err(why) => vec![Finding::fail(name, format!("{why}; check mqtt.url and that the broker runs"))],
    }
}

fn unheard(name: &str, topic: &intake::TopicProblem) -> Finding {
    match topic {
        intake::TopicProblem::Unheard(why) => Finding::fail(name, why),
        intake::TopicProblem::Unknown(why) => Finding::warn(name, why),
    }
}

async fn receivers(config: &alerting::AlertingConfig) -> Vec<Finding> {
    let probes = config.receivers.iter().map(|receiver| async move {
        let name = format!("receiver {}", receiver.name);
        match with_timeout(alerting::probe(receiver)).await {
            Ok(()) => Finding::ok(
                &name,
                format!("can be reached; `rollcall send-test --receiver {}` sends it a test", receiver.name),
            ),
            Err(why) => {
                let advice = match receiver.channel {
                    alerting::ChannelConfig::Exec(_) => "check receiver.command",
                    _ => "check that it runs, and its options in [[receiver]]",
                };
                Finding::fail(&name, format!("{why}; {advice}"))
            }
        }
    });
    join_all(probes).await
}

async fn with_timeout<T, E: fmt::Display>(probe: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, probe).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
    }
}

//! `rollcall route`: shows the tree of routes, and which of them a unit takes.

use std::fmt::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::remote::RemoteArguments;
use super::times::moment;
use super::{ConfigFile, logging, shown, wrong};
use crate::alerting;
use crate::clock::{Clock, Timestamp};
use crate::config::Span;
use crate::presence::{
    Cause, KindRules, Labels, OfflineRecord, Recoveries, Unit, is_label_name, is_label_value,
};
use crate::routing::{Inhibition, Matcher, MuteReason, Route, RouteTimes, Routes, TriedRoute};

#[derive(Debug, Args)]
pub(super) struct RouteArguments {
    #[command(subcommand)]
    command: RouteCommand,
}

#[derive(Debug, Subcommand)]
enum RouteCommand {
    /// Show the tree of routes.
    Show(ConfigFile),
    /// Show which routes the silence of a unit takes, why, and whether they are muted. Without --now it reads the
    /// configuration alone.
    #[command(after_help = "Example: rollcall route test detector/pump-7 --label site=north")]
    Test(Test),
}

#[derive(Debug, Args)]
struct Test {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The unit; it need not exist, except with --now.
    #[arg(value_name = "KIND/UNIT", value_parser = unit)]
    unit: Unit,
    /// A label of the unit; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// The unit was registered and never heard.
    #[arg(long)]
    never_seen: bool,
    /// The unit is silent for unusually long, and not offline: only routes with the matcher unusual="true" are told.
    #[arg(long, conflicts_with_all = ["never_seen", "now"])]
    unusual: bool,
    /// The moment of the silence, such as 2026-11-23T18:00:00+01:00, instead of now.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    at: Option<Timestamp>,
    /// Ask the running instance for the labels of the unit, which receivers were notified of its newest silence, and
    /// why others were not.
    #[arg(long, conflicts_with = "at")]
    now: bool,
}

pub(super) fn unit(text: &str) -> Result<Unit, String> {
    // The log and the metrics write `kind:unit`.
    let parts = text.split_once('/').or_else(|| text.split_once(':'));
    let (kind, id) = parts.ok_or("write KIND/UNIT, such as detector/pump-7")?;
    format!("{kind}:{id}").parse().map_err(|error| format!("{error}"))
}

pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as site=north")?;
    match (is_label_name(name), is_label_value(value)) {
        (true, true) => Ok((name.to_owned(), value.to_owned())),
        (false, _) => Err(format!("{name:?} is not a name of a label")),
        _ => Err("a value has 1 to 128 bytes and no control characters".to_owned()),
    }
}

pub(super) async fn run(arguments: RouteArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let text = match arguments.command {
        RouteCommand::Show(file) => tree(&file.load()?.alerting.route),
        RouteCommand::Test(test) => {
            let config = test.remote.config()?;
            let kind = &test.unit.kind;
            let Some(rules) = config.rules.get(kind) else {
                return Err(wrong(format!("there is no kind {kind} in the configuration; see [[kind]]")));
            };
            let known = if test.now { test.known().await? } else { Value::Null };
            let (routes, record) = (Routes::new(config.alerting.route), test.record(rules, &known));
            let text = explained(&routes, &record, test.at);
            let text = text + &inhibited(&config.alerting.inhibition, &record);
            text + known["notified"].as_str().unwrap_or_default()
        }
    };
    println!("{}", shown(&text));
    Ok(ExitCode::SUCCESS)
}

impl Test {
    /// What the running instance knows of the unit: its labels, and which receivers were notified.
    async fn known(&self) -> anyhow::Result<Value> {
        let Unit { kind, id } = &self.unit;
        let path = ["api", "v1", "units", kind.as_str(), id.as_str(), "timeline"];
        self.remote.open()?.get(&path, &[], "notified").await
    }

    /// The silence of a unit without settings of its own. `known`: the answer of the instance, or null.
    fn record(&self, rules: &KindRules, known: &Value) -> OfflineRecord {
        let mut labels: Labels = serde_json::from_value(known["labels"].clone()).unwrap_or_default();
        labels.extend(self.labels.iter().cloned());
        let (cause, first) = match (self.never_seen, self.unusual) {
            (true, _) => (Cause::NeverSeen, rules.first_timeout),
            (_, true) => (Cause::Unusual, None),
            _ => (Cause::Silence, None),
        };
        let allowed = first.unwrap_or(rules.policy.timeout).saturating_add(rules.policy.grace);
        let at = self.at.unwrap_or_else(|| Clock::system().now());
        OfflineRecord { labels, cause, ..OfflineRecord::open(self.unit.clone(), at - allowed, at, at) }
    }
}

/// The routes, one line each.
fn tree(root: &Route) -> String {
    let mut text = format!("route: {}\n", described(root));
    branches(root, "", &mut text);
    text
}

fn branches(route: &Route, indent: &str, text: &mut String) {
    for (at, below) in route.routes.iter().enumerate() {
        let is_last = at + 1 == route.routes.len();
        let (corner, line) = if is_last { ("└── ", "    ") } else { ("├── ", "│   ") };
        let _ = writeln!(text, "{indent}{corner}{}: {}", condition(below), described(below));
        branches(below, &format!("{indent}{line}"), text);
    }
}

fn condition(route: &Route) -> String {
    let matchers: Vec<String> = route.matchers.iter().map(ToString::to_string).collect();
    let matchers = if matchers.is_empty() { "everything".to_owned() } else { matchers.join(", ") };
    if route.continues { format!("{matchers} (continue)") } else { matchers }
}

fn described(route: &Route) -> String {
    let receivers =
        if route.receivers.is_empty() { "no receiver".to_owned() } else { route.receivers.join(", ") };
    let group_by = match route.group_by.is_empty() {
        true => "one group".to_owned(),
        false => format!("by {}", route.group_by.join(", ")),
    };
    let (wait, interval) = (Span(route.pace.wait), Span(route.pace.interval));
    let mut text = format!("{receivers}; {group_by}; group_wait {wait}, group_interval {interval}");
    if !route.pace.lasts.is_zero() {
        let _ = write!(text, ", for {}", Span(route.pace.lasts));
    }
    match route.pace.recoveries {
        Recoveries::None => text += ", no recoveries",
        Recoveries::After(wait) if !wait.is_zero() => {
            let _ = write!(text, ", recoveries for {}", Span(wait));
        }
        Recoveries::After(_) => {}
    }
    if let Some(repeat) = route.again.repeat {
        let _ = write!(text, ", repeat_interval {}", Span(repeat));
    }
    for step in &route.again.escalate {
        let _ = write!(text, ", after {} also {}", Span(step.after), step.receivers.join(", "));
    }
    for (what, times) in [("muted in", &route.times.mute), ("active in", &route.times.active)] {
        if !times.is_empty() {
            let names: Vec<&str> = times.iter().map(|time| time.name.as_str()).collect();
            let _ = write!(text, ", {what} {}", names.join(", "));
        }
    }
    text
}

/// The sentence about the mute of a route at the moment `when`, and its end; `None` if no time mutes the route.
fn muted(times: &RouteTimes, at: Timestamp, when: &str) -> Option<String> {
    if times.is_empty() {
        return None;
    }
    let (Some(reason), Some(until)) = (times.muted_by(at), times.muted_until(at)) else {
        return Some(format!("not muted {when}"));
    };
    let why = match reason {
        MuteReason::In(name) => format!("within {name}"),
        MuteReason::OutsideActive => "outside of its active times".to_owned(),
    };
    // The search for the end of a mute has a limit.
    let after = if times.muted_by(until).is_some() { "after " } else { "" };
    Some(format!("muted {when}, {why}, until {after}{until}"))
}

/// The routes that a silence takes, and each comparison on the way. `at`: the moment of the silence, unless it is now.
fn explained(routes: &Routes, record: &OfflineRecord, at: Option<Timestamp>) -> String {
    let when = at.map_or_else(|| "now".to_owned(), |at| format!("at {at}"));
    let labels: Vec<String> = record.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    let labels = if labels.is_empty() { "no labels".to_owned() } else { labels.join(", ") };
    let mut text = format!("{}/{}, {labels}\n", record.kind, record.unit);
    let (taken, steps) = routes.explain(record);
    for TriedRoute { path, route, refused_by } in steps {
        let _ = match refused_by {
            Some(matcher) => {
                let (name, value) = (matcher.name(), matcher.label(record));
                writeln!(text, "  {path} does not match: {matcher}, and {name} is {value:?}")
            }
            None => writeln!(text, "  {path} matches: {}", condition(route)),
        };
    }
    if taken.is_empty() {
        text += "it takes no route: none has the matcher unusual=\"true\", so nobody is told before the unit is offline\n";
    }
    for one in taken {
        let group = alerting::group_in(one, record).key;
        let _ = writeln!(text, "it takes {}: {}\n  group: {group}", one.path, described(one.route));
        if let Some(muted) = muted(&one.route.times, record.detected_at, &when) {
            let _ = writeln!(text, "  {muted}");
        }
    }
    text
}

/// The rules of inhibition of which a silence is a target or a source.
fn inhibited(inhibition: &Inhibition, record: &OfflineRecord) -> String {
    let mut text = String::new();
    let shown =
        |matchers: &[Matcher]| matchers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    for (at, rule) in inhibition.rules.iter().enumerate() {
        let same = rule.shared(record).into_iter().zip(&rule.equal);
        let same: Vec<String> = same.map(|(value, name)| format!("{name}={value:?}")).collect();
        let same = if same.is_empty() { String::new() } else { format!(" and {}", same.join(", ")) };
        let (is_source, is_target) = (rule.is_source(record), rule.is_target(record));
        if is_target {
            let but = if is_source { ", unless that unit is a target, too" } else { "" };
            let source = shown(&rule.source);
            let _ = writeln!(text, "inhibit[{at}] holds it while a unit with {source}{same} is offline{but}");
            let allowed = Span(inhibition.held_after(record));
            let _ = writeln!(
                text,
                "  and then for {allowed}, the silence that it is allowed; the configuration does not say which units are offline"
            );
        }
        if is_source {
            let target = shown(&rule.target);
            let _ = writeln!(text, "inhibit[{at}]: while it is offline it holds units with {target}{same}");
        }
    }
    text
}

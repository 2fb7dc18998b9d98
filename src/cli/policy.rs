//! `rollcall policy try`: what another timeout, or another configuration, would have recorded and sent of the silences
//! that history has. It reads the database, and changes nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use super::history::prepared;
use super::table::{PrintedTable, has_colours};
use super::times::span;
use super::{ConfigFile, logging, shown_json, wrong};
use crate::clock::{Clock, Timestamp, shown_span};
use crate::config::{self, Config};
use crate::history::{RecordedSilences, recorded, written_until};
use crate::presence::{Interval, Kind, OfflineRecord, Policy, is_timeout};
use crate::routing::Routes;
use crate::routing::trial::{TrialMessage, TrialRules};

/// The most differences that are shown.
const MAX_DIFFERENCES: usize = 10;

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
    /// Another configuration to try, with its timeouts, routes and mute times.
    #[arg(long, value_name = "FILE")]
    new: Option<PathBuf>,
    /// How far back, such as 30d.
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "30d")]
    since: Duration,
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
    let TryArguments { file, kind, timeout, grace, new, since, group_by, json } = arguments;
    let now = file.load()?;
    let tried = new.as_deref().map(|path| config::load(Some(path))).transpose()?;
    let tried = tried.as_ref().unwrap_or(&now);
    let was = policy_of(&now, &kind)?;
    let would = policy_of(tried, &kind)?;
    let would = Policy { timeout: timeout.unwrap_or(would.timeout), grace: grace.unwrap_or(would.grace) };
    if !is_timeout(would.timeout) {
        return Err(wrong(format!("a timeout of {} is out of bounds", shown_span(would.timeout))));
    }
    let (_, database) = prepared(&file).await?;
    let (written, now_at) = (written_until(&database).await?, Clock::system().now());
    let until = written.unwrap_or(now_at).min(now_at);
    let range = Interval { from: until - since, to: until };
    let mut read = recorded(&database, &kind, range).await?;
    // Nothing is written in the first minute.
    read.losses.extend(written.is_none().then_some(range));
    let routes = [Routes::new(now.alerting.route.clone()), Routes::new(tried.alerting.route.clone())];
    let rules =
        |policy, routes| TrialRules { policy, routes, settle: now.hearing.settle, ledger: &read.ledger };
    let trial =
        PolicyTrial::of(&read, rules(was, &routes[0]), rules(would, &routes[1]), range, group_by.as_deref());
    if json {
        println!("{}", shown_json(&serde_json::to_string_pretty(&trial.as_json(&kind, range))?));
    } else {
        print!("{}", trial.in_words(&kind, range));
    }
    Ok(ExitCode::SUCCESS)
}

fn policy_of(config: &Config, kind: &Kind) -> anyhow::Result<Policy> {
    let rules = config.rules.get(kind);
    Ok(rules.with_context(|| format!("there is no kind {kind} in the configuration"))?.policy)
}

/// A policy beside the one of now.
struct PolicyTrial {
    policies: [Policy; 2],
    counts: [TrialCounts; 2],
    /// The silences of each value of a label, as recorded and as tried.
    groups: BTreeMap<String, [usize; 2]>,
    /// Silences that something else decided: they are the same in both.
    by_others: usize,
    differences: Vec<TrialDifference>,
    losses: Vec<Interval>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct TrialCounts {
    silences: usize,
    units: usize,
    /// Messages to each receiver about silences.
    messages: BTreeMap<String, usize>,
}

/// A silence of which receivers would have known earlier, later or not at all.
#[derive(Clone, Debug, Serialize)]
struct TrialDifference {
    unit: String,
    last_seen: Timestamp,
    back_at: Option<Timestamp>,
    /// The first message about it; `null`: there was none.
    told_at: Option<Timestamp>,
    would_be_told_at: Option<Timestamp>,
    seconds: f64,
}

impl PolicyTrial {
    fn of(
        read: &RecordedSilences,
        was: TrialRules<'_>,
        would: TrialRules<'_>,
        range: Interval,
        group_by: Option<&str>,
    ) -> PolicyTrial {
        let silences = &read.silences;
        let has_decided: Vec<bool> = silences.iter().map(|one| was.has_decided(one)).collect();
        let before: Vec<(usize, OfflineRecord)> = silences.iter().cloned().enumerate().collect();
        let after = before.iter().filter_map(|(place, record)| match has_decided[*place] {
            true => Some((*place, would.tried(record, range.to)?)),
            false => Some((*place, record.clone())),
        });
        let after: Vec<(usize, OfflineRecord)> = after.collect();
        let messages = [was.messages(&before), would.messages(&after)];
        let mut groups: BTreeMap<String, [usize; 2]> = BTreeMap::new();
        if let Some(label) = group_by {
            for (side, all) in [&before, &after].into_iter().enumerate() {
                for (_, record) in all {
                    let value = record.labels.get(label).cloned().unwrap_or_default();
                    groups.entry(value).or_default()[side] += 1;
                }
            }
        }
        PolicyTrial {
            policies: [was.policy, would.policy],
            counts: [TrialCounts::of(&before, &messages[0]), TrialCounts::of(&after, &messages[1])],
            groups,
            by_others: has_decided.iter().filter(|decided| !**decided).count(),
            differences: differences(silences, &messages, range.to),
            losses: read.losses.clone(),
        }
    }

    /// What history cannot answer.
    fn notes(&self) -> Vec<String> {
        let [was, would] = self.policies;
        let mut notes = Vec::new();
        if would.allowed() < was.allowed() {
            notes.push(format!(
                "silences of {} to {} are not on record: how many more would have been recorded is not known",
                shown_span(would.allowed()),
                shown_span(was.allowed())
            ));
        }
        if self.by_others > 0 {
            notes.push(format!(
                "{} silences were decided by something else than this timeout, such as a timeout of their own, a pause or \
                 an announcement, and are left as they were",
                self.by_others
            ));
        }
        notes.push(
            "alert silences, inhibition, the mass-offline breaker, flapping, reminders and messages of returns are not tried"
                .to_owned(),
        );
        let lost = self.losses.iter();
        notes.extend(lost.map(|time| format!("records may be missing from {} until {}", time.from, time.to)));
        notes
    }

    fn as_json(&self, kind: &Kind, range: Interval) -> serde_json::Value {
        let side = |at: usize| {
            let Policy { timeout, grace } = self.policies[at];
            let seconds = [timeout, grace].map(|span| span.as_secs_f64());
            json!({ "timeout_seconds": seconds[0], "grace_seconds": seconds[1], "counts": self.counts[at] })
        };
        json!({
            "kind": kind,
            "from": range.from,
            "until": range.to,
            "was": side(0),
            "would": side(1),
            "groups": self.groups,
            "differences": self.differences,
            "notes": self.notes(),
        })
    }

    fn in_words(&self, kind: &Kind, range: Interval) -> String {
        let [was, would] = self
            .policies
            .map(|policy| format!("{} + {}", shown_span(policy.timeout), shown_span(policy.grace)));
        let mut counts = PrintedTable::new(&["what", "as it was", "as tried"]);
        let mut row =
            |what: &str, was: String, would: String| counts.rows.push(vec![what.to_owned(), was, would]);
        row("timeout + grace", was, would);
        let [was, would] = &self.counts;
        row("silences recorded", was.silences.to_string(), would.silences.to_string());
        row("units among them", was.units.to_string(), would.units.to_string());
        let receivers: std::collections::BTreeSet<&String> =
            was.messages.keys().chain(would.messages.keys()).collect();
        for receiver in receivers {
            let of =
                |side: &TrialCounts| side.messages.get(receiver).copied().unwrap_or_default().to_string();
            row(&format!("messages to {receiver}"), of(was), of(would));
        }
        for (value, [was, would]) in &self.groups {
            row(&format!("silences of {value}"), was.to_string(), would.to_string());
        }
        let mut differences =
            PrintedTable::new(&["unit", "last seen", "back", "told", "would be told", "difference"]);
        let moment = |at: Option<Timestamp>| at.map_or("never".to_owned(), |at| at.to_string());
        for one in &self.differences {
            let back = one.back_at.map_or("-".to_owned(), |at| at.to_string());
            let times = [one.last_seen.to_string(), back, moment(one.told_at), moment(one.would_be_told_at)];
            let span = shown_span(Duration::from_secs_f64(one.seconds));
            differences.rows.push([one.unit.clone()].into_iter().chain(times).chain([span]).collect());
        }
        let head = format!("silences of {kind} that were detected from {} until {}", range.from, range.to);
        let mut parts = vec![head, counts.to_text(has_colours())];
        if !differences.rows.is_empty() {
            parts.push(differences.to_text(has_colours()));
        }
        parts.push(self.notes().join("\n"));
        parts.join("\n\n").replace("\n\n\n", "\n\n") + "\n"
    }
}

impl TrialCounts {
    fn of(silences: &[(usize, OfflineRecord)], messages: &[TrialMessage]) -> TrialCounts {
        let units: std::collections::BTreeSet<&crate::presence::UnitId> =
            silences.iter().map(|(_, record)| &record.unit).collect();
        let mut counts =
            TrialCounts { silences: silences.len(), units: units.len(), ..TrialCounts::default() };
        for receiver in messages.iter().flat_map(|one| &one.receivers) {
            *counts.messages.entry(receiver.clone()).or_default() += 1;
        }
        counts
    }
}

/// The silences whose first messages differ most. A message that was never sent counts as one at the end of the silence.
fn differences(
    silences: &[OfflineRecord],
    messages: &[Vec<TrialMessage>; 2],
    now: Timestamp,
) -> Vec<TrialDifference> {
    let first = |messages: &[TrialMessage]| {
        let mut first: Vec<Option<Timestamp>> = vec![None; silences.len()];
        for (message, place) in
            messages.iter().flat_map(|one| one.silences.iter().map(move |place| (one, *place)))
        {
            first[place].get_or_insert(message.at);
        }
        first
    };
    let (was, would) = (first(&messages[0]), first(&messages[1]));
    let mut all: Vec<TrialDifference> = Vec::new();
    for ((record, told_at), would_be_told_at) in silences.iter().zip(was).zip(would) {
        if told_at == would_be_told_at {
            continue;
        }
        let end = record.back_at.unwrap_or(now);
        let [one, other] = [told_at, would_be_told_at].map(|at| at.unwrap_or(end));
        let seconds = one.max(other).since(one.min(other)).as_secs_f64();
        let (unit, last_seen, back_at) =
            (format!("{}/{}", record.kind, record.unit), record.last_seen, record.back_at);
        all.push(TrialDifference { unit, last_seen, back_at, told_at, would_be_told_at, seconds });
    }
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    all.truncate(MAX_DIFFERENCES);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{Closing, Ledger, Pace};
    use crate::routing::Route;

    #[test]
    fn a_longer_timeout_spares_messages_and_the_largest_differences_come_first() {
        let at = |minutes: u64| Timestamp::from_millis(1_700_000_000_000) + Duration::from_secs(minutes * 60);
        let silence = |unit: &str, back: Option<u64>, timeout: u64| OfflineRecord {
            labels: [("site".to_owned(), if unit == "c" { "south" } else { "north" }.to_owned())].into(),
            back_at: back.map(at),
            closed_by: back.map(|_| Closing::Return),
            ..OfflineRecord::open(format!("gate:{unit}").parse().unwrap(), at(0), at(timeout), at(timeout))
        };
        // Back before 20 minutes; back later; still offline; and one with a timeout of its own.
        let silences = vec![
            silence("a", Some(15), 10),
            silence("b", Some(60), 10),
            silence("c", None, 10),
            silence("d", Some(15), 5),
        ];
        let read = RecordedSilences { silences, ledger: Ledger::default(), losses: Vec::new() };
        let pace = Pace::new(Duration::ZERO, Duration::ZERO);
        let (receivers, group_by) = (vec!["mail".to_owned()], vec!["unit".to_owned()]);
        let routes = Routes::new(Route { receivers, group_by, pace, ..Route::default() });
        let rules = |minutes: u64| TrialRules {
            policy: Policy { timeout: Duration::from_secs(minutes * 60), grace: Duration::ZERO },
            routes: &routes,
            settle: Duration::ZERO,
            ledger: &read.ledger,
        };
        let range = Interval { from: at(0), to: at(100) };
        let longer = PolicyTrial::of(&read, rules(10), rules(20), range, Some("site"));
        let [was, would] = &longer.counts;
        assert_eq!(
            (was.silences, would.silences, was.messages["mail"], would.messages["mail"]),
            (4, 3, 4, 3)
        );
        assert_eq!(
            longer.groups,
            BTreeMap::from([("north".to_owned(), [3, 2]), ("south".to_owned(), [1, 1])])
        );
        let shown: Vec<(&str, f64, bool)> = longer
            .differences
            .iter()
            .map(|one| (one.unit.as_str(), one.seconds, one.would_be_told_at.is_some()))
            .collect();
        assert_eq!(shown, [("gate/b", 600.0, true), ("gate/c", 600.0, true), ("gate/a", 300.0, false)]);
        assert!(
            longer.notes()[0].starts_with("1 silences were decided by something else"),
            "{:?}",
            longer.notes()
        );
        let shorter = PolicyTrial::of(&read, rules(10), rules(5), range, None);
        assert_eq!(shorter.counts[1].silences, 4);
        assert!(
            shorter.notes()[0].starts_with("silences of 5m to 10m are not on record"),
            "{:?}",
            shorter.notes()
        );
        let text = longer.in_words(&"gate".parse().unwrap(), range);
        assert!(text.contains("messages to mail"), "{text}");
        let written = longer.as_json(&"gate".parse().unwrap(), range);
        assert_eq!(written["would"]["counts"]["messages"]["mail"], 3, "{written}");
    }
}

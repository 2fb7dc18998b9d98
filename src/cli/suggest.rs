//! `rollcall suggest`: the timeout that the rhythms of units suggest, for each kind and class of cadence, beside the
//! effect of the current timeout.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::logging;
use super::output::{OutputArguments, text};
use super::remote::{RemoteArguments, given};
use super::table::PrintedTable;
use crate::clock::shown_span;

#[derive(Debug, Args)]
pub(super) struct SuggestArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Only this kind.
    #[arg(long)]
    kind: Option<String>,
}

pub(super) async fn run(arguments: SuggestArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let SuggestArguments { remote, output, kind } = arguments;
    let remote = remote.open()?;
    let query = given(vec![("kind", kind)]);
    output
        .repeat(async || {
            let answer = remote.get(&["api", "v1", "suggest"], &query, "kinds").await?;
            output.print(&answer, || rows(&answer))?;
            remarks(&answer).iter().for_each(|remark| output.say(remark));
            for name in answer["incomplete"].as_array().into_iter().flatten() {
                eprintln!("not all units of {} are known: it does not answer, or is being read", text(name));
            }
            Ok(())
        })
        .await?;
    Ok(ExitCode::SUCCESS)
}

fn kinds(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["kinds"].as_array().into_iter().flatten()
}

fn classes(kind: &Value) -> impl Iterator<Item = &Value> {
    kind["classes"].as_array().into_iter().flatten()
}

/// A row for each class of cadence of each kind.
fn rows(answer: &Value) -> PrintedTable {
    let heads = [
        "kind",
        "units",
        "usual",
        "longest",
        "timeout",
        "false_alarms",
        "detected_after",
        "suggested",
        "then_false_alarms",
        "then_detected_after",
    ];
    let row = |kind: &Value, class: &Value| {
        let mut row = vec![text(&kind["kind"]), text(&class["units"])];
        row.extend([span(&class["usual_seconds"]), span(&class["longest_seconds"])]);
        row.extend(forecast(&class["present"]));
        row.extend(forecast(&class["suggested"]));
        row
    };
    let rows = kinds(answer).flat_map(|kind| classes(kind).map(move |class| row(kind, class)));
    PrintedTable { rows: rows.collect(), ..PrintedTable::new(&heads) }
}

/// A timeout, its false alarms in thirty days, and how long it takes to detect a dead unit.
fn forecast(forecast: &Value) -> [String; 3] {
    let alarms = forecast["false_alarms"].as_f64();
    let alarms = alarms.map(|alarms| match alarms {
        0.0..0.01 => "0".to_owned(),
        0.01..10.0 => format!("{alarms:.2}"),
        _ => format!("{alarms:.0}"),
    });
    [span(&forecast["timeout_seconds"]), alarms.unwrap_or_default(), span(&forecast["detection_seconds"])]
}

fn span(seconds: &Value) -> String {
    let span = seconds.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds.round()).ok());
    span.map(shown_span).unwrap_or_default()
}

/// Remarks on some kinds that an operator has to know.
fn remarks(answer: &Value) -> Vec<String> {
    let mut remarks =
        vec!["False alarms are units that would be marked offline in 30 days though they live.".to_owned()];
    for kind in kinds(answer) {
        let (name, learning) = (text(&kind["kind"]), text(&kind["learning"]));
        let rhythms: Vec<String> = classes(kind)
            .map(|class| format!("{} every {}", text(&class["units"]), span(&class["usual_seconds"])))
            .collect();
        if rhythms.len() > 1 {
            remarks.push(format!(
                "{name}: units are heard in {} rhythms ({}): give each a kind of its own, or let devices declare \
                 their timeouts.",
                rhythms.len(),
                rhythms.join(", ")
            ));
        }
        if kind["learning"] != 0 {
            remarks.push(format!("{name}: units that have not shown a rhythm yet: {learning}."));
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_class_of_cadence_has_a_row_and_a_kind_with_two_is_named() {
        let class = |units: u64, usual: f64| {
            let of = |timeout: f64, alarms: f64| json!({"timeout_seconds": timeout, "false_alarms": alarms, "detection_seconds": timeout - usual / 2.0});
            json!({
                "units": units, "usual_seconds": usual, "longest_seconds": 2.0 * usual,
                "present": of(172_800.0, 0.0), "suggested": of(3.0 * usual, 1.234),
            })
        };
        let answer = json!({"kinds": [
            {"kind": "gate", "learning": 3, "classes": [class(90, 10.0), class(10, 3600.0)]},
            {"kind": "pump", "learning": 0, "classes": []},
        ]});
        let gate = |rest: [&'static str; 9]| [&["gate"][..], &rest[..]].concat();
        assert_eq!(
            rows(&answer).rows,
            [
                gate(["90", "10s", "20s", "2d", "0", "1d 23h", "30s", "1.23", "25s"]),
                gate(["10", "1h", "2h", "2d", "0", "1d 23h", "3h", "1.23", "2h 30m"]),
            ]
        );
        assert_eq!(
            remarks(&answer)[1..],
            [
                "gate: units are heard in 2 rhythms (90 every 10s, 10 every 1h): give each a kind of its own, or let \
                 devices declare their timeouts.",
                "gate: units that have not shown a rhythm yet: 3.",
            ]
        );
    }
}

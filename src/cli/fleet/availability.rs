//! `rollcall availability`: how much of the time units were online.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::cli::logging;
use crate::cli::output::{OutputArguments, text};
use crate::cli::remote::{RemoteArguments, given};
use crate::cli::route::unit;
use crate::cli::table::PrintedTable;
use crate::cli::times::{in_order, moment};
use crate::clock::{Timestamp, shown_span};
use crate::config::Span;
use crate::presence::Unit;

#[derive(Debug, Args)]
pub(in crate::cli) struct AvailabilityArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Only this unit; without it, --kind and --label, the whole fleet.
    #[arg(value_name = "KIND/UNIT", value_parser = unit)]
    unit: Option<Unit>,
    /// Only units of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only units with this label, such as site=north.
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// The beginning; by default 30 days ago.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// The end; by default now.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

pub(in crate::cli) async fn availability(arguments: AvailabilityArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let AvailabilityArguments { remote, output, unit, kind, label, from, until } = arguments;
    in_order(from, until)?;
    let remote = remote.open()?;
    let query = given(vec![
        ("unit", unit.map(|unit| format!("{}/{}", unit.kind, unit.id))),
        ("kind", kind),
        ("label", label),
        ("from", from.map(|moment| moment.to_string())),
        ("until", until.map(|moment| moment.to_string())),
    ]);
    output
        .repeat(async || {
            let answer = remote.get(&["api", "v1", "availability"], &query, "online_share").await?;
            output.print_for_people(&answer, || in_words(&answer))
        })
        .await?;
    Ok(ExitCode::SUCCESS)
}

/// The answer with shares in percent and times in spans.
fn in_words(answer: &Value) -> PrintedTable {
    let rows = [
        ("from", text(&answer["from"])),
        ("until", text(&answer["until"])),
        ("units", text(&answer["units"])),
        (
            "online",
            answer["online_share"]
                .as_f64()
                .map_or("unknown: it was blind or paused, or no unit was known".to_owned(), percent),
        ),
        ("outages", text(&answer["outages"])),
        ("offline", seconds(&answer["offline_seconds"])),
        ("longest outage", seconds(&answer["longest_outage_seconds"])),
        ("mean time between outages", seconds(&answer["mean_seconds_between_outages"])),
        ("mean time to return", seconds(&answer["mean_seconds_to_return"])),
        ("blind", seconds(&answer["blind_seconds"])),
        ("paused", seconds(&answer["paused_seconds"])),
        ("unknown", seconds(&answer["unknown_seconds"])),
        ("from history until", text(&answer["history_until"])),
        (
            "complete",
            if answer["is_complete"] == true {
                "yes"
            } else {
                "no, outages or the units of an instance are missing"
            }
            .to_owned(),
        ),
    ];
    let rows = rows.map(|(what, value)| vec![what.to_owned(), value]).into();
    PrintedTable { rows, ..PrintedTable::new(&["what", "value"]) }
}

/// A share in percent, rounded down: only a unit without an outage has 100 %.
fn percent(share: f64) -> String {
    let digits = format!("{:.5}", (share * 1e7).floor() / 1e5);
    format!("{} %", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// A number of seconds as a span; nothing for `null`.
fn seconds(value: &Value) -> String {
    let span = value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let rounded = |span: Duration| match span.as_secs() {
        // Milliseconds say something about short spans only.
        0..60 => Span(span).to_string(),
        _ => shown_span(span),
    };
    span.map(rounded).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shares_are_percent_and_times_are_spans() {
        for (share, shown) in [
            (1.0, "100 %"),
            (0.999_999_993, "99.99999 %"),
            (0.875, "87.5 %"),
            (0.999_999_374_614_197_5, "99.99993 %"),
            (0.0, "0 %"),
        ] {
            assert_eq!(percent(share), shown);
        }
        for (value, shown) in [
            (json!(2_591_998.379), "29d 23h"),
            (json!(1.25), "1s 250ms"),
            (json!(0.0), "0s"),
            (json!(null), ""),
        ] {
            assert_eq!(seconds(&value), shown);
        }
    }
}

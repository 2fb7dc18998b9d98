//! `rollcall report`: how much of a month, or of any days, units were online, from history.

use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::civil::Date;
use serde_json::json;

use super::history::prepared;
use super::table::{PrintedTable, has_colours};
use super::{ConfigFile, logging, shown_json, wrong};
use crate::clock::Clock;
use crate::history::report;
use crate::reports::{self, AvailabilityReport, CalendarPeriod, Days, GroupBy, ReportRange};

#[derive(Debug, Args)]
pub(super) struct ReportArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// A month, such as 2026-10; by default the last one that is over.
    #[arg(long, value_name = "YEAR-MONTH", value_parser = month, conflicts_with_all = ["from", "until"])]
    month: Option<Date>,
    /// The first day (UTC), such as 2026-10-01.
    #[arg(long, value_name = "DAY", requires = "until")]
    from: Option<Date>,
    /// The day after the last one (UTC).
    #[arg(long, value_name = "DAY", requires = "from")]
    until: Option<Date>,
    /// A row for each kind, unit, or value of this label; by default for each kind.
    #[arg(long, value_name = "kind|unit|LABEL", default_value = "kind", value_parser = NonEmptyStringValueParser::new())]
    group_by: String,
    /// The share of time online that was agreed, in percent, such as 99.5.
    #[arg(long, value_name = "PERCENT", value_parser = target)]
    target: Option<f64>,
    /// Print JSON.
    #[arg(long, conflicts_with_all = ["csv", "html"])]
    json: bool,
    /// Print CSV.
    #[arg(long, conflicts_with = "html")]
    csv: bool,
    /// Print a page for a browser or a printer.
    #[arg(long)]
    html: bool,
}

pub(super) async fn run(arguments: ReportArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let ReportArguments { file, month, from, until, group_by, target, json, csv, html } = arguments;
    let days = match from.zip(until) {
        Some((from, until)) if from < until => Days { from, until },
        Some(_) => return Err(wrong("--from is before --until")),
        None => month.map_or_else(last_month, Days::of_month),
    };
    let (_, database) = prepared(&file).await?;
    let made = report(&database, days, &GroupBy::from(group_by)).await?;
    let made = made.with_target(target.map(|percent| percent / 100.0));
    match () {
        () if json => println!("{}", shown_json(&serde_json::to_string_pretty(&as_json(&made))?)),
        () if csv => print!("{}", reports::csv(&made)),
        () if html => println!("{}", reports::page(&made).into_string()),
        () => {
            for line in made.notes() {
                println!("{line}");
            }
            print!("\n{}", table(&made).to_text(has_colours()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn month(text: &str) -> Result<Date, String> {
    format!("{text}-01").parse().map_err(|_| format!("{text:?} is no month; write 2026-10"))
}

fn target(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent: &f64| (0.0..100.0).contains(percent));
    percent.ok_or_else(|| format!("{text:?} is no target; write a percentage below 100, such as 99.5"))
}

fn last_month() -> Days {
    ReportRange::Last(CalendarPeriod::Month).before(Clock::system().now())
}

fn table(report: &AvailabilityReport) -> PrintedTable {
    PrintedTable { rows: reports::cells(report).collect(), ..PrintedTable::new(&reports::heads(report)) }
}

fn as_json(report: &AvailabilityReport) -> serde_json::Value {
    let rows: Vec<_> = report.rows.iter().map(|row| report.line(row)).collect();
    json!({
        "from": report.asked.from,
        "until": report.asked.until,
        "summed_from": report.from,
        "summed_until": report.until,
        "group_by": report.group,
        "target": report.target,
        "total": report.line(&report.total),
        "rows": rows,
        "nameless_seconds": report.nameless.as_secs_f64(),
        "units_since": report.units_since,
        "losses": report.losses,
    })
}

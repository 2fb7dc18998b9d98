//! `rollcall report`: how much of a month, or of any days, units were online, from history.

use std::process::ExitCode;

use clap::Args;
use jiff::civil::Date;
use serde_json::json;

use super::history::prepared;
use super::table::{PrintedTable, has_colours};
use super::{ConfigFile, logging, shown_json, wrong};
use crate::clock::{Clock, shown_span};
use crate::history::{AvailabilityReport, Days, GroupBy, ReportRow, report};

mod page;

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
    #[arg(long, value_name = "kind|unit|LABEL", default_value = "kind")]
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
        None => of_month(month.unwrap_or_else(last_month)),
    };
    let (_, database) = prepared(&file).await?;
    let made = report(&database, days, &GroupBy::named(&group_by)).await?;
    let target = target.map(|percent| percent / 100.0);
    match () {
        () if json => {
            println!("{}", shown_json(&serde_json::to_string_pretty(&as_json(&made, &group_by, target))?))
        }
        () if csv => print!("{}", table(&made, &group_by, target).to_csv(true)),
        () if html => println!("{}", page::page(&made, &group_by, target).into_string()),
        () => {
            for line in notes(&made) {
                println!("{line}");
            }
            print!("\n{}", table(&made, &group_by, target).to_text(has_colours()));
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

fn last_month() -> Date {
    let now = jiff::Timestamp::from_millisecond(Clock::system().now().as_millis()).unwrap_or_default();
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    today.first_of_month().saturating_sub(jiff::Span::new().months(1))
}

fn of_month(first: Date) -> Days {
    Days { from: first, until: first.saturating_add(jiff::Span::new().months(1)) }
}

/// What a reader of the numbers has to know.
fn notes(report: &AvailabilityReport) -> Vec<String> {
    let Days { from, until } = report.asked;
    let last = |end: Date| end.yesterday().unwrap_or(end);
    let mut notes = vec![format!("{from} to {} (UTC)", last(until))];
    if report.until <= from {
        notes.push("none of these days is summed yet".to_owned());
    } else if report.until < until {
        notes.push(format!("days after {} are not summed yet", last(report.until)));
    }
    let spent = &report.total.spent;
    notes.push(format!(
        "left out, of all units together: {} blind, {} paused, {} before units were known",
        shown_span(spent.blind),
        shown_span(spent.paused),
        shown_span(spent.unknown)
    ));
    let lost = report.losses.iter();
    notes.extend(lost.map(|time| format!("records may be missing from {} until {}", time.from, time.to)));
    notes
}

fn table(report: &AvailabilityReport, group_by: &str, target: Option<f64>) -> PrintedTable {
    let mut heads =
        vec!["group", "units", "online %", "outages", "offline s", "longest s", "between s", "return s"];
    heads.extend(["blind s", "paused s", "unknown s"]);
    heads.extend(target.map(|_| "budget spent %"));
    let mut table = PrintedTable::new(&heads);
    table.rows = report.rows.iter().map(|row| cells(row, &row.name, target)).collect();
    if group_by != "fleet" {
        table.rows.push(cells(&report.total, "all", target));
    }
    table
}

fn cells(row: &ReportRow, name: &str, target: Option<f64>) -> Vec<String> {
    let line = row.line(target);
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.3}", 100.0 * share));
    let seconds = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.0}"));
    let mut cells = vec![name.to_owned(), line.units.to_string(), percent(line.online_share)];
    cells.push(line.outages.to_string());
    cells.extend([
        seconds(Some(line.offline_seconds)),
        seconds(Some(line.longest_outage_seconds)),
        seconds(line.mean_seconds_between_outages),
        seconds(line.mean_seconds_to_return),
        seconds(Some(line.blind_seconds)),
        seconds(Some(line.paused_seconds)),
        seconds(Some(line.unknown_seconds)),
    ]);
    cells.extend(
        target.map(|_| line.budget_spent.map_or("-".to_owned(), |spent| format!("{:.1}", 100.0 * spent))),
    );
    cells
}

fn as_json(report: &AvailabilityReport, group_by: &str, target: Option<f64>) -> serde_json::Value {
    let rows: Vec<_> = report.rows.iter().map(|row| row.line(target)).collect();
    json!({
        "from": report.asked.from,
        "until": report.asked.until,
        "summed_until": report.until,
        "group_by": group_by,
        "target": target,
        "total": report.total.line(target),
        "rows": rows,
        "losses": report.losses,
    })
}

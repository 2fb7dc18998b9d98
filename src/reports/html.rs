//! A report in HTML: its notes and its table, and a standalone page that prints on paper.

use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{AvailabilityReport, GroupBy, ReportRow, percent};
use crate::clock::shown_span;
use crate::presence::Shown;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;\
color:#1a1a1a;background:#fff}table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;text-align:right;\
border-bottom:1px solid #ccc}th:first-child,td:first-child{text-align:left}tfoot td{font-weight:bold}\
.met{color:#0b6b2e}.missed{color:#a3150c}thead{display:table-header-group}\
@media print{body{margin:0;max-width:none;font-size:11px}tr{break-inside:avoid}}";

/// A standalone page that loads nothing.
pub fn page(report: &AvailabilityReport) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (report.title()) }
                style { (PreEscaped(STYLE)) }
            }
            body { h1 { "Availability" } (body(report)) }
        }
    }
}

/// The notes and the table.
pub fn body(report: &AvailabilityReport) -> Markup {
    html! {
        @for line in report.notes() { p { (line) } }
        table.report {
            thead { tr {
                th scope="col" { (Shown(&report.group.to_string())) }
                @for head in ["units", "online", "outages", "offline", "longest", "between outages", "to return"] {
                    th scope="col" { (head) }
                }
                @if report.target.is_some() { th scope="col" { "budget spent" } }
            } }
            tbody { @for row in &report.rows { (line(report, row, &row.name)) } }
            @if report.group != GroupBy::Fleet { tfoot { (line(report, &report.total, "all")) } }
        }
    }
}

fn line(report: &AvailabilityReport, row: &ReportRow, name: &str) -> Markup {
    let spent = &row.spent;
    let class = report.is_met(row).map(|is_met| if is_met { "met" } else { "missed" });
    let span = |span: Option<Duration>| {
        span.map_or("–".to_owned(), |span| shown_span(Duration::from_secs(span.as_secs())))
    };
    let budget = report.line(row).budget_spent;
    html! { tr {
        td { @if name.is_empty() { "all" } @else { (Shown(name)) } }
        td { (row.units) }
        td class=[class] { (spent.online_share().map_or("–".to_owned(), |share| format!("{} %", percent(share)))) }
        td { (spent.outages) }
        @for time in [Some(spent.offline), Some(spent.longest), spent.mean_between_outages(), spent.mean_to_return()] {
            td { (span(time)) }
        }
        @if report.target.is_some() {
            td class=[class] { (budget.map_or("–".to_owned(), |spent| format!("{:.1} %", 100.0 * spent))) }
        }
    } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_which_rows_miss_the_target_and_names_are_text() {
        let mut report = crate::reports::tests::october();
        report.rows[0].name = "<north>".to_owned();
        let page = page(&report).into_string();
        for part in [
            "<td>&lt;north&gt;</td><td>10</td><td class=\"missed\">98.883 %</td>",
            "<td>south</td><td>20</td><td class=\"met\">99.998 %</td>",
            "<tfoot><tr><td>all</td>",
            "1 of 2 miss the target",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("http") && !page.contains("<script"), "it loads nothing");
    }
}

//! A report as a page: it stands alone, and prints on paper.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::notes;
use crate::clock::shown_span;
use crate::history::{AvailabilityReport, ReportRow};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;\
color:#1a1a1a;background:#fff}table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;text-align:right;\
border-bottom:1px solid #ccc}th:first-child,td:first-child{text-align:left}tfoot td{font-weight:bold}\
.met{color:#0b6b2e}.missed{color:#a3150c}thead{display:table-header-group}\
@media print{body{margin:0;max-width:none;font-size:11px}tr{break-inside:avoid}}";

pub(super) fn page(report: &AvailabilityReport, group_by: &str, target: Option<f64>) -> Markup {
    let lines = notes(report);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "Availability " (lines[0]) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Availability" }
                @for line in &lines { p { (line) } }
                @if let Some(target) = target {
                    p { "Target: " (format!("{:.3}", 100.0 * target)) " % online" }
                }
                table {
                    thead { tr {
                        th scope="col" { (group_by) }
                        @for head in ["units", "online", "outages", "offline", "longest", "between outages", "to return"] {
                            th scope="col" { (head) }
                        }
                        @if target.is_some() { th scope="col" { "budget spent" } }
                    } }
                    tbody { @for row in &report.rows { (line(row, &row.name, target)) } }
                    tfoot { (line(&report.total, "all", target)) }
                }
            }
        }
    }
}

fn line(row: &ReportRow, name: &str, target: Option<f64>) -> Markup {
    let spent = &row.spent;
    let share = spent.online_share();
    let class = share.zip(target).map_or("", |(share, target)| if share < target { "missed" } else { "met" });
    let span = |span: Option<std::time::Duration>| {
        span.map_or("–".to_owned(), |span| shown_span(std::time::Duration::from_secs(span.as_secs())))
    };
    html! { tr {
        td { (name) }
        td { (row.units) }
        td class=(class) { (share.map_or("–".to_owned(), |share| format!("{:.3} %", 100.0 * share))) }
        td { (spent.outages) }
        @for time in [Some(spent.offline), Some(spent.longest), spent.mean_between_outages(), spent.mean_to_return()] {
            td { (span(time)) }
        }
        @if let Some(target) = target {
            td class=(class) {
                (spent.budget_spent(target).map_or("–".to_owned(), |spent| format!("{:.1} %", 100.0 * spent)))
            }
        }
    } }
}

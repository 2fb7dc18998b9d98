//! The page of the instances: the partitions, the units and the problems of each.

use axum::extract::State;
use axum::{Extension, response::IntoResponse};
use maud::{Markup, html};

use super::layout::{Tab, advice};
use super::{FailedPage, WebState, format};
use crate::http::changes::Caller;
use crate::http::summary::HearingSummary;
use crate::presence::Kind;
use crate::telemetry::Severity;

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, FailedPage> {
    let summary = web.summaries.recent().await?;
    let content = &summary.content;
    let live = html! {
        h1 { "Instances" }
        div.table {
            table {
                caption.hidden { "Instances" }
                thead { tr {
                    th scope="col" { "Name" } th.numbers scope="col" { "Partitions" }
                    th.numbers scope="col" { "Units" } th scope="col" { "State" }
                } }
                tbody {
                    @for one in &content.instances {
                        tr {
                            th scope="row" { (format::text(&one.name)) }
                            td.numbers { (one.partitions) }
                            td.numbers { (format::number(one.units)) }
                            td { @if content.incomplete.contains(&one.name) { "reads its units" } @else { "works" } }
                        }
                    }
                    @for name in content.incomplete.iter().filter(|name| content.instances.iter().all(|one| one.name != **name)) {
                        tr { th scope="row" { (format::text(name)) } td {} td {} td { "does not answer" } }
                    }
                }
            }
        }
        (brokers(&content.hearing))
        h2 { "Problems" }
        @if content.problems.is_empty() { p.empty { "No problems." } }
        ul {
            @for problem in &content.problems {
                li {
                    @if problem.severity == Severity::Serious { strong { "serious" } } @else { "warning" }
                    " · " (problem.instance) ": " (advice(&problem.text))
                    @if !problem.consequences.is_empty() {
                        ul { @for one in &problem.consequences { li { (advice(&one.text)) } } }
                    }
                }
            }
        }
    };
    Ok(web.page("Instances", Some(Tab::Instances), &summary, &caller, live, html! {}))
}

/// The hearing of each broker, if there are several.
fn brokers(hearing: &HearingSummary) -> Markup {
    html! {
        @if !hearing.brokers.is_empty() {
            h2 { "Brokers" }
            div.table {
                table {
                    caption.hidden { "Brokers" }
                    thead { tr {
                        th scope="col" { "Name" } th scope="col" { "Kinds" } th scope="col" { "Hearing" }
                    } }
                    tbody {
                        @for one in &hearing.brokers {
                            tr {
                                th scope="row" { (one.broker) }
                                td { (one.kinds.iter().map(Kind::as_str).collect::<Vec<_>>().join(", ")) }
                                td { @match (one.blind || hearing.blind, one.blind_since) {
                                    (false, _) => "is heard",
                                    (true, None) => strong { "not heard" },
                                    (true, Some(since)) => { strong { "not heard" } " since " time datetime=(since) { (since) } }
                                } }
                            }
                        }
                    }
                }
            }
        }
    }
}

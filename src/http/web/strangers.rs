//! The page of strangers: ids that send heartbeats but are no units, with a button that admits one.

use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect};
use axum::{Extension, Router, routing};
use maud::{Markup, html};
use serde::Deserialize;

use super::forms::{FormBody, fields};
use super::layout::Tab;
use super::{FailedPage, Web, WebState, format};
use crate::clock::Timestamp;
use crate::fleet::strangers::StrangerReason;
use crate::fleet::{Subject, UnitChange};
use crate::http::Role;
use crate::http::changes::Caller;
use crate::http::http_error::{HttpError, query};
use crate::http::strangers::{ShownStranger, StrangersQuery, written};
use crate::http::units::parse;
use crate::presence::UnitSettings;
use crate::telemetry::UnknownTopics;

/// The form of the page.
pub(super) fn forms() -> Router<Web> {
    Router::new().route("/strangers/admit", routing::post(admit))
}

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let wanted: StrangersQuery = query(&uri)?;
    let (summary, page) = tokio::join!(web.summaries.recent(), web.strangers.page(&wanted));
    let (summary, page, now) = (summary?, page?, web.clock.now());
    let may_admit = caller.require(Role::Admin).is_ok();
    let live = html! {
        h1 { "Strangers" }
        p.quiet { "Ids that were heard since Rollcall started and are no units of the fleet. They are not watched." }
        @if page.unlisted_heartbeats > 0 {
            p.banner role="status" {
                strong { "The list is full. " }
                (format::number(page.unlisted_heartbeats)) " heartbeats came from other ids: a device may be inventing \
                     them."
            }
        }
        @if !page.incomplete.is_empty() {
            p.banner role="status" { "Those of " (page.incomplete.join(", ")) " are missing here." }
        }
        @if page.strangers.is_empty() {
            p.empty { "No strangers: every id that was heard is a unit of the fleet." }
        } @else {
            div.table #strangers {
                table {
                    caption.hidden { "Strangers" }
                    thead { tr {
                        th scope="col" { "Unit" } th.wide scope="col" { "Kind" } th scope="col" { "Why" }
                        th.numbers scope="col" { "Last heard" } th.numbers.wide scope="col" { "First heard" } th.numbers.wide scope="col" { "Heartbeats" }
                        th scope="col" { span.hidden { "Change" } }
                    } }
                    tbody { @for one in &page.strangers { (web.stranger_row(one, now, may_admit)) } }
                }
            }
            nav.pages aria-label="Further strangers" {
                @if let Some(next) = &page.next {
                    @let query = written(&StrangersQuery { cursor: Some(next.clone()), ..wanted.clone() });
                    a rel="next" href={ (web.base) "/strangers?" (query) } { "Next page" }
                }
            }
        }
    };
    let live = html! { (live) (topics(&page.unknown_topics, now)) };
    Ok(web.page("Strangers", Some(Tab::Strangers), &summary, &caller, live, html! {}))
}

/// The topics that belong to no kind; empty if every message was on a topic of a kind.
fn topics(unknown: &UnknownTopics, now: Timestamp) -> Markup {
    html! {
        @if !unknown.topics.is_empty() {
            h2 { "Topics that no kind has" }
            p.quiet { "Messages on them prove nothing of any unit. Add them to the topics of a kind, or let devices use the \
                       topics that are configured." }
            @if unknown.unlisted_messages > 0 {
                p.quiet { (format::number(unknown.unlisted_messages)) " messages came on other topics." }
            }
            div.table {
                table {
                    caption.hidden { "Topics that no kind has" }
                    thead { tr {
                        th scope="col" { "Topic" } th.numbers scope="col" { "Last heard" } th.numbers.wide scope="col" { "First heard" }
                        th.numbers scope="col" { "Messages" }
                    } }
                    tbody { @for one in &unknown.topics { tr {
                        th scope="row" { (format::text(&one.topic)) }
                        td.numbers { (format::ago(Some(one.last_heard), now)) }
                        td.numbers.wide { (format::ago(Some(one.first_heard), now)) }
                        td.numbers { (format::number(one.messages)) }
                    } } }
                }
            }
        }
    }
}

impl Web {
    fn stranger_row(&self, one: &ShownStranger, now: Timestamp, may_admit: bool) -> Markup {
        let why = match one.heard.reason {
            StrangerReason::Unregistered => "not registered, and the registry of its kind is closed",
            StrangerReason::Removed => "removed by an operator",
            StrangerReason::TooManyUnits => "its kind has max_units units",
        };
        let id = one.unit.as_str();
        html! {
            tr data-key={ (one.kind) "/" (id) } {
                th scope="row" { (format::name(id)) span.phone { (one.kind) ", " (format::number(one.heard.heartbeats)) " heard" } }
                td.wide { (format::name(one.kind.as_str())) }
                td { (why) }
                td.numbers { (format::ago(Some(one.heard.last_heard), now)) }
                td.numbers.wide { (format::ago(Some(one.heard.first_heard), now)) }
                td.numbers.wide { (format::number(one.heard.heartbeats)) }
                td {
                    @if may_admit {
                        form method="post" action={ (self.base) "/strangers/admit" } {
                            input type="hidden" name="kind" value=(one.kind);
                            input type="hidden" name="unit" value=(id);
                            button type="submit" { "Admit" span.hidden { " the unit " (format::text(id)) } }
                        }
                    }
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct AdmissionForm {
    kind: String,
    unit: String,
}

async fn admit(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    body: FormBody<AdmissionForm>,
) -> Result<Redirect, FailedPage> {
    caller.require(Role::Admin)?;
    let AdmissionForm { kind, unit } = fields(body)?;
    let unit = parse(&kind, &unit).map_err(|error| HttpError::bad_request(error.to_string()))?;
    let (by, wanted) = (caller.by(None), UnitChange::Register(UnitSettings::default()));
    web.operators.change(Subject::Unit(unit), wanted, (&by, "heard as a stranger")).await?;
    Ok(Redirect::to(&format!("{}/strangers", web.base)))
}

//! The page of timers: waiting timers, soonest first, and the state of the others; and a button that cancels a timer.

use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect};
use axum::{Extension, Router, routing};
use maud::{Markup, html};
use serde::Deserialize;
use url::form_urlencoded;

use super::forms::{FormBody, fields};
use super::layout::{Tab, may_change};
use super::{FailedPage, Web, WebState, format};
use crate::clock::Timestamp;
use crate::http::changes::Caller;
use crate::http::http_error::{HttpError, query};
use crate::http::timers::{ShownTimer, TimersQuery};
use crate::presence::{TimerError, TimerId, TimerState};

const STATES: [(&str, &str); 6] = [
    ("waiting", "Waiting"),
    ("fired", "Fired"),
    ("delivered", "Delivered"),
    ("dead", "Given up"),
    ("cancelled", "Cancelled"),
    ("", "All"),
];

/// The forms of the page.
pub(super) fn forms() -> Router<Web> {
    Router::new().route("/timers/cancel", routing::post(cancel))
}

#[derive(Deserialize)]
struct TimersPageQuery {
    state: Option<String>,
    r#type: Option<String>,
    cursor: Option<String>,
}

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let TimersPageQuery { state, r#type, cursor } = query(&uri)?;
    let state = state.unwrap_or_else(|| "waiting".to_owned());
    let of = r#type.filter(|of| !of.is_empty());
    let wanted_state = (!state.is_empty()).then(|| state.clone());
    let wanted = TimersQuery { r#type: of.clone(), state: wanted_state, cursor, ..TimersQuery::default() };
    let (summary, page) = tokio::join!(web.summaries.recent(), web.timers.page(&wanted));
    let (summary, page) = (summary?, page?);
    let (now, may_change) = (web.clock.now(), may_change(&caller));
    let of = of.as_deref();
    let live = html! {
        h1 { "Timers" }
        p.quiet { "A timer fires at its moment unless a program cancels it." }
        div.filters {
            @for (one, name) in STATES {
                a href=(web.timers_link(one, of, None)) aria-current=[(one == state).then_some("true")] { (name) } " "
            }
            @if let Some(of) = of {
                a.chip href=(web.timers_link(&state, None, None)) title="Remove this filter" {
                    "type: " b { (format::text(of)) } span aria-hidden="true" { " ✕" } span.hidden { " remove" }
                }
            }
        }
        @if page.timers.is_empty() {
            p.empty {
                @if page.next.is_some() { "No timers on this page." } @else { "No timers." }
                @if state == "waiting" && of.is_none() && page.next.is_none() {
                    " Programs register timers of the types in [[timer]] with PUT /api/v1/timers/…, or over MQTT."
                }
            }
        } @else {
            div.table {
                table {
                    caption.hidden { "Timers" }
                    thead { tr {
                        th scope="col" { "State" } th scope="col" { "Timer" } th.wide scope="col" { "Type" }
                        th.numbers scope="col" { "Due" } th.numbers.wide scope="col" { "Fired" } th scope="col" { span.hidden { "Change" } }
                    } }
                    tbody { @for timer in &page.timers { (web.timer_row(timer, &state, now, may_change)) } }
                }
            }
        }
        nav.pages aria-label="Further timers" {
            @if let Some(next) = &page.next {
                a rel="next" href=(web.timers_link(&state, of, Some(next))) { "Next page" }
            }
        }
    };
    Ok(web.page("Timers", Some(Tab::Timers), &summary, &caller, live, html! {}))
}

impl Web {
    fn timers_link(&self, state: &str, of: Option<&str>, cursor: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("state", state);
        query.extend_pairs(of.map(|of| ("type", of)));
        query.extend_pairs(cursor.map(|cursor| ("cursor", cursor)));
        format!("{}/timers?{}", self.base, query.finish())
    }

    fn timer_row(&self, timer: &ShownTimer, shown_state: &str, now: Timestamp, may_change: bool) -> Markup {
        let (sign, word) = match timer.state {
            TimerState::Waiting => ("◷", "waiting"),
            TimerState::Fired => ("▸", "fired"),
            TimerState::Delivered => ("●", "delivered"),
            TimerState::Dead => ("✕", "given up"),
            TimerState::Cancelled => ("○", "cancelled"),
        };
        let of = html! {
            @let name = timer.timer_type.as_str();
            a.short[format::is_short(name)] href=(self.timers_link(shown_state, Some(name), None)) { (name) }
        };
        html! {
            tr data-key=(timer.id.as_str()) {
                td { span.state { span aria-hidden="true" { (sign) } " " (word) } }
                th scope="row" { code { (format::text(timer.id.as_str())) } span.phone { (of) } }
                td.wide { (of) }
                td.numbers { (format::countdown(timer.due, now)) }
                td.numbers.wide { @if timer.fired_at.is_some() { (format::ago(timer.fired_at, now)) } }
                td {
                    @if may_change && timer.state == TimerState::Waiting {
                        form method="post" action={ (self.base) "/timers/cancel" } {
                            input type="hidden" name="id" value=(timer.id.as_str());
                            button type="submit" { "Cancel" span.hidden { " the timer " (format::text(timer.id.as_str())) } }
                        }
                    }
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct TimerForm {
    id: String,
}

/// Answers with the page even if the timer has fired meanwhile: the page shows its state.
async fn cancel(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    body: FormBody<TimerForm>,
) -> Result<Redirect, FailedPage> {
    let TimerForm { id } = fields(body)?;
    let id: TimerId = id.parse().map_err(|error: TimerError| HttpError::bad_request(error.to_string()))?;
    web.timers.cancel_by_hand(&id, &caller).await?;
    Ok(Redirect::to(&format!("{}/timers", web.base)))
}

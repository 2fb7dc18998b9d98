//! The page of alert silences: active, pending and expired ones, and a form for a new one.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect};
use axum::{Extension, Router, routing};
use maud::{Markup, html};
use serde::Deserialize;

use super::forms::{FormBody, fields, length_of, signature};
use super::layout::{Tab, may_change};
use super::{FailedPage, Web, WebState, format};
use crate::clock::Timestamp;
use crate::http::changes::Caller;
use crate::http::expressions;
use crate::http::http_error::{HttpError, query};
use crate::http::silences::{ShownSilence, SilencesQuery};
use crate::routing::SilenceId;
use crate::routing::alert_silence::{SilenceRequest, SilenceState};

const STATES: [(Option<SilenceState>, &str, &str); 4] = [
    (None, "", "All"),
    (Some(SilenceState::Active), "?state=active", "Active"),
    (Some(SilenceState::Pending), "?state=pending", "To come"),
    (Some(SilenceState::Expired), "?state=expired", "Over"),
];

/// The forms of the page.
pub(super) fn forms() -> Router<Web> {
    Router::new().route("/silences", routing::post(add)).route("/silences/{id}/expire", routing::post(expire))
}

/// The query of the page: `matchers` fills the form.
#[derive(Deserialize)]
struct SilencesPageQuery {
    #[serde(default)]
    matchers: String,
    state: Option<SilenceState>,
    cursor: Option<SilenceId>,
}

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let SilencesPageQuery { matchers, state, cursor } = query(&uri)?;
    let wanted = SilencesQuery { state, cursor, ..SilencesQuery::default() };
    let (summary, page) = tokio::join!(web.summaries.recent(), web.silences.page(&wanted));
    let (summary, page) = (summary?, page?);
    let (now, may_change) = (web.clock.now(), may_change(&caller));
    let live = html! {
        h1 { "Silences of alerts" }
        p.quiet { "Receivers are not notified of units that all matchers of an active silence match. Records are \
                   written anyway." }
        div.filters {
            @for (one, path, name) in STATES {
                a href={ (web.base) "/silences" (path) } aria-current=[(one == state).then_some("true")] { (name) } " "
            }
        }
        @if page.silences.is_empty() {
            p.empty {
                "No silences."
                @if state.is_none() { " Before planned work, silence the units that it concerns." }
            }
        } @else {
            div.table {
                table {
                    caption.hidden { "Silences of alerts" }
                    thead { tr {
                        th scope="col" { "State" } th scope="col" { "Matchers" } th.numbers.wide scope="col" { "Units" } th.numbers.wide scope="col" { "Begin" }
                        th.numbers scope="col" { "End" } th.wide scope="col" { "Why" } th scope="col" { span.hidden { "Change" } }
                    } }
                    tbody { @for silence in &page.silences { (web.silence_row(silence, now, may_change)) } }
                }
            }
            nav.pages aria-label="Further silences" {
                @if let Some(next) = &page.next {
                    @let and = state.map(|state| format!("&state={}", state.as_str())).unwrap_or_default();
                    a rel="next" href={ (web.base) "/silences?cursor=" (next) (and) } { "Next page" }
                }
            }
        }
    };
    let form = html! { @if may_change { (web.silence_form(&matchers)) } };
    Ok(web.page("Silences", Some(Tab::Silences), &summary, &caller, live, form))
}

impl Web {
    fn silence_row(&self, silence: &ShownSilence, now: Timestamp, may_change: bool) -> Markup {
        let (sign, word) = match silence.state {
            SilenceState::Active => ("‖", "active"),
            SilenceState::Pending => ("◷", "to come"),
            SilenceState::Expired => ("○", "over"),
        };
        html! {
            tr data-key=(silence.id) {
                td { span.state { span aria-hidden="true" { (sign) } " " (word) } }
                th scope="row" {
                    @for matcher in &silence.matchers { code { (format::text(matcher)) } " " }
                    span.phone { (format::text(&silence.comment)) @if !silence.comment.is_empty() { ", " } "by " (format::text(&silence.author)) }
                }
                td.numbers.wide { @match silence.units {
                    Some(0) => { "none: no unit has these labels" }
                    Some(units) => { (format::number(units)) }
                    None => { span.note { @if silence.state == SilenceState::Expired { "" } @else { "not counted yet" } } }
                } }
                td.numbers.wide { (format::countdown(silence.starts_at, now)) }
                td.numbers { (format::countdown(silence.ends_at, now)) }
                td.wide { (format::text(&silence.comment)) span.note { " by " (format::text(&silence.author)) } }
                td {
                    @if may_change && silence.state != SilenceState::Expired {
                        form method="post" action={ (self.base) "/silences/" (silence.id) "/expire" } {
                            button type="submit" { "End" span.hidden { " the silence " (silence.id) } }
                        }
                    }
                }
            }
        }
    }

    fn silence_form(&self, matchers: &str) -> Markup {
        html! {
            section.actions {
                form method="post" action={ (self.base) "/silences" } {
                    h2 { "New silence" }
                    label { "Matchers, with commas between them" input name="matchers" required maxlength="4096"
                        value=(matchers) placeholder="site=\"north\", kind=~\"gate.*\""; }
                    label { "For how many hours" input type="number" name="hours" min="0.1" max="8760" step="0.1" value="2" required; }
                    (signature(true))
                    button.main type="submit" { "Silence" }
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct SilenceForm {
    matchers: String,
    hours: f64,
    author: String,
    comment: String,
}

async fn add(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    body: FormBody<SilenceForm>,
) -> Result<Redirect, FailedPage> {
    let SilenceForm { matchers, hours, author, comment } = fields(body)?;
    let starts_at = web.clock.now();
    let length = length_of(hours).filter(|length| !length.is_zero());
    let length = length.ok_or_else(|| HttpError::bad_request("hours is a number of hours"))?;
    let ends_at = starts_at + length;
    let matchers = expressions::matchers(vec![matchers], "matchers").await?;
    let wanted = SilenceRequest { matchers, starts_at, ends_at, author, comment };
    web.silences.put(None, wanted, &caller).await?;
    Ok(Redirect::to(&format!("{}/silences", web.base)))
}

async fn expire(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    id: Result<Path<SilenceId>, PathRejection>,
) -> Result<Redirect, FailedPage> {
    let Path(id) = id.map_err(HttpError::from)?;
    web.silences.expire(id, &caller).await?;
    Ok(Redirect::to(&format!("{}/silences", web.base)))
}

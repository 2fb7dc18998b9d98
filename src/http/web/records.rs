//! The page of offline records, newest first.

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, response::IntoResponse};
use maud::{Markup, html};

use super::layout::Tab;
use super::{FailedPage, Web, WebState, format};
use crate::clock::Timestamp;
use crate::http::changes::Caller;
use crate::http::http_error::query;
use crate::http::records::RecordsQuery;
use crate::pages;
use crate::presence::OfflineRecord;

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let wanted: RecordsQuery = query(&uri)?;
    let (summary, page) = tokio::join!(web.summaries.recent(), web.records.page(&wanted));
    let (summary, page) = (summary?, page?);
    let now = web.clock.now();
    let live = html! {
        h1 { "Offline records" }
        div.filters {
            a href={ (web.base) "/records" } aria-current=[(!wanted.open).then_some("true")] { "All" } " "
            a href={ (web.base) "/records?open=true" } aria-current=[wanted.open.then_some("true")] { "Open" }
        }
        @if page.records.is_empty() {
            p.empty {
                @if wanted.open { "No open records: no unit is offline." }
                @else { "No records. A record is opened when a unit is silent past its deadline." }
            }
        } @else {
            div.table {
                table {
                    caption.hidden { "Offline records" }
                    thead { tr {
                        th.numbers scope="col" { "Detected" } th scope="col" { "Unit" } th.wide scope="col" { "Kind" }
                        th.numbers scope="col" { "Silent for" } th scope="col" { "Ended" } th.wide scope="col" { "Labels" }
                    } }
                    tbody { @for record in &page.records { (web.record_row(record, now)) } }
                }
            }
            nav.pages aria-label="Further records" {
                @if let Some(next) = &page.next {
                    a rel="next" href={ (web.base) "/records?open=" (wanted.open) "&cursor=" (next) } { "Next page" }
                }
            }
        }
    };
    Ok(web.page("Records", Some(Tab::Records), &summary, &caller, live, html! {}))
}

impl Web {
    fn record_row(&self, record: &OfflineRecord, now: Timestamp) -> Markup {
        let (kind, id) = (record.kind.as_str(), record.unit.as_str());
        let end = record.back_at.unwrap_or(now);
        let labels = format::labels(&record.labels);
        // The silence of an open record lasts.
        let lasts = record.back_at.is_none().then_some("");
        html! {
            tr data-key=(record.id) {
                td.numbers { (format::ago(Some(record.detected_at), now)) }
                th scope="row" {
                    a.short[format::is_short(id)] href={ (self.base) (pages::unit_of(record)) } { (format::text(id)) }
                    span.phone { (kind) " " (labels) }
                }
                td.wide { (format::name(kind)) }
                td.numbers {
                    time data-since=[lasts] datetime=(record.last_seen) title={ "last seen " (record.last_seen) } {
                        (format::span(end.since(record.last_seen)))
                    }
                }
                td {
                    @match record.closed_by {
                        Some(why) => { (format::ago(record.back_at, now)) span.note { " " (why.as_str().replace('_', " ")) } }
                        None => { "still " (format::state(crate::presence::State::Offline)) }
                    }
                }
                td.wide { (labels) }
            }
        }
    }
}

//! The page of incidents: the open records in their groups of notifications, the breaker, and the last blind intervals.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect};
use axum::routing::post;
use axum::{Extension, Router};
use maud::{Markup, html};
use serde::Deserialize;

use super::forms::{FormBody, fields, signature};
use super::layout::{Tab, may_change};
use super::{FailedPage, Web, WebState, format, key_of};
use crate::clock::Timestamp;
use crate::http::changes::Caller;
use crate::http::http_error::HttpError;
use crate::http::incidents::{OngoingGroup, OngoingIncident};
use crate::http::operators::check;
use crate::http::summary::{LabelSummary, SummaryContent};
use crate::http::unit_list::UnitsQuery;
use crate::pages;
use crate::presence::Trip;

/// The form of the page.
pub(super) fn forms() -> Router<Web> {
    Router::new().route("/incidents/release", post(release))
}

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, FailedPage> {
    let (summary, lasting) = tokio::join!(web.summaries.recent(), web.incidents.recent());
    let (summary, lasting) = (summary?, lasting?);
    let live = html! {
        h1 { "Incidents" }
        p.quiet { "Units that are offline now, in the groups in which receivers are notified of them and of their \
                   returns." }
        @if let Some(trip) = &lasting.trip { (breaker(trip, lasting.at)) }
        (web.groups(&lasting, &summary.content))
        (blind(&lasting))
    };
    let form = html! {
        @if lasting.trip.is_some() && may_change(&caller) {
            section.actions {
                form method="post" action={ (web.base) "/incidents/release" } {
                    h2 { "Release the breaker" }
                    p.quiet { "Receivers are notified of every unit that is still offline." }
                    (signature(false))
                    button.main type="submit" { "Release" }
                }
            }
        }
    };
    Ok(web.page("Incidents", Some(Tab::Incidents), &summary, &caller, live, form))
}

fn breaker(trip: &Trip, now: Timestamp) -> Markup {
    html! {
        section {
            h2 { "A large part of the fleet" }
            p {
                b { (format::number(trip.offline)) " of " (format::number(trip.units)) " units" }
                " fell silent since " (format::ago(Some(trip.since), now)) ". Notifications of single units are held \
                 until units return, and "
                (format::countdown(trip.until, now)) " at the latest."
            }
        }
    }
}

fn blind(lasting: &OngoingIncident) -> Markup {
    html! {
        section {
            h2 { "When Rollcall was blind" }
            @if lasting.blind.is_empty() { p.quiet { "No blind time on record." } } @else {
                p.quiet { "Blind time does not count as silence." }
                ol.events {
                    @for interval in &lasting.blind {
                        li {
                            span.when { (format::ago(Some(interval.from), lasting.at)) }
                            b { "blind" }
                            span { "for " (format::span(interval.length())) ", until " time datetime=(interval.to) { (interval.to) } }
                        }
                    }
                }
            }
        }
    }
}

impl Web {
    fn groups(&self, lasting: &OngoingIncident, content: &SummaryContent) -> Markup {
        html! {
            @if lasting.groups.is_empty() { p.empty { "No incidents: no unit is offline. Units that fall silent are here, in the groups in which receivers are notified \
                 of them." } } @else {
                div.table #incidents {
                    table {
                        caption.hidden { "Groups of units that are offline" }
                        thead { tr {
                            th scope="col" { "Group" } th.numbers scope="col" { "Offline" } th.numbers scope="col" { "Since" }
                            th.wide scope="col" { "First unit" } th.numbers.wide scope="col" { "Newest" } th.wide scope="col" { "Receivers" }
                        } }
                        tbody { @for group in &lasting.groups { (self.group_row(group, content, lasting)) } }
                    }
                }
            }
            @if lasting.more_groups > 0 { p.quiet { "and " (lasting.more_groups) " more groups" } }
            @if lasting.is_cut { p.quiet { "There are too many records for this page. It counts the newest ones; the \
                 page of the fleet counts all." } }
        }
    }

    fn group_row(&self, group: &OngoingGroup, content: &SummaryContent, lasting: &OngoingIncident) -> Markup {
        let (first, now) = (&group.first, lasting.at);
        let path = pages::unit_of(first);
        let offline = html! {
            @if lasting.is_cut { "at least " }
            b { (format::number(group.offline as u64)) }
            @if let Some(whole) = whole(group, content) { " of " (format::number(whole.states.total())) }
        };
        let labels = html! {
            @if group.labels.is_empty() { "all units" } @else { (format::labels(&group.labels)) }
        };
        let id = first.unit.as_str();
        html! {
            tr data-key=(key_of(&group.labels)) {
                th scope="row" {
                    @match link(group, counted(group, content)) {
                        Some(link) => a href={ (self.base) (link) } { (labels) },
                        None => (labels),
                    }
                    span.phone {
                        @if group.receivers.is_empty() { "no receiver" } @else { "to " (format::text(&group.receivers.join(", "))) }
                    }
                    @if group.acknowledged > 0 { span.note { " " (group.acknowledged) " acknowledged" } }
                    @if group.silenced > 0 { span.note { " " (group.silenced) " silenced" } }
                }
                td.numbers { (offline) }
                td.numbers { (format::ago(Some(first.deadline), now)) }
                td.wide { a.short[format::is_short(id)] href={ (self.base) (path) } { (format::text(id)) } }
                td.numbers.wide { (format::ago(Some(group.newest), now)) }
                td.wide { @if group.receivers.is_empty() { span.note { "none" } } @else { (format::text(&group.receivers.join(", "))) } }
            }
        }
    }
}

/// A link to the only unit of the group, or to the list of its units; `None` if the list cannot select by its labels.
fn link(group: &OngoingGroup, counted: Option<&LabelSummary>) -> Option<String> {
    if group.offline == 1 {
        return Some(pages::unit_of(&group.first));
    }
    let kind = group.labels.get("kind").cloned();
    let label = counted.map(|whole| format!("{}={}", whole.label, whole.value));
    let selected = usize::from(kind.is_some()) + usize::from(label.is_some());
    let wanted = UnitsQuery { state: Some("offline".to_owned()), kind, label, ..UnitsQuery::default() };
    (selected == group.labels.len()).then(|| format!("/?{}", wanted.to_url()))
}

/// The counts of the group's label value, if units are counted by that label.
fn counted<'a>(group: &OngoingGroup, content: &'a SummaryContent) -> Option<&'a LabelSummary> {
    content.labels.iter().find(|one| group.labels.get(&one.label) == Some(&one.value))
}

/// The counts of the label value, if the group has all units with that value.
fn whole<'a>(group: &OngoingGroup, content: &'a SummaryContent) -> Option<&'a LabelSummary> {
    counted(group, content).filter(|_| group.labels.len() == 1)
}

#[derive(Deserialize)]
struct ReleaseForm {
    author: String,
    #[serde(default)]
    comment: String,
}

async fn release(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    body: FormBody<ReleaseForm>,
) -> Result<Redirect, FailedPage> {
    let ReleaseForm { author, comment } = fields(body)?;
    check(&author, &comment)?;
    if !web.incidents.release(&caller.by(Some(&author)), &comment).await? {
        return Err(HttpError::not_found("the mass-offline breaker holds nothing").into());
    }
    Ok(Redirect::to(&format!("{}/incidents", web.base)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::summary::States;
    use crate::presence::OfflineRecord;

    #[test]
    fn a_group_links_to_its_units_and_to_no_others() {
        let at = Timestamp::ZERO;
        let first = OfflineRecord::open("pump:1".parse().unwrap(), at, at, at);
        // The labels of the group, whether units are counted by `site`, how many are offline, and the link.
        let cases = [
            (&[][..], true, 2, Some("/?state=offline")),
            (&[("kind", "pump")], true, 2, Some("/?kind=pump&state=offline")),
            (&[("site", "a")], true, 2, Some("/?label=site%3Da&state=offline")),
            (&[("kind", "pump"), ("site", "a")], true, 2, Some("/?kind=pump&label=site%3Da&state=offline")),
            (&[("site", "a")], false, 2, None),
            (&[("room", "7"), ("site", "a")], true, 2, None),
            (&[("unit", "1")], true, 2, None),
            (&[("unit", "1")], true, 1, Some("/units/pump/1")),
        ];
        for (labels, counts, offline, expected) in cases {
            let labels =
                labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let (receivers, first) = (Vec::new(), first.clone());
            let group =
                OngoingGroup { labels, receivers, offline, acknowledged: 0, silenced: 0, first, newest: at };
            let (label, value, states) = ("site".to_owned(), "a".to_owned(), States::default());
            let site = LabelSummary { label, value, states };
            let counted = Some(&site).filter(|_| counts && group.labels.contains_key("site"));
            let query = |link: String| {
                let mut parts: Vec<String> = link.split(['?', '&']).map(str::to_owned).collect();
                parts.sort();
                parts
            };
            let link = link(&group, counted).map(query);
            assert_eq!(link, expected.map(|link| query(link.to_owned())), "{:?}", group.labels);
        }
    }
}

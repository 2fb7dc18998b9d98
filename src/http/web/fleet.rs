//! The page of the fleet: how many units are in each state, where they are, and the units themselves; units that need
//! an operator come first.

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, response::IntoResponse};
use maud::{Markup, html};

use super::layout::Tab;
use super::{FailedPage, Web, WebState, format};
use crate::clock::Timestamp;
use crate::fleet::mirror::ListOrder;
use crate::http::changes::Caller;
use crate::http::http_error::query;
use crate::http::summary::{FleetSummary, LabelSummary};
use crate::http::unit_list::{ShownUnit, UnitPage, UnitsQuery};
use crate::pages;
use crate::presence;

/// The values of a label that are shown.
const BARS: usize = 10;

/// The columns of the table that it can be sorted by.
const SORTS: [(ListOrder, &str); 3] = [
    (ListOrder::State, "what needs attention"),
    (ListOrder::LastSeen, "heard longest ago"),
    (ListOrder::Unit, "kind and id"),
];

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let wanted: UnitsQuery = query(&uri)?;
    // A form sends its empty fields too.
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let wanted = UnitsQuery {
        state: given(&wanted.state),
        kind: given(&wanted.kind),
        label: given(&wanted.label),
        q: given(&wanted.q),
        contains: given(&wanted.contains),
        ..wanted
    };
    let (summary, units) = tokio::join!(web.summaries.recent(), web.lists.page(&wanted));
    let (summary, units) = (summary?, units?);
    let live = html! {
        h1.hidden { "Fleet" }
        (web.counts(&summary, &wanted))
        (web.switches())
        (web.kinds_and_labels(&summary, &wanted))
        (web.filters(summary.content.archived, &wanted))
        (web.table(&units, &wanted))
    };
    Ok(web.page("Fleet", Some(Tab::Fleet), &summary, &caller, live, html! {}))
}

impl Web {
    fn link(&self, wanted: &UnitsQuery) -> String {
        let query = wanted.to_url();
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}/{mark}{query}", self.base)
    }

    /// A count for each state, which selects its units.
    fn counts(&self, summary: &FleetSummary, wanted: &UnitsQuery) -> Markup {
        let content = &summary.content;
        let first = UnitsQuery { cursor: None, ..wanted.clone() };
        html! {
            nav.counts aria-label="Units by state" {
                a href=(self.link(&UnitsQuery { state: None, ..first.clone() }))
                    aria-current=[wanted.state.is_none().then_some("true")] {
                    b { (format::number(content.units)) } span { "units" }
                }
                @for state in presence::State::ALL {
                    @let name = state.as_str();
                    @let is_selected = wanted.state.as_deref() == Some(name);
                    a class={ (name) @if content.states.of(state) == 0 { " none" } } title=(format::meaning(state))
                        href=(self.link(&UnitsQuery { state: (!is_selected).then(|| name.to_owned()), ..first.clone() }))
                        aria-current=[is_selected.then_some("true")] {
                        b { (format::number(content.states.of(state))) } (format::state(state))
                    }
                }
            }
        }
    }

    /// Kinds, and the values of labels with most units that are offline.
    fn kinds_and_labels(&self, summary: &FleetSummary, wanted: &UnitsQuery) -> Markup {
        let content = &summary.content;
        let mut labels: Vec<&str> = content.labels.iter().map(|one| one.label.as_str()).collect();
        labels.dedup();
        let first = UnitsQuery { cursor: None, ..wanted.clone() };
        html! {
            div.groups {
                @if content.kinds.len() > 1 {
                    section {
                        h2 { "Kinds" }
                        div.bars {
                            @for kind in &content.kinds {
                                @let name = kind.kind.as_str();
                                @let query = UnitsQuery { kind: Some(name.to_owned()), ..first.clone() };
                                (bar(&self.link(&query), name, kind.states.offline, kind.states.total(), wanted.kind.as_deref() == Some(name)))
                            }
                        }
                    }
                }
                @for label in labels {
                    section {
                        h2 { (format::text(label)) }
                        @let values: Vec<&LabelSummary> = content.labels.iter().filter(|one| one.label == label).collect();
                        div.bars {
                            @for one in values.iter().take(BARS) {
                                @let pair = format!("{label}={}", one.value);
                                @let is_selected = wanted.label.as_ref() == Some(&pair);
                                @let query = UnitsQuery { label: Some(pair), ..first.clone() };
                                (bar(&self.link(&query), &one.value, one.states.offline, one.states.total(), is_selected))
                            }
                        }
                        @if values.len() > BARS { p.quiet { "and " (values.len() - BARS) " more" } }
                    }
                }
            }
        }
    }

    /// The filters that are set, each with a link that removes it, and the orders.
    /// `archived`: how many units are archived.
    fn filters(&self, archived: u64, wanted: &UnitsQuery) -> Markup {
        let first = UnitsQuery { cursor: None, ..wanted.clone() };
        let chips = [
            ("state", &wanted.state, UnitsQuery { state: None, ..first.clone() }),
            ("kind", &wanted.kind, UnitsQuery { kind: None, ..first.clone() }),
            ("label", &wanted.label, UnitsQuery { label: None, ..first.clone() }),
            ("id begins with", &wanted.q, UnitsQuery { q: None, ..first.clone() }),
            ("id contains", &wanted.contains, UnitsQuery { contains: None, ..first.clone() }),
        ];
        let order = wanted.sort.unwrap_or_default();
        html! {
            div.filters {
                @if wanted.archived == Some(true) {
                    a.chip href=(self.link(&UnitsQuery { archived: None, ..first.clone() })) title="Remove this filter" {
                        b { "archived" } span aria-hidden="true" { " ✕" } span.hidden { " remove" }
                    }
                } @else if archived > 0 {
                    a href=(self.link(&UnitsQuery { archived: Some(true), ..UnitsQuery::default() })) {
                        (format::number(archived)) " archived"
                    }
                }
                @for (name, value, without) in &chips {
                    @if let Some(value) = value {
                        a.chip href=(self.link(without)) title="Remove this filter" {
                            (name) ": " b { (format::text(value)) } span aria-hidden="true" { " ✕" }
                            span.hidden { " remove" }
                        }
                    }
                }
                span.sorts {
                    "Sort by "
                    @for (sort, name) in SORTS {
                        a href=(self.link(&UnitsQuery { sort: Some(sort), ..first.clone() }))
                            aria-current=[(sort == order).then_some("true")] { (name) }
                        " "
                    }
                }
            }
        }
    }

    fn table(&self, page: &UnitPage, wanted: &UnitsQuery) -> Markup {
        html! {
            @if page.units.is_empty() {
                p.empty {
                    @if *wanted == UnitsQuery::default() {
                        "No unit was heard yet. Units appear with their first heartbeat."
                    } @else {
                        "No unit matches. " a href={ (self.base) "/" } { "Show all units" }
                    }
                }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Units" {
                    table {
                        caption.hidden { "Units" }
                        thead { tr {
                            th scope="col" { "State" } th scope="col" { "Unit" } th.wide scope="col" { "Kind" }
                            th scope="col" { "Last seen" } th scope="col" { "Offline for" } th.wide scope="col" { "Labels" }
                        } }
                        tbody { @for unit in &page.units { (self.row(unit, page.at)) } }
                    }
                }
                nav.pages aria-label="Further units" {
                    @if wanted.cursor.is_some() {
                        a href=(self.link(&UnitsQuery { cursor: None, ..wanted.clone() })) { "First page" }
                    }
                    @if let Some(next) = &page.next {
                        a rel="next" href=(self.link(&UnitsQuery { cursor: Some(next.clone()), ..wanted.clone() })) { "Next page" }
                    }
                }
            }
        }
    }

    fn row(&self, unit: &ShownUnit, now: Timestamp) -> Markup {
        let ShownUnit { listed, details } = unit;
        let path = pages::unit(listed.kind.as_str(), listed.unit.as_str());
        html! {
            tr {
                td {
                    (format::state(listed.state))
                    @if let Some(taken) = &details.acknowledged {
                        span.note title={ (taken.author) ": " (taken.comment) } { " acknowledged" }
                    }
                }
                th scope="row" { a href={ (self.base) (path) } { (format::text(listed.unit.as_str())) } }
                td.wide { (listed.kind) }
                td { (format::ago(listed.last_seen, now)) }
                td {
                    @if let Some(since) = listed.offline_since {
                        time datetime=(since) title=(since) { (format::span(now.since(since))) }
                    }
                }
                td.wide {
                    @for (name, value) in details.labels.iter().flatten() {
                        span.label { (format::text(name)) "=" (format::text(value)) } " "
                    }
                }
            }
        }
    }
}

/// The share of units that are offline, as a bar with its numbers.
fn bar(link: &str, name: &str, offline: u64, units: u64, is_selected: bool) -> Markup {
    html! {
        a.bar href=(link) aria-current=[is_selected.then_some("true")] {
            span { (format::text(name)) }
            meter min="0" max=(units.max(1)) value=(offline) aria-hidden="true" {}
            span.numbers { b { (format::number(offline)) } " of " (format::number(units)) " offline" }
        }
    }
}

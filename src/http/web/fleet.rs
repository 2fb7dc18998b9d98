//! The page of the fleet: its state in words, how many units are in each state, the silent units with who was notified
//! of them, how it was over time, the places, and the other units.

use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, response::IntoResponse};
use maud::{Markup, html};
use tokio::time::timeout;
use url::form_urlencoded;

use super::chart;
use super::layout::Tab;
use super::sentence::FleetState;
use super::{FailedPage, Web, WebState, format};
use crate::clock::Timestamp;
use crate::fleet::mirror::ListOrder;
use crate::http::changes::Caller;
use crate::http::http_error::{HttpError, query};
use crate::http::notices::Notices;
use crate::http::summary::{FleetSummary, LabelSummary};
use crate::http::unit_list::{ShownUnit, UnitPage, UnitsQuery};
use crate::pages;
use crate::presence::{self, CountRange};
use crate::routing::told::Why;
use crate::routing::{Part, SilenceNotice};

/// The values of a label that are shown.
const BARS: usize = 10;

/// The most silent units before the chart: it stays on the first screen.
const SILENT: usize = 10;

/// How long the engine may take for the chart.
const CHART_TIMEOUT: Duration = Duration::from_secs(1);

/// The columns of the table that it can be sorted by.
const SORTS: [(ListOrder, &str); 3] = [
    (ListOrder::State, "what needs attention"),
    (ListOrder::LastSeen, "heard longest ago"),
    (ListOrder::Unit, "kind and id"),
];

/// In one piece: it reads the parts of the page at once, and puts them in order.
pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let (range, uri) = range_of(&uri)?;
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
    let (summary, units, counted, past) = tokio::join!(
        web.summaries.recent(),
        web.lists.page(&wanted),
        web.notices.counts(),
        // The rest of the page does not need the chart.
        timeout(CHART_TIMEOUT, web.past_counts.read(range, wanted.label.as_deref()))
    );
    let (summary, units, past) = (summary?, units?, past.ok().and_then(Result::ok));
    let silences = units.units.iter().filter_map(|unit| unit.details.silence.clone()).collect();
    let notices = web.notices.of(&wanted.to_url(), silences).await;
    let state = FleetState {
        base: &web.base,
        content: &summary.content,
        heard: web.roll.hearing().heard,
        now: web.clock.now(),
        notices: counted.as_deref().copied(),
    };
    let page = FleetPage { web: &web, range };
    let first = UnitsQuery { cursor: None, ..wanted.clone() };
    let has_units = summary.content.units + summary.content.archived > 0;
    let chart = past.filter(|_| has_units);
    let chart = chart.map(|past| chart::chart(&past, |range| FleetPage { range, ..page }.link(&first)));
    let over_time = html! {
        @if let Some(chart) = chart { (chart) }
        (page.kinds_and_labels(&summary, &wanted))
    };
    let is_whole = wanted == UnitsQuery::default();
    let is_silent = |unit: &&ShownUnit| unit.listed.offline_since.is_some();
    let silent = if is_whole { units.units.iter().take(SILENT).take_while(is_silent).count() } else { 0 };
    let live = html! {
        h1.hidden { "Fleet" }
        (state.markup())
        (page.unsent())
        @for note in &summary.content.notes { p.banner role="status" { (format::text(note)) } }
        (page.counts(&summary, &wanted))
        (web.switches())
        @if silent > 0 { (page.table(&units.units[..silent], units.at, &notices, ("silent", "Silent units"))) }
        @if is_whole { (over_time) }
        (page.filters(summary.content.archived, &wanted))
        @if units.units.is_empty() { (page.no_units(&wanted)) }
        @if silent < units.units.len() { (page.table(&units.units[silent..], units.at, &notices, ("units", "Units"))) }
        (page.further(&units, &wanted))
        @if !is_whole { (over_time) }
    };
    Ok(web.page("Fleet", Some(Tab::Fleet), &summary, &caller, live, html! {}))
}

/// The page, with the range of its chart.
#[derive(Clone, Copy)]
struct FleetPage<'a> {
    web: &'a Web,
    range: CountRange,
}

/// The range of the chart, and the rest of the query.
fn range_of(uri: &Uri) -> Result<(CountRange, Uri), HttpError> {
    let pairs: Vec<(String, String)> =
        form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let (ranges, rest): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(name, _)| name == "range");
    let range = match ranges.last() {
        Some((_, text)) => {
            CountRange::ALL.into_iter().find(|range| range.as_str() == text).ok_or_else(|| {
                HttpError::bad_request(format!("{text:?} is no range; ranges are 1h, 24h, 7d and 90d"))
            })?
        }
        None => CountRange::default(),
    };
    let rest = form_urlencoded::Serializer::new(String::new()).extend_pairs(rest).finish();
    let uri =
        format!("/?{rest}").parse().map_err(|_| HttpError::bad_request("the query is no query of a URL"))?;
    Ok((range, uri))
}

impl FleetPage<'_> {
    /// The advice if no receiver will be notified.
    fn unsent(&self) -> Markup {
        html! {
            @if let Some(why) = self.web.notices.unsent() {
                p.banner role="status" { strong { "Nobody will be told of a silent unit: " } (why) ", and reload." }
            }
        }
    }

    fn link(&self, wanted: &UnitsQuery) -> String {
        let mut query = wanted.to_url();
        if self.range != CountRange::default() {
            let and = if query.is_empty() { "" } else { "&" };
            query += &format!("{and}range={}", self.range.as_str());
        }
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}/{mark}{query}", self.web.base)
    }

    /// A count for each state, which selects its units.
    fn counts(&self, summary: &FleetSummary, wanted: &UnitsQuery) -> Markup {
        let content = &summary.content;
        let first = UnitsQuery { cursor: None, ..wanted.clone() };
        html! {
            nav.counts #counts aria-label="Units by state" {
                a href=(self.link(&UnitsQuery { state: None, unusual: None, ..first.clone() }))
                    aria-current=[(wanted.state.is_none() && wanted.unusual.is_none()).then_some("true")] {
                    b { (format::number(content.units)) } span { @if content.units == 1 { "unit" } @else { "units" } }
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
                @let is_selected = wanted.unusual == Some(true);
                @if content.unusual > 0 || is_selected {
                    a.unusual title="not offline, and silent for longer than usual"
                        href=(self.link(&UnitsQuery { unusual: (!is_selected).then_some(true), ..first.clone() }))
                        aria-current=[is_selected.then_some("true")] {
                        b { (format::number(content.unusual)) } span { "unusual" }
                    }
                }
            }
        }
    }

    /// Kinds, and the label values with most offline units.
    fn kinds_and_labels(&self, summary: &FleetSummary, wanted: &UnitsQuery) -> Markup {
        let content = &summary.content;
        let mut labels: Vec<&str> = content.labels.iter().map(|one| one.label.as_str()).collect();
        labels.dedup();
        let first = UnitsQuery { cursor: None, ..wanted.clone() };
        html! {
            div.groups #groups {
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
                    @let values: Vec<&LabelSummary> = content.labels.iter().filter(|one| one.label == label).collect();
                    (self.places(label, &values, wanted))
                }
            }
        }
    }

    /// The values of a label: the first ones, and the others in a list that opens.
    fn places(&self, label: &str, values: &[&LabelSummary], wanted: &UnitsQuery) -> Markup {
        let bars = |values: &[&LabelSummary]| {
            html! {
                div.bars {
                    @for one in values {
                        @let pair = format!("{label}={}", one.value);
                        @let is_selected = wanted.label.as_ref() == Some(&pair);
                        @let query = UnitsQuery { label: Some(pair), cursor: None, ..wanted.clone() };
                        (bar(&self.link(&query), &one.value, one.states.offline, one.states.total(), is_selected))
                    }
                }
            }
        };
        let (first, more) = values.split_at(values.len().min(BARS));
        html! {
            section {
                h2 { (format::text(label)) span.note { ", mostly silent ones first" } }
                (bars(first))
                @if !more.is_empty() {
                    details data-key={ "more of " (label) } {
                        summary.quiet { "and " (more.len()) " more" }
                        (bars(more))
                    }
                }
            }
        }
    }

    /// The active filters, each with a link that removes it, and the orders. `archived`: how many units are archived.
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
            div.filters #filters {
                @if let Some(unusual) = wanted.unusual {
                    a.chip href=(self.link(&UnitsQuery { unusual: None, ..first.clone() })) title="Remove this filter" {
                        b { @if unusual { "unusual" } @else { "not unusual" } }
                        span aria-hidden="true" { " ✕" } span.hidden { " remove" }
                    }
                }
                @if wanted.archived == Some(true) {
                    a.chip href=(self.link(&UnitsQuery { archived: None, ..first.clone() })) title="Remove this filter" {
                        b { "archived" } span aria-hidden="true" { " ✕" } span.hidden { " remove" }
                    }
                } @else if archived > 0 {
                    a data-key="archived" href=(self.link(&UnitsQuery { archived: Some(true), ..UnitsQuery::default() })) {
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

    fn table(
        &self,
        units: &[ShownUnit],
        now: Timestamp,
        notices: &Notices,
        (id, caption): (&str, &str),
    ) -> Markup {
        let has_offline = units.iter().any(|unit| unit.listed.offline_since.is_some());
        html! {
            div.table.units #(id) {
                table {
                    caption.hidden { (caption) }
                    thead { tr {
                        th scope="col" { "State" } th scope="col" { "Unit" } th.wide scope="col" { "Kind" }
                        th.numbers.wide[has_offline] scope="col" { "Last seen" }
                        @if has_offline { th.numbers scope="col" { "Offline for" } th scope="col" { "Notified" } }
                        th.wide scope="col" { "Labels" }
                    } }
                    tbody { @for unit in units { (self.row(unit, notices, has_offline, now)) } }
                }
            }
        }
    }

    /// The links to other pages of the list.
    fn further(&self, page: &UnitPage, wanted: &UnitsQuery) -> Markup {
        html! {
            nav.pages #further aria-label="Further units" {
                @if wanted.cursor.is_some() {
                    a href=(self.link(&UnitsQuery { cursor: None, ..wanted.clone() })) { "First page" }
                }
                @if let Some(next) = &page.next {
                    a rel="next" href=(self.link(&UnitsQuery { cursor: Some(next.clone()), ..wanted.clone() })) { "Next page" }
                }
            }
        }
    }

    fn no_units(&self, wanted: &UnitsQuery) -> Markup {
        if *wanted != UnitsQuery::default() {
            return html! { p.empty { "No units match. " a href={ (self.web.base) "/" } { "Show all units" } } };
        }
        html! {
            div.empty {
                p { "No units yet. A unit appears with its first heartbeat: any message on a topic of a kind"
                    @if let Some(topic) = &self.web.example_topic { ", such as " code { (format::text(topic)) } } "." }
                p { "The topics are under " a href={ (self.web.base) "/configuration?all=true" } { "configuration" }
                    "; messages on other topics are under " a href={ (self.web.base) "/strangers" } { "strangers" } "." }
            }
        }
    }

    fn row(&self, unit: &ShownUnit, notices: &Notices, has_offline: bool, now: Timestamp) -> Markup {
        let ShownUnit { listed, details } = unit;
        let (kind, id) = (listed.kind.as_str(), listed.unit.as_str());
        let labels = html! { @if let Some(labels) = &details.labels { (format::labels(labels)) } };
        html! {
            tr data-key={ (kind) "/" (id) } {
                td { (format::state(listed.state)) @if listed.unusual { span.note { " unusual" } } }
                th scope="row" {
                    a.short[format::is_short(id)] href={ (self.web.base) (pages::unit(kind, id)) } { (format::text(id)) }
                    span.phone { (kind) " " (labels) }
                }
                td.wide { (format::name(kind)) }
                td.numbers.wide[has_offline] { (format::ago(listed.last_seen, now)) }
                @if has_offline {
                    td.numbers {
                        @if let Some(since) = listed.offline_since { (format::lasting(since, now)) }
                    }
                    td {
                        @match details.record.as_ref().map(|record| notices.get(record)) {
                            Some(Some(notice)) => (noticed(notice, &self.web.base, now)),
                            // The page looks up a part of them.
                            Some(None) => span.note { "see the unit" },
                            None => {}
                        }
                        @if let Some(taken) = &details.acknowledged {
                            span.note.care title=(format::text(&taken.comment)) { "; " (format::text(&taken.author)) " takes care" }
                        }
                    }
                }
                td.wide { (labels) }
            }
        }
    }
}

/// The receivers that were notified of a silence, in a few words. `base`: the path that links begin with.
fn noticed(notice: &SilenceNotice, base: &str, now: Timestamp) -> Markup {
    match notice {
        SilenceNotice::Sealed { notified, at, waiting, given_up } => {
            let when = html! { @if at.is_some() { span.note { " " (format::ago(*at, now)) } } };
            let names = |names: &[String]| html! { (format::text(&names.join(", "))) };
            format::told([notified, waiting, given_up], when, names)
        }
        // Its page has the id of the alert silence, which says nothing here.
        SilenceNotice::Untold(Why::Silenced(_, author, end)) => html! {
            span.note {
                "nobody: " a href={ (base) "/silences?state=active" } { "a silence" } " of " (format::text(author))
                " covers it " (format::said(&Part::Until(*end).into(), now))
            }
        },
        SilenceNotice::Untold(why) => html! { span.note { "nobody: " (format::said(&why.said(), now)) } },
    }
}

/// The share of units that are offline, as a bar with its numbers.
fn bar(link: &str, name: &str, offline: u64, units: u64, is_selected: bool) -> Markup {
    html! {
        a.bar.none[offline == 0] data-key=(name) href=(link) aria-current=[is_selected.then_some("true")] {
            span { (format::text(name)) }
            meter min="0" max=(units.max(1)) value=(offline) aria-hidden="true" {}
            span.numbers {
                @match (units, offline) {
                    (1, 0) => "1 unit, not offline",
                    (_, 0) => { (format::number(units)) " units, none offline" }
                    _ => { b { (format::number(offline)) } " of " (format::number(units)) " offline" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_counts_in_words() {
        for (offline, units, said) in [
            (0, 1, "1 unit, not offline"),
            (0, 1200, "1\u{202f}200 units, none offline"),
            (1, 1, "<b>1</b> of 1 offline"),
            (3, 12, "<b>3</b> of 12 offline"),
        ] {
            let bar = bar("/", "north", offline, units, false).into_string();
            assert!(bar.contains(said), "{bar}");
        }
    }

    #[test]
    fn an_alert_silence_is_a_link_and_no_id() {
        let at = Timestamp::from_millis;
        let id = "b32f49bf-85b4-4f99-9a55-bff9c27eb5a0".to_owned();
        let why = Why::Silenced(id, "<ana>".to_owned(), at(660_000));
        let said = noticed(&SilenceNotice::Untold(why), "/base", at(600_000)).into_string();
        let link = "nobody: <a href=\"/base/silences?state=active\">a silence</a> of &lt;ana&gt; covers it for another ";
        assert!(said.contains(link) && !said.contains("b32f"), "{said}");
    }
}

//! The pages of deliveries: waiting, given up and delivered notifications, one line for each group of a page; each
//! notification with its attempts; delivering again.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect};
use axum::{Extension, Router, routing};
use maud::{Markup, html};
use serde::Deserialize;
use url::form_urlencoded;

use super::forms::{FormBody, fields};
use super::layout::{Tab, may_change};
use super::{FailedPage, Web, WebState, format, key_of};
use crate::clock::Timestamp;
use crate::fleet::deliveries::{
    AttemptLine, DeliveryDetails, DeliveryFilter, DeliveryLine, DeliveryState, WantedState,
};
use crate::http::changes::Caller;
use crate::http::deliveries::DeliveriesQuery;
use crate::http::http_error::{HttpError, query};
use crate::pages;
use crate::presence::{Labels, OfflineRecord};

const STATES: [(Option<WantedState>, &str); 7] = [
    (None, "All"),
    (Some(WantedState::Waiting), "Waiting"),
    (Some(WantedState::Pending), "Pending"),
    (Some(WantedState::Failed), "Trying again"),
    (Some(WantedState::Orphaned), "Without a receiver"),
    (Some(WantedState::Dead), "Dead letters"),
    (Some(WantedState::Delivered), "Delivered"),
];

/// The most records of a delivery that its page shows.
const RECORDS: usize = 200;

/// The forms of the pages.
pub(super) fn forms() -> Router<Web> {
    Router::new()
        .route("/deliveries/replay", routing::post(replay_letters))
        .route("/deliveries/{id}/replay", routing::post(replay))
}

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let wanted: DeliveriesQuery = query(&uri)?;
    let (summary, page) = tokio::join!(web.summaries.recent(), web.deliveries.page(&wanted));
    let (summary, page) = (summary?, page?);
    let (now, may_change) = (web.clock.now(), may_change(&caller));
    let DeliveryFilter { receiver, state: wanted, .. } = wanted.filter();
    let receiver = receiver.as_deref();
    let live = html! {
        h1 { "Deliveries" }
        div.filters {
            @for (state, name) in STATES {
                a href=(web.deliveries_link(state, receiver, None))
                    aria-current=[(state == wanted).then_some("true")] { (name) } " "
            }
            @if let Some(receiver) = receiver {
                a.chip href=(web.deliveries_link(wanted, None, None)) title="Remove this filter" {
                    "receiver: " b { (format::text(receiver)) } span aria-hidden="true" { " ✕" } span.hidden { " remove" }
                }
            }
        }
        @if page.deliveries.is_empty() {
            (web.no_deliveries(wanted, receiver))
        } @else {
            (web.groups_table(&page.deliveries, now, may_change))
            @if page.next.is_some() { p.quiet { "Only the deliveries of this page are put into groups: a group may go on." } }
            nav.pages aria-label="Further deliveries" {
                @if let Some(next) = &page.next {
                    a rel="next" href=(web.deliveries_link(wanted, receiver, Some(next))) { "Next page" }
                }
            }
        }
    };
    let all_letters = html! {
        @if may_change && wanted == Some(WantedState::Dead) && !page.deliveries.is_empty() {
            section.actions {
                form method="post" action={ (web.base) "/deliveries/replay" } {
                    h2 { "Deliver dead letters again" }
                    p.quiet { "Up to 500 with each click." }
                    input type="hidden" name="receiver" value=(receiver.unwrap_or_default());
                    button type="submit" { "Deliver all of these again" }
                }
            }
        }
    };
    Ok(web.page("Deliveries", Some(Tab::Deliveries), &summary, &caller, live, all_letters))
}

pub(super) async fn one(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<impl IntoResponse, FailedPage> {
    let Path(id) = id.map_err(HttpError::from)?;
    let (summary, details) = tokio::join!(web.summaries.recent(), web.deliveries.details(&id));
    let (summary, details) = (summary?, details?);
    let (now, may_change) = (web.clock.now(), may_change(&caller));
    let live = html! {
        p.path { a href={ (web.base) "/deliveries" } { "Deliveries" } " / " }
        h1 { (format::text(&id)) }
        (web.deliveries_table(&details.deliveries.iter().collect::<Vec<_>>(), now, may_change))
        (attempts(&details.attempts, now))
        (web.contents(&details, now))
    };
    Ok(web.page(&id, Some(Tab::Deliveries), &summary, &caller, live, html! {}))
}

fn attempts(attempts: &[AttemptLine], now: Timestamp) -> Markup {
    html! {
        section {
            h2 { "Attempts" }
            @if attempts.is_empty() { p.empty { "No attempts on record." } }
            ol.events {
                @for one in attempts {
                    li {
                        span.when { (format::ago(Some(one.at), now)) }
                        b { (one.result.as_str().replace('_', " ")) }
                        span {
                            (format::text(&one.receiver)) ", attempt " (one.number) ", " (one.took_ms) " ms"
                            @if !one.answer.is_empty() { ": " (format::text(&one.answer)) }
                        }
                    }
                }
            }
        }
    }
}

impl Web {
    fn deliveries_link(
        &self,
        state: Option<WantedState>,
        receiver: Option<&str>,
        cursor: Option<&str>,
    ) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let pairs = [("state", state.map(WantedState::as_str)), ("receiver", receiver), ("cursor", cursor)];
        for (name, value) in pairs {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        format!("{}/deliveries?{}", self.base, query.finish())
    }

    fn no_deliveries(&self, wanted: Option<WantedState>, receiver: Option<&str>) -> Markup {
        html! {
            div.empty {
                p {
                    @match (wanted, receiver) {
                        (None, None) => "No deliveries. A receiver is notified when a unit falls silent, and when it is back; try one with rollcall send-test.",
                        (Some(WantedState::Dead), _) => "No dead letters: nothing was given up.",
                        (Some(WantedState::Orphaned), _) => "No deliveries wait for a receiver that is not configured.",
                        (Some(WantedState::Waiting), _) => "No deliveries wait.",
                        (Some(WantedState::Pending), _) => "No deliveries wait for their first attempt.",
                        (Some(WantedState::Failed), _) => "No deliveries wait for another attempt.",
                        _ => "No deliveries match.",
                    }
                }
                @if let Some(why) = self.notices.unsent() { p { "Nobody will be told: " (why) ", and reload." } }
            }
        }
    }

    /// One line for each group of these deliveries.
    fn groups_table(&self, lines: &[DeliveryLine], now: Timestamp, may_change: bool) -> Markup {
        html! {
            div.table {
                table {
                    caption.hidden { "Deliveries by group" }
                    thead { tr {
                        th scope="col" { "State" } th scope="col" { "Group" } th scope="col" { "What" }
                        th.numbers scope="col" { "When" } th.wide scope="col" { "Receivers" }
                        @if may_change { th.wide scope="col" { span.hidden { "Change" } } }
                    } }
                    tbody { @for (shown, group) in groups_of(lines) { (self.group_line(shown, &group, now, may_change)) } }
                }
            }
        }
    }

    /// `shown`: the delivery that stands for the group.
    fn group_line(
        &self,
        shown: &DeliveryLine,
        group: &[&DeliveryLine],
        now: Timestamp,
        may_change: bool,
    ) -> Markup {
        let key = key_of(&group_of(shown));
        let [notified, waiting, given_up] = receivers_of(group);
        let receivers = format::told([&notified, &waiting, &given_up], html! {}, |names| {
            html! { @for (at, name) in names.iter().enumerate() { @if at > 0 { ", " } (self.receiver(name)) } }
        });
        html! {
            tr data-key=(key) {
                td { (state(shown.state)) }
                th scope="row" {
                    (group_name(shown))
                    span.phone { (receivers) }
                    // A receiver that has got everything needs no answer in the line.
                    @if shown.state != DeliveryState::Delivered && !shown.answer.is_empty() {
                        span.note.answer { " " (format::text(&shown.answer)) }
                    }
                }
                td { (what(shown)) }
                td.numbers {
                    a href={ (self.base) "/deliveries/" (shown.id) } { (format::ago(Some(shown.at), now)) }
                    (next_attempt(shown, now))
                }
                td.wide { (receivers) }
                @if may_change { td.wide { @if group.len() == 1 { (self.again(shown, may_change)) } } }
            }
            @if group.len() > 1 {
                tr.more data-key={ (key) " more" } {
                    td colspan=(if may_change { 6 } else { 5 }) {
                        details {
                            summary { (group.len()) " deliveries" span.hidden { " of this group" } }
                            (self.deliveries_table(group, now, may_change))
                        }
                    }
                }
            }
        }
    }

    fn deliveries_table(&self, lines: &[&DeliveryLine], now: Timestamp, may_change: bool) -> Markup {
        html! {
            div.table {
                table {
                    caption.hidden { "Deliveries" }
                    thead { tr {
                        th scope="col" { "State" } th.numbers scope="col" { "When" } th scope="col" { "Receiver" }
                        th.wide scope="col" { "What" } th.wide.numbers scope="col" { "Attempts" } th.wide scope="col" { "Answer" }
                        @if may_change { th scope="col" { span.hidden { "Change" } } }
                    } }
                    tbody { @for line in lines { (self.delivery_row(line, now, may_change)) } }
                }
            }
        }
    }

    fn delivery_row(&self, line: &DeliveryLine, now: Timestamp, may_change: bool) -> Markup {
        html! {
            tr data-key={ (line.id) " " (line.receiver) } {
                td { (state(line.state)) }
                td.numbers {
                    a href={ (self.base) "/deliveries/" (line.id) } { (format::ago(Some(line.at), now)) }
                    (next_attempt(line, now))
                }
                th scope="row" { (self.receiver(&line.receiver)) }
                td.wide { (what(line)) }
                td.wide.numbers { (line.attempts) }
                td.wide { (format::text(&line.answer)) }
                @if may_change { td { (self.again(line, may_change)) } }
            }
        }
    }

    /// A receiver, with a link to its deliveries.
    fn receiver(&self, name: &str) -> Markup {
        html! {
            a.short[format::is_short(name)] href=(self.deliveries_link(None, Some(name), None)) { (format::text(name)) }
        }
    }

    /// The button that delivers an ended delivery again.
    fn again(&self, line: &DeliveryLine, may_change: bool) -> Markup {
        let ended = matches!(line.state, DeliveryState::Dead | DeliveryState::Delivered);
        html! {
            @if may_change && ended {
                form method="post" action={ (self.base) "/deliveries/" (line.id) "/replay" } {
                    button type="submit" { "Deliver again" span.hidden { ": " (line.id) } }
                }
            }
        }
    }

    /// The records in the notification.
    fn contents(&self, details: &DeliveryDetails, now: Timestamp) -> Markup {
        let line = |record: &OfflineRecord, what: &str, at: Timestamp| {
            html! {
                li {
                    span.when { (format::ago(Some(at), now)) }
                    b { (what) }
                    a href={ (self.base) (pages::unit_of(record)) } {
                        (record.kind) "/" (format::text(record.unit.as_str()))
                    }
                }
            }
        };
        let event = details.deliveries.first().and_then(|line| line.event);
        let event = event.unwrap_or("blind").replace('_', " ");
        let (offline, online) = (&details.offline, &details.online);
        let more = offline.len().saturating_sub(RECORDS) + online.len().saturating_sub(RECORDS);
        html! {
            section {
                h2 { "What it tells" }
                ol.events {
                    @for record in offline.iter().take(RECORDS) { (line(record, "offline", record.deadline)) }
                    @for record in online.iter().take(RECORDS) { (line(record, "back", record.back_at.unwrap_or(now))) }
                    @for timer in &details.timers {
                        li {
                            span.when { (format::ago(Some(timer.fired_at), now)) }
                            b { "timer" }
                            span { (format::text(timer.id.as_str())) " " code { (format::text(timer.data.as_str())) } }
                        }
                    }
                    @for blind in &details.blind {
                        li {
                            span.when { (format::ago(Some(blind.from), now)) }
                            b { (event) }
                            span {
                                @if blind.is_over() { "for " (format::span(blind.to.since(blind.from))) } @else { "it lasts" }
                            }
                        }
                    }
                }
                @if more > 0 { p.quiet { (more) " more are in the API." } }
            }
        }
    }
}

/// When a delivery is attempted next. If it is due, it waits until its receiver has room for it, or is probed after
/// failures: the moment of that is not stored.
fn next_attempt(line: &DeliveryLine, now: Timestamp) -> Markup {
    html! {
        @match line.next_attempt {
            Some(next) if next > now => span.note { ", next " (format::countdown(next, now)) },
            Some(_) => span.note { ", waits for the receiver" },
            None => {}
        }
    }
}

/// The delivery that stands for a group: the newest that needs an operator, else the newest.
fn representative<'a>(group: &[&'a DeliveryLine]) -> Option<&'a DeliveryLine> {
    let needed = group.iter().filter(|line| line.state != DeliveryState::Delivered);
    needed.max_by_key(|line| line.at).or(group.iter().max_by_key(|line| line.at)).copied()
}

/// The group of a delivery. Each timer has a group of its own in the engine, and timers are one group here.
fn group_of(line: &DeliveryLine) -> (&Labels, Option<&str>, bool) {
    (&line.labels, line.event, line.timer.is_some())
}

/// Deliveries by their groups, each group behind the delivery that stands for it. Groups that are not well come first,
/// then the newest by the moment that their lines show.
fn groups_of(lines: &[DeliveryLine]) -> Vec<(&DeliveryLine, Vec<&DeliveryLine>)> {
    let mut groups: BTreeMap<_, Vec<&DeliveryLine>> = BTreeMap::new();
    for line in lines {
        groups.entry(group_of(line)).or_default().push(line);
    }
    let shown = groups.into_values().filter_map(|group| Some((representative(&group)?, group)));
    let mut shown: Vec<_> = shown.collect();
    shown.sort_by_key(|(one, _)| (one.state == DeliveryState::Delivered, Reverse(one.at)));
    shown
}

/// The receivers of a group, by the delivery that stands for each: notified ones, those for which it waits, and those
/// for which it was given up.
fn receivers_of(group: &[&DeliveryLine]) -> [Vec<String>; 3] {
    use DeliveryState::{Dead, Delivered, Failed, Orphaned, Pending};
    let mut receivers: BTreeMap<&str, Vec<&DeliveryLine>> = BTreeMap::new();
    for line in group {
        receivers.entry(&line.receiver).or_default().push(line);
    }
    let shown: Vec<&DeliveryLine> = receivers.values().filter_map(|lines| representative(lines)).collect();
    let in_state = |states: &[DeliveryState]| {
        let found = shown.iter().filter(|one| states.contains(&one.state));
        found.map(|one| one.receiver.clone()).collect()
    };
    [in_state(&[Delivered]), in_state(&[Pending, Failed, Orphaned]), in_state(&[Dead])]
}

fn group_name(line: &DeliveryLine) -> Markup {
    html! {
        @match (line.event, &line.timer) {
            (Some(event), _) => (event.replace('_', " ")),
            (None, Some(_)) => "timers",
            (None, None) if line.labels.is_empty() && line.blind > 0 => "hearing",
            (None, None) if line.labels.is_empty() => "all units",
            (None, None) => (format::labels(&line.labels)),
        }
    }
}

fn state(state: DeliveryState) -> Markup {
    let (sign, class) = match state {
        DeliveryState::Delivered => ("●", "online"),
        DeliveryState::Dead | DeliveryState::Orphaned => ("▲", "offline"),
        DeliveryState::Failed => ("◐", "late"),
        DeliveryState::Pending => ("○", "never_seen"),
    };
    html! { span class={ "state " (class) } { span aria-hidden="true" { (sign) } " " (state.as_str()) } }
}

/// The number of records in a delivery, in words.
fn what(line: &DeliveryLine) -> String {
    let counts = [(line.offline, "offline"), (line.online, "back"), (line.blind, "blind")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let mut parts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    parts.extend(line.event.map(|event| event.replace('_', " ")));
    parts.extend(line.timer.as_ref().map(|id| format!("timer {}", format::text(id))));
    parts.extend(line.reminder.then(|| "reminder".to_owned()));
    parts.join(", ")
}

async fn replay(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Redirect, FailedPage> {
    let Path(id) = id.map_err(HttpError::from)?;
    web.deliveries.replay(&id, &caller).await?;
    Ok(Redirect::to(&format!("{}/deliveries/{id}", web.base)))
}

#[derive(Deserialize)]
struct Letters {
    #[serde(default)]
    receiver: String,
}

async fn replay_letters(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    body: FormBody<Letters>,
) -> Result<Redirect, FailedPage> {
    let receiver = Some(fields(body)?.receiver).filter(|receiver| !receiver.is_empty());
    let state = Some(WantedState::Dead);
    let filter = DeliveryFilter { receiver: receiver.clone(), state, ..DeliveryFilter::default() };
    web.deliveries.replay_all(&filter, None, &caller).await?;
    Ok(Redirect::to(&web.deliveries_link(state, receiver.as_deref(), None)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeliveryState::{Dead, Delivered, Failed, Orphaned, Pending};

    /// A delivery of the group of a site to a receiver.
    fn line(site: &str, receiver: &str, state: DeliveryState, ms: i64) -> DeliveryLine {
        DeliveryLine {
            id: ms.to_string(),
            receiver: receiver.to_owned(),
            state,
            at: Timestamp::from_millis(ms),
            sealed_at: Timestamp::ZERO,
            labels: Labels::from([("site".to_owned(), site.to_owned())]),
            offline: 1,
            online: 0,
            blind: 0,
            event: None,
            timer: None,
            reminder: false,
            attempts: 1,
            next_attempt: None,
            answer: String::new(),
        }
    }

    #[test]
    fn the_newest_delivery_that_is_not_well_stands_for_its_group() {
        let shown = |lines: &[(DeliveryState, i64)]| {
            let lines: Vec<_> = lines.iter().map(|(state, ms)| line("a", "hook", *state, *ms)).collect();
            representative(&lines.iter().collect::<Vec<_>>()).map(|one| one.at.as_millis())
        };
        assert_eq!(shown(&[]), None);
        assert_eq!(shown(&[(Delivered, 3), (Delivered, 5)]), Some(5));
        assert_eq!(shown(&[(Delivered, 9), (Dead, 3), (Failed, 5)]), Some(5));
    }

    #[test]
    fn groups_that_are_not_well_come_first_each_kind_by_the_moment_that_its_line_shows() {
        let lines = [
            line("old", "hook", Failed, 1),
            line("waits", "hook", Pending, 2),
            line("waits", "hook", Pending, 7),
            line("dead", "hook", Dead, 5),
            line("well", "hook", Delivered, 9),
            line("new", "hook", Delivered, 10),
            line("well", "mail", Delivered, 11),
            line("waits", "mail", Delivered, 12),
        ];
        let groups = groups_of(&lines);
        let shown: Vec<(&str, i64, usize)> = groups
            .iter()
            .map(|(shown, group)| (shown.labels["site"].as_str(), shown.at.as_millis(), group.len()))
            .collect();
        assert_eq!(shown, [("waits", 7, 3), ("dead", 5, 1), ("old", 1, 1), ("well", 11, 2), ("new", 10, 1)]);
    }

    #[test]
    fn a_receiver_of_a_group_has_got_it_if_it_has_got_all() {
        let lines = [
            line("a", "hook", Delivered, 1),
            line("a", "hook", Failed, 2),
            line("a", "gone", Orphaned, 2),
            line("a", "mail", Delivered, 1),
            line("a", "mail", Delivered, 2),
            line("a", "pager", Dead, 1),
            line("a", "pager", Delivered, 2),
        ];
        let receivers = receivers_of(&lines.iter().collect::<Vec<_>>());
        assert_eq!(receivers, [vec!["mail"], vec!["gone", "hook"], vec!["pager"]]);
    }

    #[test]
    fn an_attempt_is_to_come_or_waits_for_its_receiver() {
        let at = Timestamp::from_millis;
        for (attempt, shown) in [
            (Some(at(28_000)), ">, next in <time data-countdown"),
            (Some(at(9_999)), ">, waits for the receiver<"),
            (Some(at(10_000)), ">, waits for the receiver<"),
        ] {
            let line = DeliveryLine { next_attempt: attempt, ..line("a", "hook", Failed, 1) };
            let markup = next_attempt(&line, at(10_000)).into_string();
            assert!(markup.contains(shown) && !markup.contains("ago"), "{markup}");
        }
        assert_eq!(next_attempt(&line("a", "hook", Delivered, 1), at(10_000)).into_string(), "");
    }
}

//! The page of a unit: how it is, why, and what operators do with it.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, response::IntoResponse};
use maud::{Markup, html};

use super::layout::may_change;
use super::{Failed, Pages, Web, words};
use crate::clock::Timestamp;
use crate::http::Role;
use crate::http::changes::Caller;
use crate::http::operators::{UnitPath, unit};
use crate::http::units::UnitView;
use crate::presence::{self, OfflineRecord};

pub(super) async fn page(
    State(web): Pages,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    path: UnitPath,
) -> Result<impl IntoResponse, Failed> {
    let unit = unit(path)?;
    let (summary, view) = tokio::join!(web.summaries.recent(&headers), web.units.view(&unit));
    let (summary, view) = (summary?, view?);
    let now = web.clock.now();
    let id = words::text(view.unit.as_str());
    let live = html! {
        p.path { a href={ (web.base) "/" } { "Fleet" } " / "
            a href={ (web.base) "/?kind=" (view.kind) } { (view.kind) } " / " }
        h1 { (id) " " (words::state(view.state)) }
        p.lead { (sentence(&view, now)) }
        (facts(&view, now))
        @if let Some(record) = &view.record { (record_section(record, now)) }
        (values(&view, now))
    };
    let forms = if may_change(&caller) {
        web.forms(&view, &caller)
    } else {
        html! {}
    };
    Ok(web.page(&id, None, &summary, &caller, live, forms))
}

/// Why the unit is in its state.
fn sentence(view: &UnitView, now: Timestamp) -> String {
    let silence = view.last_seen.map(|seen| words::span(now.since(seen)));
    let heard =
        silence.map_or("It was never heard".to_owned(), |silence| format!("It was last heard {silence} ago"));
    let timeout = words::span(std::time::Duration::from_secs_f64(view.timeout_seconds));
    match view.state {
        presence::State::Online => match view.deadline {
            Some(deadline) if deadline > now => {
                format!(
                    "{heard}, within its timeout of {timeout}. It is offline in {} if it stays silent.",
                    words::span(deadline.since(now))
                )
            }
            _ => format!("{heard}, within its timeout of {timeout}."),
        },
        presence::State::Late => {
            format!("{heard}, longer ago than its timeout of {timeout}; its grace is not over.")
        }
        presence::State::Offline => match &view.record {
            Some(record) => {
                format!("{heard}. Its deadline passed {} ago.", words::span(now.since(record.deadline)))
            }
            None => format!("{heard}, and its deadline has passed."),
        },
        presence::State::NeverSeen => match view.deadline {
            Some(deadline) if deadline > now => {
                format!(
                    "It is registered and was never heard. It is offline in {} if it stays silent.",
                    words::span(deadline.since(now))
                )
            }
            _ => "It is registered and was never heard.".to_owned(),
        },
        presence::State::Paused => match view.paused_until {
            Some(until) => format!(
                "{heard}. It is paused for another {}: its silence does not count.",
                words::span(until.since(now))
            ),
            None => format!("{heard}. It has announced its absence."),
        },
        presence::State::Unknown => {
            format!("{heard}. It is due, but Rollcall has not heard far enough since then to decide.")
        }
    }
}

fn facts(view: &UnitView, now: Timestamp) -> Markup {
    let seconds = |seconds: f64| words::span(std::time::Duration::from_secs_f64(seconds));
    html! {
        dl.facts {
            dt { "Last seen" } dd { (words::ago(view.last_seen, now)) }
            @if let Some(from) = view.silent_from {
                dt { "Presumed silent since" } dd { (words::ago(Some(from), now)) }
            }
            @if let Some(deadline) = view.deadline {
                dt { "Deadline" } dd { (words::ago(Some(deadline), now)) }
            }
            dt { "Timeout" } dd { (seconds(view.timeout_seconds)) }
            dt { "Grace" } dd { (seconds(view.grace_seconds)) }
            @if let Some(until) = view.paused_until {
                dt { "Paused until" } dd { (words::ago(Some(until), now)) }
            }
            @if let Some(until) = view.sleeps_until {
                dt { "Sleeps until" } dd { (words::ago(Some(until), now)) }
            }
            @if view.flapping { dt { "Flapping" } dd { "yes: receivers are notified once, and again when it is stable" } }
            @if !view.labels.is_empty() {
                dt { "Labels" }
                dd {
                    @for (name, value) in &view.labels { span.label { (words::text(name)) "=" (words::text(value)) } " " }
                }
            }
        }
    }
}

fn record_section(record: &OfflineRecord, now: Timestamp) -> Markup {
    html! {
        section {
            h2 { "Open record" }
            dl.facts {
                dt { "Offline since" } dd { (words::ago(Some(record.deadline), now)) }
                dt { "Detected" } dd { (words::ago(Some(record.detected_at), now)) }
                dt { "Cause" } dd { (record.cause.as_str().replace('_', " ")) }
                dt { "Id" } dd { code { (words::text(&record.id.to_string())) } }
                @if let Some(taken) = &record.acknowledged {
                    dt { "Acknowledged" }
                    dd { "by " (words::text(&taken.author)) ", " (words::ago(Some(taken.at), now))
                        @if !taken.comment.is_empty() { ": " (words::text(&taken.comment)) } }
                }
            }
        }
    }
}

fn values(view: &UnitView, now: Timestamp) -> Markup {
    html! {
        @if !view.values.is_empty() {
            section {
                h2 { "Values" }
                div.scroll {
                    table {
                        caption.hidden { "Values" }
                        thead { tr { th scope="col" { "Metric" } th scope="col" { "Value" } th scope="col" { "Sent" } } }
                        tbody {
                            @for (name, value) in &view.values {
                                tr {
                                    th scope="row" { (name) }
                                    td.numbers { @match value.value.as_str() {
                                        Some(text) => (words::text(text)),
                                        None => (value.value.to_string()),
                                    } }
                                    td { (words::ago(Some(value.at), now)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Web {
    /// What an operator does with the unit.
    fn forms(&self, view: &UnitView, caller: &Caller) -> Markup {
        let to = format!("{}{}", self.base, words::unit_path(&view.kind, view.unit.as_str()));
        let who = || {
            html! {
                label { "Your name" input name="author" required maxlength="128" autocomplete="name" data-remember="author"; }
                label { "Comment" input name="comment" maxlength="512"; }
            }
        };
        html! {
            section.actions aria-label="Actions" {
                @if let Some(record) = &view.record {
                    @if record.acknowledged.is_none() {
                        form method="post" action={ (to) "/ack" } {
                            h2 { "Acknowledge" }
                            p.quiet { "You take care of it: reminders and escalations stop." }
                            (who())
                            button.main type="submit" { "Acknowledge" }
                        }
                    } @else {
                        form method="post" action={ (to) "/unack" } {
                            h2 { "Acknowledged" }
                            button type="submit" { "Take the acknowledgement back" }
                        }
                    }
                }
                @if view.paused_until.is_none() {
                    form method="post" action={ (to) "/pause" } {
                        h2 { "Pause" }
                        p.quiet { "Planned work: its silence does not count meanwhile." }
                        label { "For how many hours" input type="number" name="hours" min="0.1" max="8760" step="0.1" value="1" required; }
                        (who())
                        button type="submit" { "Pause" }
                    }
                } @else {
                    form method="post" action={ (to) "/unpause" } {
                        h2 { "Paused" }
                        button type="submit" { "End the pause" }
                    }
                }
                @if caller.require(Role::Admin).is_ok() {
                    form method="post" action={ (to) "/remove" } {
                        h2 { "Remove" }
                        p.quiet { "It is never reported again, though it may be heard. Register it to have it back." }
                        label.check { input type="checkbox" name="sure" value="yes" required; "Yes, remove this unit" }
                        button.danger type="submit" { "Remove" }
                    }
                }
            }
        }
    }
}

//! The page of a unit: its state, the reason for it, its history, and forms for operators.

use std::time::Duration;

use axum::extract::State;
use axum::{Extension, response::IntoResponse};
use maud::{Markup, html};

use super::forms::signature;
use super::layout::may_change;
use super::{FailedPage, Web, WebState, format, plot};
use crate::clock::Timestamp;
use crate::http::Role;
use crate::http::changes::Caller;
use crate::http::operators::{UnitPath, unit};
use crate::http::timeline::Timeline;
use crate::http::units::UnitDetails;
use crate::pages;
use crate::presence::{OfflineRecord, TimeoutRule};
use crate::routing::{Matcher, Operator};

/// The most records that a page reads of its unit, and the most events that it shows.
const RECORDS: usize = 100;
const EVENTS: usize = 50;

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
) -> Result<impl IntoResponse, FailedPage> {
    let unit = unit(path)?;
    let (summary, timeline) = tokio::join!(web.summaries.recent(), web.timelines.of(&unit, RECORDS));
    let (summary, timeline) = (summary?, timeline?);
    let (view, now) = (&timeline.view, timeline.at);
    let id = format::text(view.unit.as_str());
    let live = html! {
        p.path { a href={ (web.base) "/" } { "Fleet" } " / "
            a href={ (web.base) "/?kind=" (view.kind) } { (view.kind) } " / " }
        h1 { (id) " " (format::state(view.state)) }
        div.said #said-state { p.lead { (format::said(&timeline.sentence, now)) } (web.acts_on_state(view, &caller)) }
        div.said #said-notified { p { (format::said(&timeline.notified, now)) } (web.acts_on_alerts(view, &caller)) }
        (plot::hour(&timeline.hour))
        (facts(view, web.trial_of(view).as_deref(), now))
        @if let Some(record) = &view.record { (record_section(record, now)) }
        (values(view, now))
        (history(&timeline, &web.base))
    };
    Ok(web.page(&id, None, &summary, &caller, live, web.removal(view, &caller)))
}

/// `trial`: the page that tries another timeout, if there is history.
fn facts(view: &UnitDetails, trial: Option<&str>, now: Timestamp) -> Markup {
    let seconds = |seconds: f64| format::span(Duration::from_secs_f64(seconds));
    html! {
        dl.facts {
            dt { "Last seen" } dd { (format::ago(view.last_seen, now)) }
            @if let Some(from) = view.silent_from {
                dt { "Presumed silent since" } dd { (format::ago(Some(from), now)) }
            }
            @if let Some(since) = view.known_since {
                dt { "Known since" } dd { (format::ago(Some(since), now)) }
            }
            @if let Some(deadline) = view.deadline {
                dt { "Deadline" } dd { (format::countdown(deadline, now)) }
            }
            dt { "Timeout" }
            dd data-key="timeout" {
                (seconds(view.timeout_seconds)) span.note { " " (rule(view.timeout_rule)) }
                @if let Some(trial) = trial { " " a href=(trial) { "Try another timeout" } }
            }
            dt { "Grace" } dd { (seconds(view.grace_seconds)) }
            @if let Some(rhythm) = &view.rhythm {
                dt { "Rhythm" }
                dd {
                    @match rhythm.sentence(now.since(view.last_seen.unwrap_or(now))) {
                        Some(said) => {
                            (said)
                            @if let Some(since) = rhythm.unusual_since {
                                span.note { " Unusual since " (format::ago(Some(since), now)) }
                            }
                        }
                        None => span.quiet { "not known yet: " (rhythm.intervals) " of " (rhythm.intervals_needed) " intervals" },
                    }
                }
            }
            @if let Some(until) = view.paused_until {
                dt { "Paused until" } dd { (format::countdown(until, now)) }
            }
            @if let Some(until) = view.sleeps_until {
                dt { "Sleeps until" } dd { (format::countdown(until, now)) }
            }
            @if !view.note.is_empty() { dt { "Note" } dd { (format::text(&view.note)) } }
            @if view.archived { dt { "Archived" } dd { "yes: it has been offline for long, and lists and counts leave it out until it is heard" } }
            @if view.flapping { dt { "Flapping" } dd { "yes: receivers are notified once, and again when it is stable" } }
            @if !view.labels.is_empty() {
                dt { "Labels" }
                dd { (format::labels(&view.labels)) }
            }
        }
    }
}

fn record_section(record: &OfflineRecord, now: Timestamp) -> Markup {
    html! {
        section {
            h2 { "Open record" }
            dl.facts {
                dt { "Offline since" } dd { (format::ago(Some(record.deadline), now)) }
                dt { "Detected" } dd { (format::ago(Some(record.detected_at), now)) }
                dt { "Cause" } dd { (record.cause.as_str().replace('_', " ")) }
                dt { "Id" } dd { code { (format::text(&record.id.to_string())) } }
                @if let Some(taken) = &record.acknowledged {
                    dt { "Acknowledged" }
                    dd { "by " (format::text(&taken.author)) ", " (format::ago(Some(taken.at), now))
                        @if !taken.comment.is_empty() { ": " (format::text(&taken.comment)) } }
                }
            }
        }
    }
}

fn values(view: &UnitDetails, now: Timestamp) -> Markup {
    html! {
        @if !view.values.is_empty() {
            section {
                h2 { "Values" }
                div.table {
                    table {
                        caption.hidden { "Values" }
                        thead { tr { th scope="col" { "Metric" } th.numbers scope="col" { "Value" } th.numbers scope="col" { "Sent" } } }
                        tbody {
                            @for (name, value) in &view.values {
                                tr {
                                    th scope="row" { (name) }
                                    td.numbers[value.value.as_str().is_none()] { @match value.value.as_str() {
                                        Some(text) => (format::text(text)),
                                        None => (value.value.to_string()),
                                    } }
                                    td.numbers { (format::ago(Some(value.at), now)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn matchers(view: &UnitDetails) -> Option<String> {
    let equal =
        |name: &str, value: &str| Matcher::new(name.to_owned(), Operator::Equal, value.to_owned()).ok();
    let (kind, unit) = (equal("kind", view.kind.as_str())?, equal("unit", view.unit.as_str())?);
    Some(format!("{kind}, {unit}"))
}

/// The events of the unit, newest first.
fn history(timeline: &Timeline, base: &str) -> Markup {
    let shown = &timeline.events[..timeline.events.len().min(EVENTS)];
    html! {
        section {
            h2 { "History" }
            (plot::strip(&timeline.days))
            (plot::plot(&timeline.days))
            @if !timeline.days_are_complete {
                p.quiet { "The history database does not answer, so older days may be missing here." }
            }
            ol.events {
                @for event in shown {
                    li class=(event.event.as_str()) {
                        span.when { (format::ago(Some(event.at), timeline.at)) }
                        b { (event.event.as_str().replace('_', " ")) }
                        span { (format::said(&event.text, timeline.at)) }
                    }
                }
            }
            @if shown.len() < timeline.events.len() || !timeline.is_complete { p.quiet { "Older ones are in the API." } }
            @if timeline.attempts_cut {
                p.quiet { "Attempts to notify are left out here: those of older silences, and failed ones of older \
                           reminders. " a href={ (base) "/deliveries" } { "Deliveries" } " has them." }
            }
        }
    }
}

impl Web {
    /// The path to which the unit's forms are sent.
    fn unit_path(&self, view: &UnitDetails) -> String {
        format!("{}{}", self.base, pages::unit(view.kind.as_str(), view.unit.as_str()))
    }

    /// The forms about its state: pause the unit, or end the pause.
    fn acts_on_state(&self, view: &UnitDetails, caller: &Caller) -> Markup {
        if !may_change(caller) {
            return html! {};
        }
        let to = self.unit_path(view);
        html! {
            div.acts {
                @if view.paused_until.is_none() {
                    details #act-pause {
                        summary { "Pause" }
                        form method="post" action={ (to) "/pause" } {
                            p.quiet { "Planned work: its silence does not count meanwhile." }
                            label { "For how many hours" input type="number" name="hours" min="0.1" max="8760" step="0.1" value="1" required; }
                            (signature(false))
                            button.main type="submit" { "Pause it" }
                        }
                    }
                } @else {
                    form #act-unpause method="post" action={ (to) "/unpause" } { button type="submit" { "End the pause" } }
                }
            }
        }
    }

    /// The forms about its alerts: acknowledge its silence, or silence its alerts.
    fn acts_on_alerts(&self, view: &UnitDetails, caller: &Caller) -> Markup {
        if !may_change(caller) {
            return html! {};
        }
        let to = self.unit_path(view);
        html! {
            div.acts {
                @if let Some(record) = &view.record {
                    @if record.acknowledged.is_none() {
                        details #act-ack {
                            summary.main { "Acknowledge" }
                            form method="post" action={ (to) "/ack" } {
                                p.quiet { "You take care of it: reminders and escalations stop." }
                                (signature(false))
                                button.main type="submit" { "Acknowledge it" }
                            }
                        }
                    } @else {
                        form #act-unack method="post" action={ (to) "/unack" } {
                            button type="submit" { "Take the acknowledgement back" }
                        }
                    }
                }
                @if let Some(matchers) = matchers(view) {
                    form #act-silence method="get" action={ (self.base) "/silences" } {
                        input type="hidden" name="matchers" value=(matchers);
                        button type="submit" title="Receivers are not notified of it for a while" { "Silence its alerts" }
                    }
                }
            }
        }
    }

    /// The form that removes the unit, for administrators.
    fn removal(&self, view: &UnitDetails, caller: &Caller) -> Markup {
        html! {
            @if caller.require(Role::Admin).is_ok() {
                details #act-remove {
                    summary.danger { "Remove this unit" }
                    form method="post" action={ (self.unit_path(view)) "/remove" } {
                        p.quiet { "Rollcall ignores its later heartbeats. Register the unit to restore it." }
                        label.check { input type="checkbox" name="sure" value="yes" required; "Yes, remove this unit" }
                        button.danger type="submit" { "Remove" }
                    }
                }
            }
        }
    }
}

/// The origin of the timeout.
fn rule(rule: TimeoutRule) -> &'static str {
    match rule {
        TimeoutRule::FirstTimeout => "first_timeout of its kind, as it was never heard",
        TimeoutRule::Operator => "set by an operator",
        TimeoutRule::Device => "declared by the device",
        TimeoutRule::Kind => "of its kind",
    }
}

//! The page on which another timeout of a kind is tried on history.

use axum::extract::State;
use axum::http::Uri;
use axum::response::IntoResponse;
use axum::{Extension, Router, routing::get};
use maud::{Markup, html};

use super::layout::Tab;
use super::{FailedPage, Web, WebState, format};
use crate::clock::shown_span;
use crate::http::changes::Caller;
use crate::http::http_error::{HttpError, query};
use crate::http::policy::{TrialAnswer, TrialQuery};
use crate::http::units::UnitDetails;
use crate::pages;
use crate::routing::trial::PolicyTrial;

pub(super) fn pages() -> Router<Web> {
    Router::new().route("/policy", get(page))
}

async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let wanted: TrialQuery = query(&uri)?;
    let summary = web.summaries.recent().await?;
    let missing = web.trials.missing();
    let unknown = web.trials.policy(&wanted.kind).err().filter(|_| !wanted.kind.is_empty());
    let is_asked = !wanted.timeout.is_empty() || !wanted.grace.is_empty();
    let answer = match unknown {
        _ if missing.is_some() => None,
        Some(unknown) => Some(Err(unknown)),
        None if is_asked => Some(web.tried(&wanted).await),
        None => None,
    };
    let live = html! {
        h1 { "Try a policy" }
        p.quiet {
            "What another timeout would have recorded and sent of the silences that history has, beside the timeout of now. \
             Nothing is changed."
        }
    };
    let rest = html! {
        @if let Some(missing) = missing { p.banner role="status" { (missing) } }
        (web.trial_form(&wanted))
        @match answer {
            None => {}
            Some(Ok(TrialAnswer::Made(trial))) => (shown(&trial)),
            Some(Ok(TrialAnswer::Runs(time))) => p.banner role="status" {
                "The trial has run for " (shown_span(time)) ". "
                a href={ (web.base) "/policy?" (wanted.encoded()) } { "Ask again for its answer" } "."
            },
            Some(Err(why)) => p.banner role="status" { (format::text(why.detail())) },
        }
    };
    Ok(web.page("Try a policy", Some(Tab::Reports), &summary, &caller, live, rest))
}

impl Web {
    /// The page that tries another timeout of the unit's kind; `None` without history.
    pub(super) fn trial_of(&self, unit: &UnitDetails) -> Option<String> {
        self.history.as_ref().map(|_| format!("{}{}", self.base, pages::trial(unit.kind.as_str())))
    }

    async fn tried(&self, wanted: &TrialQuery) -> Result<TrialAnswer, HttpError> {
        self.trials.ask(&self.trials.question(wanted)?).await
    }

    fn trial_form(&self, wanted: &TrialQuery) -> Markup {
        let policy = self.trials.policy(&wanted.kind).ok();
        let preset = |text: &str, now: Option<std::time::Duration>| match text {
            "" => now.map(shown_span).unwrap_or_default(),
            text => text.to_owned(),
        };
        let timeout = preset(&wanted.timeout, policy.map(|policy| policy.timeout));
        let grace = preset(&wanted.grace, policy.map(|policy| policy.grace));
        let since = if wanted.since.is_empty() { "30d" } else { &wanted.since };
        html! {
            form.report-form action={ (self.base) "/policy" } {
                label { "Kind "
                    select name="kind" {
                        @for kind in self.trials.kinds() {
                            option value=(kind.as_str()) selected[kind.as_str() == wanted.kind] { (kind.as_str()) }
                        }
                    }
                }
                label { "Timeout " input type="text" name="timeout" required value=(timeout) placeholder="20m" size="8"; }
                label { "Grace " input type="text" name="grace" value=(grace) placeholder="2m" size="8"; }
                label { "Since " input type="text" name="since" value=(since) size="8"; }
                label { "By "
                    select name="group_by" {
                        option value="" { "no label" }
                        @for one in &*self.labels {
                            option value=(one) selected[*one == wanted.group_by] { (format::text(one)) }
                        }
                    }
                }
                button type="submit" { "Try" }
            }
        }
    }
}

fn shown(trial: &PolicyTrial) -> Markup {
    html! {
        section.trial aria-label="The answer" {
            p role="status" { (format::text(&trial.to_string())) "." }
            div.table {
                table {
                    caption.hidden { "Counts" }
                    thead { tr { @for head in PolicyTrial::HEADS { th scope="col" { (head) } } } }
                    tbody {
                        @for [what, was, would] in trial.rows() {
                            tr { th scope="row" { (format::text(&what)) } td { (was) } td { (would) } }
                        }
                    }
                }
            }
            @if trial.differences.is_empty() {
                p.empty { "Receivers would have known of each silence at the same moment." }
            } @else {
                h2 { "The largest differences" }
                (differences(trial))
            }
            h2 { "What history cannot answer" }
            ul { @for note in &trial.notes { li { (format::text(note)) } } }
        }
    }
}

/// The largest differences. A telephone has no room for the columns of when a unit was seen and came back.
fn differences(trial: &PolicyTrial) -> Markup {
    let heads = PolicyTrial::DIFFERENCE_HEADS.iter().enumerate();
    let class = |at: usize| [1, 2].contains(&at).then_some("wide");
    html! {
        div.table {
            table {
                caption.hidden { "The largest differences" }
                thead { tr { @for (at, head) in heads { th scope="col" class=[class(at)] { (head) } } } }
                tbody {
                    @for row in trial.difference_rows() {
                        tr {
                            th scope="row" { (format::text(&row[0])) }
                            @for (at, cell) in row.iter().enumerate().skip(1) { td class=[class(at)] { (cell) } }
                        }
                    }
                }
            }
        }
    }
}

//! `/`: a plain page with the units by state and links to the other pages.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::response::{Html, IntoResponse};
use axum::routing::get;

use super::problem::Problem;
use crate::clock::{Clock, Timestamp};
use crate::fleet::mirror::Summary;
use crate::fleet::ownership::View;
use crate::fleet::{Mirror, Ownership, Roll};
use crate::presence;

/// The page loads, runs, frames and sends nothing.
const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const LINKS: [(&str, &str); 7] = [
    ("/api/v1/records?open=true", "open offline records"),
    ("/api/v1/records", "all offline records, newest first"),
    ("/metrics", "metrics of the fleet and of Rollcall itself"),
    ("/metrics/units", "metrics of each unit"),
    ("/api/v1/prometheus/targets", "the instances that Prometheus has to scrape"),
    ("/readyz", "whether Rollcall does its work, and why not"),
    ("/healthz", "whether the process runs"),
];

#[derive(Clone)]
struct HomeState {
    ownership: Ownership,
    mirror: Arc<Mirror>,
    roll: Arc<Roll>,
    clock: Clock,
}

pub(super) fn page(ownership: Ownership, mirror: Arc<Mirror>, roll: Arc<Roll>, clock: Clock) -> Router {
    Router::new().route("/", get(home)).with_state(HomeState { ownership, mirror, roll, clock })
}

async fn home(State(state): State<HomeState>) -> Result<impl IntoResponse, Problem> {
    let now = state.clock.now();
    let view = state.ownership.view();
    let counting = tokio::task::spawn_blocking(move || state.mirror.summary(&state.roll.hearing(), now));
    let summary = counting.await.map_err(|error| Problem::internal(format!("counting failed: {error}")))?;
    Ok(([(CONTENT_SECURITY_POLICY, POLICY)], Html(html(&summary, &view, now))))
}

/// Kinds, states, names of instances and links have no special characters, so nothing is escaped.
fn html(summary: &Summary, view: &View, now: Timestamp) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Rollcall</title>\n<h1>Rollcall</h1>\n",
    );
    if view.instances.len() > 1 {
        let (one, all) = (&view.instance, view.instances.join(", "));
        let _ = writeln!(page, "<p>{one} shows its own part of the fleet; the instances are {all}.</p>");
    }
    let _ = write!(page, "<p>Units at {now}</p>\n<table>\n<tr><th scope=\"col\">kind");
    for state in presence::State::ALL {
        let _ = write!(page, "<th scope=\"col\">{}", state.as_str());
    }
    page.push('\n');
    for (kind, states) in &summary.kinds {
        let _ = write!(page, "<tr><th scope=\"row\">{kind}");
        for count in states {
            let _ = write!(page, "<td>{count}");
        }
        page.push('\n');
    }
    page.push_str("</table>\n<ul>\n");
    for (link, what) in LINKS {
        let _ = writeln!(page, "<li><a href=\"{link}\">{link}</a>: {what}");
    }
    page.push_str("</ul>\n");
    page
}

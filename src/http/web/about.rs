//! The page about this Rollcall: its version and licence, what it runs on, and links to more information.

use axum::extract::State;
use axum::{Extension, response::IntoResponse};
use maud::html;

use super::layout::Tab;
use super::{FailedPage, WebState, format};
use crate::http::changes::Caller;

/// Pages for programs and operators: path and description.
const LINKS: [(&str, &str); 4] = [
    ("/api/v1/openapi.json", "the description of the API"),
    ("/metrics", "the metrics of the fleet and of Rollcall"),
    ("/readyz", "whether this instance is ready"),
    ("/configuration", "the configuration as it was read"),
];

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, FailedPage> {
    let summary = web.summaries.recent().await?;
    let (configuration, now) = (web.configuration.borrow().clone(), web.clock.now());
    let option = |path: &str| configuration.text_of(path).filter(|text| !text.is_empty()).map(format::text);
    let engine = match option("engine.type").as_deref() {
        Some("embedded") => format!("embedded, in {}", option("engine.path").unwrap_or_default()),
        _ => format!("Redis at {}", option("engine.url").unwrap_or_default()),
    };
    let broker = match option("broker.listen") {
        Some(address) => format!("within this process, at {address}"),
        None => option("mqtt.url").unwrap_or_default(),
    };
    let content = &summary.content;
    let live = html! {
        h1 { "About" }
        p.lead { (env!("CARGO_PKG_DESCRIPTION")) "." }
        dl.facts {
            dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) }
            dt { "Licence" } dd { (env!("CARGO_PKG_LICENSE")) }
            dt { "This instance" } dd { (format::text(&web.instance)) ", started " (format::ago(Some(web.started), now)) }
            dt { "Instances" } dd { a href={ (web.base) "/instances" } { (content.instances.len()) } }
            dt { "Units" } dd { (format::number(content.units)) }
            dt { "Engine" } dd { (engine) }
            dt { "Broker" } dd { (broker) }
        }
        section {
            h2 { "For programs" }
            ul { @for (path, what) in LINKS { li { a href={ (web.base) (path) } { (path) } ": " (what) } } }
        }
        section {
            h2 { "To read" }
            p { "The documentation is in the folder " code { "docs" } " of the package. It begins with " code { "docs/README.md" }
                "; " code { "docs/glossary.md" } " has the words, and " code { "docs/runbook.md" } " says what to do about an alert." }
        }
    };
    Ok(web.page("About", Some(Tab::About), &summary, &caller, live, html! {}))
}

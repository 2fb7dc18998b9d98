//! The page about this Rollcall: its version and licence, what it runs on, and links to more information.

use std::sync::LazyLock;

use axum::extract::State;
use axum::{Extension, response::IntoResponse};
use maud::{Markup, html};
use serde::Deserialize;

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

/// Where sources and documentation are to be had; empty where that is not known.
#[derive(Deserialize)]
struct Addresses {
    source: String,
    documentation: String,
}

static ADDRESSES: LazyLock<Addresses> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../docs/addresses.toml")).expect("a test reads the same text")
});

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
            (to_read(&ADDRESSES))
        }
    };
    Ok(web.page("About", Some(Tab::About), &summary, &caller, live, html! {}))
}

fn to_read(addresses: &Addresses) -> Markup {
    let Addresses { source, documentation } = addresses;
    let page = |name: &str| match &**documentation {
        "" => html! { code { "docs/" (name) } },
        folder => html! { a href={ (folder) (name) } { (name) } },
    };
    html! {
        p {
            @if documentation.is_empty() { "The documentation is in the folder " code { "docs" } " of the package. " }
            "Begin with " (page("README.md")) "; " (page("glossary.md")) " has the words, and "
            (page("runbook.md")) " says what to do about an alert."
        }
        @if !source.is_empty() { p { "The sources are at " a href=(source) { (source) } "." } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_is_a_link_where_its_address_is_known_and_else_a_folder() {
        LazyLock::force(&ADDRESSES);
        let shown = |source: &str, documentation: &str| {
            let (source, documentation) = (source.to_owned(), documentation.to_owned());
            to_read(&Addresses { source, documentation }).into_string()
        };
        let (without, with) = (shown("", ""), shown("https://example.org/git", "https://example.org/docs/"));
        assert!(without.contains("<code>docs/runbook.md</code>") && !without.contains("href"), "{without}");
        assert!(with.contains("<a href=\"https://example.org/docs/runbook.md\">runbook.md</a>"), "{with}");
        assert!(with.contains("<a href=\"https://example.org/git\">") && !with.contains("folder"), "{with}");
    }
}

//! The page of the configuration as it was read: every option with its value and origin.

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, response::IntoResponse};
use maud::{Markup, html};
use serde::Deserialize;

use super::layout::Tab;
use super::{FailedPage, WebState, format};
use crate::http::changes::Caller;
use crate::http::http_error::query;
use crate::http::{ShownConfiguration, ShownOption, ShownValue, ValueOrigin};
use crate::pages;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigurationQuery {
    /// Show also the options that have their default.
    #[serde(default)]
    all: bool,
}

pub(super) async fn page(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<impl IntoResponse, FailedPage> {
    let ConfigurationQuery { all } = query(&uri)?;
    let summary = web.summaries.recent().await?;
    let configuration = web.configuration.borrow().clone();
    let options = configuration.options.iter().filter(|option| all || option.origin != ValueOrigin::Default);
    let options: Vec<&ShownOption> = options.collect();
    let live = html! {
        h1 { "Configuration" }
        p.quiet {
            @match &configuration.file {
                Some(file) => { "As this instance has read it from " code { (format::text(file)) } " and the environment." },
                None => "There is no file: every option has its default, or comes from the environment.",
            }
            " After a reload, options outside of routes, receivers and the rules of kinds wait for a restart."
        }
        div.filters {
            a href={ (web.base) "/configuration" } aria-current=[(!all).then_some("true")] { "Options that are set" } " "
            a href={ (web.base) "/configuration?all=true" } aria-current=[all.then_some("true")] { "All options" }
        }
        @if options.is_empty() { p.empty { "No option is set." } } @else { (table(&options, &configuration, &web.base)) }
    };
    Ok(web.page("Configuration", Some(Tab::Configuration), &summary, &caller, live, html! {}))
}

/// The name of the kind for whose timeout this option offers a trial.
fn tried_kind<'a>(option: &ShownOption, configuration: &'a ShownConfiguration) -> Option<&'a str> {
    let kind = [".name", ".timeout"].iter().find_map(|end| option.path.strip_suffix(end))?;
    let is_kind = kind.starts_with("kind[") && kind.ends_with(']');
    configuration.text_of(&format!("{kind}.name")).filter(|_| is_kind)
}

fn table(options: &[&ShownOption], configuration: &ShownConfiguration, base: &str) -> Markup {
    html! {
        div.table {
            table {
                caption.hidden { "Options" }
                thead { tr { th scope="col" { "Option" } th scope="col" { "Value" } th scope="col" { "From" } } }
                tbody {
                    @for option in options {
                        tr {
                            th scope="row" { code { (format::text(&option.path)) } }
                            td {
                                @match &option.value {
                                    ShownValue::Text(text) => code { (format::text(text)) },
                                    ShownValue::Hidden => span.secret title="It may be a secret" { "not shown" },
                                }
                                @if let Some(kind) = tried_kind(option, configuration) {
                                    " " a href={ (base) (pages::trial(kind)) } { "try another timeout" span.hidden { " of " (kind) } }
                                }
                            }
                            td { (option.origin.as_str()) }
                        }
                    }
                }
            }
        }
    }
}

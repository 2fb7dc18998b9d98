//! The switches of a simulated fleet, to try Rollcall: a site that is switched off falls silent.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Redirect;
use axum::routing::post;
use maud::{Markup, html};
use serde::Deserialize;

use super::forms::{FormBody, fields};
use super::{FailedPage, Web, WebState};

pub(super) fn forms() -> Router<Web> {
    Router::new().route("/demo/power", post(turn))
}

#[derive(Deserialize)]
struct SwitchForm {
    site: String,
    off: bool,
}

async fn turn(State(web): WebState, body: FormBody<SwitchForm>) -> Result<Redirect, FailedPage> {
    let SwitchForm { site, off } = fields(body)?;
    if web.switches.as_ref().is_some_and(|switches| switches.turn(&site, off)) {
        return Ok(Redirect::to(&format!("{}/", web.base)));
    }
    let detail = "there is no such switch; only the fleet of the demo has some".to_owned();
    Err(FailedPage { status: StatusCode::NOT_FOUND, detail })
}

impl Web {
    /// A button for each site.
    pub(super) fn switches(&self) -> Markup {
        let button = |(site, off): (&str, bool)| {
            html! {
                form method="post" action={ (self.base) "/demo/power" } {
                    input type="hidden" name="site" value=(site);
                    input type="hidden" name="off" value=(!off);
                    button type="submit" { "Switch " (site) @if off { " on" } @else { " off" } }
                }
            }
        };
        let Some(switches) = &self.switches else { return html! {} };
        html! {
            section.switches #switches aria-labelledby="try" {
                h2 #try { "Try it" }
                p.quiet { "This fleet is simulated. Switch off the power of a site and see its units fall silent." }
                div { @for switch in switches.each() { (button(switch)) } }
            }
        }
    }
}

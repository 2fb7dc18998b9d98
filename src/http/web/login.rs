//! `/login` and `/logout`: a browser shows a token once, and has a session from then on.

use std::time::Duration;

use axum::extract::rejection::FormRejection;
use axum::extract::{DefaultBodyLimit, Form, State};
use axum::http::StatusCode;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;

use super::layout::head;
use super::{Failed, Pages, Web};
use crate::http::changes::Caller;
use crate::http::problem::Problem;

/// How long a wrong token waits for its answer.
const WRONG_WAITS: Duration = Duration::from_secs(1);

const LONGEST_FORM: usize = 8 * 1024;

pub(super) fn pages() -> Router<Web> {
    Router::new()
        .route("/login", get(show).post(log_in))
        .route("/logout", post(log_out))
        .layer(DefaultBodyLimit::max(LONGEST_FORM))
}

async fn show(State(web): Pages) -> Markup {
    form(&web, None)
}

fn form(web: &Web, problem: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head("Log in · Rollcall", &web.base))
            body {
                main #main.narrow {
                    h1 { "Rollcall" }
                    @if let Some(problem) = problem { p.banner.serious role="alert" { (problem) } }
                    form method="post" action={ (web.base) "/login" } {
                        label { "Token" input type="password" name="token" required autofocus autocomplete="current-password"; }
                        button.main type="submit" { "Log in" }
                    }
                    p.quiet { "Tokens are those of [[http.token]] in the configuration." }
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Credentials {
    token: String,
}

/// Few logins are checked at a time, and a wrong one takes a second: tokens cannot be found by trying.
async fn log_in(
    State(web): Pages,
    Extension(caller): Extension<Caller>,
    body: Result<Form<Credentials>, FormRejection>,
) -> Result<Response, Failed> {
    if caller.is_foreign() {
        return Err(Problem::forbidden("a page of another site may not log in here").into());
    }
    let Ok(Form(Credentials { token })) = body else {
        return Err(Problem::bad_request("the form has the field token").into());
    };
    let Some(_attempt) = web.sessions.attempt() else {
        let text = "Too many logins at the same time. Try again in a moment.";
        return Ok((StatusCode::TOO_MANY_REQUESTS, form(&web, Some(text))).into_response());
    };
    match web.sessions.begin(&token, web.clock.now()) {
        Some(cookie) => Ok(([(SET_COOKIE, cookie)], Redirect::to(&format!("{}/", web.base))).into_response()),
        None => {
            tokio::time::sleep(WRONG_WAITS).await;
            Ok((StatusCode::FORBIDDEN, form(&web, Some("This is no known token."))).into_response())
        }
    }
}

async fn log_out(State(web): Pages) -> impl IntoResponse {
    ([(SET_COOKIE, web.sessions.end())], Redirect::to(&format!("{}/login", web.base)))
}

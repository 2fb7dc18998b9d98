//! `/login` and `/logout`: a browser sends a token once, and then has a session.

use axum::extract::rejection::FormRejection;
use axum::extract::{DefaultBodyLimit, Form, State};
use axum::http::header::{RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;

use super::layout::head;
use super::{FailedPage, Web, WebState};
use crate::http::changes::{self, Caller, HasTokens};
use crate::http::http_error::{HttpError, query};
use crate::http::proxies::PeerAddress;
use crate::http::session::RefusedLogin;

const MAX_FORM: usize = 8 * 1024;

pub(super) fn pages(has_tokens: HasTokens) -> Router<Web> {
    let guarded = from_fn_with_state(has_tokens, changes::guard_end);
    Router::new()
        .route("/logout", post(log_out))
        .route_layer(guarded)
        .route("/login", get(show).post(log_in))
        .layer(DefaultBodyLimit::max(MAX_FORM))
}

#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    next: String,
}

async fn show(State(web): WebState, uri: Uri) -> Result<Markup, FailedPage> {
    let Wanted { next } = query(&uri)?;
    Ok(form(&web, local(&next), None))
}

/// The page to show after the login; the front page instead of another site.
fn local(next: &str) -> &str {
    let is_local = next.starts_with('/') && !next.starts_with("//") && !next.contains('\\');
    if is_local && next.bytes().all(|byte| byte.is_ascii_graphic()) { next } else { "/" }
}

/// `next`: the page to show after the login.
fn form(web: &Web, next: &str, problem: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head("Log in · Rollcall", &web.base))
            body {
                main #main.narrow {
                    h1 { "Rollcall" }
                    @if let Some(problem) = problem { p.banner.serious role="alert" { (problem) } }
                    form method="post" action={ (web.base) "/login" } {
                        input type="hidden" name="next" value=(next);
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
    #[serde(default)]
    next: String,
}

async fn log_in(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<PeerAddress>,
    headers: HeaderMap,
    body: Result<Form<Credentials>, FormRejection>,
) -> Result<Response, FailedPage> {
    if caller.is_foreign() {
        return Err(HttpError::forbidden("a page of another site may not log in here").into());
    }
    let Ok(Form(Credentials { token, next })) = body else {
        return Err(HttpError::bad_request("the form has the field token").into());
    };
    let client = web.proxies.client(peer, &headers);
    let next = local(&next);
    let again = |status, text: &str| (status, form(&web, next, Some(text))).into_response();
    Ok(match web.sessions.log_in(client, &token, web.clock.now()).await {
        Ok(Some(cookie)) => {
            ([(SET_COOKIE, cookie)], Redirect::to(&format!("{}{next}", web.base))).into_response()
        }
        Ok(None) => again(StatusCode::FORBIDDEN, "This is no known token."),
        Err(RefusedLogin::Busy) => {
            let text = "Too many logins at the same time. Try again in a moment.";
            again(StatusCode::TOO_MANY_REQUESTS, text)
        }
        Err(RefusedLogin::TooManyWrong(wait)) => {
            let seconds = wait.as_secs() + 1;
            let text = format!("Too many wrong tokens from your address. Try again in {seconds} s.");
            ([(RETRY_AFTER, seconds.to_string())], again(StatusCode::TOO_MANY_REQUESTS, &text))
                .into_response()
        }
    })
}

/// Ends the session: the cookie is refused from now on, and so are copies of it.
async fn log_out(State(web): WebState, headers: HeaderMap) -> Result<impl IntoResponse, FailedPage> {
    let now = web.clock.now();
    if let Some(session) = web.sessions.find(&headers, now) {
        web.ended.add(&session.cookie, session.ends, now).await?;
    }
    Ok(([(SET_COOKIE, web.sessions.end())], Redirect::to(&format!("{}/login", web.base))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_a_page_of_rollcall_alone() {
        for (next, shown) in [
            ("/units/gate/7?a=b", "/units/gate/7?a=b"),
            ("", "/"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\t/evil.example", "/"),
        ] {
            assert_eq!(local(next), shown, "{next:?}");
        }
    }
}

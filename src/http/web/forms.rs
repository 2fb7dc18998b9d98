//! The forms with which operators change a unit. The answer is the page that sent the form.

use std::time::Duration;

use axum::extract::rejection::FormRejection;
use axum::extract::{DefaultBodyLimit, Form, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Redirect;
use axum::routing::post;
use axum::{Extension, Router};
use maud::{Markup, html};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{FailedPage, Web, WebState};
use crate::fleet::{Subject, UnitChange};
use crate::http::Role;
use crate::http::changes::{self, Caller, HasTokens, MAX_BODY};
use crate::http::http_error::{HttpError, in_words};
use crate::http::operators::{UnitPath, check, unit};
use crate::pages;
use crate::presence::{Acknowledgement, Unit, is_pause};

/// A browser that sends the type of these bodies names the site of the page, so the guard can refuse forms of other
/// sites.
///
/// `others`: the forms of other pages.
pub(super) fn pages(others: Router<Web>, has_tokens: HasTokens) -> Router<Web> {
    others
        .route("/units/{kind}/{unit}/ack", post(acknowledge))
        .route("/units/{kind}/{unit}/unack", post(undo))
        .route("/units/{kind}/{unit}/pause", post(pause))
        .route("/units/{kind}/{unit}/unpause", post(end_pause))
        .route("/units/{kind}/{unit}/remove", post(remove))
        .route_layer(from_fn_with_state(has_tokens, changes::guard_without_body))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

pub(super) type FormBody<T> = Result<Form<T>, FormRejection>;

#[derive(Deserialize)]
struct SignedForm {
    author: String,
    #[serde(default)]
    comment: String,
}

async fn acknowledge(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    body: FormBody<SignedForm>,
) -> Result<Redirect, FailedPage> {
    let (unit, SignedForm { author, comment }) = (unit(path)?, fields(body)?);
    check(&author, &comment)?;
    let (by, at) = (caller.by(Some(&author)), web.clock.now());
    let taken = Acknowledgement { at, author, comment: comment.clone() };
    web.change(unit, UnitChange::Acknowledge(Some(taken)), (&by, &comment)).await
}

async fn undo(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
) -> Result<Redirect, FailedPage> {
    web.change(unit(path)?, UnitChange::Acknowledge(None), (&caller.by(None), "")).await
}

#[derive(Deserialize)]
struct PauseForm {
    hours: f64,
    author: String,
    #[serde(default)]
    comment: String,
}

async fn pause(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    body: FormBody<PauseForm>,
) -> Result<Redirect, FailedPage> {
    let (unit, PauseForm { hours, author, comment }) = (unit(path)?, fields(body)?);
    check(&author, &comment)?;
    let now = web.clock.now();
    let until = now + length_of(hours).unwrap_or_default();
    if !is_pause(until, now) {
        return Err(HttpError::bad_request("hours is a number of hours, at most a year").into());
    }
    let by = caller.by(Some(&author));
    web.change(unit, UnitChange::Pause(Some(until)), (&by, &comment)).await
}

async fn end_pause(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
) -> Result<Redirect, FailedPage> {
    web.change(unit(path)?, UnitChange::Pause(None), (&caller.by(None), "")).await
}

#[derive(Deserialize)]
struct Confirmation {
    sure: String,
}

async fn remove(
    State(web): WebState,
    Extension(caller): Extension<Caller>,
    path: UnitPath,
    body: FormBody<Confirmation>,
) -> Result<Redirect, FailedPage> {
    caller.require(Role::Admin)?;
    let (unit, Confirmation { sure }) = (unit(path)?, fields(body)?);
    if sure != "yes" {
        return Err(HttpError::bad_request("confirm that the unit is to be removed").into());
    }
    let by = caller.by(None);
    web.operators.change(Subject::Unit(unit), UnitChange::Remove, (&by, "")).await?;
    Ok(Redirect::to(&format!("{}/", web.base)))
}

/// The length of a number of hours, to the second; `None` if the number is not a length.
pub(super) fn length_of(hours: f64) -> Option<Duration> {
    Duration::try_from_secs_f64((hours * 3600.0).round()).ok()
}

/// The fields for the name of the operator and a comment.
pub(super) fn signature(needs_comment: bool) -> Markup {
    html! {
        label { "Your name" input name="author" required maxlength="128" autocomplete="name" placeholder=" " data-remember="author"; }
        label { "Comment" input name="comment" maxlength="512" required[needs_comment]; }
    }
}

impl Web {
    /// Changes the unit, and answers with its page.
    async fn change(&self, unit: Unit, wanted: UnitChange, by: (&str, &str)) -> Result<Redirect, FailedPage> {
        let path = format!("{}{}", self.base, pages::unit(unit.kind.as_str(), unit.id.as_str()));
        let _: StatusCode = self.operators.change(Subject::Unit(unit), wanted, by).await?;
        Ok(Redirect::to(&path))
    }
}

pub(super) fn fields<T: DeserializeOwned>(body: FormBody<T>) -> Result<T, HttpError> {
    match body {
        Ok(Form(fields)) => Ok(fields),
        Err(rejection) => Err(HttpError::bad_request(in_words(&rejection.body_text()))),
    }
}

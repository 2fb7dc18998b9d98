//! The middleware of every request: its token, a time limit, headers for browsers.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::changes::{Caller, HasTokens};
use super::problem::{Detail, Problem};
use super::{Token, alertmanager};

/// How long an answer may take to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The pages for health, for probes without a token.
const OPEN_PAGES: [&str; 2] = ["/healthz", "/readyz"];

/// Refuses requests without a known token, if there are tokens. Pages learn from [`Caller`] what the client may do.
pub(super) async fn require_token(
    State(tokens): State<Arc<[Token]>>,
    mut request: Request,
    next: Next,
) -> Response {
    let open = tokens.is_empty() || OPEN_PAGES.contains(&request.uri().path());
    let token = known(&tokens, request.headers());
    if token.is_none() && !open {
        return Problem::unauthorized().into_response();
    }
    let caller = Caller::of(token, HasTokens(!tokens.is_empty()), request.headers());
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// The request's token, of several that one with the most rights. Compares with every token, in constant time.
fn known<'a>(tokens: &'a [Token], headers: &HeaderMap) -> Option<&'a Token> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let digest = Token::digest(token.trim());
    let same = |known: &&Token| bool::from(known.sha256.as_slice().ct_eq(&digest));
    tokens.iter().filter(same).max_by_key(|known| known.role)
}

/// Answers 503 if the page's answer does not begin in time.
pub(super) async fn limit_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            Problem::unavailable(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())).into_response()
        }
    }
}

/// Errors of Alertmanager's API are a JSON string.
pub(super) async fn plain_errors(request: Request, next: Next) -> Response {
    let is_alertmanager = request.uri().path().starts_with(alertmanager::PREFIX);
    let mut response = next.run(request).await;
    if is_alertmanager && let Some(Detail(detail)) = response.extensions_mut().remove() {
        let mut plain = Json(detail).into_response();
        *plain.status_mut() = response.status();
        for name in [ALLOW, RETRY_AFTER, WWW_AUTHENTICATE] {
            if let Some(value) = response.headers_mut().remove(&name) {
                plain.headers_mut().insert(name, value);
            }
        }
        return plain;
    }
    response
}

/// Answers are neither cached nor read as another content type.
pub(super) async fn set_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

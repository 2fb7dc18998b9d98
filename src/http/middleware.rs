//! The middleware of every request: its token, a time limit, headers for browsers.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::problem::Problem;
use super::{Role, Token};

/// How long an answer may take to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The pages for health, for probes without a token.
const OPEN_PAGES: [&str; 2] = ["/healthz", "/readyz"];

/// Refuses requests without a known token, if there are tokens.
pub(super) async fn require_token(
    State(tokens): State<Arc<[Token]>>,
    request: Request,
    next: Next,
) -> Response {
    let open = tokens.is_empty() || OPEN_PAGES.contains(&request.uri().path());
    // Every page is read-only so far, so the least role is enough.
    if open || role(&tokens, request.headers()) >= Some(Role::Viewer) {
        next.run(request).await
    } else {
        Problem::unauthorized().into_response()
    }
}

/// The role of the request's token. Compares with every token, in constant time.
fn role(tokens: &[Token], headers: &HeaderMap) -> Option<Role> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let digest = Token::digest(token.trim());
    let same = |known: &&Token| bool::from(known.sha256.as_slice().ct_eq(&digest));
    tokens.iter().filter(same).map(|known| known.role).max()
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

/// Answers are neither cached nor read as another content type.
pub(super) async fn set_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

//! What every request passes: its token, a limit of time, headers that keep browsers careful.

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
const PATIENCE: Duration = Duration::from_secs(15);

/// Pages that say whether Rollcall lives, for probes that hold no token.
const OPEN_PAGES: [&str; 2] = ["/healthz", "/readyz"];

/// Passes requests on whose token is known, and all if there are no tokens.
pub(super) async fn ask_for_a_token(
    State(tokens): State<Arc<[Token]>>,
    request: Request,
    next: Next,
) -> Response {
    let open = tokens.is_empty() || OPEN_PAGES.contains(&request.uri().path());
    // Every page is only read so far, so the least role will do.
    if open || role(&tokens, request.headers()) >= Some(Role::Viewer) {
        next.run(request).await
    } else {
        Problem::unauthorized().into_response()
    }
}

/// What the holder of the request's token may do. Compares with every token, in a time that does
/// not tell how much of one was right.
fn role(tokens: &[Token], headers: &HeaderMap) -> Option<Role> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let digest = hmac_sha256::Hash::hash(token.trim().as_bytes());
    let same = |known: &&Token| bool::from(known.sha256.as_slice().ct_eq(&digest));
    tokens.iter().filter(same).map(|known| known.role).max()
}

/// Gives up on answers that do not begin.
pub(super) async fn limit_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::unavailable(format!("no answer within {} s", PATIENCE.as_secs())).into_response(),
    }
}

/// An answer is of this moment and is what it says it is.
pub(super) async fn set_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

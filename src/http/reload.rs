//! `/-/reload`: POST loads the configuration again, as SIGHUP does. The answer comes after that: 200, or 500 with the
//! errors of the file.

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::routing::post;
use tokio::sync::{mpsc, oneshot};

use super::changes::{self, HasTokens};
use super::http_error::HttpError;

/// A request to load the configuration again. The answer is a notice for the operator, or the reason why nothing has
/// changed.
pub type ReloadRequest = oneshot::Sender<Result<String, String>>;

/// The channel to the loop that loads the configuration again; `None` if this process has no such loop.
pub type Reloads = Option<mpsc::Sender<ReloadRequest>>;

pub(super) fn page(reloads: Reloads, has_tokens: HasTokens) -> Router {
    Router::new()
        .route("/-/reload", post(reload))
        .route_layer(from_fn_with_state(has_tokens, changes::guard_without_body))
        .with_state(reloads)
}

async fn reload(State(reloads): State<Reloads>) -> Result<String, HttpError> {
    const ENDED: &str = "the configuration of this process cannot be loaded again";
    let reloads = reloads.ok_or_else(|| HttpError::not_found(ENDED))?;
    let (request, answer) = oneshot::channel();
    reloads.send(request).await.map_err(|_| HttpError::unavailable(ENDED))?;
    answer.await.map_err(|_| HttpError::unavailable(ENDED))?.map_err(HttpError::internal)
}

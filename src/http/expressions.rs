//! Parses the matchers of requests away from the threads of requests.
//!
//! An expression of a few thousand bytes takes up to half a second to compile. One expression at a time is compiled, on
//! a thread of its own, so that neither other requests nor heartbeats wait for it. Matchers without an expression need
//! not wait.

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::http_error::HttpError;
use crate::routing::{Matcher, parse_all_label_matchers};

static TURN: Semaphore = Semaphore::const_new(1);

/// Parses matchers from several texts, each with commas between its matchers; `what` names the texts in an error.
pub(super) async fn matchers(texts: Vec<String>, what: &'static str) -> Result<Vec<Matcher>, HttpError> {
    let has_expressions = texts.iter().any(|text| text.contains("=~") || text.contains("!~"));
    let read = move || {
        parse_all_label_matchers(&texts).map_err(|(text, error)| {
            HttpError::bad_request(format!("{what}: {text:?}: {error}; write site=\"north\""))
        })
    };
    if has_expressions { compiled(read).await } else { read() }
}

/// Runs a function that compiles expressions; one such function runs at a time.
pub(super) async fn compiled<T: Send + 'static>(
    compile: impl FnOnce() -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    let turn = TURN.acquire().await.map_err(|error| HttpError::internal(error.to_string()))?;
    let compiling = spawn_blocking(move || {
        let _turn = turn;
        compile()
    });
    compiling.await.map_err(|error| HttpError::internal(format!("reading the matchers failed: {error}")))?
}

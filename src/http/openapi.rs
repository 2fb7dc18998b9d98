//! `/api/v1/openapi.json`: the description of the API, for programs that generate clients.
//!
//! # Why it is a file
//! The description is written by hand, like a page of documentation. The tests compare it with every route and with the
//! answers.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

const DOCUMENT: &str = include_str!("openapi.json");

pub(super) fn page() -> Router {
    Router::new()
        .route("/api/v1/openapi.json", get(|| async { ([(CONTENT_TYPE, "application/json")], DOCUMENT) }))
}

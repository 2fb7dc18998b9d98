//! `/api/v1/audit`: the last changes that operators made, newest first.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::http_error::{HttpError, page_limit, query};
use crate::fleet::Silences;
use crate::store::{AuditEntry, MAX_AUDITED};

const DEFAULT_LIMIT: usize = 100;

pub(super) fn page(silences: Arc<Silences>) -> Router {
    Router::new().route("/api/v1/audit", get(audit)).with_state(silences)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    limit: Option<usize>,
}

#[derive(Serialize)]
struct AuditPage {
    audit: Vec<AuditEntry>,
}

async fn audit(State(silences): State<Arc<Silences>>, uri: Uri) -> Result<Json<AuditPage>, HttpError> {
    let AuditQuery { limit } = query(&uri)?;
    let limit = page_limit(limit, DEFAULT_LIMIT, MAX_AUDITED)?;
    Ok(Json(AuditPage { audit: silences.audit(limit).await? }))
}

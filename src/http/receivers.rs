//! `/api/v1/receivers`: the backlog of each receiver, and whether it takes notifications.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::http_error::{HttpError, query};
use super::{AlertRoutes, PageSources};
use crate::fleet::Receivers;
use crate::fleet::receivers::ReceiverLine;
use crate::store::Documents;

#[derive(Clone)]
struct ReceiversState {
    receivers: Receivers,
    routes: watch::Receiver<Arc<AlertRoutes>>,
}

pub(super) fn page(sources: &PageSources) -> Router {
    let PageSources { deliveries: records, cells, routes, .. } = sources.clone();
    let state = ReceiversState { receivers: Receivers { records, documents: Documents::new(cells) }, routes };
    Router::new().route("/api/v1/receivers", get(list)).with_state(state)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiversQuery {}

#[derive(Serialize)]
struct ReceiversPage {
    receivers: Vec<ReceiverLine>,
}

async fn list(State(state): State<ReceiversState>, uri: Uri) -> Result<Json<ReceiversPage>, HttpError> {
    let ReceiversQuery {} = query(&uri)?;
    let types = state.routes.borrow().types.clone();
    Ok(Json(ReceiversPage { receivers: state.receivers.list(&types).await? }))
}

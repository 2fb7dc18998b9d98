//! `alerts` and `alerts/groups`: the open records, alone and in the groups of their routes.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde::Serialize;

use super::alert::{Alert, base_of};
use super::filter::AlertFilter;
use super::{AlertmanagerState, Receiver, list};
use crate::clock::Timestamp;
use crate::http::AlertRoutes;
use crate::http::problem::Problem;
use crate::presence::{Labels, OfflineRecord};
use crate::routing::alert::is_match;
use crate::routing::{AlertSilence, SilenceId};
use crate::store::OpenPages;

/// The most open records that an answer examines.
const MOST_ALERTS: usize = 10_000;
/// The newest open records, and whether there are more.
struct OpenRecords {
    records: Vec<OfflineRecord>,
    has_more: bool,
}

pub(super) async fn alerts(
    State(state): State<AlertmanagerState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (filter, base) = (AlertFilter::of(&uri)?, base_of(&headers));
    let permit = state.permit().await?;
    let (now, silences, open) = state.read().await?;
    let mut alerts: Vec<Alert> = Vec::new();
    let routes = state.routes();
    for record in &open.records {
        let receivers = receivers_of(&routes, record);
        let names: Vec<&str> = receivers.iter().map(|receiver| receiver.name.as_str()).collect();
        if filter.takes_receivers(&names)
            && let Some(silenced_by) = filter.silenced_by(record, &silences, now)
        {
            alerts.push(Alert::of(record, receivers, silenced_by, &base, now));
        }
    }
    alerts.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
    if open.has_more && filter.active {
        alerts.insert(0, Alert::of_cut_list(MOST_ALERTS, &base, now));
    }
    list(&alerts, permit)
}

#[derive(Serialize)]
pub(super) struct AlertGroup {
    labels: Labels,
    receiver: Receiver,
    alerts: Vec<Alert>,
}

pub(super) async fn groups(
    State(state): State<AlertmanagerState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (filter, base) = (AlertFilter::of(&uri)?, base_of(&headers));
    let permit = state.permit().await?;
    let (now, silences, open) = state.read().await?;
    let routes = state.routes();
    // By the labels first, as in Alertmanager; then by receiver and route.
    let mut groups: BTreeMap<(Labels, String, &str), Vec<Alert>> = BTreeMap::new();
    for record in &open.records {
        let Some(silenced_by) = filter.silenced_by(record, &silences, now) else { continue };
        let all = receivers_of(&routes, record);
        for taken in routes.routes.of(record) {
            for name in taken.route.receivers.iter().filter(|name| filter.takes_receiver(name)) {
                let alert = Alert::of(record, all.clone(), silenced_by.clone(), &base, now);
                let key = (taken.route.shared(record), name.clone(), taken.id);
                groups.entry(key).or_default().push(alert);
            }
        }
    }
    let group = |((labels, name, _), alerts): ((Labels, String, &str), Vec<Alert>)| AlertGroup {
        labels,
        receiver: Receiver { name },
        alerts,
    };
    let mut groups: Vec<AlertGroup> = groups.into_iter().map(group).collect();
    if open.has_more && filter.active {
        let name = routes.receivers.first().cloned().unwrap_or_default();
        let alerts = vec![Alert::of_cut_list(MOST_ALERTS, &base, now)];
        groups.insert(0, AlertGroup { labels: Labels::new(), receiver: Receiver { name }, alerts });
    }
    list(&groups, permit)
}

impl AlertFilter {
    /// The alert silences that cover a record; `None`: it is not asked for.
    fn silenced_by(
        &self,
        record: &OfflineRecord,
        silences: &[AlertSilence],
        now: Timestamp,
    ) -> Option<Vec<SilenceId>> {
        if !self.matchers.iter().all(|matcher| is_match(matcher, record)) {
            return None;
        }
        let covering = silences.iter().filter(|silence| silence.covers(record, now));
        let silenced_by: Vec<SilenceId> = covering.map(|silence| silence.id).collect();
        let is_wanted = if silenced_by.is_empty() { self.active } else { self.silenced };
        is_wanted.then_some(silenced_by)
    }
}

impl AlertmanagerState {
    async fn read(&self) -> Result<(Timestamp, std::sync::Arc<[AlertSilence]>, OpenRecords), Problem> {
        let silences = self.silences.current().await?;
        let open = self.open_records().await?;
        Ok((self.clock.now(), silences, open))
    }

    async fn open_records(&self) -> Result<OpenRecords, Problem> {
        let mut records: Vec<OfflineRecord> = Vec::new();
        let mut pages = OpenPages::new(&*self.records);
        while records.len() < MOST_ALERTS
            && let Some(page) = pages.next().await?
        {
            records.extend(page);
        }
        Ok(OpenRecords { records, has_more: pages.has_more().await? })
    }
}

/// The receivers of the routes that a record takes, each once.
fn receivers_of(AlertRoutes { routes, .. }: &AlertRoutes, record: &OfflineRecord) -> Vec<Receiver> {
    let mut receivers: Vec<Receiver> = Vec::new();
    for name in routes.of(record).iter().flat_map(|taken| &taken.route.receivers) {
        if receivers.iter().all(|known| known.name != *name) {
            receivers.push(Receiver { name: name.clone() });
        }
    }
    receivers
}

//! `alerts` and `alerts/groups`: the open records, alone and in the groups of their routes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::alert::{ShownAlert, Suppressed};
use super::filter::AlertFilter;
use super::{AlertmanagerState, NOBODY, Receiver, list};
use crate::clock::{Timestamp, monotonic};
use crate::fleet::{FlapDetector, Inhibitions};
use crate::http::AlertRoutes;
use crate::http::http_error::HttpError;
use crate::presence::{Labels, OfflineRecord, Trip, Unit};
use crate::routing::alert::{ALERT_NAME, BREAKER_TRIPPED, fingerprint, is_match};
use crate::routing::{AlertSilences, Inhibitors, MatchedRoute, SilenceId};
use crate::store::OpenPages;

/// The most open records that an answer examines.
const MAX_ALERTS: usize = 10_000;
/// How long a request may compare its matchers with these records.
const MAX_SELECTING: Duration = Duration::from_secs(2);
/// The newest open records, whether there are more, and the reasons to hold their notifications.
struct NewestRecords {
    records: Vec<OfflineRecord>,
    has_more: bool,
    silences: Arc<AlertSilences>,
    inhibitors: Arc<Inhibitors>,
    /// The trip of the mass-offline breaker that holds notifications now.
    trip: Option<Trip>,
    /// Episodes of flapping, by their units.
    episodes: HashMap<Unit, OfflineRecord>,
    now: Timestamp,
}

pub(super) async fn alerts(State(state): State<AlertmanagerState>, uri: Uri) -> Result<Response, HttpError> {
    let (filter, base) = (AlertFilter::of(&uri).await?, state.base.clone());
    let permit = state.permit().await?;
    let open = filter.selected(state.read().await?).await?;
    let now = open.now;
    let mut alerts: Vec<ShownAlert> = Vec::new();
    let routes = state.routes();
    for record in &open.records {
        let receivers = receivers_of(&routes, record);
        let names: Vec<&str> = receivers.iter().map(|receiver| receiver.name.as_str()).collect();
        if filter.takes_receivers(&names)
            && let Some(suppressed) = filter.suppressed(record, &routes, &open)
        {
            let alert = ShownAlert::of(record, receivers, suppressed, base.as_deref(), now);
            alerts.push(alert.with_episode(open.episodes.get(&record.id.unit)));
        }
    }
    alerts.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
    alerts.splice(0..0, filter.mass_offline(&routes, &open, base.as_deref()));
    if open.has_more && filter.active {
        alerts.insert(0, ShownAlert::of_cut_list(MAX_ALERTS, base.as_deref(), now));
    }
    list(&alerts, permit)
}

#[derive(Serialize)]
pub(super) struct AlertGroup {
    labels: Labels,
    /// Always empty: routes of Rollcall have no labels.
    #[serde(rename = "routeLabels")]
    route_labels: Labels,
    receiver: Receiver,
    alerts: Vec<ShownAlert>,
}

pub(super) async fn groups(State(state): State<AlertmanagerState>, uri: Uri) -> Result<Response, HttpError> {
    let (filter, base) = (AlertFilter::of(&uri).await?, state.base.clone());
    let permit = state.permit().await?;
    let open = filter.selected(state.read().await?).await?;
    let now = open.now;
    let routes = state.routes();
    // Groups are sorted by their labels first, as in Alertmanager, then by receiver and route.
    let mut groups: BTreeMap<(Labels, String, &str), Vec<ShownAlert>> = BTreeMap::new();
    for record in &open.records {
        let Some(suppressed) = filter.suppressed(record, &routes, &open) else { continue };
        let all = receivers_of(&routes, record);
        for taken in routes.routes.of(record) {
            let nobody = taken.route.receivers.is_empty().then(|| NOBODY.to_owned());
            let names = taken.route.receivers.iter().chain(&nobody);
            for name in names.filter(|name| filter.takes_receiver(name)) {
                let alert = ShownAlert::of(record, all.clone(), suppressed.clone(), base.as_deref(), now)
                    .with_episode(open.episodes.get(&record.id.unit));
                let key = (taken.route.shared(record), name.clone(), taken.id);
                groups.entry(key).or_default().push(alert);
            }
        }
    }
    let group = |((labels, name, _), mut alerts): ((Labels, String, &str), Vec<ShownAlert>)| {
        alerts.sort_by(|a, b| a.labels.cmp(&b.labels));
        AlertGroup { labels, route_labels: Labels::new(), receiver: Receiver { name }, alerts }
    };
    let mut groups: Vec<AlertGroup> = groups.into_iter().map(group).collect();
    if let Some(alert) = filter.mass_offline(&routes, &open, base.as_deref()) {
        let name = alert.receivers.first().map(|receiver| receiver.name.clone()).unwrap_or_default();
        groups.insert(
            0,
            AlertGroup {
                labels: Labels::new(),
                route_labels: Labels::new(),
                receiver: Receiver { name },
                alerts: vec![alert],
            },
        );
    }
    if open.has_more && filter.active {
        let name = routes.receivers.first().cloned().unwrap_or_default();
        let alerts = vec![ShownAlert::of_cut_list(MAX_ALERTS, base.as_deref(), now)];
        let (labels, route_labels) = (Labels::new(), Labels::new());
        groups.insert(0, AlertGroup { labels, route_labels, receiver: Receiver { name }, alerts });
    }
    list(&groups, permit)
}

impl AlertFilter {
    /// Keeps the records that all matchers match. A thread of its own compares them, because a slow expression would
    /// stop other requests; it gives up after [`MAX_SELECTING`].
    async fn selected(&self, open: NewestRecords) -> Result<NewestRecords, HttpError> {
        let matchers = self.matchers.clone();
        let (until, records) = (monotonic() + MAX_SELECTING, open.records);
        let takes = move |record: &OfflineRecord| matchers.iter().all(|matcher| is_match(matcher, record));
        let selecting = spawn_blocking(move || {
            let in_time = records.into_iter().map(|record| (monotonic() < until).then_some(record));
            in_time.filter(|one| one.as_ref().is_none_or(&takes)).collect::<Option<Vec<OfflineRecord>>>()
        });
        let selected = selecting.await.map_err(|error| HttpError::internal(error.to_string()))?;
        let records = selected.ok_or_else(|| {
            HttpError::bad_request("the expressions of filter take too long; write simpler ones")
        })?;
        Ok(NewestRecords { records, ..open })
    }

    /// The silences and inhibitions that hold a record; `None` if the filter leaves the record out.
    fn suppressed(
        &self,
        record: &OfflineRecord,
        AlertRoutes { routes, .. }: &AlertRoutes,
        open: &NewestRecords,
    ) -> Option<Suppressed> {
        let covering = open.silences.covering(record, open.now);
        let mut silenced_by: Vec<SilenceId> = covering.map(|silence| silence.id).collect();
        silenced_by.sort();
        let by = open.inhibitors.held(record, open.now).into_iter().flat_map(|held| held.by);
        let mut inhibited_by: Vec<String> = by.map(|source| source.fingerprint.clone()).collect();
        // Receivers were notified of silences whose wait was over before the trip.
        let is_held = |trip: &Trip| {
            let waited = |taken: &MatchedRoute<'_>| taken.route.ready_at(record) < trip.at;
            record.detected_at >= trip.since || !routes.of(record).iter().any(waited)
        };
        if open.trip.as_ref().is_some_and(is_held) {
            inhibited_by.push(fingerprint(&mass_offline_labels()));
        }
        let is_active = silenced_by.is_empty() && inhibited_by.is_empty();
        let is_wanted = (self.active || !is_active)
            && (self.silenced || silenced_by.is_empty())
            && (self.inhibited || inhibited_by.is_empty());
        is_wanted.then_some(Suppressed { silenced_by, inhibited_by })
    }

    /// The alert of the mass-offline breaker, if it holds notifications and the filter selects it.
    fn mass_offline(
        &self,
        AlertRoutes { routes, receivers, .. }: &AlertRoutes,
        open: &NewestRecords,
        base: Option<&str>,
    ) -> Option<ShownAlert> {
        let trip = open.trip.as_ref().filter(|_| self.active)?;
        let labels = mass_offline_labels();
        let value = |name: &str| labels.get(name).map_or("", String::as_str);
        let notified = routes.destinations(receivers.clone()).blind().receivers.clone();
        let names: Vec<&str> = notified.iter().map(String::as_str).collect();
        let is_match = self.matchers.iter().all(|matcher| matcher.is_match(value(matcher.name())));
        (is_match && self.takes_receivers(&names)).then(|| {
            let receivers = notified.iter().map(|name| Receiver { name: name.clone() }).collect();
            ShownAlert::of_mass_offline(trip, labels, receivers, base, open.now)
        })
    }
}

impl AlertmanagerState {
    async fn read(&self) -> Result<NewestRecords, HttpError> {
        let silences = self.silences.current().await?;
        let inhibition = self.routes().inhibition.clone();
        let inhibitions = Inhibitions::new(self.cells.clone(), inhibition, self.telemetry.clone());
        let inhibitors = inhibitions.current().await?;
        let trip = match self.routes().breaker.is_some() {
            true => self.breaker.last().await?.filter(Trip::is_held),
            false => None,
        };
        let (records, has_more) = self.open_records().await?;
        let rules = self.routes().flapping.clone();
        let flapping = FlapDetector::new(self.cells.clone(), rules, self.telemetry.clone());
        let episodes = flapping.lasting(records.iter().map(|record| &record.id.unit)).await?;
        Ok(NewestRecords { records, has_more, silences, inhibitors, trip, episodes, now: self.clock.now() })
    }

    async fn open_records(&self) -> Result<(Vec<OfflineRecord>, bool), HttpError> {
        let mut records: Vec<OfflineRecord> = Vec::new();
        let mut pages = OpenPages::new(&*self.records);
        while records.len() < MAX_ALERTS
            && let Some(page) = pages.next().await?
        {
            records.extend(page);
        }
        let has_more = pages.has_more().await?;
        Ok((records, has_more))
    }
}

fn mass_offline_labels() -> Labels {
    Labels::from([(ALERT_NAME.to_owned(), BREAKER_TRIPPED.to_owned())])
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

//! The page of incidents: the open records in the groups in which receivers are notified of them, the trip of the
//! mass-offline breaker, and the last blind intervals.
//!
//! All data are stored values. Requests of a moment share one answer, because in a storm many browsers request it at
//! once.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::breaker::breaker;
use super::http_error::HttpError;
use super::shared_answers::{MaxAge, SharedAnswers};
use super::{AlertRoutes, PageSources};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{MassBreaker, Roll, Silences};
use crate::presence::{Interval, Labels, OfflineRecord, Trip};
use crate::store::{OpenPages, Queries};

/// The most open records that are grouped, newest first.
const MAX_RECORDS: usize = 10_000;

/// The most groups in an answer, largest first.
const MAX_GROUPS: usize = 100;

/// The most blind intervals, the newest.
const MAX_BLIND: usize = 20;

/// Reads the content of the page.
#[derive(Clone)]
pub(super) struct IncidentReader {
    records: Arc<dyn Queries>,
    silences: Arc<Silences>,
    breaker: Arc<MassBreaker>,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    roll: Arc<Roll>,
    clock: Clock,
    recent: SharedAnswers<OngoingIncident>,
}

/// The content of the page of incidents.
pub(super) struct OngoingIncident {
    pub at: Timestamp,
    /// The trip of the breaker that holds notifications now.
    pub trip: Option<Trip>,
    /// The groups, sorted by their number of units, the largest first.
    pub groups: Vec<OngoingGroup>,
    /// How many groups are left out.
    pub more_groups: usize,
    /// Some open records are in no group here, because there are too many.
    pub is_cut: bool,
    /// Blind intervals of the fleet, the newest first.
    pub blind: Vec<Interval>,
}

/// A group with silences that last.
pub(super) struct OngoingGroup {
    pub labels: Labels,
    /// The receivers that are notified at once or by an escalation.
    pub receivers: Vec<String>,
    /// The number of offline units, of acknowledged ones among them, and of silenced ones.
    pub offline: usize,
    pub acknowledged: usize,
    pub silenced: usize,
    /// The record with the first deadline, and the newest deadline.
    pub first: OfflineRecord,
    pub newest: Timestamp,
}

impl IncidentReader {
    pub fn new(sources: &PageSources) -> IncidentReader {
        IncidentReader {
            records: sources.records.clone(),
            silences: sources.silences.clone(),
            breaker: Arc::new(breaker(sources)),
            routes: sources.routes.clone(),
            roll: sources.roll.clone(),
            clock: sources.clock.clone(),
            recent: SharedAnswers::new(1),
        }
    }

    /// The content of the page, up to some seconds old.
    pub async fn recent(&self) -> Result<Arc<OngoingIncident>, HttpError> {
        let reader = self.clone();
        self.recent.get("", MaxAge::OF_RECORDS, async move { reader.read().await }).await
    }

    /// Releases the breaker; returns `false` if it holds nothing. `by`: the operator, for the audit.
    pub async fn release(&self, by: &str, comment: &str) -> Result<bool, HttpError> {
        let is_released = self.breaker.release((by, comment), self.clock.now()).await?;
        self.recent.forget();
        Ok(is_released)
    }

    async fn read(&self) -> Result<OngoingIncident, HttpError> {
        let (now, routes) = (self.clock.now(), self.routes.borrow().clone());
        let trip = self.breaker.last().await?.filter(|trip| routes.breaker.is_some() && trip.is_held());
        let silences = self.silences.current().await?;
        let mut groups: BTreeMap<(String, Labels), OngoingGroup> = BTreeMap::new();
        let mut pages = OpenPages::new(&*self.records);
        let mut read = 0;
        while read < MAX_RECORDS
            && let Some(page) = pages.next().await?
        {
            read += page.len();
            let rules = self.roll.rules();
            let is_archived = |record: &OfflineRecord| {
                rules.get(&record.kind).is_some_and(|rules| rules.is_archived(record.deadline, now))
            };
            for record in page.into_iter().filter(|record| !is_archived(record)) {
                let is_silenced = silences.covering(&record, now).next().is_some();
                for taken in routes.routes.of(&record) {
                    let labels = taken.route.shared(&record);
                    let group = groups.entry((taken.id.to_owned(), labels));
                    let labels = group.key().1.clone();
                    let receivers = || taken.route.notified().into_iter().cloned().collect();
                    group
                        .or_insert_with(|| OngoingGroup::new(labels, receivers(), &record))
                        .add(&record, is_silenced);
                }
            }
        }
        let mut groups: Vec<OngoingGroup> = groups.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.offline), group.first.deadline));
        let more_groups = groups.len().saturating_sub(MAX_GROUPS);
        groups.truncate(MAX_GROUPS);
        let hearing = self.roll.hearing();
        let blind = hearing.ledger.intervals().iter().rev().take(MAX_BLIND).copied().collect();
        Ok(OngoingIncident { at: now, trip, groups, more_groups, is_cut: pages.has_more().await?, blind })
    }
}

impl OngoingGroup {
    fn new(labels: Labels, receivers: Vec<String>, first: &OfflineRecord) -> OngoingGroup {
        let (first, newest) = (first.clone(), first.deadline);
        OngoingGroup { labels, receivers, offline: 0, acknowledged: 0, silenced: 0, first, newest }
    }

    fn add(&mut self, record: &OfflineRecord, is_silenced: bool) {
        self.offline += 1;
        self.acknowledged += usize::from(record.is_acknowledged());
        self.silenced += usize::from(is_silenced);
        self.newest = self.newest.max(record.deadline);
        if record.deadline < self.first.deadline {
            self.first = record.clone();
        }
    }
}

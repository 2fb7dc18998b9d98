//! Recent notifications, for the page of the fleet: how many notifications receivers took and how many wait; and for
//! each silent unit of a page, which receivers were notified.
//!
//! All data are stored values, read in bounded steps and shared by the requests of a moment. While the engine does not
//! answer in time, the page is shown without them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::http_error::HttpError;
use super::shared_answers::{MaxAge, SharedAnswers};
use super::told::{Notified, SealedFor};
use super::{AlertRoutes, PageSources};
use crate::clock::{Clock, Timestamp};
use crate::fleet::Attempts;
use crate::presence::{OfflineRecord, RecordId};
use crate::routing::{SealedNotice, SilenceNotice};
use crate::store::{AttemptResult, EntryOrder, StoredDeliveries, StoredGroups};

/// The time for which notifications are counted.
const LATELY: Duration = Duration::from_secs(3600);

/// Up to how many notifications are counted: a page says of more that there are as many or more.
const MANY: usize = 100;

/// How many steps of the record of attempts are read for the count, and how many if these have too few notifications;
/// each step has up to some hundred attempts.
const STEPS: [usize; 2] = [200, 2000];

/// The most silent units of a page for which notifications are looked up.
const MAX_UNITS: usize = 100;

/// How long the engine may take; the rest of the page does not need it.
const NOTICES_TIMEOUT: Duration = Duration::from_secs(1);

/// The most pages whose answers are kept.
const MAX_KEPT: usize = 16;

/// How many notifications there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NoticeCounts {
    /// How many notifications receivers took in the last hour, up to [`MANY`].
    pub lately: usize,
    /// Whether there may be more.
    pub is_cut: bool,
    /// How many groups have notifications that wait for a receiver; a group may have several.
    pub waiting: u64,
    pub dead_letters: u64,
}

/// Which receivers were notified of open silences.
pub(super) type Notices = BTreeMap<RecordId, SilenceNotice>;

/// Reads what receivers were notified of. Cheap to share.
#[derive(Clone)]
pub(super) struct NoticeReader {
    attempts: Attempts,
    deliveries: StoredDeliveries,
    groups: StoredGroups,
    notified: Notified,
    routes: watch::Receiver<Arc<AlertRoutes>>,
    counts: SharedAnswers<NoticeCounts>,
    notices: SharedAnswers<Notices>,
    clock: Clock,
}

impl NoticeReader {
    pub fn new(sources: &PageSources) -> NoticeReader {
        NoticeReader {
            attempts: Attempts::new(sources.cells.clone()),
            deliveries: sources.deliveries.clone(),
            groups: sources.groups.clone(),
            notified: Notified::new(sources),
            routes: sources.routes.clone(),
            counts: SharedAnswers::new(1),
            notices: SharedAnswers::new(MAX_KEPT),
            clock: sources.clock.clone(),
        }
    }

    /// Why no notification will be sent, with advice; `None` if routes name receivers.
    pub fn unsent(&self) -> Option<&'static str> {
        self.routes.borrow().unsent
    }

    /// `None` if the engine does not answer in time.
    pub async fn counts(&self) -> Option<Arc<NoticeCounts>> {
        let reader = self.clone();
        let counting = self.counts.get("", MaxAge::RECENT, async move { reader.count().await });
        timeout(NOTICES_TIMEOUT, counting).await.ok()?.ok()
    }

    /// Which receivers were notified of these open silences. `page`: the page that shows them. Empty if the engine does
    /// not answer in time.
    pub async fn of(&self, page: &str, silences: Vec<OfflineRecord>) -> Arc<Notices> {
        if silences.is_empty() {
            return Arc::default();
        }
        let reader = self.clone();
        let reading = async move { reader.read(&silences[..silences.len().min(MAX_UNITS)]).await };
        let read = timeout(NOTICES_TIMEOUT, self.notices.get(page, MaxAge::RECENT, reading)).await;
        read.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn count(&self) -> Result<NoticeCounts, HttpError> {
        let kept = self.deliveries.kept().await?;
        let (mut lately, mut is_cut) = (0, true);
        for steps in STEPS {
            if is_cut && lately < MANY {
                (lately, is_cut) = self.taken_lately(steps).await?;
            }
        }
        Ok(NoticeCounts {
            lately: lately.min(MANY),
            is_cut: is_cut || lately > MANY,
            waiting: kept.iter().map(|(_, backlog)| backlog.waiting).sum(),
            dead_letters: kept.iter().map(|(_, backlog)| backlog.dead).sum(),
        })
    }

    /// How many notifications receivers took in the newest steps of the last hour, and whether it had more steps.
    async fn taken_lately(&self, most: usize) -> Result<(usize, bool), HttpError> {
        let now = self.clock.now();
        let steps = self.attempts.between(now - LATELY, now, most, EntryOrder::NewestFirst).await?;
        let taken = steps.iter().flat_map(|step| &step.attempts);
        let taken = taken.filter(|attempt| attempt.result == AttemptResult::Delivered);
        // Notifications that were merged are one message.
        let messages: BTreeSet<&str> =
            taken.map(|attempt| attempt.digest().unwrap_or(&attempt.notification)).collect();
        Ok((messages.len(), steps.len() == most))
    }

    async fn read(&self, silences: &[OfflineRecord]) -> Result<Notices, HttpError> {
        let memberships = self.groups.memberships(&silences.iter().collect::<Vec<_>>()).await?;
        let joined: Vec<(&str, &RecordId)> = silences
            .iter()
            .zip(&memberships)
            .flat_map(|(record, all)| all.iter().map(|one| (one.group.key.as_str(), &record.id)))
            .collect();
        let attempts = self.attempts.of_memberships(&joined).await?;
        let mut delivered: BTreeMap<&RecordId, Vec<(String, Timestamp)>> = BTreeMap::new();
        for attempt in attempts.iter().filter(|one| one.result == AttemptResult::Delivered) {
            for id in &attempt.offline {
                delivered.entry(id).or_default().push((attempt.receiver.clone(), attempt.at));
            }
        }
        let sealed: Vec<SealedFor<'_>> = silences
            .iter()
            .zip(&memberships)
            .flat_map(|(record, all)| all.iter().map(move |one| (record, one)))
            .flat_map(|(record, one)| {
                one.receivers.iter().flatten().map(move |name| (name.as_str(), &one.group, record))
            })
            .collect();
        let mut became: BTreeMap<&RecordId, Vec<(String, SealedNotice)>> = BTreeMap::new();
        for ((name, _, record), one) in sealed.iter().zip(self.notified.sealed(&sealed).await?) {
            became.entry(&record.id).or_default().push(((*name).to_owned(), one));
        }
        let mut notices = Notices::new();
        let untold = self.notified.untold(silences, &memberships, self.clock.now()).await?;
        for (record, why) in silences.iter().zip(untold) {
            let delivered = delivered.remove(&record.id).unwrap_or_default();
            let sealed = became.remove(&record.id).unwrap_or_default();
            notices.insert(record.id.clone(), SilenceNotice::of(delivered, sealed, why));
        }
        Ok(notices)
    }
}

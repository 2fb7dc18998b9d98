//! Sends open records to receivers again: Alertmanager forgets alerts that are not repeated.
//!
//! One instance does it, the owner of the first partition. A step reads up to [`MAX_PAGES`] of the open records,
//! newest first. In a larger storm a pass over all of them takes several steps; meanwhile the records of the last pass
//! that are still open are sent. A step keeps the records whose routes name the receiver and whose wait is over: the
//! receiver was notified of them, or is about to be. A record that alert silences have covered since it was detected is
//! left out, and so is a record that was inhibited, held by the mass-offline breaker, or muted by its route, before its
//! wait was over. A unit that flaps is sent as its episode. Unusual silences are sent to receivers that ask for them.
//!
//! A receiver of an escalation, or a fallback, is notified of silences whose routes do not name it. The groups of
//! these records say of which: one read for each page, and no read for other receivers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::watch;

use super::channel::{Channel, Failure, LastingBlindness, OpenRecords, within};
use super::due::DueWork;
use super::routed_groups::RoutedGroups;
use super::{AlertingConfig, FIRST_PARTITION};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{NoticeStage, Ownership, UnusualNotices};
use crate::presence::{OfflineRecord, RecordId};
use crate::routing::{AlertSilences, Inhibitors, MatchedRoute};
use crate::store::{OpenPages, Queries, Result};
use crate::telemetry::Telemetry;

/// The most pages of open records that a step reads, of a thousand each.
const MAX_PAGES: usize = 20;
/// How many records of the last pass are read at once, to see whether they are still open.
const AT_ONCE: usize = 16;

/// The work for one receiver.
pub(super) struct Resend {
    pub receiver: String,
    pub channel: Arc<dyn Channel>,
    pub every: Duration,
    /// After how long an attempt is given up.
    pub timeout: Duration,
    /// Whether the receiver is notified of silences whose routes do not name it.
    pub is_notified_after_others: bool,
    pub routed: RoutedGroups,
    pub notices: UnusualNotices,
    /// The blindness that lasts, if the receiver is notified of it.
    pub blindness: Option<watch::Receiver<Vec<LastingBlindness>>>,
    /// The trip of the mass-offline breaker that holds, if the receiver is notified of it.
    pub trip: Option<watch::Receiver<Option<LastingBlindness>>>,
    pub ownership: Ownership,
    /// All partitions of the fleet.
    pub partitions: Vec<u16>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

/// Receivers that are notified of silences whose routes do not name them: those of escalations, and fallbacks.
pub(super) fn notified_after_others(config: &AlertingConfig) -> HashSet<String> {
    let fallbacks = config.receivers.iter().filter_map(|one| Some(one.fallback.as_ref()?.receiver.clone()));
    let routes = config.route.all().into_iter();
    let escalated = routes.flat_map(|route| &route.again.escalate).flat_map(|step| step.receivers.clone());
    fallbacks.chain(escalated).collect()
}

/// The reasons to hold open records from receivers, at a moment.
struct HoldReasons {
    silences: Arc<AlertSilences>,
    inhibitors: Arc<Inhibitors>,
    /// When the mass-offline breaker tripped, if it holds.
    tripped_at: Option<Timestamp>,
    /// Since when routes are muted, by their ids.
    muted_since: HashMap<String, Timestamp>,
    now: Timestamp,
}

/// The open records that were read so far.
pub(super) struct KnownOpen<'a> {
    pages: OpenPages<'a>,
    /// The records of the pages so far.
    read: (VecDeque<OfflineRecord>, usize),
    /// When all pages were read last.
    whole: Option<OpenRecords>,
    /// The last step failed, and the log says so.
    is_failing: bool,
}

impl<'a> KnownOpen<'a> {
    fn new(queries: &'a dyn Queries) -> KnownOpen<'a> {
        KnownOpen { pages: OpenPages::new(queries), read: Default::default(), whole: None, is_failing: false }
    }

    fn begin_again(&mut self, queries: &'a dyn Queries) {
        (self.pages, self.read) = (OpenPages::new(queries), Default::default());
    }

    fn forget(&mut self, queries: &'a dyn Queries) {
        self.begin_again(queries);
        self.whole = None;
    }
}

impl<'a> DueWork for &'a Resend {
    type Progress = KnownOpen<'a>;

    fn begin(&self) -> KnownOpen<'a> {
        KnownOpen::new(&*self.routed.queries)
    }

    async fn step(&self, known: &mut KnownOpen<'a>) -> Result<Duration> {
        let resent = if self.ownership.owns(FIRST_PARTITION) {
            self.resend(known).await
        } else {
            known.forget(&*self.routed.queries);
            within(self.timeout, self.channel.resend_missed(self.clock.now())).await
        };
        self.log(resent, &mut known.is_failing);
        Ok(self.every)
    }
}

impl Resend {
    async fn resend<'a>(&'a self, known: &mut KnownOpen<'a>) -> std::result::Result<(), Failure> {
        let now = self.clock.now();
        // The loops that need the engine report that it is away.
        let open = match self.open(known, now).await {
            Ok(open) => self.with_episodes(open, now).await.ok(),
            Err(_) => None,
        };
        let mut blind = self.blindness.as_ref().map(|lasting| lasting.borrow().clone()).unwrap_or_default();
        blind.extend(self.trip.as_ref().and_then(|trip| trip.borrow().clone()));
        within(self.timeout, self.channel.resend(open, &blind, now)).await
    }

    fn log(&self, resent: std::result::Result<(), Failure>, is_failing: &mut bool) {
        let receiver = &self.receiver;
        match resent {
            Ok(()) => {
                *is_failing = false;
                self.telemetry.unreached(receiver, self.channel.unreached().as_ref());
            }
            Err(why) => {
                if !std::mem::replace(is_failing, true) {
                    tracing::warn!(receiver, "open records were not sent again: {why}");
                }
            }
        }
    }

    /// The open records to send: all, if this step reads every page; else the records of the last complete pass that
    /// are still open.
    async fn open<'a>(&'a self, known: &mut KnownOpen<'a>, now: Timestamp) -> Result<OpenRecords> {
        let most = self.channel.most_resent();
        let held = self.held(now).await?;
        for read in 0.. {
            if read >= MAX_PAGES
                && let Some(whole) = known.whole.clone()
            {
                return self.still_open(whole).await;
            }
            let Some(page) = known.pages.next().await? else { break };
            // If a page were left out, its alerts would end.
            let page =
                self.known_of(page, &held).await.inspect_err(|_| known.begin_again(&*self.routed.queries))?;
            let (oldest, count) = &mut known.read;
            for record in page {
                *count += 1;
                oldest.push_back(record);
                if oldest.len() > most {
                    oldest.pop_front();
                }
            }
        }
        let (oldest, count) = std::mem::take(&mut known.read);
        let whole = OpenRecords { oldest: oldest.into(), count };
        known.begin_again(&*self.routed.queries);
        known.whole = Some(whole.clone());
        Ok(whole)
    }

    /// The records `open`, with the episodes of units that flap in place of their records, and unusual silences.
    async fn with_episodes(&self, mut open: OpenRecords, now: Timestamp) -> Result<OpenRecords> {
        let episodes = self.routed.flapping.all_lasting(&self.partitions).await?;
        let unusual = self.notices.all(&self.partitions).await?.into_values();
        let unusual = unusual.filter(|notice| notice.stage != NoticeStage::Ends).map(|notice| notice.record);
        let unusual: Vec<OfflineRecord> = unusual.collect();
        if episodes.is_empty() && unusual.is_empty() {
            return Ok(open);
        }
        let before = open.oldest.len();
        open.oldest.retain(|record| !episodes.contains_key(&record.id.unit));
        open.count -= before - open.oldest.len();
        let held = self.held(now).await?;
        let others = episodes.into_values().chain(unusual).collect();
        let known = self.known_of(others, &held).await?;
        open.count += known.len();
        open.oldest.extend(known);
        open.oldest.sort_by_key(|record| std::cmp::Reverse(record.detected_at));
        let beyond = open.oldest.len().saturating_sub(self.channel.most_resent());
        open.oldest.drain(..beyond);
        Ok(open)
    }

    async fn still_open(&self, mut whole: OpenRecords) -> Result<OpenRecords> {
        let ids: Vec<RecordId> = whole.oldest.iter().map(|record| record.id.clone()).collect();
        let read = ids.into_iter().map(|id| async move { self.routed.queries.record(&id).await });
        let records: Vec<Option<OfflineRecord>> = stream::iter(read).buffered(AT_ONCE).try_collect().await?;
        let count = whole.oldest.len();
        whole.oldest = records.into_iter().flatten().filter(|record| record.closed_by.is_none()).collect();
        whole.count -= count - whole.oldest.len();
        Ok(whole)
    }

    async fn held(&self, now: Timestamp) -> Result<HoldReasons> {
        Ok(HoldReasons {
            silences: self.routed.holds.silences.current().await?,
            inhibitors: self.routed.holds.inhibitions.current().await?,
            tripped_at: self.routed.holds.breaker.held().await?.map(|trip| trip.at),
            muted_since: self.routed.routes.muted_since(now),
            now,
        })
    }

    /// The records of which the receiver was notified, or is about to be; in their order.
    async fn known_of(&self, records: Vec<OfflineRecord>, held: &HoldReasons) -> Result<Vec<OfflineRecord>> {
        let mut is_known: Vec<bool> = records.iter().map(|record| self.is_known(record, held)).collect();
        if self.is_notified_after_others {
            let others = records.iter().zip(&is_known).filter(|(_, is_known)| !**is_known);
            let others: Vec<&OfflineRecord> = others.map(|(record, _)| record).collect();
            let memberships = self.routed.groups.memberships(&others).await?;
            let rest = is_known.iter_mut().filter(|is_known| !**is_known);
            for (is_known, groups) in rest.zip(memberships) {
                *is_known = groups.iter().any(|group| group.is_known_to(&self.receiver));
            }
        }
        let known = records.into_iter().zip(is_known).filter(|(_, is_known)| *is_known);
        Ok(known.map(|(record, _)| record).collect())
    }

    /// Whether a route of the record notified the receiver, or is about to.
    fn is_known(&self, record: &OfflineRecord, held: &HoldReasons) -> bool {
        let HoldReasons { silences, inhibitors, tripped_at, muted_since, now } = held;
        if silences.have_always_covered(record, *now) {
            return false;
        }
        let inhibited_at = inhibitors.held(record, *now).and_then(|held| held.since());
        let held_at = inhibited_at.into_iter().chain(*tripped_at).min();
        self.routed.routes.of(record).into_iter().any(|MatchedRoute { id, route, .. }| {
            let ready_at = route.ready_at(record);
            let held_at = held_at.into_iter().chain(muted_since.get(id).copied()).min();
            let is_notified = ready_at <= *now && held_at.is_none_or(|at| ready_at < at);
            is_notified && route.receivers.contains(&self.receiver)
        })
    }
}

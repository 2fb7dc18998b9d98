//! Sends open records to receivers again: Alertmanager forgets alerts that are not repeated.
//!
//! One instance does it, the owner of the first partition. A step reads up to [`MAX_PAGES`] of the open records,
//! newest first. In a larger storm a pass over all of them takes several steps; meanwhile the records of the last pass
//! that are still open are sent. A step keeps the records of which the receiver was notified, and those that were notified
//! in a group of a route that names the receiver by now: a server that comes later, or under another name, gets what is
//! open. The groups of the records say so, whatever held a record or left it out. It reads them once for each page. A unit
//! that flaps is sent as its episode.
//! Unusual silences are sent to receivers that ask for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::watch;

use super::FIRST_PARTITION;
use super::channel::{Channel, Failure, LastingBlindness, OpenRecords, within};
use super::due::DueWork;
use super::routed_groups::RoutedGroups;
use crate::clock::Clock;
use crate::fleet::{NoticeStage, Ownership, UnusualNotices};
use crate::presence::{OfflineRecord, RecordId};
use crate::store::{Membership, OpenPages, Queries, Result};
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
        let open = match self.open(known).await {
            Ok(open) => self.with_episodes(open).await.ok(),
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
    async fn open<'a>(&'a self, known: &mut KnownOpen<'a>) -> Result<OpenRecords> {
        let most = self.channel.most_resent();
        for read in 0.. {
            if read >= MAX_PAGES
                && let Some(whole) = known.whole.clone()
            {
                return self.still_open(whole).await;
            }
            let Some(page) = known.pages.next().await? else { break };
            // If a page were left out, its alerts would end.
            let page = self.known_of(page).await.inspect_err(|_| known.begin_again(&*self.routed.queries))?;
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
    async fn with_episodes(&self, mut open: OpenRecords) -> Result<OpenRecords> {
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
        let others = episodes.into_values().chain(unusual).collect();
        let known = self.known_of(others).await?;
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

    /// The records of which the receiver was notified or, if it came to their routes later, would have been; in their
    /// order.
    async fn known_of(&self, records: Vec<OfflineRecord>) -> Result<Vec<OfflineRecord>> {
        let memberships = self.routed.groups.memberships(&records.iter().collect::<Vec<_>>()).await?;
        let known = records.into_iter().zip(memberships);
        let is_sent = |one: &Membership| {
            let names = || self.routed.destinations.of(&one.group.key).receivers.contains(&self.receiver);
            one.receivers.is_some() && (one.is_known_to(&self.receiver) || names())
        };
        let known = known.filter(|(_, groups)| groups.iter().any(is_sent));
        Ok(known.map(|(record, _)| record).collect())
    }
}

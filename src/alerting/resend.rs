//! Tells receivers again what is open: Alertmanager forgets alerts that are not repeated.
//!
//! One instance does it, the owner of the first partition. A round reads up to [`MOST_PAGES`] of the open records, newest
//! first. In a larger storm a pass over all of them takes several rounds; meanwhile those of the last pass that are still open
//! are sent. It keeps those whose routes name the receiver and whose wait is over: the receiver was notified of them, or is
//! about to be. A record that alert silences have covered since it was detected is not among them, nor is one that was
//! inhibited, or held by the mass-offline breaker, before its wait was over. A unit that flaps is sent as its episode.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, LastingBlindness, OpenRecords, within};
use super::holds::Holds;
use crate::clock::{Clock, Timestamp};
use crate::fleet::{Flapping, Ownership, Silences};
use crate::presence::{OfflineRecord, RecordId};
use crate::routing::alert_silence::has_always_covered;
use crate::routing::{AlertSilence, Inhibitors, Routes};
use crate::store::{OpenPages, Queries, Result};

/// The partition whose owner resends.
const FIRST: u16 = 0;
/// The most pages of open records that a round reads, of a thousand each.
const MOST_PAGES: usize = 20;
/// How many records are read at once to see whether they are still open.
const AT_ONCE: usize = 16;

/// The loop of one receiver, and what it uses.
pub struct Resend {
    pub receiver: String,
    pub channel: Arc<dyn Channel>,
    pub every: Duration,
    /// After how long an attempt is given up.
    pub timeout: Duration,
    pub routes: Routes,
    pub queries: Arc<dyn Queries>,
    pub silences: Arc<Silences>,
    pub holds: Holds,
    /// The blindness that lasts, if the receiver is notified of it.
    pub blindness: Option<watch::Receiver<Vec<LastingBlindness>>>,
    /// The trip of the mass-offline breaker that holds, if the receiver is notified of it.
    pub trip: Option<watch::Receiver<Option<LastingBlindness>>>,
    pub flapping: Arc<Flapping>,
    pub ownership: Ownership,
    /// All of them.
    pub partitions: Vec<u16>,
    pub clock: Clock,
    pub stop: CancellationToken,
}

/// What of the open records is known.
struct Known<'a> {
    pages: OpenPages<'a>,
    /// Of the pages so far.
    read: (VecDeque<OfflineRecord>, usize),
    /// When all pages were read last.
    whole: Option<OpenRecords>,
}

impl<'a> Known<'a> {
    fn new(queries: &'a dyn Queries) -> Known<'a> {
        Known { pages: OpenPages::new(queries), read: Default::default(), whole: None }
    }
}

impl Resend {
    /// Runs until it is stopped.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut is_failing = false;
        let mut known = Known::new(&*self.queries);
        loop {
            let round = async {
                if self.ownership.owns(FIRST) {
                    self.round(&mut known, &mut is_failing).await;
                } else {
                    known = Known::new(&*self.queries);
                }
                tokio::time::sleep(self.every).await;
            };
            if self.stop.run_until_cancelled(round).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn round<'a>(&'a self, known: &mut Known<'a>, is_failing: &mut bool) {
        let now = self.clock.now();
        // The loops that need the engine report that it is away.
        let open = match self.open(known, now).await {
            Ok(open) => self.with_episodes(open, now).await.ok(),
            Err(_) => None,
        };
        let mut blind = self.blindness.as_ref().map(|lasting| lasting.borrow().clone()).unwrap_or_default();
        blind.extend(self.trip.as_ref().and_then(|trip| trip.borrow().clone()));
        match within(self.timeout, self.channel.resend(open, &blind, now)).await {
            Ok(()) => *is_failing = false,
            Err(why) => {
                if !std::mem::replace(is_failing, true) {
                    let receiver = &self.receiver;
                    tracing::warn!(receiver, "open records were not sent again: {why}");
                }
            }
        }
    }

    /// The records that the receiver should know of: those of this round if it reads all pages, else those of the last
    /// round that did which are still open.
    async fn open<'a>(&'a self, known: &mut Known<'a>, now: Timestamp) -> Result<OpenRecords> {
        let most = self.channel.most_resent();
        let silences = self.silences.current().await?;
        let inhibitors = self.holds.inhibitions.current().await?;
        let tripped_at = self.holds.breaker.held().await?.map(|trip| trip.at);
        let holds = (&*inhibitors, tripped_at);
        for read in 0.. {
            if read >= MOST_PAGES
                && let Some(whole) = known.whole.clone()
            {
                return self.still_open(whole).await;
            }
            let Some(page) = known.pages.next().await? else { break };
            let (oldest, count) = &mut known.read;
            for record in page.into_iter().filter(|record| self.is_known(record, &silences, holds, now)) {
                *count += 1;
                oldest.push_back(record);
                if oldest.len() > most {
                    oldest.pop_front();
                }
            }
        }
        let (oldest, count) = std::mem::take(&mut known.read);
        let whole = OpenRecords { oldest: oldest.into(), count };
        known.pages = OpenPages::new(&*self.queries);
        known.whole = Some(whole.clone());
        Ok(whole)
    }

    /// These with the episodes of units that flap, in place of their records.
    async fn with_episodes(&self, mut open: OpenRecords, now: Timestamp) -> Result<OpenRecords> {
        let episodes = self.flapping.all_lasting(&self.partitions).await?;
        if episodes.is_empty() {
            return Ok(open);
        }
        let silences = self.silences.current().await?;
        let inhibitors = self.holds.inhibitions.current().await?;
        let tripped_at = self.holds.breaker.held().await?.map(|trip| trip.at);
        let before = open.oldest.len();
        open.oldest.retain(|record| !episodes.contains_key(&record.id.unit));
        open.count -= before - open.oldest.len();
        let known = |one: &OfflineRecord| self.is_known(one, &silences, (&inhibitors, tripped_at), now);
        let known: Vec<OfflineRecord> = episodes.into_values().filter(known).collect();
        open.count += known.len();
        open.oldest.extend(known);
        open.oldest.sort_by_key(|record| std::cmp::Reverse(record.detected_at));
        let beyond = open.oldest.len().saturating_sub(self.channel.most_resent());
        open.oldest.drain(..beyond);
        Ok(open)
    }

    async fn still_open(&self, mut whole: OpenRecords) -> Result<OpenRecords> {
        let ids: Vec<RecordId> = whole.oldest.iter().map(|record| record.id.clone()).collect();
        let read = ids.into_iter().map(|id| async move { self.queries.record(&id).await });
        let records: Vec<Option<OfflineRecord>> = stream::iter(read).buffered(AT_ONCE).try_collect().await?;
        let count = whole.oldest.len();
        whole.oldest = records.into_iter().flatten().filter(|record| record.closed_by.is_none()).collect();
        whole.count -= count - whole.oldest.len();
        Ok(whole)
    }

    fn is_known(
        &self,
        record: &OfflineRecord,
        silences: &[AlertSilence],
        (inhibitors, tripped_at): (&Inhibitors, Option<Timestamp>),
        now: Timestamp,
    ) -> bool {
        if has_always_covered(silences, record, now) {
            return false;
        }
        let inhibited_at = inhibitors.held(record, now).and_then(|held| held.since());
        let held_at = inhibited_at.into_iter().chain(tripped_at).min();
        let mut taken = self.routes.of(record).into_iter().map(|taken| taken.route);
        taken.any(|route| {
            let ready_at = record.detected_at + route.waits();
            let is_told = ready_at <= now && held_at.is_none_or(|at| ready_at < at);
            is_told && route.receivers.contains(&self.receiver)
        })
    }
}

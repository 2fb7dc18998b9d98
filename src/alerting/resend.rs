//! Tells receivers again what is open: Alertmanager forgets alerts that are not repeated.
//!
//! One instance does it, the owner of the first partition. Each round reads all open records, newest first, and keeps
//! those whose routes name the receiver and whose wait is over: the receiver was notified of them, or is about to be. A
//! record that alert silences have covered since it was detected is not among them, nor is one that was inhibited, or held by
//! the mass-offline breaker, before its wait was over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::channel::{Channel, OpenRecords, within};
use super::holds::Holds;
use crate::clock::{Clock, Timestamp};
use crate::fleet::{Ownership, Silences};
use crate::presence::OfflineRecord;
use crate::routing::alert_silence::has_always_covered;
use crate::routing::{AlertSilence, Inhibitors, Routes};
use crate::store::{OpenPages, Queries, Result};

/// The partition whose owner resends.
const FIRST: u16 = 0;

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
    pub ownership: Ownership,
    pub clock: Clock,
    pub stop: CancellationToken,
}

impl Resend {
    /// Runs until it is stopped.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut is_failing = false;
        loop {
            let round = async {
                if self.ownership.owns(FIRST) {
                    self.round(&mut is_failing).await;
                }
                tokio::time::sleep(self.every).await;
            };
            if self.stop.run_until_cancelled(round).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn round(&self, is_failing: &mut bool) {
        let now = self.clock.now();
        // The loops that need the engine report that it is away.
        let Ok(open) = self.open(now).await else { return };
        match within(self.timeout, self.channel.resend(open, now)).await {
            Ok(()) => *is_failing = false,
            Err(why) => {
                if !std::mem::replace(is_failing, true) {
                    let receiver = &self.receiver;
                    tracing::warn!(receiver, "open records were not sent again: {why}");
                }
            }
        }
    }

    /// The records that the receiver should know of.
    async fn open(&self, now: Timestamp) -> Result<OpenRecords> {
        let most = self.channel.most_resent();
        let (mut oldest, mut count) = (VecDeque::new(), 0);
        let silences = self.silences.current().await?;
        let inhibitors = self.holds.inhibitions.current().await?;
        let tripped_at = self.holds.breaker.held().await?.map(|trip| trip.at);
        let holds = (&*inhibitors, tripped_at);
        let mut pages = OpenPages::new(&*self.queries);
        while let Some(page) = pages.next().await? {
            for record in page.into_iter().filter(|record| self.is_known(record, &silences, holds, now)) {
                count += 1;
                oldest.push_back(record);
                if oldest.len() > most {
                    oldest.pop_front();
                }
            }
        }
        Ok(OpenRecords { oldest: oldest.into(), count })
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

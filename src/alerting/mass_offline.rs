//! Notifies operators when the mass-offline breaker trips, and once more when it is released.
//!
//! The owner of the first partition does it; it also releases the breaker when units are back or its time is over.
//! Other instances do the same from [`OTHERS_AFTER`] on, because the owner may be slow, or there may be no owner. The
//! message joins a group of its own, and the moment of the trip is its name, so all instances write one message. The
//! stored trip says whether operators were notified, also after a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::channel::LastingBlindness;
use super::due::{DueWork, LoopName};
use super::fleet_notices::FleetNotices;
use super::message::{MassNotice, ValueShare};
use super::{FIRST_PARTITION, TICK};
use crate::clock::{Clock, Timestamp};
use crate::fleet::{MassBreaker, Ownership};
use crate::presence::{GATHERS, Interval, OfflineRecord, Trip};
use crate::store::{HearingStore, Result};
use crate::telemetry::{Loop, Telemetry};

/// How long after a trip the other instances check it, too.
const OTHERS_AFTER: Duration = Duration::from_secs(10);

/// How many values of labels a message shows, and the least part of the units that has them, in percent.
const VALUES: usize = 5;
const MIN_PERCENT: usize = 10;

pub(super) struct MassOffline {
    pub breaker: Arc<MassBreaker>,
    pub notices: FleetNotices,
    pub hearing: Arc<dyn HearingStore>,
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    /// The trip that holds and of which operators were notified, for receivers that forget it.
    pub lasting: watch::Sender<Option<LastingBlindness>>,
}

impl DueWork for MassOffline {
    type Progress = ();
    const REPORTED_AS: Option<LoopName> = Some((Loop::Dispatch, "mass-offline breaker"));

    fn begin(&self) {}

    async fn step(&self, (): &mut ()) -> Result<Duration> {
        self.count_and_notify(self.clock.now()).await?;
        Ok(TICK)
    }
}

impl MassOffline {
    async fn count_and_notify(&self, now: Timestamp) -> Result<()> {
        self.breaker.count(now).await?;
        let is_open = |trip: &Trip| trip.is_held() || !trip.is_notified;
        let Some(last) = self.breaker.last().await?.filter(is_open) else {
            self.lasting.send_replace(None);
            return Ok(());
        };
        if !self.ownership.owns(FIRST_PARTITION) && now < last.at + OTHERS_AFTER {
            return Ok(());
        }
        let last = self.breaker.end_if_over(now).await?;
        self.set_lasting(last.as_ref(), now).await?;
        let Some(trip) = last.filter(|trip| !trip.is_notified) else { return Ok(()) };
        // The message waits for the rest of the mass, which belongs in it.
        if trip.is_held() && now < trip.at + GATHERS {
            return Ok(());
        }
        let silent = if trip.is_held() { self.breaker.still_silent(&trip).await? } else { 0 };
        let notified = trip.notified(silent);
        let to = notified.released.as_ref().map_or(Timestamp::NEVER, |over| over.at);
        let group = self.notice(&notified, now).await?.group();
        self.notices.join(&group, Interval { from: trip.at, to }, now).await?;
        self.breaker.notified(&trip, &notified).await
    }

    /// Sets the trip that is sent again. Its text is built once: a text that changes would be a new alert each time.
    async fn set_lasting(&self, last: Option<&Trip>, now: Timestamp) -> Result<()> {
        let Some(trip) = last.filter(|trip| trip.is_held() && trip.is_notified) else {
            self.lasting.send_replace(None);
            return Ok(());
        };
        let interval = Interval { from: trip.at, to: Timestamp::NEVER };
        let is_known = self.lasting.borrow().as_ref().is_some_and(|known| known.interval == interval);
        if !is_known {
            let group = self.notice(trip, now).await?.group();
            self.lasting.send_replace(Some(LastingBlindness { group, interval }));
        }
        Ok(())
    }

    async fn notice(&self, trip: &Trip, now: Timestamp) -> Result<MassNotice> {
        let newest = self.breaker.newest_since(trip.since).await?;
        let hearing = match self.hearing.hearing().await?.heard {
            None => "nothing was heard yet".to_owned(),
            Some(heard) => format!("everything up to {:.1} s ago is heard", now.since(heard).as_secs_f64()),
        };
        Ok(MassNotice::new(trip, top_values(&newest), self.telemetry.parts(), hearing))
    }
}

/// The values of labels that most of the records have.
fn top_values(records: &[OfflineRecord]) -> Vec<ValueShare> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for record in records {
        let labels = record.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for pair in labels.chain([("kind", record.kind.as_str())]) {
            *counts.entry(pair).or_default() += 1;
        }
    }
    let share = |((label, value), count): (&(&str, &str), &usize)| ValueShare {
        label: (*label).to_owned(),
        value: (*value).to_owned(),
        percent: 100 * count / records.len(),
    };
    let mut shares: Vec<ValueShare> = counts.iter().map(share).collect();
    shares.retain(|one| one.percent >= MIN_PERCENT);
    shares.sort_by_key(|one| std::cmp::Reverse(one.percent));
    shares.truncate(VALUES);
    shares
}

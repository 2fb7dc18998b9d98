//! The mass-offline breaker as this instance knows it. The rule is `presence/mass_offline.rs`.
//!
//! The last trip is stored, and every instance reads it before it notifies. An instance that finds a mass of silences
//! writes a trip, if no other instance has written one since it read the last; so there is one trip, whatever the
//! number of instances, and it survives a restart. Units are counted in the engine, over all partitions.
//!
//! # When it is judged
//! The breaker is judged whenever records enter their groups. Each record does, and is written before that. So the
//! record that completes a mass is counted before receivers are notified of it, or of records that wait with it.
//!
//! # Which units count
//! Units that an alert silence covers do not count, nor do units that the fleet has not had for longer than the
//! window. The newest records and the facts of their units say which units count. The fleet is counted now and as it
//! was when the window began, and the smaller number counts; an instance that has just started has only the current
//! number.
//!
//! While a trip holds, the alert silences that were active at the trip say which units count. An operator who silences
//! the units of a trip brings none of them back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Silences;
use crate::clock::Timestamp;
use crate::presence::{
    FleetCount, MassOfflineRule, OfflineRecord, ReleaseReason, Snapshot, Trip, Unit, release,
};
use crate::store::{
    AuditEntry, Audited, Cells, Document, Documents, EngineError, MAX_CHANGES, OpenPages, Queries, Result,
    Table, TableValue, UnitStore,
};
use crate::telemetry::Telemetry;

/// The name of the only document.
const TRIP: &str = "trip";

/// How many of the newest records stand for all that were detected.
const NEWEST: usize = 1000;

/// How many pages of open records are read to count a mass, and to see whether it is over. In a larger mass the same
/// share of the units is taken to count as in these pages.
const PAGES: usize = 10;
const PAGES_OF_RELEASE: usize = 1;

/// How often the fleet is counted in a window.
const COUNTED_PER_WINDOW: u32 = 12;

impl TableValue for Trip {
    type Name = String;
    const TABLE: Table = Table::Breaker;
}

/// The last trip, as it is stored.
pub(super) async fn last_trip(documents: &Documents) -> Result<Document<Trip>> {
    documents.one(&TRIP.to_owned()).await
}

/// The mass-offline breaker.
pub struct MassBreaker {
    /// `None`: the breaker is not enabled.
    rule: Option<MassOfflineRule>,
    /// The facts of units; `None`: pages, which judge nothing.
    units: Option<Arc<dyn UnitStore>>,
    /// The sizes of the fleet within about the last window, oldest first.
    sizes: Mutex<VecDeque<(Timestamp, u64)>>,
    documents: Documents,
    queries: Arc<dyn Queries>,
    silences: Arc<Silences>,
    telemetry: Arc<Telemetry>,
    is_known: AtomicBool,
}

impl MassBreaker {
    pub fn new(
        rule: Option<(MassOfflineRule, Arc<dyn UnitStore>)>,
        cells: Arc<dyn Cells>,
        queries: Arc<dyn Queries>,
        silences: Arc<Silences>,
        telemetry: Arc<Telemetry>,
    ) -> MassBreaker {
        let (rule, units) = rule.unzip();
        let (sizes, is_known) = (Mutex::default(), AtomicBool::default());
        MassBreaker {
            rule,
            units,
            sizes,
            documents: Documents::new(cells),
            queries,
            silences,
            telemetry,
            is_known,
        }
    }

    /// Counts the fleet, to know later how many units it had when a window began.
    pub async fn count(&self, now: Timestamp) -> Result<()> {
        let Some(rule) = &self.rule else { return Ok(()) };
        let newest = self.sizes.lock().back().map(|(at, _)| *at);
        if newest.is_some_and(|at| at <= now && now.since(at) < rule.window / COUNTED_PER_WINDOW) {
            return Ok(());
        }
        let units = self.queries.count_since(Timestamp::ZERO).await?.units();
        let mut sizes = self.sizes.lock();
        sizes.retain(|(at, _)| *at <= now && now.since(*at) <= rule.window);
        sizes.push_back((now, units));
        Ok(())
    }

    /// How many units the fleet had at that moment or soon after it, as far as this instance has counted it.
    fn size_at(&self, moment: Timestamp) -> Option<u64> {
        let sizes = self.sizes.lock();
        sizes.iter().find(|(at, _)| *at >= moment).map(|(_, units)| *units)
    }

    /// The last trip, also if it is over.
    pub async fn last(&self) -> Result<Option<Trip>> {
        Ok(self.stored().await?.value)
    }

    /// The trip that holds notifications now; `None` if the breaker is not enabled, and then the store is not read.
    pub async fn held(&self) -> Result<Option<Trip>> {
        match self.rule {
            Some(_) => Ok(self.last().await?.filter(Trip::is_held)),
            None => Ok(None),
        }
    }

    /// Trips the breaker if there is a mass of silences. Returns the trip that holds notifications now.
    pub async fn judge(&self, now: Timestamp) -> Result<Option<Trip>> {
        let Some(rule) = &self.rule else { return Ok(None) };
        let last = self.stored().await?;
        if last.value.as_ref().is_some_and(Trip::is_held) {
            return Ok(last.value);
        }
        let since = rule.counts_since(last.value.as_ref(), now);
        let count = self.queries.count_since(since).await?;
        let before = self.size_at(now - rule.window).unwrap_or(u64::MAX);
        if !rule.is_mass(count.known(before)) {
            return Ok(None);
        }
        let count =
            FleetCount { silent: self.counted(rule, (count.silent, since), PAGES, now).await?, ..count };
        let count = count.known(before);
        if !rule.is_mass(count) {
            return Ok(None);
        }
        let trip = rule.trip(since, count, now);
        if self.write(&last, &trip, None).await? {
            let (offline, units) = (trip.offline, trip.units);
            tracing::warn!(
                offline,
                units,
                until = %trip.until,
                "a large part of the fleet fell silent at once: notifications of single units are held; see `rollcall breaker show`"
            );
        }
        // Another instance may have been faster.
        self.held().await
    }

    /// How many of the units that fell silent since then count, judged by up to `most` pages of them, and by the alert
    /// silences that are active at `at`.
    async fn counted(
        &self,
        rule: &MassOfflineRule,
        (silent, since): (u64, Timestamp),
        most: usize,
        at: Timestamp,
    ) -> Result<u64> {
        let silences = self.silences.current().await?;
        let (mut pages, mut counted, mut of) = (OpenPages::new(&*self.queries), 0, 0);
        for _ in 0..most {
            let Some(mut page) = pages.next().await? else { break };
            let length = page.len();
            page.retain(|record| record.detected_at >= since);
            of += page.len() as u64;
            let is_last = page.len() < length;
            page.retain(|record| silences.covering(record, at).next().is_none());
            let names: Vec<Unit> = page.iter().map(|record| record.id.unit.clone()).collect();
            let units = match &self.units {
                Some(units) => units.read(&names).await?,
                None => Vec::new(),
            };
            let is_known = |(record, unit): (&OfflineRecord, &Snapshot)| {
                unit.facts.as_ref().is_none_or(|facts| rule.counts(facts, record.detected_at))
            };
            counted += page.iter().zip(&units).filter(|pair| is_known(*pair)).count() as u64;
            if is_last {
                break;
            }
        }
        Ok(silent * counted / of.max(1))
    }

    /// The newest open records that were detected since then, up to a thousand.
    pub async fn newest_since(&self, since: Timestamp) -> Result<Vec<OfflineRecord>> {
        let mut newest = self.queries.records(true, None, NEWEST).await?;
        newest.retain(|record| record.detected_at >= since);
        Ok(newest)
    }

    /// How many units that count are still offline; without a rule, as pages have none, units that do not count are
    /// among them.
    pub async fn still_silent(&self, trip: &Trip) -> Result<u64> {
        let silent = self.queries.count_since(trip.since).await?.silent;
        match self.rule.as_ref().filter(|_| silent > 0) {
            Some(rule) => self.counted(rule, (silent, trip.since), PAGES_OF_RELEASE, trip.at).await,
            None => Ok(silent),
        }
    }

    /// Ends a trip that is over, or that a reload has disabled. Answers the last trip.
    pub async fn end_if_over(&self, now: Timestamp) -> Result<Option<Trip>> {
        let last = self.stored().await?;
        let Some(trip) = last.value.as_ref().filter(|trip| trip.is_held()) else {
            return Ok(last.value);
        };
        let silent = self.still_silent(trip).await?;
        let why = match self.rule {
            Some(_) => release(trip, silent, now),
            None => Some(ReleaseReason::Operator),
        };
        if let Some(why) = why {
            self.end(&last, &trip.released(why, silent, now), None).await?;
        }
        self.last().await
    }

    /// Releases the breaker by hand. `by`: the operator, for the audit. `false`: the breaker holds nothing.
    pub async fn release(&self, (by, comment): (&str, &str), now: Timestamp) -> Result<bool> {
        for _ in 0..MAX_CHANGES {
            let last = self.stored().await?;
            let Some(trip) = last.value.as_ref().filter(|trip| trip.is_held()) else { return Ok(false) };
            let silent = self.still_silent(trip).await?;
            let entry = AuditEntry {
                at: now,
                author: by.to_owned(),
                change: Audited::BreakerReleased,
                subject: "breaker".to_owned(),
                text: match comment {
                    "" => format!("{silent} of {} units are offline", trip.units),
                    comment => format!("{silent} of {} units are offline: {comment}", trip.units),
                },
            };
            if self.end(&last, &trip.released(ReleaseReason::Operator, silent, now), Some(&entry)).await? {
                return Ok(true);
            }
        }
        Err(EngineError::contended("the mass-offline breaker"))
    }

    /// Notes that operators were notified of a trip, or of its end. `notified`: the trip as they know it.
    pub async fn notified(&self, trip: &Trip, notified: &Trip) -> Result<()> {
        let last = self.stored().await?;
        if last.value.as_ref() == Some(trip) {
            self.write(&last, notified, None).await?;
        }
        Ok(())
    }

    async fn end(&self, last: &Document<Trip>, trip: &Trip, entry: Option<&AuditEntry>) -> Result<bool> {
        let is_written = self.write(last, trip, entry).await?;
        if let Some(release) = trip.released.as_ref().filter(|_| is_written) {
            let (offline, why) = (release.offline, release.why.as_str());
            tracing::info!(offline, why, "notifications of single units are held no longer");
        }
        Ok(is_written)
    }

    /// Writes a trip if the last one is still stored, and an entry of the audit with it.
    async fn write(&self, last: &Document<Trip>, trip: &Trip, entry: Option<&AuditEntry>) -> Result<bool> {
        let mut set = self.documents.change(last, Some(trip))?;
        if let Some(entry) = entry {
            set = self.documents.audit(set, entry)?;
            self.documents.bound_audit().await?;
        }
        Ok(self.documents.write(&[set]).await? == [true])
    }

    /// The last trip as it is stored. A trip that cannot be read holds nothing.
    async fn stored(&self) -> Result<Document<Trip>> {
        let stored = last_trip(&self.documents).await?;
        let held = stored.value.as_ref().filter(|trip| trip.is_held());
        self.telemetry.breaker_tripped(held.is_some());
        let is_first = !self.is_known.swap(true, Ordering::Relaxed);
        // Pages and commands have no rule; the instance that notifies has one.
        if let (Some(trip), true, true) = (held, is_first, self.rule.is_some()) {
            let (offline, units) = (trip.offline, trip.units);
            tracing::warn!(
                offline,
                units,
                until = %trip.until,
                "notifications of single units are held since before this start; see `rollcall breaker show`"
            );
        }
        Ok(stored)
    }
}

//! Announcements that units are gone: the deadlines of the units are earlier, and those that are due now open their
//! records in the same step.
//!
//! The units are read and written as those of a deadline check, so that hearing counts as it was after they were
//! read. The unit of an announcement that cannot be decided yet is in the deadline index, and the sweep checks it.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hashbrown::HashMap;

use super::Roll;
use super::checks::BegunCheck;
use crate::clock::Timestamp;
use crate::fleet::mirror::Cursor;
use crate::presence::{self, Announcement, AnnouncementResult, Unit};
use crate::store::{MAX_CHANGES, PendingCheck, Result};
use crate::telemetry::{AnnouncementOutcome, CheckOutcome, CheckSource};

/// The announcements of each unit, in their order.
type ByUnit<'a> = HashMap<Unit, Vec<&'a Announcement>>;

fn by_unit<'a>(announcements: impl IntoIterator<Item = &'a Announcement>) -> ByUnit<'a> {
    let mut units = ByUnit::new();
    for one in announcements {
        units.entry_ref(&one.unit).or_default().push(one);
    }
    units
}

impl Roll {
    /// Applies announcements, those of a unit in their order. The devices of a node that is gone are gone, too: each
    /// instance marks the devices that it owns, see [`Roll::announce_devices`]. Safe to repeat.
    pub async fn announce(
        &self,
        announcements: &[Announcement],
        clock: impl Fn() -> Timestamp + Send + Sync,
    ) -> Result<()> {
        self.announce_units(&by_unit(announcements), &clock).await?;
        let deaths: Vec<&Announcement> =
            announcements.iter().filter(|one| one.has_devices && !one.follows_birth).collect();
        if deaths.is_empty() {
            return Ok(());
        }
        self.announce_below(&by_unit(deaths.iter().copied()), &clock).await?;
        self.node_deaths.enter(&deaths, clock()).await
    }

    /// Marks the devices of nodes whose deaths any instance has heard, among the units that this instance owns now.
    pub async fn announce_devices(&self, clock: impl Fn() -> Timestamp + Send + Sync) -> Result<()> {
        let (now, partitions) = (clock(), self.mirror.kept_partitions());
        let mut deaths = self.node_deaths.open(&partitions, now).await?;
        if deaths.is_empty() {
            return Ok(());
        }
        // Devices that another instance admitted are known once their partitions were compared.
        let known_until = self.mirror.age(now).map(|age| now - age);
        self.announce_below(&by_unit(&deaths), &clock).await?;
        deaths.retain(|death| Some(death.at) < known_until);
        self.node_deaths.applied(partitions, &deaths);
        Ok(())
    }

    /// Applies the deaths of nodes to the known units below them.
    async fn announce_below(
        &self,
        nodes: &ByUnit<'_>,
        clock: &(impl Fn() -> Timestamp + Send + Sync),
    ) -> Result<()> {
        let (above, mut cursor) = (nodes.keys().cloned().collect(), Cursor::default());
        while let Some(below) = self.mirror.below(&mut cursor, &above) {
            let of_device = |(node, device): (Unit, Unit)| {
                nodes[&node].iter().map(move |&of_node| Announcement {
                    unit: device.clone(),
                    has_devices: false,
                    ..of_node.clone()
                })
            };
            let devices: Vec<Announcement> = below.into_iter().flat_map(of_device).collect();
            self.announce_units(&by_unit(&devices), clock).await?;
        }
        Ok(())
    }

    async fn announce_units(
        &self,
        announcements: &ByUnit<'_>,
        clock: &(impl Fn() -> Timestamp + Send + Sync),
    ) -> Result<()> {
        let mut open: Vec<Unit> = announcements.keys().cloned().collect();
        for _ in 0..MAX_CHANGES {
            let mut checks: Vec<BoxFuture<'_, Result<Vec<Unit>>>> = Vec::new();
            for pending in self.engine.check_present(&open) {
                checks.push(self.announce_check(pending, announcements, clock).boxed());
            }
            open = self.run_checks(checks).await?;
            if open.is_empty() {
                return Ok(());
            }
        }
        // Units that change so often are heard.
        for unit in &open {
            self.count(&vec![AnnouncementResult::Stale; announcements[unit].len()]);
        }
        Ok(())
    }

    /// Returns the units that changed meanwhile.
    async fn announce_check(
        &self,
        pending: PendingCheck<'_>,
        announcements: &ByUnit<'_>,
        clock: &(impl Fn() -> Timestamp + Send + Sync),
    ) -> Result<Vec<Unit>> {
        let BegunCheck { units, hearing, guard } = self.begin_check(pending).await?;
        let (now, all_rules) = (clock(), self.rules());
        let (mut results, mut changes) = (Vec::new(), Vec::new());
        for seen in units {
            let (Some(all), Some(rules)) = (announcements.get(&seen.unit), all_rules.get(&seen.unit.kind))
            else {
                continue;
            };
            self.recheck_if_otherwise(&seen);
            let believed = self.corrected_unit(&seen, now);
            let (of_unit, change) =
                presence::announce_all(believed.as_ref().unwrap_or(&seen), all, rules, &hearing, now);
            match change {
                None => self.count(&of_unit),
                Some(change) => {
                    results.push(of_unit);
                    changes.push((seen, change));
                }
            }
        }
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let applied = self.apply_by(&changes, guard.apply(&changes)).await?;
        let mut again = Vec::new();
        for (((seen, change), of_unit), applied) in changes.into_iter().zip(results).zip(applied) {
            if !applied {
                again.push(seen.unit);
                continue;
            }
            self.count(&of_unit);
            if change.record.is_some() {
                self.telemetry.deadlines_checked(CheckSource::Announcement, CheckOutcome::Offline, 1);
            }
        }
        Ok(again)
    }

    fn count(&self, results: &[AnnouncementResult]) {
        for result in results {
            self.telemetry.announcements(AnnouncementOutcome::of(*result), 1);
        }
    }
}

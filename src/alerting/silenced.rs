//! Open records that an alert silence covers: they join no group while it is active, and join once when it is over.
//!
//! A covered record leaves the outbox without a group. It stays open, and an open record can join at any time:
//! joining is idempotent, also after its notification was sent. So no list of covered records is stored. When an
//! alert silence has ended, the open records that it matches join, unless another alert silence covers them; a record
//! that has joined before changes nothing. If a unit is back before that, its return has joined alone, and receivers
//! are notified of neither.
//!
//! A return is not held back: receivers that were notified of a silence are notified of its end.
//!
//! # Why no record is missed
//! The dispatcher leaves a record out only by alert silences that it read after the outbox; for the others a copy of
//! the last second suffices. This work reads the alert silences and then the open records. If an alert silence is
//! over here, it was active when the dispatcher of any instance read it. So the record was open at that time, and is
//! found here. After a start, and when partitions get another owner, every alert silence that is over counts as just
//! ended.

use std::collections::HashSet;
use std::time::Duration;

use super::TICK;
use super::due::{DueWork, LoopName};
use super::group::groups_of;
use super::routed_groups::RoutedGroups;
use crate::clock::{Clock, Timestamp};
use crate::fleet::Ownership;
use crate::presence::OfflineRecord;
use crate::routing::alert_silence::SilenceState;
use crate::routing::{AlertSilence, AlertSilences, SilenceId};
use crate::store::{Capacity, Join, OpenPages, OutboxEvent, Result, partition_of};
use crate::telemetry::Loop;

/// Whether an event joins no group for now.
pub(super) fn is_held(event: &OutboxEvent, silences: &AlertSilences, now: Timestamp) -> bool {
    let is_covered =
        |record: &OfflineRecord| record.back_at.is_none() && silences.covered_until(record, now).is_some();
    event.record().is_some_and(is_covered)
}

/// Lets the records of ended alert silences join.
pub(super) struct SilenceEnds {
    pub routed: RoutedGroups,
    pub ownership: Ownership,
    pub clock: Clock,
}

/// The part of the work that is done.
#[derive(Default)]
pub(super) struct SilenceProgress {
    partitions: Vec<u16>,
    /// Alert silences whose records have joined, with their ends.
    ended: HashSet<(SilenceId, Timestamp)>,
}

impl DueWork for SilenceEnds {
    type Progress = SilenceProgress;
    const REPORTED_AS: Option<LoopName> = Some((Loop::Dispatch, "ended silences"));

    fn begin(&self) -> SilenceProgress {
        SilenceProgress::default()
    }

    async fn step(&self, done: &mut SilenceProgress) -> Result<Duration> {
        let silences = self.routed.holds.silences.current().await?;
        let (view, now) = (self.ownership.view(), self.clock.now());
        if done.partitions != view.partitions {
            *done = SilenceProgress { partitions: view.partitions.clone(), ended: HashSet::new() };
        }
        let over = silences.iter().filter(|one| one.state(now) == SilenceState::Expired);
        let over: Vec<&AlertSilence> = over.filter(|one| !one.is_forgotten(now)).collect();
        let name = |one: &&AlertSilence| (one.id, one.ends_at);
        let ended: Vec<&AlertSilence> =
            over.iter().copied().filter(|one| !done.ended.contains(&name(one))).collect();
        if !ended.is_empty() {
            self.join_again(&ended, &silences, &done.partitions, now).await?;
            done.ended = over.iter().map(name).collect();
        }
        Ok(TICK)
    }
}

impl SilenceEnds {
    /// Lets open records join that an ended alert silence matches and no active one covers.
    async fn join_again(
        &self,
        ended: &[&AlertSilence],
        silences: &AlertSilences,
        partitions: &[u16],
        now: Timestamp,
    ) -> Result<()> {
        let RoutedGroups { routes, groups, queries, flapping, .. } = &self.routed;
        let is_own =
            |record: &OfflineRecord| partitions.contains(&partition_of(&record.id.unit, groups.partitions()));
        let ended: HashSet<SilenceId> = ended.iter().map(|one| one.id).collect();
        let was_covered =
            |record: &OfflineRecord| silences.matching(record).any(|one| ended.contains(&one.id));
        let destinations = self.routed.destinations_at(now).await?;
        let mut pages = OpenPages::new(&**queries);
        while let Some(page) = pages.next().await? {
            let joins = page.into_iter().filter(|record| is_own(record) && was_covered(record));
            let joins = joins.filter(|record| silences.covered_until(record, now).is_none());
            let records: Vec<OfflineRecord> = joins.collect();
            // Receivers are notified of the episode in place of the silence.
            let episodes = flapping.lasting(records.iter().map(|record| &record.id.unit)).await?;
            let joins: Vec<Join> = records
                .into_iter()
                .map(|record| episodes.get(&record.id.unit).cloned().unwrap_or(record))
                .map(OutboxEvent::Record)
                .map(|event| Join { groups: groups_of(&event, routes), event })
                .collect();
            if !joins.is_empty() {
                groups.join(&joins, &destinations, &Capacity::NONE, now).await?;
            }
        }
        Ok(())
    }
}

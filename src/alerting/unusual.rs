//! Units that are silent for unusually long. Receivers of routes with the matcher `unusual="true"` are notified once
//! of each such silence, long before its deadline, and once when the unit is heard again.
//!
//! Such a notice is a record with the cause `unusual`, which is not stored as an offline record. It has groups of its
//! own, as episodes of flapping have. It ends with the next heartbeat, also if the unit went offline meanwhile:
//! receivers are notified of that as of every silence.
//!
//! # Why a notice is told once
//! A notice is decided and stored, then it joins its groups, then its join is stored; the same holds for its end. A
//! crash in between repeats a join, which changes nothing. A notice stays stored until the unit is heard again, so
//! one silence begins no second notice.
//!
//! # What bounds it
//! An instance holds up to [`MOST`] notices. Further units wait until others are heard again: so many silent units
//! are an incident, and their offline records will say so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TICK;
use super::due::{DueWork, LoopName};
use super::group::groups_of_record;
use super::routed_groups::RoutedGroups;
use super::stateful_alerts::StatefulAlerts;
use crate::clock::{Clock, Timestamp, monotonic};
use crate::fleet::mirror::UnusualUnit;
use crate::fleet::{NoticeStage, Ownership, Roll, UnusualNotice, UnusualNotices};
use crate::presence::{Cause, Closing, OfflineRecord, Snapshot, Unit};
use crate::store::{Capacity, EngineError, Join, MAX_STEP, OutboxEvent, Result, UnitStore};
use crate::telemetry::Loop;

/// The most notices of an instance.
const MOST: usize = 1000;
/// The most unusual units that are read: the routes may match few of them.
const MOST_LISTED: usize = 10_000;
/// How often the units are read.
const EVERY: Duration = Duration::from_secs(2);

/// Notifies receivers of unusual silences.
pub(super) struct UnusualSilences {
    pub routed: RoutedGroups,
    pub stateful_alerts: Arc<StatefulAlerts>,
    pub units: Arc<dyn UnitStore>,
    pub notices: UnusualNotices,
    pub roll: Arc<Roll>,
    pub ownership: Ownership,
    pub clock: Clock,
}

/// A notice as read, and the notice to write; `None`: no notice.
type NoticeChange = (Unit, Option<UnusualNotice>, Option<UnusualNotice>);

impl DueWork for UnusualSilences {
    /// When the units were read last, and whether there were notices.
    type Progress = Option<(Instant, bool)>;
    const REPORTED_AS: Option<LoopName> = Some((Loop::Dispatch, "unusual units"));

    fn begin(&self) -> Option<(Instant, bool)> {
        None
    }

    async fn step(&self, progress: &mut Option<(Instant, bool)>) -> Result<Duration> {
        let asks = self.routed.routes.ask_for_unusual();
        if let Some((at, had_notices)) = *progress
            && (monotonic().duration_since(at) < EVERY || (!asks && !had_notices))
        {
            return Ok(TICK);
        }
        let now = self.clock.now();
        let partitions = self.ownership.view().partitions.clone();
        let mut notices = self.notices.all(&partitions).await?;
        if asks {
            notices.extend(self.begin_notices(&notices, now).await?);
        }
        self.end_notices(&mut notices, now).await?;
        self.join(&notices, now).await?;
        *progress = Some((monotonic(), !notices.is_empty()));
        Ok(TICK)
    }
}

impl UnusualSilences {
    /// Stores notices of units whose silence became unusual, and returns the stored ones.
    async fn begin_notices(
        &self,
        known: &BTreeMap<Unit, UnusualNotice>,
        now: Timestamp,
    ) -> Result<Vec<(Unit, UnusualNotice)>> {
        let roll = self.roll.clone();
        let listing = tokio::task::spawn_blocking(move || roll.unusual(now, MOST_LISTED));
        let listed = listing
            .await
            .map_err(|error| EngineError::Unavailable(format!("unusual units were not listed: {error}")))?;
        let new: Vec<UnusualUnit> = listed.into_iter().filter(|one| !known.contains_key(&one.unit)).collect();
        let destinations = self.routed.current_destinations(now).await?;
        let mut begun = Vec::new();
        for new in new.chunks(MAX_STEP) {
            let room = MOST.saturating_sub(known.len() + begun.len());
            if room == 0 {
                break;
            }
            let units: Vec<Unit> = new.iter().map(|one| one.unit.clone()).collect();
            let seen = self.units.read(&units).await?;
            let records = new.iter().zip(seen).filter_map(|(one, seen)| notice_of(one, seen, now));
            // A notice that is held waits until the hold ends, and begins then if the silence is still unusual.
            let free = records.filter(|record| {
                !groups_of_record(record, &self.routed.routes).is_empty()
                    && destinations.silence_held_until(record, now).is_none()
            });
            let changes: Vec<NoticeChange> = free
                .take(room)
                .map(|record| {
                    let notice = UnusualNotice { stage: NoticeStage::Begins, record };
                    (notice.record.id.unit.clone(), None, Some(notice))
                })
                .collect();
            let written = self.notices.change(&changes).await?;
            let written = changes.into_iter().zip(written).filter(|(_, is_written)| *is_written);
            begun.extend(written.filter_map(|((unit, _, notice), _)| Some((unit, notice?))));
        }
        Ok(begun)
    }

    /// Ends notices whose units were heard again or removed.
    async fn end_notices(&self, notices: &mut BTreeMap<Unit, UnusualNotice>, now: Timestamp) -> Result<()> {
        let lasting: Vec<Unit> = notices
            .iter()
            .filter(|(_, one)| one.stage == NoticeStage::Lasts)
            .map(|(unit, _)| unit.clone())
            .collect();
        let mut changes: Vec<NoticeChange> = Vec::new();
        for units in lasting.chunks(MAX_STEP) {
            for (unit, seen) in units.iter().zip(self.units.read(units).await?) {
                let known = &notices[unit];
                let ended = ended(&known.record, &seen, now);
                let after = ended.map(|record| UnusualNotice { record, stage: NoticeStage::Ends });
                changes.extend(after.map(|after| (unit.clone(), Some(known.clone()), Some(after))));
            }
        }
        let written = self.notices.change(&changes).await?;
        for ((unit, _, after), is_written) in changes.into_iter().zip(written) {
            match after.filter(|_| is_written) {
                Some(after) => drop(notices.insert(unit, after)),
                // Another instance was faster.
                None => drop(notices.remove(&unit)),
            }
        }
        Ok(())
    }

    /// Lets the begins and the ends of notices join their groups.
    async fn join(&self, notices: &BTreeMap<Unit, UnusualNotice>, now: Timestamp) -> Result<()> {
        let open: Vec<&UnusualNotice> =
            notices.values().filter(|one| one.stage != NoticeStage::Lasts).collect();
        if open.is_empty() {
            return Ok(());
        }
        let destinations = self.routed.current_destinations(now).await?;
        for open in open.chunks(MAX_STEP) {
            let removed = open.iter().map(|one| &one.record);
            let removed = removed.filter(|record| record.closed_by == Some(Closing::Removed));
            self.stateful_alerts.remove(&removed.cloned().collect::<Vec<_>>()).await?;
            let join = |one: &&UnusualNotice| Join {
                groups: groups_of_record(&one.record, &self.routed.routes),
                event: OutboxEvent::Record(one.record.clone()),
            };
            // No receiver was notified of a notice whose route is gone and that did not join.
            let joins: Vec<Join> = open.iter().map(join).filter(|join| !join.groups.is_empty()).collect();
            self.routed.groups.join(&joins, &destinations, &Capacity::NONE, now).await?;
            let changes: Vec<NoticeChange> = open
                .iter()
                .map(|one| {
                    let known = (*one).clone();
                    let lasts = UnusualNotice { stage: NoticeStage::Lasts, ..known.clone() };
                    let after = (one.stage == NoticeStage::Begins).then_some(lasts);
                    (one.record.id.unit.clone(), Some(known), after)
                })
                .collect();
            self.notices.change(&changes).await?;
        }
        Ok(())
    }
}

/// The notice of a unit whose silence is unusual; `None`: the unit was heard meanwhile, or is offline.
fn notice_of(found: &UnusualUnit, seen: Snapshot, now: Timestamp) -> Option<OfflineRecord> {
    let UnusualUnit { last_seen, since, .. } = *found;
    let is_current = seen.last_heard() == Some(last_seen);
    let facts = seen.facts.filter(|facts| is_current && facts.open_record(&seen.unit).is_none())?;
    let open = OfflineRecord::open(seen.unit, last_seen, since, now);
    Some(OfflineRecord { labels: facts.labels, cause: Cause::Unusual, ..open })
}

/// The ended notice; `None`: it lasts.
fn ended(notice: &OfflineRecord, seen: &Snapshot, now: Timestamp) -> Option<OfflineRecord> {
    let (back_at, why) = match seen.last_heard() {
        _ if seen.is_unreadable() => return None,
        _ if !seen.is_known() => (now, Closing::Removed),
        Some(heard) if heard > notice.last_seen => (heard, Closing::Return),
        _ => return None,
    };
    Some(OfflineRecord { back_at: Some(back_at), closed_by: Some(why), ..notice.clone() })
}

//! Units that are silent for unusually long. Receivers of routes with the matcher `unusual="true"` are notified once
//! of each such silence, long before its deadline, and once when the unit is heard again.
//!
//! Such a notice is a record with the cause `unusual`, which is not stored as an offline record. It has groups of its
//! own, as episodes of flapping have. It ends with the next heartbeat, also if the unit went offline meanwhile:
//! receivers are notified of that as of every silence.
//!
//! Nothing watches the units of a kind that is no longer configured: their notices end when records of such units are
//! closed, and by the same rule ([`RemovedKinds`]).
//!
//! # Why a notice is told once
//! A notice is decided and stored, then it joins its groups, then its join is stored; the same holds for its end. A
//! crash in between repeats a join, which changes nothing. A notice stays stored until the unit is heard again, so
//! one silence begins no second notice.
//!
//! # What bounds it
//! An instance holds up to [`MOST`] notices of units that are not offline. Further units wait until others are heard
//! again or go offline, and a problem says so: so many silent units are an incident, and their offline records will
//! say so.
//!
//! A unit that goes offline keeps its notice without taking room: otherwise units that never come back would take all
//! of it in the course of time. Of these units, the [`MOST_OFFLINE`] that were heard last keep their notices. The
//! notices of the others end as if their units were removed: alerts are closed, and no receiver is told of a return.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TICK;
use super::due::{DueWork, LoopName};
use super::group::groups_of_record;
use super::routed_groups::RoutedGroups;
use super::stateful_alerts::StatefulAlerts;
use crate::clock::{Clock, Timestamp, monotonic};
use crate::fleet::mirror::{Cursor, UnusualUnit, WantedUnits};
use crate::fleet::{NoticeStage, Ownership, RemovedKinds, Roll, UnusualNotice, UnusualNotices};
use crate::presence::{Cause, Closing, Kind, OfflineRecord, Snapshot, Unit};
use crate::store::{Capacity, EngineError, Group, Join, MAX_STEP, OutboxEvent, Result, Roster, UnitStore};
use crate::telemetry::{Loop, Telemetry};

/// The most notices of units of an instance that are not offline.
const MOST: usize = 1000;
/// The most notices of units of an instance that are offline.
const MOST_OFFLINE: usize = 1000;
/// About how many unusual units a step looks at. The next step reads on: the routes may match few of them.
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
    /// The kinds that other instances are configured with.
    pub roster: Arc<dyn Roster>,
    pub removed_kinds: Arc<RemovedKinds>,
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

/// How far the work has come.
pub(super) struct UnusualProgress {
    /// When the units were read last.
    read_at: Option<Instant>,
    /// Whether there may be notices.
    has_notices: bool,
    /// Where the next step reads on.
    cursor: Cursor,
}

/// A notice as read, and the notice to write; `None`: no notice.
type NoticeChange = (Unit, Option<UnusualNotice>, Option<UnusualNotice>);

impl DueWork for UnusualSilences {
    type Progress = UnusualProgress;
    const REPORTED_AS: Option<LoopName> = Some((Loop::Dispatch, "unusual units"));

    fn begin(&self) -> UnusualProgress {
        UnusualProgress { read_at: None, has_notices: true, cursor: Cursor::default() }
    }

    async fn step(&self, progress: &mut UnusualProgress) -> Result<Duration> {
        if progress.read_at.is_some_and(|at| monotonic().duration_since(at) < EVERY) {
            return Ok(TICK);
        }
        let (rules, routes) = (self.roll.rules(), &self.routed.routes);
        let kinds: BTreeSet<Kind> =
            rules.keys().filter(|kind| routes.ask_for_unusual_of(kind)).cloned().collect();
        if !kinds.is_empty() || progress.has_notices {
            let now = self.clock.now();
            let partitions = self.ownership.view().partitions.clone();
            let mut notices = self.notices.all(&partitions).await?;
            let room = MOST.saturating_sub(self.end_notices(&mut notices, now).await?);
            self.begin_notices(&mut notices, (kinds, room), &mut progress.cursor, now).await?;
            self.join(&notices, now).await?;
            progress.has_notices = !notices.is_empty();
        }
        progress.read_at = Some(monotonic());
        Ok(TICK)
    }
}

impl UnusualSilences {
    /// Stores notices of units of these kinds whose silence became unusual, up to `room`.
    async fn begin_notices(
        &self,
        notices: &mut BTreeMap<Unit, UnusualNotice>,
        (kinds, mut room): (BTreeSet<Kind>, usize),
        cursor: &mut Cursor,
        now: Timestamp,
    ) -> Result<()> {
        let wanted = WantedUnits { kinds, without: notices.keys().cloned().collect() };
        let (roll, mut from) = (self.roll.clone(), cursor.clone());
        let listing = tokio::task::spawn_blocking(move || {
            let listed = roll.unusual(&mut from, &wanted, now, MOST_LISTED);
            (listed, from)
        });
        let (listed, next) = listing
            .await
            .map_err(|error| EngineError::Unavailable(format!("unusual units were not listed: {error}")))?;
        let destinations = self.routed.current_destinations(now).await?;
        let mut has_waiting = false;
        for new in listed.chunks(MAX_STEP) {
            let units: Vec<Unit> = new.iter().map(|one| one.unit.clone()).collect();
            let seen = self.units.read(&units).await?;
            let records = new.iter().zip(seen).filter_map(|(one, seen)| notice_of(one, seen, now));
            // A notice that is held waits until the hold ends, and begins then if the silence is still unusual.
            let free = records.filter(|record| {
                !groups_of_record(record, &self.routed.routes).is_empty()
                    && destinations.silence_held_until(record, now).is_none()
            });
            let mut changes: Vec<NoticeChange> = free
                .map(|record| {
                    let notice = UnusualNotice { stage: NoticeStage::Begins, record };
                    (notice.record.id.unit.clone(), None, Some(notice))
                })
                .collect();
            has_waiting = changes.len() > room;
            changes.truncate(room);
            let written = self.notices.change(&changes).await?;
            for (unit, _, notice) in
                changes.into_iter().zip(written).filter_map(|(one, is)| is.then_some(one))
            {
                notices.extend(notice.map(|notice| (unit, notice)));
                room -= 1;
            }
            if has_waiting {
                break;
            }
        }
        *cursor = next;
        // Without room, units that this step did not read may wait still.
        if has_waiting || room > 0 {
            self.telemetry.unusual_notices(has_waiting, MOST);
        }
        Ok(())
    }

    /// The kinds of notices that were removed from the configuration for long enough.
    async fn unwatched(
        &self,
        notices: &BTreeMap<Unit, UnusualNotice>,
        now: Timestamp,
    ) -> Result<BTreeSet<Kind>> {
        let rules = self.roll.rules();
        let kinds = notices.keys().map(|unit| &unit.kind).filter(|kind| !rules.contains_key(*kind));
        let kinds: BTreeSet<Kind> = kinds.cloned().collect();
        self.removed_kinds.keep(|kind| kinds.contains(kind));
        self.removed_kinds.due(kinds, &*self.roster, &self.ownership.view(), now).await
    }

    /// Ends notices whose units were heard again, were removed or are no longer watched. Answers how many of the others
    /// take room: those of units that are not offline.
    async fn end_notices(
        &self,
        notices: &mut BTreeMap<Unit, UnusualNotice>,
        now: Timestamp,
    ) -> Result<usize> {
        let lasting: Vec<Unit> = notices
            .iter()
            .filter(|(_, one)| one.stage == NoticeStage::Lasts)
            .map(|(unit, _)| unit.clone())
            .collect();
        let unwatched = self.unwatched(notices, now).await?;
        let (mut ends, mut offline) = (Vec::new(), Vec::new());
        for units in lasting.chunks(MAX_STEP) {
            for (unit, seen) in units.iter().zip(self.units.read(units).await?) {
                let notice = &notices[unit].record;
                match end_of(notice, &seen, &unwatched, now) {
                    Some(end) => ends.push((unit, end)),
                    None if is_offline(&seen) => offline.push((notice.last_seen, unit)),
                    None => {}
                }
            }
        }
        offline.sort_unstable();
        let beyond = offline.len().saturating_sub(MOST_OFFLINE);
        ends.extend(offline.drain(..beyond).map(|(_, unit)| (unit, (now, Closing::Removed))));
        let without_room = offline.len();
        let changes: Vec<NoticeChange> = ends
            .into_iter()
            .map(|(unit, (back_at, why))| {
                let known = notices[unit].clone();
                let record =
                    OfflineRecord { back_at: Some(back_at), closed_by: Some(why), ..known.record.clone() };
                (unit.clone(), Some(known), Some(UnusualNotice { record, stage: NoticeStage::Ends }))
            })
            .collect();
        let written = self.notices.change(&changes).await?;
        for ((unit, _, after), is_written) in changes.into_iter().zip(written) {
            match after.filter(|_| is_written) {
                Some(after) => drop(notices.insert(unit, after)),
                // Another instance was faster.
                None => drop(notices.remove(&unit)),
            }
        }
        let open = notices.values().filter(|one| one.stage != NoticeStage::Ends).count();
        Ok(open.saturating_sub(without_room))
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
            let groups = self.groups_of(open).await?;
            // No receiver is notified of a notice whose route is gone and that did not join.
            let joins = open.iter().zip(&groups).filter(|(_, groups)| !groups.is_empty());
            let joins: Vec<Join> = joins
                .map(|(one, groups)| Join {
                    groups: groups.clone(),
                    event: OutboxEvent::Record(one.record.clone()),
                })
                .collect();
            self.routed.groups.join(&joins, &destinations, &Capacity::NONE, now).await?;
            let changes: Vec<NoticeChange> = open
                .iter()
                .zip(&groups)
                .map(|(one, groups)| {
                    let known = (*one).clone();
                    let lasts = UnusualNotice { stage: NoticeStage::Lasts, ..known.clone() };
                    let has_begun = one.stage == NoticeStage::Begins && !groups.is_empty();
                    (one.record.id.unit.clone(), Some(known), has_begun.then_some(lasts))
                })
                .collect();
            self.notices.change(&changes).await?;
        }
        Ok(())
    }

    /// The groups that the begin or the end of each notice joins: by the routes of now or, if none of them asks for it any
    /// more, those that its begin joined.
    async fn groups_of(&self, notices: &[&UnusualNotice]) -> Result<Vec<Vec<Group>>> {
        let of_now = |one: &&UnusualNotice| groups_of_record(&one.record, &self.routed.routes);
        let mut groups: Vec<Vec<Group>> = notices.iter().map(of_now).collect();
        let without_route: Vec<usize> = (0..groups.len()).filter(|at| groups[*at].is_empty()).collect();
        if !without_route.is_empty() {
            let records: Vec<&OfflineRecord> = without_route.iter().map(|at| &notices[*at].record).collect();
            let joined = self.routed.groups.memberships(&records).await?;
            for (at, joined) in without_route.into_iter().zip(joined) {
                groups[at] = joined.into_iter().map(|one| one.group).collect();
                groups[at].dedup();
            }
        }
        Ok(groups)
    }
}

/// The notice of a unit whose silence is unusual; `None`: the unit was heard meanwhile, or is offline.
fn notice_of(found: &UnusualUnit, seen: Snapshot, now: Timestamp) -> Option<OfflineRecord> {
    let UnusualUnit { last_seen, since, .. } = *found;
    let is_current = seen.last_heard() == Some(last_seen);
    if !is_current || is_offline(&seen) {
        return None;
    }
    let facts = seen.facts?;
    let open = OfflineRecord::open(seen.unit, last_seen, since, now);
    Some(OfflineRecord { labels: facts.labels, cause: Cause::Unusual, ..open })
}

/// When the notice ended, and why; `None`: it lasts.
fn end_of(
    notice: &OfflineRecord,
    seen: &Snapshot,
    unwatched: &BTreeSet<Kind>,
    now: Timestamp,
) -> Option<(Timestamp, Closing)> {
    match seen.last_heard() {
        _ if seen.is_unreadable() => None,
        _ if !seen.is_known() => Some((now, Closing::Removed)),
        Some(heard) if heard > notice.last_seen => Some((heard, Closing::Return)),
        _ if unwatched.contains(&notice.kind) => Some((now, Closing::KindRemoved)),
        _ => None,
    }
}

fn is_offline(seen: &Snapshot) -> bool {
    seen.facts.as_ref().is_some_and(|facts| facts.open_record(&seen.unit).is_some())
}
